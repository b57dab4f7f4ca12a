//! The state of the heap: free blocks by node, zone and order, from `/proc/buddyinfo`.

use super::units::short;
use nearside_topology::{NodeId, Topology};
use serde::Serialize;

/// One zone of one node.
#[derive(Debug, Serialize)]
pub(crate) struct ZoneHeap {
    pub(crate) node: NodeId,
    pub(crate) zone: String,
    /// Free memory in bytes: the sum over the blocks, without pages on per-CPU lists.
    pub(crate) free_bytes: u64,
    /// The size of a block of order 0, in bytes.
    pub(crate) page_bytes: u64,
    /// Free blocks: entry `k` counts blocks of 2^k pages.
    pub(crate) free_blocks: Vec<u64>,
}

/// The zones of a machine that have memory.
pub(crate) fn zones(topology: &Topology) -> Vec<ZoneHeap> {
    let page_bytes = nearside_linux::sys::page_bytes();
    let of_node = |node: &nearside_topology::Node| {
        let id = node.id;
        let zone = move |zone: &nearside_topology::Zone| ZoneHeap {
            node: id,
            zone: zone.name.clone(),
            free_bytes: free_bytes(&zone.free_blocks, page_bytes),
            page_bytes,
            free_blocks: zone.free_blocks.clone(),
        };
        node.zones.iter().map(zone).collect::<Vec<_>>()
    };
    topology.nodes.iter().flat_map(of_node).collect()
}

fn block_bytes(page_bytes: u64, order: usize) -> u64 {
    u32::try_from(order).ok().and_then(|order| page_bytes.checked_shl(order)).unwrap_or(u64::MAX)
}

fn free_bytes(free_blocks: &[u64], page_bytes: u64) -> u64 {
    let blocks = free_blocks.iter().enumerate();
    blocks
        .map(|(order, n)| n.saturating_mul(block_bytes(page_bytes, order)))
        .fold(0, u64::saturating_add)
}

/// A matrix with a line for each zone. Its dozen narrow columns stand closer than those of other
/// tables.
pub(crate) fn text(zones: &[ZoneHeap]) -> String {
    let orders = zones.iter().map(|zone| zone.free_blocks.len()).max().unwrap_or(0);
    if orders == 0 {
        return "\nFree blocks: unknown (this kernel has no /proc/buddyinfo)\n".into();
    }
    let page_bytes = zones.first().map_or(0, |zone| zone.page_bytes);
    let words = |first: [&str; 2], words: Vec<String>, last: &str| {
        let mut line: Vec<String> = first.map(str::to_owned).into();
        line.extend(words);
        line.push(last.to_owned());
        line
    };
    let mut lines = vec![
        words(["node", "order"], (0..orders).map(|order| order.to_string()).collect(), ""),
        words(
            ["", "block"],
            (0..orders).map(|order| short(block_bytes(page_bytes, order))).collect(),
            "free",
        ),
    ];
    for zone in zones {
        let blocks =
            (0..orders).map(|order| zone.free_blocks.get(order).copied().unwrap_or(0).to_string());
        lines.push(words(
            [&zone.node.to_string(), &zone.zone],
            blocks.collect(),
            &short(zone.free_bytes),
        ));
    }
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..orders + 3).map(width).collect();
    let mut text = "\nFree blocks by zone and order\n".to_owned();
    for line in &lines {
        let cells =
            line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                1 => format!(" {cell:<width$}"),
                _ => format!(" {cell:>width$}"),
            });
        text += &format!(" {}\n", cells.collect::<String>().trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_order_k_has_2_to_the_k_pages() {
        assert_eq!(free_bytes(&[3, 0, 2], 4096), (3 + 8) * 4096);
        assert_eq!(free_bytes(&[u64::MAX, 1], 4096), u64::MAX);
    }

    #[test]
    fn unknown_free_blocks_give_a_note_instead_of_a_matrix() {
        assert_eq!(text(&[]).lines().count(), 2);
    }
}
