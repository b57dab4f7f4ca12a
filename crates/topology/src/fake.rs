//! `fake=`: cuts a machine into more nodes than it has, as the kernel's `numa=fake=` does, so that
//! any node count can be tried on any machine.
//!
//! | spec | meaning |
//! |---|---|
//! | `N` | N nodes of about the same size over the whole machine |
//! | `SIZEM`, `SIZEG` | as many nodes of this size as there is memory for |
//! | `NU` | each physical node into N nodes of the same size |
//!
//! Memory is dealt as in Linux, `mm/numa_emulation.c` (`split_nodes_interleave`,
//! `split_nodes_size_interleave_uniform`): in steps of 32 MiB, the emulated nodes taking turns over
//! the physical nodes, and a remainder too small for another node goes to the last one of its
//! physical node. As there, `N` may yield fewer nodes when the physical ones are of unequal size,
//! and a node whose turn comes again gets more memory from the physical node whose turn it is.
//! Distances and HMAT figures are those of the physical nodes that the emulated ones (first) lie
//! on, so two on the same one are 10 apart.
//!
//! It differs from the kernel on purpose:
//! - The kernel shows all CPUs of a physical node in each of its emulated nodes. Here a physical
//!   node's cores are dealt out to its emulated nodes in turn, SMT siblings together, so that every
//!   CPU has one node and the emulated machine behaves like a real one. With fewer cores than
//!   emulated nodes some have no CPU.
//! - CPUs and devices of a physical node without memory go to the nearest emulated node, not to
//!   node 0.
//! - Holes in the address space and the end of `ZONE_DMA32` do not shift the cuts: sizes count,
//!   addresses do not.
//! - Requests that the kernel silently raises or lowers (more than 1,024 nodes, nodes under 32 MiB)
//!   are refused.
//!
//! Free memory, cache and huge pages are divided in proportion to memory, without losing a page.
//! Zones are left out, because the zones of an emulated node depend on addresses. Emulated nodes
//! have no PXM.

use crate::{
    distance::{Distance, Distances},
    id::{CpuId, MAX_NODES, NodeId, NodeSet},
    model::{HugePagePool, MemoryRange, MemoryState, Node, Performance, Topology, Withheld},
    tiers::{MemoryTier, MemoryTiers},
};
use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str::FromStr};

/// Nodes are cut in multiples of this (`FAKE_NODE_MIN_SIZE` in Linux).
pub const STEP_BYTES: u64 = 32 << 20;

/// A request of `fake=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FakeSpec {
    /// `N`: this many nodes over the whole machine.
    Nodes(u32),
    /// `SIZE[M|G]`: nodes of this many bytes.
    Size(u64),
    /// `NU`: each physical node into this many.
    Uniform(u32),
}

/// A text that is no request of `fake=`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fake={text}: {why}")]
pub struct InvalidFakeSpec {
    /// The text as it was read.
    pub text: String,
    /// The text that was expected instead.
    pub why: &'static str,
}

/// A machine that cannot be cut as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FakeError {
    /// The amount of memory to cut is unknown.
    #[error(
        "fake={spec}: nothing in {machine} tells how much memory there is on {}", nodes.named()
    )]
    UnknownMemory {
        /// The request.
        spec: FakeSpec,
        /// The machine's source.
        machine: String,
        /// The nodes whose amount of memory is unknown.
        nodes: NodeSet,
    },
    /// No node has memory to cut.
    #[error("fake={spec}: {} has no node with memory", machine)]
    NoMemory {
        /// The request.
        spec: FakeSpec,
        /// The machine's source.
        machine: String,
    },
    /// The nodes would be smaller than a step.
    #[error(
        "fake={spec}: nodes of {node_bytes} bytes, expected at least {STEP_BYTES} (32 MiB) each"
    )]
    TooSmall {
        /// The request.
        spec: FakeSpec,
        /// The size that a node would have.
        node_bytes: u64,
    },
    /// There would be more nodes than Linux can have.
    #[error("fake={spec}: {nodes} nodes, expected at most {MAX_NODES}")]
    TooMany {
        /// The request.
        spec: FakeSpec,
        /// The number of nodes that there would be.
        nodes: u64,
    },
    /// A physical node is too small to be cut into so many in steps of 32 MiB.
    #[error(
        "fake={spec}: node {node} of {node_bytes} bytes yields only {got} nodes when cut in steps \
         of 32 MiB"
    )]
    TooFew {
        /// The request.
        spec: FakeSpec,
        /// The physical node.
        node: NodeId,
        /// Its memory.
        node_bytes: u64,
        /// The number of nodes that it yields.
        got: usize,
    },
}

