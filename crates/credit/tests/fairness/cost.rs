//! The cost of a decision on 512 CPUs equals that on 8, and a round of the timer costs the tasks
//! that it releases.

use crate::{
    MS,
    cpus::Cpus,
    machine::{Machine, Work},
};
use nearside_credit as credit;

/// Nodes of one cache, all equally far apart.
fn machine(nodes: usize, cpus_a_node: usize) -> Machine {
    let distances: Vec<Vec<u32>> = (0..nodes)
        .map(|from| (0..nodes).map(|to| if from == to { 10 } else { 20 }).collect())
        .collect();
    Machine::shaped(&distances, 1, cpus_a_node, 1)
}

#[test]
fn no_more_than_8_cpus_of_a_queue_are_compared_and_none_twice() {
    for count in [0, 1, 7, 8, 9, 64, 512, 4096] {
        for start in [0, 1, 7, 511, u32::MAX] {
            let positions: Vec<u32> =
                (0..).map_while(|index| credit::candidate(start, index, count)).collect();
            assert_eq!(positions.len() as u32, count.min(8), "{count} CPUs");
            let mut once = positions.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), positions.len(), "{positions:?}");
        }
    }
}

/// Twice as many burners as CPUs and as many sleepers, so that a waking task finds no idle CPU.
#[test]
fn a_woken_task_compares_as_many_cpus_of_512_as_of_8() {
    let compared = [(1, 8), (8, 8), (8, 64), (1, 512)].map(|(nodes, cpus_a_node)| {
        let mut machine = machine(nodes, cpus_a_node);
        for home in 0..nodes {
            machine.group(100, &vec![home; 2 * cpus_a_node], Work::Burns);
            machine.group(100, &vec![home; cpus_a_node], Work::Naps(MS / 5, 3 * MS));
        }
        machine.run(40 * MS);
        assert!(machine.compared > 0);
        machine.max_compared
    });
    assert_eq!(compared, [8; 4]);
}

/// 2,000 tasks share a cap of two CPUs. A round asks for those that it releases and for the one
/// that is refused.
#[test]
fn a_round_of_the_timer_costs_the_tasks_it_releases() {
    let mut machine = machine(1, 8);
    let capped = machine.group(100, &vec![0; 2000], Work::Burns);
    machine.cap(capped, 200 * MS, 100 * MS);
    machine.run(5000 * MS);
    let rounds = 5000 / 10 + 5000 / 100;
    assert!(machine.released > 1000, "{} released", machine.released);
    assert!(machine.asked <= machine.released + rounds, "{} asked", machine.asked);
}

/// The inner cap refuses tasks that the outer one would admit: they wait for the inner one, and
/// keep no other task from the outer.
#[test]
fn a_task_waits_for_the_cap_that_refuses_it() {
    let mut machine = machine(1, 8);
    let outer = machine.group(100, &[], Work::Burns);
    machine.cap(outer, 200 * MS, 100 * MS);
    let inner = [50, 0].map(|percent| {
        let group = machine.group(100, &[0; 8], Work::Burns);
        machine.parents[group] = Some(outer);
        if percent > 0 {
            machine.cap(group, percent * MS, 100 * MS);
        }
        group
    });
    machine.run(4000 * MS);
    let cpus = inner.map(|group| machine.used_ns(group) as f64 / (4000 * MS) as f64);
    assert!((0.45..=0.5).contains(&cpus[0]), "{cpus:?}");
    assert!((1.45..=1.55).contains(&cpus[1]), "{cpus:?}");
}

/// A task may use one CPU in 512, which is not among the 8 that are compared by chance: its last
/// CPU comes first.
#[test]
fn a_task_that_is_bound_to_one_of_512_cpus_gets_its_turn() {
    let mut machine = machine(1, 512);
    machine.group(100, &[0; 600], Work::Burns);
    let sleepers = machine.group(100, &[], Work::Burns);
    let cpu: Cpus = [300].into_iter().collect();
    machine.task(sleepers, 0, 1, cpu, Work::Naps(MS, 9 * MS));
    machine.run(200 * MS);
    assert!(machine.used_ns(sleepers) >= 18 * MS, "{} ns", machine.used_ns(sleepers));
}
