//! The effects of events. The decisions are those of [`Life`](nearside_policy::replication::Life);
//! here they are carried out.

use super::{
    Replicator,
    file::{Absent, Guest, Mount, Replicated, Whose, Withdrawn},
};
use crate::{
    copier::{Done, Job},
    file_id::FileId,
    layers, lease,
    namespace::{Bound, Visitor},
    original::Original,
    store::{NotCopied, Store},
    watch::watch,
};
use nearside_linux::escape;
use nearside_policy::replication::{Bar, CopyRefusal, Effect, Event};
use nearside_topology::NodeId;
use rustix::{
    fs::inotify::{self, WatchFlags},
    process::{Resource, getrlimit},
};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

impl Replicator {
    /// Gives an event to a file, and does what follows from it.
    pub(super) fn take(&mut self, id: FileId, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let Some(file) = self.files.get_mut(&id) else { return };
            for effect in file.life.take(event) {
                events.extend(self.act(id, effect));
            }
        }
    }

    /// Carries out one effect. Returns the event that answers it, if that is known at once.
    fn act(&mut self, id: FileId, effect: Effect) -> Option<Event> {
        match effect {
            Effect::TakeLease => {
                // A rename that came before the watch tells of itself here alone.
                if self.is_replaced(id) {
                    return Some(Event::Replaced);
                }
                if let Err(bar) = self.find_layers(id) {
                    return Some(Event::Barred(bar));
                }
                let answer = self.lease(id)?;
                let file = self.files.get_mut(&id)?;
                Some(match answer {
                    lease::Answer::Granted => {
                        file.retry.reset();
                        file.original.note_version();
                        Event::Leased
                    }
                    lease::Answer::Writer => {
                        file.retry.refused(Instant::now());
                        Event::BusyWriter
                    }
                    lease::Answer::Barred(bar) => Event::Barred(bar),
                })
            }
            Effect::Copy(node) => self.start_copy(id, node),
            Effect::Withdraw(node) => {
                self.withdraw(id, Some(node));
                None
            }
            Effect::Collapse => {
                let is_released = self.withdraw(id, None);
                let file = self.files.get_mut(&id)?;
                file.collapses += 1;
                if !is_released {
                    log!(
                        "{}: the kernel took its lease back after \
                         fs.lease-break-time, so a writer may have gone on before its copies were \
                         gone",
                        escape::text(&file.original.place.path)
                    );
                }
                // truncate(2), or a writer that is killed while it waits, closes nothing.
                file.retry.collapsed(Instant::now());
                Some(Event::Collapsed)
            }
            Effect::ReleaseLease => {
                lease::release(&self.files.get(&id)?.original);
                None
            }
            Effect::Forget => {
                self.forget(id);
                None
            }
        }
    }

    /// Takes the leases of a file. A writer may come between the look for the files below it and
    /// the leases on them, so the look is repeated under the leases.
    fn lease(&self, id: FileId) -> Option<lease::Answer> {
        let original = &self.files.get(&id)?.original;
        let answer = lease::take(original);
        if answer != lease::Answer::Granted {
            return Some(answer);
        }
        // A writer follows the truncation that has emptied the file.
        let looked = match original.is_empty() {
            true => Ok(Ok(false)),
            false => self.visitor.on_host(|| layers::are_those_leased(original)),
        };
        let looked = looked.unwrap_or_else(|error| Err(Bar::NotSeen { error: error.to_string() }));
        let answer = match looked {
            Ok(true) => return Some(answer),
            Ok(false) => lease::Answer::Writer,
            Err(bar) => lease::Answer::Barred(bar),
        };
        lease::release(original);
        Some(answer)
    }

    /// Finds the files below one of an overlay: a writer may have brought it to another layer.
    fn find_layers(&mut self, id: FileId) -> Result<(), Bar> {
        let Some(file) = self.files.get(&id) else { return Ok(()) };
        let layers = self.visitor.on_host(|| layers::below(&file.original));
        let layers =
            layers.unwrap_or_else(|error| Err(Bar::NotSeen { error: error.to_string() }))?;
        // The overlay shows the attributes of the topmost one.
        let events = WatchFlags::CLOSE_WRITE | WatchFlags::MODIFY | WatchFlags::ATTRIB;
        let watches = layers.iter().map(|layer| watch(&self.changes, layer, events));
        let watches = watches.collect::<Result<Vec<_>, _>>()?;
        if let Some(file) = self.files.get_mut(&id) {
            file.original.layers = layers;
            file.layer_watches.extend(watches);
        }
        Ok(())
    }

    fn start_copy(&mut self, id: FileId, node: NodeId) -> Option<Event> {
        let file = self.files.get_mut(&id)?;
        let original = Arc::clone(&file.original.file);
        file.has_new_attributes = false;
        let cancelled = Arc::new(AtomicBool::new(false));
        file.jobs.insert(node, Arc::clone(&cancelled));
        self.next_copy += 1;
        let name = format!("{}-{}", id.inode, self.next_copy);
        let bytes = file.original.version.bytes;
        self.copier.copy(Job { file: id, original, bytes, node, name, cancelled });
        None
    }

    /// A copy is complete or was not made. One that nobody waits for any more is removed.
    pub(super) fn copied(&mut self, done: Done) {
        let Done { job, made } = done;
        let awaited = self.files.get_mut(&job.file).is_some_and(|file| {
            let is_it = file.jobs.get(&job.node).is_some_and(|it| Arc::ptr_eq(it, &job.cancelled));
            is_it && file.jobs.remove(&job.node).is_some()
        });
        let copy = match made {
            Ok(copy) if !awaited => return self.remove_copy(job.node, &copy.name),
            _ if !awaited => return,
            Ok(copy) => copy,
            Err(why) => {
                let why = match why {
                    NotCopied::Barred(bar) => {
                        self.take(job.file, Event::Barred(bar));
                        // The event that would lift the bar may have come before it.
                        if self.files.get(&job.file).is_some_and(|it| it.has_new_attributes) {
                            self.take(job.file, Event::Attributes);
                        }
                        return;
                    }
                    NotCopied::Refused(why) => {
                        if matches!(why, CopyRefusal::NotLocal { .. }) {
                            self.watch.spilled(job.file, job.node, Instant::now());
                        }
                        why
                    }
                    NotCopied::Cancelled => CopyRefusal::Failed("it was cancelled".into()),
                };
                return self.take(job.file, Event::NotCopied(job.node, why));
            }
        };
        // Its attributes may have changed since they were copied. Later changes have an event,
        // which finds this copy.
        let original = self.files.get(&job.file).map(|file| &file.original);
        let store = self.store(job.node);
        let refreshed = original.zip(store).map(|(original, store)| store.refresh(original, &copy));
        if let Some(Err(error)) = refreshed {
            self.remove_copy(job.node, &copy.name);
            let why = CopyRefusal::Unfit(error.to_string());
            return self.take(job.file, Event::NotCopied(job.node, why));
        }
        if let Some(file) = self.files.get_mut(&job.file) {
            // First: `bind` looks whether the original has been truncated until now.
            if let Err(bar) = self.truncations.add(&file.original, job.node, &copy) {
                self.remove_copy(job.node, &copy.name);
                return self.take(job.file, Event::Barred(bar));
            }
            file.copies.insert(job.node, copy);
        }
        self.watch.spills.remove(&(job.file, job.node));
        self.bind_everywhere(job.file, job.node);
        self.take(job.file, Event::Copied(job.node));
    }

    /// Binds the copy of a node in all namespaces that use it.
    fn bind_everywhere(&mut self, id: FileId, copy: NodeId) {
        let Some(file) = self.files.get(&id) else { return };
        let mut changed = Vec::new();
        for (namespace, guest) in &mut self.guests {
            let uses_it = file.serving.get(&guest.node) == Some(&copy);
            if uses_it && bind(&self.stores, &self.visitor, guest, file) {
                changed.push(*namespace);
            }
        }
        changed.into_iter().for_each(|namespace| self.give_names_back(namespace));
        let has_it = |guest: &Guest| guest.mounts.get(&id).is_some_and(|it| it.copy == copy);
        let running = self.guests.iter().filter(|(_, guest)| guest.running && has_it(guest));
        for namespace in running.map(|(namespace, _)| *namespace).collect::<Vec<_>>() {
            self.attach_all(namespace);
        }
    }

    /// Binds all copies of its node in a namespace.
    pub(super) fn bind_all(&mut self, namespace: FileId) {
        let Some(guest) = self.guests.get_mut(&namespace) else { return };
        for file in self.files.values() {
            bind(&self.stores, &self.visitor, guest, file);
        }
    }

    /// Takes the copy of one node, or of all, out of use, and removes it. If all go, the leases do
    /// as soon as no process can read a copy. Returns whether they were held until then.
    fn withdraw(&mut self, id: FileId, node: Option<NodeId>) -> bool {
        let there = self.file_at_place_of(id);
        let Some(file) = self.files.get_mut(&id) else { return true };
        let is_elsewhere = there.is_some_and(|there| there != Some(id));
        let mut found_at = BTreeMap::new();
        let concerned = |it: NodeId| node.is_none_or(|node| node == it);
        file.jobs.retain(|node, cancelled| {
            if concerned(*node) {
                cancelled.store(true, Ordering::Relaxed);
            }
            !concerned(*node)
        });
        for (namespace, guest) in &mut self.guests {
            if guest.mounts.get(&id).is_some_and(|mount| concerned(mount.copy)) {
                let path = is_elsewhere.then(|| path_in(&self.visitor, guest, id)).flatten();
                found_at.extend(path.map(|path| (*namespace, path)));
                unbind(&self.visitor, guest, &file.original);
            }
        }
        // A second name of a file that was renamed over is not known.
        let is_replaced = is_elsewhere && file.original.has_lost_its_name();
        let copies = std::mem::take(&mut file.copies).into_iter();
        let (going, staying): (Vec<_>, Vec<_>) = copies.partition(|(node, _)| concerned(*node));
        file.copies = staying.into_iter().collect();
        let withdrawn = (!going.is_empty()).then(|| Withdrawn::of(file, going, Instant::now()));
        let (mut is_released, mut since) = (true, Instant::now());
        let original = self.files.get(&id).map(|file| &file.original);
        let mut release = || {
            is_released = original.is_none_or(lease::release);
            since = Instant::now();
        };
        let release: Option<&mut dyn FnMut()> = node.is_none().then_some(&mut release);
        let Some(mut withdrawn) = withdrawn else {
            release.into_iter().for_each(|release| release());
            return is_released;
        };
        withdrawn.is_replaced = is_replaced;
        withdrawn.moved = is_elsewhere.then_some(found_at);
        self.return_processes(&mut withdrawn, Whose::WithCopies, release);
        // Until now, too: a truncation during the search is seen at once.
        self.truncations.remove(id, concerned);
        for (node, copy) in &withdrawn.copies {
            let remains = self.store(*node).and_then(|store| store.retire(copy));
            self.remains.extend(remains);
        }
        self.look_late(withdrawn, since);
        is_released
    }

    /// After a change of the nodes that share copies: each namespace gets the copy of its node, and
    /// so do processes that map another one.
    pub(super) fn rebind(&mut self, id: FileId) {
        let Some(file) = self.files.get(&id) else { return };
        let mut changed = Vec::new();
        for (namespace, guest) in &mut self.guests {
            let is_left = guest.mounts.contains_key(&id) && !file.serving.contains_key(&guest.node);
            if is_left {
                unbind(&self.visitor, guest, &file.original);
            }
            if is_left || bind(&self.stores, &self.visitor, guest, file) {
                changed.push(*namespace);
            }
        }
        changed.into_iter().for_each(|namespace| self.give_names_back(namespace));
    }

    fn forget(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else { return };
        self.watch.spills.retain(|(spilled, _), _| *spilled != id);
        let is_used = |watch: i32| {
            let mut others = self.files.values();
            others.any(|it| it.watch == watch || it.layer_watches.contains(&watch))
        };
        for watch in std::iter::once(file.watch).chain(file.layer_watches) {
            if !is_used(watch) {
                // The watch of an unlinked file ends by itself.
                let _ = inotify::remove_watch(&self.changes, watch);
            }
        }
        // Its copies are still wanted, so another file has come, or may come.
        if !file.wish.nodes.is_empty() && !file.life.wanted().is_empty() {
            self.absent.push(Absent::new(file.wish, Instant::now()));
        }
    }

    /// Whether the place of a file names another one now, or the file has no name any more.
    pub(super) fn is_replaced(&self, id: FileId) -> bool {
        let there = self.file_at_place_of(id);
        let file = self.files.get(&id);
        there.zip(file).is_some_and(|(there, file)| file.original.is_replaced(there))
    }

    /// The file, if any, that the host finds at the place of one. The outer `None`: that cannot be
    /// told.
    fn file_at_place_of(&self, id: FileId) -> Option<Option<FileId>> {
        let file = self.files.get(&id)?;
        self.visitor.file_on_host(&file.wish.place.on_host()).ok()
    }

    fn remove_copy(&self, node: NodeId, name: &str) {
        if let Some(store) = self.store(node) {
            store.remove(name);
        }
    }

    pub(super) fn store(&self, node: NodeId) -> Option<&Store> {
        self.stores.iter().find(|store| store.node() == node)
    }
}

