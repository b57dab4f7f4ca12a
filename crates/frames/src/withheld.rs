//! The table of frames that are not to be handed out.

use crate::ids::Frame;
use crate::sync::{AtomicBool, AtomicU64};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The state of a frame that is not to be handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameState {
    /// Taken offline. It may come back online.
    Offline,
    /// Poisoned, and in use, in a cache, or on its way from or to one. It becomes
    /// [`Poisoned`](Self::Poisoned) when it is freed, or else when somebody comes upon it.
    Marked,
    /// Poisoned, and nobody's. It stays so.
    Poisoned,
}

const STATE_BITS: u32 = 2;

fn pack(frame: Frame, state: FrameState) -> u64 {
    let state = match state {
        FrameState::Offline => 1,
        FrameState::Marked => 2,
        FrameState::Poisoned => 3,
    };
    frame.0 << STATE_BITS | state
}

fn unpack(word: u64) -> Option<(Frame, FrameState)> {
    let state = match word & ((1 << STATE_BITS) - 1) {
        1 => FrameState::Offline,
        2 => FrameState::Marked,
        3 => FrameState::Poisoned,
        _ => return None,
    };
    Some((Frame(word >> STATE_BITS), state))
}

/// The frames that are not to be handed out. One keeper adds and removes entries. Any thread may
/// settle a frame that is marked, once it holds the frame.
///
/// A keeper marks a frame and then looks for its bit. Others set or take bits and then look for
/// marks. So one of the two sees the other, and all of these accesses are SeqCst.
#[derive(Debug)]
pub(crate) struct Withheld<'m> {
    words: &'m [AtomicU64],
    entries: AtomicU64,
    marked: AtomicU64,
    /// The number of marks ever made.
    version: AtomicU64,
    has_keeper: AtomicBool,
}

impl<'m> Withheld<'m> {
    pub(crate) fn new(words: &'m [AtomicU64]) -> Self {
        words.iter().for_each(|word| word.store(0, Relaxed));
        let [entries, marked, version] = core::array::from_fn(|_| AtomicU64::new(0));
        Self { words, entries, marked, version, has_keeper: AtomicBool::new(false) }
    }

    /// Takes or gives up the place of the one keeper. Whether there was one before.
    pub(crate) fn set_keeper(&self, has_keeper: bool) -> bool {
        self.has_keeper.swap(has_keeper, SeqCst)
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Whether some frame is marked, as far as this thread knows.
    #[inline]
    pub(crate) fn may_have_marks(&self) -> bool {
        self.marked.load(Relaxed) > 0
    }

    pub(crate) fn has_marks(&self) -> bool {
        self.marked.load(SeqCst) > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(SeqCst) == 0
    }

    pub(crate) fn has_room(&self) -> bool {
        self.words.iter().any(|word| word.load(SeqCst) == 0)
    }

    pub(crate) fn size(&self) -> usize {
        self.words.len()
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Frame, FrameState)> + use<'m> {
        self.words.iter().filter_map(|word| unpack(word.load(SeqCst)))
    }

    /// The entries of so many frames from a first one.
    pub(crate) fn within(
        &self,
        first: u64,
        frames: u64,
    ) -> impl Iterator<Item = (Frame, FrameState)> + use<'m> {
        self.iter().filter(move |(frame, _)| frame.0.wrapping_sub(first) < frames)
    }

    /// Adds an entry, if there is room.
    pub(crate) fn insert(&self, frame: Frame, state: FrameState) -> bool {
        let Some(free) = self.words.iter().find(|word| word.load(SeqCst) == 0) else {
            return false;
        };
        free.store(pack(frame, state), SeqCst);
        self.entries.fetch_add(1, SeqCst);
        if state == FrameState::Marked {
            self.marked.fetch_add(1, SeqCst);
            self.version.fetch_add(1, SeqCst);
        }
        true
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, frame: Frame, state: FrameState) {
        if self.change(frame, state, 0) {
            self.entries.fetch_sub(1, SeqCst);
        }
    }

    /// Poisons a frame that is offline.
    pub(crate) fn poison_offline(&self, frame: Frame) {
        self.change(frame, FrameState::Offline, pack(frame, FrameState::Poisoned));
    }

    /// Makes a marked frame poisoned. False if it is not marked.
    pub(crate) fn settle(&self, frame: Frame) -> bool {
        let is_settled = self.change(frame, FrameState::Marked, pack(frame, FrameState::Poisoned));
        if is_settled {
            self.marked.fetch_sub(1, SeqCst);
        }
        is_settled
    }

    fn change(&self, frame: Frame, from: FrameState, to: u64) -> bool {
        let from = pack(frame, from);
        self.words.iter().any(|word| word.compare_exchange(from, to, SeqCst, SeqCst).is_ok())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_settled_once() {
        let words = [const { AtomicU64::new(7) }; 2];
        let table = Withheld::new(&words);
        assert!(table.is_empty() && !table.has_marks());
        let (one, two) = (Frame((1 << 52) - 1), Frame(0));
        assert!(table.insert(one, FrameState::Marked) && table.insert(two, FrameState::Offline));
        assert!(!table.insert(Frame(1), FrameState::Offline), "the table is full");
        assert!(table.has_marks() && table.settle(one) && !table.settle(one) && !table.has_marks());
        let entries: Vec<_> = table.iter().collect();
        assert_eq!(entries, [(one, FrameState::Poisoned), (two, FrameState::Offline)]);
        assert_eq!(table.within(0, 1).count(), 1);
        table.remove(two, FrameState::Offline);
        assert!(table.insert(Frame(1), FrameState::Offline));
    }
}
