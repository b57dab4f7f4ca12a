//! The memory of a machine as its caller describes it, and the metadata that it needs.

#[cfg(feature = "std")]
use crate::{Error, sync::AtomicU64};
use crate::{
    chunk::WORDS,
    ids::{CHUNK_FRAMES, Frame, Node, Zone},
};
#[cfg(feature = "std")]
use std::{boxed::Box, vec::Vec};

/// The most nodes of a machine.
pub const MAX_NODES: usize = 64;

/// The most ranges of memory of a machine.
pub const MAX_REGIONS: usize = 64;

/// A range of frames that one node has in one zone. Holes between ranges need no metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The node.
    pub node: Node,
    /// The zone.
    pub zone: Zone,
    /// The first frame.
    pub first: Frame,
    /// The number of frames.
    pub frames: u64,
}

impl Memory {
    /// A range of `frames` frames from `first` on.
    pub const fn new(node: Node, zone: Zone, first: u64, frames: u64) -> Self {
        Self { node, zone, first: Frame(first), frames }
    }

    pub(crate) fn chunks(&self) -> Chunks {
        let first = self.first.0 / CHUNK_FRAMES;
        let end = self.first.0.saturating_add(self.frames).div_ceil(CHUNK_FRAMES);
        Chunks { base: first / 64 * 64, end }
    }
}

/// Chunks that a range has metadata for. The first is a multiple of 64, so that runs of chunks are
/// aligned within words of a map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    pub(crate) base: u64,
    pub(crate) end: u64,
}

impl Chunks {
    /// Words of each of the two maps of chunks.
    pub(crate) fn map_words(self) -> usize {
        (self.end - self.base).div_ceil(64) as usize
    }

    /// Words with a bit for each frame.
    pub(crate) fn frame_words(self) -> usize {
        (self.end - self.base) as usize * WORDS
    }
}

/// The number of 64-bit words of metadata that a range of memory needs: 1 bit for each frame, and
/// 2 bits for each chunk, from the multiple of 64 chunks (128 MiB) at or below the range on. They
/// should lie on its node.
pub fn metadata_words(memory: &Memory) -> usize {
    let chunks = memory.chunks();
    chunks.frame_words() + 2 * chunks.map_words()
}

/// Metadata of all ranges from the heap.
#[cfg(feature = "std")]
#[derive(Debug)]
pub struct Metadata(Vec<Box<[AtomicU64]>>);

#[cfg(feature = "std")]
impl Metadata {
    /// The metadata of these ranges.
    ///
    /// # Errors
    /// If a range is empty or ends beyond the last frame number.
    pub fn of(memory: &[Memory]) -> Result<Self, Error> {
        let words = |range: &Memory| {
            range.check()?;
            Ok((0..metadata_words(range)).map(|_| AtomicU64::new(0)).collect())
        };
        memory.iter().map(words).collect::<Result<_, _>>().map(Self)
    }

    /// The metadata of each range.
    pub fn slices(&self) -> Vec<&[AtomicU64]> {
        self.0.iter().map(|words| &words[..]).collect()
    }
}

impl Memory {
    /// # Errors
    /// If it is empty or ends beyond the last frame number.
    pub(crate) fn check(&self) -> Result<(), crate::Error> {
        let Self { node, first, frames, .. } = *self;
        if frames == 0 {
            return Err(crate::Error::Empty { node, first });
        }
        // Addresses have 64 bits, and frames at least 4 KiB.
        match first.0.checked_add(frames) {
            Some(end) if end <= 1 << 52 => Ok(()),
            _ => Err(crate::Error::TooLarge { node, first, frames }),
        }
    }
}
