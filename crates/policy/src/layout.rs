//! The nodes of a domain's vCPUs and pages, if a given set of nodes is its home.
//!
//! The layout follows the kernel's behaviour and not the best one, because it serves predictions.

use crate::{
    MemoryPolicy,
    index::{Index, IndexVec, NodeIndex},
    view::{PPM, UNREACHABLE, View},
};
use std::{cmp::Reverse, collections::BinaryHeap};

/// A domain's vCPUs and pages on every node of a [`View`].
///
/// Kept for all nodes, with lists of the nodes in use, so that laying out a small home on a large
/// machine does not visit every node.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    vcpus: IndexVec<NodeIndex, u64>,
    pages: IndexVec<NodeIndex, u64>,
    // Invariant: exactly the nodes with vCPUs, rising.
    runners: Vec<NodeIndex>,
    // Invariant: exactly the nodes with pages.
    holders: Vec<NodeIndex>,
    // Whether all vCPUs reach the memory of a node.
    reached: IndexVec<NodeIndex, bool>,
}

/// The most pages available, if they are too few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooSmall {
    pub(crate) pages: u64,
}

impl Layout {
    pub(crate) fn new(view: &View) -> Self {
        let n = view.nodes.len();
        Self {
            vcpus: IndexVec::filled(0, n),
            pages: IndexVec::filled(0, n),
            runners: Vec::new(),
            holders: Vec::new(),
            reached: IndexVec::filled(true, n),
        }
    }

