//! The constants of the homes controller.

use crate::{CostModel, DEFAULT_RATE_BYTES_PER_S};
use serde::{Deserialize, Serialize};

/// The constants of the homes controller. Times are counted in intervals, so a test that scales the
/// interval scales the rest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tuning {
    /// The assumptions behind predicted slow-downs.
    pub model: CostModel,
    /// The intended length of an interval: a plan is for one of that length.
    pub interval_ns: u64,
    /// A part that demands less than this is idle.
    pub idle_milli_vcpus: u64,
    /// The maximum number of intervals between two samples of an idle part.
    pub idle_sample_intervals: u64,
    /// An interval is contended if more of a part's time than this is spent off its home, or
    /// waiting for a CPU.
    pub contention_ppm: u64,
    /// The contention threshold: so many contended intervals before a home is changed.
    pub threshold_intervals: u64,
    /// The intervals between two reviews of a part without contention. It moves at the third review
    /// in a row that finds a better home.
    pub review_intervals: u64,
    /// The cooldown: the minimum time at a new home. It doubles with each move that soon follows
    /// another.
    pub cooldown_intervals: u64,
    /// Within so many intervals of a move there is another only if the load on the new home has
    /// grown since.
    pub steady_intervals: u64,
    /// The minimum gain of a part under contention. A move at once, or without contention, takes
    /// twice as much.
    pub min_gain_ppm: u64,
    /// The horizon: a move must save what it costs within so many intervals, and within the age of
    /// the part.
    pub horizon_intervals: u64,
    /// CPU time that moving 1 MiB takes between nodes as near as a node is to itself, in ns. It
    /// grows with the latency between them. A CPU moves 1 to 2 GiB a second, and users of the same
    /// memory channels lose some time, too.
    pub move_cost_ns_per_mib: u64,
    /// The maximum rate of page moves from one node to another.
    pub rate_bytes_per_s: u64,
    /// A host is under memory pressure if some task waited for memory (PSI) for more of an interval
    /// than this.
    pub memory_stall_ppm: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            model: CostModel::default(),
            interval_ns: 2_000_000_000,
            idle_milli_vcpus: 20,
            idle_sample_intervals: 8,
            contention_ppm: 100_000,
            threshold_intervals: 5,
            review_intervals: 10,
            cooldown_intervals: 5,
            steady_intervals: 150,
            min_gain_ppm: 50_000,
            horizon_intervals: 150,
            move_cost_ns_per_mib: 1_000_000,
            rate_bytes_per_s: DEFAULT_RATE_BYTES_PER_S,
            memory_stall_ppm: 100_000,
        }
    }
}
