//! The tmpfs of each node, and the copies on it.

use crate::{
    attributes,
    error::{Error, IoContext},
    file_id::{FileId, Identity},
    original::Original,
    remains::Remains,
    sys,
};
use nearside_linux::sys::{page_bytes, page_nodes};
use nearside_policy::{
    Bytes,
    replication::{Bar, CopyRefusal},
};
use nearside_topology::NodeId;
use rustix::{
    fs::{AtFlags, Mode, OFlags, ftruncate, openat, unlinkat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
        fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    },
};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

/// The source of its mounts in `/proc/PID/mountinfo`, by which leftovers are found.
pub const SOURCE: &str = nearside_linux::text::COPIES_SOURCE;

/// The share of a copy that has to lie on its node.
const LOCAL_PERCENT: u8 = 99;

/// Copied between two looks at the flag that ends the copying.
const CHUNK_BYTES: usize = 1 << 20;

/// The tmpfs of one node.
#[derive(Debug)]
pub struct Store {
    node: NodeId,
    folder: OwnedFd,
    /// The device of its files.
    device: u64,
}

/// A complete copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Its file in the store.
    pub(crate) name: String,
    /// Its identity.
    pub id: FileId,
    /// Its memory, in bytes: whole pages, in huge pages where the file is large enough.
    pub bytes: u64,
    /// The pages of the original by node, when this was made.
    pub(crate) original_pages: BTreeMap<NodeId, u64>,
}

/// Why a copy was not made.
#[derive(Debug)]
pub enum NotCopied {
    /// No node can have one.
    Barred(Bar),
    /// This node cannot.
    Refused(CopyRefusal),
    /// It is no longer wanted.
    Cancelled,
}

impl From<io::Error> for NotCopied {
    fn from(error: io::Error) -> Self {
        Self::Refused(match error.kind() {
            io::ErrorKind::StorageFull => {
                CopyRefusal::NoRoom("the budget for copies (--budget) is spent".into())
            }
            _ => CopyRefusal::Failed(error.to_string()),
        })
    }
}

impl From<Errno> for NotCopied {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl Store {
    /// Mounts a tmpfs of at most `budget_bytes` at `folder`, in this process's mount namespace
    /// alone. Its pages come from `node` as long as that has memory; `prefer` and not `bind`, since
    /// past the node's memory the kernel would kill the copier (`mpol=` in
    /// `Documentation/filesystems/tmpfs.rst`). Large files get huge pages where the kernel has
    /// them.
    ///
    /// # Errors
    /// If the kernel refuses the mount.
    pub fn mount(node: NodeId, folder: &Path, budget_bytes: u64) -> Result<Self, Error> {
        let doing = || format!("mounting a tmpfs for node {node}");
        std::fs::create_dir_all(folder).doing(doing)?;
        let mount = tmpfs(node, budget_bytes, true)
            .or_else(|_| tmpfs(node, budget_bytes, false))
            .doing(doing)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&mount, "", rustix::fs::CWD, folder, flags).doing(doing)?;
        let device = rustix::fs::fstat(&mount).doing(doing)?.st_dev;
        Ok(Self { node, folder: mount, device })
    }

    /// One whose copies are files of an ordinary folder.
    #[cfg(test)]
    pub(crate) fn in_folder(node: NodeId, folder: &Path) -> Self {
        let folder = OwnedFd::from(File::open(folder).unwrap());
        let device = rustix::fs::fstat(&folder).unwrap().st_dev;
        Self { node, folder, device }
    }