    /// The nodes with vCPUs and how many there are, by rising index.
    pub(crate) fn vcpus(&self) -> impl Iterator<Item = (NodeIndex, u64)> + '_ {
        self.runners.iter().map(|&i| (i, self.vcpus[i]))
    }

    /// The nodes with pages and their number of pages, in no particular order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (NodeIndex, u64)> + '_ {
        self.holders.iter().map(|&i| (i, self.pages[i]))
    }

    /// The number of pages on a node.
    pub(crate) fn pages_on(&self, i: NodeIndex) -> u64 {
        self.pages[i]
    }

    /// Whether a node gets a vCPU or a page.
    pub(crate) fn uses(&self, i: NodeIndex) -> bool {
        self.vcpus[i] > 0 || self.pages[i] > 0
    }

    /// Puts each vCPU on the node with the fewest vCPUs per core.
    ///
    /// One at a time, that is the node with the least (vCPUs it then has / cores), rounded up to
    /// millionths; among equals the lowest number. So vCPUs share a core only when no core of the
    /// set is idle. All at once, the same result takes three steps: find the least level of load at
    /// which all vCPUs fit, fill every node to just below it, and give the remaining vCPUs to the
    /// nodes that reach it, lowest numbers first.
    ///
    /// A set without CPUs leaves every vCPU out.
    pub(crate) fn spread_vcpus(&mut self, view: &View, set: &[NodeIndex], vcpus: u64) {
        self.runners.drain(..).for_each(|i| self.vcpus[i] = 0);
        let (mut cores, mut busy) = (0, 0);
        for node in set.iter().map(|&i| &view.nodes[i]).filter(|node| node.cores > 0) {
            cores += node.cores;
            busy += node.busy;
        }
        if cores == 0 {
            return;
        }
        let room_at = |level_ppm: u64, i: NodeIndex| {
            let node = &view.nodes[i];
            (level_ppm * node.cores / PPM).saturating_sub(node.busy)
        };
        // Residents only raise loads, so at `low` not all vCPUs fit. Rounding down loses less than
        // one vCPU a node, so at `high` all of them fit.
        let (mut low, mut high) = (
            (vcpus * PPM / cores).saturating_sub(1),
            (vcpus + busy + set.len() as u64) * PPM / cores + 1,
        );
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let room: u64 = set.iter().map(|&i| room_at(middle, i)).sum();
            if room > vcpus {
                high = middle
            } else {
                low = middle
            }
            if room == vcpus {
                break;
            }
        }
        let mut rest = vcpus;
        for &i in set {
            self.vcpus[i] = room_at(low, i);
            rest -= self.vcpus[i];
        }
        for &i in set {
            let more = (room_at(high, i) - self.vcpus[i]).min(rest);
            self.vcpus[i] += more;
            rest -= more;
            if self.vcpus[i] > 0 {
                self.runners.push(i);
            }
        }
    }

    /// Puts the pages on nodes by the policy, after the vCPUs.
    ///
    /// - *preferred*: all on one node, the set's *primary*;
    /// - *interleave*: equal parts on the set's nodes with memory; *weighted-interleave*: parts in
    ///   proportion to their bandwidth if it is known for all of them, else equal ones;
    /// - every other policy (and interleaving over nodes without memory): on the nodes of the
    ///   vCPUs, in proportion to their number, because a page is allocated on the node that first
    ///   touches it. Without vCPUs, in proportion to the memory that is available.
    ///
    /// Pages that do not fit their node go to other nodes, nearest to that node first, lowest
    /// numbers among equals; node by node, after every node took its own. Pages that stay at home
    /// stop at the set's nodes. *preferred-many* takes the set's nodes first. The others fall back
    /// to the nearest node anywhere, as the kernel's zone lists do. Memory that one of the vCPUs
    /// cannot reach is never used.
    pub(crate) fn fill_memory(
        &mut self,
        view: &View,
        set: &[NodeIndex],
        pages: u64,
        policy: MemoryPolicy,
        stays_home: bool,
    ) -> Result<(), TooSmall> {
        self.holders.drain(..).for_each(|i| self.pages[i] = 0);
        self.find_reached(view);
        let room = if stays_home {
            set.iter().fold(0, |sum: u64, &i| sum.saturating_add(self.left(view, i)))
        } else if view.all_reachable {
            view.available_pages
        } else {
            view.nodes.indices().fold(0, |sum: u64, i| sum.saturating_add(self.left(view, i)))
        };
        let room = room.min(view.available_pages);
        if room < pages {
            return Err(TooSmall { pages: room });
        }
        let parts = self.parts(view, set, policy);
        let whole: u128 = parts.iter().map(|&(_, part)| u128::from(part)).sum();
        let (mut sum, mut placed) = (0, 0);
        let mut overflow = Vec::new();
        for (i, part) in parts {
            // Rounding the running sum keeps the total exact.
            sum += u128::from(part);
            let upto = (u128::from(pages) * sum / whole) as u64;
            let wanted = upto - placed;
            placed = upto;
            let missing = wanted - self.take(view, i, wanted);
            if missing > 0 {
                overflow.push((i, missing));
            }
        }
        for (i, missing) in overflow {
            let in_set = stays_home || policy == MemoryPolicy::PreferredMany;
            let missing = if in_set { self.take_from_set(view, i, set, missing) } else { missing };
            self.take_in_turn(view, view.nearest(i).iter().copied(), missing);
        }
        Ok(())
    }

    fn find_reached(&mut self, view: &View) {
        if view.all_reachable {
            return;
        }
        self.reached.fill(true);
        for &from in &self.runners {
            for (reached, &latency_ppm) in
                self.reached.iter_mut().zip(view.latencies_ppm(from).iter())
            {
                *reached &= latency_ppm != UNREACHABLE;
            }
        }
    }

    // Pages that are still available on a node.
    fn left(&self, view: &View, i: NodeIndex) -> u64 {
        if self.reached[i] { view.nodes[i].available_pages - self.pages[i] } else { 0 }
    }

    // The nodes from which pages are taken, and their proportions.
    fn parts(&self, view: &View, set: &[NodeIndex], policy: MemoryPolicy) -> Vec<(NodeIndex, u64)> {
        let with_memory =
            || set.iter().copied().filter(|&i| view.nodes[i].has_memory && self.reached[i]);
        let parts = match policy {
            MemoryPolicy::Preferred => return vec![(self.primary(view, set), 1)],
            MemoryPolicy::Interleave => with_memory().map(|i| (i, 1)).collect(),
            MemoryPolicy::WeightedInterleave => {
                let weighted: Option<Vec<_>> =
                    with_memory().map(|i| Some((i, view.nodes[i].bandwidth_kb_s?))).collect();
                weighted.unwrap_or_else(|| with_memory().map(|i| (i, 1)).collect())
            }
            _ => Vec::new(),
        };
        if !parts.is_empty() {
            return parts;
        }
        if self.runners.is_empty() {
            return with_memory().map(|i| (i, self.left(view, i))).collect();
        }
        self.vcpus().collect()
    }

    /// The one node that *preferred* names: of the set's nodes with memory the one with the most
    /// vCPUs, the lowest number among equals. Without such a node, the same among all of the set.
    fn primary(&self, view: &View, set: &[NodeIndex]) -> NodeIndex {
        let best = |nodes: &mut dyn Iterator<Item = NodeIndex>| {
            nodes.max_by_key(|&i| (self.vcpus[i], Reverse(i)))
        };
        let with_memory =
            set.iter().copied().filter(|&i| view.nodes[i].has_memory && self.reached[i]);
        best(&mut { with_memory })
            .or_else(|| best(&mut set.iter().copied()))
            .unwrap_or(NodeIndex::at(0))
    }

    // Takes up to `wanted` pages from a node, and returns how many it took.
    fn take(&mut self, view: &View, i: NodeIndex, wanted: u64) -> u64 {
        let taken = wanted.min(self.left(view, i));
        if taken > 0 && self.pages[i] == 0 {
            self.holders.push(i);
        }
        self.pages[i] += taken;
        taken
    }

    // Takes pages from the nodes of a set that are nearest to `from`, and returns how many are
    // still missing.
    fn take_from_set(
        &mut self,
        view: &View,
        from: NodeIndex,
        set: &[NodeIndex],
        missing: u64,
    ) -> u64 {
        let latencies = view.latencies_ppm(from);
        // A heap, because a few nodes nearly always suffice, and sorting all would cost more.
        let with_room =
            set.iter().filter(|&&i| self.left(view, i) > 0).map(|&i| Reverse((latencies[i], i)));
        let mut nearest: BinaryHeap<_> = with_room.collect::<Vec<_>>().into();
        self.take_in_turn(
            view,
            std::iter::from_fn(|| nearest.pop()).map(|Reverse((_, i))| i),
            missing,
        )
    }

    // Takes pages from one node after the other, and returns how many are still missing.
    fn take_in_turn(
        &mut self,
        view: &View,
        mut nodes: impl Iterator<Item = NodeIndex>,
        mut missing: u64,
    ) -> u64 {
        while missing > 0
            && let Some(i) = nodes.next()
        {
            missing -= self.take(view, i, missing);
        }
        missing
    }
}
