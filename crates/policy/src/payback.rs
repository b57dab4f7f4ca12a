//! The savings and the cost of a change of homes.
//!
//! The same work takes `there / here` of the time at another home. So a part that demands `demand`
//! CPUs saves `demand x (1 - there / here)` CPU-seconds a second. Moving its pages costs CPU time
//! once.

use crate::{Bytes, SlowDown, view::PPM};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An amount of CPUs, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MilliVcpus(pub u64);

impl fmt::Display for MilliVcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:02}", self.0 / 1000, self.0 % 1000 / 10))
    }
}

/// Cost and savings of a change of homes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payback {
    /// CPUs demanded.
    demand: MilliVcpus,
    /// The predicted slow-down at the present home.
    here: SlowDown,
    /// The predicted slow-down at the other.
    there: SlowDown,
    /// CPU time saved, in ns a second. Invariant (of a value that `new` made): demand x (1 - there
    /// / here), never below 0.
    saves_ns_per_s: u64,
    /// Bytes to move beyond those that would have to come home anyway.
    bytes_to_move: u64,
    /// CPU time that moving them takes, in ns.
    costs_ns: u64,
}

impl Payback {
    pub(crate) fn new(
        demand: MilliVcpus,
        here: SlowDown,
        there: SlowDown,
        bytes_to_move: u64,
        costs_ns: u64,
    ) -> Self {
        let saved = u128::from(demand.0) * 1_000_000 * u128::from(here.0.saturating_sub(there.0));
        let saves_ns_per_s = saved.checked_div(here.0.into()).unwrap_or(0) as u64;
        Self { demand, here, there, saves_ns_per_s, bytes_to_move, costs_ns }
    }

    /// The predicted slow-down at the present home.
    pub fn here(&self) -> SlowDown {
        self.here
    }

    /// The predicted slow-down at the other.
    pub fn there(&self) -> SlowDown {
        self.there
    }

    /// Bytes to move beyond those that would have to come home anyway.
    pub fn bytes_to_move(&self) -> u64 {
        self.bytes_to_move
    }

    /// Two changes at once: the slow-downs are means by demand, bytes and costs are sums.
    pub(crate) fn and(self, other: Self) -> Self {
        let demand = MilliVcpus(self.demand.0 + other.demand.0);
        let mean = |a: SlowDown, b: SlowDown| {
            let sum = u128::from(a.0) * u128::from(self.demand.0)
                + u128::from(b.0) * u128::from(other.demand.0);
            SlowDown(u64::try_from(sum.div_ceil(demand.0.max(1).into())).unwrap_or(u64::MAX))
        };
        Self::new(
            demand,
            mean(self.here, other.here),
            mean(self.there, other.there),
            self.bytes_to_move.saturating_add(other.bytes_to_move),
            self.costs_ns.saturating_add(other.costs_ns),
        )
    }

    /// Whether the other home is faster by at least this much.
    pub(crate) fn is_gain_of(&self, min_ppm: u64) -> bool {
        let min = u128::from(self.there.0) * (u128::from(PPM) + u128::from(min_ppm));
        u128::from(self.here.0) * u128::from(PPM) >= min && self.here > self.there
    }

    /// Whether the savings within the horizon reach the cost.
    pub(crate) fn pays_within(&self, horizon_ns: u64) -> bool {
        let saved_ns = self.saved_ns(horizon_ns);
        saved_ns > 0 && saved_ns >= u128::from(self.costs_ns)
    }

    /// The CPU time left over at the end of the horizon, in ns.
    pub(crate) fn net_ns(&self, horizon_ns: u64) -> u128 {
        self.saved_ns(horizon_ns).saturating_sub(self.costs_ns.into())
    }

    fn saved_ns(&self, horizon_ns: u64) -> u128 {
        u128::from(self.saves_ns_per_s) * u128::from(horizon_ns) / 1_000_000_000
    }

    /// Seconds until the savings reach the cost; None if there are no savings.
    pub fn seconds(&self) -> Option<u64> {
        match self.costs_ns {
            0 => Some(0),
            costs_ns => Some(costs_ns.div_ceil(Some(self.saves_ns_per_s).filter(|&ns| ns > 0)?)),
        }
    }
}

