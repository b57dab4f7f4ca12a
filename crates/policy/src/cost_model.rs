//! The assumptions of predictions (docs/adr/0002-placement-cost.md).

use serde::{Deserialize, Serialize};

/// The assumptions of predictions about a domain without measured figures.
///
/// Shares are limited to the range from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// The gain of a second busy thread on a core, as a share of a core's throughput.
    pub smt_gain: f64,
    /// The cost of work taken from residents beyond its loss, for each further vCPU that a core has
    /// to serve.
    pub crowding: f64,
    /// Share of its time that a vCPU waits for memory when all of it is local and unloaded.
    pub memory_share: f64,
    /// Share of its time that a vCPU waits for the devices asked for when they are local.
    pub device_share: f64,
    /// Share of its memory accesses that a vCPU of a cell makes in the other cells of its virtual
    /// machine.
    #[serde(default = "default_cell_share")]
    pub cell_share: f64,
    /// Memory bandwidth that a busy vCPU uses, in MB/s.
    pub vcpu_bandwidth_mb_s: f64,
}

// Records of older versions have none.
fn default_cell_share() -> f64 {
    0.1
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            smt_gain: 0.25,
            crowding: 0.05,
            memory_share: 0.4,
            device_share: 0.1,
            cell_share: default_cell_share(),
            vcpu_bandwidth_mb_s: 2000.0,
        }
    }
}

impl CostModel {
    /// The bandwidth that `vcpus` are expected to use of a node that holds `part` of their `whole`
    /// memory, in kB/s.
    pub(crate) fn demand_kb_s(&self, vcpus: u64, part: u64, whole: u64) -> u64 {
        let vcpu_kb_s = (self.vcpu_bandwidth_mb_s * 1000.0).round() as u64;
        let all_kb_s = u128::from(vcpus.saturating_mul(vcpu_kb_s));
        let drawn_kb_s = (all_kb_s * u128::from(part)).div_ceil(u128::from(whole).max(1));
        u64::try_from(drawn_kb_s).unwrap_or(u64::MAX)
    }
}
