//! The placement of a virtual machine, in the words of this crate.

use nearside_topology::{Distance, Distances, NodeId, NodeSet};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// A memory policy that QEMU's backends know (QEMU, `qapi/common.json`: `HostMemPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Only from the nodes.
    #[default]
    Bind,
    /// From the nodes first.
    Preferred,
    /// From the nodes in turn.
    Interleave,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bind => "bind",
            Self::Preferred => "preferred",
            Self::Interleave => "interleave",
        })
    }
}

impl FromStr for Policy {
    type Err = String;

    /// Reads Nearside's name of a policy.
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "strict" => Ok(Self::Bind),
            "preferred" => Ok(Self::Preferred),
            "interleave" => Ok(Self::Interleave),
            _ => Err(format!(
                "memory of virtual machines cannot have the policy {name}: memory backends know \
                 strict, preferred and interleave"
            )),
        }
    }
}

/// The nodes of all cells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The policy for memory.
    pub policy: Policy,
    /// The place of each cell, by the cells' numbers.
    pub cells: Vec<CellPlacement>,
    /// The host's distances, for the cells to mirror; none leaves the guest's as they are.
    pub distances: Option<Distances>,
}

/// The place of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CellPlacement {
    /// Its memory in bytes on each of the host's nodes that have some.
    pub bytes: BTreeMap<NodeId, u64>,
    /// The host's nodes that its vCPUs run on.
    pub cpu_nodes: NodeSet,
}

impl CellPlacement {
    /// The host's nodes that hold its memory.
    pub fn memory_nodes(&self) -> NodeSet {
        self.bytes.iter().filter(|(_, bytes)| **bytes > 0).map(|(node, _)| *node).collect()
    }
}

/// The least distance between two cells. Linux drops a guest's distances if two nodes are as near
/// as one is to itself (`slit_valid`, `drivers/acpi/numa/srat.c`).
const NEAREST: Distance = Distances::LOCAL + 1;

/// The distance between two cells: the mean over the pairs of their nodes, rounded up. Cells on one
/// node are as near as two can be.
pub(crate) fn cell_distance(host: &Distances, from: &NodeSet, to: &NodeSet) -> Distance {
    let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
    let (sum, count) = pairs.fold((0_u64, 0_u64), |(sum, count), (from, to)| {
        (sum + u64::from(host.get(from, to)), count + 1)
    });
    let mean = sum.div_ceil(count.max(1));
    Distance::try_from(mean).unwrap_or(Distances::UNREACHABLE).max(NEAREST)
}

/// The distances that the placement gives the cells, unless there is but one.
pub(crate) fn mirrored(placement: &Placement) -> BTreeMap<(u32, u32), Distance> {
    let Some(host) = placement.distances.as_ref().filter(|_| placement.cells.len() > 1) else {
        return BTreeMap::new();
    };
    let cells = || (0_u32..).zip(&placement.cells);
    let pairs = cells().flat_map(|from| cells().map(move |to| (from, to)));
    let distance = |((from, a), (to, b)): ((u32, &CellPlacement), (u32, &CellPlacement))| {
        let distance = cell_distance(host, &a.memory_nodes(), &b.memory_nodes());
        ((from, to), distance)
    };
    pairs.filter(|(from, to)| from.0 != to.0).map(distance).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cells_are_as_near_as_one_is_to_itself() {
        let host = Distances::new(&[NodeId(0), NodeId(1)], &[10, 20, 20, 10]).unwrap();
        let set = |list: &str| list.parse::<NodeSet>().unwrap();
        let distance = |from, to| cell_distance(&host, &set(from), &set(to));
        assert_eq!([distance("0", "0"), distance("0", "1"), distance("0-1", "1")], [11, 20, 15]);
    }
}
