//! Transactions on a made-up host: plain files stand for the kernel's.

mod faults;
mod random;
mod reservations;
mod unreadable;

use super::*;
use crate::{
    host::pending::kill_within,
    made::Made,
    store::{CpuBinding, Lifetime},
};
use nearside_policy::{
    Affinity, Claim, Home, Limits, MemoryPolicy, Origin, PageSize, PartId, Purpose, Until,
};
use nearside_topology::{CpuId, CpuSet, NodeId, NodeSet};
use std::{fs, os::unix::fs::symlink, path::PathBuf};

const MIB: u64 = 1 << 20;
const NODES: u32 = 4;
/// Memory of a node that can be claimed.
const FREE_MIB: u64 = 400;

impl Made {
    /// A host of four nodes.
    fn new() -> Self {
        Self::of("cpuset memory", NODES, 4 * FREE_MIB * 1024, FREE_MIB * 1024)
    }

    /// Creates one of Nearside's cgroups with a process in it. Writes to its cpuset take effect.
    fn group(&self, name: &str) {
        let folder = format!("cg/nearside/{name}");
        self.file(&format!("{folder}/cgroup.events"), "populated 1\n");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            self.file(&format!("{folder}/{file}"), "\n");
            self.obey(name, file);
        }
    }

    /// Makes the fake kernel put the written set in force.
    fn obey(&self, name: &str, file: &str) {
        let effective = self.path(&format!("cg/nearside/{name}/{file}.effective"));
        let _ = fs::remove_file(&effective);
        symlink(file, effective).unwrap();
    }

    /// Makes the fake kernel refuse the set, as if the groups above allowed another one.
    fn refuse(&self, name: &str, file: &str) {
        let effective = format!("cg/nearside/{name}/{file}.effective");
        let _ = fs::remove_file(self.path(&effective));
        self.file(&effective, "9\n");
    }

    /// A recorded domain on a node, bound and confined to it.
    fn domain(&self, name: &str, node: u32, claim_mib: u64) -> Record {
        self.group(name);
        let group = self.host().tree().group(&format!("/nearside/{name}")).unwrap();
        for (file, text) in
            [("cpuset.cpus", cpus(node).to_string()), ("cpuset.mems", node.to_string())]
        {
            group.write(file, &text).unwrap();
        }
        let decision = decision(&self.host().topology().unwrap());
        let part = Part {
            claim: Some(claim(node, claim_mib)),
            decision: Some(decision),
            cpus: Some(binding(node)),
            memory_nodes: Some(nodes(node)),
            policy_nodes: Some(nodes(node)),
            ..Part::at(home(node))
        };
        let record = Record {
            name: name.into(),
            boot_id: "b".into(),
            cgroup: group.path().into(),
            inode: group.inode().unwrap(),
            started_unix_s: 1,
            found_by: None,
            command: vec!["sleep".into()],
            limits: Limits::default(),
            parts: part.into(),
        };
        self.host().store.lock().unwrap().put(&record).unwrap();
        record
    }

    /// The records, and the bindings in force, of all domains.
    fn state(&self) -> Vec<(Record, String, String)> {
        let (records, broken) = self.host().records();
        assert!(broken.is_empty(), "{broken:?}");
        let read = |record: &Record, file: &str| {
            let text = fs::read_to_string(self.path(&format!("cg{}/{file}", record.cgroup)));
            text.unwrap().trim().to_owned()
        };
        let bindings = |record: Record| {
            let (cpus, mems) = (read(&record, "cpuset.cpus"), read(&record, "cpuset.mems"));
            (record, cpus, mems)
        };
        records.into_iter().map(bindings).collect()
    }

    fn journal(&self) -> PathBuf {
        self.path("run/nearside/journal.json")
    }
}

fn nodes(node: u32) -> NodeSet {
    NodeSet::from([NodeId(node)])
}

fn cpus(node: u32) -> CpuSet {
    CpuSet::from([CpuId(2 * node), CpuId(2 * node + 1)])
}

fn binding(node: u32) -> CpuBinding {
    CpuBinding { cpus: cpus(node), on_behalf: CpuReason::Fallback }
}

fn home(node: u32) -> Home {
    Home {
        nodes: nodes(node),
        origin: Origin::Auto,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::Strict,
    }
}

fn claim(node: u32, mib: u64) -> Claim {
    Claim { bytes: [(NodeId(node), mib * MIB)].into(), ..Claim::default() }
}

