//! Disks that are full, read-only or broken, at each write of the store and of cgroups.

use super::{MIB, Made, Part, cpus, exchange, going, kill, nodes};
use crate::fault;
use crate::host::OwnMove;
use nearside_policy::{
    Described, Newcomer, Observation, PageMove, Reservation, Transaction, Until,
};
use nearside_topology::{NodeId, NodeSet};
use rustix::io::Errno;
use std::{cell::RefCell, fs, os::unix::fs::symlink};

const ERRORS: [Errno; 4] = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO];

/// The writes that fail, in words, and the choice of them.
type Failing = (String, Box<dyn Fn(usize) -> bool>);

/// The ways to fail in which the first failing write is `first`: that write alone, all from there
/// on, or, on a full disk, one more of the next ones, which undo the change.
fn ways(first: usize, errno: Errno) -> Vec<Failing> {
    let alone: Failing = ("no more".into(), Box::new(move |at| at == first));
    let all: Failing = ("all later ones".into(), Box::new(move |at| at >= first));
    let pair = |second: usize| -> Failing {
        (format!("write {second}"), Box::new(move |at| at == first || at == second))
    };
    let more = if errno == Errno::NOSPC { 8 } else { 0 };
    [alone, all].into_iter().chain((first + 1..=first + more).map(pair)).collect()
}

/// Runs `change` on a new host for each of its writes, so that this write and some later ones
/// fail. Then the fault ends, and `check` learns whether the change has reported success.
fn at_each_write(
    prepare: impl Fn(&Made),
    change: impl Fn(&Made) -> bool,
    check: impl Fn(&Made, bool, &str),
) {
    for errno in ERRORS {
        for first in 0.. {
            let mut failed = 0;
            for (more, fails) in ways(first, errno) {
                let made = with_arguments();
                prepare(&made);
                fault::inject(errno, fails);
                let has_succeeded = change(&made);
                failed = fault::end();
                if failed == 0 {
                    assert!(has_succeeded && first > 0, "without a fault");
                    break;
                }
                check(&made, has_succeeded, &format!("{errno} at write {first} and {more}"));
            }
            if failed == 0 {
                break;
            }
        }
    }
}

/// A host with three domains, each with arguments, which have a file of their own.
fn with_arguments() -> Made {
    let made = Made::new();
    for (node, name) in (0..).zip(["a", "b", "c"]) {
        let mut record = made.domain(name, node, 100);
        record.command.push(format!("--password={name}"));
        made.host().store.lock().unwrap().put(&record).unwrap();
    }
    made.file("proc/uptime", "100.00 1.00\n");
    made
}

/// Reserves memory for a minute.
fn reserving(wanted: Reservation) -> Transaction {
    Transaction::reserving(wanted, Until::Seconds(60), &Observation::default())
}

/// Asserts that other domains start and change.
fn assert_others_go_on(made: &Made, case: &str) {
    let mut host = made.host();
    let moved = Transaction::new(going("c", 3, 100), &host.observe_from(None).unwrap());
    let mut session = host.begin().unwrap_or_else(|error| panic!("{case}: {error}"));
    session.apply(&moved).unwrap_or_else(|refusal| panic!("{case}: {refusal}"));
    let bytes = [(NodeId(2), 200 * MIB)].into();
    let wanted = Reservation { name: "new".into(), bytes, ..Reservation::default() };
    session.apply(&reserving(wanted)).unwrap_or_else(|why| panic!("{case}: {why}"));
}

#[test]
fn an_exchange_is_whole_or_undone_and_others_go_on_as_soon_as_there_is_space() {
    let state = |made: &Made| -> Vec<_> {
        let all = made.state().into_iter();
        let of_two = all.filter(|(record, ..)| record.name != "c");
        of_two.map(|(record, cpus, mems)| (record.command, record.parts, cpus, mems)).collect()
    };
    let fresh = with_arguments();
    let before = state(&fresh);
    fresh.host().begin().unwrap().apply(&exchange(&fresh, 100)).unwrap();
    let after = state(&fresh);
    at_each_write(
        |_| (),
        |made| {
            let transaction = exchange(made, 100);
            let mut host = made.host();
            host.begin().is_ok_and(|mut session| session.apply(&transaction).is_ok())
        },
        |made, has_succeeded, case| {
            assert_others_go_on(made, case);
            let expected = if has_succeeded { &after } else { &before };
            assert!(state(made) == *expected, "{case}: succeeded: {has_succeeded}");
            assert!(!made.journal().exists(), "{case}");
        },
    );
}

