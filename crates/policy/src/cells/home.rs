//! The home of one cell: a node, or the nodes it grows to.

use crate::{
    Parts, SlowDown,
    cost::{Ask, Costing},
    index::{CellIndex, IndexVec, NodeIndex},
    view::{UNREACHABLE, View},
};

/// The home of a cell in one arrangement.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) cell: CellIndex,
    /// Its nodes, rising.
    pub(super) nodes: Vec<NodeIndex>,
    /// Its vCPUs by node, rising.
    pub(super) vcpus: Vec<(NodeIndex, u64)>,
    /// Its pages by node.
    pub(super) pages: Vec<(NodeIndex, u64)>,
    /// The slow-down of ADR 2 there, and its factors.
    pub(super) slow_down: SlowDown,
    pub(super) parts: Parts,
    pub(super) vcpus_per_core_ppm: u64,
}

impl Home {
    /// The consequences of these nodes as the home of a cell; None if its memory does not fit. A
    /// node that gets neither a vCPU nor a page leaves the home, and changes nothing by that.
    pub(super) fn lay(
        cell: CellIndex,
        costing: &mut Costing<'_>,
        mut nodes: Vec<NodeIndex>,
    ) -> Option<Self> {
        let prediction = costing.predict(&nodes, SlowDown(u64::MAX)).ok()?;
        let layout = costing.layout();
        nodes.retain(|&i| layout.uses(i));
        Some(Self {
            cell,
            nodes,
            vcpus: layout.vcpus().collect(),
            pages: layout.pages().collect(),
            slow_down: prediction.slow_down,
            parts: prediction.parts,
            vcpus_per_core_ppm: prediction.vcpus_per_core_ppm,
        })
    }

    pub(super) fn vcpus(&self) -> u64 {
        self.vcpus.iter().map(|&(_, vcpus)| vcpus).sum()
    }
}

/// The claims of the cells that have their homes already, on one machine.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) vcpus: IndexVec<NodeIndex, u64>,
    /// Pages of the size that the next cell asks for.
    pub(super) pages: IndexVec<NodeIndex, u64>,
}

impl Taken {
    pub(super) fn nothing(nodes: usize) -> Self {
        Self { vcpus: IndexVec::filled(0, nodes), pages: IndexVec::filled(0, nodes) }
    }

    /// CPUs of a node that no cell has.
    pub(super) fn cpus_left(&self, view: &View, i: NodeIndex) -> u64 {
        view.nodes[i].threads.saturating_sub(self.vcpus[i])
    }

    /// Pages that are available on a node.
    pub(super) fn pages_left(&self, view: &View, i: NodeIndex) -> u64 {
        view.nodes[i].available_pages.saturating_sub(self.pages[i])
    }

    /// Whether a cell fits one node: a page for each of its pages, a CPU for each vCPU.
    pub(super) fn fits(&self, view: &View, ask: &Ask, i: NodeIndex) -> bool {
        self.cpus_left(view, i) >= ask.vcpus && self.pages_left(view, i) >= ask.pages
    }

    /// The nodes of a home that begins on `anchor` (rising): the nearest ones that `may_join` join,
    /// as long as each gives something that is missing.
    pub(super) fn grow(
        &self,
        view: &View,
        ask: &Ask,
        anchor: NodeIndex,
        may_join: impl Fn(NodeIndex) -> bool,
    ) -> Vec<NodeIndex> {
        let (mut vcpus, mut pages) = (ask.vcpus, ask.pages);
        let mut nodes = Vec::new();
        let latencies = view.latencies_ppm(anchor);
        let others = view
            .nearest(anchor)
            .iter()
            .copied()
            .filter(|&i| i != anchor && latencies[i] != UNREACHABLE && may_join(i));
        for i in std::iter::once(anchor).chain(others) {
            let (cpus_left, pages_left) = (self.cpus_left(view, i), self.pages_left(view, i));
            let gives = (vcpus > 0 && cpus_left > 0) || (pages > 0 && pages_left > 0);
            if i == anchor || gives {
                nodes.push(i);
                vcpus = vcpus.saturating_sub(cpus_left);
                pages = pages.saturating_sub(pages_left);
            }
            if vcpus == 0 && pages == 0 {
                break;
            }
        }
        nodes.sort_unstable();
        nodes
    }
}
