//! Virtual machines with cells under the loop: two cells of one machine never get one node set.

use crate::machine::{GIB, Machine, Vm, found, set, vm};
use nearside_policy::{CellId, Origin, PartId};
use nearside_topology::{Distance, NodeSet};

/// Four nodes of 4 CPUs and 16 GiB, two in each socket.
const DISTANCES: [Distance; 16] = [10, 12, 20, 20, 12, 10, 20, 20, 20, 20, 10, 12, 20, 20, 12, 10];

fn cell(number: u32, mut of: Vm) -> Vm {
    of.state.id = PartId::cell_of("vm", CellId(number));
    of
}

fn home(machine: &Machine, number: u32) -> NodeSet {
    let id = PartId::cell_of("vm", CellId(number));
    let cell = machine.vms.iter().find(|it| it.state.id == id).unwrap();
    cell.state.home.as_ref().map_or_else(NodeSet::new, |home| home.nodes.clone())
}

/// Loads change every 15 intervals, so homes change; those of the two cells never meet.
fn play(seed: u64, start: impl Fn(u32, f64) -> Vm) -> usize {
    let mut machine = Machine::new(&[4; 4], 16, &DISTANCES);
    machine.random.0 = seed;
    machine.noise = 0.03;
    let wants = |machine: &mut Machine| machine.random.between(0, 12) as f64 / 2.0;
    for number in 0..2 {
        let wanted = wants(&mut machine);
        machine.vms.push(cell(number, start(number, wanted)));
    }
    for number in 0..4 {
        let node = machine.random.between(0, 3) as u32;
        let mut held = [0; 4];
        held[node as usize] = machine.random.between(1, 2);
        let wanted = wants(&mut machine);
        let other = vm(&format!("d{number}"), &[node], Origin::Auto, wanted, &held);
        machine.vms.push(other);
    }
    for _ in 0..12 {
        for at in 0..machine.vms.len() {
            machine.vms[at].wants = wants(&mut machine);
        }
        for node in 0..4 {
            machine.hogs[node] = machine.random.between(0, 4) as f64;
        }
        for _ in 0..15 {
            machine.steps(1);
            let homes = [home(&machine, 0), home(&machine, 1)];
            let common = homes[0].intersection(&homes[1]);
            assert!(common.is_empty(), "seed {seed}: {homes:?} at {}", machine.interval);
        }
    }
    let of_cells = |(_, domain, _): &&(u64, String, _)| domain.contains("vm");
    machine.rehomed.iter().filter(of_cells).count()
}

#[test]
fn two_cells_under_changing_load_never_end_on_one_node_set() {
    let started = |number: u32, wants: f64| {
        let mut held = [0; 4];
        held[number as usize] = 2;
        vm("vm", &[number], Origin::Auto, wants, &held)
    };
    let moves: usize = (0..150).map(|seed| play(seed, started)).sum();
    println!("{moves} changes of homes");
    assert!(moves > 100, "{moves}");
}

#[test]
fn two_cells_that_are_found_get_first_homes_apart() {
    // All memory of both lies on node 0, as when one thread touched it.
    let moves: usize = (1000..1050).map(|seed| play(seed, |_, n| found("vm", n, &[1]))).sum();
    println!("{moves} changes of homes");
    assert!(moves >= 100, "{moves}");
}

#[test]
fn a_cell_does_not_flee_from_a_hog_to_its_sibling() {
    let mut machine = Machine::new(&[4, 4], 16, &[10, 20, 20, 10]);
    machine.vms.push(cell(0, vm("vm", &[0], Origin::Auto, 2.0, &[2, 0])));
    machine.vms.push(cell(1, vm("vm", &[1], Origin::Auto, 1.0, &[0, 2])));
    machine.hogs[0] = 4.0;
    machine.steps(100);
    assert_eq!([home(&machine, 0), home(&machine, 1)], [set(&[0]), set(&[1])]);
    assert!(machine.vms.iter().all(|it| it.state.claim.as_ref().unwrap().total_bytes() == 2 * GIB));
}

#[test]
fn cells_of_a_found_guest_get_their_first_homes_in_one_transaction() {
    let mut machine = Machine::new(&[4; 4], 16, &DISTANCES);
    for number in 0..2 {
        machine.vms.push(cell(number, found("vm", 2.0, &[1])));
    }
    let mut transactions = Vec::new();
    while home(&machine, 0).is_empty() && machine.interval < 20 {
        machine.steps(1);
        transactions.extend(machine.last.transactions.iter().map(|it| it.subjects().len()));
        assert_eq!(home(&machine, 0).is_empty(), home(&machine, 1).is_empty());
    }
    assert_eq!(transactions, [2]);
}

#[test]
fn a_cell_gets_no_home_while_its_sibling_can_have_none() {
    // Three cells and two nodes.
    let mut machine = Machine::new(&[4, 4], 16, &[10, 20, 20, 10]);
    for number in 0..3 {
        machine.vms.push(cell(number, found("vm", 1.0, &[1])));
    }
    machine.steps(20);
    assert_eq!([0, 1, 2].map(|number| home(&machine, number)), [(); 3].map(|()| NodeSet::new()));
}
