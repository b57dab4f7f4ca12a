//! Mount namespaces with copies.
//!
//! A thread changes a namespace from inside: it enters, acts on descriptors, and comes back. Paths
//! are resolved in the namespace without links, and what they name is compared with the original,
//! so nobody can redirect a bind by renaming folders or placing links.

use crate::{
    census::copies,
    error::{Error, IoContext},
    file_id::{FileId, Identity},
    file_system::host_root,
    mountinfo::{Mount, mounts, read_at},
    sys,
    walk::{FILE, Links, Walked, is_silent, walk},
};
use nearside_linux::escape;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, open, openat, openat2, readlinkat},
    io::Errno,
    mount::{
        MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change,
        move_mount, open_tree, unmount,
    },
    process::fchdir,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

/// A mount namespace, by descriptor. It lives as long as this does.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    id: FileId,
}

impl Namespace {
    /// That of a process.
    ///
    /// # Errors
    /// If the process has ended, or may not be looked at.
    pub fn of(process: u32) -> Result<Self, Error> {
        Self::at(Path::new(&format!("/proc/{process}/ns/mnt")))
    }

    /// That of this thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn own() -> Result<Self, Error> {
        Self::at(Path::new("/proc/thread-self/ns/mnt"))
    }

    /// The namespace `id`, by any of its processes that has not ended.
    pub(crate) fn with_any(processes: &[u32], id: FileId) -> Option<Self> {
        let mut found = processes.iter().filter_map(|process| Self::of(*process).ok());
        found.find(|namespace| namespace.id == id)
    }

    fn at(path: &Path) -> Result<Self, Error> {
        let doing = || format!("opening {}", escape::text(path));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty()).doing(doing)?;
        let id = FileId::of(&file).doing(doing)?;
        Ok(Self { file, id })
    }

    /// Its identity.
    pub fn id(&self) -> FileId {
        self.id
    }
}

/// The answer to a bind.
#[derive(Debug)]
pub enum Bound {
    /// Done; the descriptor is that of the mount.
    Mount(OwnedFd),
    /// The path names another file there, or none.
    NotThere,
    /// The host would see the copy, too: the file lies on a mount that it shares.
    Shared,
}

/// A thread that can enter namespaces and come back.
#[derive(Debug)]
pub struct Visitor {
    home: Namespace,
    /// That of process 1. Some mounts there, such as podman's, arrive in no other.
    host: Namespace,
    /// This thread in the host's `/proc`.
    own: OwnedFd,
    /// Its descriptors there, to reach a mount by its descriptor.
    descriptors: OwnedFd,
    /// The device of the host's root.
    root: Option<u64>,
}