fn decision(topology: &Topology) -> nearside_policy::Decision {
    let request = nearside_policy::Request {
        vcpus: 1,
        memory_bytes: MIB,
        page_size: Default::default(),
        policy: MemoryPolicy::Strict,
        nodes: None,
        near: Vec::new(),
    };
    let seen = Observation::of(topology.clone());
    nearside_policy::place(&request, &seen, &Default::default()).unwrap()
}

/// The steps that move a domain's home to another node.
fn going(name: &str, node: u32, claim_mib: u64) -> Vec<Step> {
    let part = || PartId::from(name);
    let (from, to) = (NodeSet::new(), nodes(node));
    let reason = Reason::NewHome { from, to: to.clone() };
    let actions = [
        Action::Claim { part: part(), claim: claim(node, claim_mib) },
        Action::ConfineMemory { part: part(), nodes: to },
        Action::BindCpus { part: part(), cpus: cpus(node), on_behalf: CpuReason::Fallback },
        Action::SetHome { part: part(), home: home(node) },
    ];
    actions.into_iter().map(|action| Step { action, reason: reason.clone() }).collect()
}

fn exchange(made: &Made, mib: u64) -> Transaction {
    let steps = [going("a", 1, mib), going("b", 0, mib)].concat();
    Transaction::new(steps, &made.host().observe_from(None).unwrap())
}

#[test]
fn an_exchange_changes_both_domains() {
    let made = Made::new();
    made.domain("a", 0, 300);
    made.domain("b", 1, 300);
    made.host().begin().unwrap().apply(&exchange(&made, 300)).unwrap();
    let after: Vec<_> = made
        .state()
        .into_iter()
        .map(|(record, cpus, mems)| (record.part().home.nodes.to_string(), cpus, mems))
        .collect();
    let expected = [("1", "2-3", "1"), ("0", "0-1", "0")];
    assert_eq!(after, expected.map(|(home, cpus, mems)| (home.into(), cpus.into(), mems.into())));
    assert!(!made.journal().exists());
}

#[test]
fn a_refused_half_of_an_exchange_takes_the_other_half_back() {
    for (name, file) in [("a", "cpuset.mems"), ("b", "cpuset.mems"), ("b", "cpuset.cpus")] {
        let made = Made::new();
        made.domain("a", 0, 300);
        made.domain("b", 1, 300);
        let (before, transaction) = (made.state(), exchange(&made, 300));
        made.refuse(name, file);
        let refusal = made.host().begin().unwrap().apply(&transaction).unwrap_err();
        assert!(refusal.to_string().contains("is not in force"), "{refusal}");
        made.obey(name, file);
        assert_eq!(made.state(), before, "{name} {file}");
        assert!(!made.journal().exists());
    }
}

#[test]
fn a_home_that_another_command_changed_drops_the_transaction() {
    let made = Made::new();
    made.domain("a", 0, 100);
    let seen = made.host().observe_from(None).unwrap();
    let late = Transaction::new(going("a", 2, 100), &seen);
    let first = Transaction::new(going("a", 1, 100), &seen);
    made.host().begin().unwrap().apply(&first).unwrap();
    let before = made.state();
    let refusal = made.host().begin().unwrap().apply(&late).unwrap_err().to_string();
    assert_eq!(refusal, "another command has changed the home of a to node 1");
    assert_eq!(made.state(), before);
}

#[test]
fn a_start_that_took_the_memory_drops_the_transaction() {
    let made = Made::new();
    made.domain("a", 0, 300);
    let late = Transaction::new(going("a", 1, 300), &made.host().observe_from(None).unwrap());
    made.domain("new", 1, 200);
    let before = made.state();
    let refusal = made.host().begin().unwrap().apply(&late).unwrap_err().to_string();
    assert_eq!(refusal, "node 1 has 200 MiB available by now and 300 MiB are needed");
    assert_eq!(made.state(), before);
}

