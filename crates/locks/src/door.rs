//! The word of a lock: whether it is held, and whether a thread stands before it.
//!
//! A thread takes a lock that is free without a look at the queue. The first of the queue stands at
//! the door until then. It lets threads of the last holder's node pass, whose caches still have the
//! lock's data, but only so often (fissile locks, Dice and Kogan, 2020).

use crate::sync::{Acquire, AtomicU32, Relaxed, Release};

/// The holder is in its place.
const HELD: u32 = 1;
/// The holder is the first of the queue, which it has to pass on.
const QUEUED: u32 = 2;
/// The first of the queue stands at the door.
const WAITED_FOR: u32 = 4;
/// The first of the queue has left its CPU while somebody holds the lock, who wakes it.
const AWAY: u32 = 8;
/// The first of the queue is away: threads of any node may pass until it stands at the door.
const WIDE: u32 = 16;
/// One thread that has passed the first of the queue. Their number lies below [`NODE`].
const PASS: u32 = 32;
/// The node of the holder, or the last one, lies above; 0 if it is not known, else one more.
const NODE: u32 = 1 << 16;

/// The most threads that may pass: their number has to fit in its place.
pub(crate) const MAX_PASSES: u32 = (NODE - PASS) / PASS;

/// The most times in a row without a thread that passes, as [`Notes`] count them: 31 hand-offs.
const MAX_MISSES: u32 = 5;

/// Whether it is worth it to open the door for threads that come back. The first of the queue keeps
/// this beside its queue.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Notes {
    /// Hand-offs to come with the door closed.
    closed: AtomicU32,
    /// How often in a row nobody has passed.
    misses: AtomicU32,
}

impl Notes {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { closed: AtomicU32::new(0), misses: AtomicU32::new(0) }
    }

    /// The next so many hand-offs find it closed.
    #[cfg(loom)]
    pub(crate) fn close(&self, hand_offs: u32) {
        self.closed.store(hand_offs, Relaxed);
    }

    /// Whether the door stays closed for the next hand-off. Each time that nobody has passed, it
    /// does so for twice as many.
    pub(crate) fn stays_closed(&self) -> bool {
        let closed = self.closed.load(Relaxed);
        if closed > 0 {
            self.closed.store(closed - 1, Relaxed);
            return true;
        }
        let misses = self.misses.load(Relaxed);
        self.closed.store((1 << misses) - 1, Relaxed);
        self.misses.store(MAX_MISSES.min(misses + 1), Relaxed);
        false
    }

    /// Threads have passed the last one at the door: it is worth it to open it.
    pub(crate) fn passed(&self) {
        self.closed.store(0, Relaxed);
        self.misses.store(0, Relaxed);
    }
}

/// The word is 0 while the lock is free and nobody waits.
#[derive(Debug)]
#[repr(align(64))]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Door {
    word: AtomicU32,
}

/// How a holder has left.
#[derive(Debug, PartialEq)]
pub(crate) enum Left {
    /// It has the queue to pass on first.
    Not,
    Free,
    /// The first of the queue may sleep on this word. The lock may be gone.
    Awaited(*const AtomicU32),
}

/// How many threads may pass the first of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// While it stands at the door.
    pub(crate) present: u32,
    /// In all while it does not.
    pub(crate) absent: u32,
}

impl Limits {
    fn of(self, word: u32) -> u32 {
        if word & WAITED_FOR != 0 { self.present } else { self.absent }
    }
}

fn is_wide(word: u32) -> bool {
    word & (WIDE | WAITED_FOR) == WIDE
}

/// A node in its place of the word.
fn placed(node: u32) -> u32 {
    (node % (NODE - 1) + 1) * NODE
}

