//! Locks on a machine in modelled time: threads on all nodes want one lock all the time. Run it in
//! a guest of `lab/run --model`.
#![allow(unsafe_code, reason = "raw locks, and those of pthreads")]
#![allow(clippy::expect_used, reason = "a measurement may panic")]

#[path = "../../../../../crates/locks/benches/test_and_set/mod.rs"]
mod test_and_set;

mod args;
mod crowd;
mod exclusive;
mod pthread;
mod shared;

use args::Args;
use clap::Parser;
use nearside_locks::{Linux, RawFairMutex, RawFairSpinLock, RawNodeRwLock};
use nearside_workloads::pthread::Pthread;
use pthread::PthreadRw;
use test_and_set::TestAndSet;

fn main() {
    let args = Args::parse();
    for &threads in &args.threads {
        if let Some(turns) = args.write_once_in {
            shared::run::<RawNodeRwLock<Linux, 8>>("node-rw", threads, turns, &args);
            shared::run::<PthreadRw>("pthread", threads, turns, &args);
            shared::run::<parking_lot::RawRwLock>("parking_lot", threads, turns, &args);
            continue;
        }
        exclusive::run::<RawFairSpinLock<Linux>>("fair", threads, &args);
        exclusive::run::<RawFairMutex<Linux>>("fair-mutex", threads, &args);
        exclusive::run::<RawFairSpinLock<Linux, 0, 0>>("in-order", threads, &args);
        exclusive::run::<TestAndSet>("test-and-set", threads, &args);
        exclusive::run::<Pthread>("pthread", threads, &args);
        exclusive::run::<parking_lot::RawMutex>("parking_lot", threads, &args);
    }
}
