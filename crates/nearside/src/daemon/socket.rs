//! The API's socket. From the first moment, only permitted users can connect to it.

use super::access::Access;
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, Stat},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use std::{
    ffi::{OsStr, OsString},
    fmt::Display,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Component, Path, PathBuf},
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// The longest path of a socket: `sun_path` of unix(7) less the byte at its end.
const MAX_PATH_BYTES: usize = 107;
/// Mode of a folder that the daemon makes for its socket.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
/// Write permission for the group and for others.
const OTHERS_WRITE: RawMode = 0o022;
const STICKY: RawMode = 0o1000;

/// The socket's place in the file system.
///
/// Mode and group are changed through `inode`, so a link or another file at the path is never
/// touched. While `inode` is open its number cannot be given to another file, so a comparison of
/// numbers is certain.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    /// An `O_PATH` descriptor of the socket itself.
    inode: OwnedFd,
}

/// Makes the socket at `path` and listens.
///
/// A missing folder is created; its ancestors must exist. The socket gets its mode and group
/// between `bind` and `listen`. No connection is possible before `listen`, so no peer connects
/// before the mode is right, whatever the umask.
///
/// # Errors
/// Errors name the path. An ancestor that is a link or that other users could change is refused. A
/// socket in use and a file that is no socket stay as they are; the socket of a daemon that has
/// ended is replaced.
pub(super) fn listen(path: &Path, access: &Access) -> Result<(UnixListener, Socket), String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(at(path, "expected the path of a file in a folder"));
    };
    let address = address(path)?;
    let Folder::There(folder) = open_folder(parent, Missing::Make)? else {
        return Err(at(parent, "there is no such folder"));
    };
    remove_stale(&folder, name, path)?;
    let bind = || -> rustix::io::Result<_> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&listener, &address)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inode = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
        Ok((listener, inode))
    };
    let (listener, inode) = bind().map_err(|error| at(path, error))?;
    let socket = Socket { path: path.into(), folder, name: name.into(), inode };
    socket.give(access)?;
    rustix::net::listen(&listener, BACKLOG).map_err(|error| at(path, error))?;
    Ok((UnixListener::from(listener), socket))
}

/// Refuses a path at which [`listen`] could make no socket. Nothing is created or removed, and the
/// socket of a daemon that runs is fine.
///
/// # Errors
/// As those of [`listen`].
pub(super) fn check(path: &Path) -> Result<(), String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(at(path, "expected the path of a file in a folder"));
    };
    address(path)?;
    match open_folder(parent, Missing::Leave)? {
        Folder::There(folder) => {
            refuse_unwritable(&folder, parent)?;
            refuse_other_kinds(&folder, name, path).map(drop)
        }
        Folder::Missing { above } => refuse_unwritable(&above, parent),
    }
}

/// The address of the socket at `path` (`sun_path` in unix(7)).
fn address(path: &Path) -> Result<SocketAddrUnix, String> {
    let bytes = path.as_os_str().len();
    if bytes > MAX_PATH_BYTES {
        let why = format!("the path has {bytes} bytes, a socket's path has at most");
        return Err(at(path, format!("{why} {MAX_PATH_BYTES}: choose a shorter one")));
    }
    SocketAddrUnix::new(path).map_err(|error| at(path, error))
}

/// Refuses a folder in which root can make no file: its file system is mounted read-only, say. A
/// user other than root learns nothing about root's permissions.
fn refuse_unwritable(folder: &OwnedFd, path: &Path) -> Result<(), String> {
    match rustix::fs::accessat(folder, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS) {
        Err(Errno::ACCESS) if !rustix::process::geteuid().is_root() => Ok(()),
        writable => writable.map_err(|error| at(path, error)),
    }
}

impl Socket {
    /// Gives the socket the mode and group of `access`.
    ///
    /// # Errors
    /// If the path no longer leads to this socket, or the kernel refuses the change. Then nothing
    /// at the path was changed.
    pub(super) fn give(&self, access: &Access) -> Result<(), String> {
        if !self.is_in_place() {
            let message = "this is no longer the socket that the daemon made: find out which \
                           process replaced it, then restart the daemon";
            return Err(at(&self.path, message));
        }
        let read_write = Mode::RUSR | Mode::WUSR;
        let give = || -> rustix::io::Result<()> {
            // Owner only at first: the former group must not use the new mode, nor the new group
            // the former one.
            self.set_mode(read_write)?;
            let Some(group) = access.socket_gid() else { return Ok(()) };
            let group = Some(Gid::from_raw(group));
            rustix::fs::chownat(&self.inode, "", None, group, AtFlags::EMPTY_PATH)?;
            self.set_mode(read_write | Mode::RGRP | Mode::WGRP)
        };
        give().map_err(|error| at(&self.path, error))
    }

