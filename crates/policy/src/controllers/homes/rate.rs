//! The rate of page moves, and how memory pressure reduces it.
//!
//! Each node has a rate, a fraction of the full one. Pressure halves it, each other interval adds a
//! sixteenth of the full rate (additive increase, multiplicative decrease). It never falls below
//! 1/64: on a host that serves files the kernel reclaims all the time, and debt must still come
//! home.

use super::tuning::Tuning;
use crate::{NodeLoad, view::PPM};
use nearside_topology::Node;

// A node recovers from no rate to the full rate in so many intervals.
const RECOVERY_INTERVALS: u64 = 16;

const MIN_RATE_PPM: u64 = PPM / 64;

/// Whether a node is short of memory: tasks waited for it or reclaimed it, the kernel reclaims in
/// the background, or no zone is above its low watermark and its reserve.
pub(super) fn is_short_of_memory(node: &Node, load: &NodeLoad) -> bool {
    let below_low = node.fill_ppm(|zone| zone.low_watermark_bytes).is_some_and(|ppm| ppm < PPM);
    let reclaims = load.direct_reclaim_pages > 0 || load.background_reclaim_pages > 0;
    below_low || load.allocation_stalls > 0 || reclaims
}

/// The rate of a node after an interval.
pub(super) fn rate_after(rate_ppm: u64, is_under_pressure: bool) -> u64 {
    match is_under_pressure {
        true => (rate_ppm / 2).max(MIN_RATE_PPM),
        false => rate_ppm.saturating_add(PPM / RECOVERY_INTERVALS).min(PPM),
    }
}

/// The bytes that may move from one node to another in an interval at such a rate: at least one,
/// however short it is.
pub(super) fn budget_bytes(tuning: &Tuning, rate_ppm: u64) -> u64 {
    let full = (u128::from(tuning.rate_bytes_per_s) * u128::from(tuning.interval_ns))
        .div_ceil(1_000_000_000);
    let reduced = full.saturating_mul(u128::from(rate_ppm)).div_ceil(u128::from(PPM));
    u64::try_from(reduced).unwrap_or(u64::MAX)
}

/// Such a rate in bytes per second.
pub(super) fn bytes_per_s(tuning: &Tuning, rate_ppm: u64) -> u64 {
    let reduced = u128::from(tuning.rate_bytes_per_s) * u128::from(rate_ppm.min(PPM));
    reduced.div_ceil(u128::from(PPM)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::Zone;

    const GIB: u64 = 1 << 30;

    #[test]
    fn pressure_halves_the_rate_and_each_other_interval_adds_a_sixteenth() {
        let mut rate = PPM;
        let rates = [false, true, true, false, false].map(|pressure| {
            rate = rate_after(rate, pressure);
            rate
        });
        assert_eq!(rates, [1_000_000, 500_000, 250_000, 312_500, 375_000]);
    }

    #[test]
    fn the_rate_stays_between_a_64th_and_the_full_rate() {
        let after = |pressure| (0..50).fold(400_000, |rate, _| rate_after(rate, pressure));
        assert_eq!((after(true), after(false)), (15_625, 1_000_000));
        // From the minimum to the full rate: (1,000,000 - 15,625) / 62,500 = 15.75, so 16
        // intervals.
        let recovered = (0..16).fold(15_625, |rate, _| rate_after(rate, false));
        assert_eq!(recovered, PPM);
    }

    #[test]
    fn any_wait_or_reclaim_on_a_node_is_pressure() {
        let node = Node::default();
        let quiet = NodeLoad { busy_ns: 9, ..NodeLoad::default() };
        assert!(!is_short_of_memory(&node, &quiet));
        for load in [
            NodeLoad { allocation_stalls: 1, ..quiet },
            NodeLoad { direct_reclaim_pages: 1, ..quiet },
            NodeLoad { background_reclaim_pages: 1, ..quiet },
        ] {
            assert!(is_short_of_memory(&node, &load), "{load:?}");
        }
    }

    #[test]
    fn memory_that_a_low_zone_reserves_does_not_relieve_a_node() {
        let zone = |name: &str, free_bytes, low_watermark_bytes, reserved_bytes| Zone {
            name: name.into(),
            free_bytes,
            low_watermark_bytes,
            reserved_bytes,
            ..Zone::default()
        };
        let is_short = |zones: &[Zone]| {
            let node = Node { zones: zones.to_vec(), ..Node::default() };
            is_short_of_memory(&node, &NodeLoad::default())
        };
        // 1 GiB is free in DMA32, all of it reserved from tasks that may use Normal, too.
        let reserved = zone("DMA32", GIB, GIB / 64, GIB);
        assert!(is_short(&[reserved.clone(), zone("Normal", GIB / 32, GIB / 16, 0)]));
        assert!(!is_short(&[reserved.clone(), zone("Normal", GIB / 8, GIB / 16, 0)]));
        assert!(!is_short(&[zone("DMA32", 2 * GIB, 0, GIB), zone("Normal", 0, GIB / 16, 0)]));
        assert!(is_short(&[reserved, zone("Device", GIB, 0, 0)]));
    }

    #[test]
    fn the_budget_of_an_interval_follows_rate_and_length() {
        // 1 GiB/s for 2 s at a quarter of the rate: 512 MiB.
        let tuning = Tuning { rate_bytes_per_s: GIB, ..Tuning::default() };
        assert_eq!(budget_bytes(&tuning, 250_000), GIB / 2);
        assert_eq!(bytes_per_s(&tuning, 250_000), GIB / 4);
        // 1 byte a second for 10 ms is less than a byte, and still one.
        let slow = Tuning { rate_bytes_per_s: 1, interval_ns: 10_000_000, ..Tuning::default() };
        assert_eq!(budget_bytes(&slow, PPM), 1);
        assert_eq!(budget_bytes(&slow, 0), 0, "nothing moves where memory is out of reach");
        assert_eq!(bytes_per_s(&tuning, u64::MAX), GIB, "never above the full rate");
    }
}
