//! The lock below all fair locks: a door, a queue behind it, and how a waiter leaves its CPU.

use crate::{
    door::{Door, Left, Limits, MAX_PASSES},
    platform::{Futex, Platform},
    queue::{Order, Queue, Waiter},
    sync::{AtomicU32, spin},
};
use core::{fmt, marker::PhantomData};
#[cfg(not(loom))]
use lock_api::{GuardNoSend, RawMutex};

/// A waiter that sleeps or wakes lets this many times as many threads pass as one at the door.
const ABSENT: u32 = 8;

mod sealed {
    use super::{AtomicU32, Platform};

    pub trait Sealed {
        type Platform: Platform;

        /// Whether it may be long. Then others pass the next waiter meanwhile, and a waiter on the
        /// holder's node comes first even if it is away.
        const IS_LONG: bool;

        /// Leaves the CPU, at most until the word has another value and [`Sealed::wake`] is called.
        fn await_change(word: &AtomicU32, value: u32);

        /// Wakes the waiter of this word, whose value has changed. The word may be gone.
        fn wake(word: *const AtomicU32);
    }
}

/// How a waiter leaves its CPU: [`GivesWay`] or [`Sleeps`].
pub trait Absence: sealed::Sealed {}

/// A waiter gives way to others now and then ([`Platform::give_way`]).
pub struct GivesWay<P>(PhantomData<fn() -> P>);

impl<P: Platform> Absence for GivesWay<P> {}

impl<P: Platform> sealed::Sealed for GivesWay<P> {
    type Platform = P;

    const IS_LONG: bool = false;

    fn await_change(_: &AtomicU32, _: u32) {
        P::give_way();
    }

    fn wake(_: *const AtomicU32) {}
}

/// A waiter sleeps until another thread wakes it ([`Futex`]).
pub struct Sleeps<P>(PhantomData<fn() -> P>);

impl<P: Futex> Absence for Sleeps<P> {}

impl<P: Futex> sealed::Sealed for Sleeps<P> {
    type Platform = P;

    const IS_LONG: bool = true;

    fn await_change(word: &AtomicU32, value: u32) {
        P::sleep(word, value);
    }

    fn wake(word: *const AtomicU32) {
        P::wake(word);
    }
}

// A platform need not be `Debug`, here and below.
impl<P> fmt::Debug for GivesWay<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GivesWay")
    }
}

impl<P> fmt::Debug for Sleeps<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Sleeps")
    }
}

/// A fair lock without data: [`RawFairSpinLock`](crate::RawFairSpinLock) or
/// [`RawFairMutex`](crate::RawFairMutex).
pub struct RawFair<A, const MOST: u32, const PASSES: u32> {
    door: Door,
    queue: Queue,
    absence: PhantomData<fn() -> A>,
}

impl<A, const MOST: u32, const PASSES: u32> fmt::Debug for RawFair<A, MOST, PASSES> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RawFair").field("is_held", &self.is_held()).finish()
    }
}

// SAFETY: `Door` gives the lock to one at a time; without passes `Queue` does.
#[cfg(not(loom))]
unsafe impl<A: Absence, const MOST: u32, const PASSES: u32> RawMutex for RawFair<A, MOST, PASSES> {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self::new();

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.take();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.take_free() || self.take_waited_for()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.leave() }
    }

    fn is_locked(&self) -> bool {
        self.is_held()
    }
}

impl<A, const MOST: u32, const PASSES: u32> RawFair<A, MOST, PASSES> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { door: Door::new(), queue: Queue::new(), absence: PhantomData }
    }

    // loom's atomics have no constant constructor.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { door: Door::default(), queue: Queue::default(), absence: PhantomData }
    }

    pub(crate) fn is_held(&self) -> bool {
        match PASSES {
            0 => self.queue.is_held(),
            _ => self.door.is_held(),
        }
    }
}

#[cfg_attr(loom, allow(dead_code, reason = "without lock_api the tests alone use it"))]
impl<A: Absence, const MOST: u32, const PASSES: u32> RawFair<A, MOST, PASSES> {
    const ORDER: Order = Order { most: MOST, is_near_first: A::IS_LONG };

    const LIMITS: Limits =
        Limits { present: PASSES, absent: if A::IS_LONG { PASSES * ABSENT } else { u32::MAX } };

