//! The cost of a set of nodes as a home: one predicted slow-down.

use serde::{Deserialize, Serialize};

/// What the prediction assumes about a domain of which nothing is known yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// What a second busy thread adds to a core, as a share of a core's throughput.
    pub smt_gain: f64,
    /// Share of its time that a vCPU waits for memory when all of it is local and unloaded.
    pub memory_share: f64,
    /// Share of its time that a vCPU waits for the devices asked for when they are local.
    pub device_share: f64,
    /// Memory bandwidth that a busy vCPU uses, in MB/s.
    pub vcpu_bandwidth_mb_s: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self { smt_gain: 0.25, memory_share: 0.4, device_share: 0.1, vcpu_bandwidth_mb_s: 2000.0 }
    }
}
