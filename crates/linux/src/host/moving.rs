//! Moving all pages of a domain at once, for `set --move-memory`.
//!
//! The record names the process that moves, so that two never move the same memory: while it runs,
//! the daemon leaves the part to it. Of two such processes the later takes over.

use super::{bindings::part, handle::Host, refusal::Refusal, session::Session};
use crate::{
    confine::MEMORY_NODES,
    error::Error,
    migrate,
    store::{Mover, Part, Record, Store},
};
use nearside_policy::{
    Action, Outcome, PageMove, PartId, Progress, Reason, Transaction, may_go_on,
};
use nearside_topology::NodeSet;
use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// The pause between two checks that no other command has ended a long move.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// A move of a part's memory by this process, as its record names it.
#[derive(Debug, Clone)]
pub struct OwnMove {
    part: PartId,
    inode: u64,
    home: NodeSet,
    mover: Mover,
}

impl OwnMove {
    /// The reason why the move has ended, by the record as it is now; none if it goes on.
    ///
    /// Other changes of the record, such as a binding of CPUs, do not concern it.
    fn ended(&self, now: Option<&Record>) -> Option<String> {
        let now = now.filter(|record| record.inode == self.inode);
        let Some(now) = now.and_then(|record| record.part_of(&self.part)) else {
            return Some("the domain has ended".into());
        };
        if now.home.nodes != self.home {
            let home = now.home.nodes.named();
            return Some(format!("another command has given it the home on {home}"));
        }
        match &now.mover {
            Some(mover) if *mover == self.mover => None,
            Some(mover) => Some(format!("process {} moves its memory now", mover.pid)),
            None => Some("another command has ended the move".into()),
        }
    }

    /// The same, by the record on disk.
    fn ended_in(&self, store: &Store) -> Option<String> {
        match store.record(self.part.domain()) {
            Ok(now) => self.ended(now.as_ref()),
            Err(error) => Some(error.to_string()),
        }
    }
}

impl Session<'_> {
    /// Makes this process the one that moves the memory of a part to its home. The record names it
    /// until [`end_move`](Self::end_move), or until the process ends.
    ///
    /// # Errors
    /// If the domain has ended or has another home, or if the record cannot be written.
    pub fn begin_move(&mut self, pages: &PageMove) -> Result<OwnMove, Refusal> {
        let id = &pages.part;
        let record = self.record(id.domain())?;
        let record = record.ok_or_else(|| Error::Refused(format!("{id} has ended")))?;
        let home = part(&record, id)?.home.nodes.clone();
        if !pages.nodes.is_subset(&home) {
            let home = home.named();
            let why = format!("another command has changed the home of {id} to {home}");
            return Err(Error::Refused(why).into());
        }
        let mover = self.host.store.mover(pages.rate_bytes_per_s)?;
        let own = OwnMove { part: id.clone(), inode: record.inode, home, mover };
        let (part, nodes) = (id.clone(), pages.nodes.clone());
        let rate_bytes_per_s = pages.rate_bytes_per_s;
        let begin = Action::BeginMove { part, nodes, rate_bytes_per_s };
        self.change(&record, vec![begin], &Reason::FollowsHome)?;
        Ok(own)
    }

    /// Applies the steps of `narrowing`, which confine the part to its home, and ends the move. A
    /// move that is not complete leaves its destination in the record, so that it can be resumed.
    ///
    /// # Errors
    /// If the move has ended otherwise, or a step is refused.
    pub fn end_move(
        &mut self,
        own: &OwnMove,
        narrowing: Option<&Transaction>,
        is_complete: bool,
    ) -> Result<(), Refusal> {
        let record = self.record(own.part.domain())?;
        if let Some(why) = own.ended(record.as_ref()) {
            return Err(Error::Refused(why).into());
        }
        let Some(record) = record else { return Ok(()) };
        // Other commands may have changed the rest of the record since these steps were planned.
        let narrowed = narrowing.map_or(Ok(()), |it| {
            self.apply(&Transaction::new(it.steps.clone(), &self.state_of(&record)))
        });
        let Some(record) = self.record(own.part.domain())? else { return narrowed };
        let is_complete = is_complete && narrowed.is_ok();
        let end = Action::EndMove { part: own.part.clone(), is_complete };
        let ended = self.change(&record, vec![end], &Reason::MoveEnded);
        narrowed.and(ended)
    }

    /// Forgets the destinations of moves of a domain's memory that were interrupted. False if it
    /// has none.
    ///
    /// # Errors
    /// If the record cannot be read or written.
    pub fn forget_interrupted_moves(&mut self, name: &str) -> Result<bool, Refusal> {
        let Some(record) = self.record(name)? else { return Ok(false) };
        let is_interrupted = |part: &&Part| part.moving_to.is_some() && part.mover.is_none();
        let ended: Vec<_> = record
            .parts()
            .filter(is_interrupted)
            .map(|part| Action::EndMove { part: record.id_of(part), is_complete: true })
            .collect();
        if ended.is_empty() {
            return Ok(false);
        }
        self.change(&record, ended, &Reason::MoveEnded)?;
        Ok(true)
    }
}

