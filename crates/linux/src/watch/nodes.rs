//! The load of nodes since the sample before: CPU time, and waits for memory.

use super::kept::{Buffer, Kept};
use crate::busy;
use nearside_policy::{ByNode, NodeLoad};
use nearside_topology::{Node, NodeId, Topology};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The files about nodes, and their last content.
#[derive(Debug)]
pub(super) struct NodeWatch {
    proc: PathBuf,
    nodes: PathBuf,
    stat: Kept,
    vmstat: Kept,
    pressure: Kept,
    node_vmstat: BTreeMap<NodeId, Kept>,
    before: Option<Counted>,
}

/// Counters since boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counted {
    busy_ns: ByNode,
    /// Of the host as a whole.
    shortage: Shortage,
    /// Of the nodes that have such files.
    by_node: BTreeMap<NodeId, Shortage>,
    /// None if the kernel does not count it (`CONFIG_PSI`, `psi=`).
    stalled_us: Option<u64>,
}

/// Counters of a shortage of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Shortage {
    stalls: u64,
    scanned_pages: u64,
    background_pages: u64,
}

/// The load since the sample before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) nodes: BTreeMap<NodeId, NodeLoad>,
    pub(super) memory_stall_ppm: Option<u64>,
}

impl NodeWatch {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            nodes: root.join("sys/devices/system/node"),
            stat: Kept::of_one_record("stat"),
            vmstat: Kept::new("vmstat"),
            pressure: Kept::of_one_record("memory"),
            node_vmstat: BTreeMap::new(),
            before: None,
        }
    }

    /// The load in the `length_ns` since the sample before; none at the first.
    pub(super) fn observe(
        &mut self,
        topology: &Topology,
        length_ns: u64,
        buffer: &mut Buffer,
    ) -> Happened {
        let now = self.count(topology, buffer);
        let happened =
            self.before.as_ref().map(|before| happened(before, &now, topology, length_ns));
        self.before = Some(now);
        happened.unwrap_or_default()
    }

    fn count(&mut self, topology: &Topology, buffer: &mut Buffer) -> Counted {
        let busy_ns =
            self.stat.read(&self.proc, true, buffer).map(|text| busy::parse(text, topology));
        let of_host = self.vmstat.read(&self.proc, true, buffer).and_then(shortage);
        let pressure = self.proc.join("pressure");
        let stalled_us = self.pressure.read(&pressure, true, buffer).and_then(stalled_us);
        self.node_vmstat.retain(|&id, _| topology.node(id).is_some());
        let mut by_node = BTreeMap::new();
        for node in &topology.nodes {
            let kept = self.node_vmstat.entry(node.id).or_insert(Kept::of_one_record("vmstat"));
            let folder = self.nodes.join(format!("node{}", node.id));
            by_node.extend(
                kept.read(&folder, true, buffer).and_then(shortage).map(|own| (node.id, own)),
            );
        }
        Counted {
            busy_ns: busy_ns.unwrap_or_default(),
            shortage: of_host.unwrap_or_default(),
            by_node,
            stalled_us,
        }
    }
}

fn happened(before: &Counted, now: &Counted, topology: &Topology, length_ns: u64) -> Happened {
    let of_host = now.shortage.since(before.shortage);
    // Some kernels count for the whole host, others for each node. With the former, the pressed
    // nodes must be guessed.
    let pressed = pressed(&topology.nodes);
    let load = |node: &Node| {
        let on = |by_node: &ByNode| by_node.get(&node.id).copied().unwrap_or(0);
        let counted = now.by_node.get(&node.id).zip(before.by_node.get(&node.id));
        let own = counted.map(|(now, before)| now.since(*before)).unwrap_or_default();
        let of_host = if pressed.contains(&node.id) { of_host } else { Shortage::default() };
        let load = NodeLoad {
            busy_ns: on(&now.busy_ns).saturating_sub(on(&before.busy_ns)),
            allocation_stalls: own.stalls.max(of_host.stalls),
            direct_reclaim_pages: own.scanned_pages.max(of_host.scanned_pages),
            background_reclaim_pages: own.background_pages.max(of_host.background_pages),
        };
        (node.id, load)
    };
    let stalled_us =
        now.stalled_us.zip(before.stalled_us).map(|(now, before)| now.saturating_sub(before));
    let ppm = |us: u64| {
        (u128::from(us) * 1_000_000_000 / u128::from(length_ns.max(1))).min(1_000_000) as u64
    };
    Happened {
        nodes: topology.nodes.iter().map(load).collect(),
        memory_stall_ppm: stalled_us.map(ppm),
    }
}

impl Shortage {
    fn since(self, before: Self) -> Self {
        Self {
            stalls: self.stalls.saturating_sub(before.stalls),
            scanned_pages: self.scanned_pages.saturating_sub(before.scanned_pages),
            background_pages: self.background_pages.saturating_sub(before.background_pages),
        }
    }
}