    #[inline]
    pub(crate) fn take_free(&self) -> bool {
        const {
            let most = if A::IS_LONG { MAX_PASSES / ABSENT } else { MAX_PASSES };
            assert!(PASSES <= most, "the lock's word cannot count so many passes");
        }
        match PASSES {
            0 => self.queue.take_free(),
            _ => self.door.take_free(),
        }
    }

    #[inline]
    pub(crate) fn take(&self) {
        if !self.take_free() {
            self.wait();
        }
    }

    /// # Safety
    /// The caller holds the lock.
    #[inline]
    pub(crate) unsafe fn leave(&self) {
        let awaited = match PASSES {
            // SAFETY: the caller holds the lock.
            0 => unsafe { self.queue.release(A::Platform::node, Self::ORDER) },
            _ => match self.door.leave() {
                Left::Free => None,
                Left::Awaited(word) => Some(word),
                // SAFETY: the caller holds the lock, and its queue.
                Left::Not => unsafe { self.pass_on() },
            },
        };
        if let Some(word) = awaited {
            A::wake(word);
        }
    }

    /// Takes a free lock whose next waiter sleeps or wakes.
    fn take_waited_for(&self) -> bool {
        let may_pass = A::IS_LONG && PASSES > 0 && !self.door.is_held();
        may_pass && self.door.pass(A::Platform::node(), Self::LIMITS)
    }

    #[cold]
    fn wait(&self) {
        let node = A::Platform::node();
        if PASSES > 0 && self.pass(node) {
            return;
        }
        let waiter = Waiter::on(node);
        let stay = Stay;
        // SAFETY: the waiter is new, and this function does not return before `take`, nor unwind.
        let mut has_lock = unsafe { self.queue.enter(&waiter) };
        let mut turns = 0_u32;
        while !has_lock {
            match A::Platform::stays(turns) {
                true => spin(),
                false => waiter.leave_cpu(A::await_change),
            }
            turns = turns.wrapping_add(1);
            has_lock = waiter.is_granted();
        }
        self.queue.take(&waiter);
        if PASSES > 0 {
            self.stand_at_the_door();
        }
        core::mem::forget(stay);
    }

    /// Takes the lock without a place in the queue.
    fn pass(&self, node: u32) -> bool {
        let mut turns = 0_u32;
        while !self.door.pass(node, Self::LIMITS) {
            // A thread that queued now would sleep soon, while the next one is not there yet.
            let may_pass = A::IS_LONG && A::Platform::stays(turns);
            if !may_pass || !self.door.is_wide(Self::LIMITS) {
                return false;
            }
            spin();
            turns = turns.wrapping_add(1);
        }
        true
    }

    fn stand_at_the_door(&self) {
        let mut turns = 0_u32;
        loop {
            if let Some(passes) = self.door.take_as_first() {
                if passes > 0 {
                    self.queue.notes.passed();
                }
                return;
            }
            match A::Platform::stays(turns) {
                true => spin(),
                false => self.door.step_aside(A::await_change),
            }
            turns = turns.wrapping_add(1);
        }
    }

    /// The holder, who is the first of the queue, leaves. Returns the word of a waiter that is next
    /// and away.
    ///
    /// # Safety
    /// The caller holds the lock, and the queue.
    #[cold]
    unsafe fn pass_on(&self) -> Option<*const AtomicU32> {
        let node = A::Platform::node();
        let is_waited_in = self.queue.is_waited_in();
        let is_closed = is_waited_in && self.queue.notes.stays_closed();
        if !is_closed {
            self.door.open(is_waited_in.then_some(node));
        }
        // SAFETY: the caller is the first of the queue.
        let next = unsafe { self.queue.take_next(|| node, Self::ORDER) }?;
        if A::IS_LONG {
            // A waiter that came once the door was open to all counts as one that sleeps, since
            // passes are not counted there.
            if is_waited_in && next.grant_if_ready() {
                return None;
            }
            match is_closed {
                true => self.door.open_wide(),
                false => self.door.widen(),
            }
        }
        next.grant()
    }
}

/// A panic while this exists aborts: others hold the address of a waiter, or wait for the first of
/// the queue, or for a reader that has arrived.
pub(crate) struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        #[allow(clippy::panic, reason = "a second panic aborts")]
        {
            panic!("a platform has panicked while a thread waited for a lock");
        }
    }
}

#[cfg(all(test, loom))]
#[path = "raw_tests.rs"]
mod tests;
