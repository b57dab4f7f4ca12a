//! Running processes: from originals to copies on request, and back before copies go.

use super::{
    Replicator,
    file::{Guest, Whose, Withdrawn},
    search::Search,
};
use crate::{
    census::Census,
    exchanger::Exchanged,
    file_id::FileId,
    protocol::{Attached, LeftAlone, MAX_LEFT_ALONE},
    remap::Exchange,
    users::nameless,
};
use nearside_linux::escape;
use std::{
    collections::BTreeSet,
    io,
    time::{Duration, Instant},
};

impl Replicator {
    /// Takes copies of a file that are no longer bound in any namespace with a guest out of all
    /// others, and returns the processes that map them to the original. Where the path shows
    /// another copy by now, they get that one. `let_go` lets a writer go on, as soon as none of
    /// them can read the copies that go.
    pub(super) fn return_processes(
        &self,
        gone: &mut Withdrawn,
        whose: Whose,
        let_go: Option<&mut dyn FnMut()>,
    ) {
        let search = Search::new(self, gone, whose, let_go.is_some());
        let done = match let_go {
            Some(let_go) => self.exchanger.detach_and_let_go(search, let_go),
            None => self.exchanger.detach(search),
        };
        for why in done.still {
            log!("{why}: it keeps a copy of {}", escape::text(&gone.place.path));
        }
        gone.settled.extend(done.settled);
    }

    /// Lets the running processes of a namespace, or some of them, use the copies that are bound in
    /// it. Those that cannot be stopped for now get them later.
    pub(super) fn attach_processes(
        &mut self,
        namespace: FileId,
        some: Option<&BTreeSet<u32>>,
        attempts: u32,
    ) -> Result<Attached, String> {
        let Some(guest) = self.guests.get(&namespace) else { return Ok(Attached::default()) };
        let exchanges = self.exchanges_of(guest);
        let mut attached = Attached {
            copies: guest.mounts.len(),
            managers: guest.managers.keys().copied().collect(),
            ..Attached::default()
        };
        let mut processes = match exchanges.is_empty() {
            true => vec![],
            false => Census::take().map_err(not_listed)?.processes(namespace).to_vec(),
        };
        processes.retain(|process| some.is_none_or(|some| some.contains(process)));
        for (process, done) in self.exchanger.attach(processes, exchanges, attempts) {
            match done {
                Exchanged::Done { bytes: 0, .. }
                | Exchanged::Held
                | Exchanged::Unconcerned
                | Exchanged::Gone => {}
                Exchanged::Done { bytes, stopped_us, .. } => {
                    attached.processes += 1;
                    attached.bytes += bytes;
                    attached.stopped_us = attached.stopped_us.max(stopped_us);
                }
                Exchanged::LeftAlone { why, again } => {
                    attached.left_alone.push(LeftAlone { process, why, again });
                }
            }
        }
        if let Some(guest) = self.guests.get_mut(&namespace) {
            let left = attached.left_alone.iter().filter(|left| left.again);
            guest.left = left.map(|left| left.process).collect();
            if some.is_none() || guest.left.is_empty() {
                guest.retry.reset();
            }
            if !guest.left.is_empty() {
                guest.retry.refused(Instant::now());
            }
        }
        attached.others_left_alone = attached.left_alone.len().saturating_sub(MAX_LEFT_ALONE);
        attached.left_alone.truncate(MAX_LEFT_ALONE);
        Ok(attached)
    }

    /// The same for all processes of a namespace, by the helper itself. Where processes cannot be
    /// listed, they keep the originals.
    pub(super) fn attach_all(&mut self, namespace: FileId) {
        if let Err(why) = self.attach_processes(namespace, None, 1) {
            log!("{why}");
        }
    }

    /// The time until running processes are asked again.
    pub(super) fn until_attachment(&self) -> Option<Duration> {
        let next = self.guests.values().filter_map(|guest| guest.retry.at()).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Asks running processes again that could not be stopped before.
    pub(super) fn retry_attachments(&mut self) {
        let now = Instant::now();
        let guests = self.guests.iter_mut();
        let due =
            guests.filter_map(|(id, guest)| guest.retry.take_due(now).then_some((*id, guest)));
        let due = due.map(|(id, guest)| (id, guest.left.clone()));
        for (namespace, left) in due.collect::<Vec<_>>() {
            let attached = self.attach_processes(namespace, Some(&left), 1);
            if attached.is_err()
                && let Some(guest) = self.guests.get_mut(&namespace)
            {
                guest.retry.refused(now);
            }
        }
    }

    /// Processes that map copies by mounts that have gone meanwhile get what the paths show now.
    /// `/proc/PID/maps` would show `/` as the path of all their text.
    pub(super) fn give_names_back(&self, namespace: FileId) {
        let Some(guest) = self.guests.get(&namespace) else { return };
        let mut exchanges = Vec::new();
        for (id, file) in self.files.iter().filter(|(_, file)| !file.copies.is_empty()) {
            let shown = guest.mounts.get(id).and_then(|mount| file.copies.get(&mount.copy));
            let to = shown.map_or(*id, |copy| copy.id);
            let path = &file.original.place.path;
            // One that shows another file would keep a process from all of its names.
            let there = self.visitor.file_at(&guest.namespace, path);
            if there.is_ok_and(|there| there == Some(to)) {
                let froms = file.copies.values().map(|copy| copy.id);
                exchanges.extend(froms.map(|from| Exchange { path: path.clone(), from, to }));
            }
        }
        // This direction is for processes under seccomp, too.
        let done = self.exchanger.detach(|census: &Census| {
            let processes = census.processes(namespace).iter();
            let concerned = processes.filter_map(|process| {
                let nameless = nameless(*process);
                let concerned = exchanges.iter().filter(|it| nameless.contains(&it.from));
                let concerned: Vec<_> = concerned.cloned().collect();
                (!concerned.is_empty()).then(|| (vec![*process], concerned))
            });
            concerned.collect()
        });
        for why in done.still {
            log!("{why}: its maps do not name its text");
        }
    }

    /// From originals, and from copies of a node where the namespace was at home before.
    fn exchanges_of(&self, guest: &Guest) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        for (id, mount) in &guest.mounts {
            let Some(file) = self.files.get(id) else { continue };
            let Some(to) = file.copies.get(&mount.copy).map(|copy| copy.id) else { continue };
            let others = file.copies.values().map(|copy| copy.id).filter(|copy| *copy != to);
            exchanges.extend([*id].into_iter().chain(others).map(|from| Exchange {
                path: file.original.place.path.clone(),
                from,
                to,
            }));
        }
        exchanges
    }
}

/// The processes of the host cannot be told.
pub(super) fn not_listed(error: io::Error) -> String {
    format!("processes cannot be listed: {error}")
}
