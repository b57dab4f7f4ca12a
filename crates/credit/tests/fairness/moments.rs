//! Tasks that need a CPU for a moment: many of them at once beside domains that keep all CPUs busy,
//! or one among others of its domain that burn.

use crate::{
    FOUR_NODES, MS,
    cpus::Cpus,
    machine::{Machine, Work},
};
use nearside_credit::{self as credit, Group, ONE, Params};
use proptest::prelude::*;

const US: u64 = 1_000;

/// Seven busy domains, and one of so many tasks that run for 100 us and sleep for 200 ms. Each
/// domain is entitled to one of eight CPUs.
fn beside_busy_domains(tasks: usize) -> (Machine, usize) {
    let mut machine = Machine::new(FOUR_NODES, 2);
    machine.tick_ns = 4 * MS;
    for domain in 0..7 {
        machine.group(100, &[domain % 4; 2], Work::Burns);
    }
    let group = machine.group(100, &vec![3; tasks], Work::Naps(100 * US, 200 * MS));
    machine.run(1000 * MS);
    for task in &mut machine.tasks {
        task.longest_wait_ns = 0;
    }
    (machine, group)
}

/// All of them together need 100 ms of the CPU that their domain is entitled to.
#[test]
fn a_thousand_tasks_that_wake_at_once_wait_for_as_long_as_they_all_run() {
    let (mut machine, group) = beside_busy_domains(1000);
    let before_ns = machine.used_ns(group);
    machine.run(2000 * MS);
    let used_ns = machine.used_ns(group) - before_ns;
    assert!(used_ns >= 980 * MS, "{used_ns} of 1,000 ms");
    let longest_ns = longest_wait_ns(&machine, |other| other == group);
    assert!(longest_ns <= 100 * MS, "{longest_ns}");
    let busy_ns = longest_wait_ns(&machine, |other| other != group);
    assert!(busy_ns <= 100 * MS, "{busy_ns}");
}

/// Also of a task that still waits.
fn longest_wait_ns(machine: &Machine, is_of: impl Fn(usize) -> bool) -> u64 {
    let tasks = machine.tasks.iter().filter(|task| is_of(task.group));
    tasks.map(|task| task.longest_wait_ns.max(machine.waits_ns(task))).max().unwrap_or(0)
}

/// Each task that has run for a moment so far, and burns from now on, gets one slice too early at
/// most. Then its domain has its share, no more, and the others have waited for a bounded time.
#[test]
fn a_domain_whose_tasks_change_their_ways_gains_a_slice_for_each() {
    for (tasks, others_wait_ms) in [(10, 30), (100, 50)] {
        let (mut machine, group) = beside_busy_domains(tasks);
        let begin_ns = machine.used_ns(group);
        for task in machine.tasks.iter_mut().filter(|task| task.group == group) {
            task.burns_from_now_on();
        }
        machine.run(400 * MS);
        let soon_ns = machine.used_ns(group);
        let gained_ns = (soon_ns - begin_ns).saturating_sub(400 * MS);
        let slices_ns = tasks as u64 * machine.tick_ns + 20 * MS;
        assert!(gained_ns <= slices_ns, "{tasks}: gained {gained_ns}");
        machine.run(4000 * MS);
        let share = (machine.used_ns(group) - soon_ns) as f64 / (4000 * MS) as f64;
        assert!((0.98..=1.01).contains(&share), "{tasks}: {share} CPUs");
        let busy_ns = longest_wait_ns(&machine, |other| other != group);
        assert!(busy_ns <= others_wait_ms * MS, "{tasks}: {busy_ns}");
    }
}

/// A task that wakes up is expected to run for as long as usual, and any other one for its slice.
#[test]
fn a_woken_task_is_charged_in_advance_for_what_it_usually_uses() {
    let table = [
        // The slice, the usual run, whether it has woken up, and the expected use.
        (3 * MS, 100 * US, true, 100 * US),
        (3 * MS, 100 * US, false, 3 * MS),
        (3 * MS, 3 * MS, true, 3 * MS),
        (3 * MS, 20 * MS, true, 3 * MS),
        (MS, 0, true, 0),
    ];
    for (slice_ns, runs_ns, woken, expected_ns) in table {
        assert_eq!(credit::uses(slice_ns, runs_ns, woken), expected_ns, "{slice_ns} {runs_ns}");
    }
    let mut group = Group { vtime: 0, share: ONE / 8, runnable: 2, ..Group::default() };
    let first = credit::reserve(&mut group, 0, 3 * MS, 100 * US);
    assert_eq!((first.reserved, first.slice), (800 * US, 24 * MS));
    assert_eq!(group.vtime, 800 * US, "the next task's place");
    credit::settle(&mut group, &first, 3 * MS);
    assert_eq!(group.vtime, 24 * MS, "what it has used beyond that is charged, too");
}

