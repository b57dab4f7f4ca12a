//! Reports agree with the kernel's own files.

use nearside_lab::{
    Domain, MIB, Own, await_that, by_node, charged, json, nearside, node_memory, read, run, stderr,
    stdout, toucher, words, write,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    os::unix::ffi::OsStrExt,
    path::Path,
    process::{Child, Command, Stdio},
};

/// The size of a domain's record and of its arguments. The domain has written them into a file
/// system that keeps files in shared memory, so these pages are charged to it, and none of its
/// processes maps them.
fn record_bytes(domain: &str) -> u64 {
    let bytes = |file: &str| {
        let path = format!("/run/nearside/domains/{domain}.{file}");
        fs::metadata(path).unwrap().len().next_multiple_of(4096)
    };
    bytes("json") + bytes("args")
}

/// Waits until the memory controller has charged a group for all memory that its sleeping processes
/// map, and for these bytes besides. Returns the charge by node.
fn settled(group: &str, processes: &[u32], besides: u64) -> BTreeMap<u32, u64> {
    let own = Own::of(processes.iter().copied());
    await_that("the memory controller has caught up", || {
        charged(group).values().sum::<u64>() == own.total() + besides
    });
    let charged = charged(group);
    for (node, bytes) in &charged {
        let mapped = own.bytes.get(node).copied().unwrap_or(0);
        let most = mapped + own.unplaced_bytes + besides;
        assert!((mapped..=most).contains(bytes), "node {node}: {charged:?}, {own:?}");
    }
    charged
}

/// Asserts that `show` has found the mappings of these processes.
fn assert_mapped(shown: &Value, own: &Own) {
    let mut mapped = BTreeMap::new();
    for kind in ["anonymous", "shared", "huge"] {
        for (node, bytes) in by_node(&shown["mapped"]["memory"][kind]) {
            *mapped.entry(node).or_default() += bytes;
        }
    }
    assert_eq!(mapped, own.bytes, "{shown:#}");
}

#[test]
fn a_domains_bytes_are_those_of_its_processes_to_the_byte() {
    let flags = "--quiet --name seen --cpus 2 --memory 128M --policy interleave --nodes 1,3";
    let (first, second) =
        (Domain::start(flags, "--mib 24"), Domain::join("seen", "--mib 16 --kind shm"));
    let processes = [first.process(), second.process()];
    let bytes = settled("/sys/fs/cgroup/nearside/seen", &processes, record_bytes("seen"));
    assert!([1, 3].iter().all(|node| bytes[node] >= 20 * MIB), "{bytes:?}");
    let off_home: u64 =
        bytes.iter().filter(|(node, _)| ![1, 3].contains(*node)).map(|(_, bytes)| bytes).sum();

    for line in ["list -n", "stat --interval 0", "show seen --interval 0"] {
        let answer = json(line);
        let seen = if line.starts_with("show") { &answer } else { &answer["domains"][0] };
        assert_eq!(by_node(&seen["own_bytes"]), bytes, "{line}: {seen:#}");
        assert_eq!(seen["debt_bytes"], off_home, "{line}: {seen:#}");
        assert_eq!(seen["usage"]["processes"], 2, "{line}: {seen:#}");
        assert_eq!(
            by_node(&seen["claim"]["bytes"]),
            [(1, 64 * MIB), (3, 64 * MIB)].into(),
            "{line}: {seen:#}"
        );
        assert_eq!(
            seen["claim"]["vcpus"]
                .as_object()
                .unwrap()
                .values()
                .filter_map(Value::as_u64)
                .sum::<u64>(),
            2
        );
    }
    let shown = json("show seen --interval 0");
    assert_mapped(&shown, &Own::of(processes));
    let under_policy = by_node(&shown["mapped"]["policies"]["interleave:1,3"]);
    let filled = |node| first.filled()[&node] + second.filled()[&node];
    assert!([1, 3].iter().all(|node| under_policy[node] >= filled(*node)), "{shown:#}");
    assert_eq!(shown["mapped"]["processes"], 2);
}

