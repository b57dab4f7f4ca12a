//! Placement of cells as its definition reads (docs/adr/0012-placing-cells.md), as plainly as
//! possible: every arrangement, each cell beside the others' claims as residents.

use crate::naive::{Home, MILLION, Naive, node_set};
use nearside_policy::{
    CellId, CellsRequest, Claim, CostModel, Observation, PageSize, PartState, Request,
};
use nearside_topology::NodeId;
use std::cmp::Reverse;

/// An arrangement in the terms of the definition.
#[derive(Debug, Clone)]
pub(crate) struct Cells {
    pub(crate) slow_down: u64,
    pub(crate) between: u64,
    pub(crate) homes: Vec<Home>,
    vcpus_per_core: u64,
    available: u64,
}

/// The best arrangement, and whether cells share nodes in it; None if there is none.
pub(crate) fn best(
    request: &CellsRequest,
    seen: &Observation,
    model: &CostModel,
) -> Option<(Cells, bool)> {
    let anchors: Vec<NodeId> = seen
        .topology
        .nodes
        .iter()
        .map(|node| node.id)
        .filter(|&id| seen.topology.cores_of(id) > 0 && is_allowed(request, id))
        .collect();
    for sharing in [false, true] {
        let all = assignments(request.cells.len(), &anchors);
        let distinct = |at: &[NodeId]| sharing || (1..at.len()).all(|i| !at[..i].contains(&at[i]));
        let fitting = all
            .iter()
            .filter(|at| distinct(at))
            .filter_map(|at| arrange(request, seen, model, at, sharing));
        let rank = |it: &Cells| {
            let nodes: Vec<_> = it.homes.iter().map(|home| home.nodes.clone()).collect();
            (it.slow_down, it.vcpus_per_core, Reverse(it.available), nodes)
        };
        if let Some(best) = fitting.min_by_key(rank) {
            return Some((best, sharing));
        }
    }
    None
}

fn is_allowed(request: &CellsRequest, node: NodeId) -> bool {
    request.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
}

fn assignments(cells: usize, anchors: &[NodeId]) -> Vec<Vec<NodeId>> {
    (0..cells).fold(vec![Vec::new()], |shorter, _| {
        let longer = shorter.iter().flat_map(|at: &Vec<NodeId>| {
            anchors.iter().map(move |&node| [&at[..], &[node]].concat())
        });
        longer.collect()
    })
}

fn part(request: &CellsRequest, cell: usize) -> Request {
    let cell = &request.cells[cell];
    Request {
        vcpus: cell.vcpus,
        memory_bytes: cell.memory_bytes,
        page_size: cell.page_size,
        policy: request.policy,
        nodes: None,
        near: cell.near.clone(),
    }
}

fn page_bytes(page_size: PageSize) -> u64 {
    match page_size {
        PageSize::Base => 4096,
        PageSize::Huge(bytes) => bytes,
    }
}

fn arrange(
    request: &CellsRequest,
    seen: &Observation,
    model: &CostModel,
    anchors: &[NodeId],
    sharing: bool,
) -> Option<Cells> {
    let mut order: Vec<usize> = (0..anchors.len()).collect();
    order.sort_by_key(|&cell| {
        let asked = &request.cells[cell];
        let bytes = asked.memory_bytes.next_multiple_of(page_bytes(asked.page_size));
        (Reverse(bytes), Reverse(asked.vcpus), anchors[cell], cell)
    });
    let mut seen = seen.clone();
    let mut homes: Vec<Option<Home>> = vec![None; anchors.len()];
    for cell in order {
        let asked = part(request, cell);
        let mut naive = Naive::new(&asked, &seen, model);
        naive.stays_home = true;
        let cells_vcpus = |n: NodeId| -> u64 {
            let homes = homes.iter().flatten();
            homes.map(|home| home.vcpus.get(&n).copied().unwrap_or(0)).sum()
        };
        let may_join = |n: NodeId| {
            let is_free = !anchors.contains(&n)
                && !homes.iter().flatten().any(|home| home.nodes.contains(&n));
            is_allowed(request, n) && (sharing || is_free)
        };
        let anchor = anchors[cell];
        let mut nearest: Vec<NodeId> = naive.nodes.clone();
        nearest.retain(|&n| n != anchor && naive.latency[&(anchor, n)].is_some() && may_join(n));
        nearest.sort_by_key(|&n| (naive.latency[&(anchor, n)], n));
        let mut set = vec![anchor];
        let cpus = |n: NodeId| (naive.threads[&n] as u64).saturating_sub(cells_vcpus(n));
        let missing = |set: &[NodeId]| {
            let cpus: u64 = set.iter().map(|&n| cpus(n)).sum();
            let pages: u64 = set.iter().map(|&n| naive.available[&n]).sum();
            (u64::from(asked.vcpus).saturating_sub(cpus), naive.pages.saturating_sub(pages))
        };
        for n in nearest {
            let (vcpus, pages) = missing(&set);
            if (vcpus > 0 && cpus(n) > 0) || (pages > 0 && naive.available[&n] > 0) {
                set.push(n);
            }
        }
        set.sort_unstable();
        let mut home = naive.home(&set)?;
        set.retain(|n| home.vcpus.contains_key(n) || home.bytes.contains_key(n));
        home.nodes = set;
        let claim = Claim {
            bytes: home.bytes.clone(),
            vcpus: home.vcpus.clone(),
            page_size: asked.page_size,
        };
        seen.parts.push(PartState { claim: Some(claim), ..PartState::default() });
        homes[cell] = Some(home);
    }
    Some(whole(request, &seen, model, homes.into_iter().flatten().collect()))
}

