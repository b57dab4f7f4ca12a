//! The credit scheduler on a real kernel. Nothing here depends on how fast the machine is emulated: what takes how long is
//! a matter for the modelled machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]

use nearside_credit::{self as credit, Cap, Grant, Group, Params, Trial};
use nearside_lab::{await_that, read, words, write};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::MetadataExt, process::CommandExt},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const STATE: &str = "/sys/kernel/sched_ext/state";

fn program(name: &str) -> Command {
    Command::new(
        std::env::var_os(name)
            .unwrap_or_else(|| panic!("{name} names the program: run the tests with lab/test")),
    )
}

/// The scheduler, attached by a process of its own.
struct Attached {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Attached {
    fn start(flags: &str) -> Result<Self, String> {
        let mut child = program("NEARSIDE_ATTACHER")
            .args(words(flags))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, mut stdout) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut text = String::new();
        stdout.read_line(&mut text).unwrap();
        if text.trim() == "attached" {
            return Ok(Self { child, stdin, stdout });
        }
        stdout.read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        Err(text)
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn domain(&mut self, group: &Cgroup, nodes: &str, home: u32) {
        assert_eq!(self.ask(&format!("domain {} {nodes} {home}", group.path)), "ok");
    }

    fn statistics(&mut self) -> Value {
        serde_json::from_str(&self.ask("statistics")).unwrap()
    }

    /// CPU time of domains so far. By the scheduler's account: what 7.3.4 counts under a sched_ext scheduler
    /// (`cpu.stat`, the threads' clocks) contains time in which a task waited and its CPU idled.
    fn used(&mut self, domains: &[&Cgroup]) -> Vec<UsedByNode> {
        let statistics = self.statistics();
        let used = |group: &&Cgroup| {
            let by_node =
                &statistics["domains"][fs::metadata(&group.path).unwrap().ino().to_string()];
            let by_node = by_node.as_object().unwrap().iter();
            UsedByNode(
                by_node.map(|(node, us)| (node.parse().unwrap(), us.as_u64().unwrap())).collect(),
            )
        };
        domains.iter().map(used).collect()
    }

    /// CPUs that domains used on average, for a while.
    fn used_in(&mut self, domains: &[&Cgroup], time: Duration) -> Vec<f64> {
        let (started, before) = (Instant::now(), self.used(domains));
        thread::sleep(time);
        let (ended, after) = (Instant::now(), self.used(domains));
        let passed_us = (ended - started).as_micros() as f64;
        before
            .iter()
            .zip(after)
            .map(|(before, after)| after.since(before).total_us() as f64 / passed_us)
            .collect()
    }

    /// The same, for one while after the other until it is right: when the host stands still, that is charged to
    /// whoever runs just then.
    fn used_until(
        &mut self,
        domains: &[&Cgroup],
        time: Duration,
        is_right: impl Fn(&[f64]) -> bool,
    ) {
        let mut seen = vec![];
        for _ in 0..10 {
            let used = self.used_in(domains, time);
            if is_right(&used) {
                return;
            }
            seen.push(used);
        }
        panic!("{seen:?} {}", self.statistics());
    }

    /// The part of a domain's CPU time that it has on a node from now on, for a while.
    fn share_of(&mut self, group: &Cgroup, node: usize) -> f64 {
        let before = &self.used(&[group])[0];
        thread::sleep(Duration::from_millis(500));
        let used = self.used(&[group])[0].since(before);
        // Nothing is no share.
        used.on(node) as f64 / used.total_us().max(1) as f64
    }

    /// Burns in a domain, several times until that comes out right by what the burner says and by the scheduler's
    /// account: when the host stands still, that is charged to whoever runs just then. What must never be is asserted
    /// of each time.
    fn burn_until(
        &mut self,
        group: &Cgroup,
        flags: &str,
        is_right: impl Fn(&Burnt, &UsedByNode) -> bool,
    ) {
        let mut seen = vec![];
        for _ in 0..5 {
            let before = &self.used(&[group])[0];
            let burnt = group.burn(flags).end();
            let used = self.used(&[group])[0].since(before);
            assert_eq!(burnt.violations, 0, "{flags}: {burnt:?}");
            if is_right(&burnt, &used) {
                return;
            }
            eprintln!("{flags}: once more after {burnt:?}");
            seen.push((burnt, used));
        }
        panic!("{flags}: {seen:?} {}", self.statistics());
    }