/// The first run of a new task is its average; later ones change it by an eighth.
#[test]
fn the_first_run_of_a_task_is_its_usual_one() {
    let params = Params::new(8);
    assert_eq!(credit::runs(&params, params.slice_ns, 80 * US, true), 80 * US);
    assert_eq!(credit::runs(&params, 80 * US, 160 * US, false), 90 * US);
    // One that runs on and on counts as one that runs for a slice.
    assert_eq!(credit::runs(&params, 0, u64::MAX, true), params.slice_ns);
}

/// Threads that sleep most of the time, in a domain of threads that burn. They do not wait for a
/// slice of each of these, as they would in order (one sleeper: 30 and 126 ms), and the domain has
/// its share all the same.
#[test]
fn sleepers_go_before_the_burning_threads_of_their_own_domain() {
    for (burners, sleepers) in [(2, 1), (8, 1), (32, 1), (8, 24)] {
        let case = format!("{burners} that burn, {sleepers} that sleep");
        let (mut machine, _) = beside_busy_domains(0);
        let group = machine.group(100, &vec![3; burners], Work::Burns);
        let nap = Work::Naps(100 * US, 20 * MS);
        let asleep: Vec<usize> =
            (0..sleepers).map(|_| machine.task(group, 3, 1 << 3, Cpus::ALL, nap)).collect();
        machine.run(1000 * MS);
        for task in &mut machine.tasks {
            task.longest_wait_ns = 0;
        }
        let before: Vec<u64> = machine.tasks.iter().map(|task| task.used_ns).collect();
        machine.run(2000 * MS);
        let waited_ns = asleep.iter().map(|&task| machine.tasks[task].longest_wait_ns).max();
        assert!(waited_ns <= Some(10 * MS), "{case}: waited {waited_ns:?}");
        for &task in &asleep {
            // 10 ms if it never waited.
            let used_ns = machine.tasks[task].used_ns - before[task];
            assert!(used_ns >= 8 * MS, "{case}: used {used_ns}");
        }
        let used = machine.tasks.iter().zip(&before).map(|(task, ns)| (task, task.used_ns - ns));
        let mut by_group = [0; 9];
        for (task, used_ns) in used {
            by_group[task.group] += used_ns;
            // The others share what the sleepers leave of their CPU.
            if task.group == group && matches!(task.work, Work::Burns) {
                let fair_ns = (2000 - 10 * sleepers as u64) * MS / burners as u64;
                assert!(used_ns >= fair_ns * 8 / 10, "{case}: {used_ns} of {fair_ns}");
            }
        }
        let cpus = |group: usize| by_group[group] as f64 / (2000 * MS) as f64;
        for domain in (0..7).chain([group]) {
            assert!((0.97..=1.03).contains(&cpus(domain)), "{case}: {} CPUs", cpus(domain));
        }
        let others_ns = longest_wait_ns(&machine, |other| other != group);
        assert!(others_ns <= 40 * MS, "{case}: others waited {others_ns}");
    }
}

/// Wake-ups of 5 us that would take two and a half CPUs, of a domain that is entitled to one. Its
/// thread that burns is not starved by them (it had 4 ms when each was charged a slice in advance),
/// and a woken task takes the CPU of one from elsewhere, so the others lose some of their share.
#[test]
fn a_domain_of_many_sleepers_starves_no_one() {
    let (mut machine, _) = beside_busy_domains(0);
    let group = machine.group(100, &[3], Work::Burns);
    let burner = machine.tasks.len() - 1;
    machine.run(400 * MS);
    for _ in 0..500 {
        machine.task(group, 3, 1 << 3, Cpus::ALL, Work::Naps(5 * US, MS));
    }
    machine.run(1000 * MS);
    let before: Vec<u64> = (0..7).map(|domain| machine.used_ns(domain)).collect();
    let burnt_ns = machine.tasks[burner].used_ns;
    machine.run(1000 * MS);
    for (domain, before_ns) in before.iter().enumerate() {
        let used_ns = machine.used_ns(domain) - before_ns;
        assert!(used_ns >= 750 * MS, "domain {domain}: {used_ns}");
    }
    let used_ns = machine.tasks[burner].used_ns - burnt_ns;
    assert!(used_ns >= 50 * MS, "{used_ns}");
}

#[test]
fn the_average_of_a_group_moves_by_what_a_task_uses() {
    let table = [
        // The average, what the task had, its expected use of a slice of 3 ms, the new average.
        (50 * MS, 30 * MS, 3 * MS, 47_500 * US),
        (50 * MS, 30 * MS, 30 * US, 49_975 * US),
        (50 * MS, 30 * MS, 0, 50 * MS),
        (30 * MS, 50 * MS, 3 * MS, 32_500 * US),
        (30 * MS, 50 * MS, 30 * US, 30_025 * US),
    ];
    for (own_now, own, uses_ns, expected) in table {
        let got = credit::own_now(own_now, own, uses_ns, 3 * MS);
        // The part counts in steps of 2^-16.
        assert!(got.abs_diff(expected) <= 100, "{own_now} {own} {uses_ns}: {got}");
    }
    // A thousand short tasks that had less than the average bring it down to them: then none of
    // them goes before the others.
    let params = Params::new(8);
    let group = Group { vtime: 1000 * MS, front: 1000 * MS, ..Group::default() };
    let (mut own_now, mut leading) = (50 * MS, 0);
    for _ in 0..8000 {
        let lead = credit::own_lead(&params, &group, 0, 2000 * MS, own_now, 30 * MS);
        leading += u32::from(lead > 0);
        own_now = credit::own_now(own_now, 30 * MS, 5 * US, 3 * MS);
    }
    assert!((1000..5000).contains(&leading), "{leading}");
}

