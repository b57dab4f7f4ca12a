//! Which locks, and how they are wanted.

use clap::Parser;

const KINDS: [&str; 7] =
    ["fair", "fair-mutex", "in-order", "test-and-set", "pthread", "parking_lot", "node-rw"];

/// Threads on all CPUs that want one lock, for each kind of lock
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Numbers of threads, which CPUs get in turn
    #[arg(long, value_delimiter = ',', default_value = "8,16,32")]
    pub(crate) threads: Vec<usize>,
    /// Modelled milliseconds of each run
    #[arg(long, default_value_t = 100)]
    pub(crate) ms: u64,
    /// Lines that are written under the lock
    #[arg(long, default_value_t = 8)]
    pub(crate) lines: usize,
    /// Rounds of a loop between two turns of a thread
    #[arg(long, default_value_t = 300)]
    pub(crate) between: u32,
    /// Locks of readers and writers: each thread writes once in this number of turns
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_once_in: Option<u64>,
    /// These kinds of locks alone
    #[arg(long, value_delimiter = ',', value_parser = KINDS)]
    pub(crate) kind: Vec<String>,
}

impl Args {
    /// Whether this kind of lock has its line.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.kind.is_empty() || self.kind.iter().any(|kind| kind == name)
    }
}
