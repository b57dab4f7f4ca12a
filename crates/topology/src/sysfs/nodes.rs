//! Nodes, their memory, distances and performance: `/sys/devices/system/node`
//! (Linux, `drivers/base/node.c`, `Documentation/ABI/stable/sysfs-devices-node`).

use super::source::{Source, quoted};
use crate::{
    distance::{Distance, Distances},
    id::{MAX_NODES, NodeId},
    model::{Access, HugePagePool, MemoryState, Node, Performance, ReservedHugePages},
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

pub(super) const NODES: &str = "sys/devices/system/node";

/// The pools of the whole machine.
const HUGE_PAGES: &str = "sys/kernel/mm/hugepages";

/// The nodes that have a folder, in rising order: the kernel makes one for each online node.
pub(super) fn numbers(source: &mut Source) -> Vec<NodeId> {
    let (known, beyond): (Vec<u32>, Vec<u32>) =
        source.numbered(NODES, "node").into_iter().partition(|&node| node < MAX_NODES);
    if let Some(node) = beyond.first() {
        source.note(
            &format!("{NODES}/node{node}"),
            format_args!("Linux has no node above {}: left out", MAX_NODES - 1),
        );
    }
    known.into_iter().map(NodeId).collect()
}

/// Reads the nodes. Where the whole machine has no huge pages, no node has any.
pub(super) fn read_all(source: &mut Source, ids: &[NodeId]) -> Vec<Node> {
    let folders = pool_folders(source, HUGE_PAGES);
    let empty = |(page_bytes, pool): (u64, String)| {
        let pages = source.number_if_any::<u64>(&format!("{pool}/nr_hugepages"));
        let pool = HugePagePool { page_bytes, ..HugePagePool::default() };
        (pages == Some(0)).then_some(pool)
    };
    let pools: Option<Vec<_>> = folders.into_iter().map(empty).collect();
    let empty = pools.filter(|pools| !pools.is_empty());
    ids.iter().map(|&id| read(source, id, empty.as_deref())).collect()
}

/// Reads a node. `empty` are the pools of a machine without huge pages, which each node with memory
/// has (`hugetlb_register_all_nodes` in Linux, `mm/hugetlb_sysfs.c`).
fn read(source: &mut Source, id: NodeId, empty: Option<&[HugePagePool]>) -> Node {
    let node = with_memory(source, &format!("{NODES}/node{id}/meminfo"));
    let huge_pages = match empty.filter(|_| node.memory_bytes > 0) {
        Some(empty) => empty.to_vec(),
        None => huge_pages(source, &format!("{NODES}/node{id}/hugepages")),
    };
    Node { id, huge_pages, ..node }
}

/// The one node of a kernel without NUMA.
pub(super) fn without_numa(source: &mut Source) -> Node {
    let node = with_memory(source, "proc/meminfo");
    let huge_pages = huge_pages(source, HUGE_PAGES);
    Node { huge_pages, ..node }
}

/// A node with its memory and its use, as far as the file at `path` has them.
fn with_memory(source: &mut Source, path: &str) -> Node {
    let (total, state) = memory(source, path);
    Node {
        memory_bytes: total.unwrap_or(0),
        memory_is_unknown: total.is_none(),
        state,
        ..Node::default()
    }
}

/// Total bytes and their use, from `Node 0 MemFree:  1024 kB` (a node's file) or `MemFree:  1024
/// kB` (`/proc/meminfo`).
fn memory(source: &mut Source, path: &str) -> (Option<u64>, Option<MemoryState>) {
    let Some(text) = source.text(path) else { return (None, None) };
    let mut values = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(':') {
            let key = name.rsplit(' ').next().unwrap_or(name);
            values.entry(key).or_insert(value.trim());
        }
    }
    let mut bytes = |key: &str| {
        let value = values.get(key).copied();
        let kib = value.and_then(|value| value.strip_suffix("kB")?.trim().parse::<u64>().ok());
        let bytes = kib.and_then(|kib| kib.checked_mul(1024));
        // Old kernels lack some of the lines, but none lacks the first two.
        if bytes.is_none() && (value.is_some() || key.starts_with("Mem")) {
            let read = value.map_or("nothing".into(), quoted);
            source.note(path, format_args!("{key}: read {read}, expected a number of kB"));
        }
        bytes
    };
    let (total, free) = (bytes("MemTotal"), bytes("MemFree"));
    let state = MemoryState {
        free_bytes: free.unwrap_or(0),
        active_file_bytes: bytes("Active(file)").unwrap_or(0),
        inactive_file_bytes: bytes("Inactive(file)").unwrap_or(0),
        slab_reclaimable_bytes: bytes("SReclaimable").unwrap_or(0),
    };
    (total, total.and(free).map(|_| state))
}

