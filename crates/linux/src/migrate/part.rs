//! Moving a part: a bounded number of bytes from one node, continued at the same place the next
//! time.
//!
//! To find the mappings of a process that have pages on a node, the kernel walks its page tables
//! (`numa_maps`). A daemon that moves a gigabyte every two seconds must not repeat that walk each
//! time. So a [`Walk`] keeps the mappings that are found and not finished.

use super::{Extent, Moved, Mover, Pass, Wanted, areas::Area, pace, target::Targets};
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

/// A part of a domain's memory on a node.
#[derive(Debug, Clone)]
pub struct Part {
    /// The domain's cgroup.
    pub group: Cgroup,
    /// The memory of the group that is the part's.
    pub extent: Extent,
    /// The folder of processes.
    pub proc: PathBuf,
    /// The machine.
    pub topology: Arc<Topology>,
    /// The target nodes.
    pub to: NodeSet,
    /// The source node.
    pub from: NodeId,
    /// The most bytes.
    pub max_bytes: u64,
    /// The highest rate.
    pub rate_bytes_per_s: Option<u64>,
    /// The claim of the domain, if it has one.
    pub claim: Option<Claim>,
}

/// How far the search for a domain's pages on a node has come.
#[derive(Debug, Default)]
pub struct Walk {
    /// The present process, with the rest of it.
    at: Option<(i32, VecDeque<Area>)>,
    /// The processes after it.
    later: VecDeque<i32>,
}

impl Walk {
    /// Continues with the present processes. True at the beginning of the walk.
    ///
    /// A process number may have been reused within the domain, which does no harm. New processes,
    /// and new mappings of finished ones, are found by the next walk.
    fn go_on(&mut self, processes: &BTreeSet<i32>) -> bool {
        self.at.take_if(|(process, _)| !processes.contains(process));
        self.later.retain(|process| processes.contains(process));
        let begins = self.at.is_none() && self.later.is_empty();
        if begins {
            self.later.extend(processes);
        }
        begins
    }

    /// A walk that has all these processes still to do.
    #[cfg(test)]
    pub(crate) fn of(processes: &[i32]) -> Self {
        Self { at: None, later: processes.iter().copied().collect() }
    }

    /// True if everything is finished.
    pub fn has_ended(&self) -> bool {
        self.at.is_none() && self.later.is_empty()
    }
}

/// A part during its move, chunk by chunk, so that one thread can move several parts in turn.
#[derive(Debug)]
pub struct Moving {
    part: Part,
    left_bytes: u64,
    /// True if this move began at the start of its walk; none before the first chunk.
    is_whole: Option<bool>,
    is_done: bool,
    moved: Moved,
    pass: Pass,
}

/// The outcome of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// Pages were moved, or the chunk was interrupted. The rate allows the next chunk after this
    /// time.
    More(Duration),
    /// No page is left to try.
    Last,
}

impl Moving {
    /// A part before its first chunk.
    pub fn new(part: Part) -> Self {
        let left_bytes = part.max_bytes;
        Self {
            part,
            left_bytes,
            is_whole: None,
            is_done: false,
            moved: Moved::default(),
            pass: Pass::default(),
        }
    }

    /// Bytes that have moved, and the most bytes that may move.
    pub fn progress(&self) -> Progress {
        Progress { done_bytes: self.moved.moved_bytes, total_bytes: self.part.max_bytes }
    }

    /// Moves a batch behind the position of `walk`. Pages that do not move count as tried, and the
    /// next walk tries them again. `progress` is called as by [`move_group`](super::move_group).
    pub fn chunk(
        &mut self,
        walk: &mut Walk,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Chunk {
        let started = Instant::now();
        let Part { group, extent, proc, topology, to, from, max_bytes, rate_bytes_per_s, .. } =
            &self.part;
        let before_bytes = self.moved.moved_bytes;
        let mut mover = Mover {
            proc,
            extent,
            wanted: Wanted::Of(*from),
            targets: Targets::new(topology, to),
            rate_bytes_per_s: *rate_bytes_per_s,
            progress,
            total_bytes: *max_bytes,
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

    /// The outcome, finished or not.
    pub fn end(self, walk: &Walk) -> Moved {
        let Self { part, is_whole, is_done, mut moved, mut pass, .. } = self;
        pass.leave();
        moved.stayed = pass.stayed();
        moved.unread = pass.unread;
        moved.interrupted = !is_done;
        // The group's figures tell nothing about a cell.
        let is_group = part.extent == Extent::Group;
        if is_group && is_whole == Some(true) && walk.has_ended() {
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

/// The next process and its areas on the node.
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
        // 7 has ended. 11 is new and comes in the next walk.
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
