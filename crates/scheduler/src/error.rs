//! The reasons why the scheduler is not in charge.

use crate::{exit::Exit, machine::Unsuitable};
use nearside_topology::NodeId;
use std::{
    io, mem,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// A failure to attach or to use the scheduler.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No sched_ext in this kernel.
    #[error("this kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT; Linux 6.16 or later is needed)")]
    Unsupported,
    /// sched_ext, but an older one.
    #[error("this kernel's sched_ext lacks {0}: Linux 6.16 or later is needed")]
    TooOld(&'static str),
    /// Another scheduler is in charge.
    #[error("another sched_ext scheduler is attached: {0}")]
    Busy(String),
    /// `isolcpus=` excludes sched_ext.
    #[error("CPUs {0} are isolated (isolcpus=): sched_ext refuses to work on such a host")]
    Isolated(String),
    /// Not allowed.
    #[error("attaching a scheduler needs root (or CAP_BPF and CAP_PERFMON)")]
    Permission,
    /// The machine could not be read.
    #[error(transparent)]
    Topology(#[from] nearside_topology::sysfs::Error),
    /// The machine does not fit.
    #[error(transparent)]
    Machine(#[from] Unsuitable),
    /// A domain was given a node that this machine does not have.
    #[error("node {0} does not exist")]
    NoSuchNode(NodeId),
    /// A domain was given no node.
    #[error("a domain prefers at least one node")]
    NoNodes,
    /// The kernel refused the program, or a call on its maps.
    #[error("{what}: {source}{}", detail(.log))]
    Bpf {
        /// The failed step.
        what: &'static str,
        /// The kernel's error.
        source: libbpf_rs::Error,
        /// libbpf's messages, with the verifier's last words.
        log: String,
    },
    /// The BPF object is not the one this was built with.
    #[error("the BPF object has no data section")]
    Object,
    /// The kernel took the scheduler out of charge at once.
    #[error("the kernel ended the scheduler: {0}")]
    Ejected(Exit),
    /// The stock scheduler did not come back in time.
    #[error("sched_ext is still {state:?} after {} s", waited.as_secs())]
    StillAttached {
        /// `/sys/kernel/sched_ext/state`.
        state: String,
        /// The time waited.
        waited: Duration,
    },
    /// A file of the kernel's could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file's path.
        path: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn detail(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

impl Error {
    pub(crate) fn bpf(what: &'static str, source: libbpf_rs::Error) -> Self {
        let log = mem::take(&mut *WARNINGS.lock().unwrap_or_else(PoisonError::into_inner));
        Self::Bpf { what, source, log }
    }
}

/// libbpf's messages since the last error: without them a failure to load says only "invalid
/// argument".
static WARNINGS: Mutex<String> = Mutex::new(String::new());

pub(crate) fn keep_warning(_: libbpf_rs::PrintLevel, line: String) {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
}