/// Left for looks at processes: a helper that cannot look would leave copies in use.
const SPARE_DESCRIPTORS: u64 = 256;

/// Why no more copies are bound.
pub(super) const TOO_MANY_OPEN: &str = "too many files and mounts are open (LimitNOFILE=)";

/// Whether a descriptor that was opened just now leaves enough for other things: the kernel gives
/// the lowest free number.
pub(super) fn leaves_descriptors(newest: &OwnedFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let number = u64::try_from(newest.as_raw_fd()).unwrap_or(u64::MAX);
    number.saturating_add(SPARE_DESCRIPTORS) < limit
}

/// The path at which a namespace has the copy of a file, below its future root if it has one.
fn path_in(visitor: &Visitor, guest: &Guest, id: FileId) -> Option<PathBuf> {
    let path = visitor.path_of(guest.mounts.get(&id)?.mount.as_fd())?;
    let future_root = guest.future_root.as_deref();
    let below = future_root.and_then(|root| path.strip_prefix(root).ok());
    Some(below.map_or_else(|| path.clone(), |below| Path::new("/").join(below)))
}

/// Takes the copy of a file out of a namespace.
pub(super) fn unbind(visitor: &Visitor, guest: &mut Guest, original: &Original) {
    if let Some(mount) = guest.mounts.remove(&original.id)
        && let Err(error) = visitor.unbind(&guest.namespace, &[mount.mount.as_fd()])
    {
        log!("{}: {error}", escape::text(&original.place.path));
    }
}

