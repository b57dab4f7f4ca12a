//! Paths, a folder at a time, without a question to a file system that may not answer.
//!
//! The kernel would ask such a file system for each name below one of its folders. So the mount of
//! each folder is known before anything is looked up in it. A mount that comes meanwhile changes
//! nothing: the folder is a descriptor by then, and to open the root of a mount asks nothing.

use crate::{
    file_system::may_be_silent,
    mountinfo::{Mount, mount_with},
};
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, readlinkat,
        statx,
    },
    io::Errno,
};
use std::{
    collections::{BTreeMap, VecDeque},
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Component, Path},
};

/// A file itself, not open for reading.
pub(crate) const FILE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// As many links as the kernel follows (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// The treatment of symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// A path with one is not opened.
    Refused,
    /// Those on the way are followed. One at the end is the file that is opened.
    OnTheWay,
    /// All are followed, below the root.
    Followed,
}

/// A file that a path names, not open for reading, and its mount.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) file: OwnedFd,
    pub(crate) mount: Mount,
}

/// Opens a file below `root`, not for reading. `mountinfo` tells the mounts there, as
/// `/proc/PID/mountinfo` does. The file system of the host's root, on the device `trusted`, is
/// asked in any case: all of the host waits for it.
///
/// # Errors
/// Those of `openat2(2)`; for a path on a file system that may not answer, one that [`is_silent`]
/// knows.
pub(crate) fn walk(
    root: impl AsFd,
    path: &Path,
    links: Links,
    trusted: Option<u64>,
    mountinfo: impl Fn() -> io::Result<Vec<u8>>,
) -> io::Result<Walked> {
    let mut passed = Passed { trusted, mounts: BTreeMap::new(), mountinfo };
    let root = openat(&root, ".", FILE, Mode::empty())?;
    let (mount, _) = passed.check(&root)?;
    let mut folders = vec![(root, mount)];
    let mut names: VecDeque<OsString> = names(path);
    let mut followed = 0;
    loop {
        let Some(name) = names.pop_front() else {
            let (file, mount) = folders.pop().ok_or(Errno::NOENT)?;
            let mount = passed.mounts.remove(&mount).ok_or(Errno::NOENT)?;
            return Ok(Walked { file, mount });
        };
        if name == ".." {
            folders.truncate(folders.len().max(2) - 1);
            continue;
        }
        let Some((folder, _)) = folders.last() else { return Err(Errno::NOENT.into()) };
        let resolve = ResolveFlags::NO_MAGICLINKS;
        let file = openat2(folder, &name, FILE, Mode::empty(), resolve)?;
        let (mount, kind) = passed.check(&file)?;
        let is_link = kind == FileType::Symlink;
        let is_at_end = names.is_empty() && links == Links::OnTheWay;
        if !is_link || is_at_end {
            folders.push((file, mount));
            continue;
        }
        followed += 1;
        if links == Links::Refused || followed > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = OsString::from_vec(readlinkat(&file, "", Vec::new())?.into_bytes());
        if Path::new(&target).is_absolute() {
            folders.truncate(1);
        }
        let mut all = self::names(Path::new(&target));
        all.append(&mut names);
        names = all;
    }
}

/// Whether a path was not opened, since it lies on a file system that may not answer.
pub(crate) fn is_silent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::HostUnreachable
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(name).collect()
}

/// The mounts that a path has come to, by number.
struct Passed<M> {
    trusted: Option<u64>,
    mounts: BTreeMap<u64, Mount>,
    mountinfo: M,
}