impl fmt::Display for FakeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(nodes) => write!(f, "{nodes}"),
            Self::Size(bytes) if bytes % (1 << 30) == 0 => write!(f, "{}G", bytes >> 30),
            Self::Size(bytes) => write!(f, "{}M", bytes >> 20),
            Self::Uniform(nodes) => write!(f, "{nodes}U"),
        }
    }
}

impl FromStr for FakeSpec {
    type Err = InvalidFakeSpec;

    fn from_str(text: &str) -> Result<Self, InvalidFakeSpec> {
        let fail = |why| InvalidFakeSpec { text: text.to_string(), why };
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        // "+4" is a number to Rust, but not on a command line.
        let number = match digits.bytes().all(|byte| byte.is_ascii_digit()) {
            true => digits.parse::<u64>().ok(),
            false => None,
        };
        let number = number.ok_or(fail(
            "expected a number of nodes (4), a size (512M, 2G) or nodes for each node (2U)",
        ))?;
        let nodes = || match u32::try_from(number) {
            Ok(nodes @ 1..=MAX_NODES) => Ok(nodes),
            _ => Err(fail("expected 1 to 1024 nodes")),
        };
        let bytes = |shift: u32| match number.checked_mul(1 << shift) {
            Some(bytes @ STEP_BYTES..) => Ok(bytes),
            Some(_) => Err(fail("expected nodes of at least 32M")),
            None => Err(fail("expected a size below 2^64 bytes")),
        };
        match &text[digits.len()..] {
            "" => nodes().map(Self::Nodes),
            "U" | "u" => nodes().map(Self::Uniform),
            "M" | "m" => bytes(20).map(Self::Size),
            "G" | "g" => bytes(30).map(Self::Size),
            _ => Err(fail("expected nothing, M, G or U after the number")),
        }
    }
}

/// Cuts `machine` into emulated nodes as `spec` asks.
///
/// # Errors
/// The machine's memory is unknown or too little for the nodes, or there would be more of them than
/// [`MAX_NODES`].
pub fn fake(machine: &Topology, spec: &FakeSpec) -> Result<Topology, FakeError> {
    let nodes = machine.nodes_of_unknown_memory();
    if !nodes.is_empty() {
        return Err(FakeError::UnknownMemory {
            spec: *spec,
            machine: machine.source.clone(),
            nodes,
        });
    }
    let sizes: Vec<(NodeId, u64)> =
        machine.nodes.iter().map(|node| (node.id, node.memory_bytes)).collect();
    let sizes: Vec<_> = sizes.into_iter().filter(|&(_, bytes)| bytes > 0).collect();
    if sizes.is_empty() {
        return Err(FakeError::NoMemory { spec: *spec, machine: machine.source.clone() });
    }
    let emulated = Emulated { machine, pieces: cut(spec, sizes)? };
    let physical = emulated.physical();
    let ids: Vec<NodeId> = (0..physical.len() as u32).map(NodeId).collect();
    let rows: Vec<Distance> = physical
        .iter()
        .flat_map(|&from| physical.iter().map(move |&to| machine.distances.get(from, to)))
        .collect();
    let homes: BTreeMap<NodeId, Vec<NodeId>> =
        machine.nodes.iter().map(|node| (node.id, emulated.homes(node.id, &physical))).collect();
    let first_home = |node: NodeId| homes.get(&node).and_then(|homes| homes.first()).copied();
    let mut topology = Topology {
        source: format!("fake={spec} over {}", machine.source),
        nodes: ids.iter().map(|&id| emulated.node(id)).collect(),
        cpus: machine.cpus.clone(),
        distances: Distances::new(&ids, &rows).unwrap_or_else(|_| Distances::uniform(&ids)),
        performance: performance(machine, &physical),
        memory_tiers: memory_tiers(machine, &homes),
        devices: machine.devices.clone(),
        reserved_huge_pages: machine.reserved_huge_pages.clone(),
        isolated_cpus: machine.isolated_cpus.clone(),
        isolated_partition: None,
        withheld: Withheld::default(),
    };
    let mut turns: BTreeMap<NodeId, Vec<CpuId>> = BTreeMap::new();
    for cpu in &mut topology.cpus {
        cpu.node = cpu.node.and_then(|node| {
            let cores = turns.entry(node).or_default();
            let turn = cores.iter().position(|&core| core == cpu.core).unwrap_or_else(|| {
                cores.push(cpu.core);
                cores.len() - 1
            });
            let homes = homes.get(&node)?;
            homes.get(turn % homes.len().max(1)).copied()
        });
    }
    for device in &mut topology.devices {
        device.node = device.node.and_then(first_home);
    }
    Ok(topology)
}