/// Nanoseconds that the threads of a process ever ran.
fn ran_ns(process: u32) -> u64 {
    let tasks =
        fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|task| task.unwrap().path());
    let ran = |task: std::path::PathBuf| read(task.join("schedstat").to_str().unwrap());
    tasks.map(|task| ran(task).split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// The node of the CPU that a process with one thread runs on or ran on last.
fn node_of(process: u32) -> u32 {
    let stat = read(&format!("/proc/{process}/stat"));
    // The 39th field; the second ends with the last parenthesis.
    let cpu = stat.rsplit(')').next().unwrap().split_whitespace().nth(36).unwrap();
    (0..4)
        .find(|node| Path::new(&format!("/sys/devices/system/node/node{node}/cpu{cpu}")).exists())
        .unwrap()
}

#[test]
fn a_local_share_is_that_of_the_bytes_and_the_cpu_time_shown_with_it() {
    let busy = Domain::start(
        "--quiet --name busy --cpus 4 --memory 32M --policy preferred --nodes 1,3",
        "--mib 8 --threads 2 --spin",
    );
    let idle = Domain::start(
        "--quiet --name idle --cpus 2 --memory 32M --policy interleave --nodes 0,2,3",
        "--mib 8",
    );
    let before = ran_ns(busy.process());
    let stat = json("stat --interval 2");
    let ran = ran_ns(busy.process()) - before;
    for (number, (name, process)) in
        [("busy", busy.process()), ("idle", idle.process())].into_iter().enumerate()
    {
        let domain = &stat["domains"][number];
        assert_eq!(domain["name"], name);
        let [threads, time] =
            ["threads", "time_ns"].map(|figure| by_node(&domain["usage"]["cpu"][figure]));
        if name == "busy" {
            assert!((1..=ran).contains(&time.values().sum()), "it ran {ran} ns: {domain:#}");
            assert_eq!(threads.values().sum::<u64>(), 3, "{domain:#}");
        } else {
            assert!(time.is_empty(), "it sleeps: {domain:#}");
            assert_eq!(threads, [(node_of(process), 1)].into(), "{domain:#}");
        }
        let (weight, bytes) =
            (if time.is_empty() { threads } else { time }, by_node(&domain["own_bytes"]));
        let both: u128 = weight
            .iter()
            .map(|(node, w)| u128::from(*w) * u128::from(*bytes.get(node).unwrap_or(&0)))
            .sum();
        let all =
            u128::from(weight.values().sum::<u64>()) * u128::from(bytes.values().sum::<u64>());
        let share = domain["local_share"].as_f64().unwrap();
        assert!((share - both as f64 / all as f64).abs() < 1e-9, "{both} of {all}: {domain:#}");
    }
}

/// The answer of `nearside` run on a node's CPUs, so that its own memory comes from there.
fn json_from(node: u32, line: &str) -> Value {
    let cpus = read(&format!("/sys/devices/system/node/node{node}/cpulist"));
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpus]).arg(nearside().get_program());
    let output = command.args(words(line)).args(["--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_frame_of_top_agrees_with_list() {
    let flags = "--quiet --name framed --cpus 2 --memory 128M --policy interleave --nodes 1,3";
    let framed = Domain::start(flags, "--mib 24");
    settled("/sys/fs/cgroup/nearside/framed", &[framed.process()], record_bytes("framed"));
    let listed = &json("list")["domains"][0];
    let output = run(words("top --once --interval 0.1"));
    assert!(output.status.success(), "{}", stderr(&output));
    let frame = stdout(&output);
    let line =
        frame.lines().find(|line| line.contains("framed")).unwrap_or_else(|| panic!("{frame}"));
    let (placed, figures) = line.split_once(']').unwrap_or_else(|| panic!("no bar: {frame}"));
    assert_eq!(
        words(placed).take(4).collect::<Vec<_>>(),
        ["framed", "1,3", "explicit", "interleave"],
        "{frame}"
    );
    let share = (listed["local_share"].as_f64().unwrap() * 100.0).floor().to_string();
    assert_eq!(words(figures).take(2).collect::<Vec<_>>(), [&share, "%"], "{listed:#}\n{frame}");
}

type FreeBlocks = BTreeMap<(u64, String), Vec<u64>>;

/// Lines such as `Node 0, zone  DMA32   3   1 ...`: free blocks by node and zone.
fn free_blocks() -> FreeBlocks {
    let line = |line: &str| {
        let (node, rest) = line.strip_prefix("Node ").unwrap().split_once(", zone ").unwrap();
        let mut words = rest.split_whitespace();
        let zone = words.next().unwrap().to_owned();
        ((node.parse().unwrap(), zone), words.map(|count| count.parse().unwrap()).collect())
    };
    read("/proc/buddyinfo").lines().map(line).collect()
}

#[test]
fn the_heap_is_that_of_buddyinfo() {
    let zones: BTreeSet<_> = free_blocks().into_keys().collect();
    let mut unseen = zones.clone();
    // Blocks come and go, so each zone is read until it matches the state just before or just
    // after: a dozen counts do not match by chance.
    for round in 0.. {
        assert!(round < 400, "nearside shows other free blocks than the kernel: {unseen:?}");
        let before = free_blocks();
        let stat = json_from(round % 4, "stat --heap --interval 0");
        let after = free_blocks();
        let mut shown = FreeBlocks::new();
        for zone in stat["heap"].as_array().unwrap() {
            let blocks: Vec<_> =
                zone["free_blocks"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
            let pages: u64 = blocks.iter().enumerate().map(|(order, count)| count << order).sum();
            assert_eq!(
                (&zone["free_bytes"], &zone["page_bytes"]),
                (&(pages * 4096).into(), &4096.into()),
                "{zone}"
            );
            let key = (zone["node"].as_u64().unwrap(), zone["zone"].as_str().unwrap().to_owned());
            assert_eq!(blocks.len(), before[&key].len(), "orders of {key:?}");
            shown.insert(key, blocks);
        }
        assert!(shown.keys().eq(&zones), "{shown:?}");
        unseen.retain(|zone| shown[zone] != before[zone] && shown[zone] != after[zone]);
        if unseen.is_empty() {
            break;
        }
    }
}

/// The kernel's names of the counters that `stat` shows.
const COUNTERS: [(&str, &str); 6] = [
    ("hit_pages", "numa_hit"),
    ("miss_pages", "numa_miss"),
    ("foreign_pages", "numa_foreign"),
    ("interleave_hit_pages", "interleave_hit"),
    ("local_node_pages", "local_node"),
    ("other_node_pages", "other_node"),
];

/// The counters of each node, in that order.
fn counters() -> Vec<[u64; 6]> {
    let of_node = |node| {
        let text = read(&format!("/sys/devices/system/node/node{node}/numastat"));
        let count = |name| {
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
        };
        COUNTERS.map(|(_, name)| count(name))
    };
    (0..4).map(of_node).collect()
}

const NODE_1_POOL: &str = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";

#[test]
fn sizes_and_counters_are_those_of_the_nodes() {
    // Node 1 is filled, so that memory wanted there is allocated elsewhere and each counter grows.
    // Huge pages fill it at once; their number does not matter.
    let begin = counters();
    write(
        NODE_1_POOL,
        &(node_memory(1, "MemFree").saturating_sub(40 * MIB) / (2 * MIB)).to_string(),
    );
    let too_many = node_memory(1, "MemFree") / MIB + 24;
    let flags = "--quiet --name spilling --memory 4M --policy preferred --nodes 1";
    let spilling = Domain::start(flags, &format!("--mib {too_many}"));
    let interleaved = Domain::start(
        "--quiet --name mixed --memory 8M --policy interleave --nodes 2,3",
        "--mib 4",
    );

    let before = counters();
    let stat = json("stat --interval 0.1");
    let after = counters();
    for (node, shown) in stat["nodes"].as_array().unwrap().iter().enumerate() {
        assert_eq!(shown["node"], node);
        assert_eq!(shown["size_bytes"], node_memory(node, "MemTotal"), "{shown:#}");
        assert_eq!(shown["cpus"], 2);
        for (number, (key, name)) in COUNTERS.into_iter().enumerate() {
            // They only ever grow.
            let (least, most) = (before[node][number], after[node][number]);
            let pages = shown["counters"][key].as_u64().unwrap();
            assert!((least..=most).contains(&pages), "{name} from {least} to {most}: {shown:#}");
            let pages = shown["counters_in_interval"][key].as_u64().unwrap();
            assert!(pages <= most - least, "{name} from {least} to {most}: {shown:#}");
        }
    }
    let grown: Vec<[u64; 6]> = before
        .iter()
        .zip(begin)
        .map(|(now, then)| std::array::from_fn(|number| now[number] - then[number]))
        .collect();
    let [misses, foreign] =
        [1, 2].map(|number| grown.iter().map(|node| node[number]).collect::<Vec<_>>());
    assert!(
        foreign[1] > 1024 && misses.iter().sum::<u64>() > 1024,
        "node 1 was not filled: {grown:?}"
    );
    spilling.end();
    interleaved.end();
    write(NODE_1_POOL, "0");
}

/// A cgroup of another maker, with a process in it that has filled memory of node 2. Dropping this
/// ends both.
struct Foreign {
    child: Child,
}

impl Foreign {
    const GROUP: &str = "/sys/fs/cgroup/foreign";

    fn start() -> Self {
        fs::create_dir(Self::GROUP).unwrap();
        let cpus = read("/sys/devices/system/node/node2/cpulist");
        let script = format!(
            "echo $$ >{}/cgroup.procs; exec taskset -c {cpus} {} --mib 24",
            Self::GROUP,
            toucher()
        );
        let mut command = Command::new("sh");
        let command = command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut foreign = Self { child: command.spawn().unwrap() };
        let mut line = String::new();
        BufReader::new(foreign.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        foreign
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir(Self::GROUP);
    }
}

#[test]
fn a_foreign_group_is_shown_with_its_bytes() {
    // The root has enabled its controllers for groups below it once a domain has existed.
    let domain = Domain::start("--quiet --name own --memory 8M", "--mib 1");
    let foreign = Foreign::start();
    let process = foreign.child.id();
    let bytes = settled(Foreign::GROUP, &[process], 0);
    assert!(bytes[&2] >= 24 * MIB, "{bytes:?}");
    let check = |line: &str, shown: &Value| {
        assert_eq!(
            (&shown["name"], &shown["cgroup"]),
            (&"/foreign".into(), &"/foreign".into()),
            "{line}"
        );
        assert_eq!(by_node(&shown["own_bytes"]), bytes, "{line}: {shown:#}");
        assert_eq!(
            (&shown["usage"]["processes"], &shown["usage"]["memory_seen"]),
            (&1.into(), &"charged".into())
        );
        for unknown in ["home", "claim", "debt_bytes", "cpus_bound_by"] {
            assert!(shown[unknown].is_null(), "{line}: {unknown} in {shown:#}");
        }
        // It has run on node 2 alone.
        let on_2 = bytes[&2] as f64 / bytes.values().sum::<u64>() as f64;
        assert!((shown["local_share"].as_f64().unwrap() - on_2).abs() < 1e-9, "{line}: {shown:#}");
    };
    for line in ["list --all", "list -n --all", "stat --all --interval 0"] {
        let answer = json(line);
        let domains = answer["domains"].as_array().unwrap();
        assert_eq!(domains[0]["name"], "own", "{line}");
        let shown = domains.iter().find(|domain| domain["name"] == "/foreign");
        check(line, shown.unwrap_or_else(|| panic!("{line}: {answer:#}")));
    }
    for path in ["/foreign", Foreign::GROUP] {
        let shown = json(&format!("show {path} --interval 0"));
        check(path, &shown);
        assert_mapped(&shown, &Own::of([process]));
        assert!(shown["record"].is_null() && shown["running_s"].is_null(), "{shown:#}");
    }
    assert!(json("list")["domains"].as_array().unwrap().iter().all(|shown| shown["name"] == "own"));
    drop(foreign);
    let gone = run(words("show /foreign"));
    assert_eq!(gone.status.code(), Some(1));
    assert!(
        stderr(&gone).contains("there is no cgroup /sys/fs/cgroup/foreign"),
        "{}",
        stderr(&gone)
    );
    domain.end();
}

/// Moves a process into a new group. The kernel takes any bytes in its name except a line feed.
fn move_into(group: &Path, process: u32) {
    fs::create_dir(group).unwrap();
    fs::write(group.join("cgroup.procs"), process.to_string()).unwrap();
}

#[test]
fn groups_and_processes_with_names_that_are_no_text_are_seen() {
    let flags = "--quiet --name odd --cpus 1 --memory 64M --policy strict --nodes 2";
    let domain = Domain::start(flags, "--mib 24");
    let home = json("show odd --interval 0")["home"].clone();
    let names = [&b"\xff"[..], br"\xff", b"\xc3 \"'\\\t", &[0xfe; 255]];
    let below = |name| Path::new("/sys/fs/cgroup/nearside/odd").join(OsStr::from_bytes(name));
    for group in names.map(below) {
        move_into(&group, domain.process());
        for line in ["show odd --interval 0", "list", "stat --interval 0"] {
            let answer = json(line);
            let seen = if line.starts_with("show") { &answer } else { &answer["domains"][0] };
            assert_eq!(seen["usage"]["processes"], 1, "{group:?}: {line}: {seen:#}");
            assert_eq!(seen["home"], home, "{group:?}: {line}: {seen:#}");
            // The memory controller lags.
            assert!(by_node(&seen["own_bytes"])[&2] >= 20 * MIB, "{group:?}: {line}: {seen:#}");
            if line.starts_with("show") {
                assert_mapped(seen, &Own::of([domain.process()]));
            }
        }
        let output = nearside().arg("show").arg(&group).args(["--format", "json"]).output();
        let shown: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        assert_eq!(shown["name"], "odd", "a group below a domain's is part of it");
    }
    let moved = run(words("set odd --nodes 1 --move-memory"));
    assert_eq!(moved.status.code(), Some(0), "{}", stderr(&moved));
    assert_eq!(domain.filled_mib(), [(1, 24)].into());

    // Beside the domain, with a process whose own name is odd, too.
    let script = r"printf 'a\377)\nb' >/proc/$$/comm; echo; read -r line";
    let mut other = Command::new("bash");
    let other = other.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.spawn().unwrap();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let group = Path::new("/sys/fs/cgroup").join(OsStr::from_bytes(b"\xff"));
    move_into(&group, other.id());
    let all = json("list --all");
    let shown = all["domains"].as_array().unwrap().iter().find(|it| it["cgroup"] == r"/\xff");
    assert_eq!(shown.unwrap_or_else(|| panic!("{all:#}"))["usage"]["processes"], 1);
    let by_bytes = OsStr::from_bytes(b"/\xff");
    for path in [OsStr::new(r"/\xff"), by_bytes, group.as_os_str()] {
        for command in ["show", "why"] {
            let output =
                nearside().arg(command).arg(path).args(["--format", "json"]).output().unwrap();
            assert!(output.status.success(), "{command} {path:?}: {}", stderr(&output));
            let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(shown["cgroup"], r"/\xff", "{command} {path:?}");
        }
    }
    assert!(stdout(&run(words("list --all"))).contains(r"/\xff"));
    other.kill().unwrap();
    other.wait().unwrap();
    await_that("the group is empty", || fs::remove_dir(&group).is_ok());
    domain.end();
}
