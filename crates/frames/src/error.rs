//! Errors, with what was found where.

use crate::ids::{Extent, Frame, Node, Order, Zone};

/// The reason why a machine was not built, or an operation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A node is not in the table of distances.
    #[error("{0} has no distances")]
    UnknownNode(Node),
    /// The table of distances is not square, or has too many rows.
    #[error("{entries} distances: expected a square table of at most {max_nodes} rows")]
    Distances {
        /// Its number of entries.
        entries: usize,
        /// The most rows that it may have.
        max_nodes: usize,
    },
    /// More ranges of memory than a machine can have.
    #[error("{ranges} ranges of memory: at most {max_ranges}")]
    TooManyRanges {
        /// Their number.
        ranges: usize,
        /// The most that there may be.
        max_ranges: usize,
    },
    /// A range has no frames.
    #[error("the memory from frame {:#x} on {node} is empty", first.0)]
    Empty {
        /// Its node.
        node: Node,
        /// Its first frame.
        first: Frame,
    },
    /// A range ends beyond the last frame number.
    #[error("{frames} frames from {:#x} on {node} end beyond the address space", first.0)]
    TooLarge {
        /// Its node.
        node: Node,
        /// Its first frame.
        first: Frame,
        /// Its frames.
        frames: u64,
    },
    /// Two ranges have frames in common.
    #[error("frame {:#x} is in two ranges of memory", .0.0)]
    Overlap(Frame),
    /// The metadata of a range are too small.
    #[error("range {range} needs metadata of {needed_words} words of 64 bits, and has {words}")]
    Metadata {
        /// The range, by its place in the list.
        range: usize,
        /// The words that it needs.
        needed_words: usize,
        /// The words that it has.
        words: usize,
    },
    /// No memory that the request permits is free in one piece.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A frame was freed that was free.
    #[error("frame {:#x} on {node} was freed twice", frame.0)]
    DoubleFree {
        /// The frame.
        frame: Frame,
        /// Its node.
        node: Node,
    },
    /// An extent was freed that is not in the machine.
    #[error("{0} are not in one range of this machine's memory")]
    Foreign(Extent),
}

/// The refused request, and the memory that was free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no extent of order {} in zone {zone}: {free_frames} frames are free on {nodes} permitted \
     nodes (most of them, {most_frames}, on {most})",
    order.exponent()
)]
pub struct OutOfMemory {
    /// The order asked for.
    pub order: Order,
    /// The zone asked for.
    pub zone: Zone,
    /// The number of permitted nodes.
    pub nodes: u32,
    /// Frames that are free there in the zone and those that may serve in its place. Frames in
    /// caches do not count.
    pub free_frames: u64,
    /// The permitted node with most of them.
    pub most: Node,
    /// Free frames there.
    pub most_frames: u64,
}