    /// Removes the socket from its folder, unless the path leads to another file by now.
    pub(super) fn remove(self) {
        if self.is_in_place() {
            // The next daemon replaces a file that could not be removed.
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }

    /// `fchmod` refuses `O_PATH` descriptors. Their link in `/proc` leads to the inode itself,
    /// wherever it is by now.
    fn set_mode(&self, mode: Mode) -> rustix::io::Result<()> {
        rustix::fs::chmod(format!("/proc/self/fd/{}", self.inode.as_raw_fd()), mode)
    }

    /// Whether the path, with no link followed on the whole way, leads to this socket.
    fn is_in_place(&self) -> bool {
        let identity = |meta: Stat| (meta.st_dev, meta.st_ino);
        let own = rustix::fs::fstat(&self.inode).map(identity);
        let Some(Ok(Folder::There(folder))) =
            self.path.parent().map(|folder| open_folder(folder, Missing::Leave))
        else {
            return false;
        };
        let there = rustix::fs::statat(folder, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        own.is_ok() && there.map(identity) == own
    }
}

fn at(path: &Path, why: impl Display) -> String {
    format!("{}: {why}", path.display())
}

/// The treatment of a folder that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Leave,
}

/// The folder at a path.
enum Folder {
    There(OwnedFd),
    /// The folder above it.
    Missing {
        above: OwnedFd,
    },
}

/// Opens the folder at `path` one component after the other. The last one may be missing: then it
/// is created, or left out.
///
/// Only root and the daemon's own user may be able to change the target of the path. A folder above
/// the last may have the sticky bit (`/tmp`), because other users cannot replace its entries.
fn open_folder(path: &Path, missing: Missing) -> Result<Folder, String> {
    let mut so_far = PathBuf::from("/");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = rustix::fs::openat(CWD, &so_far, flags, Mode::empty())
        .map_err(|error| at(&so_far, error))?;
    let mut components = path.components().peekable();
    if components.next() != Some(Component::RootDir) {
        return Err(at(path, "expected an absolute path"));
    }
    refuse_others(&folder, &so_far, components.peek().is_none())?;
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else {
            return Err(at(path, "expected a path without `..`"));
        };
        so_far.push(name);
        let is_last = components.peek().is_none();
        let is_new = is_last
            && missing == Missing::Make
            && rustix::fs::mkdirat(&folder, name, FOLDER_MODE).is_ok();
        folder = match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(no_folder(&folder, name, &so_far)),
            Err(Errno::NOENT) if is_last && missing == Missing::Leave => {
                return Ok(Folder::Missing { above: folder });
            }
            opened => opened.map_err(|error| at(&so_far, error))?,
        };
        if is_new {
            // The umask may have removed permissions.
            rustix::fs::fchmod(&folder, FOLDER_MODE).map_err(|error| at(&so_far, error))?;
        }
        refuse_others(&folder, &so_far, is_last)?;
    }
    Ok(Folder::There(folder))
}

fn no_folder(above: impl AsFd, name: &OsStr, path: &Path) -> String {
    match rustix::fs::readlinkat(above, name, Vec::new()) {
        Ok(target) => at(
            path,
            format!(
                "this is a link to {}, and the socket's path may have none: name the folder itself",
                target.to_string_lossy()
            ),
        ),
        Err(_) => at(path, "this is no folder"),
    }
}

fn refuse_others(folder: impl AsFd, path: &Path, is_last: bool) -> Result<(), String> {
    let meta = rustix::fs::fstat(folder).map_err(|error| at(path, error))?;
    let own = rustix::process::geteuid().as_raw();
    let refused = |why: String| {
        let advice = "another user could replace the socket. Choose another api.socket, or correct \
                      the folder's owner and mode";
        Err(at(path, format!("{why}: {advice}")))
    };
    if meta.st_uid != 0 && meta.st_uid != own {
        return refused(format!("the folder belongs to user {}", meta.st_uid));
    }
    if meta.st_mode & OTHERS_WRITE != 0 && (is_last || meta.st_mode & STICKY == 0) {
        let mode = meta.st_mode & 0o7777;
        return refused(format!("the folder may be written by others (mode {mode:o})"));
    }
    Ok(())
}

/// Refuses anything at `path` but a socket. True if there is one.
fn refuse_other_kinds(folder: &OwnedFd, name: &OsStr, path: &Path) -> Result<bool, String> {
    let meta = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        meta => meta.map_err(|error| at(path, error))?,
    };
    match FileType::from_raw_mode(meta.st_mode) {
        FileType::Socket => Ok(true),
        _ => Err(at(path, "there is something that is no socket: remove it first")),
    }
}

