//! What the control loop goes by.

use crate::{CostModel, DEFAULT_RATE_BYTES_PER_S, view::PPM};
use serde::{Deserialize, Serialize};

/// The constants of the control loop. Intervals are counted, so a test that scales the interval scales the rest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tuning {
    /// The assumptions behind predicted slow-downs.
    pub model: CostModel,
    /// How long an interval is meant to be: a plan is for one of that length.
    pub interval_ns: u64,
    /// A domain that wants less than this is idle.
    pub idle_milli_vcpus: u64,
    /// An idle domain is looked at again after this many intervals at the latest.
    pub idle_look_intervals: u64,
    /// More of a domain's time off its home, or waiting for a CPU, than this is trouble.
    pub trouble_ppm: u64,
    /// For so many intervals trouble has to last before a home is changed.
    pub patience_intervals: u64,
    /// A domain that is not in trouble is weighed against other homes this often. The third time that one is better it
    /// moves.
    pub weigh_intervals: u64,
    /// A domain stays at a new home at least so long; twice as long after each move that soon follows another.
    pub minimum_stay_intervals: u64,
    /// Within so many intervals of a move there is another only if the new home has become fuller than it was then.
    pub steady_intervals: u64,
    /// By so much a home must be faster for a domain in trouble, and by twice as much to get it at once, or without trouble.
    pub minimum_gain_ppm: u64,
    /// Within so many intervals a move has to have saved what it cost, and within no more than the domain has lived so far.
    pub horizon_intervals: u64,
    /// What moving 1 MiB would cost between nodes as near as a node is to itself, in ns of CPU time; over longer ways it
    /// is as much more as their latency is longer. A CPU moves 1 to 2 GiB a second, and whoever uses the same memory
    /// channels loses some time, too.
    pub move_cost_ns_per_mib: u64,
    /// Pages move from one node to another not faster than this.
    pub rate_bytes_per_s: u64,
    /// More of an interval in which some task waited for memory (PSI) than this is pressure.
    pub memory_stall_ppm: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            model: CostModel::default(),
            interval_ns: 2_000_000_000,
            idle_milli_vcpus: 20,
            idle_look_intervals: 8,
            trouble_ppm: 100_000,
            patience_intervals: 5,
            weigh_intervals: 10,
            minimum_stay_intervals: 5,
            steady_intervals: 150,
            minimum_gain_ppm: 50_000,
            horizon_intervals: 150,
            move_cost_ns_per_mib: 1_000_000,
            rate_bytes_per_s: DEFAULT_RATE_BYTES_PER_S,
            memory_stall_ppm: 100_000,
        }
    }
}

impl Tuning {
    /// What pages may move from one node to another in an interval; something at any rate, however short the interval.
    pub(super) fn budget_bytes(&self, pace_ppm: u64) -> u64 {
        let full = (u128::from(self.rate_bytes_per_s) * u128::from(self.interval_ns))
            .div_ceil(1_000_000_000);
        u64::try_from(full.saturating_mul(u128::from(pace_ppm)).div_ceil(u128::from(PPM)))
            .unwrap_or(u64::MAX)
    }

    /// The rate at which pages move at this pace.
    pub(super) fn rate_at(&self, pace_ppm: u64) -> u64 {
        (u128::from(self.rate_bytes_per_s) * u128::from(pace_ppm.min(PPM)))
            .div_ceil(u128::from(PPM)) as u64
    }

    /// What moving so many bytes over such a latency costs, in ns of CPU time.
    pub(super) fn move_cost_ns(&self, bytes: u64, latency_ppm: u32) -> u64 {
        let local = u128::from(bytes) * u128::from(self.move_cost_ns_per_mib) / (1 << 20);
        u64::try_from(local.saturating_mul(latency_ppm.into()) / u128::from(PPM))
            .unwrap_or(u64::MAX)
    }

    /// The horizon, in ns.
    pub(super) fn horizon_ns(&self) -> u64 {
        self.horizon_intervals.saturating_mul(self.interval_ns)
    }

    /// The horizon of a domain that has lived so long: it is expected to live as long again.
    pub(super) fn horizon_at_age_ns(&self, age_intervals: u64) -> u64 {
        self.horizon_intervals.min(age_intervals).saturating_mul(self.interval_ns)
    }
}
