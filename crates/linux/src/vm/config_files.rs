//! The files that a running monitor's command line names (`-readconfig`).
//!
//! A tenant may have written the command line. So a file counts only if the monitor's own user may
//! read it, and it is opened below the monitor's own root.

use crate::read;
use nearside_topology::bounded_file::{self, MAX_TEXT_BYTES};
use nearside_vmm::{CommandLine, ConfigFiles};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use std::{io, path::Path};

/// The texts of the files that this command line of a process names. The reading of the command
/// line tells of a missing one.
pub(super) fn config_files(process: i32, words: &[&str], proc: &Path) -> ConfigFiles {
    let of = |path: &str| Some((path.to_owned(), text(process, path, proc).ok()?));
    CommandLine::config_files(words).into_iter().filter_map(of).collect()
}

fn text(process: i32, path: &str, proc: &Path) -> Result<String, bounded_file::Error> {
    let own = proc.join(process.to_string());
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(own.join("root"), folder, Mode::empty())?;
    // As the kernel tells it, seen from that root.
    let path = std::fs::read_link(own.join("cwd"))?.join(path);
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(&root, path, bounded_file::OPEN_FLAGS, Mode::empty(), within)?;
    let stat = fstat(&file)?;
    let status = read::text(&own.join("status"))?;
    if stat.st_mode & 0o004 == 0 && user(&status) != Some(stat.st_uid) {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied).into());
    }
    bounded_file::into_text(bounded_file::read_opened(file.into(), MAX_TEXT_BYTES)?)
}

/// The user whose permissions hold for files: the last number of `Uid` in `/proc/PID/status`.
fn user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    #[test]
    fn files_count_that_the_monitors_user_may_read_below_its_root() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, root) = (folder.path(), folder.path().join("7/root"));
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir(root.join("home")).unwrap();
        symlink("/home", proc.join("7/cwd")).unwrap();
        let put = |name: &str, mode| {
            fs::write(root.join(name), name).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let own = rustix::process::geteuid().as_raw();
        let set_user = |user| {
            let status = format!("Name:\tqemu\nUid:\t1\t1\t1\t{user}\n");
            fs::write(proc.join("7/status"), status).unwrap();
        };
        put("etc/all.cfg", 0o644);
        put("etc/own.cfg", 0o600);
        put("home/here.cfg", 0o644);
        symlink("/etc/all.cfg", root.join("home/link.cfg")).unwrap();
        symlink("../../../../../etc/passwd", root.join("home/out.cfg")).unwrap();
        let line = |path| ["qemu-system-x86_64", "-readconfig", path];
        let read = |path| config_files(7, &line(path), proc).remove(path);
        set_user(own);
        for (path, text) in [
            ("/etc/all.cfg", Some("etc/all.cfg")),
            ("/etc/own.cfg", Some("etc/own.cfg")),
            ("here.cfg", Some("home/here.cfg")),
            ("link.cfg", Some("etc/all.cfg")),
            ("out.cfg", None),
            ("/etc", None),
            ("none.cfg", None),
        ] {
            assert_eq!(read(path).as_deref(), text, "{path}");
        }
        set_user(own + 1);
        assert_eq!([read("/etc/all.cfg").is_some(), read("/etc/own.cfg").is_some()], [true, false]);
        assert!(config_files(8, &line("/etc/all.cfg"), proc).is_empty(), "it has ended");
    }
}
