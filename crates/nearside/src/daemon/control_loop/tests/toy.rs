//! A second controller: this file, and an entry in the list of controllers.

use super::*;
use nearside_policy::{Action, ByNode, ControlPlan, Controller, Keeper, Planner};
use nearside_policy::{Reason, Reservation, Step, Transaction, Until};

const HELD_BYTES: u64 = 1 << 30;

/// Holds a gibibyte of node 1 from the second interval on.
#[derive(Debug)]
struct Holding;

impl Controller for Holding {
    /// The interval in which it was promised, and the number of intervals seen.
    type State = (Option<u64>, u64);

    const NAME: &'static str = "holding";

    fn learn(&self, _: &ControlObservation, &(held, seen): &Self::State) -> Self::State {
        (held, seen + 1)
    }

    fn plan(&self, seen: &ControlObservation, state: &Self::State) -> (ControlPlan, Self::State) {
        let (held, count) = self.learn(seen, state);
        if held.is_some() || count < 2 {
            return (ControlPlan::default(), (held, count));
        }
        let reservation = Reservation {
            name: "held".into(),
            bytes: ByNode::from([(NodeId(1), HELD_BYTES)]),
            ..Reservation::default()
        };
        let action = Action::Reserve { reservation, until: Until::Seconds(3600) };
        let step = Step { action, reason: Reason::Arrived };
        let transactions = vec![Transaction::new(vec![step], &seen.machine)];
        (ControlPlan { transactions, ..ControlPlan::default() }, (Some(seen.interval), count))
    }

    fn take_back(&self, state: &mut Self::State, learned: &Self::State, _: &Transaction) {
        *state = *learned;
    }
}

/// A daemon with it, which continues from the file of an earlier one.
fn daemon(made: &Made) -> Daemon {
    let mut daemon = Daemon::new(made);
    let control = &mut daemon.control;
    let (persisted, _) = PersistedState::read(&control.state, control.site.host.boot_id());
    let others: Vec<Box<dyn Planner>> = vec![Box::new(Keeper::new(Holding))];
    let (controllers, notices) =
        Controllers::with(others, &control.config.tuning(), &persisted.states);
    assert_eq!(notices, [""; 0]);
    control.controllers = controllers;
    daemon
}

fn held(made: &Made) -> Vec<ByNode> {
    made.host().reservations().into_iter().map(|reservation| reservation.bytes).collect()
}

#[test]
fn a_second_controller_is_asked_applied_taken_back_and_saved_like_the_first() {
    let made = Made::with(&[A, B]);
    made.file("proc/uptime", "100.00 1.00\n");
    let mut first = daemon(&made);
    first.intervals(1);
    let mut other = made.host();
    let session = other.begin().unwrap();
    first.intervals(2);
    assert_eq!(held(&made), [], "another process has the lock");
    drop(session);
    first.intervals(1);
    let promised = [ByNode::from([(NodeId(1), HELD_BYTES)])];
    assert_eq!(held(&made), promised, "its decision was taken back and taken again");
    assert_eq!(first.at_home(&made), [A, B]);
    drop(first);
    let mut second = daemon(&made);
    second.intervals(1);
    assert_eq!(held(&made), promised);
    assert_eq!(second.control.controllers.save().unwrap()["holding"].get(), "[4,5]");
}
