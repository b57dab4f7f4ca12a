//! Memory that is available to claims (docs/adr/0001-claims.md,
//! docs/adr/0003-what-counts-as-free.md).

use crate::{ByNode, Observation, PageSize, PartState, allocatable};
use nearside_topology::{NodeId, NodeSet};

/// Memory available to claims, in pages of one size: allocatable memory, less claims and
/// reservations that are not resident yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Available {
    /// Allocatable memory less claims and reservations, by node.
    by_node: ByNode,
    /// Huge pages of it that others have reserved. Their nodes are unknown until the pages are
    /// touched, so they are taken off the sum and off no node.
    reserved_bytes: u64,
    /// The sum of `by_node`.
    sum_bytes: u64,
}

impl Available {
    fn new(by_node: ByNode, reserved_bytes: u64) -> Self {
        let sum_bytes = by_node.values().copied().fold(0, u64::saturating_add);
        Self { by_node, reserved_bytes, sum_bytes }
    }

    /// Bytes available on `node`.
    pub fn on(&self, node: NodeId) -> u64 {
        self.of(node).min(self.total_bytes())
    }

    /// Bytes available on these nodes together, when so many are given back on others.
    pub fn on_nodes(&self, nodes: &NodeSet, given_back_bytes: u64) -> u64 {
        let sum = nodes.iter().map(|node| self.of(node)).fold(0, u64::saturating_add);
        sum.min(self.sum_bytes.saturating_add(given_back_bytes).saturating_sub(self.reserved_bytes))
    }

    /// Bytes available on all nodes together.
    pub fn total_bytes(&self) -> u64 {
        self.sum_bytes.saturating_sub(self.reserved_bytes)
    }

    /// Whole pages available on all nodes together.
    pub fn total_pages(&self, page_bytes: u64) -> u64 {
        let sum = self
            .by_node
            .values()
            .fold(0, |sum: u64, &bytes| sum.saturating_add(bytes / page_bytes));
        sum.saturating_sub(self.reserved_bytes.div_ceil(page_bytes))
    }

    fn of(&self, node: NodeId) -> u64 {
        self.by_node.get(&node).copied().unwrap_or(0)
    }
}

impl Observation {
    /// Memory available in pages of this size.
    pub fn available(&self, page_size: PageSize) -> Available {
        self.available_without(page_size, None)
    }

    /// The same, as if `part` had no claim.
    pub fn available_without(&self, page_size: PageSize, part: Option<&PartState>) -> Available {
        let nodes = self.topology.nodes.iter();
        let mut by_node: ByNode =
            nodes.map(|node| (node.id, allocatable(node, page_size).allocatable_bytes)).collect();
        let others = self
            .open_claims(page_size)
            .filter(|(of, _)| part.is_none_or(|without| without.id != of.id));
        let reserved = self.reservations.iter().filter(|it| it.page_size == page_size);
        let reserved = reserved.flat_map(|it| it.bytes.clone());
        for (node, bytes) in others.flat_map(|(_, open)| open).chain(reserved) {
            by_node.entry(node).and_modify(|left| *left = left.saturating_sub(bytes));
        }
        Available::new(by_node, self.reserved_elsewhere_bytes(page_size))
    }

    /// Bytes in huge pages of this size that were reserved and not touched yet, and that no claim
    /// covers: by processes which are no domain's, or by domains beyond their claims.
    pub fn reserved_elsewhere_bytes(&self, page_size: PageSize) -> u64 {
        let all = match page_size {
            PageSize::Base => 0,
            PageSize::Huge(page_bytes) => self.topology.reserved_huge_bytes(page_bytes),
        };
        let own = self.open_claims(page_size).map(|(domain, open)| {
            let owed = open.values().copied().fold(0, u64::saturating_add);
            domain.reserved_bytes.min(owed)
        });
        all.saturating_sub(own.fold(0, u64::saturating_add))
    }