#[test]
fn a_reservation_of_a_process_that_lives_keeps_its_memory() {
    let made = Made::new();
    fs::create_dir_all(made.path("proc")).unwrap();
    symlink("/proc/self", made.path(&format!("proc/{}", std::process::id()))).unwrap();
    made.domain("a", 0, 300);
    let mut host = made.host();
    let lifetime = host.store.lease(None).unwrap();
    let bytes = [(NodeId(1), 200 * MIB)].into();
    let reservation = crate::store::Reservation {
        name: "libc".into(),
        purpose: Purpose::Copies,
        lifetime,
        bytes,
        vcpus: Default::default(),
        page_size: Default::default(),
    };
    host.store.lock().unwrap().reserve(&reservation).unwrap();
    let seen = host.observe_from(None).unwrap();
    let transaction = Transaction::new(going("a", 1, 300), &seen);
    let refusal = host.begin().unwrap().apply(&transaction).unwrap_err().to_string();
    assert_eq!(refusal, "node 1 has 200 MiB available by now and 300 MiB are needed");
    host.store.lock().unwrap().release("libc").unwrap();
    host.begin().unwrap().apply(&transaction).unwrap();
}

#[test]
fn figures_of_huge_pages_are_read_again_after_a_domain_was_confined() {
    let made = Made::new();
    made.domain("a", 0, 100);
    made.domain("b", 1, 100);
    let pool = |node: u32, free: u64| {
        for (file, pages) in [("nr", 50), ("free", free), ("surplus", 0)] {
            let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
            made.file(&format!("{folder}/{file}_hugepages"), &format!("{pages}\n"));
        }
    };
    (0..NODES).for_each(|node| pool(node, 50));
    let seen = made.host().observe_from(None).unwrap();
    let mut huge = going("b", 3, 60);
    for step in &mut huge {
        if let Action::Claim { claim, .. } = &mut step.action {
            claim.page_size = PageSize::Huge(2 * MIB);
        }
    }
    let [first, second] = [going("a", 2, 100), huge].map(|steps| Transaction::new(steps, &seen));
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    session.observe(None).unwrap();
    session.apply(&first).unwrap();
    // The kernel has taken pages along.
    pool(3, 20);
    let refusal = session.apply(&second).unwrap_err().to_string();
    assert!(refusal.starts_with("node 3 has 40 MiB available by now"), "{refusal}");

    // So it may with a step that is rolled back.
    let back = Transaction::new(going("a", 0, 100), session.observe(None).unwrap());
    made.refuse("a", "cpuset.cpus");
    let refusal = session.apply(&back).unwrap_err().to_string();
    assert!(refusal.contains("is not in force"), "{refusal}");
    pool(3, 10);
    let refusal = session.apply(&second).unwrap_err().to_string();
    assert!(refusal.starts_with("node 3 has 20 MiB available by now"), "{refusal}");
}

/// Kills the process within a transaction, after this many steps and records.
fn kill(made: &Made, transaction: &Transaction, steps: usize, records: usize) {
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    let known = Known { topology: None, found_by: &session.found_by };
    let pending = Pending::new(session.host, &mut session.writer, known);
    kill_within(pending, transaction, steps, records);
}

#[test]
fn a_process_killed_at_any_step_leaves_nothing_of_its_transaction() {
    for steps in 0..=8 {
        for records in 0..=2 {
            let made = Made::new();
            made.domain("a", 0, 300);
            made.domain("b", 1, 300);
            let (before, transaction) = (made.state(), exchange(&made, 300));
            kill(&made, &transaction, steps, records);
            assert!(made.journal().exists());
            let mut host = made.host();
            drop(host.begin().unwrap());
            let notices = host.take_notices();
            assert!(notices.iter().any(|notice| notice.contains("rolled back")), "{notices:?}");
            assert_eq!(made.state(), before, "{steps} steps, {records} records");
            assert!(!made.journal().exists());
        }
    }
}

/// Makes writes to a file of a group fail, until the file is given back.
fn block(made: &Made, name: &str, file: &str) -> (PathBuf, String) {
    let path = made.path(&format!("cg/nearside/{name}/{file}"));
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    (path, text)
}

fn unblock((path, text): (PathBuf, String)) {
    fs::remove_dir(&path).unwrap();
    fs::write(&path, text).unwrap();
}

