//! Many threads that wake up while other domains keep all CPUs busy.

use crate::{
    figures::{Figure, Required, Result, figure},
    judge::{Verdict, Window},
    outcome::Outcome,
    stage::{GroupId, Stage},
};
use nearside_workloads::clock::{self, STEP_NS};
use std::{
    env, fs,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Busy domains. With one more, each has a CPU's worth of the machine of 8.
const BUSY: usize = 7;

fn busy_domains(stage: &mut Stage) -> Outcome<Vec<GroupId>> {
    let mut groups = vec![];
    for index in 0..BUSY {
        let group = stage.group(&format!("busy{index}"), 100, None)?;
        let home = (index % 4) as u32;
        stage.prefer(group, &home.to_string(), home)?;
        stage.burn(group, 2, &[], &[])?;
        groups.push(group);
    }
    Ok(groups)
}

/// The domain under test, or the root cgroup.
fn subject(stage: &mut Stage, is_root: bool) -> Outcome<GroupId> {
    if is_root {
        return Ok(stage.root());
    }
    let group = stage.group("subject", 100, None)?;
    stage.prefer(group, "3", 3)?;
    Ok(group)
}

fn work_of_busy(verdict: &Verdict) -> [Figure; 2] {
    let each = verdict.groups[..BUSY].iter().map(|group| group.work_cpus);
    let least_cpus = each.clone().fold(f64::INFINITY, f64::min);
    [
        figure("work of the busy domains", "CPUs", each.sum::<f64>(), Required::Stated),
        figure("work of the one that has least", "CPUs", least_cpus, Required::Stated),
    ]
}

/// Two thousand threads that sleep for a millisecond each time, and work for 5 us in between.
pub(crate) fn wakeups(stage: &mut Stage, is_root: bool) -> Outcome<Result> {
    let mut groups = busy_domains(stage)?;
    let subject = subject(stage, is_root)?;
    groups.push(subject);
    stage.burn(subject, 2000, &[], &[STEP_NS / 1000, 1000])?;
    stage.settle(&groups, 200)?;
    let window = stage.window(500);
    let verdict = stage.verdict(window)?;
    let wakes_a_ms = verdict.groups[BUSY].work_cpus * 1e6 / STEP_NS as f64;
    // A scheduler that takes CPUs away from the busy domains has more wake-ups.
    let busy_cpus: f64 = verdict.groups[..BUSY].iter().map(|group| group.work_cpus).sum();
    let left_cpus = stage.nodes.len() as f64 - busy_cpus;
    let mut figures = vec![
        figure("wake-ups a millisecond", "", wakes_a_ms, Required::Stated),
        figure(
            "wake-ups for each millisecond of CPU time that the busy domains left",
            "",
            wakes_a_ms / left_cpus,
            Required::Stated,
        ),
    ];
    figures.extend(work_of_busy(&verdict));
    Ok(Result { figures, verdicts: vec![verdict] })
}

/// Threads of a process, each of which sleeps once.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// The control group to be in
    #[arg(long)]
    group: PathBuf,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    sleep_ms: u64,
}

/// A process that starts a thousand threads, each of which sleeps once, for 200 ms.
pub(crate) fn create(stage: &mut Stage, is_root: bool) -> Outcome<Result> {
    let groups = busy_domains(stage)?;
    let subject = subject(stage, is_root)?;
    let mut command = Command::new(env::current_exe()?);
    command.args(["create", "--threads", "1000", "--sleep-ms", "200", "--group"]);
    command.arg(stage.folder(subject));
    stage.settle(&groups, 200)?;
    let from_ns = clock::now_ns();
    let output = command.output()?;
    let window = Window { from_ns, to_ns: clock::now_ns() };
    let told = String::from_utf8(output.stdout)?;
    let numbers: Vec<f64> = told.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [all_s, late_ms] = numbers[..] else {
        return Err(format!("create: {told}{}", String::from_utf8_lossy(&output.stderr)).into());
    };
    let verdict = stage.verdict(window)?;
    let mut figures = vec![
        figure("time", "s", all_s, Required::Stated),
        figure("a thread is late by, on average", "ms", late_ms, Required::Stated),
    ];
    figures.extend(work_of_busy(&verdict));
    Ok(Result { figures, verdicts: vec![verdict] })
}

/// Prints the seconds until all threads have ended, and the milliseconds by which one was late when
/// its sleep was over, on average.
pub(crate) fn create_threads(create: &Create) -> Outcome<()> {
    fs::write(create.group.join("cgroup.procs"), "0")?;
    let sleep = Duration::from_millis(create.sleep_ms);
    let began = Instant::now();
    let slept = || {
        let began = Instant::now();
        thread::sleep(sleep);
        began.elapsed()
    };
    let late: Duration = thread::scope(|scope| {
        let threads: Vec<_> = (0..create.threads).map(|_| scope.spawn(slept)).collect();
        let slept = threads.into_iter().filter_map(|thread| thread.join().ok());
        slept.map(|slept| slept.saturating_sub(sleep)).sum()
    });
    let late_ms = late.as_secs_f64() * 1e3 / create.threads.max(1) as f64;
    println!("{} {late_ms}", began.elapsed().as_secs_f64());
    Ok(())
}
