//! Frames on their way to and from regions, counted by node.

use crate::{
    chunk::Chunk,
    error::Error,
    ids::{CHUNK_FRAMES, Extent, Frame, Node, Order, Zone},
    machine::Machine,
    region::{Region, Twice},
};

pub(crate) fn double_free(region: &Region<'_>, frame: Frame) -> Error {
    Error::DoubleFree { frame, node: region.node }
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
            return Some(Extent::at(region.frame_of(region.take_run(order)?), order));
        }
        let (chunk, mut free) = region.claim_for(order)?;
        let first = free.take_first(order)?;
        self.put_back(at, chunk, &free).unwrap_or_else(|error| *fault = Some(error));
        Some(Extent::at(region.frame_of(chunk) + u64::from(first), order))
    }

    /// Hands frames of a chunk back that have not been counted out.
    pub(crate) fn put_back(&self, at: usize, chunk: usize, free: &Chunk) -> Result<(), Error> {
        let Some(region) = self.region(at) else { return Ok(()) };
        region.give(chunk, free).map_err(|twice| {
            self.account(region.node).correct(twice.frames);
            double_free(region, twice.frame)
        })
    }

    /// Hands free frames of a chunk back, and counts them in.
    pub(crate) fn give(&self, at: usize, chunk: usize, free: &Chunk) -> Result<(), Error> {
        self.counted(at, free.free_frames(), |region| region.give(chunk, free))
    }

    /// Hands whole chunks of one word back, and counts them in.
    pub(crate) fn give_chunks(&self, at: usize, word: usize, bits: u64) -> Result<(), Error> {
        let frames = u64::from(bits.count_ones()) * CHUNK_FRAMES;
        self.counted(at, frames, |region| region.give_chunks(word, bits))
    }

    /// Hands an extent back, and counts it in.
    pub(crate) fn give_extent(&self, extent: Extent) -> Result<(), Error> {
        let at = self.region_of(extent).ok_or(Error::Foreign(extent))?;
        self.counted(at, extent.frames(), |region| region.give_extent(extent))
    }

    /// Hands an extent back whose frames stay claimed: their number, without those that were free.
    pub(crate) fn give_claimed(&self, extent: Extent) -> (u64, Result<(), Error>) {
        let region = self.region_of(extent).and_then(|at| self.region(at));
        let Some(region) = region else { return (0, Err(Error::Foreign(extent))) };
        match region.give_extent(extent) {
            Ok(()) => (extent.frames(), Ok(())),
            Err(twice) => {
                let new = extent.frames().saturating_sub(twice.frames);
                (new, Err(double_free(region, twice.frame)))
            }
        }
    }

    fn counted(
        &self,
        at: usize,
        frames: u64,
        give: impl FnOnce(&Region<'_>) -> Result<(), Twice>,
    ) -> Result<(), Error> {
        let Some(region) = self.region(at) else { return Ok(()) };
        let account = self.account(region.node);
        match give(region) {
            Ok(()) => {
                account.add(frames);
                Ok(())
            }
            Err(twice) => {
                account.add(frames.saturating_sub(twice.frames));
                account.correct(twice.frames.saturating_sub(frames));
                Err(double_free(region, twice.frame))
            }
        }
    }
}
