//! A lock that readers share.

use crate::{
    args::Args,
    crowd::{self, Line, Member},
};
use lock_api::{RawRwLock, RwLock};
use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Prints the line of a kind of lock. Each thread writes once in `write_once_in` turns.
pub(crate) fn run<R: RawRwLock + Send + Sync>(
    name: &str,
    threads: usize,
    write_once_in: u64,
    args: &Args,
) {
    if !args.wants(name) {
        return;
    }
    let lock = RwLock::<R, _>::new(vec![Line(0); args.lines]);
    let longest_write_ns = AtomicU64::new(0);
    let members = crowd::run(threads, args, |member: &mut Member| {
        // Threads write in turn.
        if (member.turns + member.thread as u64).is_multiple_of(write_once_in) {
            let mut lines = lock.write();
            longest_write_ns.fetch_max(member.has_it(), Relaxed);
            lines.iter_mut().for_each(|line| line.0 += 1);
        } else {
            let lines = lock.read();
            member.has_it();
            black_box(lines.iter().map(|line| line.0).sum::<u64>());
        }
    });
    println!(
        "{}  longest wait {:7.0} us, of a writer {:7.0} us",
        crowd::figures(name, &members, args),
        crowd::longest_wait_us(&members),
        longest_write_ns.into_inner() as f64 / 1000.0,
    );
}
