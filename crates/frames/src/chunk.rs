//! The free frames of a chunk, as bits of an exclusive owner.

use crate::ids::{CHUNK_FRAMES, Order};

/// Words of a chunk's bits.
pub(crate) const WORDS: usize = (CHUNK_FRAMES / 64) as usize;

/// The order of a word's frames.
const WORD: Order = match Order::new(6) {
    Some(order) => order,
    None => Order::BASE,
};

/// For each order up to 6, the bits at which an aligned extent may begin.
const STARTS: [u64; 7] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// Bits of a word: the first free extent of an order up to 6, if there is one.
pub(crate) fn first_in_word(word: u64, order: u8) -> Option<u32> {
    let mut starts = word;
    for step in 0..order {
        starts &= starts >> (1 << step);
    }
    starts &= STARTS[usize::from(order)];
    (starts != 0).then(|| starts.trailing_zeros())
}

/// The bits of an extent of an order up to 6 that begins at `bit`.
#[inline]
pub(crate) fn bits(bit: u32, order: u8) -> u64 {
    (!0 >> (64 - (1_u32 << order))) << bit
}

/// The free frames of one chunk: bit 1 is free. The first bit is the first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Chunk(pub(crate) [u64; WORDS]);

impl Chunk {
    pub(crate) const EMPTY: Self = Self([0; WORDS]);
    pub(crate) const FULL: Self = Self([!0; WORDS]);

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub(crate) fn free_frames(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether a frame is free.
    pub(crate) fn has(&self, frame: u32) -> bool {
        self.0[frame as usize / 64] >> (frame % 64) & 1 == 1
    }

    /// The first free extent of an order below that of a chunk, by its first frame in the chunk.
    pub(crate) fn find(&self, order: Order) -> Option<u32> {
        let order = order.exponent();
        if order <= 6 {
            let found = |(at, word): (usize, &u64)| {
                first_in_word(*word, order).map(|bit| at as u32 * 64 + bit)
            };
            return self.0.iter().enumerate().find_map(found);
        }
        let words = 1 << (order - 6);
        let is_free = |group: &[u64]| group.iter().all(|word| *word == !0);
        self.0.chunks(words).position(is_free).map(|group| (group * words) as u32 * 64)
    }

    /// Takes the first free extent of an order below that of a chunk.
    #[inline]
    pub(crate) fn take_first(&mut self, order: Order) -> Option<u32> {
        if order == Order::BASE {
            let at = self.0.iter().position(|word| *word != 0)?;
            let bit = self.0[at].trailing_zeros();
            self.0[at] &= self.0[at] - 1;
            return Some(at as u32 * 64 + bit);
        }
        let first = self.find(order)?;
        self.take(first, order);
        Some(first)
    }

    /// The words of an extent of an order below that of a chunk, each with the extent's bits.
    fn words(first: u32, order: Order) -> impl Iterator<Item = (usize, u64)> {
        let exponent = order.exponent();
        let word = first as usize / 64;
        let (count, mask) =
            if exponent <= 6 { (1, bits(first % 64, exponent)) } else { (1 << (exponent - 6), !0) };
        (word..word + count).map(move |at| (at, mask))
    }

    /// Marks an extent as allocated.
    pub(crate) fn take(&mut self, first: u32, order: Order) {
        for (at, mask) in Self::words(first, order) {
            self.0[at] &= !mask;
        }
    }

    /// Marks an extent as free.
    ///
    /// # Errors
    /// With the first frame that is free already. Then nothing changes.
    #[inline]
    pub(crate) fn give(&mut self, first: u32, order: Order) -> Result<(), u32> {
        if order <= WORD {
            let (at, mask) = (first as usize / 64, bits(first % 64, order.exponent()));
            let twice = self.0[at] & mask;
            if twice != 0 {
                return Err(at as u32 * 64 + twice.trailing_zeros());
            }
            self.0[at] |= mask;
            return Ok(());
        }
        for (at, mask) in Self::words(first, order) {
            let twice = self.0[at] & mask;
            if twice != 0 {
                return Err(at as u32 * 64 + twice.trailing_zeros());
            }
        }
        for (at, mask) in Self::words(first, order) {
            self.0[at] |= mask;
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(order: u8) -> Order {
        Order::new(order).unwrap()
    }

    #[test]
    fn an_extent_begins_at_a_multiple_of_its_size() {
        // Frames 1 to 6 are free: the pair is 2 and 3, and there is no aligned four.
        let chunk = Chunk([0b111_1110, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(chunk.find(order(0)), Some(1));
        assert_eq!(chunk.find(order(1)), Some(2));
        assert_eq!(chunk.find(order(2)), None);
    }

    #[test]
    fn orders_above_a_word_take_whole_words() {
        let mut chunk = Chunk([1, !0, !0, !0, !0, !0, !0, !0]);
        assert_eq!(chunk.find(order(6)), Some(64));
        assert_eq!(chunk.find(order(7)), Some(128));
        assert_eq!(chunk.find(order(8)), Some(256));
        chunk.take(256, order(8));
        assert_eq!(chunk.0, [1, !0, !0, !0, 0, 0, 0, 0]);
        assert_eq!(chunk.give(256, order(8)), Ok(()));
        assert_eq!(chunk.give(128, order(7)), Err(128));
    }

    proptest! {
        /// The first free extent, found by looking at each frame.
        #[test]
        fn the_first_fit_is_found(words: [u64; WORDS], exponent in 0..9_u8) {
            let frames = 1 << exponent;
            let is_free = |frame: u32| words[frame as usize / 64] >> (frame % 64) & 1 == 1;
            let expected = (0..512).step_by(frames as usize).find(|&first| {
                (first..first + frames).all(is_free)
            });
            let mut chunk = Chunk(words);
            let found = chunk.find(order(exponent));
            prop_assert_eq!(found, expected);
            if let Some(first) = found {
                let before = chunk;
                chunk.take(first, order(exponent));
                prop_assert_eq!(chunk.free_frames() + u64::from(frames), before.free_frames());
                prop_assert_eq!(chunk.give(first, order(exponent)), Ok(()));
                prop_assert_eq!(chunk, before);
                prop_assert_eq!(chunk.give(first, order(exponent)), Err(first));
            }
        }
    }
}