/// Removes a socket without a listener.
fn remove_stale(folder: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), String> {
    if !refuse_other_kinds(folder, name, path)? {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(at(path, "another process serves this socket")),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(|error| at(path, error))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    };

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn own_group() -> Access {
        let read_gid = Some(rustix::process::getegid().as_raw());
        Access { read_gid, ..Access::default() }
    }

    #[test]
    fn only_the_configured_group_may_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/api.socket");
        let (alone, shared) = (Access::default(), own_group());

        let (listener, socket) = listen(&path, &alone).unwrap();
        assert_eq!(mode(&path), 0o600);
        socket.give(&shared).unwrap();
        assert_eq!(
            (mode(&path), Some(fs::metadata(&path).unwrap().gid())),
            (0o660, shared.read_gid)
        );
        socket.give(&alone).unwrap();
        assert_eq!(mode(&path), 0o600);
        drop(listener);
        socket.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_one_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.socket");
        let access = Access::default();
        let (first, _socket) = listen(&path, &access).unwrap();
        let error = listen(&path, &access).unwrap_err();
        assert!(error.ends_with("api.socket: another process serves this socket"), "{error}");
        UnixStream::connect(&path).unwrap();

        drop(first);
        let _second = listen(&path, &access).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.socket");
        fs::write(&path, "precious").unwrap();
        assert!(listen(&path, &Access::default()).unwrap_err().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    /// The configuration is read again, and the daemon ends, after another file took the socket's
    /// path.
    #[test]
    fn a_file_that_took_the_sockets_place_keeps_mode_group_and_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/api.socket");
        let secret = folder.path().join("secret");
        fs::write(&secret, "").unwrap();
        type Replace<'a> = &'a dyn Fn();
        let cases: [(&str, Replace<'_>); 4] = [
            ("a link", &|| symlink(&secret, &path).unwrap()),
            ("a hard link", &|| fs::hard_link(&secret, &path).unwrap()),
            ("a file", &|| fs::rename(&secret, &path).unwrap()),
            ("another socket", &|| drop(UnixListener::bind(&path).unwrap())),
        ];
        for (name, replace) in cases {
            fs::write(&secret, "").unwrap();
            fs::set_permissions(&secret, fs::Permissions::from_mode(0o400)).unwrap();
            let (_listener, socket) = listen(&path, &Access::default()).unwrap();
            fs::remove_file(&path).unwrap();
            replace();
            let before = fs::metadata(&path).unwrap().permissions().mode();
            for access in [own_group(), Access::default()] {
                let error = socket.give(&access).unwrap_err();
                assert!(error.contains("no longer the socket"), "{name}: {error}");
            }
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode(), before, "{name}");
            socket.remove();
            assert!(fs::symlink_metadata(&path).is_ok(), "{name} was removed");
            fs::remove_file(&path).unwrap();
            let _ = fs::remove_file(&secret);
        }
    }

    #[test]
    fn a_folder_that_became_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (run, other) = (folder.path().join("run"), folder.path().join("other"));
        let (_listener, socket) = listen(&run.join("api.socket"), &Access::default()).unwrap();
        fs::rename(&run, &other).unwrap();
        symlink(&other, &run).unwrap();
        assert!(socket.give(&own_group()).unwrap_err().contains("no longer the socket"));
        assert_eq!(mode(&other.join("api.socket")), 0o600);
        socket.remove();
        assert!(other.join("api.socket").exists());
    }

    #[test]
    fn each_folder_of_the_path_has_to_be_safe() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let listen_below = |folder: &Path| listen(&folder.join("api.socket"), &Access::default());
        for (name, mode, is_safe_above) in
            [("open", 0o777, false), ("group", 0o775, false), ("sticky", 0o1777, true)]
        {
            let folder = root.join(name);
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let error = listen_below(&folder).unwrap_err();
            assert!(error.contains(&format!("written by others (mode {mode:o})")), "{error}");
            let below = listen_below(&folder.join("run"));
            assert_eq!(below.is_ok(), is_safe_above, "{name}: {below:?}");
        }
        fs::create_dir(root.join("real")).unwrap();
        symlink(root.join("real"), root.join("link")).unwrap();
        for path in ["link", "link/run"] {
            let error = listen_below(&root.join(path)).unwrap_err();
            assert!(error.contains("link: this is a link to "), "{error}");
        }
        fs::write(root.join("file"), "").unwrap();
        assert!(listen_below(&root.join("file")).unwrap_err().contains("this is no folder"));
        assert!(listen_below(&root.join("real/..")).unwrap_err().contains("without `..`"));
        assert!(listen_below(Path::new("run")).unwrap_err().contains("an absolute path"));
    }

    #[test]
    fn a_folder_of_another_user_is_refused_wherever_it_is_in_the_path() {
        let root = tempfile::tempdir().unwrap();
        let theirs = root.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        // Only root can give a folder away.
        if std::os::unix::fs::chown(&theirs, Some(12_345), None).is_ok() {
            for path in [theirs.join("api.socket"), theirs.join("run/api.socket")] {
                let error = listen(&path, &Access::default()).unwrap_err();
                assert!(error.contains("theirs: the folder belongs to user 12345"), "{error}");
            }
        }
    }
}
