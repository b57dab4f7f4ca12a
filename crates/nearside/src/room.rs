//! Room for claims: copies of program text go if a claim lacks the memory that they take up.

use nearside_linux::launch::LaunchError;
use nearside_policy::{CellsRefusal, PageSize, Refusal, RehomeRefusal, StartRefusal};
use nearside_replicas::{
    Client,
    protocol::{Answer, Request, SOCKET},
};
use nearside_topology::NodeSet;
use std::{path::Path, time::Duration};

/// The longest wait for the replicator by a command that has no other bound.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Memory that a refused claim lacks. Copies take no pages of hugetlb, so a lack of those is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    nodes: NodeSet,
    bytes: u64,
}

impl Shortage {
    /// The shortage of a start that may take memory from these nodes.
    pub(crate) fn of_start(error: &LaunchError, nodes: &NodeSet) -> Option<Self> {
        match error {
            LaunchError::Refused(StartRefusal::Place(refusal)) => Self::of_place(refusal, nodes),
            LaunchError::Refused(StartRefusal::Cells(refusal)) => Self::of_cells(refusal, nodes),
            _ => None,
        }
    }

    /// The same of cells.
    pub(crate) fn of_cells(refusal: &CellsRefusal, nodes: &NodeSet) -> Option<Self> {
        match refusal {
            CellsRefusal::Cell { refusal, .. } | CellsRefusal::Together(refusal) => {
                Self::of_place(refusal, nodes)
            }
            _ => None,
        }
    }

    /// The same of a claim without cells.
    pub(crate) fn of_place(refusal: &Refusal, nodes: &NodeSet) -> Option<Self> {
        match refusal {
            Refusal::DoesNotFit { short_by_bytes, page_size: PageSize::Base, .. } => {
                Some(Self { nodes: nodes.clone(), bytes: *short_by_bytes })
            }
            _ => None,
        }
    }

    /// The shortage of a new home.
    pub(crate) fn of_move(refusal: &RehomeRefusal) -> Option<Self> {
        match refusal {
            RehomeRefusal::DoesNotFit { nodes, needed_bytes, available_bytes } => {
                let bytes = needed_bytes.saturating_sub(*available_bytes);
                Some(Self { nodes: nodes.clone(), bytes })
            }
            _ => None,
        }
    }

    /// Has copies of the host at `root` go, and says whether any went: the claim may fit now.
    pub(crate) fn copies_go(&self, root: &Path, patience: Duration) -> bool {
        let request = Request::MakeRoom { nodes: self.nodes.clone(), bytes: self.bytes };
        let socket = root.join(SOCKET.trim_start_matches('/'));
        // Without a replicator there are no copies.
        let answer =
            Client::connect(&socket, patience).and_then(|client| client.ask(&request, None));
        matches!(answer, Ok(Answer::Room { freed_bytes }) if freed_bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::CellId;
    use nearside_topology::NodeId;

    fn does_not_fit(page_size: PageSize) -> Refusal {
        let where_ = "node 1".to_owned();
        Refusal::DoesNotFit {
            needed_bytes: 10,
            available_bytes: 7,
            short_by_bytes: 3,
            where_,
            page_size,
        }
    }

    #[test]
    fn a_claim_that_does_not_fit_names_what_it_lacks() {
        let nodes: NodeSet = [NodeId(1)].into_iter().collect();
        let lacks = Some(Shortage { nodes: nodes.clone(), bytes: 3 });
        let refusal = does_not_fit(PageSize::Base);
        let start = |refusal| Shortage::of_start(&LaunchError::Refused(refusal), &nodes);
        assert_eq!(Shortage::of_place(&refusal, &nodes), lacks);
        assert_eq!(start(StartRefusal::Place(refusal.clone())), lacks);
        let cell = CellsRefusal::Cell { cell: CellId(0), refusal: refusal.clone() };
        for cells in [cell, CellsRefusal::Together(refusal)] {
            assert_eq!(start(StartRefusal::Cells(cells)), lacks);
        }
        let moved = RehomeRefusal::DoesNotFit {
            nodes: nodes.clone(),
            needed_bytes: 10,
            available_bytes: 7,
        };
        assert_eq!(Shortage::of_move(&moved), lacks);
    }

    #[test]
    fn other_refusals_lack_no_memory_that_copies_have() {
        let nodes = NodeSet::new();
        assert_eq!(Shortage::of_place(&does_not_fit(PageSize::Huge(2 << 20)), &nodes), None);
        assert_eq!(Shortage::of_cells(&CellsRefusal::NoCells, &nodes), None);
        assert_eq!(Shortage::of_move(&RehomeRefusal::NoMemory(nodes.clone())), None);
        let taken = LaunchError::Refused(StartRefusal::Taken("db".into()));
        assert_eq!(Shortage::of_start(&taken, &nodes), None);
    }
}
