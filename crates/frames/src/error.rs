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
    /// A claim is larger than what is free and unclaimed.
    #[error(
        "no claim of {frames} frames on {node}: {unclaimed_frames} are free there, and \
         {claimed_frames} more that are claimed"
    )]
    ClaimRefused {
        /// The node.
        node: Node,
        /// The frames asked for.
        frames: u64,
        /// Frames that are free there and that nobody has claimed. Frames in caches do not count.
        unclaimed_frames: u64,
        /// Frames that are free there and claimed.
        claimed_frames: u64,
    },
    /// A claim has fewer frames left than an extent needs.
    #[error("{frames} frames exceed a claim on {node}, of which {left_frames} are left")]
    ClaimExceeded {
        /// Its node.
        node: Node,
        /// The frames asked for.
        frames: u64,
        /// The frames left in it.
        left_frames: u64,
    },
    /// A node has free frames enough, and no extent of the order in one piece.
    #[error(
        "no extent of order {} on {node}, where {free_frames} frames are free",
        order.exponent()
    )]
    Fragmented {
        /// The node.
        node: Node,
        /// The order asked for.
        order: Order,
        /// Frames that are free there. Frames in caches do not count.
        free_frames: u64,
    },
    /// A guest's page table has no room in a row.
    #[error("no guest frames in a row for {extents} extents of order {}", order.exponent())]
    NoGuestFrames {
        /// The order.
        order: Order,
        /// The number of extents.
        extents: u64,
    },
    /// No extent of the order may begin at a guest frame, or end where it would end.
    #[error("guest frame {guest_frame:#x} is no place for an extent of order {}", order.exponent())]
    NoPlace {
        /// The guest frame.
        guest_frame: u64,
        /// The order.
        order: Order,
    },
    /// A guest frame has an extent already, or was named twice.
    #[error("guest frame {0:#x} has an extent already")]
    Mapped(u64),
    /// No extent begins at a guest frame, or it was named twice.
    #[error("guest frame {0:#x} has no extent of its own to give up")]
    Unmapped(u64),
    /// A range of guest frames has a part of an extent.
    #[error("guest frame {0:#x} is inside of an extent, where a range begins or ends")]
    Cut(u64),
    /// The caller has not copied contents.
    #[error("the contents of guest frame {0:#x} were not copied")]
    NotCopied(u64),
    /// A frame to be taken offline is in use, in a cache, or withheld already.
    #[error("frame {:#x} is not free", .0.0)]
    NotFree(Frame),
    /// A frame to be brought online is not offline.
    #[error("frame {:#x} is not offline", .0.0)]
    NotOffline(Frame),
    /// The table of withheld frames has no room.
    #[error("the table of withheld frames has {entries} entries, and all are in use")]
    TableFull {
        /// Its entries.
        entries: usize,
    },
    /// A machine has a keeper already.
    #[error("the machine has a keeper already")]
    SecondKeeper,
    /// A cache or a claim belongs to another machine than a guest.
    #[error("the source of memory belongs to another machine than the guest")]
    OtherMachine,
}

/// The refused request, and the memory that was free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no extent of order {} in zone {zone}: {free_frames} frames are free on {nodes} permitted \
     nodes (most of them, {most_frames}, on {most}), where {claimed_frames} are claimed",
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
    /// Frames that are claimed on the permitted nodes, in any zone. They are free too.
    pub claimed_frames: u64,
    /// The permitted node with most free frames.
    pub most: Node,
    /// Free frames there.
    pub most_frames: u64,
}
