//! How much of a domain a sample reads.
//!
//! A domain that uses no CPU time changes nothing about itself: it starts no thread and touches no
//! page. Others can still move its pages, bind its threads or put processes into its group, so it
//! is read in full now and then.

/// Samples between two reads of slow counters. Two counters are slow: the threads of a busy domain
/// whose nodes are known otherwise (a scheduler counts CPU time by node, or the machine has one
/// node) and whose use is steady; and the nodes of memory whose amount is steady.
const CLOSE_LOOKS: u64 = 4;

/// Samples between two reads of everything: the threads of an idle domain, and all mappings.
const THOROUGH_LOOKS: u64 = 8;

/// The same while nothing is seen to change. A multiple of [`THOROUGH_LOOKS`].
const STILL_LOOKS: u64 = 64;

/// The depth of a sample, from the least that is read to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// Nothing has changed since the last thorough sample. Read are whether the domain lives, its
    /// CPU time, the amount of its memory and its kills for lack of memory.
    Still,
    /// These, and whatever follows from their change.
    Quick,
    /// Slow counters, too.
    Close,
    /// Everything.
    Thorough,
}

/// The facts that decide about the depth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// The samples before.
    pub(super) looks: u64,
    /// The inode of its group.
    pub(super) inode: u64,
    /// True if it was not sampled in the interval before.
    pub(super) has_paused: bool,
    /// True if anything has changed about it since its last thorough sample, or may have.
    pub(super) has_stirred: bool,
}

/// The depth of the next sample. The inode spreads the close samples of domains over intervals. The
/// sample after a long pause is close.
pub(super) fn of(facts: &Facts) -> Depth {
    let Facts { looks, inode, has_paused, has_stirred } = *facts;
    let between = if has_stirred { THOROUGH_LOOKS } else { STILL_LOOKS };
    // 2^64 divided by the golden ratio.
    let phase = inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let is_turn = looks.wrapping_add(phase).is_multiple_of(CLOSE_LOOKS);
    if looks.is_multiple_of(between) {
        Depth::Thorough
    } else if is_young(looks) {
        Depth::Close
    } else if !has_stirred {
        Depth::Still
    } else if has_paused || is_turn {
        Depth::Close
    } else {
        Depth::Quick
    }
}

/// True if it is known for a few samples only.
pub(super) fn is_young(looks: u64) -> bool {
    looks < CLOSE_LOOKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_as_deep_as_what_may_have_changed() {
        for (looks, has_paused, has_stirred, expected) in [
            (0, false, false, Depth::Thorough),
            (0, true, true, Depth::Thorough),
            (1, false, false, Depth::Close),
            (3, false, true, Depth::Close),
            (4, true, false, Depth::Still),
            (4, false, true, Depth::Close),
            (5, false, true, Depth::Quick),
            (5, true, true, Depth::Close),
            (8, false, true, Depth::Thorough),
            (8, true, false, Depth::Still),
            (56, false, false, Depth::Still),
            (64, false, false, Depth::Thorough),
            (64, false, true, Depth::Thorough),
            (72, true, true, Depth::Thorough),
        ] {
            // The turn of inode 0 is each fourth sample.
            let facts = Facts { looks, inode: 0, has_paused, has_stirred };
            assert_eq!(of(&facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn inodes_take_turns() {
        let is_close = |looks, inode| {
            of(&Facts { looks, inode, has_paused: false, has_stirred: true }) == Depth::Close
        };
        for inode in 0..64 {
            assert_eq!((9..13).filter(|&looks| is_close(looks, inode)).count(), 1, "{inode}");
        }
        let first = (0..64).filter(|&inode| is_close(9, inode)).count();
        assert!((8..24).contains(&first), "{first}");
    }
}
