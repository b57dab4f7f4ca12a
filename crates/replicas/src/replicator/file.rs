//! The helper's knowledge of files, namespaces and nodes.

use super::retry::{Looks, Retry};
use crate::{
    file_id::{FileId, Identity},
    namespace::Namespace,
    original::{Original, Place},
    store::Copy,
};
use nearside_policy::replication::{Life, Ratio, State};
use nearside_topology::{NodeId, NodeSet};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// A file that shall have copies.
#[derive(Debug)]
pub(super) struct Replicated {
    pub(super) original: Original,
    pub(super) life: Life,
    /// The operator's wish, for the file that a package upgrade puts in its place.
    pub(super) wish: Wish,
    /// The copy that each node uses.
    pub(super) serving: BTreeMap<NodeId, NodeId>,
    pub(super) copies: BTreeMap<NodeId, Copy>,
    /// Copies that are being made, by node. The flag ends the copying.
    pub(super) jobs: BTreeMap<NodeId, Arc<AtomicBool>>,
    /// Whether it has got other attributes since the last copying began.
    pub(super) has_new_attributes: bool,
    /// Its watch, for the last close of a writer and for a replacement.
    pub(super) watch: i32,
    /// The next attempt to take the lease.
    pub(super) retry: Retry,
    /// The watches of the files below it, which others may have in common with it.
    pub(super) layer_watches: BTreeSet<i32>,
    pub(super) collapses: u64,
}

impl Replicated {
    /// Whether a copy of it is on this node, or being made there.
    pub(super) fn has_memory_on(&self, node: NodeId) -> bool {
        self.copies.contains_key(&node) || self.jobs.contains_key(&node)
    }
}

/// The nodes that shall use copies, and how many share one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) place: Place,
    pub(super) nodes: NodeSet,
    pub(super) ratio: Ratio,
    /// Whether it is the daemon's.
    pub(super) automatic: bool,
}

/// The first and the longest wait until a missing file is looked for again.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// A wish for a place without a file, and the next look there.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) wish: Wish,
    pub(super) at: Instant,
    /// The last wait.
    wait: Duration,
}

impl Absent {
    /// One that is looked for at once.
    pub(super) fn new(wish: Wish, now: Instant) -> Self {
        Self { wish, at: now, wait: LOOKS.0 }
    }

    /// Each wait is twice as long as the one before.
    pub(super) fn again(self, now: Instant) -> Self {
        let wait = (self.wait * 2).min(LOOKS.1);
        Self { wish: self.wish, at: now + wait, wait }
    }
}

/// A mount namespace that gets the copies of a node.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) namespace: Namespace,
    pub(super) node: NodeId,
    /// The folder that will be its root, if it belongs to a container that starts.
    pub(super) future_root: Option<PathBuf>,
    /// A process in it. Once it has ended, the namespace is looked at again.
    pub(super) process: OwnedFd,
    /// Whether its running processes shall use copies, too.
    pub(super) running: bool,
    /// Those of them that could not be stopped, and the next attempt.
    pub(super) left: BTreeSet<u32>,
    pub(super) retry: Retry,
    /// Looks for package managers that have been replaced.
    pub(super) manager_looks: Looks,
    /// Package managers that run in it, by number. As long as there are any, no copy is bound.
    pub(super) managers: BTreeMap<u32, OwnedFd>,
    /// The copies bound in it, by original.
    pub(super) mounts: BTreeMap<FileId, Mount>,
}

/// A copy in a namespace.
#[derive(Debug)]
pub(super) struct Mount {
    /// The node of the copy.
    pub(super) copy: NodeId,
    pub(super) mount: OwnedFd,
}

/// The processes to look at when copies go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those in namespaces that had copies.
    WithCopies,
    /// All of the host.
    All,
}

/// Copies of a file that have been taken out of use.
#[derive(Debug)]
pub(super) struct Withdrawn {
    /// The file, and its place.
    pub(super) original: FileId,
    pub(super) place: Place,
    /// None if it could not be told.
    pub(super) identity: Option<Identity>,
    /// Whether nobody finds it by a name any more. What processes map of it lives on.
    pub(super) is_replaced: bool,
    /// Where namespaces find it, if the host does not at its place: it was renamed, one of its
    /// folders was, or something is mounted there.
    pub(super) moved: Option<BTreeMap<FileId, PathBuf>>,
    pub(super) copies: Vec<(NodeId, Copy)>,
    /// Namespaces without a guest that had one of the copies.
    pub(super) strays: BTreeSet<FileId>,
    /// The processes that have used them. They go on with the original, or keep what they map.
    pub(super) settled: BTreeSet<u32>,
    /// Looks for late users so far, and the next one.
    pub(super) looks: usize,
    pub(super) next_look: Instant,
}