// `seen` has the claims of all cells.
fn whole(request: &CellsRequest, seen: &Observation, model: &CostModel, homes: Vec<Home>) -> Cells {
    let vcpus = |cell: usize| u128::from(request.cells[cell].vcpus);
    let all: u128 = (0..homes.len()).map(vcpus).sum();
    let mean = |of: &dyn Fn(usize) -> u128| {
        (0..homes.len()).map(|cell| vcpus(cell) * of(cell)).sum::<u128>().div_ceil(all)
    };
    let any = part(request, 0);
    let latency = Naive::new(&any, seen, model).latency;
    let between = |from: &Home, to: &Home| {
        let (mut sum, mut weight) = (0, 0);
        for (a, &vcpus) in &from.vcpus {
            for (b, &bytes) in &to.bytes {
                let share = u128::from(vcpus) * u128::from(bytes);
                sum += share * latency[&(*a, *b)].unwrap_or(25_500_000);
                weight += share;
            }
        }
        sum.div_ceil(weight)
    };
    let excess = |from: usize| {
        let (mut sum, mut weights) = (0, 0);
        for to in (0..homes.len()).filter(|&to| to != from) {
            let distance = request.distance(CellId(from as u32), CellId(to as u32));
            let weight = match distance {
                255 => 0,
                distance => (10 * MILLION).div_ceil(u128::from(distance)),
            };
            sum += weight * (between(&homes[from], &homes[to]) - MILLION);
            weights += weight;
        }
        if weights == 0 { 0 } else { sum.div_ceil(weights) }
    };
    let millionths = |share: f64| (share * 1e6).round() as u128;
    let share = (millionths(model.memory_share) * millionths(model.cell_share)).div_ceil(MILLION);
    let between = (share * mean(&excess)).div_ceil(MILLION);
    let slow_down = mean(&|cell| u128::from(homes[cell].slow_down)) + between;
    let vcpus_per_core = mean(&|cell| u128::from(homes[cell].vcpus_per_core_ppm)) as u64;
    let available = |cell: usize| -> u64 {
        let size = request.cells[cell].page_size;
        let pages = |n: NodeId| seen.available_bytes(n, size) / page_bytes(size);
        homes[cell].nodes.iter().map(|&n| pages(n) * page_bytes(size)).sum()
    };
    let available = (0..homes.len()).map(available).sum();
    let (slow_down, between) = (slow_down as u64, between as u64);
    Cells { slow_down, between, homes, vcpus_per_core, available }
}

impl Cells {
    /// The nodes of several homes.
    pub(crate) fn shared(&self) -> nearside_topology::NodeSet {
        let nodes: Vec<NodeId> = self.homes.iter().flat_map(|home| home.nodes.clone()).collect();
        let several = |node: &NodeId| nodes.iter().filter(|other| *other == node).count() > 1;
        node_set(&nodes.iter().copied().filter(several).collect::<Vec<_>>())
    }
}
