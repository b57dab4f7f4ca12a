//! Watching a made-up host; on request, the cost of watching a thousand domains of this one.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod kills;
mod records;
mod still;

use common::{Made, home};
use nearside_linux::{
    Host, Paths, advise,
    store::{Part, Record, Store},
    watch::{Patterns, Turn, Watcher},
};
use nearside_policy::{
    ByNode, ControlObservation, Controller, Described, History, Home, Homes, Limits, MoveReport,
    Newcomer, Owner, PartHistory, Stayed, Tuning, total,
};
use nearside_topology::{NodeId, NodeSet};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const SECOND_NS: u64 = 1_000_000_000;
const INTERVAL_NS: u64 = 2 * SECOND_NS;

fn made() -> Made {
    let made = Made::new("memory");
    made.file("proc/zoneinfo", "");
    made
}

impl Made {
    fn watcher(&self, patterns: &[&str]) -> Watcher {
        self.host().watcher(Patterns::parse(patterns).unwrap())
    }

    /// A group with a process, its CPU time and its memory.
    fn group(&self, path: &str, usage_us: u64, bytes: [u64; 2]) {
        self.file(&format!("cg/{path}/cgroup.events"), "populated 1\nfrozen 0\n");
        self.file(&format!("cg/{path}/cpu.stat"), &format!("usage_usec {usage_us}\nuser_usec 0\n"));
        let [first, second] = bytes;
        self.file(
            &format!("cg/{path}/memory.numa_stat"),
            &format!("anon N0={first} N1={second}\nfile N0=9 N1=9\n"),
        );
    }

    /// The threads of a group, by number, CPU, CPU time and waiting. The kernel has no threads of
    /// such numbers.
    fn threads(&self, path: &str, threads: &[(u32, u32, u64, u64)]) {
        let numbers: String =
            threads.iter().map(|(thread, ..)| format!("{}\n", 9_000_000 + thread)).collect();
        self.file(&format!("cg/{path}/cgroup.threads"), &numbers);
        for (thread, cpu, ran_ns, waited_ns) in threads {
            let thread = 9_000_000 + thread;
            let before =
                "S 1 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 5 1 1 1 1 1 0 0 0 0 0 0 0 0 0 0 17";
            self.file(
                &format!("proc/{thread}/task/{thread}/stat"),
                &format!("{thread} (x y) {before} {cpu} 0 0"),
            );
            self.file(
                &format!("proc/{thread}/task/{thread}/schedstat"),
                &format!("{ran_ns} {waited_ns} 1"),
            );
        }
    }

    fn record(&self, path: &str) -> Record {
        let inode = fs::metadata(self.path(&format!("cg{path}")))
            .map(|meta| std::os::unix::fs::MetadataExt::ino(&meta));
        found(path, inode.unwrap(), "b", home(&[1]))
    }

    /// A busy group with a record.
    fn put_vm(&self, usage_us: u64) {
        self.group("m/vm", usage_us, [4096, 0]);
        self.threads("m/vm", &[(1, 0, usage_us * 1000, 0)]);
        if !self.path("run/nearside/domains").exists() {
            self.put(self.record("/m/vm"));
        }
    }

    fn put(&self, record: Record) {
        let store = Store::new(&self.path("run/nearside"), "b");
        store.lock().unwrap().put(&record).unwrap();
    }
}

/// The record of a group that was found.
fn found(path: &str, inode: u64, boot_id: &str, home: Home) -> Record {
    Record {
        name: path.into(),
        boot_id: boot_id.into(),
        cgroup: path.into(),
        inode,
        started_unix_s: 0,
        found_by: Some("m/*".into()),
        command: Vec::new(),
        limits: Limits::default(),
        parts: Part::at(home).into(),
    }
}

fn turn(interval: u64) -> Turn<'static> {
    Turn { interval, now_ns: interval * INTERVAL_NS, ..Turn::default() }
}

fn names(seen: &ControlObservation) -> Vec<&str> {
    seen.machine.parts.iter().map(|domain| domain.id.domain()).collect()
}

fn by_node(amounts: [u64; 2]) -> ByNode {
    (0..).map(NodeId).zip(amounts).filter(|(_, amount)| *amount > 0).collect()
}

