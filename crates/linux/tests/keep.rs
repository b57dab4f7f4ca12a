//! What a daemon changes of domains, on a made-up host.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Made, home};
use nearside_linux::{
    Host,
    store::{CpuBinding, Record},
    wants_fallback,
};
use nearside_policy::{
    Action, Affinity, Batch, Claim, CpuReason, Machine, Origin, Outcome, PageMove, PartId,
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

    /// Whether a group's cpuset names CPUs. The kernel takes each write for the whole; a plain file
    /// keeps the rest.
    fn bound(&self, path: &str) -> bool {
        !self.read(&format!("cg{path}/cpuset.cpus")).starts_with('\n')
    }

    /// A group with a process and a cpuset, which the made-up kernel has in force before it is
    /// written.
    fn group(&self, path: &str, cpus_in_force: &str) {
        self.file(&format!("cg/{path}/cgroup.events"), "populated 1\n");
        self.file(&format!("cg/{path}/cpuset.cpus"), "\n");
        self.file(&format!("cg/{path}/cpuset.cpus.effective"), cpus_in_force);
    }

    /// A domain of that path with a home on node 1, found, and changed by `change`.
    fn found(&self, path: &str, change: impl FnOnce(&mut Record)) {
        let mut host = self.host();
        host.take_up(path, Some(("*/*", &home(&[1])))).unwrap();
        change(host.edited().unwrap());
        host.save().unwrap();
        host.put_down();
    }

    fn record(&self, name: &str) -> Record {
        self.host().record(name).unwrap()
    }
}

fn nodes(nodes: &[u32]) -> NodeSet {
    nodes.iter().map(|&node| NodeId(node)).collect()
}

fn cpus(cpus: &[u32]) -> CpuSet {
    cpus.iter().map(|&cpu| CpuId(cpu)).collect()
}

fn apply(host: &mut Host, action: &Action) -> Outcome {
    host.apply_step(action)
}

fn refused(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { why: said } if said.contains(why)), "{outcome:?}");
}

#[test]
fn a_found_group_gets_a_record_with_its_first_change_and_no_claim() {
    let made = made();
    made.group("m/vm", "0-3");
    let mut host = made.host();
    assert!(host.take_up("/m/vm", None).unwrap_err().to_string().contains("has ended"));
    assert!(host.take_up("/m/none", Some(("m/*", &home(&[0])))).is_err());
    host.take_up("/m/vm", Some(("m/*", &home(&[1])))).unwrap();
    assert!(made.host().record("/m/vm").is_none(), "nothing has changed yet");
    let (domain, claim) =
        (|| PartId::of("/m/vm"), Claim { bytes: [(NodeId(1), 7)].into(), ..Claim::default() });
    let done = Outcome::Applied { moved_bytes: 0 };
    assert_eq!(apply(&mut host, &Action::Claim { part: domain(), claim }), done);
    let record = made.record("/m/vm");
    assert_eq!(
        (&record.part().claim, record.found_by.as_deref(), &record.part().home),
        (&None, Some("m/*"), &home(&[1]))
    );
    assert_eq!(apply(&mut host, &Action::SetHome { part: domain(), home: home(&[0]) }), done);
    host.put_down();
    assert_eq!(made.record("/m/vm").part().home, home(&[0]));

    // The next change is of what is recorded by then, whatever the home of the one who found it.
    host.take_up("/m/vm", Some(("m/*", &home(&[1])))).unwrap();
    assert_eq!(host.edited().unwrap().part().home, home(&[0]));
}

#[test]
fn where_somebody_elses_group_may_run_is_left_alone() {
    let made = made();
    fs::create_dir_all(made.path("run/systemd/system")).unwrap();
    for (path, owner) in [
        ("/kubepods.slice/pod1.slice", "kubelet"),
        ("/machine.slice/machine-qemu\\x2d1.scope", "libvirt"),
        ("/a.service/payload", "another program"),
    ] {
        made.group(&path[1..], "0-3");
        made.found(path, |_| {});
        let mut host = made.host();
        host.take_up(path, None).unwrap();
        let (domain, on_behalf) = (|| PartId::of(path), CpuReason::Fallback);
        let bind = Action::BindCpus { part: domain(), cpus: cpus(&[2, 3]), on_behalf };
        refused(&apply(&mut host, &bind), &format!("a cgroup of {owner}"));
        refused(
            &apply(&mut host, &Action::ConfineMemory { part: domain(), nodes: nodes(&[1]) }),
            owner,
        );
        host.put_down();
        assert!(host.restore_fallback(path).unwrap_err().to_string().contains(owner));
        assert_eq!((made.record(path).part().cpus.clone(), made.bound(path)), (None, false));
    }
}

/// A domain of Nearside's own tree, for these are the ones it may bind where no systemd is.
const OWN: &str = "/nearside/x";

