//! The scenarios, one after the other.

use crate::{
    figures::{Figure, Required, Result, figure},
    judge::{Group, Verdict, Window, judge, reaches_after_ns},
    outcome::Outcome,
    saturation,
    stage::{GroupId, Stage},
};
use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// A scenario by name.
pub(crate) struct Play {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Stage) -> Outcome<Result>,
}

/// All scenarios. `lab/measure` chooses the machine of each.
pub(crate) const PLAYS: &[Play] = &[
    Play { name: "room-alone", run: |stage| room(stage, 1000) },
    Play { name: "room-busy", run: room_busy },
    Play { name: "spill-4", run: |stage| spill(stage, 4, &[]) },
    Play { name: "spill-6", run: |stage| spill(stage, 6, &[]) },
    Play { name: "hard-far", run: |stage| spill(stage, 2, &[4, 5]) },
    Play { name: "hard-4-cpus", run: |stage| spill(stage, 6, &[2, 3, 4, 5]) },
    Play { name: "home-idle", run: |stage| home(stage, false) },
    Play { name: "home-busy", run: |stage| home(stage, true) },
    Play { name: "weights-300-8-8", run: |stage| weights(stage, 300, [8, 8], &[], 100) },
    Play { name: "weights-300-2-8", run: |stage| weights(stage, 300, [2, 8], &[], 100) },
    Play { name: "weights-300-24-8", run: |stage| weights(stage, 300, [24, 8], &[], 100) },
    Play { name: "weights-300-8-24", run: |stage| weights(stage, 300, [8, 24], &[], 100) },
    Play { name: "weights-300-2-16", run: |stage| weights(stage, 300, [2, 16], &[], 100) },
    Play {
        name: "weights-300-2-8-on-2-cpus",
        run: |stage| weights(stage, 300, [2, 8], &[0, 1], 100),
    },
    Play { name: "weights-1000-8-8", run: |stage| weights(stage, 1000, [8, 8], &[], 500) },
    Play { name: "weights-1000-8-8-early", run: |stage| weights_early(stage, 1000, [8, 8]) },
    Play { name: "weights-1000-2-8", run: |stage| weights(stage, 1000, [2, 8], &[], 100) },
    Play { name: "weights-1000-24-8", run: |stage| weights(stage, 1000, [24, 8], &[], 100) },
    Play { name: "weights-1000-8-16", run: |stage| weights(stage, 1000, [8, 16], &[], 500) },
    Play { name: "weights-1000-8-16-early", run: |stage| weights_early(stage, 1000, [8, 16]) },
    Play {
        name: "weights-1000-2-8-on-2-cpus",
        run: |stage| weights(stage, 1000, [2, 8], &[0, 1], 100),
    },
    Play { name: "root-8-8", run: |stage| beside_root(stage, [8, 8]) },
    Play { name: "cap-50", run: |stage| cap(stage, "50000 100000", 0.5, 2) },
    Play { name: "cap-150", run: |stage| cap(stage, "150000 100000", 1.5, 4) },
    Play { name: "sleepers", run: |stage| sleepers(stage, 0) },
    Play { name: "sleepers-inside", run: |stage| sleepers(stage, 16) },
    Play { name: "sixteen", run: sixteen },
    Play { name: "wakeups-domain", run: |stage| saturation::wakeups(stage, false) },
    Play { name: "wakeups-root", run: |stage| saturation::wakeups(stage, true) },
    Play { name: "create-domain", run: |stage| saturation::create(stage, false) },
    Play { name: "create-root", run: |stage| saturation::create(stage, true) },
    Play { name: "hackbench", run: |stage| bench(stage, "hackbench -g 4 -l 60", "Time:", "s") },
    Play {
        name: "messaging",
        run: |stage| bench(stage, "perf bench sched messaging -g 4 -l 40", "Total time:", "s"),
    },
    Play {
        name: "pipe",
        run: |stage| bench(stage, "perf bench sched pipe -l 3000", "usecs/op", "us"),
    },
];

/// The home of the measured domain, where there is one.
const HOME: usize = 1;
const HOME_CPUS: [usize; 2] = [2, 3];

/// For scenarios with more threads than CPUs.
fn idle_while_waiting(verdict: &Verdict) -> Figure {
    // Other work than the scenario's counts as idle here; lab/measure compares it with the plugin's
    // count of halted CPUs.
    figure(
        "CPUs without the scenario's work while it waits",
        "share",
        verdict.long_while_waiting,
        Required::AtMost(0.01),
    )
}

