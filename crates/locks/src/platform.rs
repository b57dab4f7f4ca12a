//! The caller's machine.

use crate::sync::AtomicU32;

/// The machine that a lock's users run on: a kernel or a VMM supplies it. With the feature `std`,
/// [`Linux`] is one for programs.
///
/// ```
/// use nearside_locks::Platform;
///
/// /// A kernel that has the node at hand for each CPU.
/// struct Kernel;
///
/// impl Platform for Kernel {
///     fn node() -> u32 {
///         # let current_cpu = || 5;
///         current_cpu() / 4
///     }
/// }
/// assert_eq!(Kernel::node(), 1);
/// ```
pub trait Platform {
    /// The node of the CPU that the caller runs on. A thread that is moved meanwhile makes a lock
    /// slower, and nothing else. It must not panic, since a lock would stay held, and must not take
    /// a lock of this kind.
    fn node() -> u32;

    /// Whether a waiter stays on its CPU for another turn. `turns` counts the turns before. It must
    /// not panic, here and below: the process may be aborted.
    fn stays(turns: u32) -> bool {
        let _ = turns;
        true
    }

    /// Gives the CPU to others that wait for it, if there are any. Meanwhile the lock passes to
    /// waiters that have not given theirs away, if there are any, within its bound. The waiter
    /// whose turn it is is not skipped; others may pass it.
    fn give_way() {
        core::hint::spin_loop();
    }

    /// Nanoseconds since some instant, which never go back. Only
    /// [`Measured`](crate::Measured) asks, when a thread has to wait. A machine without a clock
    /// answers 0.
    fn now_ns() -> u64 {
        0
    }
}

/// A machine whose threads can sleep, as [`FairMutex`](crate::FairMutex) needs it.
///
/// A waiter sleeps once [`Platform::stays`] is false, so it has to be at times; by default it never
/// is. [`Platform::give_way`] is not called.
///
/// The futex of Linux is the model (`futex(2)`). Neither function may panic: the process would be
/// aborted, or a waiter would sleep for ever.
pub trait Futex: Platform {
    /// Sleeps while the word has this value, until [`Futex::wake`] is called for the word. It may
    /// return earlier. Between its look at the value and its sleep no call of `wake` is lost.
    fn sleep(word: &AtomicU32, value: u32);

    /// Wakes a thread that sleeps on this word, if there is any. The word may be gone by now, and
    /// its place may be another word's: only its address counts.
    fn wake(word: *const AtomicU32);
}

#[cfg(feature = "std")]
pub use linux::Linux;

#[cfg(feature = "std")]
mod linux {
    use super::Platform;
    #[cfg(not(loom))]
    use super::{AtomicU32, Futex};
    use std::{fs, sync::OnceLock, time::Instant};

    /// Turns between two times that a waiter gives its CPU away, for a holder that was preempted.
    const TURNS: u32 = 256;

    /// A program under Linux. Nodes are those that `/sys/devices/system/node` shows when a node is
    /// first asked for; without it, all CPUs are on node 0. That reads files and allocates, so it
    /// is not for a lock inside the global allocator or a signal handler.
    #[derive(Debug)]
    pub enum Linux {}

    impl Platform for Linux {
        fn node() -> u32 {
            static NODES: OnceLock<Vec<u32>> = OnceLock::new();
            let nodes = NODES.get_or_init(nodes_of_cpus);
            nodes.get(rustix::thread::sched_getcpu()).copied().unwrap_or(0)
        }

        fn stays(turns: u32) -> bool {
            turns % TURNS != TURNS - 1
        }

        fn give_way() {
            std::thread::yield_now();
        }

        fn now_ns() -> u64 {
            static BEGIN: OnceLock<Instant> = OnceLock::new();
            let elapsed = BEGIN.get_or_init(Instant::now).elapsed();
            elapsed.as_nanos().try_into().unwrap_or(u64::MAX)
        }
    }

    // loom's atomics are not words of the kernel.
    #[cfg(not(loom))]
    impl Futex for Linux {
        fn sleep(word: &AtomicU32, value: u32) {
            use rustix::thread::futex;
            // It fails if the value is another one by now, or at a signal: then it returns early.
            _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
        }

        #[allow(unsafe_code, reason = "the word may be gone")]
        #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "nobody accesses it")]
        fn wake(word: *const AtomicU32) {
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the kernel takes the address as a name, and accesses no memory there
            // (`get_futex_key` in kernel/futex/core.c, private futexes).
            unsafe { libc::syscall(libc::SYS_futex, word, operation, 1) };
        }
    }

    /// The node of each CPU.
    fn nodes_of_cpus() -> Vec<u32> {
        let folders = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
        let mut nodes = Vec::new();
        for folder in folders {
            let name = folder.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
            let cpus = fs::read_to_string(folder.path().join("cpulist"));
            if let (Some(node), Ok(cpus)) = (number, cpus) {
                assign(&mut nodes, &cpus, node);
            }
        }
        nodes
    }

    /// The most CPUs that a kernel can be built for (`NR_CPUS` of x86 in `arch/x86/Kconfig`).
    const MAX_CPUS: usize = 8192;

    /// Gives a node the CPUs of a list such as `0-3,8`.
    fn assign(nodes: &mut Vec<u32>, cpus: &str, node: u32) {
        for range in cpus.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                continue;
            };
            if last >= MAX_CPUS || first > last {
                continue;
            }
            nodes.resize(nodes.len().max(last + 1), 0);
            nodes[first..=last].fill(node);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn lists_of_cpus_give_the_node_of_each() {
            let mut nodes = Vec::new();
            assign(&mut nodes, "4-5,7\n", 2);
            assign(&mut nodes, "0-1\n", 1);
            assign(&mut nodes, "\n", 3);
            assign(&mut nodes, "9-8,1-99999999999,x", 3);
            assert_eq!(nodes, [1, 1, 0, 0, 2, 2, 0, 2]);
        }
    }
}
