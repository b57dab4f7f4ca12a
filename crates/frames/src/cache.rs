//! The way to a machine's memory for one CPU.

use crate::{
    chunk::Chunk,
    counted::double_free,
    error::Error,
    ids::{CHUNK_FRAMES, Extent, Frame, Node, Order, Zone},
    machine::Machine,
    policy::{Policy, Request},
    region::Region,
};

/// Whole chunks that a cache holds at most in each direction.
const CHUNKS: u32 = 8;

/// The way to a [`Machine`]'s memory for one CPU, or one thread. It owns some free frames of its
/// node, so most calls need no atomic operation.
///
/// Dropping it hands its frames back.
#[derive(Debug)]
pub struct Cache<'m> {
    machine: &'m Machine<'m>,
    node: Node,
    /// Frames to allocate from. They are of this cache's node.
    from: Slot,
    /// Frames that were freed.
    to: Slot,
    /// Chunks to allocate from, of this cache's node.
    from_chunks: Chunks,
    /// Chunks that were freed.
    to_chunks: Chunks,
    /// The chunk of the last frame that was freed and was in neither slot.
    missed: u64,
    /// Interleaved extents so far.
    turns: u64,
    /// The marks of frames that its own frames have been compared with.
    seen: u64,
}

/// Free frames of one chunk.
#[derive(Debug, Clone, Copy)]
struct Slot {
    region: usize,
    zone: Zone,
    /// The frames of the chunk that are in the region; none in an empty slot.
    first: u64,
    frames: u64,
    /// The first frame of the chunk.
    base: u64,
    free: Chunk,
    free_frames: u32,
}

impl Slot {
    const EMPTY: Self = Self {
        region: usize::MAX,
        zone: Zone::Normal,
        first: u64::MAX,
        frames: 0,
        base: u64::MAX,
        free: Chunk::EMPTY,
        free_frames: 0,
    };

    /// Those of a frame's chunk that are free.
    fn new(at: usize, region: &Region<'_>, frame: u64, free: Chunk) -> Self {
        let base = frame / CHUNK_FRAMES * CHUNK_FRAMES;
        let (first, end) = (base.max(region.first), (base + CHUNK_FRAMES).min(region.end));
        let free_frames = if free.is_empty() { 0 } else { free.free_frames() as u32 };
        Self { region: at, zone: region.zone, first, frames: end - first, base, free, free_frames }
    }

    #[inline]
    fn has(&self, extent: Extent) -> bool {
        let before = extent.first().0.wrapping_sub(self.first);
        before < self.frames && extent.frames() <= self.frames - before
    }

    #[inline]
    fn take(&mut self, order: Order) -> Option<Extent> {
        if self.free_frames == 0 {
            return None;
        }
        let first = self.free.take_first(order)?;
        self.free_frames -= order.frames() as u32;
        Some(Extent::at(self.base + u64::from(first), order))
    }

    #[inline]
    fn give(&mut self, extent: Extent) -> Result<(), Frame> {
        let first = (extent.first().0 % CHUNK_FRAMES) as u32;
        match self.free.give(first, extent.order()) {
            Ok(()) => {
                self.free_frames += extent.frames() as u32;
                Ok(())
            }
            Err(twice) => Err(Frame(self.base + u64::from(twice))),
        }
    }
}

/// Whole chunks of one word of a region's map.
#[derive(Debug, Clone, Copy)]
struct Chunks {
    region: usize,
    zone: Zone,
    word: usize,
    /// The frame of the word's first bit.
    first: u64,
    /// The word's chunks that lie in the region as a whole.
    within: u64,
    bits: u64,
}

impl Chunks {
    const EMPTY: Self = Self {
        region: usize::MAX,
        zone: Zone::Normal,
        word: 0,
        first: u64::MAX,
        within: 0,
        bits: 0,
    };

    fn new(at: usize, region: &Region<'_>, word: usize, bits: u64) -> Self {
        let first = region.frame_of(word * 64);
        // Chunks below the region, and those from its end on.
        let below = region.first.saturating_sub(first).div_ceil(CHUNK_FRAMES);
        let end = (region.end.saturating_sub(first) / CHUNK_FRAMES).min(64);
        let up_to = |chunks: u64| if chunks >= 64 { !0 } else { (1 << chunks) - 1 };
        let within = up_to(end) & !up_to(below);
        Self { region: at, zone: region.zone, word, first, within, bits }
    }