#[test]
fn nearsides_own_binding_is_lifted_and_restored_and_its_record_says_so() {
    let made = made();
    made.group("nearside/x", "2-3\n");
    made.found(OWN, |_| {});
    let mut host = made.host();
    assert!(!host.lift_fallback(OWN).unwrap(), "nothing is bound");
    assert!(host.restore_fallback(OWN).unwrap());
    assert_eq!(made.read("cg/nearside/x/cpuset.cpus"), "2-3");
    let binding =
        CpuBinding { cpus: cpus(&[2, 3]), on_behalf: CpuReason::Fallback, replaces: None };
    assert_eq!(made.record(OWN).part().cpus.clone(), Some(binding));
    assert!(!host.restore_fallback(OWN).unwrap(), "it is bound");
    host.lock().unwrap();
    assert!(host.lift_fallback(OWN).unwrap());
    assert_eq!((made.record(OWN).part().cpus.clone(), made.bound("/nearside/x")), (None, false));
    host.unlock();
    assert!(!host.lift_fallback("none").unwrap() && !host.restore_fallback("none").unwrap());
}

#[test]
fn a_binding_that_does_not_come_into_force_is_not_recorded() {
    let made = made();
    made.group("nearside/x", "0-1\n");
    made.found(OWN, |_| {});
    let said = made.host().restore_fallback(OWN).unwrap_err().to_string();
    assert!(said.contains("is not in force"), "{said}");
    assert_eq!((made.record(OWN).part().cpus.clone(), made.bound(OWN)), (None, false));
}

#[test]
fn what_an_operator_bound_or_chose_stays() {
    let made = made();
    made.group("nearside/x", "2-3\n");
    let binding = CpuBinding { cpus: cpus(&[2]), on_behalf: CpuReason::Operator, replaces: None };
    made.found(OWN, |record| record.part_mut().cpus = Some(binding.clone()));
    let mut host = made.host();
    assert!(!host.lift_fallback(OWN).unwrap() && !host.restore_fallback(OWN).unwrap());
    assert_eq!(made.record(OWN).part().cpus.clone(), Some(binding));
    for change in [
        |record: &mut Record| record.part_mut().home.affinity = Affinity::Hard,
        |record: &mut Record| record.part_mut().home.origin = Origin::Adopted,
    ] {
        made.found(OWN, |record| {
            let part = record.part_mut();
            (part.cpus, part.home) = (None, home(&[1]));
            change(record);
        });
        assert!(!made.host().restore_fallback(OWN).unwrap());
    }
    assert!(!made.bound(OWN));
}

#[test]
fn one_lock_serves_many_domains_and_who_needs_a_binding_is_known_without_it() {
    let made = made();
    fs::create_dir_all(made.path("run/systemd/system")).unwrap();
    for path in ["/m/vm", "/machine.slice/machine-qemu\\x2d1.scope"] {
        made.group(&path[1..], "0-3");
        made.found(path, |record| record.part_mut().home.origin = Origin::Auto);
    }
    let mut host = made.host();
    let topology = host.topology().unwrap();
    let wants = |record: &Record| wants_fallback(record, &topology);
    let record = made.record("/m/vm");
    assert!(wants(&record));
    let other = |change: fn(&mut Record)| {
        let mut record = record.clone();
        change(&mut record);
        record
    };
    assert!(
        !wants(&other(|record| record.part_mut().home.nodes = nodes(&[0, 1]))),
        "a home of all nodes binds nobody"
    );
    assert!(!wants(&other(|record| record.part_mut().home.affinity = Affinity::Hard)));
    assert!(
        !wants(&other(|record| record.part_mut().home.origin = Origin::Adopted)),
        "kept there by whoever chose it"
    );
    let libvirts = made.record("/machine.slice/machine-qemu\\x2d1.scope");
    assert!(host.may_bind(&libvirts).unwrap_err().to_string().contains("libvirt"));

    host.lock().unwrap();
    for path in ["/m/vm", "/m/vm", "/machine.slice/machine-qemu\\x2d1.scope"] {
        let _ = host.restore_fallback(path);
        host.take_up(path, None).unwrap();
        host.put_down();
    }
    let mut other = made.host();
    other.wait_for_lock_at_most(Duration::ZERO, || {});
    assert!(other.lock().unwrap_err().to_string().contains("holds"), "it was held all the time");
    host.unlock();
    other.lock().unwrap();
}

