//! Package managers inside domains: copies leave the namespace while one runs.

use super::{Replicator, events::open_process, file::Guest};
use crate::{
    file_id::FileId, namespace::Namespace, package_managers::PackageManagers, store::Store,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

impl Replicator {
    /// Processes wait to execute package managers. Those in a domain go on without copies.
    pub(super) fn managers_started(&mut self) {
        let Some(managers) = &self.managers else { return };
        // Each goes on at the end of its turn.
        for started in managers.take() {
            let Some(process) = started.process() else { continue };
            let Ok(namespace) = Namespace::of(process) else { continue };
            let id = namespace.id();
            let devices: Vec<_> = self.stores.iter().map(Store::device).collect();
            if let Some(guest) = self.guests.get_mut(&id) {
                // One that has been killed meanwhile does not execute anything.
                let Some(handle) = open_process(process) else { continue };
                guest.managers.insert(process, handle);
                let mounts = std::mem::take(&mut guest.mounts);
                let mounts: Vec<_> = mounts.values().map(|it| it.mount.as_fd()).collect();
                if let Err(error) = self.visitor.unbind(&namespace, &mounts) {
                    log!("process {process}: {error}");
                }
            } else if id != self.visitor.home() {
                // A namespace that was made from a domain's does without copies from now on.
                for mount in self.visitor.copies_in(&namespace) {
                    if devices.contains(&mount.device) {
                        let unbound =
                            self.visitor.unbind_at(&namespace, &mount.point, mount.device);
                        if let Err(error) = unbound {
                            log!("process {process}: {error}");
                        }
                    }
                }
            }
        }
    }

    /// A package manager has ended. After the last one the namespace gets copies again, those of
    /// files that are new included.
    pub(super) fn manager_ended(&mut self, namespace: FileId) {
        let Some(guest) = self.guests.get_mut(&namespace) else { return };
        guest.managers.retain(|_, manager| !has_ended(manager));
        if guest.managers.is_empty() {
            self.bind_all(namespace);
            self.give_names_back(namespace);
            if self.guests.get(&namespace).is_some_and(|guest| guest.running) {
                // Services that it has started, and processes that could not be stopped before.
                self.attach_all(namespace);
            }
        }
    }

    /// Package managers may have been replaced, by each other for example. Those that lie in their
    /// places now are watched, too.
    pub(super) fn managers_replaced(&mut self) {
        let changed = self.managers.as_ref().map(PackageManagers::take_changes);
        let now = Instant::now();
        for namespace in changed.unwrap_or_default() {
            if let Some(guest) = self.guests.get_mut(&namespace) {
                guest.manager_looks.begin(now);
            }
        }
    }

    /// Watches those that have come to a namespace whose time it is. Others have their turn after
    /// the writers that wait by then.
    pub(super) fn look_for_managers(&mut self) {
        let Some(managers) = &self.managers else { return };
        let now = Instant::now();
        let due = self.guests.values_mut().find_map(|guest| {
            let is_due = guest.manager_looks.take_due(now);
            is_due.then_some(guest)
        });
        let Some(guest) = due else { return };
        let root = guest.future_root.as_deref();
        if let Err(error) = managers.watch(&self.visitor, &guest.namespace, root) {
            log!("{error}");
        }
    }

    /// The time until the next look.
    pub(super) fn until_managers(&self) -> Option<Duration> {
        let next = self.guests.values().filter_map(|guest| guest.manager_looks.at()).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Package managers that have run before the namespace joined.
    pub(super) fn find_managers(guest: &mut Guest, processes: &[u32]) {
        let running = processes.iter().filter(|process| crate::package_managers::is_one(**process));
        let opened = running.filter_map(|process| Some((*process, open_process(*process)?)));
        guest.managers.extend(opened);
    }
}

fn has_ended(process: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut watched, Some(&now)), Ok(1..))
}
