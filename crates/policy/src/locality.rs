//! The locality of a domain.

use crate::ByNode;
use nearside_topology::NodeSet;

/// The local share: the sum over nodes of (share of CPU time there x share of bytes there), from 0
/// to 1.
///
/// It is the probability that a byte drawn at random is local to an instant of CPU time drawn at
/// random, so it means the same for a domain with a home, for one without, and for stock Linux.
/// None if the domain used no CPU time or has no memory.
pub fn local_share(cpu_time: &ByNode, bytes: &ByNode) -> Option<f64> {
    let total = |by_node: &ByNode| by_node.values().map(|&amount| amount as f64).sum::<f64>();
    let (all_time, all_bytes) = (total(cpu_time), total(bytes));
    if all_time <= 0.0 || all_bytes <= 0.0 {
        return None;
    }
    let both = cpu_time
        .iter()
        .map(|(node, &time)| time as f64 * bytes.get(node).copied().unwrap_or(0) as f64);
    Some((both.sum::<f64>() / all_time / all_bytes).clamp(0.0, 1.0))
}

/// The debt: bytes that lie off the home.
pub fn debt_bytes(bytes: &ByNode, home: &NodeSet) -> u64 {
    let off = bytes.iter().filter(|(node, _)| !home.contains(**node));
    off.map(|(_, &bytes)| bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;

    fn by_node(amounts: &[u64]) -> ByNode {
        amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount)).collect()
    }

    #[test]
    fn the_share_is_the_chance_that_an_access_is_local() {
        let cases: [(&[u64], &[u64], Option<f64>); 6] = [
            (&[5, 0], &[7, 0], Some(1.0)),
            (&[5, 0], &[0, 7], Some(0.0)),
            (&[1, 1], &[1, 1], Some(0.5)),
            (&[3, 1], &[1, 3], Some(0.375)),
            (&[0, 0], &[1, 3], None),
            (&[1, 1, 1, 1], &[1, 1, 1, 1], Some(0.25)),
        ];
        for (time, bytes, expected) in cases {
            assert_eq!(
                local_share(&by_node(time), &by_node(bytes)),
                expected,
                "{time:?} {bytes:?}"
            );
        }
    }

    #[test]
    fn debt_is_memory_off_home() {
        assert_eq!(debt_bytes(&by_node(&[10, 20, 30]), &NodeSet::from([NodeId(0), NodeId(2)])), 20);
    }
}