    /// Its node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The device of its files, as `st_dev`.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Copies `original` as `name`, and checks that the copy is complete and local. A failure
    /// leaves nothing behind.
    ///
    /// # Errors
    /// Why there is no copy.
    pub fn copy(
        &self,
        original: &File,
        name: &str,
        cancelled: &AtomicBool,
    ) -> Result<Copy, NotCopied> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let copy = File::from(openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)?);
        let made = self.fill(original, &copy, cancelled).and_then(|()| {
            let id = FileId::of(&copy)?;
            let blocks = rustix::fs::fstat(&copy)?.st_blocks;
            let bytes = blocks.cast_unsigned() * 512;
            let original_pages = pages_by_node(original)?;
            Ok(Copy { name: name.into(), id, bytes, original_pages })
        });
        if made.is_err() {
            self.remove(name);
        }
        made
    }

    fn fill(&self, original: &File, copy: &File, cancelled: &AtomicBool) -> Result<(), NotCopied> {
        let size = rustix::fs::fstat(original)?.st_size.cast_unsigned();
        let budget_bytes = rustix::fs::fstatvfs(copy).map(|it| it.f_blocks * it.f_frsize)?;
        if size > budget_bytes {
            let [size, budget] = [size, budget_bytes].map(Bytes);
            let why = format!("it has {size}, and the budget for copies is {budget} (--budget)");
            return Err(NotCopied::Refused(CopyRefusal::Failed(why)));
        }
        // The size first: `within_size` gives huge pages only to what lies within it.
        ftruncate(copy, size)?;
        // Before the content, too: a copy that cannot have them costs no memory.
        take_attributes(original, copy)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut offset = 0;
        loop {
            if cancelled.load(Ordering::Relaxed) {
                return Err(NotCopied::Cancelled);
            }
            let length = original.read_at(&mut chunk, offset)?;
            if length == 0 {
                break;
            }
            copy.write_all_at(&chunk[..length], offset)?;
            offset += length as u64;
        }
        // The content has changed the times, and taken away a set-user-ID bit and capabilities.
        take_attributes(original, copy)?;
        if rustix::fs::fstat(original)?.st_size.cast_unsigned() != size {
            return Err(NotCopied::Refused(CopyRefusal::Failed(
                "it changed while it was copied".into(),
            )));
        }
        let local_percent = self.local_percent(copy)?;
        match local_percent >= LOCAL_PERCENT {
            true => Ok(()),
            false => Err(NotCopied::Refused(CopyRefusal::NotLocal { local_percent })),
        }
    }

    /// The share of a file's pages on this node.
    fn local_percent(&self, file: &File) -> Result<u8, NotCopied> {
        let pages = pages_by_node(file)?;
        let local = pages.get(&self.node).copied().unwrap_or(0);
        let all = rustix::fs::fstat(file)?.st_size.cast_unsigned().div_ceil(page_bytes());
        Ok(u8::try_from(local * 100 / all.max(1)).unwrap_or(100))
    }

    /// Gives a copy the present attributes of its original, and notes which one that is.
    ///
    /// # Errors
    /// If it cannot have them.
    pub(crate) fn refresh(&self, original: &Original, copy: &Copy) -> Result<(), Error> {
        let doing = || "following the attributes of an original".to_owned();
        // For reading: one that is executed cannot be opened for writing.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let copy = openat(&self.folder, copy.name.as_str(), flags, Mode::empty()).doing(doing)?;
        let copy = File::from(copy);
        attributes::copy(&original.file, &copy).map_err(|failure| match failure {
            attributes::Failure::Barred(bar) => Error::Refused(bar.to_string()),
            attributes::Failure::Io(source) => Error::Call { what: doing(), source },
        })?;
        let noted = Identity::of(&original.file)
            .and_then(|it| attributes::note_original(&copy, it, &original.place.path));
        noted.doing(|| "noting the original of a copy".into())
    }

    /// The rest of its budget, in bytes.
    pub(crate) fn free_bytes(&self) -> u64 {
        rustix::fs::fstatvfs(&self.folder).map_or(0, |it| it.f_bfree.saturating_mul(it.f_frsize))
    }

    /// Takes the content of a copy away.
    ///
    /// # Errors
    /// `ETXTBSY` if it is being executed, `EAGAIN` if a process holds a lease on it.
    pub(crate) fn empty(&self, name: &str) -> io::Result<()> {
        // A program that is open for writing cannot be executed, so it is opened only to a purpose.
        if rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_size == 0 {
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        ftruncate(openat(&self.folder, name, flags, Mode::empty())?, 0)?;
        Ok(())
    }

    /// Removes a copy that was in use. Returns what processes keep of it.
    pub(crate) fn retire(&self, copy: &Copy) -> Option<Remains> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, copy.name.as_str(), flags, Mode::empty());
        self.remove(&copy.name);
        // Without the file, its memory returns all the same once nobody has it.
        let remains = Remains::of(File::from(file.ok()?), copy.id, self.node, copy.bytes);
        remains.is_held().then_some(remains)
    }

    /// Removes a copy. Its memory returns once nobody maps it.
    pub fn remove(&self, name: &str) {
        // Only this process has names there. What fails is gone at the latest with the tmpfs.
        let _ = unlinkat(&self.folder, name, AtFlags::empty());
    }

    /// A mount of one copy, read-only and not attached anywhere yet.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn tree(&self, copy: &Copy) -> Result<OwnedFd, Error> {
        let doing = || format!("binding a copy on node {}", self.node);
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(&self.folder, copy.name.as_str(), flags).doing(doing)?;
        sys::make_read_only(tree.as_fd()).doing(doing)?;
        Ok(tree)
    }
}

