//! What a daemon changes of domains, on a made-up host.
#![allow(clippy::unwrap_used, clippy::panic)]

use nearside_linux::{
    Host, Paths,
    store::{CpuBinding, Record},
};
use nearside_policy::{Action, Affinity, Batch, Claim, CpuReason, Home, Machine, MemoryPolicy, Origin, Outcome};
use nearside_topology::{CpuId, CpuSet, NodeId, NodeSet};
use std::{fs, ops::ControlFlow, path::PathBuf};

/// A host of two nodes with two CPUs each, below a folder.
struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    fn new(systemd: bool) -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        let tree = made.path("cg");
        made.file("proc/self/mountinfo", &format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", tree.display()));
        made.file("proc/sys/kernel/random/boot_id", "b\n");
        made.file("cg/cgroup.controllers", "cpuset memory\n");
        made.file("sys/devices/system/cpu/online", "0-3\n");
        fs::create_dir(made.path("run")).unwrap();
        if systemd {
            fs::create_dir_all(made.path("run/systemd/system")).unwrap();
        }
        for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
            let folder = format!("sys/devices/system/node/node{node}");
            made.file(&format!("{folder}/cpulist"), cpus);
            made.file(&format!("{folder}/distance"), if node == 0 { "10 20" } else { "20 10" });
            let memory = format!("Node {node} MemTotal: 4096 kB\nNode {node} MemFree: 1024 kB\n");
            made.file(&format!("{folder}/meminfo"), &memory);
        }
        made
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Whether a group's cpuset names CPUs. The kernel takes each write for the whole; a plain file keeps the rest.
    fn bound(&self, path: &str) -> bool {
        !self.read(&format!("cg{path}/cpuset.cpus")).starts_with('\n')
    }

    fn host(&self) -> Host {
        Host::open(Paths { root: self.folder.path().into(), state: self.path("run/nearside") }).unwrap()
    }

    /// A group with a process and a cpuset, which the made-up kernel has in force before it is written.
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

fn home(on: &[u32]) -> Home {
    Home { nodes: nodes(on), origin: Origin::Auto, affinity: Affinity::Soft, policy: MemoryPolicy::Local }
}

fn apply(host: &mut Host, action: &Action) -> Outcome {
    host.apply(action, &mut |_| ControlFlow::Continue(()))
}

fn refused(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { why: said } if said.contains(why)), "{outcome:?}");
}

#[test]
fn a_found_group_gets_a_record_with_its_first_change_and_no_claim() {
    let made = Made::new(false);
    made.group("m/vm", "0-3");
    let mut host = made.host();
    assert!(host.take_up("/m/vm", None).unwrap_err().to_string().contains("has ended"));
    assert!(host.take_up("/m/none", Some(("m/*", &home(&[0])))).is_err());
    host.take_up("/m/vm", Some(("m/*", &home(&[1])))).unwrap();
    assert!(made.host().record("/m/vm").is_none(), "nothing has changed yet");
    let (domain, claim) = (|| "/m/vm".to_owned(), Claim { bytes: [(NodeId(1), 7)].into(), ..Claim::default() });
    let done = Outcome::Applied { moved_bytes: 0 };
    assert_eq!(apply(&mut host, &Action::Claim { domain: domain(), claim }), done);
    let record = made.record("/m/vm");
    assert_eq!((record.claim, record.found_by.as_deref(), &record.home), (None, Some("m/*"), &home(&[1])));
    assert_eq!(apply(&mut host, &Action::SetHome { domain: domain(), home: home(&[0]) }), done);
    host.put_down();
    assert_eq!(made.record("/m/vm").home, home(&[0]));

    // The next change is of what is recorded by then, whatever the home of the one who found it.
    host.take_up("/m/vm", Some(("m/*", &home(&[1])))).unwrap();
    assert_eq!(host.edited().unwrap().home, home(&[0]));
}

#[test]
fn where_somebody_elses_group_may_run_is_left_alone() {
    let made = Made::new(true);
    for (path, owner) in [
        ("/kubepods.slice/pod1.slice", "kubelet"),
        ("/machine.slice/machine-qemu\\x2d1.scope", "libvirt"),
        ("/a.service/payload", "another program"),
    ] {
        made.group(&path[1..], "0-3");
        made.found(path, |_| {});
        let mut host = made.host();
        host.take_up(path, None).unwrap();
        let (domain, on_behalf) = (|| path.to_owned(), CpuReason::Fallback);
        let bind = Action::BindCpus { domain: domain(), cpus: cpus(&[2, 3]), on_behalf };
        refused(&apply(&mut host, &bind), &format!("a cgroup of {owner}"));
        refused(&apply(&mut host, &Action::ConfineMemory { domain: domain(), nodes: nodes(&[1]) }), owner);
        host.put_down();
        assert!(host.restore_fallback(path).unwrap_err().to_string().contains(owner));
        assert_eq!((made.record(path).cpus, made.bound(path)), (None, false));
    }
}

