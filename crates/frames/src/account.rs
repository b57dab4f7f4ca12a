//! The free frames of one node, and those of them that are promised.

use crate::sync::{AtomicI64, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// The frames that are free in a node's regions, outside of caches.
///
/// One word decides, so that a check and its record are one step: nobody takes bits from a region
/// before having taken their number from `unclaimed`, or from a claim. A frame's bit is set before
/// the frame is counted, and the frame is counted out before its bit is cleared. So the regions
/// have at least as many bits as there are unclaimed and claimed frames together.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Account {
    /// Below zero if claimed frames have been poisoned.
    unclaimed: AtomicI64,
    /// For reports alone.
    claimed: AtomicU64,
}

/// The frames that a request for up to `most` gets, in multiples of `unit`.
fn granted(unclaimed: i64, unit: u64, most: u64) -> u64 {
    most.min(u64::try_from(unclaimed).unwrap_or(0)) / unit * unit
}

/// The unclaimed frames that are left, if there are enough.
fn less(unclaimed: i64, frames: u64) -> Option<i64> {
    let frames = i64::try_from(frames).ok()?;
    (unclaimed >= frames).then(|| unclaimed - frames)
}

impl Account {
    pub(crate) fn new() -> Self {
        Self { unclaimed: AtomicI64::new(0), claimed: AtomicU64::new(0) }
    }

    pub(crate) fn unclaimed(&self) -> u64 {
        u64::try_from(self.unclaimed.load(Acquire)).unwrap_or(0)
    }

    pub(crate) fn claimed(&self) -> u64 {
        self.claimed.load(Acquire)
    }

    /// Counts unclaimed frames out, all of them or none.
    pub(crate) fn take(&self, frames: u64) -> bool {
        frames == 0 || self.unclaimed.fetch_update(AcqRel, Acquire, |it| less(it, frames)).is_ok()
    }

    /// Counts up to `most` unclaimed frames out, in multiples of `unit`.
    pub(crate) fn take_up_to(&self, unit: u64, most: u64) -> u64 {
        let less = |unclaimed| Some(unclaimed - granted(unclaimed, unit, most) as i64);
        let before = self.unclaimed.fetch_update(AcqRel, Acquire, less);
        granted(before.unwrap_or_else(|now| now), unit, most)
    }

    /// Counts frames in that nobody has claimed.
    pub(crate) fn add(&self, frames: u64) {
        if frames > 0 {
            self.unclaimed.fetch_add(frames as i64, AcqRel);
        }
    }

    /// Counts frames out that are not free after all, even if they are claimed; or in, below zero.
    pub(crate) fn correct(&self, frames: i64) {
        if frames != 0 {
            self.unclaimed.fetch_sub(frames, AcqRel);
        }
    }

    /// Claims frames, all of them or none.
    pub(crate) fn claim(&self, frames: u64) -> bool {
        let is_granted = self.take(frames);
        if is_granted {
            self.add_claimed(frames);
        }
        is_granted
    }

    /// Counts claimed frames in.
    pub(crate) fn add_claimed(&self, frames: u64) {
        self.claimed.fetch_add(frames, Relaxed);
    }

    /// Counts claimed frames out, which their owner allocates.
    pub(crate) fn take_claimed(&self, frames: u64) {
        self.claimed.fetch_sub(frames, Relaxed);
    }

    /// Ends a claim of frames that are free.
    pub(crate) fn end_claim(&self, frames: u64) {
        self.take_claimed(frames);
        self.add(frames);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_request_gets_multiples_of_its_unit() {
        for (unclaimed, unit, most, expected) in [
            (4096, 512, 4096, 4096),
            (4095, 512, 4096, 3584),
            (5000, 512, 4096, 4096),
            (511, 512, 4096, 0),
            (0, 512, 4096, 0),
            (-1, 512, 4096, 0),
        ] {
            assert_eq!(granted(unclaimed, unit, most), expected, "{unclaimed}");
        }
    }

    #[test]
    fn frames_are_promised_once() {
        let account = Account::new();
        account.add(10);
        assert!(account.claim(7) && !account.claim(4) && !account.take(4));
        assert_eq!((account.unclaimed(), account.claimed()), (3, 7));
        account.take_claimed(5);
        account.end_claim(2);
        assert_eq!((account.unclaimed(), account.claimed()), (5, 0));
    }
}
