//! Memory of a node from a `MappedMachine`, beside `mmap` with `mbind`, and libnuma.
//!
//! Memory is node 0's. One thread or two allocate an extent, write its first word, and free it, one
//! at a time. The kernel supplies a page each time to all but "nearside", which keeps pages;
//! "nearside, discarded" gives them back, too. Times are of one pair of both operations.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(unsafe_code, reason = "mmap, mbind and libnuma have no safe interface")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nearside_frames::{Backing, Cache, Machine, MappedMachine, Node, Order};
use std::{
    ffi::{CStr, c_int, c_void},
    ptr::null_mut,
    sync::{Barrier, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

type Available = unsafe extern "C" fn() -> c_int;
type Allocate = unsafe extern "C" fn(usize, c_int) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, usize);

/// libnuma, if it is installed. It is LGPL, so nothing links it.
#[derive(Clone, Copy)]
struct LibNuma {
    allocate: Allocate,
    free: Free,
}

impl LibNuma {
    fn load() -> Option<Self> {
        let symbol = |library, name: &CStr| {
            // SAFETY: the library stays loaded, and the name ends with a zero.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol)
        };
        // SAFETY: its constructors read /sys, and have no conditions.
        let library = unsafe { libc::dlopen(c"libnuma.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let is_available = symbol(library, c"numa_available")?;
        // SAFETY: this is its signature. It comes before all other calls (numa(3)).
        let is_available =
            unsafe { std::mem::transmute::<*mut c_void, Available>(is_available)() } >= 0;
        if !is_available {
            return None;
        }
        let (allocate, free) =
            (symbol(library, c"numa_alloc_onnode")?, symbol(library, c"numa_free")?);
        // SAFETY: these are their signatures (numa(3)).
        let allocate = unsafe { std::mem::transmute::<*mut c_void, Allocate>(allocate) };
        // SAFETY: as above.
        let free = unsafe { std::mem::transmute::<*mut c_void, Free>(free) };
        Some(Self { allocate, free })
    }
}

fn mmap_and_mbind(bytes: usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mask = 1_u64;
    // SAFETY: the mapping is new, is written within its size, and is gone afterwards.
    unsafe {
        let memory = libc::mmap(null_mut(), bytes, protection, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        let mode = libc::MPOL_BIND as libc::c_long;
        let result =
            libc::syscall(libc::SYS_mbind, memory, bytes, mode, &raw const mask, 65_u64, 0_u64);
        assert_eq!(result, 0);
        memory.cast::<u64>().write_volatile(7);
        libc::munmap(memory, bytes);
    }
}

/// The time of `rounds` pairs in each of the threads.
fn time<W: FnMut()>(threads: usize, rounds: u64, way: impl Fn() -> W + Sync) -> Duration {
    let barrier = Barrier::new(threads);
    let run = || {
        let mut pair = way();
        barrier.wait();
        let began = Instant::now();
        (0..rounds).for_each(|_| pair());
        began.elapsed()
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    })
}

fn nearside<'m>(
    mapped: &'m MappedMachine,
    machine: &'m Machine<'m>,
    order: Order,
    is_discarded: bool,
) -> impl FnMut() + 'm {
    let mut cache = Cache::new(machine, Node(0)).unwrap();
    move || {
        let extent = cache.allocate(order).unwrap();
        mapped.place(extent).unwrap().words[0].store(7, Relaxed);
        if is_discarded {
            mapped.discard(extent).unwrap();
        }
        cache.free(extent).unwrap();
    }
}

fn mapped(criterion: &mut Criterion) {
    let mapped = MappedMachine::new(&[(Node(0), 64 << 20)], Backing::Pages).unwrap();
    let machine = mapped.machine().unwrap();
    let libnuma = LibNuma::load();
    if libnuma.is_none() {
        eprintln!("skipped: no libnuma.so.1, or no nodes");
    }
    for order in [Order::BASE, Order::HUGE] {
        let bytes = (order.frames() * Backing::Pages.page_bytes()) as usize;
        for threads in [1, 2] {
            let name = format!("mapped, order {}, threads {threads}", order.exponent());
            let mut group = criterion.benchmark_group(name);
            group.sample_size(10).measurement_time(Duration::from_millis(500));
            group.warm_up_time(Duration::from_millis(200));
            for (name, is_discarded) in [("nearside", false), ("nearside, discarded", true)] {
                group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                    bencher.iter_custom(|rounds| {
                        time(threads, rounds, || nearside(&mapped, &machine, order, is_discarded))
                    });
                });
            }
            group.bench_function("mmap and mbind", |bencher| {
                bencher.iter_custom(|rounds| time(threads, rounds, || || mmap_and_mbind(bytes)));
            });
            if let Some(LibNuma { allocate, free }) = libnuma {
                let pair = move || {
                    // SAFETY: the memory is written within its size, and freed once.
                    unsafe {
                        let memory = allocate(bytes, 0);
                        assert!(!memory.is_null());
                        memory.cast::<u64>().write_volatile(7);
                        free(memory, bytes);
                    }
                };
                group.bench_function("libnuma", |bencher| {
                    bencher.iter_custom(|rounds| time(threads, rounds, || pair));
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, mapped);
criterion_main!(benches);
