//! The daemon's changes of domains, on a made-up host.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Made, home};
use nearside_linux::{
    Host, Refusal, Waiting,
    store::{CpuBinding, Record, Store},
    wants_fallback,
};
use nearside_policy::{
    Action, Affinity, Batch, Claim, CpuReason, Home, Machine, Origin, Outcome, PageMove, PartId,
    Reason, Step, Transaction,
};
use nearside_topology::{CpuId, CpuSet, NodeId, NodeSet};
use std::{
    fs,
    ops::ControlFlow,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::{Duration, Instant},
};

fn made() -> Made {
    Made::new("cpuset memory")
}

impl Made {
    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Whether a group's cpuset names CPUs. The kernel takes each write as a whole; a plain file
    /// keeps the rest.
    fn bound(&self, path: &str) -> bool {
        !self.read(&format!("cg{path}/cpuset.cpus")).starts_with('\n')
    }

    /// A group with a process and a cpuset, which the made-up kernel puts in force before it is
    /// written.
    fn group(&self, path: &str, cpus_in_force: &str) {
        self.file(&format!("cg/{path}/cgroup.events"), "populated 1\n");
        self.file(&format!("cg/{path}/cpuset.cpus"), "\n");
        self.file(&format!("cg/{path}/cpuset.cpus.effective"), cpus_in_force);
    }

    /// A domain of that path with a home on node 1, found, and changed by `change`.
    fn found(&self, path: &str, change: impl FnOnce(&mut Record)) {
        if self.host().record(path).unwrap().is_none() {
            self.settle(path, &[1]).unwrap();
        }
        let mut record = self.record(path);
        change(&mut record);
        let locked = self.store().lock().unwrap();
        locked.put(&record).unwrap();
    }

    fn store(&self) -> Store {
        Store::new(&self.path("run/nearside"), "b")
    }

    /// Gives a cgroup that a pattern found a home.
    fn settle(&self, path: &str, on: &[u32]) -> Result<(), Refusal> {
        let mut host = self.host();
        let mut session = host.begin().unwrap();
        session.found(path, "*/*");
        let action = Action::SetHome { part: path.into(), home: home(on) };
        let seen = session.record(path).unwrap().map(|record| session.state_of(&record));
        let steps = vec![Step { action, reason: Reason::Placed }];
        session.apply(&Transaction::new(steps, &seen.unwrap_or_default()))
    }

    /// Applies one step to a recorded domain.
    fn apply(&self, path: &str, action: Action) -> Result<(), String> {
        let mut host = self.host();
        let mut session = host.begin().unwrap();
        let seen = session.state_of(&session.record(path).unwrap().unwrap());
        let steps = vec![Step { action, reason: Reason::Placed }];
        session.apply(&Transaction::new(steps, &seen)).map_err(|refusal| refusal.to_string())
    }

    fn bind(&self, path: &str) -> Result<bool, String> {
        let mut host = self.host();
        let bound = host.begin().unwrap().bind_to_home(path);
        bound.map_err(|refusal| refusal.to_string())
    }

    fn unbind(&self, path: &str) -> bool {
        self.host().begin().unwrap().unbind(path).unwrap()
    }

    fn record(&self, name: &str) -> Record {
        self.host().record(name).unwrap().unwrap()
    }
}

fn nodes(nodes: &[u32]) -> NodeSet {
    nodes.iter().map(|&node| NodeId(node)).collect()
}

fn cpus(cpus: &[u32]) -> CpuSet {
    cpus.iter().map(|&cpu| CpuId(cpu)).collect()
}

fn refused(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { why: said } if said.contains(why)), "{outcome:?}");
}

#[test]
fn a_found_group_gets_a_record_with_its_first_home_and_no_claim() {
    let made = made();
    made.group("m/vm", "0-3");
    assert!(made.settle("/m/none", &[0]).unwrap_err().to_string().contains("has ended"));
    assert!(made.host().record("/m/vm").unwrap().is_none(), "nothing has changed yet");
    made.settle("/m/vm", &[1]).unwrap();
    let claim = Claim { bytes: [(NodeId(1), 7)].into(), ..Claim::default() };
    made.apply("/m/vm", Action::Claim { part: "/m/vm".into(), claim }).unwrap();
    let record = made.record("/m/vm");
    assert_eq!(
        (&record.part().claim, record.found_by.as_deref(), &record.part().home),
        (&None, Some("*/*"), &home(&[1]))
    );
    made.settle("/m/vm", &[0]).unwrap();
    assert_eq!(made.record("/m/vm").part().home, home(&[0]));
}

