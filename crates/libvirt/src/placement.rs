//! The placement of a domain, in the words of this crate.

use crate::{domain::Domain, id::IothreadId, memory::MemoryMode};
use nearside_topology::{CpuSet, Distance, Distances, NodeSet};
use std::collections::BTreeMap;

/// Where a domain's threads and memory shall be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The mode for memory.
    pub mode: MemoryMode,
    /// The place of each cell, by the cells' numbers. A domain without cells has one, for all of
    /// it. Places beyond the domain's cells do not count, and a cell without a place stays unbound.
    pub cells: Vec<CellPlacement>,
    /// Whether to bind vCPUs. It is false where soft affinity keeps them home.
    pub pins_vcpus: bool,
    /// CPUs that the emulator needs beside those of the cells: it allocates memory with threads on
    /// its nodes, where no vCPU may be.
    pub emulator_cpus: CpuSet,
    /// The CPUs of iothreads.
    pub iothreads: BTreeMap<IothreadId, CpuSet>,
    /// The host's distances, for the cells to mirror; none leaves the guest's as they are.
    pub distances: Option<Distances>,
}

/// The place of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CellPlacement {
    /// The host's nodes for its memory.
    pub nodes: NodeSet,
    /// The host's CPUs for its vCPUs, and for the emulator.
    pub cpus: CpuSet,
}

impl Placement {
    /// The places of the domain's cells, or the one of a domain without cells.
    pub(crate) fn places(&self, domain: &Domain) -> &[CellPlacement] {
        let count = domain.cells.len().max(1).min(self.cells.len());
        self.cells.get(..count).unwrap_or_default()
    }

    /// All nodes of the domain's places.
    pub(crate) fn nodes(&self, domain: &Domain) -> NodeSet {
        let places = self.places(domain).iter();
        places.fold(NodeSet::new(), |all, place| all.union(&place.nodes))
    }

    /// All CPUs of the domain's places.
    pub(crate) fn cpus(&self, domain: &Domain) -> CpuSet {
        let places = self.places(domain).iter();
        places.fold(CpuSet::new(), |all, place| all.union(&place.cpus))
    }
}

/// The distance between two cells: the mean over the pairs of their nodes, rounded up. Cells on
/// one node are as near as the node is to itself.
pub(crate) fn cell_distance(host: &Distances, from: &NodeSet, to: &NodeSet) -> Distance {
    let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
    let (sum, count) = pairs.fold((0_u64, 0_u64), |(sum, count), (from, to)| {
        (sum + u64::from(host.get(from, to)), count + 1)
    });
    let mean = sum.div_ceil(count.max(1));
    Distance::try_from(mean).unwrap_or(Distances::UNREACHABLE).max(Distances::LOCAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;

    #[test]
    fn distance_of_cells_is_the_mean_of_their_nodes() {
        let ids = [NodeId(0), NodeId(1), NodeId(2)];
        let host = Distances::new(&ids, &[10, 12, 21, 12, 10, 32, 21, 32, 10]).unwrap();
        let set = |list: &str| list.parse::<NodeSet>().unwrap();
        assert_eq!(cell_distance(&host, &set("0"), &set("2")), 21);
        // (21 + 32) / 2 = 26.5
        assert_eq!(cell_distance(&host, &set("0-1"), &set("2")), 27);
        assert_eq!(cell_distance(&host, &set("1"), &set("1")), 10);
        assert_eq!(cell_distance(&host, &set(""), &set("1")), 10);
    }
}