fn longest_wait(name: &str, wait_ms: f64) -> Figure {
    figure(format!("longest wait, {name}"), "ms", wait_ms, Required::Stated)
}

// -- room at home ---------------------------------------------------------------------------------

/// A domain of two threads whose home has two CPUs: all of its time should be there.
fn room(stage: &mut Stage, span_ms: u64) -> Outcome<Result> {
    let group = stage.group("room", 100, None)?;
    stage.prefer(group, "1", HOME as u32)?;
    stage.burn(group, 2, &[], &[])?;
    stage.settle(&[group], 20)?;
    let window = stage.window(span_ms);
    let verdict = stage.verdict(window)?;
    Ok(Result { figures: vec![at_home(&verdict, 0)], verdicts: vec![verdict] })
}

fn at_home(verdict: &Verdict, group: usize) -> Figure {
    let share = &verdict.groups[group];
    figure(
        "CPU time at home",
        "share",
        share.cpus_by_node[HOME] / share.cpus,
        Required::AtLeast(0.99),
    )
}

/// .. beside six tasks without a home that come and go, and kernel threads that wake on every CPU
/// 500 times a second.
fn room_busy(stage: &mut Stage) -> Outcome<Result> {
    let room = stage.group("room", 100, None)?;
    stage.prefer(room, "1", HOME as u32)?;
    let unmanaged = stage.group("unmanaged", 100, None)?;
    stage.burn(unmanaged, 6, &[], &[300, 2000])?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Every read makes a kernel thread run on each CPU: mm/vmstat.c, vmstat_refresh.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::read("/proc/sys/vm/stat_refresh");
                thread::sleep(Duration::from_millis(2));
            }
        });
        let played = (|| {
            stage.burn(room, 2, &[], &[])?;
            stage.settle(&[room, unmanaged], 20)?;
            let window = stage.window(2000);
            let verdict = stage.verdict(window)?;
            Ok(Result { figures: vec![at_home(&verdict, 0)], verdicts: vec![verdict] })
        })();
        stop.store(true, Ordering::Relaxed);
        played
    })
}

// -- no room at home ------------------------------------------------------------------------------

/// More threads than the home has CPUs, or a hard affinity to CPUs that are not all at home.
fn spill(stage: &mut Stage, threads: usize, cpus: &[usize]) -> Outcome<Result> {
    let group = stage.group("spill", 100, None)?;
    stage.prefer(group, "1", HOME as u32)?;
    stage.burn(group, threads, cpus, &[])?;
    stage.settle(&[group], 20)?;
    let window = stage.window(1000);
    let verdict = stage.verdict(window)?;
    let share = &verdict.groups[0];
    let mut figures = vec![];
    if cpus.is_empty() {
        let by_node = share.cpus_by_node.iter().enumerate();
        figures.extend(by_node.map(|(node, &cpus)| {
            figure(format!("CPUs on node {node}"), "CPUs", cpus, Required::Stated)
        }));
        figures.push(figure(
            "CPU time where it should be",
            "share",
            nearest_first(stage, share.cpus_by_node.as_slice(), threads)?,
            Required::AtLeast(0.99),
        ));
    } else {
        figures.push(figure(
            "samples outside of the hard affinity",
            "",
            share.violations as f64,
            Required::AtMost(0.0),
        ));
    }
    Ok(Result { figures, verdicts: vec![verdict] })
}

/// The part of the threads' CPU time on the nodes that have room for them, filled in order of their
/// distance from home; any of equally near ones.
fn nearest_first(stage: &Stage, cpus_by_node: &[f64], threads: usize) -> Outcome<f64> {
    let distances = fs::read_to_string(format!("/sys/devices/system/node/node{HOME}/distance"))?;
    let mut by_distance: Vec<(u32, usize)> = vec![];
    for (node, distance) in distances.split_whitespace().enumerate() {
        by_distance.push((distance.parse()?, node));
    }
    by_distance.sort_unstable();
    let mut left = threads as f64;
    let mut well_placed = 0.0;
    for ring in by_distance.chunk_by(|a, b| a.0 == b.0) {
        let size =
            stage.nodes.iter().filter(|&&node| ring.iter().any(|&(_, near)| near == node)).count()
                as f64;
        let used: f64 = ring.iter().map(|&(_, node)| cpus_by_node[node]).sum();
        well_placed += used.min(left.min(size));
        left -= left.min(size);
    }
    Ok(well_placed / cpus_by_node.iter().sum::<f64>())
}

