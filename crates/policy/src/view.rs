//! The machine as costing needs it: indexed by 0, 1, 2 ... instead of node numbers, and built once for a request.

use crate::{CostModel, Observation, PageSize};
use nearside_topology::{Cpu, CpuId, Distance, Distances, NodeId, Topology};
use std::cell::OnceCell;

/// One million: fractions and factors are whole millionths, so that every build computes the same figures.
pub(crate) const PPM: u64 = 1_000_000;

/// The latency of memory that cannot be reached.
pub(crate) const UNREACHABLE: u32 = u32::MAX;

// The longest latency that still counts as one: a thousand times local memory. It bounds the products in `cost`.
const LONGEST_PPM: u64 = 1 << 30;

// More vCPUs on a node than any machine runs; it bounds the products in `layout`.
const MOST_BUSY: u64 = 1 << 24;

/// A machine seen by one request.
#[derive(Debug)]
pub(crate) struct View {
    /// The nodes in rising order of their numbers; everything else here is indexed alike.
    pub(crate) nodes: Vec<NodeView>,
    /// Pages of the request's size that can still be promised on the whole machine: less than the sum over its nodes
    /// where somebody has reserved huge pages, for these may come from any node.
    pub(crate) unclaimed_pages: u64,
    /// Whether every node reaches the memory of every other.
    pub(crate) all_reachable: bool,
    // latency_ppm[from * nodes.len() + to]
    latency_ppm: Vec<u32>,
    // By node, all nodes from the nearest to the farthest: sorted when first asked for.
    nearest: Vec<OnceCell<Vec<u32>>>,
}

/// A node seen by one request.
#[derive(Debug, Clone)]
pub(crate) struct NodeView {
    pub(crate) id: NodeId,
    /// Cores with at least one online thread.
    pub(crate) cores: u64,
    /// Online threads: SMT siblings count.
    pub(crate) threads: u64,
    /// vCPUs promised to residents.
    pub(crate) busy: u64,
    /// Whether the kernel can take pages from it at all.
    pub(crate) has_memory: bool,
    /// Pages of the request's size that can still be promised.
    pub(crate) unclaimed_pages: u64,
    /// Memory bandwidth in kB/s.
    pub(crate) bandwidth_kb_s: Option<u64>,
    /// What residents are expected to use of it, in kB/s.
    pub(crate) demand_kb_s: u64,
}

impl NodeView {
    /// Cores on which no resident runs.
    pub(crate) fn idle_cores(&self) -> u64 {
        self.cores.saturating_sub(self.busy)
    }
}

impl View {
    pub(crate) fn new(
        observation: &Observation,
        page_size: PageSize,
        page_bytes: u64,
        model: &CostModel,
    ) -> Self {
        let topology = &observation.topology;
        let unclaimed = observation.unclaimed(page_size);
        let mut nodes: Vec<NodeView> = topology
            .nodes
            .iter()
            .map(|node| NodeView {
                id: node.id,
                cores: 0,
                threads: 0,
                busy: 0,
                has_memory: node.memory_bytes > 0,
                unclaimed_pages: unclaimed.on(node.id) / page_bytes,
                bandwidth_kb_s: None,
                demand_kb_s: 0,
            })
            .collect();
        count_cpus(topology, &mut nodes);
        for record in &topology.performance {
            let mb_s =
                record.read_bandwidth_mb_s.or(record.write_bandwidth_mb_s).filter(|&mb_s| mb_s > 0);
            if let (Some(target), Some(mb_s)) = (index_of(topology, record.target), mb_s) {
                let best = &mut nodes[target].bandwidth_kb_s;
                *best = (*best).max(Some(mb_s.saturating_mul(1000)));
            }
        }
        for domain in &observation.parts {
            let Some(claim) = &domain.claim else { continue };
            for (&node, &vcpus) in &claim.vcpus {
                if let Some(i) = index_of(topology, node) {
                    nodes[i].busy = nodes[i].busy.saturating_add(vcpus).min(MOST_BUSY);
                }
            }
            let vcpus = claim.vcpus.values().fold(0, |sum: u64, &vcpus| sum.saturating_add(vcpus));
            let total_bytes = claim.total_bytes();
            for (&node, &bytes) in &claim.bytes {
                if let Some(i) = index_of(topology, node) {
                    let demand_kb_s = model.demand_kb_s(vcpus, bytes, total_bytes);
                    nodes[i].demand_kb_s = nodes[i].demand_kb_s.saturating_add(demand_kb_s);
                }
            }
        }
        let unclaimed_pages = unclaimed.total_pages(page_bytes);
        let latency_ppm = latencies(topology);
        let nearest = vec![OnceCell::new(); nodes.len()];
        Self {
            nodes,
            unclaimed_pages,
            all_reachable: !latency_ppm.contains(&UNREACHABLE),
            latency_ppm,
            nearest,
        }
    }