    /// Whether the chunk of a frame is one of them.
    #[inline]
    fn has(&self, frame: u64) -> bool {
        let at = frame.wrapping_sub(self.first) / CHUNK_FRAMES;
        at < 64 && self.bits >> at & 1 == 1
    }

    /// Adds a chunk of the same word, unless it is there, or there are many.
    #[inline]
    fn give(&mut self, chunk: Extent) -> bool {
        let at = chunk.first().0.wrapping_sub(self.first) / CHUNK_FRAMES;
        let is_new = at < 64 && self.bits >> at & 1 == 0 && self.bits.count_ones() < CHUNKS;
        // Some of the word's chunks may lie outside of the region, where no bit has ever been set.
        let is_within = self.within >> (at % 64) & 1 == 1;
        if is_new && is_within {
            self.bits |= 1 << at;
        }
        is_new && is_within
    }

    #[inline]
    fn take(&mut self) -> Option<Extent> {
        (self.bits != 0).then(|| {
            let chunk = u64::from(self.bits.trailing_zeros());
            self.bits &= self.bits - 1;
            Extent::at(self.first + chunk * CHUNK_FRAMES, Order::HUGE)
        })
    }
}

impl<'m> Cache<'m> {
    /// A cache for a CPU of this node.
    ///
    /// # Errors
    /// If the machine has no such node.
    pub fn new(machine: &'m Machine<'m>, node: Node) -> Result<Self, Error> {
        if !machine.has_node(node) {
            return Err(Error::UnknownNode(node));
        }
        let (from, to) = (Slot::EMPTY, Slot::EMPTY);
        let (from_chunks, to_chunks) = (Chunks::EMPTY, Chunks::EMPTY);
        let (missed, turns, seen) = (u64::MAX, 0, machine.withheld().version());
        Ok(Self { machine, node, from, to, from_chunks, to_chunks, missed, turns, seen })
    }

    pub(crate) fn machine(&self) -> &'m Machine<'m> {
        self.machine
    }

    /// The node of its CPU.
    pub fn node(&self) -> Node {
        self.node
    }

    /// Frames that it holds, free for itself alone.
    pub fn free_frames(&self) -> u64 {
        let chunks = self.from_chunks.bits.count_ones() + self.to_chunks.bits.count_ones();
        u64::from(self.from.free_frames + self.to.free_frames) + u64::from(chunks) * CHUNK_FRAMES
    }

    /// Allocates from zone Normal, from the cache's node if it has room.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no node has room, and [`Error::DoubleFree`] if a frame that was
    /// freed before was free already.
    #[inline]
    pub fn allocate(&mut self, order: Order) -> Result<Extent, Error> {
        if self.seen != self.machine.withheld().version() {
            self.give_marked()?;
        }
        let own = match order {
            Order::HUGE if self.from_chunks.zone == Zone::Normal => self.from_chunks.take(),
            order if order < Order::HUGE && self.from.zone == Zone::Normal => self.from.take(order),
            _ => None,
        };
        if let Some(extent) = own {
            return Ok(extent);
        }
        self.allocate_with(&Request::new(order))
    }

    /// Allocates what a request describes.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`Error::UnknownNode`] for a node that the machine
    /// lacks.
    pub fn allocate_with(&mut self, request: &Request<'_>) -> Result<Extent, Error> {
        if let Policy::Exact(node) | Policy::Preferred(node) = request.policy
            && !self.machine.has_node(node)
        {
            return Err(Error::UnknownNode(node));
        }
        if self.seen != self.machine.withheld().version() {
            self.give_marked()?;
        }
        let order = self.machine.order(self.node, &request.policy, self.turns);
        let mut fault = None;
        let found = self.machine.first(&order, request, |at, _| {
            self.take(at, request.order, &mut fault).or_else(|| {
                // Its own frames may be those that are missing there.
                (self.free_frames() > 0).then_some(())?;
                self.flush().unwrap_or_else(|error| fault = Some(error));
                self.take(at, request.order, &mut fault)
            })
        });
        match (found, fault) {
            (_, Some(fault)) => {
                if let Some(extent) = found {
                    self.free(extent)?;
                }
                Err(fault)
            }
            (None, None) => Err(self.machine.out_of_memory(&order, request).into()),
            (Some(extent), None) => {
                let is_interleaved =
                    matches!(request.policy, Policy::Interleave(_) | Policy::WeightedInterleave(_));
                self.turns += u64::from(is_interleaved);
                Ok(extent)
            }
        }
    }

