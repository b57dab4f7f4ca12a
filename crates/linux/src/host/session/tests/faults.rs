//! Disks that are full, read-only or broken, at each write of the store and of cgroups.

use super::{Made, exchange, going};
use crate::fault;
use nearside_policy::{Reservation, Transaction};
use nearside_topology::NodeId;
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
const ERRORS: [Errno; 4] = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO];

/// Runs `change` on a new host for each of its writes, so that this write fails, or this and all
/// later ones. Then the fault ends, and `check` learns whether the change has reported success.
fn at_each_write(change: impl Fn(&Made) -> bool, check: impl Fn(&Made, bool, &str)) {
    for errno in ERRORS {
        for failing in [1, usize::MAX] {
            for before in 0.. {
                let made = Made::new();
                made.domain("a", 0, 100);
                made.domain("b", 1, 100);
                made.domain("c", 2, 100);
                made.file("proc/uptime", "100.00 1.00\n");
                fault::inject(before, failing, errno);
                let has_succeeded = change(&made);
                if !fault::end() {
                    assert!(has_succeeded && before > 0, "without a fault");
                    break;
                }
                let case = format!("{errno} at write {before} and {} more", failing - 1);
                check(&made, has_succeeded, &case);
            }
        }
    }
}

/// Asserts that other domains start and change.
fn assert_others_go_on(made: &Made, case: &str) {
    let mut host = made.host();
    let moved = Transaction::new(going("c", 3, 100), &host.observe_from(None).unwrap());
    let mut session = host.begin().unwrap_or_else(|error| panic!("{case}: {error}"));
    session.apply(&moved).unwrap_or_else(|refusal| panic!("{case}: {refusal}"));
    let bytes = [(NodeId(2), 200 * MIB)].into();
    let wanted = Reservation { name: "new".into(), bytes, ..Reservation::default() };
    session.reserve(&wanted, 60).unwrap_or_else(|why| panic!("{case}: {why}"));
}

#[test]
fn an_exchange_is_whole_or_undone_and_others_go_on_as_soon_as_there_is_space() {
    let state = |made: &Made| -> Vec<_> {
        let all = made.state().into_iter();
        let of_two = all.filter(|(record, ..)| record.name != "c");
        of_two.map(|(record, cpus, mems)| (record.parts, cpus, mems)).collect()
    };
    let fresh = Made::new();
    fresh.domain("a", 0, 100);
    fresh.domain("b", 1, 100);
    let before = state(&fresh);
    fresh.host().begin().unwrap().apply(&exchange(&fresh, 100)).unwrap();
    let after = state(&fresh);
    at_each_write(
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
        |made| {
            let mut host = made.host();
            let bytes = [(NodeId(3), 100 * MIB)].into();
            let wanted = Reservation { name: "numad-1".into(), bytes, ..Reservation::default() };
            host.begin().is_ok_and(|mut session| session.reserve(&wanted, 60).is_ok())
        },
        |made, has_succeeded, case| {
            assert_eq!(names(made).len(), usize::from(has_succeeded), "{case}");
            assert_others_go_on(made, case);
        },
    );
}
