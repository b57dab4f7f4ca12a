//! The daemon's actions on domains on a real kernel, through the library: pages come home in
//! batches, Nearside's own bindings are lifted and restored, cgroups that patterns match become
//! domains, and domains are sampled.

use nearside_lab::{
    Domain, MIB, await_that, huge_pages, json, nearside, read, run, status, stderr, stdout,
    toucher, words,
};
use nearside_linux::{
    Host, Paths,
    watch::{Patterns, Turn},
};
use nearside_policy::{
    Action, Affinity, Batch, History, Home, Machine, MemoryPolicy, Origin, Outcome, PageMove,
    Reason, Step, Transaction,
};
use nearside_topology::{NodeId, NodeSet};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    ops::ControlFlow,
    process::{Child, Stdio},
};

const SIZE_MIB: u64 = 64;

fn host() -> Host {
    Host::open(Paths::default()).unwrap()
}

/// Moves this many MiB of a domain from one node to another.
fn batch(host: &mut Host, domain: &str, from: u32, to: u32, mib: u64) -> Outcome {
    let nodes = NodeSet::from([NodeId(to)]);
    let batch = Some(Batch { from: NodeId(from), max_bytes: mib * MIB });
    let pages = PageMove { part: domain.into(), nodes, rate_bytes_per_s: None, batch };
    host.move_pages(&pages, &mut |_| ControlFlow::Continue(()))
}

fn moved_bytes(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Applied { moved_bytes } | Outcome::Partly { moved_bytes, .. } => *moved_bytes,
        Outcome::Refused { why } => panic!("{why}"),
    }
}

#[test]
fn pages_come_home_in_batches_and_each_goes_on_where_the_last_one_ended() {
    huge_pages(1, 40);
    huge_pages(2, 40);
    for kind in ["anon", "thp", "shm", "huge"] {
        let pages = if kind == "huge" { "--page-size 2M" } else { "" };
        let flags = format!(
            "--quiet --name comer --cpus 2 --memory {SIZE_MIB}M \
             --policy preferred --nodes 1 {pages}"
        );
        let domain = Domain::start(&flags, &format!("--mib {SIZE_MIB} --kind {kind} --threads 2"));
        let set = run(words("set comer --nodes 2"));
        assert_eq!(set.status.code(), Some(0), "{kind}: {}", stderr(&set));
        assert_eq!(domain.filled_mib(), [(1, SIZE_MIB)].into(), "{kind}");
        let mut host = host();
        for (mib, on_1) in [(24, 40), (24, 16)] {
            let outcome = batch(&mut host, "comer", 1, 2, mib);
            let filled = domain.filled_mib();
            // Other pages of the process may be among them, and a huge page moves as a whole or not
            // at all.
            let (lies_on_1, lies_on_2) = (filled[&1], filled[&2]);
            assert!((on_1 - 2..on_1 + 4).contains(&lies_on_1), "{kind}: {filled:?} {outcome:?}");
            assert!(
                (SIZE_MIB - 4..=SIZE_MIB).contains(&(lies_on_1 + lies_on_2)),
                "{kind}: {filled:?}"
            );
            assert!(moved_bytes(&outcome) <= mib * MIB, "{kind}: {outcome:?}");
        }
        while domain.filled().contains_key(&1) {
            let outcome = batch(&mut host, "comer", 1, 2, 24);
            assert!(moved_bytes(&outcome) > 0, "{kind}: {outcome:?} {:?}", domain.filled());
        }
        assert_eq!(domain.filled_mib(), [(2, SIZE_MIB)].into(), "{kind}");
        // All pages have come, except for the kernel's.
        let outcome = batch(&mut host, "comer", 1, 2, 24);
        assert!(moved_bytes(&outcome) < MIB, "{kind}: {outcome:?}");
        let elsewhere = batch(&mut host, "comer", 2, 3, 24);
        assert!(
            matches!(&elsewhere, Outcome::Refused { why } if why.contains("changed the home")),
            "{elsewhere:?}"
        );
        domain.end();
    }
    huge_pages(1, 0);
    huge_pages(2, 0);
}

#[test]
fn nearsides_own_binding_is_lifted_and_restored_in_the_kernel() {
    let domain = Domain::start("--quiet --name soft --cpus 2 --memory 8M --nodes 1", "--mib 4");
    let bound_to = || status(domain.process(), "Cpus_allowed_list");
    let recorded = || json("show soft")["record"]["cpus"].clone();
    assert_eq!((bound_to().as_str(), recorded()), ("2-3", serde_json::json!([2, 3])));
    let mut host = host();
    assert!(host.begin().unwrap().unbind("soft").unwrap());
    assert_eq!((bound_to().as_str(), recorded()), ("0-7", serde_json::Value::Null));
    assert!(host.begin().unwrap().bind_to_home("soft").unwrap());
    assert_eq!((bound_to().as_str(), recorded()), ("2-3", serde_json::json!([2, 3])));
    domain.end();

    let domain = Domain::start(
        "--quiet --name hard --cpus 2 --memory 8M --nodes 1 --affinity hard",
        "--mib 4",
    );
    assert!(!host.begin().unwrap().unbind("hard").unwrap());
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "2-3");
    domain.end();
}

/// A foreign group, with a process in it that has filled memory on node 0.
struct Stranger {
    child: Child,
}

const GROUP: &str = "/sys/fs/cgroup/strangers/one";

impl Stranger {
    fn start(mib: u64, flags: &str) -> Self {
        fs::create_dir_all(GROUP).unwrap();
        let mut child = std::process::Command::new("sh");
        let script = format!(
            "echo $$ > {GROUP}/cgroup.procs; exec taskset -c 0-1 {} --mib {mib} {flags}",
            toucher()
        );
        let mut child = child
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready "), "{line:?}");
        Self { child }
    }