impl<M: Fn() -> io::Result<Vec<u8>>> Passed<M> {
    /// The mount and the type of a file, unless its file system may not answer.
    fn check(&mut self, file: &OwnedFd) -> io::Result<(u64, FileType)> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = match statx(file, "", flags, StatxFlags::TYPE | StatxFlags::MNT_ID) {
            // FUSE hides what another user has mounted (`fuse_allow_current_process`).
            Err(Errno::ACCESS) => return Err(silent("fuse")),
            stat => stat?,
        };
        let id = stat.stx_mnt_id;
        if !self.mounts.contains_key(&id) {
            let found = mount_with(&(self.mountinfo)()?, id);
            // Without one it has come or gone this moment.
            let mount = found.ok_or_else(|| silent("a mount that is not known"))?;
            if may_be_silent(&mount.kind) && Some(mount.device) != self.trusted {
                return Err(silent(&mount.kind));
            }
            self.mounts.insert(id, mount);
        }
        Ok((id, FileType::from_raw_mode(stat.stx_mode.into())))
    }
}

fn silent(kind: &str) -> io::Error {
    let why = format!("it lies on {kind}, which may not answer");
    io::Error::new(io::ErrorKind::HostUnreachable, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_id::FileId;
    use rustix::fs::{CWD, open};
    use std::{fs, os::unix::fs::symlink};

    fn mountinfo() -> io::Result<Vec<u8>> {
        fs::read("/proc/self/mountinfo")
    }

    #[test]
    fn links_are_followed_below_the_root_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("lib/x")).unwrap();
        fs::write(at("lib/x/text"), "text").unwrap();
        symlink("lib", at("relative")).unwrap();
        symlink("/lib/x", at("absolute")).unwrap();
        symlink("../../../lib/x/text", at("lib/x/up")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let root = open(folder.path(), FILE, Mode::empty()).unwrap();
        let file = FileId::at(&at("lib/x/text")).unwrap();
        let walked = |path: &str, links| {
            let found = walk(&root, Path::new(path), links, None, mountinfo);
            found.map(|found| FileId::of(&found.file).unwrap())
        };
        let followed =
            ["/lib/x/text", "relative/x/text", "/absolute/text", "lib/x/up", "../lib/x/up"];
        for path in followed {
            assert_eq!(walked(path, Links::Followed).unwrap(), file, "{path}");
        }
        for path in &followed[1..] {
            let refused = walked(path, Links::Refused).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::LOOP.raw_os_error()), "{path}");
        }
        assert_eq!(walked("/lib/./x/../x/text", Links::Refused).unwrap(), file);
        assert_eq!(walked("relative/x/text", Links::OnTheWay).unwrap(), file);
        assert_ne!(walked("lib/x/up", Links::OnTheWay).unwrap(), file, "the link itself");
        assert_eq!(walked("/", Links::Refused).unwrap(), FileId::at(folder.path()).unwrap());
        let error = |path: &str| walked(path, Links::Followed).unwrap_err().kind();
        assert_eq!(error("lib/y/text"), io::ErrorKind::NotFound);
        assert_eq!(error("lib/x/text/more"), io::ErrorKind::NotADirectory);
        let endless = walked("loop", Links::Followed).unwrap_err();
        assert_eq!(endless.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }

    #[test]
    fn a_file_system_that_may_not_answer_is_not_asked_unless_it_is_the_hosts_root() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("text"), "text").unwrap();
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let root = open(folder.path(), FILE, Mode::empty()).unwrap();
        let stat = statx(&root, "", flags, StatxFlags::MNT_ID).unwrap();
        let walked = |kind: &str, trusted| {
            let text = format!("{} 1 0:99 / / rw - {kind} none rw\n", stat.stx_mnt_id);
            let mountinfo = || Ok(text.clone().into_bytes());
            walk(&root, Path::new("text"), Links::Followed, trusted, mountinfo)
        };
        assert!(walked("ext4", None).is_ok());
        for kind in ["fuse.sshfs", "nfs4", "autofs", "9p"] {
            let error = walked(kind, None).unwrap_err();
            assert!(is_silent(&error) && error.to_string().contains(kind), "{error}");
            assert!(walked(kind, Some(rustix::fs::makedev(0, 99))).is_ok());
        }
        let nowhere = walk(CWD, Path::new("/"), Links::Refused, None, || Ok(Vec::new()));
        assert!(is_silent(&nowhere.unwrap_err()));
    }
}
