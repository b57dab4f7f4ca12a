//! The cost of a set of nodes as a home: one predicted slow-down.
//!
//! # Problem
//! A home trades CPUs against memory. On few nodes memory is near, but cores may be short. On many
//! nodes cores suffice, but each vCPU finds some memory on another node. Distances, SMT siblings,
//! bandwidth and devices matter as well. To compare any two homes, all of them have to become one
//! number that an operator can check.
//!
//! # Approach
//! `layout` predicts where the domain's vCPUs and pages come to lie. From that follow three
//! factors, each 1 for a domain alone on idle cores with everything local, and their product is the
//! predicted slow-down:
//!
//! - **cpu**: a node with `r` busy vCPUs on `c` cores with `t` threads gives the throughput of
//!   min(r, c) cores, plus [`CostModel::smt_gain`] of a core for each of min(r, t) - c siblings in
//!   use. The domain alone would take vCPUs / throughput times as long. A share of that throughput
//!   is taken from residents, so the machine does not gain it. The factor grows by that share, and
//!   a little more if many vCPUs wait already ([`CostModel::crowding`]). Otherwise each domain on
//!   a busy machine would spread over the CPUs of others: none would be faster in the end, and all
//!   would be remote.
//! - **memory**: every vCPU uses all pages alike, so the mean latency is the sum over pairs of
//!   nodes of (share of vCPUs on one) x (share of pages on the other) x (relative latency). The
//!   latency of a node whose bandwidth is exceeded by what residents and this domain are expected
//!   to use grows by that ratio. A vCPU waits [`CostModel::memory_share`] of its time for local
//!   memory: the factor is 1 - share + share x latency.
//! - **devices**: 1 + [`CostModel::device_share`] x (mean latency between vCPUs and the devices
//!   asked for - 1).
//!
//! # Units
//! Everything is a whole number of millionths (ppm) and rounded up: the order of candidates does
//! not depend on the order of additions, the compiler or the processor.
//!
//! # Properties
//! - A domain that fits idle cores of one node with all its pages costs exactly 1,000,000.
//! - More residents, longer distances or less bandwidth never make the same layout cheaper.
//!
//! Rationale and assumptions: docs/adr/0002-placement-cost.md.

use crate::{
    CostModel, MemoryPolicy, PageSize, Parts, SlowDown,
    index::{IndexVec, NodeIndex},
    layout::{Layout, TooSmall},
    view::{NodeView, PPM, UNREACHABLE, View},
};
use nearside_topology::Distances;
use std::cmp::Reverse;

/// A request in the units of costing.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// 0 for a cell of memory alone.
    pub(crate) vcpus: u64,
    /// Pages of the size asked for.
    pub(crate) pages: u64,
    pub(crate) policy: MemoryPolicy,
    /// Whether its pages stay on the nodes of its home.
    pub(crate) stays_home: bool,
    pub(crate) page_size: PageSize,
    /// The nodes of devices.
    pub(crate) near: Vec<NodeIndex>,
}

/// The order of homes, best first: least slow-down, then fewest vCPUs a core, then most free pages
/// afterwards.
///
/// The second figure matters if cores are idle: a domain that shares a node takes cache and
/// bandwidth from the others, and the slow-down knows of these only the bandwidth in firmware
/// tables.
pub(crate) type Score = (SlowDown, u64, Reverse<u64>);

/// The consequences of a set of nodes as a home.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prediction {
    pub(crate) slow_down: SlowDown,
    pub(crate) parts: Parts,
    /// vCPUs a core where the domain's own run, as in [`crate::Candidate`].
    pub(crate) vcpus_per_core_ppm: u64,
    /// Pages that come from outside the set.
    pub(crate) spilled_pages: u64,
    /// Pages that would remain available on the set.
    pub(crate) free_after_pages: u64,
    /// Whether a node of the set gets neither a vCPU nor a page.
    pub(crate) has_idle_node: bool,
}

impl Prediction {
    pub(crate) fn score(&self) -> Score {
        (self.slow_down, self.vcpus_per_core_ppm, Reverse(self.free_after_pages))
    }
}

/// The reason why a set can be no home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    NoCpus,
    TooSmall(TooSmall),
    /// Waiting for CPUs alone is slower than the bound.
    TooSlow,
}