/// A part of a physical node's memory: bytes `start..end` of it, wherever they lie in the address
/// space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    emulated: NodeId,
    physical: NodeId,
    start: u64,
    end: u64,
}

fn cut(spec: &FakeSpec, sizes: Vec<(NodeId, u64)>) -> Result<Vec<Piece>, FakeError> {
    let total = sizes.iter().map(|&(_, bytes)| bytes).fold(0, u64::saturating_add);
    match *spec {
        FakeSpec::Nodes(nodes) => {
            let nodes = u64::from(nodes.max(1));
            let even = page_down(total / nodes);
            if even < STEP_BYTES {
                return Err(FakeError::TooSmall { spec: *spec, node_bytes: even });
            }
            // The remainder of rounding down makes some of the nodes one step bigger.
            let bigger = (even % STEP_BYTES).saturating_mul(nodes) / STEP_BYTES;
            let floor = step_down(even);
            let size = |turn| if turn < bigger { floor + STEP_BYTES } else { floor };
            let mut pieces = deal(sizes, size, |rest| rest < floor);
            for piece in &mut pieces {
                piece.emulated.0 %= nodes as u32;
            }
            Ok(pieces)
        }
        FakeSpec::Size(bytes) => {
            let size = step_down(bytes);
            if size == 0 {
                return Err(FakeError::TooSmall { spec: *spec, node_bytes: bytes });
            }
            let nodes =
                sizes.iter().map(|&(_, bytes)| (bytes / size).max(1)).fold(0, u64::saturating_add);
            if nodes > u64::from(MAX_NODES) {
                return Err(FakeError::TooMany { spec: *spec, nodes });
            }
            Ok(deal(sizes, |_| size, |rest| rest < size))
        }
        FakeSpec::Uniform(nodes) => {
            let all = u64::from(nodes) * sizes.len() as u64;
            if all > u64::from(MAX_NODES) {
                return Err(FakeError::TooMany { spec: *spec, nodes: all });
            }
            let mut pieces = Vec::new();
            for (node, node_bytes) in sizes {
                // Rounded up: the last node is the smaller one.
                let size = page_down(node_bytes / u64::from(nodes.max(1))).max(STEP_BYTES);
                let size = size.checked_next_multiple_of(STEP_BYTES).unwrap_or(u64::MAX);
                let before = pieces.len() as u32;
                let own = deal([(node, node_bytes)].into(), |_| size, |_| false);
                if own.len() < nodes as usize {
                    return Err(FakeError::TooFew {
                        spec: *spec,
                        node,
                        node_bytes,
                        got: own.len(),
                    });
                }
                pieces.extend(
                    own.into_iter().map(|piece| Piece {
                        emulated: NodeId(piece.emulated.0 + before),
                        ..piece
                    }),
                );
            }
            Ok(pieces)
        }
    }
}

/// Deals out memory in turns over the physical nodes until none is left. `size` is that of the
/// piece of each turn; a rest that is `too_small` goes with the piece before it.
fn deal(
    sizes: Vec<(NodeId, u64)>,
    size: impl Fn(u64) -> u64,
    too_small: impl Fn(u64) -> bool,
) -> Vec<Piece> {
    let mut left: Vec<(NodeId, u64, u64)> =
        sizes.into_iter().map(|(node, bytes)| (node, 0, bytes)).collect();
    let mut pieces = Vec::new();
    let mut turn = 0;
    while !left.is_empty() {
        for (physical, start, limit) in &mut left {
            let mut end = start.saturating_add(size(turn)).min(*limit);
            if too_small(*limit - end) {
                end = *limit;
            }
            pieces.push(Piece {
                emulated: NodeId(turn as u32),
                physical: *physical,
                start: *start,
                end,
            });
            *start = end;
            turn += 1;
        }
        left.retain(|&(_, start, limit)| start < limit);
    }
    pieces
}

fn step_down(bytes: u64) -> u64 {
    bytes - bytes % STEP_BYTES
}

/// The kernel divides whole pages.
fn page_down(bytes: u64) -> u64 {
    bytes - bytes % 4096
}

/// A machine and how it was cut.
struct Emulated<'a> {
    machine: &'a Topology,
    pieces: Vec<Piece>,
}