    /// All nodes from the nearest to the farthest, lowest numbers first among equals.
    pub(crate) fn nearest(&self, from: usize) -> &[u32] {
        self.nearest[from].get_or_init(|| {
            let latencies = self.latencies_ppm(from);
            let mut nearest: Vec<u32> = (0..latencies.len() as u32).collect();
            // Stable: equals stay in the order of their numbers. Few distances differ, which this sort makes use of.
            nearest.sort_by_key(|&to| latencies[to as usize]);
            nearest
        })
    }

    /// The latencies from `from` to every node: millionths of the best local latency, or [`UNREACHABLE`].
    pub(crate) fn latencies_ppm(&self, from: usize) -> &[u32] {
        let n = self.nodes.len();
        &self.latency_ppm[from * n..(from + 1) * n]
    }

    /// The index of a node.
    pub(crate) fn index_of(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }
}

fn index_of(topology: &Topology, id: NodeId) -> Option<usize> {
    topology.nodes.binary_search_by_key(&id, |node| node.id).ok()
}

fn count_cpus(topology: &Topology, nodes: &mut [NodeView]) {
    let on = |cpu: &Cpu| Some((index_of(topology, cpu.node?)?, cpu.core));
    let mut threads: Vec<(usize, CpuId)> =
        topology.cpus.iter().filter(|cpu| cpu.online).filter_map(on).collect();
    threads.iter().for_each(|&(node, _)| nodes[node].threads += 1);
    threads.sort_unstable();
    threads.dedup();
    threads.iter().for_each(|&(node, _)| nodes[node].cores += 1);
}

/// Latency of every pair, row by row, in millionths of the best local one.
///
/// Where firmware gives a pair's latency in ns it is that, divided by the least latency of a node to itself. Linux
/// publishes only a target's *nearest* initiators, so a pair without a figure is scaled from the target's nearest
/// initiator by the ratio of their SLIT distances; read off the SLIT alone a distant CPU could seem nearer to slow
/// memory than its own. A target of which no figure is known has distance / 10.
fn latencies(topology: &Topology) -> Vec<u32> {
    let n = topology.nodes.len();
    let slit = slit(topology);
    let mut latency: Vec<u32> =
        slit.iter().map(|&distance| u32::from(distance) * (PPM as u32 / 10)).collect();
    let known = known_latencies_ns(topology);
    let best_local_ns =
        known.iter().filter(|known| known.target == known.initiator).map(|known| known.ns).min();
    if let Some(best_local_ns) = best_local_ns {
        for of_target in known.chunk_by(|a, b| a.target == b.target) {
            let distance = |known: &Known| slit[known.initiator * n + known.target];
            let Some(nearest) =
                of_target.iter().min_by_key(|known| (distance(known), known.initiator))
            else {
                continue;
            };
            let relative = |ns: u64, times: Distance, over: Distance| {
                let scaled = u128::from(ns) * u128::from(PPM) * u128::from(times);
                let ppm = scaled.div_ceil(u128::from(best_local_ns) * u128::from(over));
                ppm.clamp(u128::from(PPM), u128::from(LONGEST_PPM)) as u32
            };
            for from in 0..n {
                let at = from * n + nearest.target;
                latency[at] = relative(nearest.ns, slit[at], distance(nearest));
            }
            for pair in of_target {
                latency[pair.initiator * n + pair.target] = relative(pair.ns, 1, 1);
            }
        }
    }
    for (latency, &distance) in latency.iter_mut().zip(&slit) {
        if distance == Distances::UNREACHABLE {
            *latency = UNREACHABLE;
        }
    }
    latency
}

// The SLIT row by row, with what Linux assumes for nodes that are not in it and nothing nearer than local.
fn slit(topology: &Topology) -> Vec<Distance> {
    let n = topology.nodes.len();
    let columns: Vec<Option<usize>> =
        topology.distances.nodes().iter().map(|&node| index_of(topology, node)).collect();
    let mut slit = vec![Distances::REMOTE; n * n];
    for (from, node) in topology.nodes.iter().enumerate() {
        slit[from * n + from] = Distances::LOCAL;
        for (column, distance) in columns.iter().zip(topology.distances.row(node.id)) {
            if let Some(to) = *column {
                slit[from * n + to] = distance.max(Distances::LOCAL);
            }
        }
    }
    slit
}

// The latency of a pair of indices as firmware gives it.
struct Known {
    target: usize,
    initiator: usize,
    ns: u64,
}

// By rising target; of several figures for a pair the one that speaks of CPUs (access1).
fn known_latencies_ns(topology: &Topology) -> Vec<Known> {
    let mut records: Vec<_> = topology
        .performance
        .iter()
        .filter_map(|record| {
            let ns = record.read_latency_ns.or(record.write_latency_ns).filter(|&ns| ns > 0)?;
            let target = index_of(topology, record.target)?;
            Some((target, index_of(topology, record.initiator)?, record.access, ns))
        })
        .collect();
    records.sort_unstable();
    let best_witness =
        records.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).filter_map(|of_pair| of_pair.last());
    best_witness.map(|&(target, initiator, _, ns)| Known { target, initiator, ns }).collect()
}
