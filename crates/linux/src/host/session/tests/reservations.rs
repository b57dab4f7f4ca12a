//! Reservations and domains in one transaction.

use super::*;
use nearside_policy::{Reservation, Until};

fn wanted(name: &str, node: u32, mib: u64) -> Reservation {
    let bytes = [(NodeId(node), mib * MIB)].into();
    Reservation { name: name.into(), bytes, ..Reservation::default() }
}

/// Node 1 is reserved as `text`, and `a` is on node 0.
fn made() -> Made {
    let made = Made::new();
    made.file("proc/uptime", "100.00 1.00\n");
    made.domain("a", 0, 300);
    let reserve =
        Transaction::reserving(wanted("text", 1, 400), Until::Seconds(60), &Observation::default());
    made.host().begin().unwrap().apply(&reserve).unwrap();
    made
}

/// The reservation ends, `a` takes its node, and another reservation takes what is left.
fn transaction(made: &Made) -> Transaction {
    let seen = made.host().observe_from(None).unwrap();
    let step = |action| Step { action, reason: Reason::NotNeeded };
    let release = step(Action::Release { name: "text".into() });
    let until = Until::Seconds(60);
    let reserve = step(Action::Reserve { reservation: wanted("rest", 1, 100), until });
    let steps = [vec![release], going("a", 1, 300), vec![reserve]].concat();
    Transaction::new(steps, &seen)
}

/// The records of a host, and the bindings in force.
#[derive(Debug, PartialEq)]
struct State {
    /// Domains with their bindings.
    domains: Vec<(Record, String, String)>,
    /// The names and MiB of reservations.
    reservations: Vec<(String, u64)>,
}

fn state(made: &Made) -> State {
    let each = |it: Reservation| (it.name, it.bytes.values().sum::<u64>() / MIB);
    let reservations = made.host().reservations().into_iter().map(each).collect();
    State { domains: made.state(), reservations }
}

#[test]
fn a_domain_and_reservations_change_together() {
    let made = made();
    made.host().begin().unwrap().apply(&transaction(&made)).unwrap();
    let State { domains, reservations } = state(&made);
    assert_eq!(domains[0].0.part().home.nodes, nodes(1));
    assert_eq!((&*domains[0].1, &*domains[0].2), ("2-3", "1"));
    assert_eq!(reservations, [("rest".into(), 100)]);
    assert!(!made.journal().exists());
}

#[test]
fn a_refused_step_of_a_domain_takes_the_reservations_back() {
    for file in ["cpuset.mems", "cpuset.cpus"] {
        let made = made();
        let (before, transaction) = (state(&made), transaction(&made));
        made.refuse("a", file);
        let refusal = made.host().begin().unwrap().apply(&transaction).unwrap_err();
        assert!(refusal.to_string().contains("is not in force"), "{refusal}");
        made.obey("a", file);
        assert_eq!(state(&made), before, "{file}");
        assert!(!made.journal().exists());
    }
}

#[test]
fn a_process_killed_at_any_step_leaves_the_reservations_that_were() {
    let steps = transaction(&made()).steps.len();
    for (steps, records) in (0..steps).map(|steps| (steps, 0)).chain((0..=3).map(|n| (steps, n))) {
        let made = made();
        let before = state(&made);
        kill(&made, &transaction(&made), steps, records);
        assert!(made.journal().exists());
        drop(made.host().begin().unwrap());
        assert_eq!(state(&made), before, "{steps} steps, {records} records");
        assert!(!made.journal().exists());
    }
}

#[test]
fn a_reservation_that_a_domain_has_adopted_is_not_released() {
    let made = made();
    let owner = made.domain("b", 2, 100);
    {
        let mut host = made.host();
        let mut session = host.begin().unwrap();
        let adopted = session.reservation("text").unwrap().unwrap();
        let adopted = crate::store::Reservation { lifetime: owner.lifetime(), ..adopted };
        session.lock.reserve(&adopted).unwrap();
        assert!(!session.release("text").unwrap());
        assert!(!session.release("none").unwrap());
    }
    assert_eq!(state(&made).reservations, [("text".into(), 400)]);
    let late = Transaction::new(
        vec![Step { action: Action::Release { name: "text".into() }, reason: Reason::NotNeeded }],
        &Observation::default(),
    );
    let refusal = made.host().begin().unwrap().apply(&late).unwrap_err().to_string();
    assert_eq!(refusal, "reservation text belongs to /nearside/b by now");
    made.file("cg/nearside/b/cgroup.events", "populated 0\n");
    drop(made.host().begin().unwrap());
    let refusal = made.host().begin().unwrap().apply(&late).unwrap_err().to_string();
    assert_eq!(refusal, "reservation text has ended");
}

#[test]
fn a_reservation_lasts_as_long_as_the_transaction_says() {
    let made = made();
    let own = symlink("/proc/self", made.path(&format!("proc/{}", std::process::id())));
    own.unwrap();
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    let seen = session.observe(None).unwrap();
    let reserve = Transaction::reserving(wanted("copies", 2, 10), Until::ProcessEnds, seen);
    session.apply(&reserve).unwrap();
    let expiry = |session: &Session<'_>, name: &str| session.reservation(name).unwrap().unwrap();
    let (term, lease) = (expiry(&session, "text"), expiry(&session, "copies"));
    let Lifetime::Term { expires_boottime_s: 160, .. } = term.lifetime else {
        panic!("{:?}", term.lifetime)
    };
    let own_pid = std::process::id();
    let Lifetime::Lease { pid, expires_unix_s: None, .. } = lease.lifetime else {
        panic!("{:?}", lease.lifetime)
    };
    assert_eq!(pid, own_pid);
    assert!(session.release("copies").unwrap());
    assert!(session.reservation("copies").unwrap().is_none());
}