fn huge_pages(source: &mut Source, folder: &str) -> Vec<HugePagePool> {
    let folders = pool_folders(source, folder);
    let pool = |(page_bytes, pool): (u64, String)| {
        let mut pages =
            |file: &str| source.number_if_any::<u64>(&format!("{pool}/{file}")).unwrap_or(0);
        match pages("nr_hugepages") {
            // Most pools are empty, and an empty pool has no free pages.
            0 => HugePagePool { page_bytes, ..HugePagePool::default() },
            total_pages => HugePagePool {
                page_bytes,
                total_pages,
                free_pages: pages("free_hugepages"),
                surplus_pages: pages("surplus_hugepages"),
            },
        }
    };
    folders.into_iter().map(pool).collect()
}

/// Reserved huge pages, which the kernel counts for all nodes together.
pub(super) fn reserved_huge_pages(source: &mut Source) -> Vec<ReservedHugePages> {
    let folders = pool_folders(source, HUGE_PAGES);
    let reserved = |(page_bytes, pool): (u64, String)| {
        let pages = source.number_if_any::<u64>(&format!("{pool}/resv_hugepages")).unwrap_or(0);
        ReservedHugePages { page_bytes, pages }
    };
    let all = folders.into_iter().map(reserved);
    all.filter(|reserved| reserved.pages > 0).collect()
}

/// The folders `hugepages-2048kB` and so on below `folder`, by rising page size in bytes.
fn pool_folders(source: &mut Source, folder: &str) -> Vec<(u64, String)> {
    let pool = |name: String| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()?;
        Some((kib.checked_mul(1024)?, format!("{folder}/{name}")))
    };
    let mut pools: Vec<_> = source.names(folder).into_iter().filter_map(pool).collect();
    pools.sort_unstable();
    pools
}

/// The rows of distances; an invalid row is replaced by Linux's defaults without a SLIT.
pub(super) fn distances(source: &mut Source, nodes: &[NodeId]) -> Distances {
    let assumed = Distances::uniform(nodes);
    let mut rows: Vec<Distance> = Vec::with_capacity(nodes.len() * nodes.len());
    for &node in nodes {
        let path = format!("{NODES}/node{node}/distance");
        let row = source.text(&path).and_then(|text| match row(&text, nodes.len()) {
            Ok(row) => Some(row),
            Err(why) => {
                source.note(
                    &path,
                    format_args!("{why}; 10 to itself and 20 to every other node are assumed"),
                );
                None
            }
        });
        match row {
            Some(row) => rows.extend(row),
            None => rows.extend(assumed.row(node)),
        }
    }
    Distances::new(nodes, &rows).unwrap_or(assumed)
}

fn row(text: &str, nodes: usize) -> Result<Vec<Distance>, String> {
    let number = |word: &str| {
        word.parse().map_err(|_| format!("read {}, expected a distance of 0 to 255", quoted(word)))
    };
    let row = text
        .split_ascii_whitespace()
        .take(nodes + 1)
        .map(number)
        .collect::<Result<Vec<Distance>, _>>()?;
    if row.len() != nodes {
        return Err(format!(
            "read {}, expected {nodes} distances, one for each online node",
            quoted(text.trim())
        ));
    }
    Ok(row)
}

/// HMAT's figures: `nodeN/access{0,1}/initiators/` (Linux,
/// `Documentation/admin-guide/mm/numaperf.rst`).
pub(super) fn performance(source: &mut Source, nodes: &[NodeId]) -> Vec<Performance> {
    let mut found = Vec::new();
    for &target in nodes {
        for (access, name) in [(Access::Access0, "access0"), (Access::Access1, "access1")] {
            let folder = format!("{NODES}/node{target}/{name}/initiators");
            let initiators = source.numbered(&folder, "node").into_iter().map(NodeId);
            let initiators: Vec<_> =
                initiators.filter(|initiator| nodes.contains(initiator)).collect();
            if initiators.is_empty() {
                continue;
            }
            // The kernel writes 0 if firmware gives no figure. It calls the bandwidth MiB/s but
            // prints HMAT's own number, which is in MB/s (ACPI 6.6, section 5.2.28.4).
            let mut figure = |file: &str| {
                source.number_if_any::<u64>(&format!("{folder}/{file}")).filter(|&n| n > 0)
            };
            let read_latency_ns = figure("read_latency");
            let write_latency_ns = figure("write_latency");
            let read_bandwidth_mb_s = figure("read_bandwidth");
            let write_bandwidth_mb_s = figure("write_bandwidth");
            found.extend(initiators.into_iter().map(|initiator| Performance {
                access,
                initiator,
                target,
                read_latency_ns,
                write_latency_ns,
                read_bandwidth_mb_s,
                write_bandwidth_mb_s,
            }));
        }
    }
    found
}
