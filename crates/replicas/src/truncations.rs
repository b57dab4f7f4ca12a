//! Truncations that no lease tells of.
//!
//! An open with `O_RDONLY | O_TRUNC` needs no write access, so it breaks no lease (`break_lease` in
//! `fs/locks.c`). A thread that does nothing else gives the copies the size of their original then:
//! processes that map or read one see at once what the original would show them, whatever the
//! helper is busy with. The helper takes the copies out of use when it comes to it.

use crate::{
    error::{Error, IoContext},
    file_id::FileId,
    original::{Original, Version},
    store::{Copy, Store},
    sys::{self, Urgency},
};
use nearside_policy::replication::Bar;
use nearside_topology::NodeId;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fs::inotify::{self, ReadFlags, Reader, WatchFlags},
    io::{Errno, write},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// The handle of the thread. It ends with this.
#[derive(Debug)]
pub(crate) struct Truncations {
    followed: Arc<Followed>,
    end: Arc<OwnedFd>,
}

/// What the thread shares with the helper.
#[derive(Debug)]
struct Followed {
    /// Tells of changes of the files.
    changes: OwnedFd,
    stores: Arc<Vec<Store>>,
    files: Mutex<BTreeMap<FileId, Copied>>,
}

/// A file that has copies.
#[derive(Debug)]
struct Copied {
    file: File,
    /// The watches of it, and of the files below it.
    watches: BTreeSet<i32>,
    /// The names of the copies in the stores.
    names: BTreeMap<NodeId, String>,
}

impl Truncations {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the user has too many inotify instances, or if there is no memory for a thread.
    pub(crate) fn start(stores: Arc<Vec<Store>>) -> Result<Self, Error> {
        let doing = || "watching for truncations".to_owned();
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let changes = inotify::init(flags).doing(doing)?;
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).doing(doing)?);
        let followed = Arc::new(Followed { changes, stores, files: Mutex::default() });
        let (its, its_end) = (Arc::clone(&followed), Arc::clone(&end));
        let follow = move || {
            // The helper tells if it may not set its own.
            _ = sys::set_urgency(Urgency::Thread);
            while wait(&its.changes, &its_end) {
                its.changed();
            }
        };
        thread::Builder::new().name("truncations".into()).spawn(follow).doing(doing)?;
        Ok(Self { followed, end })
    }

    /// Has the copy of a node follow truncations of its original from now on.
    ///
    /// # Errors
    /// If there are too many watches or open files.
    pub(crate) fn follow(&self, original: &Original, node: NodeId, copy: &Copy) -> Result<(), Bar> {
        let not_watched = |error: io::Error| Bar::NotWatched { error: error.to_string() };
        let changes = &self.followed.changes;
        let watch = |file: &File| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            inotify::add_watch(changes, path, WatchFlags::MODIFY)
        };
        let file = original.file.try_clone().map_err(not_watched)?;
        // Under the lock: another file may have a watch in common, and be left.
        let mut files = self.followed.files();
        let watches = std::iter::once(&original.file).chain(&original.layers).map(watch);
        let watches =
            watches.collect::<Result<Vec<_>, _>>().map_err(|it| not_watched(it.into()))?;
        let copied = files.entry(original.id).or_insert_with(|| Copied {
            file,
            watches: BTreeSet::new(),
            names: BTreeMap::new(),
        });
        copied.watches.extend(watches);
        copied.names.insert(node, copy.name.clone());
        Ok(())
    }

    /// Leaves the copies of a file on some nodes as they are.
    pub(crate) fn leave(&self, id: FileId, is_left: impl Fn(NodeId) -> bool) {
        let mut files = self.followed.files();
        let Some(copied) = files.get_mut(&id) else { return };
        copied.names.retain(|node, _| !is_left(*node));
        if !copied.names.is_empty() {
            return;
        }
        let left = files.remove(&id).map_or_else(BTreeSet::new, |copied| copied.watches);
        // Each write to a watched file would wake the thread.
        for watch in left {
            if !files.values().any(|other| other.watches.contains(&watch)) {
                // The watch of an unlinked file ends by itself.
                let _ = inotify::remove_watch(&self.followed.changes, watch);
            }
        }
    }
}

impl Drop for Truncations {
    fn drop(&mut self) {
        let _ = write(&*self.end, &1_u64.to_ne_bytes());
    }
}

/// Waits for changes. Says whether there are any before the end.
fn wait(changes: &OwnedFd, end: &OwnedFd) -> bool {
    let on = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = [on(changes.as_fd()), on(end.as_fd())];
    loop {
        match poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            Err(error) => {
                log!("truncations are seen later: {error}");
                return false;
            }
            Ok(_) => return fds[1].revents().is_empty(),
        }
    }
}

impl Followed {
    fn files(&self) -> MutexGuard<'_, BTreeMap<FileId, Copied>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files have been written to, or truncated.
    fn changed(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.changes, &mut buffer);
        let (mut seen, mut all) = (BTreeSet::new(), false);
        while let Ok(event) = reader.next() {
            seen.insert(event.wd());
            // After an overflow, any file may have changed.
            all |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        }
        for copied in self.files().values() {
            if !all && copied.watches.is_disjoint(&seen) {
                continue;
            }
            let Ok(Version { bytes, .. }) = Version::of(&copied.file) else { continue };
            for (node, name) in &copied.names {
                if let Some(store) = self.stores.iter().find(|store| store.node() == *node) {
                    // A copy that is executed cannot be shortened. It goes with the others.
                    let _ = store.shorten(name, bytes);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::original::Place;
    use rustix::fs::{Mode, OFlags, open};
    use std::{fs, path::Path};

    const NODE: NodeId = NodeId(3);

    /// An original of five bytes, and its copy in the folder of a store.
    fn copied(folder: &Path, name: &str) -> (Original, Copy) {
        let path = folder.join(name);
        fs::write(&path, "text\n").unwrap();
        fs::write(folder.join("store").join(name), "text\n").unwrap();
        let sent = OwnedFd::from(File::open(&path).unwrap());
        let original = Original::open(&sent, None, &Place { image: None, path }, |_, _| None);
        let id = FileId::at(&folder.join("store").join(name)).unwrap();
        let original_pages = BTreeMap::new();
        (original.unwrap().unwrap(), Copy { name: name.into(), id, bytes: 5, original_pages })
    }

    fn truncate_without_write_access(path: &Path) {
        open(path, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()).unwrap();
    }

    #[test]
    fn copies_are_emptied_with_their_original_until_they_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        fs::create_dir(&store).unwrap();
        let bytes_of = |name: &str| fs::metadata(store.join(name)).unwrap().len();
        let stores = Arc::new(vec![Store::in_folder(NODE, &store)]);
        let truncations = Truncations::start(stores).unwrap();
        let originals = ["kept", "left", "written"].map(|name| copied(folder.path(), name));
        for (original, copy) in &originals {
            truncations.follow(original, NODE, copy).unwrap();
        }
        truncations.leave(originals[1].0.id, |node| node == NODE);
        truncations.leave(originals[0].0.id, |node| node != NODE);
        // The watch blocks until the copy has changed.
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, store.join("kept"), WatchFlags::MODIFY).unwrap();
        truncate_without_write_access(&folder.path().join("left"));
        fs::write(folder.path().join("written"), "longer text\n").unwrap();
        truncate_without_write_access(&folder.path().join("kept"));
        let mut buffer = [MaybeUninit::uninit(); 4096];
        assert!(Reader::new(&watch, &mut buffer).next().is_ok());
        assert_eq!(["kept", "left"].map(bytes_of), [0, 5]);
    }
}
