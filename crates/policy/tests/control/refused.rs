//! Transactions a step of which is refused: the cooldown of the decision holds.

use crate::machine::{Machine, Vm, found, set, vm};
use nearside_policy::{HomeBlocker, Origin};

/// The intervals in which a domain's transactions were refused, within `intervals` intervals, and
/// the machine, which refuses no longer.
fn refused_in(intervals: u64, vm: Vm) -> (Vec<u64>, Machine) {
    let mut machine = Machine::new(&[2, 2], 32, &[]);
    machine.vms.push(vm);
    machine.refuses_steps = true;
    machine.steps(intervals);
    machine.refuses_steps = false;
    let refused = machine.refused.iter().map(|(at, _)| *at).collect();
    (refused, machine)
}

/// The cooldown is 5 intervals, and doubles with each refusal that soon follows.
const EXPECTED: [u64; 6] = [1, 6, 16, 36, 76, 156];

#[test]
fn a_refused_first_home_is_tried_again_after_its_cooldown() {
    let (refused, mut machine) = refused_in(200, found("web", 1.5, &[2]));
    assert_eq!(refused, EXPECTED);
    let status = &machine.history.parts[&"web".into()].status;
    assert_eq!(status.home_blocker, Some(HomeBlocker::Refused { retry_at: 316 }));
    machine.steps(115);
    assert_eq!(machine.vm("web").state.home, None);
    machine.step();
    assert_eq!(machine.vm("web").state.home.as_ref().unwrap().origin, Origin::Auto);
    machine.step();
    let known = &machine.history.parts[&"web".into()];
    assert_eq!((known.first_home, &known.status.home_blocker), (None, &None));
}

#[test]
fn a_refused_adoption_is_tried_again_after_its_cooldown() {
    let mut bound = found("web", 1.5, &[2]);
    bound.bound_to = Some(set(&[1]));
    let (refused, mut machine) = refused_in(200, bound);
    assert_eq!(refused, EXPECTED);
    machine.steps(116);
    let home = machine.vm("web").state.home.clone().unwrap();
    assert_eq!((home.origin, home.nodes), (Origin::Adopted, set(&[1])));
}

/// A binding that changed is adopted after as many samples as the threshold, each time anew.
#[test]
fn a_refused_home_at_a_new_binding_is_tried_again_after_the_threshold() {
    let mut adopted = vm("web", &[0], Origin::Adopted, 1.5, &[2]);
    adopted.state.claim = None;
    adopted.bound_to = Some(set(&[1]));
    let (refused, _) = refused_in(20, adopted);
    assert_eq!(refused, [5, 10, 15, 20]);
}

#[test]
fn a_dropped_first_home_has_no_cooldown() {
    let mut machine = Machine::new(&[2, 2], 32, &[]);
    machine.vms.push(found("web", 1.5, &[2]));
    machine.drops_transactions = true;
    machine.steps(3);
    let expected: Vec<_> = (1..=3).map(|at| (at, "web".to_owned())).collect();
    assert_eq!(machine.dropped, expected);
}