/// A history in which a domain is due in that interval.
fn due(domain: &str, interval: u64) -> History {
    let known = PartHistory { next_sample: interval, ..PartHistory::default() };
    History { parts: [(domain.into(), known)].into(), ..History::default() }
}

#[test]
fn a_domain_has_a_load_from_its_second_sample_on() {
    let made = made();
    made.group("m/vm", 1_000_000, [4096, 8192]);
    made.threads("m/vm", &[(1, 0, 100, 0), (2, 2, 100, 7)]);
    let mut watcher = made.watcher(&["m/*"]);
    let first = watcher.observe(&History::default(), turn(1)).unwrap();
    assert_eq!((names(&first), first.loads.len(), first.length_ns), (vec!["/m/vm"], 0, 0));
    assert_eq!(
        first.machine.parts[0].resident_bytes,
        ByNode::from([(NodeId(0), 4096), (NodeId(1), 8192)])
    );
    assert_eq!((watcher.found_by("/m/vm"), watcher.found_by("/m")), (Some("m/*"), None));

    // A second of CPU time, a quarter of it on node 0 as far as threads show.
    made.group("m/vm", 2_000_000, [0, 8192]);
    made.threads("m/vm", &[(1, 0, 600, 5), (2, 2, 1600, 107)]);
    let second = watcher.observe(&History::default(), turn(2)).unwrap();
    let load = &second.loads[&"/m/vm".into()];
    assert_eq!(
        (load.over_ns, &load.cpu_ns),
        (INTERVAL_NS, &by_node([SECOND_NS / 4, SECOND_NS / 4 * 3]))
    );
    assert_eq!((load.waited_ns, load.owner, &load.bound_to), (105, Owner::Foreign, &None));
    assert_eq!(second.machine.parts[0].resident_bytes[&NodeId(0)], 0);
}

#[test]
fn a_process_in_a_child_group_whose_name_is_no_text_counts() {
    let made = made();
    made.group("m/vm", 0, [4096, 0]);
    let child = made.path("cg/m/vm").join(OsStr::from_bytes(b"\xff"));
    fs::create_dir(&child).unwrap();
    fs::write(child.join("cgroup.procs"), "9000001\n").unwrap();
    made.threads("m/vm", &[(1, 2, 0, 0)]);
    let threads = made.path("cg/m/vm/cgroup.threads");
    fs::rename(threads, child.join("cgroup.threads")).unwrap();
    made.group("m/other", 0, [4096, 0]);
    let other = OsStr::from_bytes(b"\xfe");
    fs::rename(made.path("cg/m/other"), made.path("cg/m").join(other)).unwrap();
    let mut watcher = made.watcher(&["m/*"]);
    let seen = watcher.observe(&History::default(), turn(1)).unwrap();
    assert_eq!(names(&seen), ["/m/\\xfe", "/m/vm"]);
    let usage = watcher.usage("/m/vm").unwrap();
    assert_eq!((usage.processes, total(&usage.cpu.threads)), (1, 1));
}

#[test]
fn domains_that_are_not_due_keep_their_last_sample() {
    let made = made();
    made.group("m/vm", 0, [4096, 0]);
    made.threads("m/vm", &[(1, 2, 0, 0)]);
    let mut watcher = made.watcher(&["m/*"]);
    // A new domain is sampled at once, whatever its history.
    let first = watcher.observe(&due("/m/vm", 5), turn(1)).unwrap();
    assert_eq!(first.machine.parts[0].resident_bytes[&NodeId(0)], 4096);
    made.group("m/vm", 8_000, [0, 4096]);
    made.threads("m/vm", &[(1, 0, 900, 900)]);
    let later = watcher.observe(&due("/m/vm", 5), turn(4)).unwrap();
    assert_eq!((names(&later), later.loads.len()), (vec!["/m/vm"], 0));
    assert_eq!(later.machine.parts[0].resident_bytes[&NodeId(0)], 4096);
    // 8 ms in 8 s are too little to read the threads.
    let load =
        watcher.observe(&due("/m/vm", 5), turn(5)).unwrap().loads.remove(&"/m/vm".into()).unwrap();
    assert_eq!(
        (load.over_ns, load.cpu_ns, load.waited_ns),
        (4 * INTERVAL_NS, by_node([0, 8_000_000]), 0)
    );
}

