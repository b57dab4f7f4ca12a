//! Reservations and domains in one transaction.

use super::*;
use nearside_policy::{CgroupId, Reservation, Until};

pub(super) fn wanted(name: &str, node: u32, mib: u64) -> Reservation {
    let bytes = [(NodeId(node), mib * MIB)].into();
    Reservation { name: name.into(), bytes, ..Reservation::default() }
}

/// Node 1 is reserved as `text`, `numad-1` waits for its domain, and `a` is on node 0. The host
/// shows this process.
fn made() -> Made {
    let made = Made::new();
    made.file("proc/uptime", "100.00 1.00\n");
    symlink("/proc/self", made.path(&format!("proc/{}", std::process::id()))).unwrap();
    made.domain("a", 0, 300);
    for wanted in [wanted("text", 1, 400), wanted("numad-1", 2, 50)] {
        let reserve = Transaction::reserving(wanted, Until::Seconds(60), &Observation::default());
        made.host().begin().unwrap().apply(&reserve).unwrap();
    }
    made
}

/// `text` ends, `a` takes its node, with `numad-1` and this process as the one that moves its
/// memory, and another reservation takes what is left.
fn transaction(made: &Made) -> Transaction {
    let seen = made.host().observe_from(None).unwrap();
    let step = |action| Step { action, reason: Reason::NotNeeded };
    let release = step(Action::Release { name: "text".into() });
    let until = Until::Seconds(60);
    let reserve = step(Action::Reserve { reservation: wanted("rest", 1, 100), until });
    let cgroup = CgroupId(made.state()[0].0.inode);
    let (name, owner) = ("numad-1".into(), "/nearside/a".into());
    let adopt = step(Action::Adopt { name, owner, cgroup });
    let (part, nodes) = ("a".into(), nodes(1));
    let move_memory = step(Action::BeginMove { part, nodes, rate_bytes_per_s: None });
    let steps = [vec![release, adopt], going("a", 1, 300), vec![move_memory, reserve]].concat();
    Transaction::new(steps, &seen)
}

/// The records of a host, and the bindings in force.
#[derive(Debug, PartialEq)]
struct State {
    /// Domains with their bindings.
    domains: Vec<(Record, String, String)>,
    /// The names, owners and MiB of reservations.
    reservations: Vec<(String, Option<String>, u64)>,
}

fn state(made: &Made) -> State {
    let each = |it: Reservation| (it.name, it.owner, it.bytes.values().sum::<u64>() / MIB);
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
    let owner = Some("/nearside/a".into());
    assert_eq!(reservations, [("numad-1".into(), owner, 50), ("rest".into(), None, 100)]);
    let part = domains[0].0.part();
    assert_eq!(part.mover.as_ref().map(|mover| mover.pid), Some(std::process::id()));
    assert_eq!(part.moving_to, Some(nodes(1)));
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
    for (steps, records) in (0..steps).map(|steps| (steps, 0)).chain((0..=4).map(|n| (steps, n))) {
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
        let mut adopt = |owner: &Record| {
            let cgroup = CgroupId(owner.inode);
            let (name, owner) = ("text".into(), owner.cgroup.clone());
            let action = Action::Adopt { name, owner, cgroup };
            let steps = vec![Step { action, reason: Reason::DomainStarted }];
            let reservation = session.reservation("text").unwrap().unwrap();
            session
                .apply(&Transaction::new(steps, &crate::host::reservations::observed(&reservation)))
        };
        let ended = Record { inode: 1, ..owner.clone() };
        assert_eq!(adopt(&ended).unwrap_err().to_string(), "/nearside/b has ended");
        adopt(&owner).unwrap();
        assert!(!session.release("text").unwrap());
        assert!(!session.release("none").unwrap());
    }
    let owner = Some("/nearside/b".into());
    assert!(state(&made).reservations.contains(&("text".into(), owner, 400)));
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