    /// Hands its frames back, since some of them may be marked as poisoned. Those stay with the
    /// machine.
    #[cold]
    fn give_marked(&mut self) -> Result<(), Error> {
        self.seen = self.machine.withheld().version();
        self.flush()
    }

    /// Takes an extent from a region, of this node or another one.
    fn take(&mut self, at: usize, order: Order, fault: &mut Option<Error>) -> Option<Extent> {
        let region = self.machine.region(at)?;
        let is_own = region.node == self.node;
        match order {
            Order::HUGE if is_own => self.take_chunk(at, fault),
            order if is_own && order < Order::HUGE => self.take_frames(at, order, fault),
            _ => self.machine.take(at, order, fault),
        }
    }

    /// Takes frames of a region of this node.
    fn take_frames(
        &mut self,
        at: usize,
        order: Order,
        fault: &mut Option<Error>,
    ) -> Option<Extent> {
        if self.from.region == at
            && let Some(extent) = self.from.take(order)
        {
            return Some(extent);
        }
        if self.to.region == at
            && let Some(extent) = self.to.take(order)
        {
            core::mem::swap(&mut self.from, &mut self.to);
            return Some(extent);
        }
        let region = self.machine.region(at)?;
        let account = self.machine.account(region.node);
        if !account.take(order.frames()) {
            return None;
        }
        let Some((chunk, mut free)) = self.machine.claim_for(at, order, fault) else {
            account.add(order.frames());
            return None;
        };
        if !account.take(free.free_frames() - order.frames()) {
            // Others have claimed some of these frames.
            let first = free.take_first(order)?;
            let given = self.machine.put_back(at, chunk, &free);
            given.unwrap_or_else(|error| *fault = Some(error));
            return Some(Extent::at(region.frame_of(chunk) + u64::from(first), order));
        }
        let new = Slot::new(at, region, region.frame_of(chunk), free);
        let before = core::mem::replace(&mut self.from, new);
        self.hand_back(&before).unwrap_or_else(|error| *fault = Some(error));
        self.from.take(order)
    }

    /// Takes a whole chunk of a region of this node.
    fn take_chunk(&mut self, at: usize, fault: &mut Option<Error>) -> Option<Extent> {
        if self.from_chunks.region != at || self.from_chunks.bits == 0 {
            if self.to_chunks.region == at && self.to_chunks.bits != 0 {
                core::mem::swap(&mut self.from_chunks, &mut self.to_chunks);
            } else {
                let region = self.machine.region(at)?;
                let account = self.machine.account(region.node);
                let most = u64::from(CHUNKS) * CHUNK_FRAMES;
                let granted = account.take_up_to(CHUNK_FRAMES, most);
                let count = (granted / CHUNK_FRAMES) as u32;
                let (word, bits) = self.machine.take_chunks(at, count, fault)?;
                account.add(granted - u64::from(bits.count_ones()) * CHUNK_FRAMES);
                if bits == 0 {
                    return None;
                }
                let new = Chunks::new(at, region, word, bits);
                let before = core::mem::replace(&mut self.from_chunks, new);
                self.hand_chunks_back(before).unwrap_or_else(|error| *fault = Some(error));
            }
        }
        self.from_chunks.take()
    }

    /// Frees an extent, or a part of one, or several neighbours as one.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the extent is not in the machine's memory, and [`Error::DoubleFree`]
    /// if some of it is free in this cache. A frame that is free elsewhere is found when the chunk
    /// is handed back, by this cache or by the other one, unless somebody has allocated the frame
    /// meanwhile. The error names that frame then, and the present extent is free.
    #[inline]
    pub fn free(&mut self, extent: Extent) -> Result<(), Error> {
        if self.machine.withheld().may_have_marks() && self.machine.is_marked(extent) {
            return self.machine.give_extent(extent);
        }
        if extent.order() >= Order::HUGE {
            let is_in = |slot: &Slot| slot.base == extent.first().0 && slot.free_frames > 0;
            if extent.order() == Order::HUGE
                && !is_in(&self.from)
                && !is_in(&self.to)
                && !self.from_chunks.has(extent.first().0)
                && self.to_chunks.give(extent)
            {
                return Ok(());
            }
            return self.free_chunks(extent);
        }
        let slot = match () {
            () if self.from.has(extent) => &mut self.from,
            () if self.to.has(extent) => &mut self.to,
            () => return self.free_elsewhere(extent),
        };
        match slot.give(extent) {
            Ok(()) => Ok(()),
            Err(twice) => {
                let region = slot.region;
                Err(self.double_free(region, twice))
            }
        }
    }