#[test]
fn a_cgroup_of_another_owner_is_not_bound() {
    let made = made();
    fs::create_dir_all(made.path("run/systemd/system")).unwrap();
    for (path, owner) in [
        ("/kubepods.slice/pod1.slice", "kubelet"),
        ("/machine.slice/machine-qemu\\x2d1.scope", "libvirt"),
        ("/a.service/payload", "another program"),
    ] {
        made.group(&path[1..], "0-3");
        made.found(path, |_| {});
        let (part, on_behalf) = (|| PartId::of(path), CpuReason::Fallback);
        let bind = Action::BindCpus { part: part(), cpus: cpus(&[2, 3]), on_behalf };
        let confine = Action::ConfineMemory { part: part(), nodes: nodes(&[1]) };
        for why in [made.apply(path, bind), made.apply(path, confine), made.bind(path).map(drop)] {
            let why = why.unwrap_err();
            assert!(why.contains(&format!("a cgroup of {owner}")), "{why}");
        }
        assert_eq!((made.record(path).part().cpus.clone(), made.bound(path)), (None, false));
    }
}

/// A domain of Nearside's own tree: without systemd, Nearside may bind only these.
const OWN: &str = "/nearside/x";

#[test]
fn a_fallback_binding_is_made_and_lifted_with_its_record() {
    let made = made();
    made.group("nearside/x", "2-3\n");
    made.found(OWN, |_| {});
    assert!(!made.unbind(OWN), "nothing is bound");
    assert!(made.bind(OWN).unwrap());
    assert_eq!(made.read("cg/nearside/x/cpuset.cpus"), "2-3");
    let binding = CpuBinding { cpus: cpus(&[2, 3]), on_behalf: CpuReason::Fallback };
    assert_eq!(made.record(OWN).part().cpus, Some(binding));
    assert!(!made.bind(OWN).unwrap(), "it is bound");
    assert!(made.unbind(OWN));
    assert_eq!((made.record(OWN).part().cpus.clone(), made.bound("/nearside/x")), (None, false));
    assert!(!made.unbind("none") && !made.bind("none").unwrap());
}

/// The same process moves pages, and binds before and after.
#[test]
fn a_cpu_that_goes_offline_after_pages_have_moved_is_not_bound_again() {
    let made = made();
    made.group("nearside/x", "2-3\n");
    made.file("cg/nearside/x/cgroup.procs", "9000001\n");
    made.found(OWN, |_| {});
    let mut host = made.host();
    let known = host.topology().unwrap();
    let cpus_bound = |host: &mut Host| {
        host.begin().unwrap().bind_to_home(OWN).unwrap();
        made.record(OWN).part().cpus.clone().map(|binding| binding.cpus)
    };
    assert_eq!(cpus_bound(&mut host), Some(cpus(&[2, 3])));
    let pages = PageMove {
        part: OWN.into(),
        nodes: nodes(&[1]),
        rate_bytes_per_s: None,
        batch: Some(Batch { from: NodeId(0), max_bytes: 1 << 20 }),
    };
    let (mut begun, refused) = host.begin_batches(&[pages]);
    let later = Instant::now() + Duration::from_secs(3600);
    host.move_batches(&mut begun, later, &|| ControlFlow::Continue(()));
    assert_eq!((host.end_batches(begun).len(), refused.len()), (1, 0));

    made.file("sys/devices/system/cpu/online", "0-2\n");
    made.file("cg/nearside/x/cpuset.cpus.effective", "2\n");
    let mut session = host.begin().unwrap();
    let seen = session.observe(Some(&known)).unwrap().topology.clone();
    assert_eq!(seen.cpus_of_nodes(&nodes(&[1])), cpus(&[2]));
    assert!(session.unbind(OWN).unwrap(), "the binding is still Nearside's own");
    drop(session);
    made.file("cg/nearside/x/cpuset.cpus", "\n");
    assert_eq!(cpus_bound(&mut host), Some(cpus(&[2])));
    assert_eq!(made.read("cg/nearside/x/cpuset.cpus"), "2");
}

#[test]
fn a_binding_that_does_not_come_into_force_is_not_recorded() {
    let made = made();
    made.group("nearside/x", "0-1\n");
    made.found(OWN, |_| {});
    let why = made.bind(OWN).unwrap_err();
    assert!(why.contains("is not in force"), "{why}");
    assert_eq!((made.record(OWN).part().cpus.clone(), made.bound(OWN)), (None, false));
}

