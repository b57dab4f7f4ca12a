//! The costs that a machine file states, in its own units.

use serde::Serialize;

/// Costs of a modelled machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Costs {
    /// The file's description; may be empty.
    pub description: String,
    /// Time that an instruction takes, in ps.
    pub insn_ps: u64,
    /// Latency of a line from the CPUs of a node (row) in the memory of a node (column), in ns.
    pub latency_ns: Vec<Vec<f64>>,
    /// Bandwidth of each node's memory in MB/s; 0: unlimited.
    pub memory_bandwidth_mb_per_s: Vec<f64>,
    /// Each CPU's own cache.
    pub cache: Cache,
    /// The cache that a node's CPUs share.
    pub last_level: Option<LastLevel>,
    /// The cache that a node's CPUs share for lines of other nodes' memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_cache: Option<LastLevel>,
    /// Links in the file's order.
    pub links: Vec<Link>,
    /// The route between each two nodes, from the lower node to the higher one, both included.
    /// Empty without links.
    pub routes: Vec<Vec<Point>>,
}

/// A set-associative cache of 64-byte lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Size.
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u64,
    /// A line of a sequential stream costs its latency divided by this.
    pub prefetch: u64,
}

/// A last-level cache of 64-byte lines.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LastLevel {
    /// Size.
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u64,
    /// Latency of a line in ns.
    pub latency_ns: f64,
}

/// An end of a link: a node by its number, or a switch. Switches are numbered behind the nodes, in
/// the order in which the file's links name them.
pub type Point = usize;

/// A link between two points, usable in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Its ends, in the file's order.
    pub between: [Point; 2],
    /// Latency that it adds to a line, in ns.
    pub latency_ns: f64,
    /// Bandwidth in each direction in MB/s; 0: unlimited.
    pub bandwidth_mb_per_s: f64,
}