#[test]
fn a_roll_back_that_fails_holds_up_its_own_domain_alone() {
    let made = Made::new();
    made.domain("a", 0, 100);
    made.domain("b", 1, 100);
    let before = made.state();
    kill(&made, &exchange(&made, 100), 8, 2);
    let blocked = block(&made, "a", "cpuset.cpus");
    let rehome = |name: &str, node| {
        let transaction = |host: &mut Host| {
            Transaction::new(going(name, node, 100), &host.observe_from(None).unwrap())
        };
        let mut host = made.host();
        let transaction = transaction(&mut host);
        host.begin().unwrap().apply(&transaction).map_err(|refusal| refusal.to_string())
    };
    for node in [2, 3] {
        let mut host = made.host();
        drop(host.begin().unwrap());
        let why = host.take_notices().pop().unwrap();
        assert!(why.starts_with("a: an unfinished change of its home cannot be"), "{why}");
        assert_eq!(rehome("a", 2), Err(why), "the operator is told the same");
        assert!(made.journal().exists());
        // The other domain is rolled back, and can change again and again.
        let of_b = || fs::read_to_string(made.path("cg/nearside/b/cpuset.cpus")).unwrap();
        assert_eq!(of_b().trim(), if node == 2 { &before[1].1 } else { "4-5" });
        rehome("b", node).unwrap();
        assert_eq!(of_b().trim(), cpus(node).to_string());
    }
    unblock(blocked);
    drop(made.host().begin().unwrap());
    let after = made.state();
    assert_eq!(after[0], before[0]);
    assert_eq!(after[1].0.part().home.nodes, nodes(3), "later changes stay");
    assert!(!made.journal().exists());
    rehome("a", 2).unwrap();
}

#[test]
fn a_host_is_told_once_why_a_domain_cannot_change() {
    let made = Made::new();
    made.domain("a", 0, 100);
    made.domain("b", 1, 100);
    kill(&made, &exchange(&made, 100), 8, 2);
    let _blocked = block(&made, "a", "cpuset.cpus");
    let mut host = made.host();
    for expected in [true, false] {
        drop(host.begin().unwrap());
        let notices = host.take_notices().concat();
        assert_eq!(notices.contains("cannot be rolled back"), expected, "{notices}");
    }
}

/// A cgroup whose file is mounted read-only refuses the change and, after that, the same value.
#[test]
fn a_refused_write_that_changed_nothing_leaves_no_journal() {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let made = Made::new();
        made.domain("a", 0, 100);
        made.domain("b", 1, 100);
        let (before, transaction) = (made.state(), exchange(&made, 100));
        let path = made.path(&format!("cg/nearside/b/{file}"));
        let attribute = |flag| {
            let status = std::process::Command::new("chattr").arg(flag).arg(&path).status();
            status.is_ok_and(|status| status.success())
        };
        // Only root may, and only on some file systems.
        if !attribute("+i") {
            return;
        }
        let refused = made.host().begin().unwrap().apply(&transaction).unwrap_err().to_string();
        assert!(attribute("-i"));
        assert!(refused.contains("not permitted"), "{refused}");
        assert!(!made.journal().exists(), "{file}");
        assert_eq!(made.state(), before, "{file}");
    }
}

/// A store without space for one more record.
#[test]
fn a_record_that_cannot_be_written_leaves_no_journal() {
    for name in ["a", "b"] {
        let made = Made::new();
        made.domain("a", 0, 100);
        made.domain("b", 1, 100);
        let (before, transaction) = (made.state(), exchange(&made, 100));
        // The file that would become the record.
        fs::create_dir_all(made.path(&format!("run/nearside/domains/{name}.json.new/x"))).unwrap();
        made.host().begin().unwrap().apply(&transaction).unwrap_err();
        assert!(!made.journal().exists(), "{name}");
        assert_eq!(made.state(), before, "{name}");
    }
}

#[test]
fn a_step_on_a_cell_without_a_record_is_refused() {
    let made = Made::new();
    made.domain("a", 0, 300);
    let before = made.state();
    let steps = going("cell 1 of a", 1, 100);
    let transaction = Transaction::new(steps, &Observation::default());
    let refused = made.host().begin().unwrap().apply(&transaction).unwrap_err().to_string();
    assert_eq!(refused, "cell 1 of a has no record");
    assert_eq!(made.state(), before);
    assert!(!made.journal().exists());
}

#[test]
fn a_roll_back_leaves_domains_alone_that_have_ended() {
    let made = Made::new();
    made.domain("a", 0, 300);
    made.domain("b", 1, 300);
    let transaction = exchange(&made, 300);
    kill(&made, &transaction, 8, 2);
    made.file("cg/nearside/b/cgroup.events", "populated 0\n");
    drop(made.host().begin().unwrap());
    let left: Vec<_> = made.state().into_iter().map(|(record, ..)| record.name).collect();
    assert_eq!(left, ["a"]);
}
