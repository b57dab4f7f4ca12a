//! The checks of a configuration against this host that the daemon makes before it starts.
//! `--check-config` makes the same ones.

use super::{access::Access, audit, config::Config, socket};

/// The access that a configuration describes, if the daemon could start with the configuration on
/// this host.
///
/// # Errors
/// The key and the reason for which the daemon would refuse to start.
pub fn check(config: &Config) -> Result<Access, String> {
    let access = check_reloaded(config)?;
    if config.api.socket == config.audit.log {
        return Err(format!(
            "api.socket and audit.log are both {}: expected two paths",
            config.api.socket.display()
        ));
    }
    socket::check(&config.api.socket).map_err(|why| format!("api.socket: {why}"))?;
    Ok(access)
}

/// As [`check`], for a daemon that runs: its socket stays the same one.
///
/// # Errors
/// The key and the reason for which the daemon keeps its earlier configuration.
pub fn check_reloaded(config: &Config) -> Result<Access, String> {
    let access = Access::new(&config.api)?;
    audit::check(&config.audit.log)?;
    Ok(access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;
    use std::{
        fs,
        os::unix::{
            fs::{PermissionsExt, symlink},
            net::UnixListener,
        },
        path::Path,
    };

    fn config(socket: &Path, log: &Path) -> Config {
        let text = format!("[api]\nsocket = {socket:?}\n[audit]\nlog = {log:?}");
        Config::parse(Path::new("daemon.toml"), &text).unwrap()
    }

    #[test]
    fn sockets_that_the_daemon_would_refuse_are_refused_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let log = path("audit.log");
        let said = |socket: &Path| check(&config(socket, &log)).map(drop);
        fs::write(path("file"), "").unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink(path("folder"), path("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), Mode::RUSR).unwrap();
        let long = "x".repeat(108);
        for (name, why) in [
            (&*long, "a socket's path has at most 107"),
            ("file", "no socket"),
            ("folder", "no socket"),
            ("fifo", "no socket"),
            ("link", "no socket"),
            ("link/api.socket", "this is a link"),
            ("file/api.socket", "this is no folder"),
            ("none/below/api.socket", "none: No such file"),
            ("audit.log", "expected two paths"),
        ] {
            let socket = path(name);
            let error = said(&socket).unwrap_err();
            assert!(error.contains("api.socket") && error.contains(why), "{name}: {error}");
            if name != "audit.log" {
                let started = socket::listen(&socket, &Access::default());
                assert!(started.is_err(), "{name}: the daemon would start");
            }
        }
        said(&path("new/api.socket")).unwrap();
        assert!(!path("new").exists(), "a check makes nothing");
        // A folder like /tmp above the missing one: other users cannot replace what is made there.
        fs::create_dir(path("sticky")).unwrap();
        fs::set_permissions(path("sticky"), fs::Permissions::from_mode(0o1777)).unwrap();
        said(&path("sticky/new/api.socket")).unwrap();
        socket::listen(&path("sticky/new/api.socket"), &Access::default()).unwrap();
        assert!(said(&path("sticky/api.socket")).unwrap_err().contains("mode 1777"));
        let _running = UnixListener::bind(path("own.socket")).unwrap();
        said(&path("own.socket")).unwrap();
        assert!(path("own.socket").exists());
    }

    #[test]
    fn a_log_that_the_daemon_would_refuse_is_refused_before() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, log) = (folder.path().join("api.socket"), folder.path().join("audit.log"));
        check(&config(&socket, &log)).unwrap();
        assert!(!log.exists(), "a check makes nothing");
        fs::write(&log, "").unwrap();
        check(&config(&socket, &log)).unwrap();
        fs::hard_link(&log, folder.path().join("other")).unwrap();
        let error = check(&config(&socket, &log)).unwrap_err();
        assert!(error.contains("audit.log") && error.contains("2 names"), "{error}");
        assert!(check(&config(&socket, folder.path())).unwrap_err().contains("regular file"));
    }
}
