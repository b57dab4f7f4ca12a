//! A machine's figures, in the form in which the simulation counts with them.

use nearside_topology::{Distances, NodeId, Topology};

/// What a line of local memory takes where only distances are known; a distance of 20 then is twice as long.
pub const ASSUMED_LOCAL_NS: u64 = 100;

/// Why nothing can be simulated on a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsuited {
    /// Nothing can run.
    #[error("{machine}: a machine with CPUs online is expected, and there are none")]
    NoCpus {
        /// Where the machine was read.
        machine: String,
    },
    /// Nothing can be held.
    #[error(
        "{machine}: a machine whose memory is known is expected, and nothing tells how much node {node} has"
    )]
    UnknownMemory {
        /// Where the machine was read.
        machine: String,
        /// The first such node.
        node: NodeId,
    },
    /// Nothing tells how far nodes are from each other.
    #[error(
        "{machine}: latencies or distances of {nodes} nodes are expected, and there are none: name a --machine file"
    )]
    NoDistances {
        /// Where the machine was read.
        machine: String,
        /// How many nodes there are.
        nodes: usize,
    },
    /// CPUs of one node cannot reach another one's memory, which is no machine that Linux runs on.
    #[error(
        "{machine}: memory that all CPUs reach is expected, and node {from} does not reach node {to} (distance 255)"
    )]
    Unreachable {
        /// Where the machine was read.
        machine: String,
        /// Where the CPUs are.
        from: NodeId,
        /// Where the memory is.
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

/// A machine. Nodes are counted from 0 on, in the order of their numbers.
#[derive(Debug, Clone)]
pub(crate) struct Hardware {
    /// What Linux tells of it.
    pub(crate) topology: Topology,
    pub(crate) nodes: Vec<HardwareNode>,
    /// Whether the machine tells latencies, and not distances alone.
    pub(crate) latencies_are_known: bool,
    /// By node of the CPU and node of the memory, row by row: what a line takes.
    latency_ns: Vec<f64>,
    /// Likewise: what may pass, in bytes/ns. On the diagonal what the node's memory gives in all.
    bandwidth: Vec<Option<f64>>,
    /// For each node all of them, nearest first.
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
        let bandwidth = pairs(&nodes).map(|(from, to)| bandwidth(&topology, from, to)).collect();
        if !hmat {
            topology.performance.clear();
        }
        let nearest = latency_ns.chunks(nodes.len()).map(by_nearness).collect();
        Ok(Self { topology, nodes, latencies_are_known, latency_ns, bandwidth, nearest })
    }

    pub(crate) fn cpus(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus).sum()
    }

    /// What a line of `to`'s memory takes for a CPU of `from`.
    pub(crate) fn latency_ns(&self, from: usize, to: usize) -> f64 {
        self.latency_ns[from * self.nodes.len() + to]
    }

    /// The least that a line takes anywhere: nobody can be faster.
    pub(crate) fn least_latency_ns(&self) -> f64 {
        let n = self.nodes.len();
        let with_cpus = (0..n).filter(|&from| self.nodes[from].cpus > 0);
        with_cpus
            .flat_map(|from| (0..n).map(move |to| self.latency_ns(from, to)))
            .fold(f64::INFINITY, f64::min)
    }

    /// What passes from `to`'s memory to CPUs of `from`, in bytes/ns, where it is limited; of a node to itself, what its
    /// memory gives to all.
    pub(crate) fn bandwidth(&self, from: usize, to: usize) -> Option<f64> {
        self.bandwidth[from * self.nodes.len() + to]
    }

    /// All nodes, those nearest to CPUs of `from` first.
    pub(crate) fn nearest(&self, from: usize) -> &[usize] {
        &self.nearest[from]
    }

    pub(crate) fn index_of(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }
}

/// Latencies of all pairs, where they are known of all (HMAT mostly tells of local ones alone).
fn known_latencies(topology: &Topology, nodes: &[HardwareNode]) -> Option<Vec<f64>> {
    let known = |(from, to)| Some(topology.performance(from, to)?.read_latency_ns? as f64);
    pairs(nodes).map(known).collect()
}

/// What distances say of them.
fn assumed_latencies(topology: &Topology, nodes: &[HardwareNode]) -> Result<Vec<f64>, Unsuited> {
    if nodes.len() > 1 && topology.distances.nodes().is_empty() {
        return Err(Unsuited::NoDistances { machine: topology.source.clone(), nodes: nodes.len() });
    }
    let of_distance = |(from, to)| match topology.distances.get(from, to) {
        Distances::UNREACHABLE => {
            Err(Unsuited::Unreachable { machine: topology.source.clone(), from, to })
        }
        distance => Ok(ASSUMED_LOCAL_NS as f64 * f64::from(distance) / f64::from(Distances::LOCAL)),
    };
    pairs(nodes).map(of_distance).collect()
}

fn pairs(nodes: &[HardwareNode]) -> impl Iterator<Item = (NodeId, NodeId)> {
    nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from.id, to.id)))
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