    /// The domains that claim pages of this size, each with what is still owed to it.
    fn open_claims(&self, page_size: PageSize) -> impl Iterator<Item = (&PartState, ByNode)> {
        let claims = self.parts.iter().filter_map(|part| Some((part.claim.as_ref()?, part)));
        let of_that_size = claims.filter(move |(claim, _)| claim.page_size == page_size);
        of_that_size.map(|(claim, domain)| (domain, domain.outstanding_of(claim)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Claim;
    use nearside_topology::{HugePagePool, Node, ReservedHugePages, Topology};

    const MIB: u64 = 1 << 20;
    const HUGE: PageSize = PageSize::Huge(2 * MIB);

    fn by_node(mib: &[u64]) -> ByNode {
        mib.iter().enumerate().map(|(node, mib)| (NodeId(node as u32), mib * MIB)).collect()
    }

    /// Two nodes with 100 MiB of free huge pages each, and so many MiB reserved on the whole
    /// machine.
    fn machine(reserved_mib: u64, domains: Vec<PartState>) -> Observation {
        let pool =
            HugePagePool { page_bytes: 2 * MIB, total_pages: 64, free_pages: 50, surplus_pages: 0 };
        let node = |id| Node { id: NodeId(id), huge_pages: vec![pool], ..Node::default() };
        let reserved_huge_pages =
            vec![ReservedHugePages { page_bytes: 2 * MIB, pages: reserved_mib / 2 }];
        let topology =
            Topology { nodes: vec![node(0), node(1)], reserved_huge_pages, ..Topology::default() };
        Observation { topology, parts: domains, reservations: Vec::new() }
    }

    fn domain(claim_mib: &[u64], resident_mib: &[u64], reserved_mib: u64) -> PartState {
        let claim = Claim { bytes: by_node(claim_mib), page_size: HUGE, ..Claim::default() };
        PartState {
            claim: Some(claim),
            resident_bytes: by_node(resident_mib),
            reserved_bytes: reserved_mib * MIB,
            ..PartState::default()
        }
    }

    #[test]
    fn reservations_on_unknown_nodes_are_taken_off_the_machine_and_off_no_node() {
        let cases = [
            // Nothing is reserved.
            (machine(0, vec![domain(&[60], &[0], 0)]), [40, 100], 140),
            // A domain's own reservation is part of its claim.
            (machine(60, vec![domain(&[60], &[0], 60)]), [40, 100], 140),
            // Others' may come from any node: one alone still has all its pages, both together
            // less.
            (machine(60, vec![domain(&[60], &[0], 0)]), [40, 80], 80),
            (machine(100, Vec::new()), [100, 100], 100),
            (machine(190, Vec::new()), [10, 10], 10),
            (machine(300, Vec::new()), [0, 0], 0),
            // Reserved beyond its claim, or for the second time.
            (machine(60, vec![domain(&[40], &[0], 60)]), [60, 100], 140),
            (machine(60, vec![domain(&[60], &[50], 60)]), [90, 100], 140),
        ];
        for (number, (seen, on, total)) in cases.into_iter().enumerate() {
            let available = seen.available(HUGE);
            let found = [0, 1].map(|node| available.on(NodeId(node)) / MIB);
            assert_eq!((found, available.total_bytes() / MIB), (on, total), "case {number}");
        }
    }

    #[test]
    fn memory_given_back_elsewhere_is_available_here() {
        let available = machine(150, Vec::new()).available(HUGE);
        let first = NodeSet::from([NodeId(0)]);
        assert_eq!(
            [0, 20, 200].map(|back| available.on_nodes(&first, back * MIB) / MIB),
            [50, 70, 100]
        );
    }

    #[test]
    fn ordinary_pages_are_never_reserved() {
        let seen = machine(60, Vec::new());
        assert_eq!(seen.reserved_elsewhere_bytes(PageSize::Base), 0);
        assert_eq!(seen.reserved_elsewhere_bytes(PageSize::Huge(1 << 30)), 0);
    }
}