#[test]
fn a_binding_or_home_of_an_operator_stays() {
    let made = made();
    made.group("nearside/x", "2-3\n");
    let binding = CpuBinding { cpus: cpus(&[2]), on_behalf: CpuReason::Operator };
    made.found(OWN, |record| record.part_mut().cpus = Some(binding.clone()));
    assert!(!made.unbind(OWN) && !made.bind(OWN).unwrap());
    assert_eq!(made.record(OWN).part().cpus, Some(binding));
    for change in [
        |home: &mut Home| home.affinity = Affinity::Hard,
        |home: &mut Home| home.origin = Origin::Adopted,
    ] {
        made.found(OWN, |record| {
            let part = record.part_mut();
            (part.cpus, part.home) = (None, home(&[1]));
            change(&mut part.home);
        });
        assert!(!made.bind(OWN).unwrap());
    }
    assert!(!made.bound(OWN));
}

#[test]
fn a_domain_needs_a_fallback_unless_its_home_is_everywhere_or_bound() {
    let made = made();
    made.group("m/vm", "0-3");
    made.found("/m/vm", |_| {});
    let topology = made.host().topology().unwrap();
    let wants = |change: fn(&mut Home)| {
        let mut record = made.record("/m/vm");
        change(&mut record.part_mut().home);
        wants_fallback(&record, &topology)
    };
    assert!(wants(|_| {}));
    assert!(!wants(|home| home.nodes = nodes(&[0, 1])), "a home of all nodes needs no binding");
    assert!(!wants(|home| home.affinity = Affinity::Hard));
    assert!(!wants(|home| home.origin = Origin::Adopted), "the owner binds it");
}

#[test]
fn a_session_holds_the_lock_until_it_is_dropped() {
    let made = made();
    made.group("m/vm", "0-3");
    made.found("/m/vm", |_| {});
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    for _ in 0..3 {
        let _ = session.bind_to_home("/m/vm");
    }
    let mut other = made.host();
    let at_most = Some(Duration::ZERO);
    other.set_waiting(Waiting { at_most, ..Waiting::default() });
    let why = other.begin().unwrap_err().to_string();
    // This host has no /proc/locks to name the holder.
    assert!(why.contains("is ahead in line for"), "{why}");
    drop(session);
    other.begin().unwrap();
}

/// The kernel moves no pages of processes that do not exist, but the calls of `go_on` can be
/// counted.
#[test]
fn batches_end_when_they_are_broken_off_or_their_domain_changes() {
    let made = made();
    for path in ["/m/a", "/m/b"] {
        made.group(&path[1..], "0-3");
        made.file(&format!("cg{path}/cgroup.procs"), "9000001\n");
        made.found(path, |_| {});
    }
    let batch = |domain: &str, from| PageMove {
        part: domain.into(),
        nodes: nodes(&[1]),
        rate_bytes_per_s: Some(1 << 20),
        batch: Some(Batch { from: NodeId(from), max_bytes: 1 << 20 }),
    };
    let mut host = made.host();
    let all = [batch("/m/a", 0), batch("/m/b", 0), batch("/m/gone", 0), batch("/m/a", 1)];
    let (mut begun, refused) = host.begin_batches(&all);
    let why = |outcome: &Outcome| matches!(outcome, Outcome::Refused { .. });
    assert!(refused.len() == 2 && refused.iter().all(|(_, outcome)| why(outcome)), "{refused:?}");
    assert!(begun.is_busy());
    let asked = AtomicU32::new(0);
    let later = Instant::now() + Duration::from_secs(3600);
    host.move_batches(&mut begun, later, &|| {
        asked.fetch_add(1, SeqCst);
        ControlFlow::Break(())
    });
    assert!(begun.is_busy() && asked.load(SeqCst) == 1, "one chunk, and then an event came");
    host.move_batches(&mut begun, later, &|| ControlFlow::Continue(()));
    assert!(!begun.is_busy());
    let ended = host.end_batches(begun);
    assert!(
        ended.iter().all(|(_, outcome)| *outcome == Outcome::Applied { moved_bytes: 0 }),
        "{ended:?}"
    );

    // The home changes before the first chunk.
    let (mut begun, _) = host.begin_batches(&[batch("/m/a", 0)]);
    made.found("/m/a", |record| record.part_mut().home.nodes = nodes(&[0]));
    host.move_batches(&mut begun, later, &|| ControlFlow::Continue(()));
    let ended = host.end_batches(begun);
    assert!(matches!(ended[..], [(_, Outcome::Partly { interrupted: true, .. })]), "{ended:?}");
}

