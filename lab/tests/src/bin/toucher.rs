//! Fills memory of a chosen kind, prints "ready", and holds the memory (or keeps touching it) until
//! its input ends.
//!
//! It prints the first address of its memory, so that a reader of `numa_maps` can find the mapping.
#![allow(unsafe_code)]

use clap::{Parser, ValueEnum};
use std::{
    io::{Read, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        atomic::{AtomicBool, AtomicU8, Ordering},
        mpsc,
    },
    thread,
};

/// Fill memory, print "ready ADDRESS", and hold it until standard input ends.
#[derive(Debug, Parser)]
struct Args {
    /// MiB to map and fill
    #[arg(long)]
    mib: usize,
    /// Fill only so many of them
    #[arg(long, value_name = "MIB")]
    touch: Option<usize>,
    /// The kind of memory
    #[arg(long, value_enum, default_value_t = Kind::Anon)]
    kind: Kind,
    /// Threads that fill it, each its part
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Free the memory when a line comes, say "freed", and touch it again at the next line
    #[arg(long)]
    free: bool,
    /// Keep touching instead of sleeping: every thread all of it
    #[arg(long)]
    spin: bool,
    /// Have the kernel pin the first of it in place, as for a device (a buffer registered with
    /// io_uring)
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pin: usize,
    /// Keep a thread that starts another and ends, which does the same
    #[arg(long)]
    restless: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Private memory in ordinary pages
    Anon,
    /// Private memory in transparent huge pages
    Thp,
    /// Shared memory
    Shm,
    /// Explicit huge pages of 2 MiB
    Huge,
    /// The heap, as malloc(3) extends it
    Heap,
    /// The stack of the main thread (at most some MiB: ulimit -s)
    Stack,
}

const STEP: usize = 4096;

fn main() {
    let args = Args::parse();
    let bytes = args.mib << 20;
    if !matches!(args.kind, Kind::Thp) {
        // SAFETY: takes no pointers. If the kernel preferred huge pages, pages could be counted
        // only in steps of 2 MiB.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    }
    let (address, bytes) = match args.kind {
        // The memory below is in use by the time it is touched again.
        Kind::Stack => (deepen_stack(bytes), 0),
        Kind::Heap => (extend_heap(bytes), bytes),
        kind => (map(kind, bytes), args.touch.unwrap_or(args.mib) << 20),
    };
    let (go, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let part = bytes / args.threads;
        let (filled, all_filled) = mpsc::channel();
        let mut fillers = Vec::new();
        for n in 0..args.threads {
            let (filled, go, stop) = (filled.clone(), &go, &stop);
            // A thread that ends stays in /proc for a moment, so the filling threads also spin.
            fillers.push(scope.spawn(move || {
                touch(address + n * part, part);
                let _ = filled.send(());
                drop(filled);
                while args.spin && !go.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                while args.spin && !stop.load(Ordering::Relaxed) {
                    touch(address, bytes);
                }
            }));
        }
        drop(filled);
        if all_filled.iter().count() != args.threads {
            // The other threads wait for a message that does not come.
            eprintln!("a thread could not fill its part");
            std::process::exit(1);
        }
        if !args.spin {
            fillers.into_iter().for_each(|filler| drop(filler.join()));
        }
        go.store(true, Ordering::Relaxed);
        let _pinned = (args.pin > 0).then(|| pin(address, args.pin << 20));
        if args.restless {
            restless();
        }
        println!("ready {address:x}");
        assert!(std::io::stdout().flush().is_ok(), "the reader has gone");
        if args.free {
            await_line();
            // SAFETY: the mapping is this program's own and nothing points into it.
            unsafe { libc::madvise(address as *mut _, bytes, libc::MADV_DONTNEED) };
            println!("freed");
            await_line();
            touch(address, bytes);
            println!("touched");
        }
        // Ends when the other end is closed.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
}

/// Pins memory until the returned descriptor is closed: io_uring_setup(2), io_uring_register(2).
fn pin(address: usize, bytes: usize) -> OwnedFd {
    const REGISTER_BUFFERS: libc::c_uint = 0;
    // struct io_uring_params, which the kernel fills in; nothing of it is asked for.
    let mut params = [0_u64; 15];
    // SAFETY: the kernel writes 120 bytes to `params`, which has them.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    let ring = libc::c_int::try_from(ring).unwrap_or(-1);
    assert!(ring >= 0, "io_uring_setup: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened and has no other owner.
    let ring = unsafe { OwnedFd::from_raw_fd(ring) };
    let buffer = libc::iovec { iov_base: address as *mut _, iov_len: bytes };
    // SAFETY: the buffer is this program's own memory, and nothing is read or written there.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            REGISTER_BUFFERS,
            &raw const buffer,
            1,
        )
    };
    assert!(done == 0, "io_uring_register: {}", std::io::Error::last_os_error());
    ring
}

fn restless() {
    thread::spawn(restless);
}

fn await_line() {
    assert!(std::io::stdin().read_line(&mut String::new()).is_ok(), "the writer has gone");
}

fn map(kind: Kind, bytes: usize) -> usize {
    // Transparent huge pages need their alignment.
    let extra = if matches!(kind, Kind::Thp) { 2 << 20 } else { 0 };
    let flags = match kind {
        Kind::Shm => libc::MAP_SHARED,
        Kind::Huge => libc::MAP_PRIVATE | libc::MAP_HUGETLB,
        _ => libc::MAP_PRIVATE,
    };
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    let address = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), bytes + extra, access, flags | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert!(address != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    if matches!(kind, Kind::Thp) {
        // SAFETY: the range is the mapping just made; the advice changes no content.
        unsafe { libc::madvise(address, bytes + extra, libc::MADV_HUGEPAGE) };
    }
    (address as usize).next_multiple_of(extra.max(1))
}

fn extend_heap(bytes: usize) -> usize {
    // SAFETY: only adds to the data segment, and malloc(3) expects others to do so, too.
    let address = unsafe { libc::sbrk(bytes as isize) };
    assert!(address as isize != -1, "sbrk: {}", std::io::Error::last_os_error());
    address as usize
}

/// Uses that much of this thread's stack, for a moment: its pages stay. Gives the lowest address.
fn deepen_stack(bytes: usize) -> usize {
    let frame = std::hint::black_box([1_u8; STEP]);
    match bytes.checked_sub(STEP) {
        Some(more) => deepen_stack(more).min(frame.as_ptr() as usize),
        None => frame.as_ptr() as usize,
    }
}

fn touch(address: usize, bytes: usize) {
    for offset in (0..bytes).step_by(STEP) {
        // SAFETY: within the mapping, which nothing but such stores writes.
        unsafe { AtomicU8::from_ptr((address + offset) as *mut u8) }.store(1, Ordering::Relaxed);
    }
}