impl Host {
    /// Moves all pages of a part to the nodes of its home. The lock is free meanwhile, so other
    /// commands may start and stop domains. A command that gives the part another home, or moves
    /// its memory itself, ends the move.
    pub fn move_memory(
        &mut self,
        own: &OwnMove,
        pages: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Outcome {
        let moved = self.move_all_pages(own, pages, progress);
        moved.unwrap_or_else(|error| Outcome::Refused { why: error.to_string() })
    }

    /// The same, as a move that begins and ends here.
    pub(super) fn move_from_begin_to_end(
        &mut self,
        pages: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let begun = self.begin()?.begin_move(pages);
        let own = begun.map_err(|refusal| Error::Refused(refusal.to_string()))?;
        let moved = self.move_all_pages(&own, pages, progress);
        let is_interrupted =
            matches!(moved, Err(_) | Ok(Outcome::Partly { interrupted: true, .. }));
        let ended = self.begin()?.end_move(&own, None, !is_interrupted);
        let moved = moved?;
        ended.map_err(|refusal| Error::Refused(refusal.to_string()))?;
        Ok(moved)
    }

    fn move_all_pages(
        &mut self,
        own: &OwnMove,
        pages: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let id = &pages.part;
        let topology = self.topology()?;
        let record = self.store.record(id.domain())?;
        let record = record.ok_or_else(|| Error::Refused(format!("{id} has ended")))?;
        let part = part(&record, id)?;
        let group = self.tree.group(&record.cgroup)?;
        let extent = self.extent(id, &group, &topology)?;
        let claim = part.claim.clone().unwrap_or_default();
        let store = self.store.clone();
        let mut go_on = while_own(&store, own, progress);
        let (rate, nodes) = (pages.rate_bytes_per_s, &pages.nodes);
        let memory = (&group, &extent);
        let moved =
            migrate::move_group(memory, &self.proc(), &topology, nodes, &claim, rate, &mut go_on);
        // A group counts as populated for a moment after its last process has exited, although that
        // process is no longer in its list.
        let why = match group.all_processes().is_empty() {
            true => Some("the domain has ended".into()),
            false => own.ended_in(&store),
        };
        if let Some(why) = why {
            let moved_mib = moved.moved_bytes >> 20;
            return Err(Error::Refused(format!("{why} ({moved_mib} MiB had moved)")));
        }
        let is_confined = part.memory_nodes.is_some();
        let outcome = moved.clone().into_outcome();
        let is_narrowed = is_confined && group.has(MEMORY_NODES.file) && may_go_on(&outcome);
        self.notices.extend(moved.notices(is_narrowed));
        Ok(outcome)
    }
}

/// Goes on as `progress` says while the move is this process's own.
fn while_own<'a>(
    store: &'a Store,
    own: &'a OwnMove,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> impl FnMut(Progress) -> ControlFlow<()> + 'a {
    let mut checked = Instant::now();
    move |so_far| {
        if checked.elapsed() >= CHECK_EVERY {
            checked = Instant::now();
            if own.ended_in(store).is_some() {
                return ControlFlow::Break(());
            }
        }
        progress(so_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Parts;
    use nearside_policy::{Affinity, CpuReason, Home, Limits, MemoryPolicy, Origin};
    use nearside_topology::NodeId;

    fn nodes(nodes: &[u32]) -> NodeSet {
        nodes.iter().map(|&node| NodeId(node)).collect()
    }

    #[test]
    fn only_an_end_another_home_or_another_mover_ends_a_move() {
        let mover = Mover { pid: 731, start_time_ticks: 5, rate_bytes_per_s: Some(1 << 20) };
        let home = Home {
            nodes: nodes(&[2]),
            origin: Origin::Explicit,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Strict,
        };
        let part = Part { mover: Some(mover.clone()), ..Part::at(home) };
        let record = Record {
            name: "/m/vm".into(),
            boot_id: "b".into(),
            cgroup: "/m/vm".into(),
            inode: 7,
            started_unix_s: 0,
            found_by: Some("*/*".into()),
            command: Vec::new(),
            limits: Limits::default(),
            parts: Parts::from(part),
        };
        let own =
            OwnMove { part: "/m/vm".into(), inode: 7, home: nodes(&[2]), mover: mover.clone() };
        let changed = |change: &dyn Fn(&mut Record)| {
            let mut now = record.clone();
            change(&mut now);
            own.ended(Some(&now))
        };
        assert_eq!(own.ended(Some(&record)), None);
        // Confinement, a binding and the origin leave the home as it is.
        let cpus = crate::store::CpuBinding {
            cpus: "4-5".parse().unwrap(),
            on_behalf: CpuReason::Fallback,
        };
        assert_eq!(changed(&|it| it.part_mut().memory_nodes = Some(nodes(&[2]))), None);
        assert_eq!(changed(&|it| it.part_mut().cpus = Some(cpus.clone())), None);
        assert_eq!(changed(&|it| it.part_mut().home.origin = Origin::Auto), None);
        let why = |said: &str| Some(said.to_owned());
        let elsewhere = why("another command has given it the home on node 3");
        assert_eq!(changed(&|it| it.part_mut().home.nodes = nodes(&[3])), elsewhere);
        let other = Mover { pid: 732, ..mover.clone() };
        let taken_over = why("process 732 moves its memory now");
        assert_eq!(changed(&|it| it.part_mut().mover = Some(other.clone())), taken_over);
        // A later process of the same number.
        let later = Mover { start_time_ticks: 6, ..mover.clone() };
        assert!(changed(&|it| it.part_mut().mover = Some(later.clone())).is_some());
        let ended = why("another command has ended the move");
        assert_eq!(changed(&|it| it.part_mut().mover = None), ended);
        assert_eq!(changed(&|it| it.inode = 8), why("the domain has ended"));
        assert_eq!(own.ended(None), why("the domain has ended"));
    }
}
