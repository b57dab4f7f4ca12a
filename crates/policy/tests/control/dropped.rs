//! Transactions that are dropped because their needs no longer hold, and decisions that wait for
//! the next interval.

use crate::machine::{Machine, found, vm};
use nearside_policy::{HomeBlocker, Origin};

/// A contended domain whose move another process prevents in five intervals.
#[test]
fn a_dropped_move_is_decided_again_in_the_next_interval() {
    let mut machine = Machine::new(&[2, 2], 32, &[]);
    machine.vms.push(vm("db", &[0], Origin::Auto, 1.9, &[4]));
    machine.steps(100);
    (machine.hogs[0], machine.drops_transactions) = (2.0, true);
    while machine.dropped.len() < 5 && machine.interval < 200 {
        machine.step();
    }
    machine.drops_transactions = false;
    machine.step();
    let first = machine.dropped[0].0;
    let expected: Vec<_> = (first..first + 5).map(|at| (at, "db".to_owned())).collect();
    assert_eq!(machine.dropped, expected);
    assert_eq!(machine.moves_of("db"), [first + 5]);
}

/// The demand and contention that were observed meanwhile are kept.
#[test]
fn a_dropped_decision_forgets_no_observation() {
    let mut machine = Machine::new(&[2, 2], 32, &[]);
    machine.vms.push(vm("db", &[0], Origin::Auto, 1.9, &[4]));
    machine.steps(100);
    (machine.hogs[0], machine.drops_transactions) = (2.0, true);
    let mut contention = Vec::new();
    while machine.dropped.len() < 5 && machine.interval < 200 {
        machine.step();
        contention.push(machine.history.parts[&"db".into()].contention_intervals);
    }
    let first = contention.len() - 5;
    assert!(contention[first] > 0);
    assert!(contention[first..].windows(2).all(|pair| pair[0] < pair[1]), "{contention:?}");
}

/// At most 64 parts get their first home in a round, the largest first.
#[test]
fn first_homes_left_over_from_an_interval_are_given_in_the_next() {
    let mut machine = Machine::new(&[64, 64], 512, &[]);
    machine.noise = 0.0;
    machine.vms =
        (0..70).map(|i| found(&format!("vm-{i:02}"), 1.7 - 0.01 * i as f64, &[1])).collect();
    let homeless = |machine: &Machine| -> Vec<String> {
        let left = machine.vms.iter().filter(|vm| vm.state.home.is_none());
        left.map(|vm| vm.state.id.to_string()).collect()
    };
    machine.step();
    assert_eq!(homeless(&machine), ["vm-64", "vm-65", "vm-66", "vm-67", "vm-68", "vm-69"]);
    let status = &machine.history.parts[&"vm-69".into()].status;
    assert_eq!(status.home_blocker, Some(HomeBlocker::Queued));
    machine.step();
    assert_eq!(homeless(&machine), [""; 0]);
}