impl Emulated<'_> {
    /// For each emulated node the physical node of its first piece (`emu_nid_to_phys` in Linux).
    fn physical(&self) -> Vec<NodeId> {
        let mut first: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        for piece in &self.pieces {
            first.entry(piece.emulated).or_insert(piece.physical);
        }
        first.into_values().collect()
    }

    /// The emulated nodes that stand for a physical one; the nearest one if none lies on it.
    fn homes(&self, node: NodeId, physical: &[NodeId]) -> Vec<NodeId> {
        let emulated = || (0..).map(NodeId).zip(physical.iter().copied());
        let own: Vec<NodeId> = emulated().filter(|&(_, on)| on == node).map(|(id, _)| id).collect();
        if !own.is_empty() {
            return own;
        }
        let nearest = emulated().min_by_key(|&(_, on)| self.machine.distances.get(node, on));
        nearest.map(|(id, _)| id).into_iter().collect()
    }

    fn node(&self, id: NodeId) -> Node {
        let mut node = Node { id, ..Node::default() };
        for piece in self.pieces.iter().filter(|piece| piece.emulated == id) {
            let Some(from) = self.machine.node(piece.physical) else { continue };
            // Rounding both ends, not the difference, loses nothing over all pieces of a node.
            let share = |amount: u64| {
                let up_to = |end: u64| {
                    u128::from(amount) * u128::from(end) / u128::from(from.memory_bytes.max(1))
                };
                (up_to(piece.end) - up_to(piece.start)) as u64
            };
            node.memory_bytes = node.memory_bytes.saturating_add(piece.end - piece.start);
            if let Some(state) = from.state {
                let sum = node.state.unwrap_or_default();
                node.state = Some(MemoryState {
                    free_bytes: sum.free_bytes.saturating_add(share(state.free_bytes)),
                    active_file_bytes: sum
                        .active_file_bytes
                        .saturating_add(share(state.active_file_bytes)),
                    inactive_file_bytes: sum
                        .inactive_file_bytes
                        .saturating_add(share(state.inactive_file_bytes)),
                    slab_reclaimable_bytes: sum
                        .slab_reclaimable_bytes
                        .saturating_add(share(state.slab_reclaimable_bytes)),
                });
            }
            for pool in &from.huge_pages {
                let more = HugePagePool {
                    page_bytes: pool.page_bytes,
                    total_pages: share(pool.total_pages),
                    free_pages: share(pool.free_pages),
                    surplus_pages: share(pool.surplus_pages),
                };
                add_pool(&mut node.huge_pages, more);
            }
            node.ranges.extend(cut_ranges(from, piece));
        }
        node
    }
}

fn add_pool(pools: &mut Vec<HugePagePool>, more: HugePagePool) {
    match pools.binary_search_by_key(&more.page_bytes, |pool| pool.page_bytes) {
        Ok(at) => {
            let pool = &mut pools[at];
            pool.total_pages = pool.total_pages.saturating_add(more.total_pages);
            pool.free_pages = pool.free_pages.saturating_add(more.free_pages);
            pool.surplus_pages = pool.surplus_pages.saturating_add(more.surplus_pages);
        }
        Err(at) => pools.insert(at, more),
    }
}

/// The parts of a node's address ranges that a piece takes; none where the ranges are not just the
/// node's memory.
fn cut_ranges(node: &Node, piece: &Piece) -> Vec<MemoryRange> {
    let whole = node.ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.length_bytes));
    if whole != Some(node.memory_bytes) {
        return Vec::new();
    }
    let mut before = 0;
    let mut cut = Vec::new();
    for range in &node.ranges {
        let (from, to) = (piece.start.max(before), piece.end.min(before + range.length_bytes));
        if let (true, Some(start)) =
            (from < to, range.start.checked_add(from.saturating_sub(before)))
        {
            cut.push(MemoryRange { start, length_bytes: to - from, ..*range });
        }
        before += range.length_bytes;
    }
    cut
}

fn performance(machine: &Topology, physical: &[NodeId]) -> Vec<Performance> {
    let on = |node: NodeId| {
        (0..).map(NodeId).zip(physical).filter(move |&(_, &on)| on == node).map(|(id, _)| id)
    };
    let of_pair = |figures: &Performance| {
        let figures = *figures;
        on(figures.target).flat_map(move |target| {
            on(figures.initiator).map(move |initiator| Performance { initiator, target, ..figures })
        })
    };
    machine.performance.iter().flat_map(of_pair).collect()
}

/// The tiers of emulated nodes: those of the nodes that they are cut from.
fn memory_tiers(machine: &Topology, homes: &BTreeMap<NodeId, Vec<NodeId>>) -> MemoryTiers {
    let MemoryTiers { tiers, demotion_enabled } = &machine.memory_tiers;
    let cut = |tier: &MemoryTier| {
        let of = |&node: &NodeId| homes.get(&node).cloned().unwrap_or_default();
        let nodes = tier.nodes.iter().flat_map(|node| of(&node)).collect();
        MemoryTier { number: tier.number, nodes }
    };
    let tiers = tiers.iter().map(cut).filter(|tier| !tier.nodes.is_empty()).collect();
    MemoryTiers { tiers, demotion_enabled: *demotion_enabled }
}

#[cfg(test)]
mod tests;