/// 17 domains of 512 threads have more threads than an interval reads. The last one in the alphabet
/// is not taken for idle.
#[test]
fn where_more_threads_run_than_can_be_looked_at_domains_take_turns() {
    let made = made();
    let names: Vec<String> = (0..17).map(|n| format!("m/{n:02}")).collect();
    let mut watcher = made.watcher(&["m/*"]);
    for look in 1..=2_u64 {
        for name in &names {
            made.group(name, look * 1_000_000, [0, 0]);
            made.threads(name, &[(1, 2, look * SECOND_NS, 0)]);
            let others: String =
                (1..=512).map(|thread| format!("{}\n", 9_000_000 + thread)).collect();
            made.file(&format!("cg/{name}/cgroup.threads"), &others);
        }
        let seen = watcher.observe(&History::default(), turn(look)).unwrap();
        if look == 2 {
            let ran = seen.loads.values().filter(|load| load.cpu_ns == by_node([0, SECOND_NS]));
            assert_eq!(ran.count(), 17, "{:?}", seen.loads);
        }
    }
    let said = watcher.take_notices();
    assert_eq!(
        said.iter().filter(|notice| notice.contains("looked at in turn")).count(),
        1,
        "{said:?}"
    );
}

#[test]
fn a_schedulers_figures_replace_those_of_threads() {
    let made = made();
    made.group("m/vm", 0, [4096, 0]);
    made.threads("m/vm", &[(1, 0, 0, 0)]);
    let mut watcher = made.watcher(&["m/*"]);
    watcher.observe(&History::default(), turn(1)).unwrap();
    let inode = watcher.cgroup_inode("/m/vm").unwrap();
    let mut look = |interval, usage_us, counted| {
        made.group("m/vm", usage_us, [4096, 0]);
        let counted = [(inode, by_node(counted))].into();
        let turn = Turn { scheduler: Some(&counted), soft_affinity: true, ..turn(interval) };
        let seen = watcher.observe(&History::default(), turn).unwrap();
        assert!(seen.soft_affinity);
        seen.loads[&"/m/vm".into()].cpu_ns.clone()
    };
    // Its counts before the first sample cover an unknown time.
    assert_eq!(look(2, 1_000_000, [0, 7 * SECOND_NS]), by_node([SECOND_NS, 0]));
    assert_eq!(
        look(3, 3_000_000, [SECOND_NS / 2, 8 * SECOND_NS]),
        by_node([SECOND_NS / 2, SECOND_NS])
    );
}

#[test]
fn groups_come_and_go_and_none_counts_twice() {
    let made = made();
    made.group("m/vm", 0, [0, 0]);
    made.group("m/vm/vcpu0", 0, [0, 0]);
    made.group("m/db", 0, [0, 0]);
    made.group("nearside/x", 0, [0, 0]);
    made.file("cg/m/empty/cgroup.events", "populated 0\n");
    made.put(made.record("/m/db"));
    let mut watcher = made.watcher(&["m/*", "m/*/*", "m*", "n*"]);
    let mut look = |interval| {
        let seen = watcher.observe(&History::default(), turn(interval)).unwrap();
        let home = |name: &str| {
            seen.machine.parts.iter().find(|domain| domain.id.domain() == name)?.home.clone()
        };
        (names(&seen).join(" "), home("/m/db").is_some())
    };
    // "m*" and "n*" name /m and /nearside, which contain domains and so are none.
    assert_eq!(look(1), ("/m/db /m/vm".into(), true));
    made.file("cg/m/empty/cgroup.events", "populated 1\n");
    fs::remove_dir_all(made.path("cg/m/vm")).unwrap();
    assert_eq!(look(2), ("/m/db /m/empty".into(), true));
    // A new group of the same path is another domain.
    made.group("m/other", 0, [0, 0]);
    fs::remove_dir_all(made.path("cg/m/db")).unwrap();
    fs::rename(made.path("cg/m/other"), made.path("cg/m/db")).unwrap();
    assert_eq!(look(3), ("/m/db /m/empty".into(), false));
    made.file("cg/m/db/cgroup.events", "populated 0\n");
    assert_eq!(look(4), ("/m/empty".into(), false));
}

