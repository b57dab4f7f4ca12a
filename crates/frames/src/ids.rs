//! Frames, extents and nodes.

use core::fmt;

/// The order of a chunk. Under loom, which tries orders of all accesses, a chunk has two words.
const CHUNK_ORDER: u8 = if cfg!(loom) { 7 } else { 9 };

/// Frames of a chunk.
pub const CHUNK_FRAMES: u64 = 1 << CHUNK_ORDER;

/// A NUMA node, by its index in the machine's distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Node(pub u8);

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A page frame, by its number: its address divided by the size of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Frame(pub u64);

/// The size of an extent: 2^order frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Order(u8);

impl Order {
    /// One frame.
    pub const BASE: Self = Self(0);
    /// A chunk: a huge page of 2 MiB where frames have 4 KiB.
    pub const HUGE: Self = Self(CHUNK_ORDER);
    /// The largest order: 64 chunks, 128 MiB where frames have 4 KiB.
    pub const MAX: Self = Self(CHUNK_ORDER + 6);

    /// The order, if it is at most [`Order::MAX`].
    pub const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 { Some(Self(order)) } else { None }
    }

    /// The exponent.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// The number of frames.
    pub const fn frames(self) -> u64 {
        1 << self.0
    }
}

/// 2^order frames from a frame that is a multiple of their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    first: Frame,
    order: Order,
}

impl Extent {
    /// The extent from this frame, if the frame's number is a multiple of the extent's size.
    pub const fn new(first: Frame, order: Order) -> Option<Self> {
        if first.0.is_multiple_of(order.frames()) { Some(Self { first, order }) } else { None }
    }

    pub(crate) const fn at(frame: u64, order: Order) -> Self {
        Self { first: Frame(frame), order }
    }

    /// Its first frame.
    pub const fn first(self) -> Frame {
        self.first
    }

    /// Its size.
    pub const fn order(self) -> Order {
        self.order
    }

    /// The number of its frames.
    pub const fn frames(self) -> u64 {
        self.order.frames()
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frames from {:#x}", self.frames(), self.first.0)
    }
}

/// Memory that devices of a certain width can address, or that only movable contents use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Zone {
    /// Below 16 MiB: 24 bits of address.
    Dma,
    /// Below 4 GiB: 32 bits of address.
    Dma32,
    /// Above.
    #[default]
    Normal,
    /// Contents that can be moved away, so that the memory can be taken offline.
    Movable,
}

impl Zone {
    /// This zone and those that serve in its place, in order. Memory that is scarcer comes later.
    pub const fn and_fallbacks(self) -> &'static [Self] {
        match self {
            Self::Dma => &[Self::Dma],
            Self::Dma32 => &[Self::Dma32, Self::Dma],
            Self::Normal => &[Self::Normal, Self::Dma32, Self::Dma],
            Self::Movable => &[Self::Movable, Self::Normal, Self::Dma32, Self::Dma],
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        })
    }
}
