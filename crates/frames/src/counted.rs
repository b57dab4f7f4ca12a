//! Frames on their way to and from regions: counted by node, and without those that are withheld.

use crate::{
    chunk::Chunk,
    error::Error,
    ids::{CHUNK_FRAMES, Extent, Frame, Node, Order, Zone},
    machine::Machine,
    region::Region,
    withheld::FrameState,
};

pub(crate) fn double_free(region: &Region<'_>, frame: Frame) -> Error {
    Error::DoubleFree { frame, node: region.node }
}

/// The outcome of frames that were handed back.
#[derive(Debug, Default)]
struct Given {
    /// Frames by which the free memory has grown.
    frames: i64,
    /// The first frame that was free already.
    twice: Option<Frame>,
}

impl Given {
    fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.twice = self.twice.or(other.twice);
    }

    fn result(&self, region: &Region<'_>) -> Result<(), Error> {
        self.twice.map_or(Ok(()), |frame| Err(double_free(region, frame)))
    }
}

impl Machine<'_> {
    /// Takes an extent from a region, if nobody has claimed its frames.
    pub(crate) fn take(
        &self,
        at: usize,
        order: Order,
        fault: &mut Option<Error>,
    ) -> Option<Extent> {
        let account = self.account(self.region(at)?.node);
        if !account.take(order.frames()) {
            return None;
        }
        let found = self.draw(at, order, fault);
        if found.is_none() {
            account.add(order.frames());
        }
        found
    }

    /// Takes an extent from a node whose frames have been counted out. Zone Movable comes first and
    /// the scarcest zone last.
    pub(crate) fn draw_from(
        &self,
        node: Node,
        order: Order,
        fault: &mut Option<Error>,
    ) -> Option<Extent> {
        Zone::Movable.and_fallbacks().iter().find_map(|zone| {
            let regions = self.regions().iter().enumerate();
            let mut permitted = regions.filter(|(_, region)| {
                region.as_ref().is_some_and(|it| it.node == node && it.zone == *zone)
            });
            permitted.find_map(|(at, _)| self.draw(at, order, fault))
        })
    }

    /// Takes an extent from a region whose frames have been counted out.
    fn draw(&self, at: usize, order: Order, fault: &mut Option<Error>) -> Option<Extent> {
        let region = self.region(at)?;
        if order >= Order::HUGE {
            loop {
                let chunk = region.take_run(order)?;
                let extent = Extent::at(region.frame_of(chunk), order);
                if !self.has_marks(extent.first().0, order.frames()) {
                    return Some(extent);
                }
                for chunk in chunk..chunk + (order.frames() / CHUNK_FRAMES) as usize {
                    let free = self.without_marks(region, chunk, Chunk::FULL);
                    self.put_back(at, chunk, &free).unwrap_or_else(|error| *fault = Some(error));
                }
            }
        }
        let (chunk, mut free) = self.claim_for(at, order, fault)?;
        let first = free.take_first(order)?;
        self.put_back(at, chunk, &free).unwrap_or_else(|error| *fault = Some(error));
        Some(Extent::at(region.frame_of(chunk) + u64::from(first), order))
    }

    /// Takes the free frames of a chunk that has an extent of this order, which is below that of a
    /// chunk. The extent's frames have been counted out, the others have not.
    pub(crate) fn claim_for(
        &self,
        at: usize,
        order: Order,
        fault: &mut Option<Error>,
    ) -> Option<(usize, Chunk)> {
        let region = self.region(at)?;
        loop {
            let (chunk, free) = region.claim_for(order)?;
            let free = self.without_marks(region, chunk, free);
            if free.find(order).is_some() {
                return Some((chunk, free));
            }
            self.put_back(at, chunk, &free).unwrap_or_else(|error| *fault = Some(error));
        }
    }

    /// Takes up to `count` whole chunks of one word, which have been counted out: the word and
    /// their bits, or none.
    pub(crate) fn take_chunks(
        &self,
        at: usize,
        count: u32,
        fault: &mut Option<Error>,
    ) -> Option<(usize, u64)> {
        let region = self.region(at)?;
        loop {
            let (word, bits) = region.take_chunks(count);
            let mut left = bits;
            for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                let chunk = word * 64 + bit;
                if self.has_marks(region.frame_of(chunk), CHUNK_FRAMES) {
                    left &= !(1 << bit);
                    let free = self.without_marks(region, chunk, Chunk::FULL);
                    self.put_back(at, chunk, &free).unwrap_or_else(|error| *fault = Some(error));
                }
            }
            if left != 0 || bits == 0 {
                return Some((word, left));
            }
        }
    }

    /// Whether some frame of an extent is marked.
    #[cold]
    pub(crate) fn is_marked(&self, extent: Extent) -> bool {
        self.has_marks(extent.first().0, extent.frames())
    }

    fn has_marks(&self, first: u64, frames: u64) -> bool {
        let withheld = self.withheld();
        withheld.has_marks()
            && withheld.within(first, frames).any(|(_, state)| state == FrameState::Marked)
    }

    /// Free frames that were taken from a chunk, without those that are marked. These were counted
    /// as free, and are poisoned now.
    fn without_marks(&self, region: &Region<'_>, chunk: usize, mut free: Chunk) -> Chunk {
        let withheld = self.withheld();
        if withheld.has_marks() {
            let first = region.frame_of(chunk);
            for (frame, _) in withheld.within(first, CHUNK_FRAMES) {
                let at = (frame.0 - first) as u32;
                if free.has(at) && withheld.settle(frame) {
                    free.take(at, Order::BASE);
                    self.account(region.node).correct(1);
                }
            }
        }
        free
    }

    /// Hands frames of a chunk back that have not been counted out.
    pub(crate) fn put_back(&self, at: usize, chunk: usize, free: &Chunk) -> Result<(), Error> {
        let Some(region) = self.region(at) else { return Ok(()) };
        if free.is_empty() {
            return Ok(());
        }
        region.give(chunk, free).map_err(|twice| {
            self.account(region.node).correct(twice.frames as i64);
            double_free(region, twice.frame)
        })
    }

    /// Hands free frames of a chunk back, and counts them in.
    pub(crate) fn give(&self, at: usize, chunk: usize, free: &Chunk) -> Result<(), Error> {
        let Some(region) = self.region(at) else { return Ok(()) };
        self.count(region, &self.give_frames(region, chunk, free))
    }

    /// Hands whole chunks of one word back, and counts them in.
    pub(crate) fn give_chunks(&self, at: usize, word: usize, bits: u64) -> Result<(), Error> {
        let Some(region) = self.region(at) else { return Ok(()) };
        self.count(region, &self.give_whole(region, word, bits))
    }

    /// Hands an extent back, and counts it in.
    pub(crate) fn give_extent(&self, extent: Extent) -> Result<(), Error> {
        let region = self.region_of(extent).and_then(|at| self.region(at));
        let region = region.ok_or(Error::Foreign(extent))?;
        self.count(region, &self.give_all(region, extent))
    }

    /// Hands an extent back whose frames stay claimed: the number of those that are free now.
    pub(crate) fn give_claimed(&self, extent: Extent) -> (u64, Result<(), Error>) {
        let region = self.region_of(extent).and_then(|at| self.region(at));
        let Some(region) = region else { return (0, Err(Error::Foreign(extent))) };
        let given = self.give_all(region, extent);
        (given.frames.max(0) as u64, given.result(region))
    }

    fn count(&self, region: &Region<'_>, given: &Given) -> Result<(), Error> {
        self.account(region.node).correct(-given.frames);
        given.result(region)
    }

    fn give_all(&self, region: &Region<'_>, extent: Extent) -> Given {
        if self.withheld().is_empty() {
            let frames = extent.frames() as i64;
            return match region.give_extent(extent) {
                Ok(()) => Given { frames, twice: None },
                Err(it) => Given { frames: frames - it.frames as i64, twice: Some(it.frame) },
            };
        }
        let first = region.index_of(extent.first().0);
        if extent.order() >= Order::HUGE {
            let mut bits = 0;
            let chunks = extent.frames() / CHUNK_FRAMES;
            (0..chunks).for_each(|at| bits |= 1 << (first as u64 % 64 + at));
            return self.give_whole(region, first / 64, bits);
        }
        let mut free = Chunk::EMPTY;
        // It was empty.
        let _ = free.give((extent.first().0 % CHUNK_FRAMES) as u32, extent.order());
        self.give_frames(region, first, &free)
    }

    fn give_frames(&self, region: &Region<'_>, chunk: usize, free: &Chunk) -> Given {
        let mut free = *free;
        let mut given = Given::default();
        if !self.withheld().is_empty() {
            let first = region.frame_of(chunk);
            for (frame, _) in self.withheld().within(first, CHUNK_FRAMES) {
                let at = (frame.0 - first) as u32;
                if free.has(at) {
                    free.take(at, Order::BASE);
                    if !self.withheld().settle(frame) {
                        // It is nobody's: it was free when it was withheld.
                        given.twice = given.twice.or(Some(frame));
                    }
                }
            }
            if free.is_empty() {
                return given;
            }
        }
        let frames = free.free_frames() as i64;
        given.add(&match region.give(chunk, &free) {
            Ok(()) => Given { frames, twice: None },
            Err(it) => Given { frames: frames - it.frames as i64, twice: Some(it.frame) },
        });
        given
    }

    fn give_whole(&self, region: &Region<'_>, word: usize, mut bits: u64) -> Given {
        let mut given = Given::default();
        if !self.withheld().is_empty() {
            let first = region.frame_of(word * 64);
            for (frame, _) in self.withheld().within(first, 64 * CHUNK_FRAMES) {
                let at = (frame.0 - first) / CHUNK_FRAMES;
                if bits >> at & 1 == 1 {
                    bits &= !(1 << at);
                    let chunk = word * 64 + at as usize;
                    given.add(&self.give_frames(region, chunk, &Chunk::FULL));
                }
            }
            if bits == 0 {
                return given;
            }
        }
        let frames = i64::from(bits.count_ones()) * CHUNK_FRAMES as i64;
        given.add(&match region.give_chunks(word, bits) {
            Ok(()) => Given { frames, twice: None },
            Err(it) => Given { frames: frames - it.frames as i64, twice: Some(it.frame) },
        });
        given
    }
}
