//! The figures of a machine, in the form that the simulation uses.

use nearside_topology::{Distances, NodeId, Topology};

/// The assumed latency of a local line if only distances are known; a distance of 20 doubles it.
pub const ASSUMED_LOCAL_NS: u64 = 100;

/// Stands for the latency between a node without CPUs, or one without memory, and another one. No
/// load waits for it.
const UNUSED_NS: f64 = ASSUMED_LOCAL_NS as f64 * 25.5;

/// The reason why a machine cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsuited {
    /// No CPU is online.
    #[error("{machine}: expected a machine with online CPUs, found none")]
    NoCpus {
        /// The source of the machine's description.
        machine: String,
    },
    /// No node has known memory.
    #[error("{machine}: expected a machine with known memory, but that of node {node} is unknown")]
    UnknownMemory {
        /// The source of the machine's description.
        machine: String,
        /// The first such node.
        node: NodeId,
    },
    /// Distances are unknown.
    #[error(
        "{machine}: expected latencies or distances of {nodes} nodes, found none: name a --machine \
         file"
    )]
    NoDistances {
        /// The source of the machine's description.
        machine: String,
        /// The number of nodes.
        nodes: usize,
    },
    /// CPUs of one node cannot reach the memory of another; Linux runs on no such machine. A
    /// distance of 255 from a node without CPUs, or to one without memory, is no reason.
    #[error(
        "{machine}: expected memory that all CPUs reach, but node {from} does not reach node {to} \
         (distance 255)"
    )]
    Unreachable {
        /// The source of the machine's description.
        machine: String,
        /// The node of the CPUs.
        from: NodeId,
        /// The node of the memory.
        to: NodeId,
    },
}

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct HardwareNode {
    pub(crate) id: NodeId,
    pub(crate) cpus: usize,
    pub(crate) memory_bytes: u64,
}

/// A machine. Nodes have indices from 0 on, in the order of their numbers.
#[derive(Debug, Clone)]
pub(crate) struct Hardware {
    /// The machine as Linux describes it.
    pub(crate) topology: Topology,
    pub(crate) nodes: Vec<HardwareNode>,
    /// Whether latencies are known, not only distances.
    pub(crate) latencies_are_known: bool,
    /// Latency of a line, by node of the CPU and node of the memory, row by row.
    latency_ns: Vec<f64>,
    /// Bandwidth in bytes/ns, in the same order. On the diagonal the total of the node's memory.
    bandwidth: Vec<Option<f64>>,
    /// For each node all nodes, nearest first.
    nearest: Vec<Vec<usize>>,
}

impl Hardware {
    pub(crate) fn new(topology: &Topology, hmat: bool) -> Result<Self, Unsuited> {
        let machine = || topology.source.clone();
        let mut topology = topology.clone().offered(None);
        let node = |node: &nearside_topology::Node| HardwareNode {
            id: node.id,
            cpus: topology.cpus_of(node.id).len(),
            memory_bytes: node.memory_bytes,
        };
        let nodes: Vec<_> = topology.nodes.iter().map(node).collect();
        if nodes.iter().all(|node| node.cpus == 0) {
            return Err(Unsuited::NoCpus { machine: machine() });
        }
        if let Some(unknown) = topology.nodes.iter().find(|node| node.memory_is_unknown) {
            return Err(Unsuited::UnknownMemory { machine: machine(), node: unknown.id });
        }
        let known = known_latencies(&topology, &nodes);
        let latencies_are_known = known.is_some();
        let latency_ns = known.map_or_else(|| assumed_latencies(&topology, &nodes), Ok)?;
        let bandwidth =
            pairs(&nodes).map(|(from, to)| bandwidth(&topology, from.id, to.id)).collect();
        if !hmat {
            topology.performance.clear();
        }
        let nearest = latency_ns.chunks(nodes.len()).map(by_nearness).collect();
        Ok(Self { topology, nodes, latencies_are_known, latency_ns, bandwidth, nearest })
    }

    pub(crate) fn cpus(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus).sum()
    }

    /// Latency of a line of `to`'s memory for a CPU of `from`.
    pub(crate) fn latency_ns(&self, from: usize, to: usize) -> f64 {
        self.latency_ns[from * self.nodes.len() + to]
    }

    /// The lowest latency of the machine, which gives the bound.
    pub(crate) fn least_latency_ns(&self) -> f64 {
        let n = self.nodes.len();
        let with_cpus = (0..n).filter(|&from| self.nodes[from].cpus > 0);
        with_cpus
            .flat_map(|from| (0..n).map(move |to| self.latency_ns(from, to)))
            .fold(f64::INFINITY, f64::min)
    }

    /// Bandwidth from `to`'s memory to CPUs of `from`, in bytes/ns, if it is limited; for one and
    /// the same node, the total of its memory.
    pub(crate) fn bandwidth(&self, from: usize, to: usize) -> Option<f64> {
        self.bandwidth[from * self.nodes.len() + to]
    }

    /// All nodes, nearest to CPUs of `from` first.
    pub(crate) fn nearest(&self, from: usize) -> &[usize] {
        &self.nearest[from]
    }

    pub(crate) fn index_of(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }
}

/// Latencies of all pairs, if all are known (an HMAT mostly has only local ones). Those of pairs
/// that no CPU uses need not be.
fn known_latencies(topology: &Topology, nodes: &[HardwareNode]) -> Option<Vec<f64>> {
    let known = |(from, to): (&HardwareNode, &HardwareNode)| {
        let known = topology.performance(from.id, to.id).and_then(|it| it.read_latency_ns);
        known.map(|ns| ns as f64).or((!is_used(from, to)).then_some(UNUSED_NS))
    };
    pairs(nodes).map(known).collect()
}

/// Whether CPUs of one node may read memory of another.
fn is_used(from: &HardwareNode, to: &HardwareNode) -> bool {
    from.cpus > 0 && to.memory_bytes > 0
}

/// Latencies estimated from distances.
fn assumed_latencies(topology: &Topology, nodes: &[HardwareNode]) -> Result<Vec<f64>, Unsuited> {
    if nodes.len() > 1 && topology.distances.nodes().is_empty() {
        return Err(Unsuited::NoDistances { machine: topology.source.clone(), nodes: nodes.len() });
    }
    let of_distance = |(from, to): (&HardwareNode, &HardwareNode)| match topology
        .distances
        .get(from.id, to.id)
    {
        Distances::UNREACHABLE if is_used(from, to) => Err(Unsuited::Unreachable {
            machine: topology.source.clone(),
            from: from.id,
            to: to.id,
        }),
        Distances::UNREACHABLE => Ok(UNUSED_NS),
        distance => Ok(ASSUMED_LOCAL_NS as f64 * f64::from(distance) / f64::from(Distances::LOCAL)),
    };
    pairs(nodes).map(of_distance).collect()
}

fn pairs(nodes: &[HardwareNode]) -> impl Iterator<Item = (&HardwareNode, &HardwareNode)> {
    nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from, to)))
}

fn bandwidth(topology: &Topology, from: NodeId, to: NodeId) -> Option<f64> {
    let mb_per_s =
        topology.performance(from, to)?.read_bandwidth_mb_s.filter(|&mb_per_s| mb_per_s > 0)?;
    // 10^6 bytes in 10^9 ns.
    Some(mb_per_s as f64 / 1e3)
}

fn by_nearness(latencies: &[f64]) -> Vec<usize> {
    let mut nodes: Vec<usize> = (0..latencies.len()).collect();
    nodes.sort_by(|&a, &b| latencies[a].total_cmp(&latencies[b]));
    nodes
}