#[test]
fn a_reservation_is_recorded_or_refused_and_others_go_on() {
    let names = |made: &Made| -> Vec<_> {
        made.host().reservations().into_iter().map(|reservation| reservation.name).collect()
    };
    at_each_write(
        |_| (),
        |made| {
            let mut host = made.host();
            let bytes = [(NodeId(3), 100 * MIB)].into();
            let wanted = Reservation { name: "numad-1".into(), bytes, ..Reservation::default() };
            host.begin().is_ok_and(|mut session| session.apply(&reserving(wanted)).is_ok())
        },
        |made, has_succeeded, case| {
            // A reservation that could not be taken back at once goes with the next lock.
            assert_others_go_on(made, case);
            assert_eq!(names(made).contains(&"numad-1".into()), has_succeeded, "{case}");
            assert!(!made.journal().exists(), "{case}");
        },
    );
}

const FOUND: &str = "/nearside/found";

/// A domain that a pattern found.
fn find(made: &Made) {
    let mut record = made.domain("found", 3, 50);
    record.found_by = Some("nearside/*".into());
    record.command = Vec::new();
    made.host().store.lock().unwrap().remove(&record.name).unwrap();
    record.name.clone_from(&record.cgroup);
    let part = record.parts.iter().next().unwrap();
    let part = Part { claim: None, decision: None, policy_nodes: None, ..part.clone() };
    record.parts = part.into();
    made.host().store.lock().unwrap().put(&record).unwrap();
}

#[test]
fn a_found_domain_is_forgotten_or_keeps_record_and_binding() {
    let of_found = |made: &Made| made.state().into_iter().find(|(it, ..)| it.name == FOUND);
    let fresh = Made::new();
    find(&fresh);
    let before = of_found(&fresh).unwrap();
    at_each_write(
        find,
        |made| {
            let mut host = made.host();
            host.begin().is_ok_and(|mut session| session.forget(FOUND).is_ok())
        },
        |made, has_succeeded, case| {
            assert_others_go_on(made, case);
            let after = of_found(made);
            assert_eq!(after.is_none(), has_succeeded, "{case}");
            if let Some((record, cpus, mems)) = after {
                assert_eq!((&cpus, &mems), (&before.1, &before.2), "{case}");
                assert_eq!(record.parts, before.0.parts, "{case}");
            }
        },
    );
}

#[test]
fn a_reservation_is_adopted_or_waits_for_its_domain() {
    let reserve = |made: &Made| {
        let bytes = [(NodeId(3), 100 * MIB)].into();
        let vcpus = [(NodeId(3), 1)].into();
        let name = "numad-1".into();
        let wanted = Reservation { name, bytes, vcpus, ..Reservation::default() };
        made.host().begin().unwrap().apply(&reserving(wanted)).unwrap();
        made.group("vm");
    };
    let described =
        Described { name: "vm".into(), asked_numad: true, vcpus: 1, memory_bytes: 100 * MIB };
    let newcomer = || Newcomer {
        cgroup: "/nearside/vm".into(),
        nodes: nodes(3),
        vcpus: Some(1),
        started_boottime_s: 100,
        described: Some(described.clone()),
    };
    at_each_write(
        reserve,
        |made| {
            let mut host = made.host();
            let adopted = host.begin().and_then(|mut session| session.adopt(&[newcomer()]));
            adopted.is_ok_and(|adopted| adopted[0].outcome.is_ok())
        },
        |made, has_succeeded, case| {
            let host = made.host();
            let all = host.store.reservations(&host.tree);
            let [reservation] = &all[..] else { panic!("{case}: {all:?}") };
            assert_eq!(reservation.owner().is_some(), has_succeeded, "{case}");
            assert_eq!(reservation.bytes, [(NodeId(3), 100 * MIB)].into(), "{case}");
            assert_others_go_on(made, case);
        },
    );
}

/// Lets the made-up host show this process, which moves the memory of domain `a`.
fn begin_move(made: &Made) -> Option<OwnMove> {
    fs::create_dir_all(made.path("proc")).unwrap();
    let shown = made.path(&format!("proc/{}", std::process::id()));
    let _ = symlink("/proc/self", shown);
    let pages = PageMove { part: "a".into(), nodes: nodes(0), rate_bytes_per_s: None, batch: None };
    let mut host = made.host();
    host.begin().ok().and_then(|mut session| session.begin_move(&pages).ok())
}

/// The destination of `a`'s memory, and whether a process moves it.
fn moving(made: &Made) -> (Option<NodeSet>, bool) {
    let state = made.state();
    let (record, ..) = state.iter().find(|(record, ..)| record.name == "a").unwrap();
    (record.part().moving_to.clone(), record.part().mover.is_some())
}

#[test]
fn a_move_of_memory_is_recorded_or_does_not_begin() {
    at_each_write(
        |_| (),
        |made| begin_move(made).is_some(),
        |made, has_succeeded, case| {
            let expected = (has_succeeded.then(|| nodes(0)), has_succeeded);
            assert_eq!(moving(made), expected, "{case}");
            assert_others_go_on(made, case);
        },
    );
}

