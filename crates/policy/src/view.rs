//! The machine in the form that costing needs: nodes counted from 0 ([`NodeIndex`]), built once for
//! a request.

use crate::{
    CostModel, Observation, PageSize,
    index::{Index, IndexVec, NodeIndex},
};
use nearside_topology::{Cpu, CpuId, Distance, Distances, NodeId, Topology};
use std::{cell::OnceCell, rc::Rc};

/// One million: fractions and factors are whole millionths, so that every build computes the same
/// figures.
pub(crate) const PPM: u64 = 1_000_000;

/// The latency of memory that cannot be reached.
pub(crate) const UNREACHABLE: u32 = u32::MAX;

// The longest latency that counts: a thousand times local memory. It bounds the products in `cost`.
const MAX_LATENCY_PPM: u64 = 1 << 30;

// More vCPUs on a node than any machine runs; it bounds the products in `layout`.
const MAX_BUSY: u64 = 1 << 24;

/// A machine as one request sees it.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// The nodes in rising order of their numbers.
    pub(crate) nodes: IndexVec<NodeIndex, NodeView>,
    /// Pages of the request's size available on the whole machine. This is less than the sum over
    /// its nodes if others reserved huge pages, because these may come from any node.
    pub(crate) available_pages: u64,
    /// Whether every node reaches the memory of every other.
    pub(crate) all_reachable: bool,
    // The same for all copies of a view, and its largest part.
    latencies: Rc<Latencies>,
}

#[derive(Debug)]
struct Latencies {
    // Invariant: square. From a node (row) to the memory of a node (column).
    ppm: Table<u32>,
    // By node, all nodes from the nearest to the farthest: sorted on first use.
    nearest: IndexVec<NodeIndex, OnceCell<Vec<NodeIndex>>>,
}