impl Visitor {
    /// Gives the process a mount namespace of its own, in which its mounts are seen by nobody
    /// else, while those of the host still arrive. Threads that start later stay in it. Originals
    /// are looked up in `host`, the namespace of process 1.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub fn new(host: Namespace) -> Result<Self, Error> {
        let doing = || "making a mount namespace for copies".to_owned();
        private().doing(doing)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = open("/proc/thread-self", flags, Mode::empty()).doing(doing)?;
        let descriptors = openat(&own, "fd", flags, Mode::empty()).doing(doing)?;
        Ok(Self { home: Namespace::own()?, host, own, descriptors, root: host_root() })
    }

    /// The namespace that it returns to.
    pub(crate) fn home(&self) -> FileId {
        self.home.id
    }

    /// Looks at files as the host sees them.
    ///
    /// # Errors
    /// If its namespace cannot be entered.
    pub(crate) fn on_host<T>(&self, look: impl FnOnce() -> T) -> Result<T, Error> {
        self.within(&self.host, || Ok(look()))
    }

    /// The file at a path of the host, a symbolic link as itself; none if there is none.
    ///
    /// # Errors
    /// If its file system may not answer.
    pub(crate) fn file_on_host(&self, path: &Path) -> io::Result<Option<FileId>> {
        let there = || match self.open(None, path, Links::OnTheWay) {
            Ok(there) => FileId::of(&there.file).map(Some),
            Err(error) if is_silent(&error) => Err(error),
            Err(_) => Ok(None),
        };
        self.on_host(there).map_err(io::Error::other)?
    }

    /// Those files that the host does not find at their paths, or cannot without questions to file
    /// systems.
    pub(crate) fn perhaps_not_on_host(
        &self,
        files: impl Iterator<Item = (FileId, PathBuf)>,
    ) -> Vec<FileId> {
        let files: Vec<_> = files.collect();
        let is_there = |(id, path): &(FileId, PathBuf)| {
            // The kernel answers from its memory alone (RESOLVE_CACHED, since Linux 5.12).
            let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
            let there = openat2(CWD, path, FILE, Mode::empty(), resolve);
            there.is_ok_and(|there| FileId::of(&there).is_ok_and(|there| there == *id))
        };
        let others = || files.iter().filter(|file| !is_there(file)).map(|(id, _)| *id).collect();
        self.on_host(others).unwrap_or_default()
    }

    /// The file at a path of the host without links, not open for reading; none if there is none.
    pub(crate) fn open_on_host(&self, path: &Path) -> Option<OwnedFd> {
        self.on_host(|| Some(self.open(None, path, Links::Refused).ok()?.file)).ok()?
    }

    /// A file of the host by a mount of its own, so that its file system can be unmounted while it
    /// is open; none if the path names another file.
    pub(crate) fn detached(&self, path: &Path, file: FileId) -> Option<OwnedFd> {
        let detached = || {
            let seen = self.open(None, path, Links::Refused).ok()?.file;
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_EMPTY_PATH;
            let is_it = FileId::of(&seen).is_ok_and(|id| id == file);
            is_it.then(|| open_tree(&seen, "", flags).ok()).flatten()
        };
        self.on_host(detached).ok()?
    }

    /// Binds `tree`, a mount that is not attached yet, over `path` in a namespace, if that path
    /// names the original there. `root` is the folder that will be the root of a container that is
    /// about to start.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bind(
        &self,
        namespace: &Namespace,
        root: Option<&Path>,
        tree: OwnedFd,
        path: &Path,
        original: FileId,
    ) -> Result<Bound, Error> {
        let doing = || format!("binding a copy over {}", escape::text(path));
        self.within(namespace, || {
            let root = self.root_folder(root)?;
            let Walked { file: target, mount: around } =
                match self.open(Some(&root), path, Links::Refused) {
                    Ok(target) => target,
                    Err(error) if is_silent(&error) => return Err(error).doing(doing),
                    Err(_) => return Ok(Bound::NotThere),
                };
            if FileId::of(&target).ok() != Some(original) {
                return Ok(Bound::NotThere);
            }
            if around.peers.is_some_and(|peers| self.is_hosts(peers)) {
                return Ok(Bound::Shared);
            }
            // A copy may do no more than the original there.
            sys::restrict(tree.as_fd(), around.is_nosuid, around.is_noexec).doing(doing)?;
            let flags =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&tree, "", &target, "", flags).doing(doing)?;
            Ok(Bound::Mount(tree))
        })
    }

    /// Whether the host's mounts are among these peers. Those of a service with `PrivateMounts=`
    /// have peers among themselves alone.
    fn is_hosts(&self, peers: u64) -> bool {
        let hosts = read_at(&self.own, "../../../1/mountinfo");
        hosts.is_err()
            || hosts.is_ok_and(|text| mounts(&text).iter().any(|it| it.peers == Some(peers)))
    }

    /// Detaches mounts. Fine if one has gone by itself: the kernel detaches what is mounted on a
    /// file that is renamed over or unlinked elsewhere.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn unbind(&self, namespace: &Namespace, mounts: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if mounts.is_empty() {
            return Ok(());
        }
        self.within(namespace, || {
            let doing = || "reaching a mount by its descriptor".to_owned();
            fchdir(&self.descriptors).doing(doing)?;
            for mount in mounts {
                // EINVAL: it is not attached any more.
                let number = mount.as_raw_fd().to_string();
                let _ = unmount(number.as_str(), UnmountFlags::DETACH);
            }
            Ok(())
        })
    }

    /// The path of a mount in its namespace: the kernel moves a mount along with what it is mounted
    /// on. None if it is not attached any more.
    pub(crate) fn path_of(&self, mount: BorrowedFd<'_>) -> Option<PathBuf> {
        let number = mount.as_raw_fd().to_string();
        let path = readlinkat(&self.descriptors, number.as_str(), Vec::new()).ok()?;
        let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
        (path != Path::new("/")).then_some(path)
    }

    /// Detaches the mount at `path` in a namespace if its files lie on `device`. Returns the file
    /// that was there.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn unbind_at(
        &self,
        namespace: &Namespace,
        path: &Path,
        device: u64,
    ) -> Result<Option<FileId>, Error> {
        let Some(mount) = self.open_in(namespace, path)? else { return Ok(None) };
        match FileId::of(&mount).ok().filter(|id| id.device == device) {
            Some(id) => self.unbind(namespace, &[mount.as_fd()]).map(|()| Some(id)),
            None => Ok(None),
        }
    }

    /// The copies mounted in a namespace, those on top first; none if it cannot be entered. Its
    /// processes might not tell all of them: one with a root of its own (chroot(2)) sees those
    /// below that alone.
    pub(crate) fn copies_in(&self, namespace: &Namespace) -> Vec<Mount> {
        let mountinfo = self.within(namespace, || {
            read_at(&self.own, "mountinfo").doing(|| "reading a namespace's mounts".into())
        });
        mountinfo.map_or_else(
            |error| {
                log!("{error}");
                Vec::new()
            },
            |mountinfo| copies(&mountinfo),
        )
    }

    /// The file at a path of a namespace, without links; none if there is none.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub(crate) fn file_at(
        &self,
        namespace: &Namespace,
        path: &Path,
    ) -> Result<Option<FileId>, Error> {
        let found = self.open_in(namespace, path)?;
        Ok(found.and_then(|file| FileId::of(&file).ok()))
    }

    /// The file at a path of a namespace, without links; none if there is none, or if the namespace
    /// cannot be entered.
    pub(crate) fn identity_at(&self, namespace: &Namespace, path: &Path) -> Option<Identity> {
        Identity::of(self.open_in(namespace, path).ok()??).ok()
    }

    /// A path of a namespace without links, not open for reading; none if there is none.
    fn open_in(&self, namespace: &Namespace, path: &Path) -> Result<Option<OwnedFd>, Error> {
        let doing = || format!("looking for {}", escape::text(path));
        self.within(namespace, || match self.open(None, path, Links::Refused) {
            Ok(found) => Ok(Some(found.file)),
            Err(error) if is_silent(&error) => Err(error).doing(doing),
            Err(_) => Ok(None),
        })
    }

    /// The files of these names in these folders of a namespace, below a root as for
    /// [`bind`](Self::bind), links followed, not open for reading.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub(crate) fn find(
        &self,
        namespace: &Namespace,
        root: Option<&Path>,
        folders: &[&str],
        names: &[&str],
    ) -> Result<Vec<OwnedFd>, Error> {
        self.within(namespace, || {
            let root = self.root_folder(root)?;
            let walk = |path: &Path| self.open(Some(&root), path, Links::Followed).ok();
            let mut found = Vec::new();
            for folder in folders.iter().map(Path::new) {
                let Some(Walked { file: seen, .. }) = walk(folder) else { continue };
                // Most are missing, and a look into the folder is enough to tell.
                let is_there = |name: &&&str| {
                    let file = openat(&seen, **name, FILE, Mode::empty());
                    !matches!(file, Err(Errno::NOENT | Errno::NOTDIR))
                };
                let there = names.iter().filter(is_there);
                found.extend(there.filter_map(|name| Some(walk(&folder.join(name))?.file)));
            }
            Ok(found)
        })
    }

    /// The folder that will be the root of a container, as long as the namespace has another root;
    /// the root afterwards.
    fn root_folder(&self, future: Option<&Path>) -> Result<OwnedFd, Error> {
        let doing = || "opening a namespace's root".to_owned();
        match future.map(|path| self.open(None, path, Links::Refused)) {
            Some(Ok(folder)) => Ok(folder.file),
            Some(Err(error)) if is_silent(&error) => Err(error).doing(doing),
            _ => open("/", FILE, Mode::empty()).doing(doing),
        }
    }

    /// Opens a path below a folder, or the root, of the namespace where this thread is.
    fn open(&self, root: Option<&OwnedFd>, path: &Path, links: Links) -> io::Result<Walked> {
        let mountinfo = || read_at(&self.own, "mountinfo");
        match root {
            Some(root) => walk(root, path, links, self.root, mountinfo),
            None => walk(open("/", FILE, Mode::empty())?, path, links, self.root, mountinfo),
        }
    }

    /// Acts in a namespace.
    fn within<T>(
        &self,
        namespace: &Namespace,
        act: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        // A thread that shares its root and working directory with others may not enter.
        sys::unshare_folders().doing(|| "leaving the other threads' root".into())?;
        enter(namespace.file.as_fd()).doing(|| "entering a mount namespace".into())?;
        let result = act();
        // Outside its own namespace the helper would act on others' files.
        if let Err(error) = enter(self.home.file.as_fd()) {
            log!("cannot return to its mount namespace: {error}");
            std::process::abort();
        }
        result
    }
}

/// Gives this thread a mount namespace of its own, which later mounts of the host reach and none
/// leaves.
pub(crate) fn private() -> rustix::io::Result<()> {
    sys::unshare_mounts()?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
}

fn enter(namespace: BorrowedFd<'_>) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))
}