impl Withdrawn {
    pub(super) fn of(file: &Replicated, copies: Vec<(NodeId, Copy)>, now: Instant) -> Self {
        Self {
            original: file.original.id,
            place: file.original.place.clone(),
            identity: Identity::of(&file.original.file).ok(),
            is_replaced: false,
            moved: None,
            copies,
            strays: BTreeSet::new(),
            settled: BTreeSet::new(),
            looks: 0,
            next_look: now,
        }
    }

    /// The path by which a namespace finds the file. One without a copy most likely finds a file
    /// that has moved where another one does.
    pub(super) fn path_in(&self, namespace: FileId) -> &Path {
        let moved = self.moved.as_ref();
        let path = moved.and_then(|moved| moved.get(&namespace).or(moved.values().next()));
        path.unwrap_or(&self.place.path)
    }
}

/// The name of a state in reports.
pub(super) fn state_name(state: &State) -> &'static str {
    match state {
        State::Candidate => "candidate",
        State::Copying => "copying",
        State::Replicated => "replicated",
        State::Collapsing => "collapsing",
        State::Barred(_) => "barred",
    }
}

/// The looks at the memory of nodes.
#[derive(Debug, Default)]
pub(super) struct MemoryWatch {
    /// The time of the next one; none while there is nothing to watch.
    pub(super) next: Option<Instant>,
    /// When copies had to go, or could not be made, by node.
    pub(super) short: BTreeMap<NodeId, Instant>,
    /// Copies whose pages the kernel placed elsewhere, and the next attempt.
    pub(super) spills: BTreeMap<(FileId, NodeId), Retry>,
}

impl MemoryWatch {
    /// The kernel has placed a copy on other nodes.
    pub(super) fn spilled(&mut self, file: FileId, node: NodeId, now: Instant) {
        self.spills.entry((file, node)).or_insert_with(Retry::of_spills).refused(now);
    }

    /// Whether a file may have another attempt on a node.
    pub(super) fn may_try(&self, file: FileId, node: NodeId, now: Instant) -> bool {
        let next = self.spills.get(&(file, node)).and_then(Retry::at);
        next.is_none_or(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::replication::RECOVERY;

    #[test]
    fn waits_double_up_to_a_minute() {
        let now = Instant::now();
        let place = Place { image: None, path: "/usr/lib/a.so".into() };
        let wish = Wish { place, nodes: NodeSet::new(), ratio: Ratio::default(), automatic: false };
        let mut absent = Absent::new(wish, now);
        assert_eq!(absent.at, now);
        let mut waits = vec![absent.wait.as_millis()];
        while absent.wait < LOOKS.1 {
            absent = absent.again(now);
            assert_eq!(absent.at, now + absent.wait);
            waits.push(absent.wait.as_millis());
        }
        assert_eq!(waits[..4], [10, 20, 40, 80]);
        assert_eq!(waits[waits.len() - 2..], [40_960, 60_000]);
        assert_eq!(absent.again(now).wait, LOOKS.1);
    }

    #[test]
    fn a_copy_that_the_kernel_placed_elsewhere_waits_twice_as_long_each_time() {
        let (now, node) = (Instant::now(), NodeId(1));
        let file = FileId { device: 1, inode: 2 };
        let mut watch = MemoryWatch::default();
        assert!(watch.may_try(file, node, now), "it was never placed elsewhere");
        watch.spilled(file, node, now);
        assert!(!watch.may_try(file, node, now + RECOVERY / 2));
        assert!(watch.may_try(file, node, now + RECOVERY));
        // That attempt had no room: the next one may follow at any time.
        assert!(watch.may_try(file, node, now + RECOVERY));
        watch.spilled(file, node, now + RECOVERY);
        assert!(!watch.may_try(file, node, now + 2 * RECOVERY));
        assert!(watch.may_try(file, node, now + 3 * RECOVERY));
        assert!(watch.may_try(file, NodeId(2), now), "another node");
    }
}