#[test]
fn neither_the_host_nor_this_process_is_a_domain() {
    let made = made();
    for path in [
        "s.slice/own.service",
        "s.slice/x.service",
        "t.slice",
        "t.slice/y.slice",
        "init.scope",
        "other.scope",
    ] {
        made.group(path, 0, [0, 0]);
    }
    made.file("proc/self/cgroup", "0::/s.slice/own.service\n");
    let found = |patterns: &[&str]| {
        let seen = made.watcher(patterns).observe(&History::default(), turn(1)).unwrap();
        names(&seen).join(" ")
    };
    assert_eq!(found(&["s.slice", "s.slice/*"]), "/s.slice/x.service");
    assert_eq!(found(&["init.scope", "i*", "o*"]), "/other.scope");
    // A slice of all services or users must be named in full.
    assert_eq!(found(&["t*"]), "");
    assert_eq!(found(&["t.slice"]), "/t.slice");
    assert_eq!(found(&["t*/*"]), "/t.slice/y.slice");
}

#[test]
fn found_domains_go_with_their_pattern() {
    let made = made();
    made.group("m/vm", 0, [0, 0]);
    made.group("m/db", 0, [0, 0]);
    made.put(made.record("/m/vm"));
    let mut watcher = made.watcher(&["m/*"]);
    let look = |watcher: &mut Watcher, interval| {
        let seen = watcher.observe(&History::default(), turn(interval)).unwrap();
        (names(&seen).join(" "), watcher.records().count(), watcher.no_longer_named().join(" "))
    };
    assert_eq!(look(&mut watcher, 1), ("/m/db /m/vm".into(), 1, String::new()));
    // Another matching pattern is enough.
    watcher.set_patterns(Patterns::parse(["m/v*"]).unwrap());
    assert_eq!(look(&mut watcher, 2), ("/m/vm".into(), 1, String::new()));
    watcher.set_patterns(Patterns::parse(["m/d*"]).unwrap());
    assert_eq!(look(&mut watcher, 3), ("/m/db".into(), 0, "/m/vm".into()));
    // A daemon that starts with such a configuration does the same.
    assert_eq!(look(&mut made.watcher(&["m/d*"]), 1), ("/m/db".into(), 0, "/m/vm".into()));
}

/// The waiting time in each sample of a domain that uses more CPU time from the seventeenth sample
/// on and none in the last. It waits another time in each interval, so the figure changes when its
/// threads are read.
fn told_of_waiting(made: &Made, has_scheduler: bool) -> Vec<Option<u64>> {
    made.group("m/vm", 0, [0, 0]);
    let mut watcher = made.watcher(&["m/*"]);
    let mut waited = |interval: u64, counted_ns| {
        made.group("m/vm", counted_ns / 1000, [0, 0]);
        made.threads("m/vm", &[(1, 0, counted_ns, interval * interval * 1_000_000)]);
        let counted = watcher
            .cgroup_inode("/m/vm")
            .map(|inode| (inode, by_node([counted_ns, 0])))
            .into_iter()
            .collect();
        let scheduler = has_scheduler.then_some(&counted);
        let turn = Turn { scheduler, soft_affinity: has_scheduler, ..turn(interval) };
        let mut seen = watcher.observe(&History::default(), turn).unwrap();
        seen.loads.remove(&"/m/vm".into()).map(|load| load.waited_ns)
    };
    let more = |interval: u64| 4_u64.pow(interval as u32 - 12) * SECOND_NS;
    let steady: Vec<_> = (1..=16).map(|interval| waited(interval, interval * SECOND_NS)).collect();
    let grows: Vec<_> = (17..=20).map(|interval| waited(interval, more(interval))).collect();
    [steady, grows, vec![waited(21, more(20))]].concat()
}

