//! Moving all pages of a domain at once, for `set --move-memory`.

use super::{batch::is_unchanged, bindings::part, handle::Host};
use crate::{
    confine::MEMORY_NODES,
    error::Error,
    migrate,
    store::{Change, Record, Store},
};
use nearside_policy::{Outcome, PageMove, PartId, Progress, may_go_on};
use nearside_topology::NodeSet;
use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// The pause between two checks that no other command has changed the domain of a long move.
const CHECK_EVERY: Duration = Duration::from_millis(200);

impl Host {
    /// Moves all pages of a part to the nodes of its home. The lock is free meanwhile, so other
    /// commands may start and stop domains. A command that changes this domain ends the move. The
    /// record names the destination until the move is complete, so that it can be resumed.
    pub(super) fn move_all_pages(
        &mut self,
        pages: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let id = &pages.part;
        let topology = self.topology()?;
        let record = self.record_destination(id, None, Some(&pages.nodes))?;
        let part = part(&record, id)?;
        let group = self.tree.group(&record.cgroup)?;
        let extent = self.extent(id, &group, &topology)?;
        let claim = part.claim.clone().unwrap_or_default();
        let store = self.store.clone();
        let mut go_on = while_unchanged(&store, &record, progress);
        let (rate, nodes) = (pages.rate_bytes_per_s, &pages.nodes);
        let memory = (&group, &extent);
        let moved =
            migrate::move_group(memory, &self.proc(), &topology, nodes, &claim, rate, &mut go_on);
        // A group counts as populated for a moment after its last process has exited, although that
        // process is no longer in its list.
        let why = match (group.all_processes().is_empty(), is_unchanged(&store, &record)) {
            (true, _) => Some("the domain has ended"),
            (false, false) => Some("another command has changed the domain meanwhile"),
            (false, true) => None,
        };
        if let Some(why) = why {
            let moved_mib = moved.moved_bytes >> 20;
            return Err(Error::Refused(format!("{why} ({moved_mib} MiB had moved)")));
        }
        if !moved.interrupted {
            self.record_destination(id, Some(&record), None)?;
        }
        let is_confined = part.memory_nodes.is_some();
        let outcome = moved.clone().into_outcome();
        let is_narrowed = is_confined && group.has(MEMORY_NODES.file) && may_go_on(&outcome);
        self.notices.extend(moved.notices(is_narrowed));
        Ok(outcome)
    }

    /// Records the destination of a move, if the record still is `expected`.
    fn record_destination(
        &mut self,
        id: &PartId,
        expected: Option<&Record>,
        nodes: Option<&NodeSet>,
    ) -> Result<Record, Error> {
        let session = self.begin()?;
        let before = session.record(id.domain())?;
        let before = before.ok_or_else(|| Error::Refused(format!("{id} has ended")))?;
        if expected.is_some_and(|expected| *expected != before) {
            return Err(Error::Refused("another command has changed the domain meanwhile".into()));
        }
        let mut after = before.clone();
        for part in after.parts.iter_mut().filter(|part| part.cell == id.cell()) {
            part.moving_to = nodes.cloned();
        }
        let change = Change { before: Some(before.into()), after: Some(after.clone().into()) };
        session.lock.put_all(&[change])?;
        Ok(after)
    }
}

/// Goes on as `progress` says while the record is unchanged.
fn while_unchanged<'a>(
    store: &'a Store,
    record: &'a Record,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> impl FnMut(Progress) -> ControlFlow<()> + 'a {
    let mut checked = Instant::now();
    move |so_far| {
        if checked.elapsed() >= CHECK_EVERY {
            checked = Instant::now();
            if !is_unchanged(store, record) {
                return ControlFlow::Break(());
            }
        }
        progress(so_far)
    }
}