#[test]
fn a_domain_is_bound_or_unbound_as_its_record_says() {
    let change = |made: &Made, is_to_bind: bool| {
        let mut host = made.host();
        host.begin().is_ok_and(|mut session| match is_to_bind {
            true => session.bind_to_home("a").is_ok_and(|is_bound| is_bound),
            false => session.unbind("a").is_ok_and(|was_bound| was_bound),
        })
    };
    let of_a = |made: &Made| {
        let (record, cpus, _) = made.state().swap_remove(0);
        (record.part().cpus.is_some(), cpus)
    };
    for is_to_bind in [false, true] {
        at_each_write(
            |made| assert!(!is_to_bind || change(made, false)),
            |made| change(made, is_to_bind),
            |made, has_succeeded, case| {
                assert_others_go_on(made, case);
                let is_bound = is_to_bind == has_succeeded;
                let (is_recorded, in_force) = of_a(made);
                assert_eq!(is_recorded, is_bound, "{case}");
                assert_eq!(in_force == cpus(0).to_string(), is_bound, "{case}: {in_force}");
            },
        );
    }
}

/// The later one is on another domain, under the same lock, when writes succeed again.
#[test]
fn a_transaction_after_one_that_cannot_be_undone_keeps_its_journal() {
    let mut undone_later = 0;
    for first in 0.. {
        let made = with_arguments();
        let (before, transaction) = (made.state(), exchange(&made, 100));
        let mut host = made.host();
        let later = Transaction::new(going("c", 3, 100), &host.observe_from(None).unwrap());
        let mut session = host.begin().unwrap();
        fault::inject(Errno::IO, Box::new(move |at| at >= first));
        let applied = session.apply(&transaction);
        if fault::end() == 0 {
            applied.unwrap();
            break;
        }
        let is_left = made.journal().exists();
        assert_eq!(session.apply(&later).is_err(), is_left, "write {first}");
        assert_eq!(made.journal().exists(), is_left, "write {first}");
        drop(session);
        drop(made.host().begin().unwrap());
        assert!(!made.journal().exists(), "write {first}");
        assert!(made.state()[..2] == before[..2], "write {first}");
        undone_later += usize::from(is_left);
    }
    assert!(undone_later > 0);
}

#[test]
fn a_roll_back_that_meets_a_fault_is_completed_later() {
    let fresh = with_arguments();
    let bindings = |made: &Made| -> Vec<_> {
        let of_two = made.state().into_iter().filter(|(record, ..)| record.name != "c");
        of_two.map(|(record, cpus, mems)| (record.parts, cpus, mems)).collect()
    };
    let before = bindings(&fresh);
    at_each_write(
        |made| kill(made, &exchange(made, 100), 8, 2),
        |made| made.host().begin().is_ok(),
        |made, _, case| {
            assert_others_go_on(made, case);
            assert!(bindings(made) == before, "{case}");
            assert!(!made.journal().exists(), "{case}");
        },
    );
}

#[test]
fn the_end_of_a_move_narrows_memory_or_keeps_the_nodes_allowed() {
    let own = RefCell::new(None);
    let end = |made: &Made| {
        let own = own.borrow();
        let seen = made.host().observe_from(None).unwrap();
        let narrowing = Transaction::new(going("a", 2, 100), &seen);
        let mut host = made.host();
        let session = host.begin();
        session
            .is_ok_and(|mut it| it.end_move(own.as_ref().unwrap(), Some(&narrowing), true).is_ok())
    };
    let mems_of_a = |made: &Made| made.state().swap_remove(0).2;
    at_each_write(
        |made| *own.borrow_mut() = begin_move(made),
        end,
        |made, has_succeeded, case| {
            assert_others_go_on(made, case);
            let (destination, has_mover) = moving(made);
            assert_eq!(destination.is_none(), has_succeeded, "{case}");
            // A move whose end alone is not recorded has confined the memory all the same.
            let home = made.state().swap_remove(0).0.part().home.nodes.clone();
            assert_eq!(mems_of_a(made), home.to_string(), "{case}");
            // Without a mover it has ended, and can be taken up by another command.
            assert!(!has_mover || end(made), "{case}");
        },
    );
}

#[test]
fn the_end_of_a_move_that_is_not_recorded_is_tried_again() {
    let own = RefCell::new(None);
    let end = |made: &Made| {
        let own = own.borrow();
        let own = own.as_ref().unwrap();
        made.host().begin().is_ok_and(|mut session| session.end_move(own, None, true).is_ok())
    };
    at_each_write(
        |made| *own.borrow_mut() = begin_move(made),
        end,
        |made, has_succeeded, case| {
            let expected = if has_succeeded { (None, false) } else { (Some(nodes(0)), true) };
            assert_eq!(moving(made), expected, "{case}");
            assert_others_go_on(made, case);
            assert!(has_succeeded || end(made), "{case}");
            assert_eq!(moving(made), (None, false), "{case}");
        },
    );
}
