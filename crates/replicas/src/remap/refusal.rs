//! Which processes are left alone, decided from facts read before the first change.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The two directions of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// From the original to a replica.
    Attach,
    /// From a replica to the original.
    Detach,
}

impl Operation {
    /// The time that all threads of the process have to stop. A process that gets no replica loses
    /// speed alone. One that keeps a replica would read stale text, so it gets longer, though not
    /// as long as the kernel lets a writer wait (`fs.lease-break-time`, 45 s).
    pub(crate) fn deadline(self) -> Duration {
        match self {
            Self::Attach => Duration::from_millis(40),
            Self::Detach => Duration::from_secs(2),
        }
    }
}

/// A process with the same address space as another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharer {
    /// Its number.
    pub pid: i32,
    /// True if it is a child of the process concerned.
    pub is_child: bool,
}

/// Facts about a process that decide whether it may be changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// True if it is the caller.
    pub is_own: bool,
    /// True if its main thread has ended (state `Z` or `X`).
    pub is_ended: bool,
    /// True if it has an address space, which kernel threads lack.
    pub has_memory: bool,
    /// True if it has locked some of its memory (`mlock`).
    pub locks_memory: bool,
    /// True if it is a 64-bit process. `None` if it has ended or is amid `execve`.
    pub is_64_bit: Option<bool>,
    /// The number of the thread that traces one of its threads.
    pub tracer: Option<i32>,
    /// True if one of its threads has a seccomp mode.
    pub has_seccomp: bool,
    /// True if one of its threads waits uninterruptibly (state `D`), as during `vfork`.
    pub waits_uninterruptibly: bool,
    /// The process that it is a child of; 0 if that is outside of this one's PID namespace.
    pub parent: Option<i32>,
    /// Another process with its address space.
    pub sharer: Option<Sharer>,
    /// True if the kernel cannot tell sharers (`kcmp` is missing).
    pub sharers_unknown: bool,
    /// True if its personality makes every readable mapping executable (`READ_IMPLIES_EXEC`).
    pub read_implies_exec: bool,
}

/// Why a process is left as it is. Nothing in it has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The registers and system calls of this architecture are unknown.
    #[error("mappings can be exchanged on x86-64 only")]
    UnsupportedArchitecture,
    /// It has ended, or its number belongs to another process by now.
    #[error("it has ended")]
    Gone,
    /// The number is that of a thread other than the main one.
    #[error("this is the number of a thread, not of a process")]
    NotAProcess,
    /// It is the caller.
    #[error("a process cannot stop itself")]
    OwnProcess,
    /// Its main thread has ended.
    #[error("its main thread has ended")]
    Ended,
    /// It has no address space.
    #[error("it is a kernel thread")]
    KernelThread,
    /// It executes 32-bit code.
    #[error("it is a 32-bit process")]
    ThirtyTwoBit,
    /// A debugger or `strace` holds one of its threads.
    #[error("thread {tracer} traces it already")]
    AlreadyTraced {
        /// The tracing thread, in most cases the main one of a process.
        tracer: i32,
    },
    /// A seccomp filter could refuse the calls that it would have to make, or kill it for them.
    #[error("it runs under seccomp")]
    Seccomp,
    /// It has called `vfork`, and its child uses its memory.
    #[error("it waits in vfork for its child {child}")]
    Vfork {
        /// The child.
        child: i32,
    },
    /// Another process has the same address space.
    #[error("process {with} has the same address space")]
    SharesMemory {
        /// That process.
        with: i32,
    },
    /// The kernel cannot tell whether another process has the same address space.
    #[error("the kernel cannot tell who shares its memory: it lacks kcmp (CONFIG_KCMP)")]
    SharersUnknown,
    /// New mappings would get other rights than the old ones.
    #[error("its personality makes readable memory executable (READ_IMPLIES_EXEC)")]
    ReadImpliesExec,
    /// It has its system calls sent to itself as signals.
    #[error("it dispatches its system calls itself (PR_SET_SYSCALL_USER_DISPATCH)")]
    DispatchesSyscalls,
    /// The kernel does not permit it.
    #[error("not permitted to {what}: this needs {needs}")]
    NotPermitted {
        /// The attempt.
        what: &'static str,
        /// The missing capability.
        needs: &'static str,
    },
    /// One of its threads did not stop in time, usually because it waits for a device or a server.
    #[error("thread {thread} did not stop within {waited_ms} ms")]
    DoesNotStop {
        /// The thread.
        thread: i32,
        /// The time that it had, in milliseconds.
        waited_ms: u64,
    },
    /// Some of its threads have ended while others were being stopped.
    #[error("its threads end: it executes another program")]
    ThreadsEnd,
    /// No instruction was found that makes system calls.
    #[error("found no system call instruction in its vDSO and other text")]
    NoSyscallInstruction,
}

