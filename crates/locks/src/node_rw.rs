//! A lock for many readers on all nodes, and few writers.
//!
//! Readers count on a word of their own node. A writer marks these words, and so learns how many
//! readers have come before it; those that come later wait for it, and for no writer after it.
//! Phases of readers and writers alternate as in Brandenburg and Anderson's phase-fair locks
//! (Real-Time Systems 46, 2010), where all count on one word.

#[cfg(not(loom))]
use crate::per_node::Padded;
use crate::{
    fair::RawFairSpinLock,
    per_node::PerNode,
    platform::Platform,
    raw::Stay,
    sync::{Acquire, AtomicUsize, Relaxed, Release, spin},
};
use core::fmt;
#[cfg(not(loom))]
use lock_api::{GuardNoSend, RawRwLock, RawRwLockDowngrade};

/// A spin lock that readers on different nodes take without a common cache line, for up to `NODES`
/// nodes.
///
/// To read costs two atomic additions on a line of the reader's node. To write costs two on each
/// node's line, and a [`FairSpinLock`](crate::FairSpinLock) between writers. So it is for data that
/// is read far more often than written: a memory map, a routing table.
///
/// A reader waits for at most one writer, and for the readers that this one waits for: those that
/// have come before it. Attempts to write that fail hold readers back for an instant. A writer
/// waits for the readers before it, besides the other writers. A thread that holds the lock must
/// not take it again, not even to read: a writer may have come between.
///
/// It takes 128 bytes for each node, and has the guards of [`lock_api::RwLock`].
///
/// ```
/// use nearside_locks::{Linux, NodeRwLock};
/// use std::collections::BTreeMap;
///
/// static NAMES: NodeRwLock<Linux, BTreeMap<u32, &str>, 8> = NodeRwLock::new(BTreeMap::new());
///
/// NAMES.write().insert(7, "db");
/// assert_eq!(NAMES.read().get(&7), Some(&"db"));
/// ```
pub type NodeRwLock<P, T, const NODES: usize> = lock_api::RwLock<RawNodeRwLock<P, NODES>, T>;

/// The guard of a reader of a [`NodeRwLock`].
pub type NodeRwLockReadGuard<'a, P, T, const NODES: usize> =
    lock_api::RwLockReadGuard<'a, RawNodeRwLock<P, NODES>, T>;

/// The guard of a writer of a [`NodeRwLock`].
pub type NodeRwLockWriteGuard<'a, P, T, const NODES: usize> =
    lock_api::RwLockWriteGuard<'a, RawNodeRwLock<P, NODES>, T>;

/// The bit of [`Readers::arrived`] that a writer sets.
const WRITER: usize = 1;

/// One reader in [`Readers::arrived`].
const READER: usize = 2;

/// A lock as [`NodeRwLock`], without data. `NODES` of 0 does not compile.
pub struct RawNodeRwLock<P, const NODES: usize> {
    /// The writer that has marked the words of readers, and those that wait for it.
    writers: RawFairSpinLock<P>,
    nodes: PerNode<Readers, NODES>,
}

/// The readers that a node has seen. All counters go round.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Readers {
    /// The number that has come, times [`READER`], and [`WRITER`] while later ones have to wait.
    arrived: AtomicUsize,
    /// The number that has left, times [`READER`]. A thread may have moved here meanwhile, so only
    /// the sums of all nodes compare.
    left: AtomicUsize,
    /// The value of `arrived` that the last writer has found. It waits for these readers.
    counted: AtomicUsize,
}

impl Readers {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self {
            arrived: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            counted: AtomicUsize::new(0),
        }
    }

    /// Whether a reader that found `arrived` marked may go on: no writer is there, or one that has
    /// counted it, and so waits for it.
    fn admits(&self, arrived: usize) -> bool {
        let is_free = self.arrived.load(Acquire) & WRITER == 0;
        is_free || is_before(arrived & !WRITER, self.counted.load(Acquire))
    }
}

/// The order of two counts that go round.
fn is_before(count: usize, other: usize) -> bool {
    other.wrapping_sub(count).cast_signed() > 0
}

// A platform need not be `Debug`.
impl<P, const NODES: usize> fmt::Debug for RawNodeRwLock<P, NODES> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("RawNodeRwLock");
        fields.field("readers", &self.readers()).field("has_writer", &self.writers.is_held());
        fields.finish()
    }
}

// SAFETY: `writers` admits one writer, which waits for all readers that have come before its mark.
// Those that come later wait until the mark is gone, or until a later writer waits for them.
#[cfg(not(loom))]
unsafe impl<P: Platform, const NODES: usize> RawRwLock for RawNodeRwLock<P, NODES> {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self::new();

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock_shared(&self) {
        self.enter();
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.try_enter()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        self.exit();
    }