fn take_attributes(original: &File, copy: &File) -> Result<(), NotCopied> {
    attributes::copy(original, copy).map_err(|failure| match failure {
        attributes::Failure::Barred(bar) => NotCopied::Barred(bar),
        attributes::Failure::Io(error) => error.into(),
    })
}

/// Where the pages of a file lie. Reads those in that are not in memory.
fn pages_by_node(file: &File) -> io::Result<BTreeMap<NodeId, u64>> {
    pages_by_window(file, sys::WINDOW_BYTES)
}

fn pages_by_window(file: &File, window_bytes: u64) -> io::Result<BTreeMap<NodeId, u64>> {
    let mut pages = BTreeMap::new();
    sys::for_each_window(file, window_bytes, |addresses| {
        for node in page_nodes(0, addresses)?.into_iter().flatten() {
            *pages.entry(node).or_default() += 1;
        }
        Ok(())
    })?;
    Ok(pages)
}

fn tmpfs(node: NodeId, budget_bytes: u64, huge: bool) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| fsconfig_set_string(context.as_fd(), key, value);
    set("source", SOURCE)?;
    set("mode", "0755")?;
    set("size", &budget_bytes.to_string())?;
    set("mpol", &format!("prefer:{}", node.0))?;
    if huge {
        set("huge", "within_size")?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write, process::Command};

    #[test]
    fn every_page_of_a_file_is_counted_once_whatever_the_window() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 10 * page_bytes() as usize + 1]).unwrap();
        for window in [1, 3, 11, 20] {
            let pages = pages_by_window(&file, window * page_bytes()).unwrap();
            assert_eq!(pages.values().sum::<u64>(), 11, "{window}: {pages:?}");
        }
        let empty = tempfile::tempfile().unwrap();
        assert!(pages_by_window(&empty, page_bytes()).unwrap().is_empty());
    }

    #[test]
    fn a_copy_that_is_being_executed_keeps_its_content_until_that_ends() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sleep");
        // A child of another test could inherit a descriptor that this process writes to.
        let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap();
        assert!(copied.success());
        let bytes = || fs::metadata(&program).unwrap().len();
        let (store, bytes_before) = (Store::in_folder(NodeId(0), folder.path()), bytes());
        let mut child = Command::new(&program).arg("600").spawn().unwrap();
        let refused = store.empty("sleep").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ExecutableFileBusy);
        assert!(bytes_before > 0 && bytes() == bytes_before);
        child.kill().unwrap();
        child.wait().unwrap();
        store.empty("sleep").unwrap();
        assert_eq!(bytes(), 0);
    }
}