/// Predicts slow-downs of one request on one machine. Keeps its buffers, so that an evaluation
/// allocates little.
#[derive(Debug)]
pub(crate) struct Costing<'a> {
    pub(crate) view: &'a View,
    pub(crate) ask: &'a Ask,
    model: &'a CostModel,
    layout: Layout,
    // Sum of the latencies to the devices asked for, by node, in millionths.
    device_latency_ppm: IndexVec<NodeIndex, u64>,
    // The sum of the latencies of all vCPUs to each node with pages, in millionths.
    latency_of_vcpus_ppm: IndexVec<NodeIndex, u64>,
}

impl<'a> Costing<'a> {
    pub(crate) fn new(view: &'a View, ask: &'a Ask, model: &'a CostModel) -> Self {
        // DMA also reaches nodes that the SLIT calls unreachable: they count as the longest
        // distance.
        let farthest_ppm = u64::from(Distances::UNREACHABLE) * PPM / 10;
        let latency = |ppm: u32| if ppm == UNREACHABLE { farthest_ppm } else { u64::from(ppm) };
        let to_devices = |from| -> u64 {
            ask.near.iter().map(|&to| latency(view.latencies_ppm(from)[to])).sum()
        };
        Self {
            view,
            ask,
            model,
            layout: Layout::new(view),
            device_latency_ppm: view.nodes.indices().map(to_devices).collect(),
            latency_of_vcpus_ppm: IndexVec::filled(0, view.nodes.len()),
        }
    }

    /// The consequences of `set` (rising) as a home, if its slow-down can be at most `bound`. All
    /// factors are at least 1, so a set whose first factor exceeds the bound is skipped.
    pub(crate) fn predict(
        &mut self,
        set: &[NodeIndex],
        bound: SlowDown,
    ) -> Result<Prediction, Unfit> {
        let runs = self.ask.vcpus > 0;
        if runs && set.iter().all(|&i| self.view.nodes[i].cores == 0) {
            return Err(Unfit::NoCpus);
        }
        self.layout.spread_vcpus(self.view, set, self.ask.vcpus);
        // Nothing waits in a cell of memory alone, so nothing is slow there.
        let cpu = SlowDown(if runs { self.cpu_ppm() } else { PPM });
        if cpu > bound {
            return Err(Unfit::TooSlow);
        }
        self.layout
            .fill_memory(self.view, set, self.ask.pages, self.ask.policy, self.ask.stays_home)
            .map_err(Unfit::TooSmall)?;
        let parts = Parts {
            cpu,
            memory: SlowDown(if runs { self.memory_ppm() } else { PPM }),
            devices: SlowDown(if runs { self.devices_ppm() } else { PPM }),
        };
        let in_set = set.iter().fold(0, |sum, &i| sum + self.layout.pages_on(i));
        let available = set
            .iter()
            .fold(0, |sum: u64, &i| sum.saturating_add(self.view.nodes[i].available_pages));
        Ok(Prediction {
            slow_down: parts.product(),
            parts,
            vcpus_per_core_ppm: if runs { self.vcpus_per_core_ppm() } else { 0 },
            spilled_pages: self.ask.pages - in_set,
            free_after_pages: (available - in_set).min(self.view.available_pages - self.ask.pages),
            has_idle_node: set.iter().any(|&i| !self.layout.uses(i)),
        })
    }