/// The kernel moves nothing of processes that are not there, but who is asked how often can be
/// seen.
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
    assert!(
        begun.is_busy() && asked.load(SeqCst) == 1,
        "one chunk, and then somebody wanted something"
    );
    host.move_batches(&mut begun, later, &|| ControlFlow::Continue(()));
    assert!(!begun.is_busy());
    let ended = host.end_batches(begun);
    assert!(
        ended.iter().all(|(_, outcome)| *outcome == Outcome::Applied { moved_bytes: 0 }),
        "{ended:?}"
    );

    // Before the first chunk the home becomes another one.
    let (mut begun, _) = host.begin_batches(&[batch("/m/a", 0)]);
    made.found("/m/a", |record| record.part_mut().home.nodes = nodes(&[0]));
    host.move_batches(&mut begun, later, &|| ControlFlow::Continue(()));
    let ended = host.end_batches(begun);
    assert!(matches!(ended[..], [(_, Outcome::Partly { interrupted: true, .. })]), "{ended:?}");
}

#[test]
fn a_unit_that_would_stay_bound_when_it_is_started_anew_is_not_bound() {
    let made = made();
    fs::create_dir_all(made.path("run/systemd/system")).unwrap();
    for path in ["/system.slice/db.service", "/machine.slice"] {
        made.group(&path[1..], "0-3");
        made.found(path, |_| {});
        assert!(made.host().may_bind(&made.record(path)).is_err());
        let said = made.host().restore_fallback(path).unwrap_err().to_string();
        assert!(said.contains("when it is started anew"), "{said}");
        assert_eq!((made.record(path).part().cpus.clone(), made.bound(path)), (None, false));
    }
}

#[test]
fn cpus_that_somebody_else_set_are_neither_replaced_nor_taken_away() {
    let made = made();
    let theirs = || made.read("cg/nearside/x/cpuset.cpus");
    made.group("nearside/x", "0,2\n");
    made.file("cg/nearside/x/cpuset.cpus", "0,2\n");
    made.found(OWN, |_| {});
    let mut host = made.host();
    let said = host.restore_fallback(OWN).unwrap_err().to_string();
    assert!(said.contains("CPUs 0,2") && said.contains("somebody else"), "{said}");
    host.take_up(OWN, None).unwrap();
    let bind = |on_behalf| Action::BindCpus { part: OWN.into(), cpus: cpus(&[2, 3]), on_behalf };
    refused(&apply(&mut host, &bind(CpuReason::Fallback)), "somebody else");
    host.put_down();
    host.unlock();
    assert_eq!((theirs(), made.record(OWN).part().cpus.clone()), ("0,2\n".into(), None));

    // They were set after Nearside had bound it: its own binding is gone.
    let own =
        |replaces| CpuBinding { cpus: cpus(&[2, 3]), on_behalf: CpuReason::Fallback, replaces };
    made.found(OWN, |record| record.part_mut().cpus = Some(own(None)));
    assert!(host.lift_fallback(OWN).unwrap());
    assert_eq!((theirs(), made.record(OWN).part().cpus.clone()), ("0,2\n".into(), None));

    // Whoever was killed before it had bound it left nothing but a record.
    made.file("cg/nearside/x/cpuset.cpus", "\n");
    made.file("cg/nearside/x/cpuset.cpus.effective", "2-3\n");
    made.found(OWN, |record| record.part_mut().cpus = Some(own(None)));
    assert!(host.restore_fallback(OWN).unwrap());
    assert_eq!((theirs().as_str(), made.record(OWN).part().cpus.clone()), ("2-3", Some(own(None))));
    made.file("cg/nearside/x/cpuset.cpus", "0,2\n");

    // Whoever was killed while it changed the binding left one of the two, and both are known for
    // Nearside's own.
    made.found(OWN, |record| record.part_mut().cpus = Some(own(Some(cpus(&[0, 2])))));
    assert!(host.lift_fallback(OWN).unwrap());
    assert_eq!((made.record(OWN).part().cpus.clone(), made.bound(OWN)), (None, false));
}

#[test]
fn a_domain_whose_pattern_is_gone_is_forgotten_and_what_bound_it_is_lifted() {
    let made = made();
    made.group("nearside/x", "2-3\n");
    made.found(OWN, |_| {});
    let mut host = made.host();
    assert!(host.restore_fallback(OWN).unwrap() && made.bound(OWN));
    assert!(host.forget_found(OWN).unwrap());
    assert!(!made.bound(OWN) && host.record(OWN).is_none());
    assert!(!host.forget_found(OWN).unwrap());
}

#[test]
fn a_batch_goes_to_the_home_that_is_recorded_now() {
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
    // What is charged to it and mapped by nobody is told, so that nobody looks for it all the time.
    // The kernel's part never comes.
    made.file("cg/m/vm/memory.numa_stat", "anon N0=8192 N1=0\npagetables N0=4096 N1=0\n");
    let outcome = batch("/m/vm", &[1], 0);
    assert!(
        matches!(&outcome, Outcome::Partly { stayed, interrupted: false, .. }
            if stayed.values().eq(&[8192])),
        "{outcome:?}"
    );
}
