//! Smoothing of measured figures.
//!
//! A new figure counts for a quarter (an exponentially weighted mean): after five intervals of
//! another load the mean is three quarters of the way there.

use crate::{ByNode, view::PPM};
use nearside_topology::NodeId;
use std::collections::BTreeSet;

/// A bound on CPU demand, above any machine. It bounds the products of costing.
pub(super) const MAX_MILLI_VCPUS: u64 = 1 << 24;

// A sample counts for so many intervals at most.
const MAX_SAMPLE_INTERVALS: u64 = 8;

/// The mean after a new figure.
pub(super) fn smoothed(before: u64, now: u64) -> u64 {
    // The mean of two numbers of 64 bits has 64 bits.
    ((u128::from(before) * 3 + u128::from(now)) / 4) as u64
}

/// CPU time over a time, in thousandths of a CPU.
pub(super) fn milli_vcpus(ns: u64, over_ns: u64) -> u64 {
    let milli = (u128::from(ns) * 1000).checked_div(u128::from(over_ns)).unwrap_or(0);
    milli.min(u128::from(MAX_MILLI_VCPUS)) as u64
}

/// A part of a whole, in millionths; 0 of nothing.
pub(super) fn share_ppm(part: u64, whole: u64) -> u64 {
    let ppm = (u128::from(part) * u128::from(PPM)).checked_div(u128::from(whole)).unwrap_or(0);
    ppm.min(u128::from(PPM)) as u64
}

/// For how many intervals a sample over such a time counts.
pub(super) fn sample_weight(over_ns: u64, interval_ns: u64) -> u64 {
    over_ns.checked_div(interval_ns).unwrap_or(1).clamp(1, MAX_SAMPLE_INTERVALS)
}

/// The shares of CPU time by node after one more interval of `cpu_ns`. The first figures are taken
/// as they are; without CPU time the shares stay. Nodes that are not `known` drop out.
pub(super) fn smoothed_shares(
    before: &ByNode,
    cpu_ns: &ByNode,
    known: impl Fn(NodeId) -> bool,
) -> ByNode {
    let ran_ns = cpu_ns.values().copied().fold(0, u64::saturating_add);
    if ran_ns == 0 {
        return before.clone();
    }
    let on = |by_node: &ByNode, node| by_node.get(&node).copied().unwrap_or(0);
    let nodes: BTreeSet<NodeId> =
        before.keys().chain(cpu_ns.keys()).copied().filter(|&node| known(node)).collect();
    let share = |node| {
        let now = share_ppm(on(cpu_ns, node), ran_ns);
        (node, if before.is_empty() { now } else { smoothed(on(before, node), now) })
    };
    nodes.into_iter().map(share).filter(|(_, ppm)| *ppm > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_node(amounts: &[u64]) -> ByNode {
        amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount)).collect()
    }

    #[test]
    fn a_new_figure_counts_for_a_quarter() {
        // From 0 to a load of 2,000: 500, 875, 1156.25, 1367.4, 1525.6; each rounded down.
        let mut mean = 0;
        let means = [2000; 5].map(|load| {
            mean = smoothed(mean, load);
            mean
        });
        assert_eq!(means, [500, 875, 1156, 1367, 1525]);
        assert_eq!(smoothed(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn demand_is_cpu_time_over_the_time_it_was_used_in() {
        assert_eq!(milli_vcpus(3_000_000_000, 2_000_000_000), 1500);
        assert_eq!(milli_vcpus(5, 0), 0, "a sample over no time");
        assert_eq!(milli_vcpus(u64::MAX, 1), MAX_MILLI_VCPUS, "bounded");
    }

    #[test]
    fn a_share_of_nothing_is_nothing_and_none_exceeds_the_whole() {
        assert_eq!([share_ppm(1, 4), share_ppm(0, 0), share_ppm(9, 3)], [250_000, 0, PPM]);
    }

    #[test]
    fn a_late_sample_counts_for_the_intervals_it_covers_but_not_for_more_than_eight() {
        let weight = |over_s: u64| sample_weight(over_s, 2);
        assert_eq!([1, 2, 3, 4, 16, 90].map(weight), [1, 1, 1, 2, 8, 8]);
        assert_eq!(sample_weight(5, 0), 1);
    }

    #[test]
    fn shares_by_node_move_a_quarter_of_the_way() {
        let all = |_| true;
        // All time on node 0 at first. Then all on node 1: 3/4 and 1/4, then 9/16 and 7/16.
        let first = smoothed_shares(&ByNode::new(), &by_node(&[8, 0]), all);
        assert_eq!(first, by_node(&[PPM]));
        let second = smoothed_shares(&first, &by_node(&[0, 8]), all);
        assert_eq!(second, by_node(&[750_000, 250_000]));
        assert_eq!(smoothed_shares(&second, &by_node(&[0, 8]), all), by_node(&[562_500, 437_500]));
        assert_eq!(smoothed_shares(&second, &ByNode::new(), all), second, "it did not run");
    }

    #[test]
    fn a_node_that_has_gone_keeps_no_share() {
        let before = by_node(&[500_000, 500_000]);
        let after = smoothed_shares(&before, &by_node(&[4, 0]), |node| node == NodeId(0));
        assert_eq!(after, by_node(&[625_000]));
    }
}
