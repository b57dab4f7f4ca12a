//! Burns CPU time, and prints its nodes as one line of JSON at the end.
//!
//! It accounts for all of it: every hundred turns, each thread reads its CPU and adds the CPU time
//! since the last read to that CPU's node. `ready` is printed once all threads run. With `--talk`,
//! it sleeps and answers by turns instead.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use clap::Parser;
use std::{
    fs,
    io::{self, Read, Write},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Burn CPU time.
#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How long, by the clock.
    #[arg(long)]
    ms: u64,
    /// Hard affinity.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Sleep for so long after every so long of burning: `BURN,SLEEP` in microseconds.
    #[arg(long, value_delimiter = ',')]
    nap_us: Vec<u64>,
    /// In place of burning: wait for a byte from the first pipe, burn that many turns, and answer
    /// through the second one: `PIPE,PIPE,TURNS`.
    #[arg(long, value_delimiter = ',')]
    talk: Vec<String>,
    /// With `--talk`: send the first byte.
    #[arg(long)]
    ask: bool,
}

fn clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer to a timespec.
    assert_eq!(unsafe { libc::clock_gettime(which, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn cpu() -> usize {
    // SAFETY: takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap()
}

/// The node of every CPU, whether it is online or not.
fn nodes() -> Vec<usize> {
    let mut nodes = vec![];
    while let Ok(entries) = fs::read_dir(format!("/sys/devices/system/cpu/cpu{}", nodes.len())) {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        nodes.push(
            names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next().unwrap_or(0),
        );
    }
    nodes
}

#[derive(Debug, Default, Clone)]
struct Tally {
    cpu_us: Vec<u64>,
    violations: u64,
    moves: u64,
    longest_wait_us: u64,
}

fn burn(args: &Args, cpus: usize) -> Tally {
    let mut tally = Tally { cpu_us: vec![0; cpus], ..Tally::default() };
    let end = Instant::now() + Duration::from_millis(args.ms);
    let (mut burnt, mut seen, mut last) =
        (clock(libc::CLOCK_THREAD_CPUTIME_ID), Instant::now(), cpu());
    let mut since_nap = Duration::ZERO;
    while seen < end {
        // PAUSE: an emulated CPU yields to the next one there, so that all of them progress evenly.
        for _ in 0..100 {
            std::hint::spin_loop();
        }
        let (here, burnt_now, now) = (cpu(), clock(libc::CLOCK_THREAD_CPUTIME_ID), Instant::now());
        let (ran, passed) = (burnt_now - burnt, now - seen);
        tally.cpu_us[here] += ran.as_micros() as u64;
        tally.violations += u64::from(!args.cpus.is_empty() && !args.cpus.contains(&here));
        tally.moves += u64::from(here != last);
        tally.longest_wait_us =
            tally.longest_wait_us.max(passed.saturating_sub(ran).as_micros() as u64);
        (burnt, seen, last) = (burnt_now, now, here);
        since_nap += ran;
        if let [burn_us, sleep_us] = args.nap_us[..]
            && since_nap >= Duration::from_micros(burn_us)
        {
            thread::sleep(Duration::from_micros(sleep_us));
            since_nap = Duration::ZERO;
            seen = Instant::now();
        }
    }
    tally
}

/// Until a signal ends it.
fn talk(from: &str, to: &str, turns: u32, asks: bool) -> io::Result<()> {
    // Opened for both, a pipe does not wait for its other end.
    let open = |path| fs::OpenOptions::new().read(true).write(true).open(path);
    let (mut from, mut to) = (open(from)?, open(to)?);
    println!("ready");
    if asks {
        to.write_all(b"?")?;
    }
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        for _ in 0..turns {
            std::hint::spin_loop();
        }
        to.write_all(&byte)?;
    }
}

fn bind(cpus: &[usize]) {
    // SAFETY: all bits zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: numbers out of range are ignored.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: a valid set and its size.
    let done = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

fn main() {
    let args = Args::parse();
    if !args.cpus.is_empty() {
        bind(&args.cpus);
    }
    if let [from, to, turns] = &args.talk[..] {
        talk(from, to, turns.parse().unwrap(), args.ask).unwrap();
    }
    let nodes = nodes();
    let barrier = Barrier::new(args.threads + 1);
    let tallies: Vec<Tally> = thread::scope(|scope| {
        let run = || {
            barrier.wait();
            burn(&args, nodes.len())
        };
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(run)).collect();
        barrier.wait();
        println!("ready");
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut by_node = vec![0; nodes.iter().max().unwrap() + 1];
    let mut by_cpu = vec![0; nodes.len()];
    for tally in &tallies {
        for (cpu, us) in tally.cpu_us.iter().enumerate() {
            by_node[nodes[cpu]] += us;
            by_cpu[cpu] += us;
        }
    }
    let line = serde_json::json!({
        "cpu_us": by_node.iter().sum::<u64>(),
        "node_us": by_node,
        "by_cpu_us": by_cpu,
        "violations": tallies.iter().map(|t| t.violations).sum::<u64>(),
        "moves": tallies.iter().map(|t| t.moves).sum::<u64>(),
        "longest_wait_us": tallies.iter().map(|t| t.longest_wait_us).max(),
    });
    println!("{line}");
}