/// Binds the copy that a namespace's node uses, if there is one and the namespace has the file.
/// Says whether that of another node has given way.
fn bind(stores: &[Store], visitor: &Visitor, guest: &mut Guest, file: &Replicated) -> bool {
    let id = file.original.id;
    let copy = file.serving.get(&guest.node);
    let Some((node, copy)) = copy.and_then(|node| Some((*node, file.copies.get(node)?))) else {
        return false;
    };
    let bound = guest.mounts.get(&id).map(|mount| mount.copy);
    if bound == Some(node) || !guest.managers.is_empty() {
        return false;
    }
    // The event that collapses its copies is on the way.
    if file.original.is_changed() {
        return false;
    }
    let Some(store) = stores.iter().find(|store| store.node() == node) else { return false };
    let path = &file.original.place.path;
    // Attributes that the copy cannot have have an event of their own, which takes it away.
    if store.refresh(&file.original, copy).is_err() {
        return false;
    }
    let tree = match store.tree(copy) {
        Ok(tree) if leaves_descriptors(&tree) => tree,
        Ok(_) => {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| log!("namespaces miss copies: {TOO_MANY_OPEN}"));
            return false;
        }
        Err(error) => {
            log!("{}: {error}", escape::text(path));
            return false;
        }
    };
    unbind(visitor, guest, &file.original);
    match visitor.bind(&guest.namespace, guest.future_root.as_deref(), tree, path, id) {
        Ok(Bound::Mount(mount)) => {
            guest.mounts.insert(id, Mount { copy: node, mount });
        }
        Ok(Bound::NotThere) => {}
        Ok(Bound::Shared) => log!(
            "{}: no copy in the namespace of a process whose mount the host \
             shares",
            escape::text(path)
        ),
        Err(error) => {
            log!("{}: {error}", escape::text(path));
        }
    }
    bound.is_some()
}
