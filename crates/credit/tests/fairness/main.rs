//! The decisions over seconds, on a machine in software.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cost;
mod cpus;
mod machine;
mod moments;
mod properties;
mod weights;

use cpus::Cpus;
use machine::{Machine, Work, jain};
use nearside_credit::{self as credit, Grant, Group, ONE, Params};

const MS: u64 = 1_000_000;
const ONE_NODE: &[&[u32]] = &[&[10]];
const FOUR_NODES: &[&[u32]] =
    &[&[10, 15, 30, 30], &[15, 10, 30, 30], &[30, 30, 10, 15], &[30, 30, 15, 10]];

/// Homes of so many tasks, dealt out over the nodes.
fn spread(tasks: usize, nodes: usize) -> Vec<usize> {
    (0..tasks).map(|task| task % nodes).collect()
}

#[test]
fn unevenly_loaded_nodes_are_fair_in_the_long_run() {
    // 16 domains of two threads on four nodes of two CPUs: ten live on node 0, one on node 3.
    let homes = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3];
    let mut machine = Machine::new(FOUR_NODES, 2);
    for home in homes {
        machine.group(100, &[home, home], Work::Burns);
    }
    machine.run(4000 * MS);
    let got: Vec<f64> = (0..homes.len()).map(|group| machine.used_ns(group) as f64).collect();
    assert!(jain(&got) >= 0.95, "{} {got:?}", jain(&got));
    assert_eq!(machine.wasted_ns, 0);
}

#[test]
fn a_domain_whose_home_is_just_large_enough_gets_its_share() {
    let mut machine = Machine::new(FOUR_NODES, 2);
    let at_home = machine.group(100, &[0; 8], Work::Burns);
    let everywhere = machine.group(300, &spread(24, 4), Work::Burns);
    machine.run(2000 * MS);
    let (a, b) = (machine.used_ns(at_home) as f64, machine.used_ns(everywhere) as f64);
    assert!((b / a - 3.0).abs() < 0.1, "1 to {}", b / a);
}

#[test]
fn single_threads_on_an_overloaded_node_are_not_forgotten() {
    // Four single-threaded domains on one node of two CPUs, two on another.
    let mut machine = Machine::new(&[&[10, 20], &[20, 10]], 2);
    for home in [0, 0, 0, 0, 1, 1] {
        machine.group(100, &[home], Work::Burns);
    }
    machine.run(4000 * MS);
    let got: Vec<f64> = (0..6).map(|group| machine.used_ns(group) as f64).collect();
    assert!(jain(&got) >= 0.95, "{} {got:?}", jain(&got));
}

#[test]
fn evenly_loaded_nodes_exchange_nothing() {
    let mut machine = Machine::new(FOUR_NODES, 2);
    for home in 0..4 {
        machine.group(100, &[home; 4], Work::Burns);
    }
    // The first ones to come are spread over all that is idle; they are back within two slices.
    machine.run(100 * MS);
    let balanced = machine.balanced;
    machine.run(2000 * MS);
    let away: u64 =
        machine.tasks.iter().map(|task| task.used_ns - task.by_node_ns[task.home]).sum();
    assert!(away <= 8 * 10 * MS, "{away}");
    assert_eq!(machine.balanced, balanced);
}

#[test]
fn a_sleeper_gets_in_quickly_and_takes_no_more_than_it_needs() {
    let mut machine = Machine::new(ONE_NODE, 4);
    let burner = machine.group(100, &[0; 8], Work::Burns);
    let sleeper = machine.group(100, &[0], Work::Naps(MS / 2, 10 * MS));
    machine.run(2000 * MS);
    let longest = machine.tasks.iter().find(|task| task.group == sleeper).unwrap().longest_wait_ns;
    assert!(longest <= MS, "waited {longest} ns");
    // It is owed far more than the 5 % of a CPU it asks for.
    let ideal = 2000 * MS / 21;
    assert!(machine.used_ns(sleeper) >= ideal * 95 / 100, "{}", machine.used_ns(sleeper));
    assert!(machine.used_ns(burner) >= 4 * 2000 * MS - ideal - 20 * MS);
}

