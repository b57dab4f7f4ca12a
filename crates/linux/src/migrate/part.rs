//! Moving a part: so many bytes of one node, and the next time on from there.
//!
//! Finding out which mappings of a process have pages on a node walks its page tables (`numa_maps`). A daemon that moves
//! a gigabyte every two seconds must not do that for each, so a [`Walk`] keeps what was found and not gone through yet.

use super::{Moved, Mover, Pass, Wanted, areas::Area, pace, target::Targets};
use crate::{cgroup::Cgroup, memory};
use nearside_policy::{ByNode, Claim, Progress, StayedWhy};
use nearside_topology::{NodeId, NodeSet, Topology};
use std::{
    collections::{BTreeSet, VecDeque},
    ops::ControlFlow,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// A part of what a domain has on a node.
#[derive(Debug, Clone)]
pub struct Part {
    /// The domain's cgroup.
    pub group: Cgroup,
    /// Where processes are seen.
    pub proc: PathBuf,
    /// The machine.
    pub topology: Arc<Topology>,
    /// Where to.
    pub to: NodeSet,
    /// Where from.
    pub from: NodeId,
    /// At most so many bytes.
    pub most_bytes: u64,
    /// Not faster than this.
    pub rate_bytes_per_s: Option<u64>,
    /// What is promised to the domain, if anything is.
    pub claim: Option<Claim>,
}

/// How far the search for a domain's pages on a node has come.
#[derive(Debug, Default)]
pub struct Walk {
    /// The process it is at, with what is left of it.
    at: Option<(i32, VecDeque<Area>)>,
    /// Those that come after it.
    later: VecDeque<i32>,
}

impl Walk {
    /// Goes on among the processes that there are now; whether it is at its beginning.
    ///
    /// A process's number may be another one's by now, which is no matter within the domain. New processes, and new
    /// mappings of those that were gone through, are found by the next walk.
    fn go_on(&mut self, processes: &BTreeSet<i32>) -> bool {
        self.at.take_if(|(process, _)| !processes.contains(process));
        self.later.retain(|process| processes.contains(process));
        let begins = self.at.is_none() && self.later.is_empty();
        if begins {
            self.later.extend(processes);
        }
        begins
    }

    /// One that has these processes before it.
    #[cfg(test)]
    pub(crate) fn of(processes: &[i32]) -> Self {
        Self { at: None, later: processes.iter().copied().collect() }
    }

    /// Whether everything was gone through.
    pub fn has_ended(&self) -> bool {
        self.at.is_none() && self.later.is_empty()
    }
}

/// A part on its way, chunk by chunk, so that one thread moves several of them in turn.
#[derive(Debug)]
pub struct Moving {
    part: Part,
    left_bytes: u64,
    /// Whether it began where its walk did; none before the first chunk.
    is_whole: Option<bool>,
    is_done: bool,
    moved: Moved,
    pass: Pass,
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// It was moved, or broken off. To keep to the rate, the next one shall come so much later.
    More(Duration),
    /// There is nothing left to try.
    Last,
}

impl Moving {
    /// A part of which nothing was tried yet.
    pub fn new(part: Part) -> Self {
        let left_bytes = part.most_bytes;
        Self {
            part,
            left_bytes,
            is_whole: None,
            is_done: false,
            moved: Moved::default(),
            pass: Pass::default(),
        }
    }

    /// Bytes that have moved, and those that may move at most.
    pub fn progress(&self) -> Progress {
        Progress { done_bytes: self.moved.moved_bytes, total_bytes: self.part.most_bytes }
    }

    /// Moves a batch of what lies behind where `walk` is. What does not move counts as well, and is tried again by the next
    /// walk. `progress` is asked as by [`move_group`](super::move_group).
    pub fn chunk(
        &mut self,
        walk: &mut Walk,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Chunk {
        let started = Instant::now();
        let Part { group, proc, topology, to, from, most_bytes, rate_bytes_per_s, .. } = &self.part;
        let before_bytes = self.moved.moved_bytes;
        let mut mover = Mover {
            proc,
            wanted: Wanted::Of(*from),
            targets: Targets::new(topology, to),
            rate_bytes_per_s: *rate_bytes_per_s,
            progress,
            total_bytes: *most_bytes,
            left_bytes: self.left_bytes,
            batches_left: Some(1),
            is_spent: false,
            moved: std::mem::take(&mut self.moved),
            pass: std::mem::take(&mut self.pass),
        };
        let begins = walk.go_on(&group.all_processes().into_iter().collect());
        self.is_whole.get_or_insert(begins);
        while let Some((process, mut areas)) = next(walk, &mut mover) {
            if mover.areas(process, &mut areas).is_break() {
                walk.at = Some((process, areas));
                break;
            }
        }
        self.left_bytes = mover.left_bytes;
        self.is_done = walk.has_ended() || mover.is_spent;
        (self.moved, self.pass) = (mover.moved, mover.pass);
        match self.is_done {
            true => Chunk::Last,
            false => {
                let moved_bytes = self.moved.moved_bytes - before_bytes;
                Chunk::More(pace::rest(*rate_bytes_per_s, moved_bytes, started.elapsed()))
            }
        }
    }

    /// What became of it, be it done or not.
    pub fn end(self, walk: &Walk) -> Moved {
        let Self { part, is_whole, is_done, mut moved, mut pass, .. } = self;
        pass.leave();
        moved.stayed = pass.stayed();
        moved.unread = pass.unread;
        moved.interrupted = !is_done;
        if is_whole == Some(true) && walk.has_ended() {
            let Part { group, proc, from, claim, .. } = &part;
            let stayed_bytes =
                moved.stayed.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
            let on = |bytes: ByNode| bytes.get(from).copied().unwrap_or(0);
            let held = memory::charged(group, proc).unwrap_or_default();
            let kernel_bytes = on(held.kept_by_kernel(claim.as_ref()));
            let unmapped_bytes =
                on(held.compared_to(claim.as_ref())).saturating_sub(kernel_bytes + stayed_bytes);
            moved
                .stayed
                .extend((unmapped_bytes > 0).then_some((StayedWhy::NotMapped, unmapped_bytes)));
        }
        moved
    }
}

/// The next process and what it has on the node.
fn next(walk: &mut Walk, mover: &mut Mover<'_>) -> Option<(i32, VecDeque<Area>)> {
    walk.at
        .take()
        .or_else(|| walk.later.pop_front().map(|process| (process, mover.areas_of(process))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(processes: &[i32]) -> BTreeSet<i32> {
        processes.iter().copied().collect()
    }

    #[test]
    fn a_walk_goes_on_where_it_was_among_those_that_are_left() {
        let mut walk = Walk::default();
        assert!(walk.has_ended() && walk.go_on(&processes(&[3, 5, 7, 9])));
        walk.later.pop_front();
        walk.at = Some((3, VecDeque::new()));
        // 7 has ended, 11 is new: it comes in the next walk.
        assert!(!walk.go_on(&processes(&[3, 5, 9, 11])));
        assert_eq!(
            (walk.at.as_ref().map(|at| at.0), walk.later.iter().copied().collect()),
            (Some(3), vec![5, 9])
        );
        assert!(!walk.go_on(&processes(&[9, 11])));
        assert_eq!(
            (walk.at.as_ref().map(|at| at.0), walk.later.iter().copied().collect()),
            (None, vec![9])
        );
        assert!(walk.go_on(&processes(&[11])), "all of them have ended: it begins anew");
        assert_eq!(walk.later, [11]);
        assert!(walk.go_on(&BTreeSet::new()) && walk.has_ended());
    }
}
