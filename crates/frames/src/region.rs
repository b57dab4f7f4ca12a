//! The memory of one node in one zone that lies in one piece, shared by all caches.

use crate::{
    chunk::{Chunk, WORDS, bits, first_in_word},
    ids::{CHUNK_FRAMES, Extent, Frame, Node, Order, Zone},
    memory::{Memory, metadata_words},
    sync::{AtomicU64, AtomicUsize, latest},
};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Frames that were freed while they were free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Twice {
    /// The first of them.
    pub(crate) frame: Frame,
    /// Their number: by so many frames less has the free memory grown.
    pub(crate) frames: u64,
}

/// A region. Chunks are numbered from its base.
///
/// A chunk that is free as a whole has a bit in `whole`, and no bits in `frames`. Another chunk
/// with free frames has a bit in `partial`, or will have one once a caller has ended that is
/// handing frames back. Its bit may stay although no frame is free: the next caller clears it.
#[derive(Debug)]
pub(crate) struct Region<'m> {
    pub(crate) node: Node,
    pub(crate) zone: Zone,
    pub(crate) first: u64,
    pub(crate) end: u64,
    base_chunk: u64,
    frames: &'m [AtomicU64],
    partial: Map<'m>,
    whole: Map<'m>,
}

/// A bit for each chunk, and the word from which a search begins.
#[derive(Debug)]
struct Map<'m> {
    words: &'m [AtomicU64],
    /// A hint: most words below have no bit.
    low: AtomicUsize,
}

impl<'m> Map<'m> {
    fn new(words: &'m [AtomicU64]) -> Self {
        Self { words, low: AtomicUsize::new(0) }
    }

    /// The words, from the hint on and then those before.
    fn search(&self) -> impl Iterator<Item = (usize, &'m AtomicU64)> {
        let low = self.low.load(Relaxed).min(self.words.len());
        let (before, after) = self.words.split_at(low);
        let after = after.iter().enumerate().map(move |(at, word)| (low + at, word));
        after.chain(before.iter().enumerate())
    }

    /// Sets bits of a word. Returns those that were set before.
    fn set(&self, at: usize, mask: u64) -> u64 {
        let before = self.words[at].fetch_or(mask, SeqCst) & mask;
        if at < self.low.load(Relaxed) {
            self.low.store(at, Relaxed);
        }
        before
    }

    /// Clears a bit, and says whether it was set.
    fn clear(&self, chunk: usize) -> bool {
        let bit = 1 << (chunk % 64);
        self.words[chunk / 64].fetch_and(!bit, SeqCst) & bit != 0
    }

    fn has(&self, chunk: usize) -> bool {
        latest(&self.words[chunk / 64]) >> (chunk % 64) & 1 == 1
    }
}

impl<'m> Region<'m> {
    /// The region of a range whose metadata suffice, with all of its frames free.
    pub(crate) fn new(memory: &Memory, metadata: &'m [AtomicU64]) -> Self {
        let metadata = &metadata[..metadata_words(memory)];
        metadata.iter().for_each(|word| word.store(0, Relaxed));
        let chunks = memory.chunks();
        let (frames, maps) = metadata.split_at(chunks.frame_words());
        let (partial, whole) = maps.split_at(chunks.map_words());
        let region = Self {
            node: memory.node,
            zone: memory.zone,
            first: memory.first.0,
            end: memory.first.0 + memory.frames,
            base_chunk: chunks.base,
            frames,
            partial: Map::new(partial),
            whole: Map::new(whole),
        };
        region.free_all();
        region
    }

    /// Frees all frames of a new region.
    fn free_all(&self) {
        for chunk in self.first / CHUNK_FRAMES..self.end.div_ceil(CHUNK_FRAMES) {
            let first = self.first.max(chunk * CHUNK_FRAMES);
            let end = self.end.min((chunk + 1) * CHUNK_FRAMES);
            let mut free = Chunk::default();
            for frame in first..end {
                let at = (frame % CHUNK_FRAMES) as usize;
                free.0[at / 64] |= 1 << (at % 64);
            }
            // None of them was free.
            let _ = self.give(self.index_of(chunk * CHUNK_FRAMES), &free);
        }
    }

    pub(crate) fn contains(&self, extent: Extent) -> bool {
        let first = extent.first().0;
        self.first <= first && first.checked_add(extent.frames()).is_some_and(|end| end <= self.end)
    }

    /// The chunk of a frame.
    pub(crate) fn index_of(&self, frame: u64) -> usize {
        (frame / CHUNK_FRAMES - self.base_chunk) as usize
    }

    /// The first frame of a chunk.
    pub(crate) fn frame_of(&self, chunk: usize) -> u64 {
        (self.base_chunk + chunk as u64) * CHUNK_FRAMES
    }

