//! The scheduler's counters.

use nearside_topology::NodeId;
use std::{collections::BTreeMap, time::Duration};

/// All counts since it was attached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Decisions by kind.
    pub counters: Counters,
    /// The CPU time of each domain, by its cgroup's number.
    pub domains: BTreeMap<u64, DomainUsage>,
}

/// CPU time of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DomainUsage {
    /// CPU time on each node that it ran on.
    pub by_node: BTreeMap<NodeId, Duration>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Decisions by kind, in the order of `enum counter` in `state.h`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// Reads the counters one after the other.
            pub(crate) fn read<E>(
                mut counter: impl FnMut(u32) -> Result<u64, E>,
            ) -> Result<Self, E> {
                let mut next = 0..;
                Ok(Self { $($name: counter(next.next().unwrap_or(u32::MAX))?,)+ })
            }

            /// Each counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Tasks put onto an idle CPU of their home.
    home,
    /// .. of another affine node.
    affine,
    /// .. of another allowed node.
    other,
    /// Tasks put onto the CPU of their waker, which sleeps soon.
    taken_over,
    /// Tasks for which no CPU was idle.
    queued,
    /// CPUs taken from a running task for a woken one.
    preempted,
    /// Tasks a CPU took from its own queue.
    served,
    /// Times a task ran on because no other was due.
    kept,
    /// Tasks that were behind and were taken by a busy CPU of another queue.
    balanced,
    /// Tasks an idle CPU took from another queue.
    stolen,
    /// Tasks sent home.
    returned,
    /// Tasks that had to wait because a cap was used up.
    throttled,
    /// .. and went on.
    released,
    /// Per-CPU kernel threads started.
    bound,
    /// Tasks that waited for a kernel thread of their CPU.
    interrupted,
    /// Times an idle CPU found a task without a kick.
    rescued,
}
