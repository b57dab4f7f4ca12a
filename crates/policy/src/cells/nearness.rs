//! The cost of the distances between the homes of cells.
//!
//! A guest that knows its cells uses the memory of near cells more than that of far ones: its
//! kernel falls back to the nearest cell first. So a share of each vCPU's memory accesses
//! ([`CostModel::cell_share`]) goes to other cells, divided among them in inverse proportion to the
//! guest's distances, and pays the host's latencies. Cells that are near in the guest weigh most,
//! so they become near on the host.

use super::home::Home;
use crate::{
    CellId, CellsRequest, CostModel,
    cost::{to_ppm, to_u64},
    index::{CellIndex, IndexVec},
    view::{PPM, UNREACHABLE, View},
};
use nearside_topology::Distances;
use std::rc::Rc;

/// The weights of all ordered pairs of cells.
#[derive(Debug)]
pub(super) struct Nearness {
    // From a cell (row) to another: 10 / distance in millionths; 0 where it is out of reach.
    weights_ppm: IndexVec<CellIndex, IndexVec<CellIndex, u64>>,
    // The sum of each row.
    sums_ppm: IndexVec<CellIndex, u64>,
    // The share of a vCPU's time that it waits for the memory of other cells, were it local.
    share_ppm: u64,
}

impl Nearness {
    pub(super) fn new(request: &CellsRequest, model: &CostModel) -> Self {
        let cells: Vec<CellId> = (0..request.cells.len() as u32).map(CellId).collect();
        let weight = |from, to| match request.distance(from, to) {
            _ if from == to => 0,
            Distances::UNREACHABLE => 0,
            distance => (u64::from(Distances::LOCAL) * PPM).div_ceil(distance.into()),
        };
        let weights_ppm: IndexVec<_, IndexVec<_, u64>> =
            cells.iter().map(|&from| cells.iter().map(|&to| weight(from, to)).collect()).collect();
        let sums_ppm = weights_ppm.iter().map(|row| row.iter().sum()).collect();
        let share_ppm = to_ppm(model.memory_share) * to_ppm(model.cell_share);
        Self { weights_ppm, sums_ppm, share_ppm: share_ppm.div_ceil(PPM) }
    }

    /// The slow-down that the distances between these homes add for a virtual machine of so many
    /// vCPUs, in millionths. Cells that have no home yet count nothing.
    pub(super) fn between_ppm(&self, homes: &[Rc<Home>], vcpus: u64, view: &View) -> u64 {
        let mut sum = 0_u128;
        for from in homes.iter().filter(|home| home.vcpus() > 0) {
            let row = &self.weights_ppm[from.cell];
            let others = homes.iter().filter(|to| row[to.cell] > 0);
            let excess = others.map(|to| {
                let excess_ppm = latency_ppm(from, to, view) - u128::from(PPM);
                u128::from(row[to.cell]) * excess_ppm
            });
            let excess: u128 = excess.sum();
            if excess > 0 {
                let mean_ppm = excess.div_ceil(u128::from(self.sums_ppm[from.cell]));
                sum += u128::from(from.vcpus()) * mean_ppm;
            }
        }
        let mean_ppm = sum.div_ceil(u128::from(vcpus));
        to_u64((u128::from(self.share_ppm) * mean_ppm).div_ceil(u128::from(PPM)))
    }
}

/// The mean latency from the vCPUs of one home to the pages of another.
fn latency_ppm(from: &Home, to: &Home, view: &View) -> u128 {
    let latency = |a, b| match view.latencies_ppm(a)[b] {
        UNREACHABLE => u128::from(Distances::UNREACHABLE) * u128::from(PPM) / 10,
        ppm => u128::from(ppm),
    };
    if let (&[(a, _)], &[(b, _)]) = (&from.vcpus[..], &to.pages[..]) {
        return latency(a, b);
    }
    let (mut sum, mut all) = (0, 0);
    for &(a, vcpus) in &from.vcpus {
        for &(b, pages) in &to.pages {
            let weight = u128::from(vcpus) * u128::from(pages);
            sum += weight * latency(a, b);
            all += weight;
        }
    }
    sum.div_ceil(all.max(1))
}