/// A domain of Nearside's own tree, for these are the ones it may bind where no systemd is.
const OWN: &str = "/nearside/x";

#[test]
fn nearsides_own_binding_is_lifted_and_restored_and_its_record_says_so() {
    let made = Made::new(false);
    made.group("nearside/x", "2-3\n");
    made.found(OWN, |_| {});
    let mut host = made.host();
    assert!(!host.lift_fallback(OWN).unwrap(), "nothing is bound");
    assert!(host.restore_fallback(OWN).unwrap());
    assert_eq!(made.read("cg/nearside/x/cpuset.cpus"), "2-3");
    let binding = CpuBinding { cpus: cpus(&[2, 3]), on_behalf: CpuReason::Fallback };
    assert_eq!(made.record(OWN).cpus, Some(binding));
    assert!(!host.restore_fallback(OWN).unwrap(), "it is bound");
    host.lock().unwrap();
    assert!(host.lift_fallback(OWN).unwrap());
    assert_eq!((made.record(OWN).cpus, made.bound("/nearside/x")), (None, false));
    host.unlock();
    assert!(!host.lift_fallback("none").unwrap() && !host.restore_fallback("none").unwrap());
}

#[test]
fn a_binding_that_does_not_come_into_force_is_not_recorded() {
    let made = Made::new(false);
    made.group("nearside/x", "0-1\n");
    made.found(OWN, |_| {});
    let said = made.host().restore_fallback(OWN).unwrap_err().to_string();
    assert!(said.contains("is not in force"), "{said}");
    assert_eq!((made.record(OWN).cpus, made.bound(OWN)), (None, false));
}

#[test]
fn what_an_operator_bound_or_chose_stays() {
    let made = Made::new(false);
    made.group("nearside/x", "2-3\n");
    let binding = CpuBinding { cpus: cpus(&[2]), on_behalf: CpuReason::Operator };
    made.found(OWN, |record| record.cpus = Some(binding.clone()));
    let mut host = made.host();
    assert!(!host.lift_fallback(OWN).unwrap() && !host.restore_fallback(OWN).unwrap());
    assert_eq!(made.record(OWN).cpus, Some(binding));
    for change in [
        |record: &mut Record| record.home.affinity = Affinity::Hard,
        |record: &mut Record| record.home.origin = Origin::Explicit,
    ] {
        made.found(OWN, |record| {
            (record.cpus, record.home) = (None, home(&[1]));
            change(record);
        });
        assert!(!made.host().restore_fallback(OWN).unwrap());
    }
    assert!(!made.bound(OWN));
}

#[test]
fn a_batch_goes_to_the_home_that_is_recorded_now() {
    let made = Made::new(false);
    made.group("m/vm", "0-3");
    made.file("cg/m/vm/cgroup.procs", "9000001\n");
    made.found("/m/vm", |_| {});
    let mut host = made.host();
    let mut batch = |domain: &str, to: &[u32], from| {
        let batch = Some(Batch { from: NodeId(from), most_bytes: 1 << 20 });
        let (domain, nodes) = (domain.to_owned(), nodes(to));
        apply(&mut host, &Action::MovePages { domain, nodes, rate_bytes_per_s: None, batch })
    };
    assert_eq!(batch("/m/vm", &[1], 0), Outcome::Applied { moved_bytes: 0 }, "no process has anything");
    refused(&batch("/m/vm", &[0], 1), "changed the home of /m/vm to node 1");
    refused(&batch("/m/vm", &[1], 1), "changed the home");
    refused(&batch("/m/other", &[1], 0), "has ended");
    // What is charged to it and mapped by nobody is told, so that nobody looks for it all the time.
    made.file("cg/m/vm/memory.numa_stat", "anon N0=8192 N1=0\npagetables N0=4096 N1=0\n");
    let outcome = batch("/m/vm", &[1], 0);
    assert!(
        matches!(&outcome, Outcome::Partly { stayed, interrupted: false, .. } if stayed.values().eq(&[12_288])),
        "{outcome:?}"
    );
}