    fn lock_exclusive(&self) {
        self.write();
    }

    fn try_lock_exclusive(&self) -> bool {
        self.try_write()
    }

    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller is the writer.
        unsafe { self.end_write() }
    }

    fn is_locked(&self) -> bool {
        self.writers.is_held() || self.readers() > 0
    }

    /// True, too, while a writer waits for readers.
    fn is_locked_exclusive(&self) -> bool {
        self.writers.is_held()
    }
}

// SAFETY: the writer is a reader before its mark is gone.
#[cfg(not(loom))]
unsafe impl<P: Platform, const NODES: usize> RawRwLockDowngrade for RawNodeRwLock<P, NODES> {
    unsafe fn downgrade(&self) {
        self.nodes.here::<P>().arrived.fetch_add(READER, Relaxed);
        // SAFETY: the caller is the writer.
        unsafe { self.end_write() }
    }
}

impl<P, const NODES: usize> RawNodeRwLock<P, NODES> {
    #[cfg(not(loom))]
    const fn new() -> Self {
        const { assert!(NODES > 0 && NODES <= u32::MAX as usize) };
        let nodes = PerNode { values: [const { Padded(Readers::new()) }; NODES] };
        Self { writers: RawFairSpinLock::new(), nodes }
    }

    // loom's atomics have no constant constructor.
    #[cfg(loom)]
    fn new() -> Self {
        Self { writers: RawFairSpinLock::new(), nodes: PerNode::new(|_| Readers::default()) }
    }

    /// The readers that have the lock or wait for it, at about this time.
    fn readers(&self) -> usize {
        let left = self.left();
        let arrived = self.nodes.iter().map(|node| node.arrived.load(Relaxed) & !WRITER);
        arrived.fold(0, usize::wrapping_add).wrapping_sub(left) / READER
    }

    /// Never more than have left: each count only grows.
    fn left(&self) -> usize {
        self.nodes.iter().map(|node| node.left.load(Acquire)).fold(0, usize::wrapping_add)
    }

    /// Lets readers go on.
    fn clear_marks(&self) {
        for node in self.nodes.iter() {
            node.arrived.fetch_and(!WRITER, Release);
        }
    }
}

impl<P: Platform, const NODES: usize> RawNodeRwLock<P, NODES> {
    #[inline]
    fn enter(&self) {
        let readers = self.nodes.here::<P>();
        let arrived = readers.arrived.fetch_add(READER, Acquire);
        if arrived & WRITER != 0 {
            wait_until::<P>(|| readers.admits(arrived));
        }
    }

    #[inline]
    fn try_enter(&self) -> bool {
        let arrived = &self.nodes.here::<P>().arrived;
        let mut found = arrived.load(Relaxed);
        while found & WRITER == 0 {
            let more = found.wrapping_add(READER);
            match arrived.compare_exchange_weak(found, more, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(other) => found = other,
            }
        }
        false
    }

    /// A reader leaves, maybe on another node than it has come on.
    #[inline]
    fn exit(&self) {
        self.nodes.here::<P>().left.fetch_add(READER, Release);
    }

    fn write(&self) {
        self.writers.take();
        let arrived = self.mark();
        wait_until::<P>(|| self.left() == arrived);
    }

    fn try_write(&self) -> bool {
        if !self.writers.take_free() {
            return false;
        }
        let arrived = self.mark();
        if self.left() == arrived {
            return true;
        }
        // SAFETY: this thread holds `writers`.
        unsafe { self.end_write() };
        false
    }

    /// Holds later readers back. Returns the count of those before, as [`Self::left`] counts. The
    /// caller holds `writers`.
    fn mark(&self) -> usize {
        let mark = |node: &Readers| {
            let arrived = node.arrived.fetch_or(WRITER, Acquire);
            node.counted.store(arrived, Release);
            arrived
        };
        self.nodes.iter().map(mark).fold(0, usize::wrapping_add)
    }

    /// # Safety
    /// The caller holds `writers`.
    unsafe fn end_write(&self) {
        self.clear_marks();
        // SAFETY: the caller holds it.
        unsafe { self.writers.leave() };
    }
}

/// Spins, and gives the CPU away now and then.
fn wait_until<P: Platform>(mut is_over: impl FnMut() -> bool) {
    let stay = Stay;
    let mut turns = 0_u32;
    while !is_over() {
        match P::stays(turns) {
            true => spin(),
            false => P::give_way(),
        }
        turns = turns.wrapping_add(1);
    }
    core::mem::forget(stay);
}

#[cfg(all(test, loom))]
#[path = "node_rw_tests.rs"]
mod tests;
