//! The rooms of a process.

use crate::{
    c_library::{Mutex, is_as_expected},
    room::{Choice, Room},
};
use libc::c_int;
use nearside_locks::{Linux, Platform};
use std::{
    mem::size_of,
    ptr::null_mut,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Rooms: places of mutexes that are waited for. Others of the same place have no queue.
const ROOMS: usize = 256;

/// The rooms of a process, in memory that a child finds empty: its parent's threads, which may wait
/// in them, do not exist there.
pub(crate) struct Rooms {
    state: AtomicU32,
    rooms: [Room; ROOMS],
}

/// States. A child begins with the first one.
const EMPTY: u32 = 0;
const BEING_MADE: u32 = 1;
const READY: u32 = 2;

static ALL: AtomicPtr<Rooms> = AtomicPtr::new(null_mut());
static IS_ALWAYS: AtomicBool = AtomicBool::new(false);

/// Whether a mutex has been waited for.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The use of all rooms.
#[derive(Default)]
pub(crate) struct Report {
    /// Mutexes that have a place, and those of them that have a queue now.
    pub(crate) mutexes: u32,
    pub(crate) queues: u32,
    /// Threads that have queued so far.
    pub(crate) queued: u64,
}

/// Begins to serve mutexes with queues, unless this system differs from what this object knows.
pub(crate) fn begin(choice: Choice) -> Result<(), &'static str> {
    if !is_as_expected() {
        return Err("this C library's mutexes are not as expected");
    }
    // Both read files, or allocate, when they are first called. A mutex of an allocator must not.
    Linux::node();
    Linux::now_ns();
    IS_ALWAYS.store(choice == Choice::Always, Relaxed);
    let rooms = Rooms::map().ok_or("the kernel gives no memory that a child finds empty")?;
    ALL.store(rooms, Release);
    Ok(())
}

/// Whether a mutex is free, and has no place here, as most are most of the time.
#[inline]
pub(crate) fn is_uncontended(mutex: Mutex) -> bool {
    !mutex.is_held() && (!IS_USED.load(Relaxed) || !has_room(mutex))
}

fn has_room(mutex: Mutex) -> bool {
    let rooms = ALL.load(Acquire);
    // SAFETY: it has been mapped, for ever.
    !rooms.is_null() && unsafe { Room::is_of(Rooms::room(rooms, mutex), mutex) }
}

/// The rooms; none before they are there, and while a child makes its own.
pub(crate) fn all() -> Option<&'static Rooms> {
    let rooms = ALL.load(Acquire);
    if rooms.is_null() {
        return None;
    }
    // SAFETY: it has been mapped, for ever. This word of it may be zero.
    let state = unsafe { &(*rooms).state };
    if state.load(Acquire) != READY && !Rooms::make(rooms, state) {
        return None;
    }
    // SAFETY: as above, and its rooms have been made.
    Some(unsafe { &*rooms })
}

impl Rooms {
    /// Memory for rooms; none if the kernel refuses.
    fn map() -> Option<*mut Self> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, which nobody else knows.
        unsafe {
            let memory = libc::mmap(null_mut(), size_of::<Self>(), access, kind, -1, 0);
            if memory == libc::MAP_FAILED {
                return None;
            }
            if libc::madvise(memory, size_of::<Self>(), libc::MADV_WIPEONFORK) != 0 {
                libc::munmap(memory, size_of::<Self>());
                return None;
            }
            Some(memory.cast())
        }
    }

    /// The room of a mutex, which need not have been made.
    ///
    /// # Safety
    /// The rooms are mapped.
    #[inline]
    unsafe fn room(rooms: *const Self, mutex: Mutex) -> *const Room {
        // SAFETY: a place is less than the number of rooms.
        unsafe { (&raw const (*rooms).rooms).cast::<Room>().add(place(mutex.address())) }
    }

    /// Makes the rooms, unless another thread does it just now.
    #[cold]
    fn make(rooms: *mut Self, state: &AtomicU32) -> bool {
        if state.compare_exchange(EMPTY, BEING_MADE, Acquire, Relaxed).is_err() {
            return state.load(Acquire) == READY;
        }
        for number in 0..ROOMS {
            // SAFETY: it lies within the mapping, and no other thread uses a room before the
            // state says so.
            unsafe { (&raw mut (*rooms).rooms).cast::<Room>().add(number).write(Room::new()) };
        }
        state.store(READY, Release);
        true
    }

    /// Locks a plain mutex that may be contended.
    pub(crate) fn lock(&self, mutex: Mutex) -> c_int {
        let choice = match IS_ALWAYS.load(Relaxed) {
            true => Choice::Always,
            false => Choice::Measured,
        };
        if !IS_USED.load(Relaxed) {
            IS_USED.store(true, Relaxed);
        }
        self.rooms[place(mutex.address())].lock(mutex, choice)
    }

    pub(crate) fn report(&self) -> Report {
        let mut report = Report::default();
        for used in self.rooms.iter().map(Room::r#use) {
            report.mutexes += u32::from(used.has_owner);
            report.queues += u32::from(used.has_queue);
            report.queued += used.queued;
        }
        report
    }
}

/// The place of a mutex: Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
fn place(address: usize) -> usize {
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - ROOMS.ilog2())) as usize
}