impl Door {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.word.load(Relaxed) & HELD != 0
    }

    /// Takes a lock that nobody has wanted for a while.
    #[inline]
    pub(crate) fn take_free(&self) -> bool {
        self.word.load(Relaxed) == 0
            && self.word.compare_exchange(0, HELD, Acquire, Relaxed).is_ok()
    }

    /// Takes a lock that is free, past the first of the queue if fewer than the limits have.
    /// Threads on the last holder's node may pass, those on others while the first of the queue is
    /// away, or if the last holder's node is not known.
    pub(crate) fn pass(&self, node: u32, limits: Limits) -> bool {
        let word = self.word.load(Relaxed);
        if word == 0 {
            // The queue is empty, and no later holder would clear a node or a number of passes.
            return self.take_free();
        }
        let last = word / NODE * NODE;
        let is_near = last == 0 || last == placed(node) || is_wide(word);
        let (passes, most) = (word % NODE / PASS, limits.of(word));
        if word & HELD != 0 || !is_near || passes >= most {
            return false;
        }
        let passes = MAX_PASSES.min(passes + 1);
        let new = HELD | word & (WAITED_FOR | WIDE) | (passes * PASS) | placed(node);
        self.word.compare_exchange(word, new, Acquire, Relaxed).is_ok()
    }

    /// Whether threads of any node may pass, or may soon.
    pub(crate) fn is_wide(&self, limits: Limits) -> bool {
        let word = self.word.load(Relaxed);
        is_wide(word) && word % NODE / PASS < limits.of(word)
    }

    /// Takes the lock if it is free, and returns how many have passed; 0 also if the former holder
    /// has left it to the caller. Else the caller, the first of the queue, stands at the door from
    /// now on.
    pub(crate) fn take_as_first(&self) -> Option<u32> {
        let word = self.word.load(Relaxed);
        if word & QUEUED != 0 {
            return Some(0);
        }
        if word & HELD == 0 {
            let new = HELD | QUEUED;
            if self.word.compare_exchange(word, new, Acquire, Relaxed).is_ok() {
                return Some(word % NODE / PASS);
            }
        }
        // One that was faster counts, too, from now on.
        if word & WAITED_FOR == 0 {
            self.word.fetch_or(WAITED_FOR, Relaxed);
        }
        None
    }

    /// The first of the queue leaves its CPU for as long as `away` takes, if somebody holds the
    /// lock. `away` gets the word, and the value that this has until the holder leaves. The first
    /// of the queue keeps its claim to the passes that were counted.
    pub(crate) fn step_aside(&self, away: impl FnOnce(&AtomicU32, u32)) {
        let word = self.word.load(Relaxed);
        let new = word & !WAITED_FOR | AWAY | WIDE;
        // While a thread holds the lock, that thread alone changes the word, when it leaves.
        if word & HELD != 0 && self.word.compare_exchange(word, new, Relaxed, Relaxed).is_ok() {
            away(&self.word, new);
        }
    }

    /// The holder leaves, unless it is the first of the queue: then it decides how.
    #[inline]
    pub(crate) fn leave(&self) -> Left {
        let word = self.word.load(Relaxed);
        if word & QUEUED != 0 {
            return Left::Not;
        }
        if word == HELD && self.word.compare_exchange(HELD, 0, Release, Relaxed).is_ok() {
            return Left::Free;
        }
        match self.word.fetch_and(!(HELD | AWAY), Release) & AWAY {
            0 => Left::Free,
            _ => Left::Awaited(&self.word),
        }
    }

    /// The holder, who is the first of the queue, leaves the lock to anybody, or to threads on
    /// `near` and the next one of the queue.
    pub(crate) fn open(&self, near: Option<u32>) {
        // Other threads change the word only while `QUEUED` is not set.
        self.word.store(near.map_or(0, placed), Release);
    }

    /// The holder, who is the first of the queue, leaves the lock to threads on any node, since the
    /// next one is away.
    pub(crate) fn open_wide(&self) {
        self.word.store(WIDE, Release);
    }

    /// The same once it has left the lock to threads on its node. The next one is still in the
    /// queue.
    pub(crate) fn widen(&self) {
        self.word.fetch_or(WIDE, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// So many pass one at the door, and any number one that is not there.
    fn most(present: u32) -> Limits {
        Limits { present, absent: u32::MAX }
    }

    /// A door that the first of the queue, from node 1, has left open.
    fn opened() -> Door {
        let door = Door::new();
        assert_eq!(door.take_as_first(), Some(0));
        assert_eq!(door.leave(), Left::Not, "it has the queue to pass on");
        door.open(Some(1));
        door
    }

    #[test]
    fn threads_that_are_near_pass_the_next_one_so_often_and_no_others() {
        let door = opened();
        assert!(!door.take_free() && !door.pass(2, most(3)), "the next one comes first");
        assert!(door.pass(1, most(3)));
        assert_eq!(door.take_as_first(), None);
        assert_eq!(door.leave(), Left::Free);
        for passes in 2..=3 {
            assert!(!door.pass(2, most(3)));
            assert!(door.pass(1, most(3)), "{passes}");
            assert_eq!(door.take_as_first(), None);
            assert_eq!(door.leave(), Left::Free);
        }
        assert!(!door.pass(1, most(3)));
        assert_eq!(door.take_as_first(), Some(3));
        assert!(door.is_held());
    }

    #[test]
    fn while_the_next_one_is_aside_all_may_pass() {
        let door = opened();
        assert!(door.pass(1, most(1)));
        assert_eq!(door.take_as_first(), None);
        let mut seen = None;
        door.step_aside(|word, value| {
            seen = Some(word.load(Relaxed) == value);
            assert_eq!(door.leave(), Left::Awaited(&door.word), "it may sleep");
            assert_ne!(word.load(Relaxed), value, "it would not fall asleep now");
        });
        assert_eq!(seen, Some(true));
        assert!(door.pass(2, most(1)), "none stands before it");
        assert_eq!(door.take_as_first(), None);
        assert_eq!(door.leave(), Left::Free);
        assert!(!door.pass(2, most(1)), "it is back");
        assert_eq!(door.take_as_first(), Some(2));
    }

    #[test]
    fn the_first_of_the_queue_does_not_leave_its_cpu_for_a_lock_that_is_free() {
        let door = opened();
        door.step_aside(|_, _| panic!("nobody would wake it"));
        assert_eq!(door.take_as_first(), Some(0));
    }

    #[test]
    fn a_door_that_is_widened_lets_so_many_threads_of_any_node_pass() {
        let few = Limits { present: 1, absent: 3 };
        let door = opened();
        assert!(!door.pass(2, few) && !door.is_wide(few));
        door.widen();
        for node in [2, 1, 3] {
            assert!(door.is_wide(few) && door.pass(node, few));
            assert_eq!(door.leave(), Left::Free);
        }
        assert!(!door.is_wide(few) && !door.pass(3, few));
        assert_eq!(door.take_as_first(), Some(3));
        assert_eq!(door.leave(), Left::Not);
        door.open_wide();
        assert!(door.pass(2, few));
        assert_eq!(door.take_as_first(), None);
        assert_eq!(door.leave(), Left::Free);
        assert!(!door.is_wide(few) && !door.pass(2, few), "it has come");
    }

    #[test]
    fn a_door_that_nobody_waits_before_is_free_after_each_holder() {
        let door = Door::new();
        for _ in 0..2 {
            assert!(door.pass(3, most(1)) && door.is_held());
            assert_eq!(door.leave(), Left::Free);
            assert!(door.take_free());
            assert_eq!(door.leave(), Left::Free);
        }
    }

    #[test]
    fn a_closed_door_is_left_to_the_next_one() {
        let door = Door::new();
        assert_eq!(door.take_as_first(), Some(0));
        assert_eq!(door.leave(), Left::Not);
        assert!(!door.pass(1, most(9)) && !door.take_free());
        assert_eq!(door.take_as_first(), Some(0));
        door.open(None);
        assert!(!door.is_held() && door.take_free());
        assert_eq!(door.leave(), Left::Free);
    }

    #[test]
    fn the_number_of_those_who_pass_stays_in_its_place() {
        let door = opened();
        for _ in 0..=MAX_PASSES {
            assert!(door.pass(1, most(MAX_PASSES)));
            assert_eq!(door.leave(), Left::Free);
        }
        assert_eq!(door.take_as_first(), Some(MAX_PASSES));
    }

    #[test]
    fn the_door_stays_closed_for_longer_each_time_that_nobody_passes() {
        let notes = Notes::new();
        let open_after = || (0..).find(|_| !notes.stays_closed());
        let waits: Vec<_> = (0..8).map(|_| open_after().unwrap()).collect();
        assert_eq!(waits, [0, 0, 1, 3, 7, 15, 31, 31]);
        notes.passed();
        assert_eq!(open_after(), Some(0));
    }
}
