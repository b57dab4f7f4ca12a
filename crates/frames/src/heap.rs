//! The free memory of a machine, looked at without stopping allocation.

use crate::{
    chunk::{Chunk, bits, first_in_word},
    ids::{CHUNK_FRAMES, Extent, Frame, Node, Order, Zone},
    machine::Machine,
    region::Region,
    withheld::FrameState,
};

const ORDERS: usize = Order::MAX.exponent() as usize + 1;

/// The free memory of a machine.
#[derive(Debug)]
pub struct Heap<'m> {
    machine: &'m Machine<'m>,
}

impl<'m> Heap<'m> {
    /// The free memory of this machine. Its threads may go on to allocate.
    pub fn of(machine: &'m Machine<'m>) -> Self {
        Self { machine }
    }

    /// Each range of memory, by its first frame.
    pub fn regions(&self) -> impl Iterator<Item = RegionHeap> {
        self.machine.regions().iter().flatten().map(RegionHeap::of)
    }

    /// Free frames of a node. Frames in caches do not count.
    pub fn free_frames(&self, node: Node) -> u64 {
        self.machine.free_frames(node)
    }

    /// The frames that are offline, marked or poisoned. None of them is free.
    pub fn withheld(&self) -> impl Iterator<Item = (Frame, FrameState)> {
        self.machine.withheld().iter()
    }

    /// Free frames of a node that are claimed. Frames in caches do not count.
    pub fn claimed_frames(&self, node: Node) -> u64 {
        if self.machine.has_node(node) { self.machine.account(node).claimed() } else { 0 }
    }

    /// Free frames of a node that nobody has claimed. Frames in caches do not count.
    pub fn unclaimed_frames(&self, node: Node) -> u64 {
        if self.machine.has_node(node) { self.machine.account(node).unclaimed() } else { 0 }
    }
}

/// The free memory of one range. Frames in caches do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionHeap {
    /// The node.
    pub node: Node,
    /// The zone.
    pub zone: Zone,
    /// All frames, free or not.
    pub frames: u64,
    /// The free frames.
    pub free_frames: u64,
    /// The number of free blocks by order. A block is as large as its neighbours permit, and
    /// aligned.
    pub blocks: [u64; ORDERS],
    /// The largest of these blocks; the first, if there are several.
    pub largest: Option<Extent>,
}

impl RegionHeap {
    fn of(region: &Region<'_>) -> Self {
        let mut heap = Self {
            node: region.node,
            zone: region.zone,
            frames: region.end - region.first,
            free_frames: 0,
            blocks: [0; ORDERS],
            largest: None,
        };
        for (at, word) in region.whole_words().enumerate() {
            let mut left = word;
            for runs in (0..=6).rev() {
                while let Some(bit) = first_in_word(left, runs) {
                    left &= !bits(bit, runs);
                    heap.add(
                        region.frame_of(at * 64 + bit as usize),
                        Order::HUGE.exponent() + runs,
                    );
                }
            }
        }
        for chunk in region.partial_chunks() {
            let mut left: Chunk = region.peek(chunk);
            for exponent in (0..Order::HUGE.exponent()).rev() {
                let Some(order) = Order::new(exponent) else { continue };
                while let Some(first) = left.find(order) {
                    left.take(first, order);
                    heap.add(region.frame_of(chunk) + u64::from(first), exponent);
                }
            }
        }
        heap
    }

    fn add(&mut self, first: u64, exponent: u8) {
        let Some(order) = Order::new(exponent) else { return };
        let extent = Extent::at(first, order);
        self.blocks[usize::from(exponent)] += 1;
        self.free_frames += extent.frames();
        let larger = |largest: Extent| {
            (order, core::cmp::Reverse(first))
                > (largest.order(), core::cmp::Reverse(largest.first().0))
        };
        if self.largest.is_none_or(larger) {
            self.largest = Some(extent);
        }
    }

    /// The free chunks: huge pages of 2 MiB where frames have 4 KiB.
    pub fn free_chunks(&self) -> u64 {
        let from = usize::from(Order::HUGE.exponent());
        (0..).zip(&self.blocks[from..]).map(|(runs, blocks)| blocks << runs).sum()
    }

    /// The share of free frames outside of free chunks, from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        match self.free_frames {
            0 => 0.0,
            free => 1.0 - (self.free_chunks() * CHUNK_FRAMES) as f64 / free as f64,
        }
    }
}
