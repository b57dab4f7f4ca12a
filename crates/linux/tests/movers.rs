//! Two that would move the same memory, `set --move-memory` and the daemon, on a made-up host.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Made, home};
use nearside_linux::{
    Host, Refusal,
    store::{Known, Mover, Record, Store},
};
use nearside_policy::{
    Action, Batch, Home, MemoryPolicy, Observation, Outcome, PageMove, Reason, Step, Transaction,
};
use nearside_topology::{NodeId, NodeSet};
use std::{
    fs,
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// A domain of Nearside's own tree, whose cpuset Nearside may narrow.
const DB: &str = "/nearside/db";

/// The process of another command.
const OTHER: u32 = 9_000_002;

fn nodes(nodes: &[u32]) -> NodeSet {
    nodes.iter().map(|&node| NodeId(node)).collect()
}

/// A strict domain with its home on node 1 that may have memory on both nodes.
fn made() -> Made {
    let made = Made::new("cpuset memory");
    made.file("cg/nearside/db/cgroup.events", "populated 1\n");
    made.file("cg/nearside/db/cgroup.procs", "9000001\n");
    made.file("cg/nearside/db/cpuset.mems", "\n");
    made.file("cg/nearside/db/cpuset.mems.effective", "1\n");
    made.runs(std::process::id());
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    session.found(DB, "*/*");
    let home = Home { policy: MemoryPolicy::Strict, ..home(&[1]) };
    let action = Action::SetHome { part: DB.into(), home };
    let steps = vec![Step { action, reason: Reason::Placed }];
    session.apply(&Transaction::new(steps, &Observation::default())).unwrap();
    drop(session);
    made.change(|record| record.part_mut().memory_nodes = Some(nodes(&[0, 1])));
    made
}

impl Made {
    fn runs(&self, pid: u32) {
        let stat = format!("{pid} (nearside) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n");
        self.file(&format!("proc/{pid}/stat"), &stat);
    }

    fn ends(&self, pid: u32) {
        fs::remove_file(self.path(&format!("proc/{pid}/stat"))).unwrap();
    }

    fn store(&self) -> Store {
        Store::new(&self.path("run/nearside"), "b").with_proc(&self.path("proc"))
    }

    fn record(&self) -> Record {
        self.host().record(DB).unwrap().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        let mut record = self.record();
        change(&mut record);
        self.store().lock().unwrap().put(&record).unwrap();
    }

    /// The destination and the process of the move in the record.
    fn moves(&self) -> (Option<NodeSet>, Option<u32>) {
        let part = self.record().part().clone();
        (part.moving_to, part.mover.map(|mover| mover.pid))
    }
}

/// All of the domain's pages go home, at 4 MiB/s.
fn all_pages() -> PageMove {
    let (part, nodes) = (DB.into(), nodes(&[1]));
    PageMove { part, nodes, rate_bytes_per_s: Some(4 << 20), batch: None }
}

fn batch() -> PageMove {
    let batch = Some(Batch { from: NodeId(0), max_bytes: 1 << 20 });
    PageMove { rate_bytes_per_s: Some(1 << 30), batch, ..all_pages() }
}

/// Moves the batches that have begun. The kernel has no process of such numbers, so nothing moves.
fn move_all(host: &mut Host, mut begun: nearside_linux::Batches) -> Vec<(PageMove, Outcome)> {
    let later = Instant::now() + Duration::from_secs(3600);
    host.move_batches(&mut begun, later, &|| ControlFlow::Continue(()));
    host.end_batches(begun)
}

fn confine(reason: Reason) -> Vec<Step> {
    let action = Action::ConfineMemory { part: DB.into(), nodes: nodes(&[1]) };
    vec![Step { action, reason }]
}

#[test]
fn the_daemon_leaves_memory_to_its_mover_until_that_ends() {
    let made = made();
    let mut daemon = made.host();
    let (begun, refused) = daemon.begin_batches(&[batch()]);
    assert!(refused.is_empty() && begun.is_busy());
    let seen = daemon.begin().unwrap().state_of(&made.record());
    let arrived = Transaction::new(confine(Reason::Arrived), &seen);

    made.host().begin().unwrap().begin_move(&all_pages()).unwrap();
    let own = std::process::id();
    assert_eq!(made.moves(), (Some(nodes(&[1])), Some(own)));
    assert_eq!(made.record().part().mover.as_ref().unwrap().rate_bytes_per_s, Some(4 << 20));
    // Neither a batch that has begun, nor another, nor a decision of before goes on.
    let ended = move_all(&mut daemon, begun);
    assert!(
        matches!(ended[..], [(_, Outcome::Partly { moved_bytes: 0, interrupted: true, .. })]),
        "{ended:?}"
    );
    let (_, refused) = daemon.begin_batches(&[batch()]);
    let says = format!("process {own} moves the memory of {DB}");
    assert!(matches!(&refused[..], [(_, Outcome::Refused { why })] if *why == says), "{refused:?}");
    let mut session = daemon.begin().unwrap();
    assert_eq!(session.apply(&arrived).unwrap_err().to_string(), says);
    assert!(!session.forget_interrupted_moves(DB).unwrap(), "it is not interrupted");
    drop(session);

    // The command is killed.
    made.ends(own);
    assert_eq!(made.moves(), (Some(nodes(&[1])), None));
    let (begun, refused) = daemon.begin_batches(&[batch()]);
    assert!(refused.is_empty(), "{refused:?}");
    let ended = move_all(&mut daemon, begun);
    assert!(matches!(ended[..], [(_, Outcome::Applied { .. })]), "{ended:?}");
    let mut session = daemon.begin().unwrap();
    session.apply(&arrived).unwrap();
    assert!(session.forget_interrupted_moves(DB).unwrap());
    assert!(!session.forget_interrupted_moves(DB).unwrap(), "there is none any more");
    drop(session);
    assert_eq!(made.moves(), (None, None));
}

#[test]
fn a_move_ends_well_whatever_else_of_the_record_has_changed() {
    for (is_complete, narrows, left) in
        [(true, true, None), (true, false, None), (false, false, Some(nodes(&[1])))]
    {
        let made = made();
        let mut host = made.host();
        let own = host.begin().unwrap().begin_move(&all_pages()).unwrap();
        let seen = host.begin().unwrap().state_of(&made.record());
        let policy = MemoryPolicy::Strict;
        let narrowing = Transaction::new(confine(Reason::PolicyConfines { policy }), &seen);
        // A daemon of an earlier version confines it, and an operator gives the home back.
        made.change(|record| {
            let part = record.part_mut();
            part.memory_nodes = Some(nodes(&[1]));
            part.home.origin = nearside_policy::Origin::Explicit;
        });
        let mut session = host.begin().unwrap();
        session.end_move(&own, narrows.then_some(&narrowing), is_complete).unwrap();
        drop(session);
        assert_eq!(made.moves(), (left, None));
        assert_eq!(made.record().part().memory_nodes, Some(nodes(&[1])));
    }
}

#[test]
fn a_refused_confinement_leaves_the_destination_and_no_mover() {
    let made = made();
    let mut host = made.host();
    let own = host.begin().unwrap().begin_move(&all_pages()).unwrap();
    // The made-up kernel keeps another set in force.
    made.file("cg/nearside/db/cpuset.mems.effective", "0\n");
    let seen = host.begin().unwrap().state_of(&made.record());
    let narrowing = Transaction::new(confine(Reason::Placed), &seen);
    let ended = host.begin().unwrap().end_move(&own, Some(&narrowing), true);
    assert!(matches!(ended, Err(Refusal::Step { .. })), "{ended:?}");
    assert_eq!(made.moves(), (Some(nodes(&[1])), None));
}

#[test]
fn another_home_or_another_mover_ends_a_move_with_the_reason() {
    let made = made();
    made.runs(OTHER);
    let mut host = made.host();
    let own = host.begin().unwrap().begin_move(&all_pages()).unwrap();
    let other = Mover { pid: OTHER, start_time_ticks: 77, rate_bytes_per_s: None };
    made.change(|record| record.part_mut().mover = Some(other));
    let moved = |host: &mut Host| {
        let pages = &all_pages();
        format!("{:?}", host.move_memory(&own, pages, &mut |_| ControlFlow::Continue(())))
    };
    let end =
        |host: &mut Host| host.begin().unwrap().end_move(&own, None, true).unwrap_err().to_string();
    let says = format!("process {OTHER} moves its memory now");
    assert_eq!(end(&mut host), says);
    assert!(moved(&mut host).contains(&says));
    assert_eq!(made.moves(), (Some(nodes(&[1])), Some(OTHER)), "it is the other's");
    // The later command takes over.
    host.begin().unwrap().begin_move(&all_pages()).unwrap();
    assert_eq!(made.moves().1, Some(std::process::id()));

    // Another home ends it, and no move to the former one begins.
    let action = Action::SetHome { part: DB.into(), home: home(&[0]) };
    let mut session = host.begin().unwrap();
    let seen = session.state_of(&made.record());
    let steps = vec![Step { action, reason: Reason::Placed }];
    session.apply(&Transaction::new(steps, &seen)).unwrap();
    let why = session.begin_move(&all_pages()).unwrap_err().to_string();
    assert_eq!(why, format!("another command has changed the home of {DB} to node 0"));
    drop(session);
    assert_eq!(made.moves(), (None, None));
    let says = "another command has given it the home on node 0";
    assert_eq!(end(&mut host), says);
    assert!(moved(&mut host).contains(says));
    assert_eq!(made.moves(), (None, None));
}

#[test]
fn known_records_lose_a_mover_that_has_ended_although_no_file_changes() {
    let made = made();
    made.runs(OTHER);
    let other = Mover { pid: OTHER, start_time_ticks: 77, rate_bytes_per_s: None };
    made.change(|record| {
        record.part_mut().moving_to = Some(nodes(&[1]));
        record.part_mut().mover = Some(other);
    });
    let before = std::time::SystemTime::now() - Duration::from_secs(5);
    let domains = fs::File::open(made.path("run/nearside/domains")).unwrap();
    domains.set_modified(before).unwrap();
    let (store, mut known) = (made.store(), Known::default());
    let pid = |known: &Known| {
        known.records(&store).next().unwrap().part().mover.as_ref().map(|mover| mover.pid)
    };
    assert!(known.refresh(&store).unwrap());
    assert!(!known.refresh(&store).unwrap(), "nothing has changed");
    assert_eq!(pid(&known), Some(OTHER));
    made.ends(OTHER);
    assert!(known.refresh(&store).unwrap());
    assert_eq!(pid(&known), None);
    assert!(!known.refresh(&store).unwrap());
}

#[test]
fn a_record_without_a_mover_is_as_earlier_versions_wrote_it() {
    let made = made();
    made.change(|record| record.part_mut().moving_to = Some(nodes(&[1])));
    let path = made.path("run/nearside/domains/%2Fnearside%2Fdb.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"moving_to\": \"1\"") && !text.contains("mover"), "{text}");
    assert_eq!(made.moves(), (Some(nodes(&[1])), None));
}