    fn mib_by_node(&self) -> BTreeMap<u32, u64> {
        let text = read(&format!("/proc/{}/numa_maps", self.child.id()));
        let mut all = BTreeMap::<u32, u64>::new();
        for line in text.lines().filter(|line| line.contains("anon=") && !line.contains("file=")) {
            for (node, pages) in
                line.split(' ').filter_map(|word| word.strip_prefix('N')?.split_once('='))
            {
                *all.entry(node.parse().unwrap()).or_default() +=
                    pages.parse::<u64>().unwrap() * 4096;
            }
        }
        all.into_iter()
            .map(|(node, bytes)| (node, bytes / MIB))
            .filter(|(_, mib)| *mib > 0)
            .collect()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir(GROUP);
        let _ = fs::remove_dir("/sys/fs/cgroup/strangers");
    }
}

#[test]
fn a_found_group_gets_a_home_and_its_memory_comes_there() {
    let stranger = Stranger::start(16, "");
    let (name, pattern) = ("/strangers/one", "strangers/*");
    let mut host = host();
    let mut watcher = host.watcher(Patterns::parse([pattern]).unwrap());
    let seen = watcher
        .observe(&History::default(), Turn { interval: 1, now_ns: 1, ..Turn::default() })
        .unwrap();
    let state = seen.machine.parts.iter().find(|part| part.id.domain() == name).unwrap();
    assert!(
        state.home.is_none()
            && state.claim.is_none()
            && state.resident_bytes[&NodeId(0)] >= 15 * MIB,
        "{state:?}"
    );

    let home = Home {
        nodes: NodeSet::from([NodeId(3)]),
        origin: Origin::Auto,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::Local,
    };
    let action = Action::SetHome { part: name.into(), home };
    let steps = vec![Step { action, reason: Reason::Placed }];
    let mut session = host.begin().unwrap();
    session.found(name, watcher.found_by(name).unwrap());
    session.apply(&Transaction::new(steps, &seen.machine)).unwrap();
    drop(session);
    assert_eq!(stranger.mib_by_node(), [(0, 16)].into());
    assert!(moved_bytes(&batch(&mut host, name, 0, 3, 64)) >= 16 * MIB);
    assert_eq!(stranger.mib_by_node(), [(3, 16)].into());

    let show = run(["show", name]);
    assert!(stdout(&show).contains("found by     pattern strangers/*"), "{}", stdout(&show));
    let list = json("list");
    assert_eq!(
        (&list["domains"][0]["name"], &list["domains"][0]["claim"]),
        (&name.into(), &serde_json::Value::Null)
    );
    let exec = nearside().args(["exec", name, "--", "true"]).output().unwrap();
    assert!(
        !exec.status.success() && stderr(&exec).contains("was not started by"),
        "{}",
        stderr(&exec)
    );
    let said = host.begin().unwrap().bind_to_home(name).unwrap_err().to_string();
    assert!(said.contains("a cgroup of another program"), "{said}");
    drop(stranger);
    assert_eq!(json("list")["domains"], serde_json::json!([]));
}

#[test]
fn places_and_memory_of_domains_are_watched() {
    let domain = Domain::start(
        &format!("--quiet --name busy --cpus 2 --memory {SIZE_MIB}M --policy strict --nodes 1"),
        &format!("--mib {SIZE_MIB} --threads 2 --spin"),
    );
    let stranger = Stranger::start(4, "--spin");
    let host = host();
    let mut watcher = host.watcher(Patterns::parse(["strangers/*"]).unwrap());
    let turn =
        |interval: u64| Turn { interval, now_ns: interval * 1_000_000_000, ..Turn::default() };
    watcher.observe(&History::default(), turn(1)).unwrap();
    let used = |group: &str| -> u64 {
        let text = read(&format!("/sys/fs/cgroup/{group}/cpu.stat"));
        text.lines().next().unwrap().strip_prefix("usage_usec ").unwrap().parse().unwrap()
    };
    let groups = ["nearside/busy", "strangers/one"];
    let before = groups.map(used);
    await_that("both have run", || {
        groups.map(used).iter().zip(before).all(|(now, before)| *now > before + 200_000)
    });
    let seen = watcher.observe(&History::default(), turn(2)).unwrap();
    let (own, other) = (&seen.loads[&"busy".into()], &seen.loads[&"/strangers/one".into()]);
    let nodes = |by_node: &nearside_policy::ByNode| {
        by_node.keys().copied().collect::<NodeSet>().to_string()
    };
    assert_eq!(
        (nodes(&own.cpu_ns), &own.bound_to),
        ("1".into(), &None),
        "its binding is Nearside's own: {own:?}"
    );
    assert_eq!(
        (nodes(&other.cpu_ns), &other.bound_to),
        ("0".into(), &Some(NodeSet::from([NodeId(0)]))),
        "{other:?}"
    );
    assert!(
        own.cpu_ns[&NodeId(1)] >= 200_000_000 && other.cpu_ns[&NodeId(0)] >= 200_000_000,
        "{own:?} {other:?}"
    );
    let busy = seen.machine.parts.iter().find(|part| part.id.domain() == "busy").unwrap();
    assert!(busy.resident_bytes[&NodeId(1)] >= (SIZE_MIB - 1) * MIB, "{busy:?}");
    assert!(seen.nodes[&NodeId(1)].busy_ns > 0 && seen.nodes.len() == 4, "{:?}", seen.nodes);
    drop(stranger);
    domain.end();
    let seen = watcher.observe(&History::default(), turn(3)).unwrap();
    assert_eq!(seen.machine.parts.len(), 0);
}