    fn free_elsewhere(&mut self, extent: Extent) -> Result<(), Error> {
        let at = self.machine.region_of(extent).ok_or(Error::Foreign(extent))?;
        let Some(region) = self.machine.region(at) else { return Ok(()) };
        for own in [&self.from_chunks, &self.to_chunks] {
            if own.has(extent.first().0) {
                return Err(double_free(region, extent.first()));
            }
        }
        let chunk = extent.first().0 / CHUNK_FRAMES;
        // A slot pays if several frames of its chunk are freed.
        if core::mem::replace(&mut self.missed, chunk) != chunk {
            return self.machine.give_extent(extent);
        }
        let mut new = Slot::new(at, region, extent.first().0, Chunk::EMPTY);
        new.give(extent).map_err(|twice| double_free(region, twice))?;
        let before = core::mem::replace(&mut self.to, new);
        self.hand_back(&before)
    }

    #[cold]
    fn double_free(&self, region: usize, frame: Frame) -> Error {
        let node = self.machine.region(region).map_or(self.node, |it| it.node);
        Error::DoubleFree { frame, node }
    }

    fn free_chunks(&mut self, extent: Extent) -> Result<(), Error> {
        let at = self.machine.region_of(extent).ok_or(Error::Foreign(extent))?;
        let Some(region) = self.machine.region(at) else { return Ok(()) };
        let first = region.index_of(extent.first().0);
        let count = (extent.frames() / CHUNK_FRAMES) as u32;
        let bits = if count == 64 { !0 } else { (1 << count) - 1 } << (first % 64);
        let double = |chunk: u32| Error::DoubleFree {
            frame: Frame(region.frame_of(first / 64 * 64 + chunk as usize)),
            node: region.node,
        };
        for own in [&self.from_chunks, &self.to_chunks] {
            let twice = own.bits & bits;
            if own.region == at && own.word == first / 64 && twice != 0 {
                return Err(double(twice.trailing_zeros()));
            }
        }
        for own in [&self.from, &self.to].into_iter().filter(|it| it.region == at) {
            let is_in = own.base.wrapping_sub(extent.first().0) < extent.frames();
            if is_in && let Some(twice) = own.free.find(Order::BASE) {
                return Err(double_free(region, Frame(own.base + u64::from(twice))));
            }
        }
        if count > 1 {
            return self.machine.give_chunks(at, first / 64, bits);
        }
        let is_same = self.to_chunks.region == at && self.to_chunks.word == first / 64;
        if is_same && self.to_chunks.bits.count_ones() < CHUNKS {
            self.to_chunks.bits |= bits;
            return Ok(());
        }
        let new = Chunks::new(at, region, first / 64, bits);
        let before = core::mem::replace(&mut self.to_chunks, new);
        self.hand_chunks_back(before)
    }

    /// Hands all of its frames back to the machine.
    ///
    /// # Errors
    /// [`Error::DoubleFree`] with a frame that was free already. All frames are handed back.
    pub fn flush(&mut self) -> Result<(), Error> {
        let [from, to] =
            [&mut self.from, &mut self.to].map(|slot| core::mem::replace(slot, Slot::EMPTY));
        let [from_chunks, to_chunks] = [&mut self.from_chunks, &mut self.to_chunks]
            .map(|chunks| core::mem::replace(chunks, Chunks::EMPTY));
        let all = [
            self.hand_back(&from),
            self.hand_back(&to),
            self.hand_chunks_back(from_chunks),
            self.hand_chunks_back(to_chunks),
        ];
        all.into_iter().find(Result::is_err).unwrap_or(Ok(()))
    }

    fn hand_back(&self, slot: &Slot) -> Result<(), Error> {
        match self.machine.region(slot.region) {
            Some(region) if slot.free_frames > 0 => {
                let chunk = region.index_of(slot.first);
                self.machine.give(slot.region, chunk, &slot.free)
            }
            _ => Ok(()),
        }
    }

    fn hand_chunks_back(&self, chunks: Chunks) -> Result<(), Error> {
        match chunks.bits {
            0 => Ok(()),
            bits => self.machine.give_chunks(chunks.region, chunks.word, bits),
        }
    }
}

impl Drop for Cache<'_> {
    fn drop(&mut self) {
        if self.flush().is_err() {
            self.machine.add_late_fault();
        }
    }
}