#[test]
fn threads_are_read_less_often_if_their_nodes_are_known() {
    let looks = |told: &[Option<u64>]| told.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let alone = made();
    fs::remove_dir_all(alone.path("sys/devices/system/node/node1")).unwrap();
    alone.file("sys/devices/system/node/node0/distance", "10");
    for (made, has_scheduler) in [(made(), true), (alone, false)] {
        let told = told_of_waiting(&made, has_scheduler);
        // The ninth sample is thorough. From then on one in four reads threads, until the domain
        // uses more CPU time than before.
        assert!((1..=2).contains(&looks(&told[9..16])), "{told:?}");
        assert_eq!(looks(&told[16..20]), 3, "{told:?}");
        // A sample shows at once that it idles.
        assert_eq!(told[20], Some(0));
    }
    assert_eq!(looks(&told_of_waiting(&made(), false)[9..16]), 6);
}

#[test]
fn mappings_are_read_again_after_a_move() {
    let made = made();
    made.group("m/vm", 0, [0, 0]);
    fs::remove_file(made.path("cg/m/vm/memory.numa_stat")).unwrap();
    made.file("cg/m/vm/cgroup.procs", "9000001\n");
    let mut watcher = made.watcher(&["m/*"]);
    let mut held = |interval, mapped: &str, moved: &[&str]| {
        made.file("proc/9000001/numa_maps", mapped);
        let report = |domain: &&str| MoveReport {
            part: (*domain).into(),
            from: NodeId(0),
            moved_bytes: 4096,
            stayed: Stayed::new(),
        };
        let moved: Vec<_> = moved.iter().map(report).collect();
        let turn = Turn { moved: &moved, ..turn(interval) };
        let seen = watcher.observe(&History::default(), turn).unwrap();
        assert_eq!(seen.moved.len(), moved.len());
        seen.machine.parts[0].resident_bytes.clone()
    };
    let (first, second) = ("7000 default anon=1 N0=1\n", "7000 default anon=1 N1=1\n");
    assert_eq!(held(1, first, &[]), by_node([4096, 0]));
    assert_eq!(held(2, second, &["/m/other"]), by_node([4096, 0]));
    assert_eq!(held(3, second, &["/m/vm"]), by_node([0, 4096]));
}

/// The records cannot be read, and nothing is sampled; or the machine cannot be read, once the
/// domains were sampled.
#[test]
fn loads_survive_failed_observations() {
    let made = made();
    made.put_vm(1_000_000);
    // Without this file, the machine of the last observation stands until the second read.
    fs::remove_file(made.path("sys/devices/system/cpu/online")).unwrap();
    let mut watcher = made.watcher(&["m/*"]);
    let mut load = |interval, usage_us| {
        made.put_vm(usage_us);
        let seen = watcher.observe(&History::default(), turn(interval)).ok()?;
        let load = seen.loads.get(&"/m/vm".into()).map(|it| (it.over_ns, total(&it.cpu_ns)));
        Some((seen.length_ns, load))
    };
    assert_eq!(load(1, 1_000_000), Some((0, None)));
    assert_eq!(load(2, 2_000_000), Some((INTERVAL_NS, Some((INTERVAL_NS, SECOND_NS)))));
    let (records, cpus) = (made.path("run/nearside/domains"), made.path("sys/devices/system"));
    let away = made.path("sys/away");
    fs::rename(&cpus, &away).unwrap();
    assert_eq!(load(3, 3_000_000), None);
    fs::rename(&away, &cpus).unwrap();
    let allow = |mode| fs::set_permissions(&records, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o777);
    assert_eq!(load(4, 4_000_000), None);
    allow(0o755);
    let all = (3 * INTERVAL_NS, Some((3 * INTERVAL_NS, 3 * SECOND_NS)));
    assert_eq!(load(5, 5_000_000), Some(all));
    assert_eq!(load(6, 6_000_000), Some((INTERVAL_NS, Some((INTERVAL_NS, SECOND_NS)))));
}

/// A thousand groups of this host, each with a process that sleeps.
struct Thousand {
    sleepers: Vec<Child>,
    groups: Vec<PathBuf>,
}

impl Drop for Thousand {
    fn drop(&mut self) {
        for sleeper in &mut self.sleepers {
            let _ = sleeper.kill();
            let _ = sleeper.wait();
        }
        for group in self.groups.iter().rev() {
            let _ = fs::remove_dir(group);
        }
    }
}

fn cpu_time_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn resident_mib() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() / 256
}

