//! Requests: an order, a zone, and the nodes that may serve it.

use crate::ids::{Node, Order, Zone};

/// A set of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Nodes(u64);

impl Nodes {
    /// The set with one more node. Nodes that no machine can have are left out.
    #[must_use]
    pub const fn with(self, node: Node) -> Self {
        if node.0 < 64 { Self(self.0 | 1 << node.0) } else { self }
    }

    /// Whether it has the node.
    pub const fn contains(self, node: Node) -> bool {
        node.0 < 64 && self.0 >> node.0 & 1 == 1
    }

    /// The number of its nodes.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether it has none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its nodes, rising.
    pub fn iter(self) -> impl Iterator<Item = Node> {
        (0..64).map(Node).filter(move |node| self.contains(*node))
    }
}

impl FromIterator<Node> for Nodes {
    fn from_iter<I: IntoIterator<Item = Node>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::default(), Self::with)
    }
}

/// The nodes that serve a request, as in set_mempolicy(2). "Near" is meant from the cache's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy<'r> {
    /// The cache's node, then the others, the nearest first.
    #[default]
    Local,
    /// This node alone.
    Exact(Node),
    /// These nodes alone, the nearest first.
    Strict(Nodes),
    /// This node, then the others, those nearest to it first.
    Preferred(Node),
    /// These nodes, the nearest first, then the others.
    PreferredMany(Nodes),
    /// One of these nodes after the other. If it is full, the nearest of the set, then the others.
    Interleave(Nodes),
    /// The same, with so many extents in a row from each node.
    WeightedInterleave(&'r [(Node, u8)]),
}

/// Whether a zone or the nodes come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZoneRule {
    /// The zone on all permitted nodes, then the zones in its place.
    #[default]
    ZoneFirst,
    /// All zones of the nearest node, then those of the next.
    NodeFirst,
}

/// A request for an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request<'r> {
    /// The size.
    pub order: Order,
    /// The zone.
    pub zone: Zone,
    /// Whether the zone or the nodes come first.
    pub rule: ZoneRule,
    /// The nodes.
    pub policy: Policy<'r>,
}

impl Request<'_> {
    /// An extent of this order in zone Normal, from the cache's node if possible.
    pub const fn new(order: Order) -> Self {
        Self { order, zone: Zone::Normal, rule: ZoneRule::ZoneFirst, policy: Policy::Local }
    }
}

/// The nodes of an interleaved request: the one whose turn it is.
pub(crate) fn turn(policy: &Policy<'_>, turns: u64) -> Option<Node> {
    match policy {
        Policy::Interleave(nodes) if !nodes.is_empty() => {
            nodes.iter().nth((turns % u64::from(nodes.len())) as usize)
        }
        Policy::WeightedInterleave(weights) => {
            let all: u64 = weights.iter().map(|(_, weight)| u64::from(*weight)).sum();
            let mut left = turns.checked_rem(all)?;
            weights.iter().find_map(|(node, weight)| match left.checked_sub((*weight).into()) {
                Some(less) => {
                    left = less;
                    None
                }
                None => Some(*node),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn nodes_take_turns_by_their_weights() {
        let nodes: Nodes = [Node(1), Node(3)].into_iter().collect();
        let turns =
            |policy: Policy<'_>| (0..6).map(|at| turn(&policy, at).map(|it| it.0)).collect();
        let plain: Vec<_> = turns(Policy::Interleave(nodes));
        assert_eq!(plain, [1, 3, 1, 3, 1, 3].map(Some));
        let weighted: Vec<_> =
            turns(Policy::WeightedInterleave(&[(Node(2), 2), (Node(5), 0), (Node(0), 1)]));
        assert_eq!(weighted, [2, 2, 0, 2, 2, 0].map(Some));
        for none in [Policy::Interleave(Nodes::default()), Policy::WeightedInterleave(&[])] {
            assert_eq!(turns(none), vec![None; 6]);
        }
    }
}