impl fmt::Display for Payback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { demand, here, there, saves_ns_per_s, bytes_to_move, costs_ns } = self;
        write!(
            f,
            "{demand} vCPUs, predicted slow-down {there} instead of {here}: saves {} ms of \
             CPU time a second; {} to move cost {} ms",
            saves_ns_per_s / 1_000_000,
            Bytes(*bytes_to_move),
            costs_ns / 1_000_000
        )?;
        self.seconds().map_or(Ok(()), |seconds| write!(f, ", paid back in {seconds} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// 2 CPUs that would be 1.25 times as fast elsewhere, with so much to pay for it.
    fn payback(costs_ns: u64) -> Payback {
        Payback::new(MilliVcpus(2000), SlowDown(1_250_000), SlowDown(1_000_000), 1 << 30, costs_ns)
    }

    #[test]
    fn saved_time_is_demand_times_the_part_of_the_time_that_is_no_longer_needed() {
        // 2 CPUs x (1 - 1.0 / 1.25) = 2 x 0.2 = 0.4 CPU-seconds a second.
        assert_eq!(payback(0).saves_ns_per_s, 400_000_000);
        // A slower home saves nothing, and so does one at which nothing could run.
        let worse = Payback::new(MilliVcpus(2000), SlowDown(1_000_000), SlowDown(1_500_000), 0, 0);
        assert_eq!((worse.saves_ns_per_s, worse.seconds()), (0, Some(0)));
        let nothing = Payback::new(MilliVcpus(2000), SlowDown(0), SlowDown(0), 0, 0);
        assert_eq!(nothing.saves_ns_per_s, 0);
    }

    #[test]
    fn a_gain_is_measured_against_the_other_home() {
        // 1.25 / 1.0 is a gain of exactly 25 %.
        assert!(payback(0).is_gain_of(250_000));
        assert!(!payback(0).is_gain_of(250_001));
        let equal = Payback::new(MilliVcpus(1), SlowDown(1_000_000), SlowDown(1_000_000), 0, 0);
        assert!(!equal.is_gain_of(0), "an equal home is no gain");
    }

    #[test]
    fn a_move_pays_once_savings_reach_its_cost() {
        // 2 s of CPU time at 0.4 a second: paid back after 5 s.
        let moved = payback(2 * SECOND);
        assert_eq!(moved.seconds(), Some(5));
        assert!(!moved.pays_within(5 * SECOND - 1) && moved.pays_within(5 * SECOND));
        // After 9 s 3.6 s are saved, and 1.6 s are left over.
        assert_eq!(moved.net_ns(9 * SECOND), 1_600_000_000);
        assert_eq!(moved.net_ns(SECOND), 0);
        assert!(!payback(0).pays_within(0), "without a horizon nothing is saved");
    }

    #[test]
    fn two_changes_together_weigh_slow_downs_by_demand() {
        // 1 CPU from 1.5 to 1.0 and 3 CPUs from 1.0 to 1.1: here (1 x 1.5 + 3 x 1.0) / 4 = 1.125,
        // there 1.075.
        let one = Payback::new(MilliVcpus(1000), SlowDown(1_500_000), SlowDown(1_000_000), 5, 70);
        let other = Payback::new(MilliVcpus(3000), SlowDown(1_000_000), SlowDown(1_100_000), 6, 8);
        let both = one.and(other);
        assert_eq!((both.here, both.there), (SlowDown(1_125_000), SlowDown(1_075_000)));
        assert_eq!((both.demand, both.bytes_to_move, both.costs_ns), (MilliVcpus(4000), 11, 78));
        // 4 CPUs x (1 - 1.075 / 1.125) = 0.1778 CPU-seconds a second.
        assert_eq!(both.saves_ns_per_s, 177_777_777);
        assert_eq!(one.and(other).here, other.and(one).here);
    }

    #[test]
    fn thousandths_of_a_cpu_read_as_cpus() {
        assert_eq!(
            [0, 5, 19, 1234, 20_000].map(|m| MilliVcpus(m).to_string()),
            ["0.00", "0.00", "0.01", "1.23", "20.00"]
        );
    }
}
