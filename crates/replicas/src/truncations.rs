//! Truncations that no lease tells of.
//!
//! An open with `O_RDONLY | O_TRUNC` needs no write access, so it breaks no lease (`break_lease` in
//! `fs/locks.c`). A thread that does nothing else empties the copies then: processes that map or
//! read one see at once what the original would show them, whatever the helper is busy with. The
//! helper takes the copies out of use when it comes to it.

use crate::{
    error::{Error, IoContext},
    file_id::FileId,
    original::{Original, Version},
    store::{Copy, Store},
    sys::{self, Urgency},
    watch::watch,
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
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// The handle of the thread. It ends with this.
#[derive(Debug)]
pub(crate) struct Truncations {
    watched: Arc<Watched>,
    end: Arc<OwnedFd>,
}

/// What the thread shares with the helper.
#[derive(Debug)]
struct Watched {
    /// Tells of changes of the files.
    changes: OwnedFd,
    stores: Arc<Vec<Store>>,
    files: Mutex<BTreeMap<FileId, Copied>>,
}

/// A file that has copies.
#[derive(Debug)]
struct Copied {
    file: Arc<File>,
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
        let watched = Arc::new(Watched { changes, stores, files: Mutex::default() });
        let (its, its_end) = (Arc::clone(&watched), Arc::clone(&end));
        let watch = move || {
            // The helper tells if it may not set its own.
            _ = sys::set_urgency(Urgency::Thread);
            while wait(&its.changes, &its_end) {
                its.changed();
            }
        };
        thread::Builder::new().name("truncations".into()).spawn(watch).doing(doing)?;
        Ok(Self { watched, end })
    }

    /// Has the copy of a node emptied together with its original from now on.
    ///
    /// # Errors
    /// If there are too many watches.
    pub(crate) fn add(&self, original: &Original, node: NodeId, copy: &Copy) -> Result<(), Bar> {
        // Under the lock: an event that comes before the entry would find no file.
        let mut files = self.watched.files();
        let copied = files.entry(original.id).or_insert_with(|| Copied {
            file: Arc::clone(&original.file),
            watches: BTreeSet::new(),
            names: BTreeMap::new(),
        });
        copied.names.insert(node, copy.name.clone());
        for file in std::iter::once(&*original.file).chain(&original.layers) {
            match watch(&self.watched.changes, file, WatchFlags::MODIFY) {
                Ok(watch) => _ = copied.watches.insert(watch),
                Err(bar) => {
                    self.watched.forget(&mut files, original.id, |it| it == node);
                    return Err(bar);
                }
            }
        }
        Ok(())
    }

    /// Leaves the copies of a file on some nodes as they are.
    pub(crate) fn remove(&self, id: FileId, is_left: impl Fn(NodeId) -> bool) {
        self.watched.forget(&mut self.watched.files(), id, is_left);
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

impl Watched {
    fn files(&self) -> MutexGuard<'_, BTreeMap<FileId, Copied>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the copies of a file on some nodes, and its watches with the last one.
    fn forget(
        &self,
        files: &mut BTreeMap<FileId, Copied>,
        id: FileId,
        is_left: impl Fn(NodeId) -> bool,
    ) {
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
                let _ = inotify::remove_watch(&self.changes, watch);
            }
        }
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
            let is_seen = all || !copied.watches.is_disjoint(&seen);
            if !is_seen || !Version::of(&copied.file).is_ok_and(|it| it.bytes == 0) {
                continue;
            }
            for (node, name) in &copied.names {
                if let Some(store) = self.stores.iter().find(|store| store.node() == *node) {
                    // What cannot be emptied goes with the other copies, when the helper comes.
                    let _ = store.empty(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::original::Place;
    use rustix::{
        event::Timespec,
        fs::{Mode, OFlags, open},
    };
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
    fn copies_are_emptied_with_their_original_as_long_as_they_are_watched() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        fs::create_dir(&store).unwrap();
        let bytes_of = |name: &str| fs::metadata(store.join(name)).unwrap().len();
        let stores = Arc::new(vec![Store::in_folder(NODE, &store)]);
        let truncations = Truncations::start(stores).unwrap();
        let names = ["kept", "left", "written", "again"];
        let originals = names.map(|name| copied(folder.path(), name));
        for (original, copy) in &originals {
            truncations.add(original, NODE, copy).unwrap();
        }
        let id = |name: &str| FileId::at(&folder.path().join(name)).unwrap();
        truncations.remove(id("left"), |node| node == NODE);
        truncations.remove(id("kept"), |node| node != NODE);
        truncations.remove(id("again"), |_| true);
        truncations.add(&originals[3].0, NODE, &originals[3].1).unwrap();
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        let is_emptied = |name: &str| {
            let wd = inotify::add_watch(&watch, store.join(name), WatchFlags::MODIFY).unwrap();
            truncate_without_write_access(&folder.path().join(name));
            let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
            let told = poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&minute));
            assert_eq!(told, Ok(1), "{name} is as before");
            inotify::remove_watch(&watch, wd).unwrap();
            // An event each for the change and for the end of the watch.
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(&watch, &mut buffer);
            reader.next().unwrap();
            reader.next().unwrap();
        };
        truncate_without_write_access(&folder.path().join("left"));
        let mut written = fs::File::options().append(true).open(folder.path().join("written"));
        std::io::Write::write_all(written.as_mut().unwrap(), b"more").unwrap();
        is_emptied("kept");
        is_emptied("again");
        // The thread has this lock for all files that it was told of.
        drop(truncations.watched.files());
        assert_eq!(names.map(bytes_of), [0, 5, 5, 0]);
    }

    #[test]
    fn a_watch_that_two_files_share_stays_until_the_last_is_left() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("store")).unwrap();
        let truncations = Truncations::start(Arc::new(vec![])).unwrap();
        let watches = || {
            let files = truncations.watched.files();
            files.values().map(|copied| copied.watches.len()).collect::<Vec<_>>()
        };
        let [mut one, two] = ["one", "two"].map(|name| copied(folder.path(), name));
        one.0.layers.push(File::open(folder.path().join("two")).unwrap());
        truncations.add(&one.0, NODE, &one.1).unwrap();
        truncations.add(&two.0, NODE, &two.1).unwrap();
        assert_eq!(watches().iter().sum::<usize>(), 3);
        let shared = *truncations.watched.files()[&two.0.id].watches.first().unwrap();
        truncations.remove(two.0.id, |_| true);
        assert_eq!(watches(), [2]);
        let end = |watch| inotify::remove_watch(&truncations.watched.changes, watch);
        assert_eq!(end(shared), Ok(()), "it was there");
        assert_eq!(end(shared), Err(Errno::INVAL));
    }

    /// Without a thread: `changed` is called by the test.
    fn without_thread(changes: OwnedFd, stores: Vec<Store>) -> Truncations {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let stores = Arc::new(stores);
        let watched = Watched { changes, stores, files: Mutex::default() };
        Truncations { watched: Arc::new(watched), end }
    }

    #[test]
    fn a_truncation_whose_event_was_lost_empties_the_copy_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        fs::create_dir(&store).unwrap();
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let changes = inotify::init(flags).unwrap();
        let truncations = without_thread(changes, vec![Store::in_folder(NODE, &store)]);
        let names = ["one", "two", "truncated"];
        for (original, copy) in names.map(|name| copied(folder.path(), name)) {
            truncations.add(&original, NODE, &copy).unwrap();
        }
        let mut files = ["one", "two"]
            .map(|name| fs::File::options().append(true).open(folder.path().join(name)).unwrap());
        let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        // The kernel keeps one event of several equal ones in a row.
        for event in 0..=most.trim().parse::<usize>().unwrap() {
            std::io::Write::write_all(&mut files[event % 2], b".").unwrap();
        }
        truncate_without_write_access(&folder.path().join("truncated"));
        truncations.watched.changed();
        let bytes = names.map(|name| fs::metadata(store.join(name)).unwrap().len());
        assert_eq!(bytes, [5, 5, 0]);
    }

    #[test]
    fn a_copy_that_cannot_be_watched_is_barred_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("store")).unwrap();
        // It takes no watches.
        let changes = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let truncations = without_thread(changes, vec![]);
        let (original, copy) = copied(folder.path(), "one");
        let added = truncations.add(&original, NODE, &copy);
        assert!(matches!(added, Err(Bar::NotWatched { .. })), "{added:?}");
        assert!(truncations.watched.files().is_empty());
    }
}
