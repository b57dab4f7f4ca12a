//! Confinement of domains whose policy is strict, once their memory has come home.

use crate::machine::{GIB, Machine, set, vm};
use nearside_policy::{MemoryPolicy, MoveReport, Origin, Stayed, StayedWhy};
use nearside_topology::NodeId;

#[test]
fn a_strict_domain_is_confined_once_its_debt_has_arrived() {
    let mut machine = Machine::new(&[2, 2], 32, &[]);
    let mut strict = vm("strict", &[0], Origin::Auto, 2.0, &[8]);
    strict.state.home.as_mut().unwrap().policy = MemoryPolicy::Strict;
    strict.state.memory_nodes = Some(set(&[0]));
    machine.vms.push(strict);
    machine.steps(50);
    machine.hogs[0] = 2.0;
    let mut allowed = Vec::new();
    for _ in 0..20 {
        machine.step();
        let state = &machine.vm("strict").state;
        let now = state.memory_nodes.clone().unwrap();
        let elsewhere = state.resident_bytes.get(&NodeId(0)).copied().unwrap_or(0);
        assert!(
            now != set(&[1]) || elsewhere <= 256 << 10,
            "{elsewhere} bytes were left to the kernel to move"
        );
        allowed.push(now);
    }
    allowed.dedup();
    assert_eq!(allowed, [set(&[0]), set(&[0, 1]), set(&[1])]);
    assert_eq!(machine.vm("strict").state.resident_bytes.get(&NodeId(1)), Some(&(8 * GIB)));
}

/// A strict domain of 1 GiB at home on node 0. It is allowed memory elsewhere too, and holds this
/// much there, by node.
fn not_confined_again(kept: &[(u32, u64)]) -> Machine {
    let mut machine = Machine::new(&[2, 2, 2], 32, &[]);
    let mut strict = vm("strict", &[0], Origin::Explicit, 0.1, &[1]);
    let state = &mut strict.state;
    state.home.as_mut().unwrap().policy = MemoryPolicy::Strict;
    state.memory_nodes = Some(set(&[0, 1, 2]));
    state.resident_bytes.extend(kept.iter().map(|&(node, bytes)| (NodeId(node), bytes)));
    strict.pinned = kept.iter().map(|&(node, bytes)| (NodeId(node), bytes)).collect();
    machine.vms.push(strict);
    machine
}

fn is_confined(machine: &mut Machine) -> bool {
    machine.vm("strict").state.memory_nodes == Some(set(&[0]))
}

/// Page tables, stacks and slabs cannot move, and are counted by the byte.
#[test]
fn kernel_memory_elsewhere_does_not_prevent_confinement() {
    for (why, kept, varies, most_intervals) in [
        ("less than a page", [(1, 0), (2, 2568)], false, 1),
        ("pages and less than one", [(1, 40_960), (2, 2568)], false, 1),
        ("much, and never the same twice", [(1, 16 << 20), (2, 12_345)], true, 6),
    ] {
        let mut machine = not_confined_again(&kept);
        let mut intervals = 0;
        while !is_confined(&mut machine) {
            let status =
                machine.history.parts.get(&"strict".into()).map(|known| known.status.to_string());
            assert!(intervals < most_intervals, "{why}: {status:?}");
            intervals += 1;
            for (node, bytes) in kept.map(|(node, bytes)| (NodeId(node), bytes)) {
                let bytes = if varies { bytes + machine.random.between(0, 20_000) } else { bytes };
                machine.vm("strict").pinned.insert(node, bytes);
                machine.vm("strict").state.resident_bytes.insert(node, bytes);
            }
            machine.step();
        }
        // Some of it must be tried first.
        assert!(!varies || intervals > 1, "{why}: {intervals}");
        if why == "less than a page" {
            assert_eq!(machine.history.parts[&"strict".into()].status.debt_bytes, 0);
        }
    }
}

/// The kernel would kill it at its next page.
#[test]
fn a_strict_domain_is_not_confined_to_a_full_home() {
    for kept in [0, 2568, 200 << 10] {
        let mut machine = not_confined_again(&[(1, kept)]);
        machine.hoarded[0] = machine.free_bytes(0) - machine.high_watermark_bytes(0);
        machine.steps(40);
        assert!(!is_confined(&mut machine), "{kept}");
        machine.hoarded[0] = 0;
        machine.steps(20);
        assert!(is_confined(&mut machine), "{kept}");
    }
}

#[test]
fn pages_that_found_no_room_and_have_gone_do_not_prevent_confinement() {
    for left in [0, 2568] {
        let mut machine = not_confined_again(&[(1, left)]);
        let stayed = Stayed::from([(StayedWhy::NoRoom, 4096), (StayedWhy::NotMapped, 1 << 20)]);
        machine.moved.push(MoveReport {
            part: "strict".into(),
            from: NodeId(1),
            moved_bytes: 0,
            stayed,
        });
        machine.steps(2);
        assert!(is_confined(&mut machine), "{left}");
    }
    // Debt that is still there prevents confinement.
    let mut machine = not_confined_again(&[(1, 1 << 20)]);
    machine.step();
    let stayed = Stayed::from([(StayedWhy::NoRoom, 4096), (StayedWhy::NotMapped, 1 << 20)]);
    machine.moved =
        vec![MoveReport { part: "strict".into(), from: NodeId(1), moved_bytes: 0, stayed }];
    machine.step();
    assert!(!is_confined(&mut machine));
}