#[test]
fn groups_that_sleep_and_wake_cannot_starve_one_that_works() {
    let mut machine = Machine::new(ONE_NODE, 4);
    let burner = machine.group(100, &[0; 4], Work::Burns);
    for _ in 0..3 {
        machine.group(100, &[0; 16], Work::Naps(3 * MS, MS));
    }
    machine.run(2000 * MS);
    let ideal = 2000 * MS;
    assert!(machine.used_ns(burner) >= ideal * 9 / 10, "{} of {ideal}", machine.used_ns(burner));
}

#[test]
fn the_lightest_group_beside_the_heaviest_waits_a_bounded_time() {
    let mut machine = Machine::new(ONE_NODE, 2);
    machine.group(10_000, &[0; 8], Work::Burns);
    let light = machine.group(1, &[0; 2], Work::Burns);
    machine.run(10_000 * MS);
    for task in machine.tasks.iter().filter(|task| task.group == light) {
        assert!(task.used_ns > 0);
        assert!(task.longest_wait_ns < 3000 * MS, "{}", task.longest_wait_ns);
    }
}

/// It is charged for all of them in advance, so the charge alone is no reason to wait.
#[test]
fn a_group_gets_ahead_by_its_number_of_tasks() {
    let params = Params::new(8);
    let tag = |share, runnable| {
        let group = Group { vtime: 1 << 60, share, runnable, ..Group::default() };
        credit::tag(&params, &group, 0, false) / u64::from(params.cpus)
    };
    assert_eq!(tag(ONE / 2, 1), 200 * MS + 3 * MS * 2 / 8);
    assert_eq!(tag(ONE / 8, 1), 200 * MS + 3 * MS);
    assert_eq!(tag(ONE / 8, 64), 200 * MS + 64 * 3 * MS);
    assert_eq!(tag(ONE / 8, 1000), params.ahead_bound_ns);
    assert_eq!(tag(1, 1), params.ahead_bound_ns);
    assert_eq!(tag(1, u32::MAX), params.ahead_bound_ns);
}

#[test]
fn a_task_passes_on_its_last_cpu_by_a_slice_but_no_woken_task() {
    let params = Params::new(8);
    let of_slices = |share| Grant {
        slice: credit::charge(3 * MS, share),
        slice_ns: 3 * MS,
        ..Grant::default()
    };
    let sixteenth = of_slices(ONE / 8);
    let table = [
        // Its grant, the first one's place, its own place, whether the first one has just woken up,
        // whether that one's group runs elsewhere, and whether it passes.
        (sixteenth, 0, 0, false, false, true),
        (sixteenth, 0, 24 * MS, false, false, true),
        (sixteenth, 0, 24 * MS + 1, false, false, false),
        // The lightest one's slice is long in virtual time; the bound is the wait after which a CPU
        // fetches a task from afar.
        (of_slices(1), 0, 40 * MS, false, false, true),
        (of_slices(1), 0, 40 * MS + 1, false, false, false),
        (sixteenth, 0, 8 * MS, true, false, true),
        (sixteenth, 0, 8 * MS + 1, true, false, false),
        // A second task of a group has no claim to be first, even if it has just woken up.
        (sixteenth, 0, 24 * MS, true, true, true),
        (sixteenth, 0, 24 * MS + 1, true, true, false),
        (sixteenth, 0, 24 * MS, false, true, true),
        // Across the wrap.
        (sixteenth, u64::MAX, 24 * MS - 1, false, false, true),
        (sixteenth, u64::MAX, 24 * MS, false, false, false),
    ];
    for (grant, first, tag, woken, beside, passes) in table {
        assert_eq!(
            credit::lets_pass(&params, &grant, first, tag, woken, beside),
            passes,
            "{grant:?} {first} {tag} {woken} {beside}"
        );
    }
}