#[test]
fn a_unit_whose_binding_would_survive_a_restart_is_not_bound() {
    let made = made();
    fs::create_dir_all(made.path("run/systemd/system")).unwrap();
    for path in ["/system.slice/db.service", "/machine.slice"] {
        made.group(&path[1..], "0-3");
        made.found(path, |_| {});
        assert!(made.host().may_bind(&made.record(path)).is_err());
        let why = made.bind(path).unwrap_err();
        assert!(why.contains("when it is started anew"), "{why}");
        assert_eq!((made.record(path).part().cpus.clone(), made.bound(path)), (None, false));
    }
}

#[test]
fn cpus_that_another_program_set_are_neither_replaced_nor_lifted() {
    let made = made();
    let theirs = || made.read("cg/nearside/x/cpuset.cpus");
    made.group("nearside/x", "0,2\n");
    made.file("cg/nearside/x/cpuset.cpus", "0,2\n");
    made.found(OWN, |_| {});
    let why = made.bind(OWN).unwrap_err();
    assert!(why.contains("another program binds /nearside/x to CPUs 0,2"), "{why}");
    let own = CpuBinding { cpus: cpus(&[2, 3]), on_behalf: CpuReason::Fallback };
    let (part, cpus, on_behalf) = (PartId::of(OWN), own.cpus.clone(), CpuReason::Fallback);
    let why = made.apply(OWN, Action::BindCpus { part, cpus, on_behalf }).unwrap_err();
    assert!(why.contains("another program binds"), "{why}");
    assert_eq!((theirs(), made.record(OWN).part().cpus.clone()), ("0,2\n".into(), None));

    // Another program replaced Nearside's binding: a refused step leaves theirs.
    made.found(OWN, |record| record.part_mut().cpus = Some(own.clone()));
    let (part, cpus, on_behalf) = (PartId::of(OWN), "0-1".parse().unwrap(), CpuReason::Fallback);
    let why = made.apply(OWN, Action::BindCpus { part, cpus, on_behalf }).unwrap_err();
    assert!(why.contains("another program binds"), "{why}");
    assert_eq!((theirs(), made.record(OWN).part().cpus.clone()), ("0,2\n".into(), Some(own)));

    // Without one of its own to lift, only the record goes.
    assert!(made.unbind(OWN));
    assert_eq!((theirs(), made.record(OWN).part().cpus.clone()), ("0,2\n".into(), None));
}

#[test]
fn a_domain_whose_pattern_is_gone_is_unbound_and_forgotten() {
    let made = made();
    made.group("nearside/x", "2-3\n");
    made.found(OWN, |_| {});
    assert!(made.bind(OWN).unwrap() && made.bound(OWN));
    let forget = || made.host().begin().unwrap().forget(OWN).unwrap();
    assert!(forget());
    assert!(!made.bound(OWN) && made.host().record(OWN).unwrap().is_none());
    assert!(!forget());
}

#[test]
fn a_batch_goes_to_the_recorded_home() {
    let made = made();
    made.group("m/vm", "0-3");
    made.file("cg/m/vm/cgroup.procs", "9000001\n");
    made.found("/m/vm", |_| {});
    let mut host = made.host();
    let mut batch = |domain: &str, to: &[u32], from| {
        let batch = Some(Batch { from: NodeId(from), max_bytes: 1 << 20 });
        let (part, nodes) = (PartId::of(domain), nodes(to));
        let pages = PageMove { part, nodes, rate_bytes_per_s: None, batch };
        host.move_pages(&pages, &mut |_| ControlFlow::Continue(()))
    };
    assert_eq!(
        batch("/m/vm", &[1], 0),
        Outcome::Applied { moved_bytes: 0 },
        "no process has anything"
    );
    refused(&batch("/m/vm", &[0], 1), "changed the home of /m/vm to node 1");
    refused(&batch("/m/vm", &[1], 1), "changed the home");
    refused(&batch("/m/other", &[1], 0), "has ended");
    // Memory that is charged and not mapped is reported as immovable, so that it is not searched
    // for in each interval. The kernel's memory never moves.
    made.file("cg/m/vm/memory.numa_stat", "anon N0=8192 N1=0\npagetables N0=4096 N1=0\n");
    let outcome = batch("/m/vm", &[1], 0);
    assert!(
        matches!(
            &outcome,
            Outcome::Partly { stayed, interrupted: false, .. } if stayed.values().eq(&[8192])
        ),
        "{outcome:?}"
    );
}