/// The cost of watching on this host: `cargo test --release -p nearside-linux --test watch --
/// --ignored --nocapture`, as root.
///
/// The files are the kernel's own. If the cgroup v2 tree has no memory controller,
/// `memory.numa_stat` is that of version 1, which has fewer lines.
#[test]
#[ignore = "a measurement, which makes a thousand cgroups and needs root"]
fn a_thousand_idle_domains() {
    const DOMAINS: usize = 1000;
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mounted = |kind: &str, option: &str| {
        let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines
            .find(|words| words[2] == kind && words[3].split(',').any(|word| word == option))
            .map(|words| words[1].to_owned())
    };
    let tree = mounted("cgroup2", "rw").unwrap();
    let memory = mounted("cgroup", "memory").unwrap_or_else(|| tree.clone());
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let link = |from: &Path, to: &Path| std::os::unix::fs::symlink(from, to).unwrap();
    link(Path::new("/sys"), &folder.path().join("sys"));
    link(Path::new("/proc"), &folder.path().join("host"));
    fs::create_dir_all(folder.path().join("proc/self")).unwrap();
    for name in fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name != "self")
    {
        link(&Path::new("/proc").join(&name), &folder.path().join("proc").join(&name));
    }
    fs::create_dir(folder.path().join("run")).unwrap();
    let cg = folder.path().join("cg");
    fs::create_dir_all(cg.join("b")).unwrap();
    fs::write(cg.join("cgroup.controllers"), "memory\n").unwrap();
    let mountinfo = format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", cg.display());
    fs::write(folder.path().join("proc/self/mountinfo"), mountinfo).unwrap();

    let mut all = Thousand { sleepers: Vec::new(), groups: Vec::new() };
    let mut parents = vec![tree.clone(), memory.clone()];
    parents.dedup();
    for parent in &parents {
        all.groups.push(Path::new(parent).join("nearside-bench"));
        fs::create_dir_all(all.groups.last().unwrap()).unwrap();
    }
    for number in 0..DOMAINS {
        let sleeper = Command::new("sleep").arg("infinity").stdin(Stdio::null()).spawn().unwrap();
        let ours = cg.join(format!("b/{number}"));
        fs::create_dir(&ours).unwrap();
        link(
            &Path::new("/proc").join(sleeper.id().to_string()),
            &folder.path().join(format!("proc/{}", sleeper.id())),
        );
        for parent in &parents {
            let group = Path::new(parent).join(format!("nearside-bench/{number}"));
            fs::create_dir(&group).unwrap();
            fs::write(group.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
            for file in ["cgroup.events", "cpu.stat", "cgroup.threads", "memory.numa_stat"] {
                if group.join(file).exists() && !ours.join(file).exists() {
                    link(&group.join(file), &ours.join(file));
                }
            }
            all.groups.push(group);
        }
        all.sleepers.push(sleeper);
    }

    let host =
        Host::open(Paths { root: folder.path().into(), state: folder.path().join("run/nearside") })
            .unwrap();
    let boot_id = host.boot_id().to_owned();
    let before_mib = resident_mib();
    let mut watcher = host.watcher(Patterns::parse(["b/*"]).unwrap());
    let (mut history, tuning) = (History::default(), Tuning::default());
    let mut cost = Vec::new();
    for interval in 1..=60 {
        if interval == 3 {
            let store = Store::new(&folder.path().join("run/nearside"), &boot_id);
            let locked = store.lock().unwrap();
            for (number, group) in
                (0..DOMAINS).map(|number| (number, cg.join(format!("b/{number}"))))
            {
                let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(group).unwrap());
                let record = found(&format!("/b/{number}"), inode, &boot_id, home(&[0]));
                locked.put(&record).unwrap();
            }
        }
        let begin = cpu_time_ns();
        let seen = watcher.observe(&history, turn(interval)).unwrap();
        let looked = cpu_time_ns();
        history = Homes { tuning }.plan(&seen, &history).1;
        cost.push(((looked - begin) / 1000, (cpu_time_ns() - looked) / 1000, seen.loads.len()));
        assert_eq!(seen.machine.parts.len(), DOMAINS);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    println!("us of CPU to look, us to decide, domains looked at; by interval: {cost:?}");
    let steady = &cost[44..];
    let mean = |part: fn(&(u64, u64, usize)) -> u64| {
        steady.iter().map(part).sum::<u64>() / steady.len() as u64
    };
    let (look_us, decide_us) = (mean(|cost| cost.0), mean(|cost| cost.1));
    let percent = |us: u64| us as f64 / (INTERVAL_NS / 1000) as f64 * 100.0;
    println!(
        "steady: {look_us} us to look = {:.2} % of a CPU at 2 s, {decide_us} us to decide = \
         {:.2} %; {} MiB more",
        percent(look_us),
        percent(decide_us),
        resident_mib() - before_mib
    );
    assert!(steady.iter().all(|(.., looked_at)| *looked_at < DOMAINS / 4), "{steady:?}");
}