#[test]
fn only_a_group_entitled_to_more_than_one_cpu_takes_a_second_one() {
    let table = [
        // CPUs of the machine, its share, and whether it takes a second CPU.
        (8, ONE, true),
        (8, ONE / 4, true),
        (8, ONE / 8 + 1, true),
        (8, ONE / 8, false),
        (8, ONE / 16, false),
        (8, 1, false),
        (8, 0, false),
        (512, ONE / 16, true),
        (512, ONE / 512, false),
        // There is no second one.
        (1, ONE, false),
    ];
    for (cpus, share, spreads) in table {
        assert_eq!(credit::spreads(&Params::new(cpus), share), spreads, "{share} of {cpus}");
    }
}

#[test]
fn a_group_entitled_to_one_cpu_has_one_node_of_its_home() {
    let params = Params::new(8);
    let table = [
        // Its share, the nodes of its home, those it may use, the node, and whether it is the seat.
        (ONE / 8, 0b0011, 0b1111, 1, true),
        (ONE / 16, 0b1111, 0b1111, 3, true),
        // It is entitled to more.
        (ONE / 8 + 1, 0b0011, 0b1111, 1, false),
        // There is no choice.
        (ONE / 16, 0b0010, 0b1111, 1, false),
        (ONE / 16, 0, 0b1111, 1, false),
        // The node is not of the home, or may not be used.
        (ONE / 16, 0b0011, 0b1111, 2, false),
        (ONE / 16, 0b0011, 0b0001, 1, false),
        (ONE / 16, u64::MAX, u64::MAX, 64, false),
    ];
    for (share, affine, allowed, node, expected) in table {
        assert_eq!(
            credit::is_seat(&params, share, affine, allowed, node),
            expected,
            "{share} {affine:b} {allowed:b} {node}"
        );
    }
}

/// It takes no second CPU for its group, but the others of its group do not starve it.
#[test]
fn a_sleeper_among_busy_tasks_of_its_group_waits_for_two_rounds_of_all_tasks_at_most() {
    for groups in [1, 2, 8, 16] {
        let mut machine = Machine::new(ONE_NODE, 4);
        for _ in 1..groups {
            machine.group(100, &[0; 2], Work::Burns);
        }
        let group = machine.group(100, &[0; 2], Work::Burns);
        let sleeper = machine.task(group, 0, 1, Cpus::ALL, Work::Naps(MS / 2, 10 * MS));
        machine.run(4000 * MS);
        let round_ns = (2 * groups + 1) * machine.params.slice_ns / 4;
        let longest_ns = machine.tasks[sleeper].longest_wait_ns;
        assert!(longest_ns <= 2 * round_ns, "{groups} groups: waited {longest_ns} ns");
    }
}

/// Their caches are warm there.
#[test]
fn tasks_that_take_turns_keep_to_their_cpus() {
    for tick_ns in [1, 4 * MS] {
        let mut machine = Machine::new(&[&[10, 20], &[20, 10]], 2);
        machine.tick_ns = tick_ns;
        for domain in 0..8 {
            machine.group(100, &[domain % 2], Work::Naps(7 * MS + domain as u64 * MS / 3, MS / 10));
        }
        machine.run(20_000 * MS);
        assert!(machine.starts > 2000);
        assert!(machine.changes * 5 < machine.starts, "{} of {}", machine.changes, machine.starts);
    }
}

#[test]
fn a_group_that_slept_for_long_is_owed_no_more_than_one_that_slept_a_little() {
    let mut machine = Machine::new(ONE_NODE, 2);
    machine.group(100, &[0; 4], Work::Burns);
    machine.run(60_000 * MS);
    let late = machine.group(100, &[0; 4], Work::Burns);
    // Its history is 60 s old: as if it had been there and slept.
    machine.groups[late].vtime = machine.groups[0].vtime.wrapping_sub(60_000 * MS * 2);
    machine.run(200 * MS);
    let got = machine.used_ns(late) as f64 / (200.0 * MS as f64);
    assert!((0.9..=1.15).contains(&got), "{got} CPUs of 2");
}

#[test]
fn an_interrupted_task_keeps_its_cpu_unless_others_wait_for_it() {
    let params = Params::new(8);
    assert_eq!(credit::resumes(&params, 2 * MS, true), 2 * MS);
    assert_eq!(credit::resumes(&params, MS / 10, true), 0);
    assert_eq!(credit::resumes(&params, MS / 10, false), params.slice_min_ns);
}
