//! The API's socket: there for whom it shall be there, from the first moment on.

use super::access::Access;
use nearside_linux::folder::Folder;
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Makes the socket at `path` and listens.
///
/// Its folder is made where it is not there, and must be writable for nobody else. A socket gets its mode and group
/// between `bind` and `listen`: until the latter nobody can connect, so whatever the umask was, there is no moment in
/// which somebody can who must not.
///
/// # Errors
/// Names the path. A socket that somebody listens on is left alone, as is anything that is no socket; one that is left
/// of a daemon that ended is replaced.
pub(super) fn listen(path: &Path, access: &Access) -> Result<UnixListener, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let folder = path.parent().ok_or_else(|| named(&"expected a file in a folder"))?;
    Folder::make(folder).map_err(|error| error.to_string())?;
    remove_stale(path).map_err(|error| named(&error))?;
    let listen = || -> rustix::io::Result<_> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        give(path, access)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    listen().map(UnixListener::from).map_err(|error| named(&error))
}

/// Lets those connect who may read, and nobody else.
pub(super) fn give(path: &Path, access: &Access) -> rustix::io::Result<()> {
    let (read_write, group) = (Mode::RUSR | Mode::WUSR, access.socket_gid());
    // First for nobody else, so that the former group is not let in meanwhile, nor the new one's mode used by the former.
    rustix::fs::chmod(path, read_write)?;
    let Some(group) = group else { return Ok(()) };
    rustix::fs::chownat(CWD, path, None, Some(Gid::from_raw(group)), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chmod(path, read_write | Mode::RGRP | Mode::WGRP)
}

/// Takes the socket away at the end.
pub(super) fn remove(path: &Path) {
    // Whoever comes next replaces what is left.
    let _ = std::fs::remove_file(path);
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let meta = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        meta => meta?,
    };
    if FileType::from_raw_mode(meta.st_mode) != FileType::Socket {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is something that is no socket",
        ));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process serves this socket"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt},
    };

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_socket_is_for_those_who_may_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/api.socket");
        let own_gid = rustix::process::getegid().as_raw();
        let alone = Access::default();
        let shared = Access { read_gid: Some(own_gid), ..alone };

        let listener = listen(&path, &alone).unwrap();
        assert_eq!(mode(&path), 0o600);
        give(&path, &shared).unwrap();
        assert_eq!((mode(&path), fs::metadata(&path).unwrap().gid()), (0o660, own_gid));
        give(&path, &alone).unwrap();
        assert_eq!(mode(&path), 0o600);
        drop(listener);
        remove(&path);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_is_left_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.socket");
        let access = Access::default();
        let first = listen(&path, &access).unwrap();
        let error = listen(&path, &access).unwrap_err();
        assert!(error.ends_with("api.socket: another process serves this socket"), "{error}");
        UnixStream::connect(&path).unwrap();

        drop(first);
        let second = listen(&path, &access).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(second);
    }

    #[test]
    fn what_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.socket");
        fs::write(&path, "precious").unwrap();
        assert!(listen(&path, &Access::default()).unwrap_err().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_folder_that_others_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = listen(&folder.path().join("api.socket"), &Access::default()).unwrap_err();
        assert!(error.contains("may be written by others"), "{error}");
    }
}
