//! Random machines.

use nearside_frames::{Memory, Node, Zone};
use proptest::prelude::*;

pub(crate) const ZONES: [Zone; 4] = [Zone::Dma, Zone::Dma32, Zone::Normal, Zone::Movable];

/// A machine's memory and distances.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) nodes: u8,
    pub(crate) memory: Vec<Memory>,
    pub(crate) distances: Vec<u8>,
}

/// Up to four nodes and six ranges, with holes of any size between them.
pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    let range = (0..4_u8, 0..4_usize, 0..1500_u64, 1..3000_u64);
    (1..=4_u8, prop::collection::vec(range, 1..6), prop::collection::vec(11..60_u8, 16)).prop_map(
        |(nodes, ranges, mut distances)| {
            let (mut first, mut memory) = (0, Vec::new());
            for (node, zone, hole, frames) in ranges {
                first += hole;
                memory.push(Memory::new(Node(node % nodes), ZONES[zone], first, frames));
                first += frames;
            }
            distances.truncate(usize::from(nodes) * usize::from(nodes));
            Shape { nodes, memory, distances }
        },
    )
}