// -- home again -----------------------------------------------------------------------------------

/// A rival, bound to the home's CPUs and 100 times heavier, ends.
fn home(stage: &mut Stage, others: bool) -> Outcome<Result> {
    let rival = stage.group("rival", 10_000, None)?;
    let domain = stage.group("domain", 100, None)?;
    stage.prefer(domain, "1", HOME as u32)?;
    stage.burn(rival, 2, &HOME_CPUS, &[])?;
    stage.settle(&[rival], 50)?;
    stage.burn(domain, 2, &[], &[])?;
    let mut started = vec![domain];
    if others {
        let elsewhere = stage.group("elsewhere", 100, None)?;
        stage.prefer(elsewhere, "0,2-3", 0)?;
        stage.burn(elsewhere, 8, &[], &[])?;
        started.push(elsewhere);
    }
    stage.settle(&started, 500)?;
    let gone_ns = stage.stop(rival)?;
    thread::sleep(Duration::from_millis(500));
    let window = Window { from_ns: gone_ns, to_ns: nearside_workloads::clock::now_ns() };
    let groups: Vec<Group> = stage.end()?;
    let mut figures = vec![];
    for (index, log) in groups[1].logs.iter().enumerate() {
        let after_ms = reaches_after_ns(log, HOME, &stage.nodes, gone_ns).map(|ns| ns as f64 / 1e6);
        figures.push(figure(
            format!("home again, thread {index}"),
            "ms",
            after_ms,
            Required::AtMost(100.0),
        ));
    }
    let verdict = judge(&groups, &stage.nodes, window);
    figures.push(longest_wait("when the rival has ended", verdict.longest_wait_ms()));
    Ok(Result { figures, verdicts: vec![verdict] })
}

// -- shares ---------------------------------------------------------------------------------------

/// Two domains of weights 100 and `heavy`, so many threads each.
fn weights(
    stage: &mut Stage,
    heavy: u32,
    threads: [usize; 2],
    cpus: &[usize],
    settle_ms: u64,
) -> Outcome<Result> {
    light_share(stage, heavy, threads, cpus, settle_ms, Required::Within(0.02))
}

/// .. soon after the start. The light domain comes first and has nearly all CPUs while the threads
/// of the other one are started one after the other. It pays for that in the next 0.2 s.
fn weights_early(stage: &mut Stage, heavy: u32, threads: [usize; 2]) -> Outcome<Result> {
    light_share(stage, heavy, threads, &[], 100, Required::Stated)
}

fn light_share(
    stage: &mut Stage,
    heavy: u32,
    threads: [usize; 2],
    cpus: &[usize],
    settle_ms: u64,
    required: Required,
) -> Outcome<Result> {
    let groups: [GroupId; 2] =
        [stage.group("light", 100, None)?, stage.group("heavy", heavy, None)?];
    stage.prefer(groups[0], "0-3", 0)?;
    stage.prefer(groups[1], "0-3", 2)?;
    for (group, threads) in groups.into_iter().zip(threads) {
        stage.burn(group, threads, cpus, &[])?;
    }
    stage.settle(&groups, settle_ms)?;
    let window = stage.window(2000);
    let verdict = stage.verdict(window)?;
    let ideal = 100.0 / f64::from(100 + heavy);
    let off = verdict.groups[0].cpus / verdict.cpus() / ideal - 1.0;
    let mut figures = vec![
        figure("the light one's share, off by", "share", off, required),
        longest_wait("of the light one", verdict.groups[0].longest_wait_ms),
    ];
    if cpus.is_empty() {
        figures.push(idle_while_waiting(&verdict));
    }
    Ok(Result { figures, verdicts: vec![verdict] })
}

