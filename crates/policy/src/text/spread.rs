//! The node of each page of a text that belongs on several nodes.

use super::{Run, TextFile};
use nearside_topology::{NodeId, NodeSet};
use std::ops::Range;

/// Text is spread in stretches of a huge page, so that a page of that size need not be split.
const LARGEST_STRETCH_BYTES: u64 = 2 << 20;

/// The least stretch: the page cache of executables comes in folios of up to this size, and a folio
/// lies on one node.
const LEAST_STRETCH_BYTES: u64 = 64 << 10;

/// The stretches of a text on so many nodes. A text of fewer huge pages than nodes is cut finer.
fn stretch_bytes(extent: &Range<u64>, nodes: usize) -> u64 {
    let share = extent.end.saturating_sub(extent.start) / (nodes as u64).max(1);
    // The largest power of two in it.
    let power = 1_u64 << share.max(1).ilog2();
    power.clamp(LEAST_STRETCH_BYTES, LARGEST_STRETCH_BYTES)
}

/// Where each page of a text belongs.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    nodes: Vec<NodeId>,
    stretch_bytes: u64,
    first: u64,
}

impl Layout {
    /// Of a text that belongs on `nodes`. None without a node. Files begin with different nodes,
    /// or the first nodes of homes would carry most.
    pub(super) fn new(file: &TextFile, nodes: &NodeSet) -> Option<Self> {
        let nodes: Vec<_> = nodes.iter().collect();
        let stretch_bytes = match nodes.len() {
            0 => return None,
            1 => u64::MAX,
            several => stretch_bytes(&file.extent, several),
        };
        Some(Self { nodes, stretch_bytes, first: file.id.inode })
    }

    /// The node of the page at an offset.
    fn node(&self, offset: u64) -> NodeId {
        let stretch = (offset / self.stretch_bytes).wrapping_add(self.first);
        self.nodes[(stretch % self.nodes.len() as u64) as usize]
    }

    /// A run cut where stretches end, each piece with the node it belongs on.
    pub(super) fn pieces(&self, run: Run) -> impl Iterator<Item = (Run, NodeId)> + '_ {
        let mut start = run.start;
        std::iter::from_fn(move || {
            if start >= run.end {
                return None;
            }
            let stretch = start / self.stretch_bytes;
            let end = stretch.saturating_add(1).saturating_mul(self.stretch_bytes).min(run.end);
            let piece = Run { start, end, node: run.node };
            start = end;
            Some((piece, self.node(piece.start)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::FileId;
    use proptest::prelude::*;

    #[test]
    fn large_texts_are_spread_by_huge_pages_and_small_ones_finer() {
        const MIB: u64 = 1 << 20;
        for (bytes, nodes, expected) in [
            (100 * MIB, 2, 2 * MIB),
            (8 * MIB, 4, 2 * MIB),
            (4 * MIB, 4, MIB),
            (MIB + MIB / 2, 2, MIB / 2),
            (100 << 10, 4, 64 << 10),
            (0, 2, 64 << 10),
        ] {
            assert_eq!(stretch_bytes(&(MIB..MIB + bytes), nodes), expected, "{bytes} on {nodes}");
        }
    }

    proptest! {
        /// No node carries more than its share and a stretch at each end.
        #[test]
        fn no_node_carries_all(
            inode in 0_u64..,
            start_pages in 0_u64..100_000,
            pages in 64_u64..100_000,
            count in 2_u32..9,
        ) {
            let nodes: NodeSet = (0..count).map(|it| NodeId(3 * it)).collect();
            let extent = start_pages << 12..(start_pages + pages) << 12;
            let id = FileId { inode, ..FileId::default() };
            let run = Run { start: extent.start, end: extent.end, node: NodeId(0) };
            let layout =
                Layout::new(&TextFile { id, extent, ..TextFile::default() }, &nodes).unwrap();
            let pieces: Vec<_> = layout.pieces(run).collect();
            prop_assert_eq!(pieces.iter().map(|(it, _)| it.bytes()).sum::<u64>(), pages << 12);
            let there = |(it, node): &(Run, NodeId)| Run { node: *node, ..*it };
            let runs: Vec<_> = pieces.iter().map(there).collect();
            let spread = TextFile { runs, ..TextFile::default() }.bytes();
            let share = (pages << 12) / u64::from(count);
            for (node, bytes) in spread {
                prop_assert!(nodes.contains(node));
                prop_assert!(bytes <= share + 2 * layout.stretch_bytes);
            }
        }

        #[test]
        fn one_node_has_all(inode in 0_u64.., offset in 0_u64..1 << 50) {
            let id = FileId { inode, ..FileId::default() };
            let file = TextFile { id, ..TextFile::default() };
            let layout = Layout::new(&file, &"5".parse().unwrap()).unwrap();
            prop_assert_eq!(layout.node(offset), NodeId(5));
        }
    }
}