impl Refusal {
    /// Whether it stays for as long as the process executes its program.
    pub fn lasts(&self) -> bool {
        match self {
            Self::UnsupportedArchitecture
            | Self::Gone
            | Self::NotAProcess
            | Self::OwnProcess
            | Self::Ended
            | Self::KernelThread
            | Self::ThirtyTwoBit
            | Self::Seccomp
            | Self::SharersUnknown
            | Self::ReadImpliesExec
            | Self::DispatchesSyscalls
            | Self::NotPermitted { .. }
            | Self::NoSyscallInstruction => true,
            Self::AlreadyTraced { .. }
            | Self::Vfork { .. }
            | Self::SharesMemory { .. }
            | Self::DoesNotStop { .. }
            | Self::ThreadsEnd => false,
        }
    }
}

impl Facts {
    /// Whether more can be read of it: `/proc/PID` of others is empty, or unreadable.
    pub(crate) fn has_program(&self) -> bool {
        self.has_memory && !self.is_ended && !self.is_own
    }
}

/// Why a process may not even be stopped, if it may not.
pub(crate) fn refusal_to_stop(facts: &Facts) -> Option<Refusal> {
    if facts.is_own {
        return Some(Refusal::OwnProcess);
    }
    if facts.is_ended {
        return Some(Refusal::Ended);
    }
    if !facts.has_memory {
        return Some(Refusal::KernelThread);
    }
    if let Some(tracer) = facts.tracer {
        return Some(Refusal::AlreadyTraced { tracer });
    }
    // Nothing restarts its calls that a stop interrupts.
    (facts.is_64_bit == Some(false)).then_some(Refusal::ThirtyTwoBit)
}

/// Why a process may not be changed, if it may not.
pub fn refusal(facts: &Facts, operation: Operation) -> Option<Refusal> {
    if let Some(why) = refusal_to_stop(facts) {
        return Some(why);
    }
    if facts.is_64_bit.is_none() {
        // Or it soon executes another program, which the next look finds.
        return Some(Refusal::Gone);
    }
    if let Some(Sharer { pid, is_child }) = facts.sharer {
        return Some(match is_child && facts.waits_uninterruptibly {
            true => Refusal::Vfork { child: pid },
            false => Refusal::SharesMemory { with: pid },
        });
    }
    if facts.sharers_unknown {
        return Some(Refusal::SharersUnknown);
    }
    if facts.read_implies_exec {
        return Some(Refusal::ReadImpliesExec);
    }
    // A writer waits for a collapse. So detaching suspends the filter rather than refuse.
    (facts.has_seccomp && operation == Operation::Attach).then_some(Refusal::Seccomp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordinary() -> Facts {
        Facts { has_memory: true, is_64_bit: Some(true), ..Facts::default() }
    }

    #[test]
    fn each_fact_has_its_refusal() {
        let child = Some(Sharer { pid: 7, is_child: true });
        let other = Some(Sharer { pid: 8, is_child: false });
        let table = [
            (ordinary(), None),
            (Facts { waits_uninterruptibly: true, ..ordinary() }, None),
            (Facts { is_own: true, ..ordinary() }, Some(Refusal::OwnProcess)),
            (Facts { is_ended: true, ..ordinary() }, Some(Refusal::Ended)),
            (Facts { has_memory: false, ..ordinary() }, Some(Refusal::KernelThread)),
            (Facts { tracer: Some(9), ..ordinary() }, Some(Refusal::AlreadyTraced { tracer: 9 })),
            (Facts { is_64_bit: Some(false), ..ordinary() }, Some(Refusal::ThirtyTwoBit)),
            (Facts { is_64_bit: None, ..ordinary() }, Some(Refusal::Gone)),
            (Facts { sharer: child, ..ordinary() }, Some(Refusal::SharesMemory { with: 7 })),
            (
                Facts { sharer: child, waits_uninterruptibly: true, ..ordinary() },
                Some(Refusal::Vfork { child: 7 }),
            ),
            (
                Facts { sharer: other, waits_uninterruptibly: true, ..ordinary() },
                Some(Refusal::SharesMemory { with: 8 }),
            ),
            (Facts { sharers_unknown: true, ..ordinary() }, Some(Refusal::SharersUnknown)),
            (Facts { read_implies_exec: true, ..ordinary() }, Some(Refusal::ReadImpliesExec)),
        ];
        for (facts, expected) in table {
            assert_eq!(refusal(&facts, Operation::Attach), expected, "{facts:?}");
            assert_eq!(refusal(&facts, Operation::Detach), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_process_amid_execve_may_be_stopped_and_one_of_32_bits_may_not() {
        let of = |is_64_bit| refusal_to_stop(&Facts { is_64_bit, ..ordinary() });
        assert_eq!(of(None), None);
        assert_eq!(of(Some(false)), Some(Refusal::ThirtyTwoBit));
    }

    #[test]
    fn seccomp_forbids_only_to_attach() {
        let facts = Facts { has_seccomp: true, ..ordinary() };
        assert_eq!(refusal(&facts, Operation::Attach), Some(Refusal::Seccomp));
        assert_eq!(refusal(&facts, Operation::Detach), None);
    }
}