/// So many tasks of the root cgroup, each of which weighs as much as a domain, and a domain of so
/// many threads.
fn beside_root(stage: &mut Stage, threads: [usize; 2]) -> Outcome<Result> {
    let groups = [stage.root(), stage.group("domain", 100, None)?];
    stage.prefer(groups[1], "0-3", 2)?;
    for (group, threads) in groups.into_iter().zip(threads) {
        stage.burn(group, threads, &[], &[])?;
    }
    stage.settle(&groups, 500)?;
    let window = stage.window(2000);
    let verdict = stage.verdict(window)?;
    let ideal = 1.0 / (1 + threads[0]) as f64;
    let off = verdict.groups[1].cpus / verdict.cpus() / ideal - 1.0;
    let figures = vec![
        figure("the domain's share, off by", "share", off, Required::Within(0.02)),
        longest_wait("of the domain", verdict.groups[1].longest_wait_ms),
        idle_while_waiting(&verdict),
    ];
    Ok(Result { figures, verdicts: vec![verdict] })
}

fn cap(stage: &mut Stage, cap: &str, ideal: f64, threads: usize) -> Outcome<Result> {
    let group = stage.group("capped", 100, Some(cap))?;
    stage.prefer(group, "1", HOME as u32)?;
    stage.burn(group, threads, &[], &[])?;
    stage.settle(&[group], 300)?;
    let window = stage.window(2000);
    let verdict = stage.verdict(window)?;
    let off = verdict.groups[0].cpus / ideal - 1.0;
    Ok(Result {
        figures: vec![figure("CPU time, off by", "share", off, Required::Within(0.05))],
        verdicts: vec![verdict],
    })
}

/// Four threads that sleep most of the time, in a domain with so many others that never do, beside
/// one of sixteen such threads.
fn sleepers(stage: &mut Stage, others: usize) -> Outcome<Result> {
    let groups = [stage.group("burn", 100, None)?, stage.group("sleep", 100, None)?];
    stage.prefer(groups[0], "0-3", 0)?;
    stage.prefer(groups[1], "1", HOME as u32)?;
    stage.burn(groups[0], 16, &[], &[])?;
    stage.burn(groups[1], 4, &[], &[300, 4000])?;
    if others > 0 {
        stage.burn(groups[1], others, &[], &[])?;
    }
    stage.settle(&groups, 300)?;
    let window = stage.window(2000);
    let verdict = stage.verdict(window)?;
    let share = verdict.groups[1].cpus / verdict.cpus();
    let figures = vec![
        figure("the sleepers' domain's share", "share", share, Required::Stated),
        figure(
            "a sleeper is late by, on average",
            "ms",
            verdict.groups[1].mean_late_ms,
            Required::Stated,
        ),
        figure(
            "a sleeper is late by, at most",
            "ms",
            verdict.groups[1].max_late_ms,
            Required::Stated,
        ),
        idle_while_waiting(&verdict),
    ];
    Ok(Result { figures, verdicts: vec![verdict] })
}

/// Sixteen domains of two threads on eight CPUs, most of them at home on node 0.
fn sixteen(stage: &mut Stage) -> Outcome<Result> {
    const HOMES: [u32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3];
    let mut groups = vec![];
    for (index, home) in HOMES.into_iter().enumerate() {
        let group = stage.group(&format!("domain{index}"), 100, None)?;
        stage.prefer(group, &home.to_string(), home)?;
        groups.push(group);
    }
    for &group in &groups {
        stage.burn(group, 2, &[], &[])?;
    }
    stage.settle(&groups, 300)?;
    let window = stage.window(4000);
    let verdict = stage.verdict(window)?;
    let figures = vec![
        figure("Jain index", "", verdict.jain(), Required::AtLeast(0.95)),
        figure("work done", "CPUs", verdict.work_cpus(), Required::Stated),
        longest_wait("of all", verdict.longest_wait_ms()),
        idle_while_waiting(&verdict),
    ];
    Ok(Result { figures, verdicts: vec![verdict] })
}

// -- benchmarks -------------------------------------------------------------------------------

/// A program that measures its own time, three times: the number beside `word`.
fn bench(_stage: &mut Stage, command: &str, word: &str, unit: &'static str) -> Outcome<Result> {
    let words: Vec<_> = command.split_whitespace().collect();
    let mut figures = vec![];
    for _ in 0..3 {
        let output = Command::new(words[0])
            .args(&words[1..])
            .output()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find(|line| line.contains(word)).unwrap_or_default();
        let number = line.split_whitespace().find_map(|part| part.parse::<f64>().ok());
        let number = number.ok_or_else(|| {
            format!("{command} said no {word}: {text}{}", String::from_utf8_lossy(&output.stderr))
        })?;
        figures.push(figure("time", unit, number, Required::Stated));
    }
    Ok(Result { figures, verdicts: vec![] })
}