/// The nodes on which tasks may have had to reclaim: those below their high watermark, up to which
/// the kernel reclaims. If there is none, the fullest node.
fn pressed(nodes: &[Node]) -> Vec<NodeId> {
    let fill = |node: &Node| Some((node.fill_ppm(|zone| zone.high_watermark_bytes)?, node.id));
    let fills: Vec<_> = nodes.iter().filter_map(fill).collect();
    let below: Vec<_> =
        fills.iter().filter(|(fill, _)| *fill < 1_000_000).map(|&(_, id)| id).collect();
    match below.is_empty() {
        true => fills.iter().min().map(|&(_, id)| id).into_iter().collect(),
        false => below,
    }
}

/// From a `vmstat`, of the host or of a node; none if it has no such counters.
fn shortage(text: &str) -> Option<Shortage> {
    let mut found = None;
    for (name, count) in text.lines().filter_map(|line| line.split_once(' ')) {
        let mut add = |to: fn(&mut Shortage) -> &mut u64| {
            let all = to(found.get_or_insert_with(Shortage::default));
            *all = all.saturating_add(count.trim().parse().unwrap_or(0));
        };
        match name {
            "pgscan_direct" => add(|shortage| &mut shortage.scanned_pages),
            "pgscan_kswapd" => add(|shortage| &mut shortage.background_pages),
            _ if name.starts_with("allocstall") => add(|shortage| &mut shortage.stalls),
            _ => {}
        }
    }
    found
}

/// From `/proc/pressure/memory` (`Documentation/accounting/psi.rst`): the time for which some task
/// waited since boot.
fn stalled_us(text: &str) -> Option<u64> {
    text.lines()
        .find(|line| line.starts_with("some "))?
        .rsplit_once("total=")?
        .1
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Cpu, CpuId, MemoryState, Zone};
    use std::fs;

    const MIB: u64 = 1 << 20;

    /// Two CPUs on each node, and so much free memory in MiB; the high watermark is 10 MiB.
    fn machine(free_mib: &[u64]) -> Topology {
        let node = |(id, free): (u32, &u64)| Node {
            id: NodeId(id),
            memory_bytes: 1 << 30,
            state: Some(MemoryState { free_bytes: free * MIB, ..MemoryState::default() }),
            zones: vec![Zone {
                free_bytes: free * MIB,
                high_watermark_bytes: 10 * MIB,
                ..Zone::default()
            }],
            ..Node::default()
        };
        let nodes: Vec<_> = (0..).zip(free_mib).map(node).collect();
        let cpus =
            (0..2 * nodes.len() as u32).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect();
        Topology { nodes, cpus, ..Topology::default() }
    }

    #[test]
    fn nodes_below_their_high_watermark_are_pressed() {
        let ids = |free_mib: &[u64]| {
            pressed(&machine(free_mib).nodes).iter().map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(ids(&[500, 9, 3, 10]), [1, 2]);
        assert_eq!(ids(&[500, 90, 300]), [1]);
        assert_eq!(ids(&[]), [0; 0]);
        let no_memory = Topology { nodes: vec![Node::default()], ..Topology::default() };
        assert_eq!(pressed(&no_memory.nodes), []);
    }

    #[test]
    fn load_is_the_difference_of_counters() {
        let folder = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let machine = machine(&[500, 9]);
        let mut watch = NodeWatch::new(folder.path());
        let mut look = || watch.observe(&machine, 2_000_000_000, &mut Buffer::default());
        file(
            "proc/stat",
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 1 1 50 7 1 1 5 0 0\ncpu3 0 0 0 9 0 0 0 0 0 0\n\
             intr 9 1 1\n",
        );
        file(
            "proc/vmstat",
            "nr_free_pages 7\nallocstall_dma 1\nallocstall_normal 4\npgscan_direct 10\n",
        );
        assert_eq!(look(), Happened::default());
        file(
            "proc/stat",
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 3 2 2 90 9 2 2 9 0 0\ncpu3 7 0 0 9 0 0 0 0 0 0\n\
             cpu9 1 1\n",
        );
        file(
            "proc/vmstat",
            "allocstall_dma 2\nallocstall_normal 5\npgscan_direct 30\npgscan_direct_throttle 7\n",
        );
        file(
            "proc/pressure/memory",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 total=9\n",
        );
        let load = |ticks, allocation_stalls, direct_reclaim_pages| NodeLoad {
            busy_ns: ticks * tick_ns,
            allocation_stalls,
            direct_reclaim_pages,
            background_reclaim_pages: 0,
        };
        let expected = [(NodeId(0), load(6, 0, 0)), (NodeId(1), load(7, 2, 20))].into();
        assert_eq!(look(), Happened { nodes: expected, memory_stall_ppm: None });
        // A kernel that counts by node is more exact than one that counts for the host.
        file("sys/devices/system/node/node0/vmstat", "nr_free_pages 7\npgscan_direct 5\n");
        file("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=201000\n");
        assert_eq!(look().memory_stall_ppm, Some(100_000));
        file(
            "sys/devices/system/node/node0/vmstat",
            "nr_free_pages 7\npgscan_direct 8\npgscan_kswapd 4\n",
        );
        let background = NodeLoad { background_reclaim_pages: 4, ..load(0, 0, 3) };
        assert_eq!(look().nodes, [(NodeId(0), background), (NodeId(1), load(0, 0, 0))].into());
    }
}