    fn words_of(&self, chunk: usize) -> &'m [AtomicU64] {
        &self.frames[chunk * WORDS..][..WORDS]
    }

    /// A chunk's free frames now, without those of caches.
    pub(crate) fn peek(&self, chunk: usize) -> Chunk {
        let mut free = Chunk::default();
        for (free, word) in free.0.iter_mut().zip(self.words_of(chunk)) {
            *free = latest(word);
        }
        free
    }

    /// Takes all free frames of a chunk away.
    fn claim(&self, chunk: usize) -> Chunk {
        // The bit first: frames that are handed back after their word was read set it again. Both
        // sides write one word and then read another one, so all of these accesses are SeqCst.
        self.partial.clear(chunk);
        let mut taken = Chunk::default();
        for (taken, word) in taken.0.iter_mut().zip(self.words_of(chunk)) {
            if latest(word) != 0 {
                *taken = word.swap(0, SeqCst);
            }
        }
        taken
    }

    /// Takes the free frames of a chunk away that has a free extent of this order, which is below
    /// that of a chunk. Chunks that are in use come first.
    pub(crate) fn claim_for(&self, order: Order) -> Option<(usize, Chunk)> {
        for (at, word) in self.partial.search() {
            let mut set = word.load(Acquire);
            while set != 0 {
                let chunk = at * 64 + set.trailing_zeros() as usize;
                set &= set - 1;
                let peeked = self.peek(chunk);
                if !peeked.is_empty() && peeked.find(order).is_none() {
                    continue;
                }
                let taken = self.claim(chunk);
                if taken.find(order).is_some() {
                    // Chunks below may have smaller extents.
                    if order == Order::BASE {
                        self.partial.low.store(at, Relaxed);
                    }
                    return Some((chunk, taken));
                }
                // Others came first.
                if !taken.is_empty() {
                    let _ = self.give(chunk, &taken);
                }
            }
        }
        let chunk = self.take_run(Order::HUGE)?;
        Some((chunk, Chunk::FULL))
    }

    /// Hands free frames of a chunk back.
    ///
    /// # Errors
    /// With those of them that were free already. The others are free then. A double free that
    /// comes while another caller makes the chunk whole may go unnoticed.
    pub(crate) fn give(&self, chunk: usize, free: &Chunk) -> Result<(), Twice> {
        if *free == Chunk::FULL {
            return self.give_chunks(chunk / 64, 1 << (chunk % 64));
        }
        self.not_whole(chunk, free)?;
        let mut twice = Chunk::EMPTY;
        let mut is_full = false;
        for (at, mask) in free.0.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            let before = self.words_of(chunk)[at].fetch_or(*mask, SeqCst);
            is_full |= before | mask == !0;
            twice.0[at] = before & mask;
        }
        self.given(chunk, is_full);
        if twice.is_empty() { Ok(()) } else { Err(self.twice(chunk, &twice)) }
    }

    /// Checks that a chunk is not free as a whole, before the bits of its frames are set. Once they
    /// are set it may become whole at any time, since another caller may hand the last frames back.
    ///
    /// # Errors
    /// With the frames, which are all free already.
    fn not_whole(&self, chunk: usize, free: &Chunk) -> Result<(), Twice> {
        if self.whole.has(chunk) { Err(self.twice(chunk, free)) } else { Ok(()) }
    }

    /// Makes frames findable whose bits were set.
    fn given(&self, chunk: usize, is_full: bool) {
        if !self.partial.has(chunk) {
            self.partial.set(chunk / 64, 1 << (chunk % 64));
        }
        if is_full {
            self.merge(chunk);
        }
    }

    /// Hands an extent back.
    ///
    /// # Errors
    /// With the frames that were free already. The others are free then.
    pub(crate) fn give_extent(&self, extent: Extent) -> Result<(), Twice> {
        let chunk = self.index_of(extent.first().0);
        if let Some(runs) = extent.order().exponent().checked_sub(Order::HUGE.exponent()) {
            return self.give_chunks(chunk / 64, bits(chunk as u32 % 64, runs));
        }
        let first = (extent.first().0 % CHUNK_FRAMES) as u32;
        let mut free = Chunk::EMPTY;
        // It was empty.
        let _ = free.give(first, extent.order());
        if extent.order().exponent() > 6 {
            return self.give(chunk, &free);
        }
        self.not_whole(chunk, &free)?;
        let mask = bits(first % 64, extent.order().exponent());
        let before = self.words_of(chunk)[first as usize / 64].fetch_or(mask, SeqCst);
        self.given(chunk, before | mask == !0);
        match before & mask {
            0 => Ok(()),
            twice => {
                let word = extent.first().0 / 64 * 64;
                let frame = Frame(word + u64::from(twice.trailing_zeros()));
                Err(Twice { frame, frames: u64::from(twice.count_ones()) })
            }
        }
    }

    /// Makes a chunk whole if all of its frames are free.
    fn merge(&self, chunk: usize) {
        let words = self.words_of(chunk);
        while self.peek(chunk) == Chunk::FULL {
            self.partial.clear(chunk);
            // Of several threads that want to make the chunk whole, the one with the first word
            // goes on, so they do not take words from each other. A thread that frees frames
            // meanwhile finds words missing and leaves it to this one, which looks again after it
            // has put its words back.
            let is_taken =
                |word: &&AtomicU64| word.compare_exchange(!0, 0, SeqCst, Relaxed).is_ok();
            let taken = words.iter().take_while(is_taken).count();
            if taken == WORDS {
                self.whole.set(chunk / 64, 1 << (chunk % 64));
                return;
            }
            for word in &words[..taken] {
                word.fetch_or(!0, SeqCst);
            }
            self.partial.set(chunk / 64, 1 << (chunk % 64));
        }
    }

    fn twice(&self, chunk: usize, free: &Chunk) -> Twice {
        let first = u64::from(free.find(Order::BASE).unwrap_or(0));
        Twice { frame: Frame(self.frame_of(chunk) + first), frames: free.free_frames() }
    }

    /// Takes a frame, if it is free here.
    pub(crate) fn take_frame(&self, frame: Frame) -> bool {
        let chunk = self.index_of(frame.0);
        let at = (frame.0 % CHUNK_FRAMES) as u32;
        let bit = 1 << (at % 64);
        if self.words_of(chunk)[at as usize / 64].fetch_and(!bit, SeqCst) & bit != 0 {
            return true;
        }
        let is_whole = self.whole.clear(chunk);
        if is_whole {
            let mut free = Chunk::FULL;
            free.take(at, Order::BASE);
            // This call alone has these frames, so none of them is free already.
            let _ = self.give(chunk, &free);
        }
        is_whole
    }

    /// Takes an aligned run of whole chunks: an order from that of a chunk on.
    pub(crate) fn take_run(&self, order: Order) -> Option<usize> {
        let order = order.exponent() - Order::HUGE.exponent();
        for (at, word) in self.whole.search() {
            let mut seen = word.load(Relaxed);
            while let Some(bit) = first_in_word(seen, order) {
                let run = bits(bit, order);
                match word.compare_exchange_weak(seen, seen & !run, SeqCst, Relaxed) {
                    Ok(_) => {
                        if order == 0 {
                            self.whole.low.store(at, Relaxed);
                        }
                        return Some(at * 64 + bit as usize);
                    }
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Takes up to `count` whole chunks of one word of the map: the word and their bits, or none.
    pub(crate) fn take_chunks(&self, count: u32) -> (usize, u64) {
        for (at, word) in self.whole.search() {
            let mut seen = word.load(Relaxed);
            while seen != 0 && count > 0 {
                let mut left = seen;
                (0..count).for_each(|_| left &= left.saturating_sub(1));
                match word.compare_exchange_weak(seen, left, SeqCst, Relaxed) {
                    Ok(_) => {
                        self.whole.low.store(at, Relaxed);
                        return (at, seen & !left);
                    }
                    Err(now) => seen = now,
                }
            }
        }
        (0, 0)
    }

    /// Hands whole chunks of one word of the map back.
    ///
    /// # Errors
    /// With the frames that were free already; the chunks are free then.
    pub(crate) fn give_chunks(&self, at: usize, chunks: u64) -> Result<(), Twice> {
        let mut twice: Option<Twice> = None;
        let mut add = |more: Twice| match &mut twice {
            Some(twice) => twice.frames += more.frames,
            None => twice = Some(more),
        };
        let mut left = chunks;
        while left != 0 {
            let chunk = at * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            if !self.peek(chunk).is_empty() {
                // The bits go: the chunk is free as a whole.
                add(self.twice(chunk, &self.claim(chunk)));
            }
        }
        let before = self.whole.set(at, chunks);
        if before != 0 {
            let frame = Frame(self.frame_of(at * 64 + before.trailing_zeros() as usize));
            add(Twice { frame, frames: u64::from(before.count_ones()) * CHUNK_FRAMES });
        }
        twice.map_or(Ok(()), Err)
    }

    /// The words of the map of whole chunks.
    pub(crate) fn whole_words(&self) -> impl Iterator<Item = u64> {
        self.whole.words.iter().map(|word| word.load(Relaxed))
    }

    /// The chunks that may have free frames without being whole.
    pub(crate) fn partial_chunks(&self) -> impl Iterator<Item = usize> {
        let bits = |(at, word): (usize, &AtomicU64)| {
            let set = word.load(Relaxed);
            (0..64).filter(move |bit| set >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        };
        self.partial.words.iter().enumerate().flat_map(bits)
    }

    /// Frames that are free in the region itself.
    pub(crate) fn free_frames(&self) -> u64 {
        let whole: u64 = self.whole_words().map(|word| u64::from(word.count_ones())).sum();
        let partial: u64 = self.partial_chunks().map(|chunk| self.peek(chunk).free_frames()).sum();
        whole * CHUNK_FRAMES + partial
    }
}

#[cfg(test)]
#[cfg(loom)]
mod orders;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
