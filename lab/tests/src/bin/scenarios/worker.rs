//! Threads that burn CPU time and log their places and times, in a process of its own within the
//! control group under test.

use crate::outcome::Outcome;
use clap::Args;
use nearside_workloads::clock;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// A thread did not run in a longer gap between two samples of the clock.
const GAP_NS: u64 = 60_000;

/// The work of the threads of one process.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Work {
    /// The control group to be in
    #[arg(long)]
    pub(crate) group: PathBuf,
    #[arg(long)]
    pub(crate) threads: usize,
    /// Hard affinity
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Sleep for so long after every so long of work: `WORK,SLEEP`
    #[arg(long, value_delimiter = ',')]
    pub(crate) nap_us: Vec<u64>,
}

/// A time in which a thread ran on one CPU without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) cpu: usize,
    /// Of [`clock::STEP_NS`] each. Interrupts took the rest of the time.
    pub(crate) steps: u64,
}

/// All that a thread knows of itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Log {
    pub(crate) segments: Vec<Segment>,
    /// Whether it has a hard affinity.
    pub(crate) bound: bool,
    /// Samples outside of its hard affinity.
    pub(crate) violations: u64,
    /// Whether it sleeps now and then, and how late it woke up.
    pub(crate) naps: bool,
    pub(crate) wakes: u64,
    pub(crate) late_ns: u64,
    pub(crate) latest_ns: u64,
}

fn burn(work: &Work, begin: &Barrier, stop: &AtomicBool) -> Log {
    let mut log =
        Log { bound: !work.cpus.is_empty(), naps: !work.nap_us.is_empty(), ..Log::default() };
    log.segments.reserve(4096);
    // Once before it is ready: then every thread has run.
    clock::work();
    begin.wait();
    let (mut last_ns, mut cpu) = clock::sample();
    let mut from_ns = last_ns;
    let (mut worked_ns, mut steps) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        clock::work();
        let (now_ns, here) = clock::sample();
        log.violations += u64::from(log.bound && !work.cpus.contains(&here));
        if here != cpu || now_ns - last_ns > GAP_NS {
            log.segments.push(Segment { from_ns, to_ns: last_ns, cpu, steps });
            from_ns = last_ns.max(now_ns - clock::STEP_NS);
            (cpu, steps) = (here, 0);
        }
        last_ns = now_ns;
        steps += 1;
        worked_ns += clock::STEP_NS;
        if let [work_us, sleep_us] = work.nap_us[..]
            && worked_ns >= work_us * 1000
        {
            log.segments.push(Segment { from_ns, to_ns: last_ns, cpu, steps });
            thread::sleep(Duration::from_micros(sleep_us));
            let (now_ns, here) = clock::sample();
            let late_ns = now_ns.saturating_sub(last_ns + sleep_us * 1000);
            log.wakes += 1;
            log.late_ns += late_ns;
            log.latest_ns = log.latest_ns.max(late_ns);
            (worked_ns, steps, from_ns, last_ns, cpu) = (0, 0, now_ns, now_ns, here);
        }
    }
    log.segments.push(Segment { from_ns, to_ns: last_ns, cpu, steps });
    log
}

/// Prints `ready` once all threads run, burns until a line comes or the input ends, and prints the
/// logs as a line of JSON.
pub(crate) fn run(work: &Work) -> Outcome<()> {
    fs::write(work.group.join("cgroup.procs"), "0")?;
    let (begin, stop) = (Barrier::new(work.threads + 1), AtomicBool::new(false));
    let logs = thread::scope(|scope| -> Outcome<Vec<Log>> {
        let one = || -> io::Result<Log> {
            let bound = if work.cpus.is_empty() {
                Ok(())
            } else {
                let mut set = CpuSet::new();
                work.cpus.iter().for_each(|&cpu| set.set(cpu));
                sched_setaffinity(None, &set)
            };
            // The others wait for this thread even if it failed.
            let log = burn(work, &begin, &stop);
            bound?;
            Ok(log)
        };
        let threads: Vec<_> = (0..work.threads).map(|_| scope.spawn(one)).collect();
        begin.wait();
        println!("ready");
        let read = io::stdin().read_line(&mut String::new());
        stop.store(true, Ordering::Relaxed);
        let logs: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        read?;
        let log_of =
            |joined: thread::Result<io::Result<Log>>| Ok(joined.map_err(|_| "a thread panicked")??);
        logs.into_iter().map(log_of).collect()
    })?;
    println!("{}", serde_json::to_string(&logs)?);
    Ok(())
}