    fn detach(mut self) {
        assert_eq!(self.ask("exited"), "no");
        let exit = self.ask("detach");
        self.child.wait().unwrap();
        // On a slow host that takes longer than the attacher has patience.
        if exit.contains("sched_ext is still") {
            await_that("the stock scheduler is back", || read(STATE) == "disabled");
        } else {
            assert!(exit.contains("unregistered from user space"), "{exit}");
        }
        assert_eq!(read(STATE), "disabled");
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while read(STATE) != "disabled" {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// CPU time of a domain by node, in us.
#[derive(Debug)]
struct UsedByNode(BTreeMap<usize, u64>);

impl UsedByNode {
    fn on(&self, node: usize) -> u64 {
        self.0.get(&node).copied().unwrap_or(0)
    }

    fn total_us(&self) -> u64 {
        self.0.values().sum()
    }

    fn since(&self, before: &Self) -> Self {
        Self(self.0.iter().map(|(&node, us)| (node, us - before.on(node))).collect())
    }
}

/// A cgroup with the cpu controller; gone when dropped.
struct Cgroup {
    path: String,
}

impl Cgroup {
    fn new(name: &str) -> Self {
        write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset");
        let path = format!("/sys/fs/cgroup/{name}");
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    /// A group below this one, which has no processes of its own then.
    fn below(&self, name: &str) -> Self {
        self.set("cgroup.subtree_control", "+cpu");
        let path = format!("{}/{name}", self.path);
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    fn set(&self, file: &str, value: &str) {
        write(&format!("{}/{file}", self.path), value);
    }

    /// Starts a burner in it, and waits until its threads run.
    fn burn(&self, flags: &str) -> Burner {
        self.burn_nicely(0, flags)
    }

    fn burn_nicely(&self, nice: i32, flags: &str) -> Burner {
        let procs =
            fs::OpenOptions::new().write(true).open(format!("{}/cgroup.procs", self.path)).unwrap();
        let mut command = program("NEARSIDE_BURNER");
        command.args(words(flags));
        let prepare = move || {
            rustix::process::nice(nice)?;
            (&procs).write_all(b"0")
        };
        // SAFETY: a system call and writing to an open file are allowed between fork and exec.
        unsafe { command.pre_exec(prepare) };
        let mut burner = Burner::spawn(&mut command);
        let mut line = String::new();
        burner.stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        burner
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

struct Burner {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// What a burner says of itself.
#[derive(Debug)]
struct Burnt {
    by_node_us: Vec<u64>,
    by_cpu_us: Vec<u64>,
    violations: u64,
}

impl Burnt {
    fn total_us(&self) -> u64 {
        self.by_node_us.iter().sum()
    }

    fn share(&self, node: usize) -> f64 {
        self.by_node_us[node] as f64 / self.total_us() as f64
    }
}

impl Burner {
    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    fn kill(self) {}

    fn end(mut self) -> Burnt {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert!(self.child.wait().unwrap().success());
        let value: Value = serde_json::from_str(&line).unwrap();
        let numbers = |name: &str| {
            value[name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
        };
        Burnt {
            by_node_us: numbers("node_us"),
            by_cpu_us: numbers("by_cpu_us"),
            violations: value["violations"].as_u64().unwrap(),
        }
    }
}

/// A test that fails leaves nothing behind that takes CPUs from the next.
impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cheap source of numbers, large and small ones alike.
struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> (self.0 % 64)
    }

    fn trial(&mut self) -> Trial {
        let mut n = || self.number();
        Trial {
            decision: n() % credit::DECISIONS,
            params: Params {
                slice_ns: n() >> 24,
                slice_min_ns: n() >> 24,
                slice_max_ns: n() >> 24,
                wake_bound_ns: n() >> 16,
                lag_bound_ns: n() >> 16,
                ahead_bound_ns: n() >> 16,
                preempt_ns: n() >> 16,
                steal_ns: n() >> 16,
                balance_ns: n(),
                stay_ns: n(),
                debt_bound_ns: n(),
                cpus: n() as u32,
                steal_slices: n() as u32,
            },
            group: Group { vtime: n(), share: n(), runnable: n() as u32, reserved: n() as u32 },
            grant: Grant { tag: n(), reserved: n(), slice_ns: n() },
            cap: Cap {
                quota_ns: n() >> 24,
                period_ns: n() >> 24,
                burst_ns: n() >> 24,
                start_ns: n(),
                budget_ns: (n() >> 8) as i64 - (n() >> 8) as i64,
            },
            arguments: [n(), n(), n(), n()],
            answer: 0,
        }
    }
}

#[test]
fn the_kernel_decides_as_the_tests_of_the_decisions_do() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let questions: Vec<Trial> = (0..100_000).map(|_| random.trial()).collect();
    let mut here = questions.clone();
    here.iter_mut().for_each(credit::try_out);
    let mut there = questions.clone();
    nearside_scheduler::try_in_kernel(&mut there).unwrap();
    for ((question, here), there) in questions.iter().zip(&here).zip(&there) {
        assert_eq!(here, there, "{question:?}");
    }
}

#[test]
fn a_domain_with_room_stays_at_home() {
    let group = Cgroup::new("room");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    scheduler.burn_until(&group, "--threads 2 --ms 4000", |burnt, used| {
        // The emulator stops CPUs at any time, for longer than a task may have to wait: then another node takes it. The
        // scheduler's own account agrees with the threads'.
        burnt.share(1) >= 0.9 && used.on(1) as f64 >= 0.95 * burnt.by_node_us[1] as f64
    });
    scheduler.detach();
}

/// A task that nobody makes wait is never queued, and has to learn of its home all the same.
#[test]
fn a_domain_that_is_set_while_its_tasks_run_moves_them() {
    let mut scheduler = Attached::start("").unwrap();
    for home in 0..4 {
        let group = Cgroup::new("late");
        let burner = group.burn("--threads 1 --ms 100000000");
        scheduler.domain(&group, &home.to_string(), home);
        await_that("its task is at home", || scheduler.share_of(&group, home as usize) >= 0.7);
        burner.kill();
    }
    scheduler.detach();
}

#[test]
fn what_does_not_fit_spills_to_the_nearest_nodes() {
    let group = Cgroup::new("spill");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    let near = |burnt: &Burnt| burnt.share(0) + burnt.share(1);
    scheduler.burn_until(&group, "--threads 4 --ms 4000", |burnt, _| {
        near(burnt) >= 0.95 && burnt.share(0) >= 0.3
    });
    scheduler.burn_until(&group, "--threads 6 --ms 4000", |burnt, _| {
        (0.55..0.85).contains(&near(burnt))
    });
    scheduler.detach();
}

#[test]
fn hard_affinity_is_never_broken() {
    let group = Cgroup::new("hard");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    // Only far CPUs; then home and far ones, too many threads for home; then one CPU.
    for (threads, cpus) in [(2, "4,5"), (6, "2,3,4,5"), (3, "7")] {
        let is_allowed = |cpu: usize| cpus.split(',').any(|name| name == cpu.to_string());
        scheduler.burn_until(
            &group,
            &format!("--threads {threads} --ms 1500 --cpus {cpus}"),
            |burnt, _| {
                let mut by_cpu = burnt.by_cpu_us.iter().enumerate();
                assert!(
                    by_cpu.clone().all(|(cpu, &used)| used == 0 || is_allowed(cpu)),
                    "{cpus}: {burnt:?}"
                );
                by_cpu.all(|(cpu, &used)| used > 0 || !is_allowed(cpu))
            },
        );
    }
    // The same by cpuset, changed while it runs.
    let burner = group.burn("--threads 4 --ms 100000000");
    group.set("cpuset.cpus", "6-7");
    await_that("all of it is where it may be now", || scheduler.share_of(&group, 3) >= 1.0);
    burner.kill();
    scheduler.detach();
}

#[test]
fn weights_and_caps_are_the_schedulers_business() {
    let (light, heavy) = (Cgroup::new("light"), Cgroup::new("heavy"));
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&light, "0-3", 0);
    scheduler.domain(&heavy, "0-3", 2);
    heavy.set("cpu.weight", "300");
    // The light one has three times the threads.
    let (a, b) = (light.burn("--threads 24 --ms 600000"), heavy.burn("--threads 8 --ms 600000"));
    scheduler.used_until(&[&light, &heavy], Duration::from_secs(5), |used| {
        used[1] > 2.0 * used[0] && used[0] > 0.15 * used[1]
    });
    a.kill();
    b.kill();
    light.set("cpu.max", "50000 100000");
    let burner = light.burn("--threads 2 --ms 600000");
    // Half a CPU, out of the two that the threads could have had.
    scheduler.used_until(&[&light], Duration::from_secs(4), |used| (0.3..=0.7).contains(&used[0]));
    light.set("cpu.max", "max");
    scheduler.used_until(&[&light], Duration::from_secs(2), |used| used[0] > 1.0);
    burner.kill();
    scheduler.detach();
}

/// A cap and a weight hold for all that is below: groups without tasks of their own have them, too.
#[test]
fn weights_and_caps_of_the_groups_above_count() {
    let (small, large) = (Cgroup::new("small"), Cgroup::new("large"));
    large.set("cpu.weight", "300");
    let (inner, outer) = (small.below("inner"), large.below("outer"));
    inner.set("cpu.weight", "1000");
    let other = small.below("other");
    let mut scheduler = Attached::start("").unwrap();
    for group in [&inner, &other, &outer] {
        scheduler.domain(group, "0-3", 0);
    }
    let burners = [&inner, &other, &outer].map(|group| group.burn("--threads 8 --ms 600000"));
    scheduler.used_until(&[&inner, &other, &outer], Duration::from_secs(5), |used| {
        let small_used = used[0] + used[1];
        used[2] > 2.0 * small_used && small_used > 0.15 * used[2] && used[0] > 4.0 * used[1]
    });
    // Both together, whatever their weights.
    small.set("cpu.max", "100000 100000");
    scheduler.used_until(&[&inner, &other], Duration::from_secs(4), |used| {
        (0.6..=1.3).contains(&(used[0] + used[1]))
    });
    burners.into_iter().for_each(Burner::kill);
    scheduler.detach();
}

/// A queue holds tasks that only one CPU of the node may run, more of them than are looked at, and one that the other may.
#[test]
fn tasks_bound_to_one_cpu_keep_nobody_from_the_next() {
    let (bound, full, free) = (Cgroup::new("bound"), Cgroup::new("full"), Cgroup::new("free"));
    let mut scheduler = Attached::start("").unwrap();
    for group in [&bound, &full, &free] {
        scheduler.domain(group, "1", 1);
    }
    let burners = [
        bound.burn("--threads 12 --ms 600000 --cpus 2"),
        full.burn("--threads 7 --ms 600000 --cpus 0,1,3,4,5,6,7"),
    ];
    let late = free.burn("--threads 1 --ms 600000");
    scheduler.used_until(&[&free], Duration::from_secs(4), |used| used[0] > 0.2);
    late.kill();
    burners.into_iter().for_each(Burner::kill);
    scheduler.detach();
}

/// A group that may use one CPU only never gets its share, but does not keep those who come later from that CPU.
#[test]
fn what_a_bound_group_is_owed_has_an_end() {
    let (first, others, late) = (Cgroup::new("first"), Cgroup::new("others"), Cgroup::new("late"));
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&late, "1", 1);
    let burners = [
        first.burn("--threads 4 --ms 600000 --cpus 2"),
        others.burn("--threads 14 --ms 600000 --cpus 0,1,3,4,5,6,7"),
    ];
    thread::sleep(Duration::from_secs(30));
    let burner = late.burn("--threads 1 --ms 600000 --cpus 2");
    // Half of the CPU, when it has caught up with the first; before, 0.02 of it.
    scheduler.used_until(&[&late], Duration::from_secs(4), |used| used[0] > 0.08);
    burner.kill();
    burners.into_iter().for_each(Burner::kill);
    scheduler.detach();
}

/// Within a group, nice is what it always was: who weighs a hundredth gets little beside who weighs all.
#[test]
fn nice_counts_among_the_tasks_of_a_group() {
    let group = Cgroup::new("polite");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    // It is there before the other comes, and still when that has gone.
    let usual = group.burn("--threads 1 --ms 100000000 --cpus 2");
    let polite = group.burn_nicely(19, "--threads 1 --ms 6000 --cpus 2").end();
    usual.kill();
    // Less than a fifth of these 6 s.
    assert!((1..1_200_000).contains(&polite.total_us()), "{polite:?} {}", scheduler.statistics());
    scheduler.detach();
}

#[test]
fn who_loses_its_cpu_to_a_real_time_task_goes_elsewhere() {
    let group = Cgroup::new("beside");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    let burner = group.burn("--threads 2 --ms 600000");
    let urgent = ["-f", "50", "taskset", "-c", "2", "sh", "-c", "while :; do :; done"];
    let urgent = Burner::spawn(Command::new("chrt").args(urgent));
    // Before 6.19 this helps only the tasks that were not running just then.
    let kernel = read("/proc/sys/kernel/osrelease");
    let mut version = kernel.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let helps_all = (version.next(), version.next()) >= (Some(6), Some(19));
    scheduler.used_until(&[&group], Duration::from_secs(4), |used| used[0] > 1.5 || !helps_all);
    urgent.kill();
    burner.kill();
    scheduler.detach();
}

#[test]
fn a_killed_loader_leaves_the_stock_scheduler_and_every_task_behind() {
    let group = Cgroup::new("killed");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "2", 2);
    let burner = group.burn("--threads 12 --ms 3000");
    scheduler.child.kill().unwrap();
    drop(scheduler);
    assert_eq!(read(STATE), "disabled");
    assert!(burner.end().total_us() > 0);
}

#[test]
fn a_second_scheduler_is_refused_by_name() {
    let scheduler = Attached::start("").unwrap();
    let refusal = Attached::start("").err().expect("a second one");
    assert!(
        refusal.starts_with("error: another sched_ext scheduler is attached: nearside"),
        "{refusal}"
    );
    scheduler.detach();
}

#[test]
fn it_comes_and_goes_twenty_times_under_load() {
    let group = Cgroup::new("often");
    let burner = group.burn("--threads 10 --ms 600000");
    for _ in 0..20 {
        Attached::start("").unwrap().detach();
    }
    burner.kill();
}

#[test]
fn cpus_go_and_come_while_it_runs() {
    let group = Cgroup::new("plug");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    let burner = group.burn("--threads 4 --ms 600000");
    for state in ["0", "1"] {
        for cpu in [2, 3] {
            write(&format!("/sys/devices/system/cpu/cpu{cpu}/online"), state);
            assert_eq!(scheduler.ask("exited"), "no");
        }
    }
    burner.kill();
    // Home has CPUs again, and the domain finds them.
    scheduler.burn_until(&group, "--threads 4 --ms 4000", |burnt, _| {
        burnt.by_cpu_us[2] > 0 && burnt.by_cpu_us[3] > 0
    });
    scheduler.detach();
}

/// A CPU's last act is to wake whoever takes it down, when it can send itself no interrupt any more. A kick from there
/// stays pending, and detaching waits for it for ever.
#[test]
fn a_busy_machine_lets_its_cpus_go() {
    let group = Cgroup::new("busy");
    let scheduler = Attached::start("").unwrap();
    let burner = group.burn("--threads 16 --ms 600000");
    for cpu in [1, 2, 3, 4, 5, 6, 7] {
        for state in ["0", "1"] {
            write(&format!("/sys/devices/system/cpu/cpu{cpu}/online"), state);
        }
    }
    burner.kill();
    scheduler.detach();
}

#[test]
fn a_scheduler_that_stalls_is_ejected_and_says_so() {
    let group = Cgroup::new("stall");
    // The time until it stalls begins before it is attached: on a slow host it may be ejected by then.
    let start = || match Attached::start("--stall-after-ms 5000 --watchdog-ms 10000") {
        Ok(scheduler) => Some(scheduler),
        Err(error) => {
            assert!(
                error.contains("the kernel ended the scheduler") && error.contains("stall"),
                "{error}"
            );
            await_that("the stock scheduler is back", || read(STATE) == "disabled");
            None
        }
    };
    let mut scheduler =
        (0..10).find_map(|_| start()).expect("one that is attached before it stalls");
    let burner = group.burn("--threads 12 --ms 60000");
    let mut exit = scheduler.ask("exited");
    while exit == "no" {
        thread::sleep(Duration::from_millis(100));
        exit = scheduler.ask("exited");
    }
    assert!(exit.contains("stall"), "{exit}");
    assert!(burner.end().total_us() > 0);
    drop(scheduler);
    Attached::start("").unwrap().detach();
}

/// Machines of other shapes; `lab/test` has a guest for each.
mod shapes {
    use super::*;

    /// Two nodes of two cores of two threads.
    #[test]
    fn smt_whole_idle_cores_come_first() {
        assert_eq!(read("/sys/devices/system/cpu/cpu4/topology/thread_siblings_list"), "4-5");
        let group = Cgroup::new("pair");
        let mut scheduler = Attached::start("").unwrap();
        scheduler.domain(&group, "1", 1);
        // Threads that nobody makes wait stay where they are; these wake often.
        scheduler.burn_until(&group, "--threads 2 --ms 5000 --nap-us 20000,2000", |burnt, _| {
            let cores =
                [4, 6].map(|first| (burnt.by_cpu_us[first] + burnt.by_cpu_us[first + 1]) as f64);
            cores[0].min(cores[1]) / burnt.total_us() as f64 > 0.3
        });
        // More of them than cores take the second threads, and no other node's CPUs.
        scheduler.burn_until(&group, "--threads 4 --ms 3000 --nap-us 20000,2000", |burnt, _| {
            burnt.by_cpu_us[4..].iter().all(|&used| used > 0) && burnt.share(1) > 0.8
        });
        scheduler.detach();
    }

    /// A node of two caches, of two CPUs each, and one of one.
    #[test]
    fn caches_of_a_node_have_queues_of_their_own_and_are_one_home() {
        let cache = |cpu: u32| {
            read(&format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list"))
        };
        assert_eq!([0, 2, 4].map(cache), ["0-1", "2-3", "4-5"]);
        let group = Cgroup::new("wide");
        let mut scheduler = Attached::start("").unwrap();
        scheduler.domain(&group, "0", 0);
        scheduler.burn_until(&group, "--threads 4 --ms 3000", |burnt, _| {
            burnt.by_cpu_us[..4].iter().all(|&used| used > 0) && burnt.share(0) > 0.8
        });
        // With more than it has CPUs, the other node's are used, too, and all get on.
        scheduler.burn_until(&group, "--threads 8 --ms 3000", |burnt, _| {
            burnt.by_cpu_us.iter().all(|&used| used > 0)
        });
        scheduler.burn_until(&group, "--threads 4 --ms 1500 --cpus 1,2,5", |burnt, _| {
            [1, 2, 5].iter().all(|&cpu| burnt.by_cpu_us[cpu] > 0)
        });
        scheduler.detach();
    }
}