    /// The vCPUs and pages of the set that was evaluated last, by node.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn cpu_ppm(&self) -> u64 {
        let ppm = u128::from(PPM);
        let (mut alone_ppm, mut gained_ppm, mut waiting_ppm) = (0, 0, 0);
        for (i, vcpus) in self.layout.vcpus() {
            let node = &self.view.nodes[i];
            let throughput =
                |running| u128::from(throughput_ppm(node, running, self.model.smt_gain));
            let running = node.busy + vcpus;
            alone_ppm += throughput(vcpus);
            gained_ppm += throughput(running) - throughput(node.busy);
            let slowed_ppm = (u128::from(running) * ppm * ppm).div_ceil(throughput(running));
            waiting_ppm += u128::from(vcpus) * slowed_ppm;
        }
        let vcpus = u128::from(self.ask.vcpus);
        let own_ppm = (vcpus * ppm * ppm).div_ceil(alone_ppm);
        let taken_ppm = ((alone_ppm - gained_ppm) * ppm).div_ceil(alone_ppm);
        if taken_ppm == 0 {
            return to_u64(own_ppm);
        }
        let waiting_ppm = waiting_ppm.div_ceil(vcpus) - ppm;
        let crowding_ppm = (waiting_ppm * u128::from(to_ppm(self.model.crowding))).div_ceil(ppm);
        let lost_ppm = (taken_ppm * (ppm + crowding_ppm)).div_ceil(ppm);
        to_u64((own_ppm * (ppm + lost_ppm)).div_ceil(ppm))
    }

    fn vcpus_per_core_ppm(&self) -> u64 {
        let loads = self.layout.vcpus().map(|(i, vcpus)| {
            let node = &self.view.nodes[i];
            let load_ppm = ((node.busy + vcpus) * PPM).div_ceil(node.cores);
            u128::from(vcpus) * u128::from(load_ppm)
        });
        to_u64(loads.sum::<u128>().div_ceil(u128::from(self.ask.vcpus)))
    }

    fn memory_ppm(&mut self) -> u64 {
        let layout = &self.layout;
        layout.pages().for_each(|(to, _)| self.latency_of_vcpus_ppm[to] = 0);
        for (from, vcpus) in layout.vcpus() {
            let latencies = self.view.latencies_ppm(from);
            for (to, _) in layout.pages() {
                self.latency_of_vcpus_ppm[to] += vcpus * u64::from(latencies[to]);
            }
        }
        let waits = layout.pages().map(|(to, pages)| {
            let unloaded = u128::from(self.latency_of_vcpus_ppm[to]);
            let load_ppm = self.load_ppm(to);
            // Most nodes are not overloaded, and a wide division costs more than all the rest.
            let loaded = if load_ppm == PPM {
                unloaded
            } else {
                (unloaded * u128::from(load_ppm)).div_ceil(u128::from(PPM))
            };
            u128::from(pages) * loaded
        });
        let latency_ppm =
            waits.sum::<u128>().div_ceil(u128::from(self.ask.vcpus) * u128::from(self.ask.pages));
        let share_ppm = to_ppm(self.model.memory_share);
        PPM - share_ppm + to_u64((u128::from(share_ppm) * latency_ppm).div_ceil(u128::from(PPM)))
    }

    // The factor by which a node's bandwidth is exceeded; 1,000,000 if it is not, or is unknown.
    fn load_ppm(&self, i: NodeIndex) -> u64 {
        let node = &self.view.nodes[i];
        let Some(bandwidth_kb_s) = node.bandwidth_kb_s else { return PPM };
        let own_kb_s =
            self.model.demand_kb_s(self.ask.vcpus, self.layout.pages_on(i), self.ask.pages);
        let demand_kb_s = u128::from(node.demand_kb_s.saturating_add(own_kb_s));
        let load_ppm = (demand_kb_s * u128::from(PPM)).div_ceil(u128::from(bandwidth_kb_s));
        load_ppm.clamp(u128::from(PPM), u128::from(u32::MAX)) as u64
    }

    fn devices_ppm(&self) -> u64 {
        if self.ask.near.is_empty() {
            return PPM;
        }
        let vcpus = self.layout.vcpus();
        let latency =
            vcpus.map(|(i, vcpus)| u128::from(vcpus) * u128::from(self.device_latency_ppm[i]));
        let mean_ppm = latency
            .sum::<u128>()
            .div_ceil(u128::from(self.ask.vcpus) * self.ask.near.len() as u128);
        let share_ppm = u128::from(to_ppm(self.model.device_share));
        PPM + to_u64((share_ppm * (mean_ppm - u128::from(PPM))).div_ceil(u128::from(PPM)))
    }
}

/// The throughput of a node with so many busy vCPUs, in millionths of a core.
fn throughput_ppm(node: &NodeView, running: u64, smt_gain: f64) -> u64 {
    let siblings = running.min(node.threads).saturating_sub(node.cores);
    running.min(node.cores) * PPM + siblings * to_ppm(smt_gain)
}

impl Parts {
    /// The product of the factors, rounded up.
    pub(crate) fn product(&self) -> SlowDown {
        let cpu_and_memory = u128::from(self.cpu.0) * u128::from(self.memory.0);
        let all = cpu_and_memory.saturating_mul(u128::from(self.devices.0));
        SlowDown(to_u64(all.div_ceil(u128::from(PPM) * u128::from(PPM))))
    }
}

// A share in millionths.
pub(crate) fn to_ppm(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * PPM as f64).round() as u64
}

pub(crate) fn to_u64(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