#[test]
fn a_machine_of_libvirt_is_a_newcomer_while_its_reservation_waits() {
    let made = Made::of("memory", 2, 64 << 10, 32 << 10);
    made.file("proc/zoneinfo", "");
    made.file("proc/uptime", "100.00 1.00\n");
    let mut watcher = made.watcher(&["machine.slice/*"]);
    let mut host = made.host();
    let topology = host.topology().unwrap();
    let model = nearside_policy::CostModel::default();
    let advice = advise::advise(&mut host, 1, 8 << 20, &model, &topology, || true).unwrap();
    assert_eq!(advice.nodes.to_string(), "0");
    for name in ["machine-qemu\\x2d1\\x2dvm.scope", "libpod-1.scope"] {
        let group = format!("machine.slice/{name}");
        made.group(&group, 0, [1 << 20, 0]);
        made.file(&format!("cg/{group}/cgroup.procs"), "7\n");
        fs::create_dir_all(made.path(&format!("cg/{group}/libvirt/vcpu0"))).unwrap();
    }
    made.file("proc/7/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n");
    made.file("proc/7/stat", "7 (q) S 1 1 1 0 -1 0 1 0 0 0 1 2 3 4 20 0 1 0 10100 0 0\n");
    let reserved = |watcher: &mut Watcher, interval| {
        let seen = watcher.observe(&History::default(), turn(interval)).unwrap();
        seen.machine
            .reservations
            .iter()
            .map(|it| nearside_policy::total(&it.bytes) >> 20)
            .sum::<u64>()
    };
    assert_eq!(reserved(&mut watcher, 1), 8);
    let newcomers = watcher.newcomers();
    let paths: Vec<_> = newcomers.iter().map(|newcomer| newcomer.cgroup.as_str()).collect();
    assert_eq!(paths, ["/machine.slice/machine-qemu\\x2d1\\x2dvm.scope"]);
    let described = |asked_numad| -> Vec<_> {
        let name = "vm".into();
        let described = Described { name, asked_numad, vcpus: 1, memory_bytes: 8 << 20 };
        let described = Some(described);
        newcomers.iter().map(|it| Newcomer { described: described.clone(), ..it.clone() }).collect()
    };
    assert_eq!(watcher.adopters(newcomers.clone()), [], "libvirt has not been asked about it");
    for (uptime_s, must) in [(114, false), (115, true)] {
        made.file("proc/uptime", &format!("{uptime_s}.00 1.00\n"));
        assert_eq!(watcher.must_put_off(&newcomers), must, "{uptime_s} s");
        assert!(!watcher.must_put_off(&described(false)), "libvirt has described it");
    }
    host.begin().unwrap().put_off(&newcomers).unwrap();
    made.file("proc/uptime", "170.00 1.00\n");
    assert_eq!(reserved(&mut watcher, 1), 8, "beyond its minute");
    assert_eq!(watcher.newcomers(), newcomers);
    assert_eq!(watcher.adopters(described(false)), [], "it has bindings of its own");
    let adopters = watcher.adopters(described(true));
    assert_eq!(adopters, described(true));
    host.begin().unwrap().adopt(&adopters).unwrap();
    assert_eq!(reserved(&mut watcher, 2), 7, "less the memory that it holds");
    assert!(watcher.newcomers().is_empty());
    made.file("proc/uptime", "900.00 1.00\n");
    assert_eq!(reserved(&mut watcher, 3), 7);
}