/// A domain that has two CPUs for itself, and so more than its share, gets no more than that of the
/// others by threads that wake up all the time.
#[test]
fn a_domain_that_is_ahead_gains_nothing_by_threads_that_wake_up() {
    let mut machine = Machine::shaped(&[vec![10]], 1, 4, 1);
    let [alone, shared] = [[0, 1], [2, 3]].map(|cpus| cpus.into_iter().collect::<Cpus>());
    let group = machine.group(100, &[], Work::Burns);
    for _ in 0..2 {
        machine.task(group, 0, 1, alone, Work::Burns);
    }
    for _ in 0..8 {
        machine.task(group, 0, 1, shared, Work::Naps(3 * MS, MS / 2));
    }
    let other = machine.group(100, &[], Work::Burns);
    for _ in 0..4 {
        machine.task(other, 0, 1, shared, Work::Burns);
    }
    machine.run(500 * MS);
    let before_ns = machine.used_ns(other);
    machine.run(4000 * MS);
    let cpus = (machine.used_ns(other) - before_ns) as f64 / (4000 * MS) as f64;
    assert!(cpus >= 1.8, "{cpus} of 2 CPUs");
    let waited_ns = longest_wait_ns(&machine, |it| it == other);
    assert!(waited_ns <= 40 * MS, "{waited_ns}");
}

#[test]
fn a_task_takes_the_cpu_of_one_that_had_more_and_has_run_for_a_while() {
    let params = Params::new(8);
    let table = [
        // CPU time of the woken task and of the running one, their places, the time of the running
        // one in one go, and whether it makes way.
        (30 * MS, 50 * MS, 900 * MS, 1000 * MS, 2 * MS, true),
        (40 * MS, 50 * MS, 900 * MS, 1000 * MS, 2 * MS, false),
        (50 * MS, 30 * MS, 900 * MS, 1000 * MS, 2 * MS, false),
        // Another one that goes before the others.
        (30 * MS, 50 * MS, 900 * MS, 900 * MS, 2 * MS, false),
        (30 * MS, 50 * MS, 900 * MS, 1000 * MS, MS / 2, false),
    ];
    for (own, other, woken, running, ran_ns, expected) in table {
        let got = credit::preempts_own(&params, own, other, woken, running, ran_ns);
        assert_eq!(got, expected, "{own} {other} {woken} {running} {ran_ns}");
    }
}

#[test]
fn a_task_leads_only_if_it_had_less_than_the_others_of_its_group() {
    let params = Params::new(8);
    let group = Group { vtime: 1000 * MS, front: 900 * MS, ..Group::default() };
    let table = [
        // "Now", the average of the group, the task's CPU time, and its lead.
        (900 * MS, 50 * MS, 30 * MS, 100 * MS),
        // Within half of what it may be owed, or ahead of them.
        (900 * MS, 50 * MS, 40 * MS, 0),
        (900 * MS, 50 * MS, 60 * MS, 0),
        // Its group is behind, but is owed no more than one that wakes: 5 ms of 8 CPUs.
        (1000 * MS, 50 * MS, 30 * MS, 40 * MS),
        (2000 * MS, 50 * MS, 30 * MS, 0),
    ];
    for (now, own_now, own, expected) in table {
        let lead = credit::own_lead(&params, &group, now, group.vtime, own_now, own);
        assert_eq!(lead, expected, "{now} {own_now} {own}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    /// A domain that mixes threads that sleep and threads that burn gets its share, and no more.
    #[test]
    fn a_mixed_domain_gets_its_share(
        burners in 1..=8_usize,
        sleepers in prop::collection::vec((10_000..=5 * MS, 10_000..=20 * MS), 1..=24),
    ) {
        let mut machine = Machine::shaped(&[vec![10]], 1, 4, 1);
        let busy = machine.group(100, &[0; 4], Work::Burns);
        let mixed = machine.group(100, &vec![0; burners + 1], Work::Burns);
        for (burn_ns, sleep_ns) in sleepers {
            machine.task(mixed, 0, 1, Cpus::ALL, Work::Naps(burn_ns, sleep_ns));
        }
        machine.run(500 * MS);
        let before_ns = machine.used_ns(mixed);
        machine.run(4000 * MS);
        let got = (machine.used_ns(mixed) - before_ns) as f64 / (2.0 * (4000 * MS) as f64);
        prop_assert!((0.95..=1.05).contains(&got), "{got} of its share");
        let waited_ns = longest_wait_ns(&machine, |group| group == busy);
        prop_assert!(waited_ns <= 100 * MS, "{waited_ns}");
    }
}