/// A node as one request sees it.
#[derive(Debug, Clone)]
pub(crate) struct NodeView {
    pub(crate) id: NodeId,
    /// Cores with at least one online thread.
    pub(crate) cores: u64,
    /// Online threads: SMT siblings count.
    pub(crate) threads: u64,
    /// vCPUs claimed by residents, or reserved.
    pub(crate) busy: u64,
    /// Whether the kernel can take pages from it at all.
    pub(crate) has_memory: bool,
    /// Available pages of the request's size.
    pub(crate) available_pages: u64,
    /// Memory bandwidth in kB/s.
    pub(crate) bandwidth_kb_s: Option<u64>,
    /// Its bandwidth that residents are expected to use, in kB/s.
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
        let available = observation.available(page_size);
        let mut nodes: IndexVec<NodeIndex, NodeView> = topology
            .nodes
            .iter()
            .map(|node| NodeView {
                id: node.id,
                cores: 0,
                threads: 0,
                busy: 0,
                has_memory: node.memory_bytes > 0,
                available_pages: available.on(node.id) / page_bytes,
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
        let claims = || observation.parts.iter().filter_map(|domain| domain.claim.as_ref());
        let reserved = observation.reservations.iter().map(|reservation| &reservation.vcpus);
        for (&node, &vcpus) in claims().map(|claim| &claim.vcpus).chain(reserved).flatten() {
            if let Some(i) = index_of(topology, node) {
                nodes[i].busy = nodes[i].busy.saturating_add(vcpus).min(MAX_BUSY);
            }
        }
        for claim in claims() {
            let vcpus = claim.vcpus.values().fold(0, |sum: u64, &vcpus| sum.saturating_add(vcpus));
            let total_bytes = claim.total_bytes();
            for (&node, &bytes) in &claim.bytes {
                if let Some(i) = index_of(topology, node) {
                    let demand_kb_s = model.demand_kb_s(vcpus, bytes, total_bytes);
                    nodes[i].demand_kb_s = nodes[i].demand_kb_s.saturating_add(demand_kb_s);
                }
            }
        }
        let available_pages = available.total_pages(page_bytes);
        let latency_ppm = latencies(topology);
        let nearest = IndexVec::filled(OnceCell::new(), nodes.len());
        Self {
            nodes,
            available_pages,
            all_reachable: !latency_ppm.iter().any(|row| row.iter().any(|&it| it == UNREACHABLE)),
            latencies: Rc::new(Latencies { ppm: latency_ppm, nearest }),
        }
    }

    /// All nodes from the nearest to the farthest, lowest numbers first among equals.
    pub(crate) fn nearest(&self, from: NodeIndex) -> &[NodeIndex] {
        self.latencies.nearest[from].get_or_init(|| {
            let latencies = self.latencies_ppm(from);
            let mut nearest: Vec<NodeIndex> = self.nodes.indices().collect();
            // Stable: equals stay in the order of their numbers. The sort is fast, because few
            // distances differ.
            nearest.sort_by_key(|&to| latencies[to]);
            nearest
        })
    }

    /// The latencies from `from` to every node: millionths of the best local latency, or
    /// [`UNREACHABLE`].
    pub(crate) fn latencies_ppm(&self, from: NodeIndex) -> &IndexVec<NodeIndex, u32> {
        &self.latencies.ppm[from]
    }

    /// The index of a node.
    pub(crate) fn index_of(&self, id: NodeId) -> Option<NodeIndex> {
        self.nodes.iter().as_slice().binary_search_by_key(&id, |node| node.id).ok().map(Index::at)
    }
}

// A number for each pair of nodes.
type Table<T> = IndexVec<NodeIndex, IndexVec<NodeIndex, T>>;

fn index_of(topology: &Topology, id: NodeId) -> Option<NodeIndex> {
    topology.nodes.binary_search_by_key(&id, |node| node.id).ok().map(Index::at)
}

fn count_cpus(topology: &Topology, nodes: &mut IndexVec<NodeIndex, NodeView>) {
    let on = |cpu: &Cpu| Some((index_of(topology, cpu.node?)?, cpu.core));
    let mut threads: Vec<(NodeIndex, CpuId)> =
        topology.cpus.iter().filter(|cpu| cpu.online).filter_map(on).collect();
    threads.iter().for_each(|&(node, _)| nodes[node].threads += 1);
    threads.sort_unstable();
    threads.dedup();
    threads.iter().for_each(|&(node, _)| nodes[node].cores += 1);
}

/// Latency of every pair, row by row, in millionths of the best local one.
///
/// If firmware gives a pair's latency in ns, that is used, divided by the least latency of a node
/// to itself. Linux publishes only a target's *nearest* initiators. So a pair without a figure is
/// scaled from the target's nearest initiator by the ratio of their SLIT distances: by the SLIT
/// alone, a distant CPU could seem nearer to slow memory than the nearest one. A target without any
/// figure has distance / 10.
fn latencies(topology: &Topology) -> Table<u32> {
    let slit = slit(topology);
    let from_slit = |distance: Distance| u32::from(distance) * (PPM as u32 / 10);
    let mut latency: Table<u32> =
        slit.iter().map(|row| row.iter().copied().map(from_slit).collect()).collect();
    let known = known_latencies_ns(topology);
    let best_local_ns =
        known.iter().filter(|known| known.target == known.initiator).map(|known| known.ns).min();
    if let Some(best_local_ns) = best_local_ns {
        for of_target in known.chunk_by(|a, b| a.target == b.target) {
            let distance = |known: &Known| slit[known.initiator][known.target];
            let Some(nearest) =
                of_target.iter().min_by_key(|known| (distance(known), known.initiator))
            else {
                continue;
            };
            let relative = |ns: u64, times: Distance, over: Distance| {
                let scaled = u128::from(ns) * u128::from(PPM) * u128::from(times);
                let ppm = scaled.div_ceil(u128::from(best_local_ns) * u128::from(over));
                ppm.clamp(u128::from(PPM), u128::from(MAX_LATENCY_PPM)) as u32
            };
            for from in slit.indices() {
                let to = nearest.target;
                latency[from][to] = relative(nearest.ns, slit[from][to], distance(nearest));
            }
            for pair in of_target {
                latency[pair.initiator][pair.target] = relative(pair.ns, 1, 1);
            }
        }
    }
    for (latencies, distances) in latency.iter_mut().zip(slit.iter()) {
        for (latency, &distance) in latencies.iter_mut().zip(distances.iter()) {
            if distance == Distances::UNREACHABLE {
                *latency = UNREACHABLE;
            }
        }
    }
    latency
}

// The SLIT row by row. Missing nodes have Linux's default distances, and no entry is below local.
fn slit(topology: &Topology) -> Table<Distance> {
    let n = topology.nodes.len();
    let columns: Vec<Option<NodeIndex>> =
        topology.distances.nodes().iter().map(|&node| index_of(topology, node)).collect();
    let mut slit: Table<Distance> = IndexVec::filled(IndexVec::filled(Distances::REMOTE, n), n);
    for (from, node) in slit.indices().zip(&topology.nodes) {
        slit[from][from] = Distances::LOCAL;
        for (column, distance) in columns.iter().zip(topology.distances.row(node.id)) {
            if let Some(to) = *column {
                slit[from][to] = distance.max(Distances::LOCAL);
            }
        }
    }
    slit
}

// The latency of a pair of nodes as firmware gives it.
struct Known {
    target: NodeIndex,
    initiator: NodeIndex,
    ns: u64,
}

// By rising target. If a pair has several figures, the one for CPUs (access1).
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
