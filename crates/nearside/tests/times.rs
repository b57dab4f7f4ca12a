//! Times of answers and placements on large made-up hosts (docs/performance/numad.md). No time is
//! asserted, but that each question at once is answered with a reservation.
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

#[path = "common/made_host.rs"]
mod made_host;

use made_host::Made;
use nearside_linux::store::{Part, Record, Store};
use nearside_policy::{Affinity, Home, Limits, MemoryPolicy, Origin};
use nearside_topology::NodeId;
use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// Asks `programs` in turn and prints the median time of each answer: this program's and, if
/// `NEARSIDE_BEFORE` names an earlier one, their ratio. `at_once` commands run at a time.
fn print_times(what: &str, rounds: usize, at_once: usize, command: impl Fn(&Path) -> Command) {
    let before = std::env::var_os("NEARSIDE_BEFORE").map(PathBuf::from);
    let this = PathBuf::from(env!("CARGO_BIN_EXE_nearside"));
    let programs: Vec<_> = [this].into_iter().chain(before).collect();
    let mut times_ms = vec![Vec::new(); programs.len()];
    for _ in 0..rounds {
        for (program, times_ms) in programs.iter().zip(&mut times_ms) {
            let began = Instant::now();
            let run = || {
                let mut command = command(program);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            };
            let children: Vec<_> = (0..at_once).map(|_| run()).collect();
            for child in children {
                let output = child.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && said.is_empty(), "{said}");
                times_ms.push(began.elapsed().as_secs_f64() * 1000.0);
            }
        }
    }
    let median = |mut times_ms: Vec<f64>| {
        times_ms.sort_by(f64::total_cmp);
        times_ms[times_ms.len() / 2]
    };
    let medians: Vec<_> = times_ms.into_iter().map(median).collect();
    match medians[..] {
        [this, before] => {
            println!("{what}: {this:.1} ms, before {before:.1} ms, ratio {:.2}", this / before);
        }
        _ => println!("{what}: {:.1} ms", medians[0]),
    }
}

#[test]
#[ignore = "a measurement"]
fn answers_of_numad_by_nodes_and_domains() {
    for (nodes, domains) in [(4, 50), (8, 100), (64, 100), (64, 1000)] {
        let made = Made::new(nodes);
        add_machines(&made, nodes, domains);
        for at_once in [1, 4] {
            let what = format!("{nodes} nodes, {domains} domains, {at_once} at once");
            print_times(&what, 40 / at_once, at_once, |program| {
                let mut command = Command::new(program);
                command.args(["numad", "--within", "60", "-w", "2:8", "--root"]).arg(made.root());
                command
            });
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn placements_by_nodes() {
    for nodes in [4, 64, 1024] {
        let made = Made::new(nodes);
        add_hardware(&made, nodes);
        print_times(&format!("place on {nodes} nodes"), 20, 1, |program| {
            let mut command = Command::new(program);
            command.args(["place", "--cpus", "2", "--memory", "64M", "--sysfs"]).arg(made.root());
            command
        });
    }
}

/// The files that Linux has of nodes with two CPUs each, HMAT figures and empty huge page pools.
fn add_hardware(made: &Made, nodes: u32) {
    let (mut zones, mut blocks) = (String::new(), String::new());
    for size in ["2048kB", "1048576kB"] {
        for file in ["nr_hugepages", "free_hugepages", "surplus_hugepages", "resv_hugepages"] {
            made.file(&format!("sys/kernel/mm/hugepages/hugepages-{size}/{file}"), "0\n");
        }
    }
    for node in 0..nodes {
        let folder = format!("sys/devices/system/node/node{node}");
        let statistics = ["Active", "Inactive", "Active(file)", "Inactive(file)", "SReclaimable"]
            .map(|name| format!("Node {node} {name}: 100 kB\n"));
        let meminfo = made.path(&format!("{folder}/meminfo"));
        let memory = fs::read_to_string(&meminfo).unwrap() + &statistics.concat();
        fs::write(meminfo, memory).unwrap();
        for size in ["2048kB", "1048576kB"] {
            for file in ["nr_hugepages", "free_hugepages", "surplus_hugepages"] {
                made.file(&format!("{folder}/hugepages/hugepages-{size}/{file}"), "0\n");
            }
        }
        for access in ["access0", "access1"] {
            let folder = format!("{folder}/{access}/initiators");
            for (file, figure) in [
                ("read_latency", 90),
                ("write_latency", 90),
                ("read_bandwidth", 9000),
                ("write_bandwidth", 9000),
            ] {
                made.file(&format!("{folder}/{file}"), &format!("{figure}\n"));
            }
            let initiator = made.path(&format!("{folder}/node{node}"));
            symlink(format!("../../../node{node}"), initiator).unwrap();
        }
        for cpu in [2 * node, 2 * node + 1] {
            add_cpu(made, node, cpu);
        }
        for zone in ["DMA", "DMA32", "Movable", "Device", "Normal"] {
            let pages = if zone == "Normal" { 400 << 8 } else { 0 };
            zones += &format!("Node {node}, zone {zone:>8}\n  pages free     {pages}\n");
            for (line, pages) in [("boost", 0), ("min", 10), ("low", 20), ("high", 30)] {
                zones += &format!("        {line:<8} {pages}\n");
            }
            zones += &format!("        managed  {pages}\n        protection: (0, 0, 0, 0, 0)\n");
        }
        zones += "  pagesets\n";
        for cpu in 0..(2 * nodes).min(16) {
            zones += &format!("    cpu: {cpu}\n              count:    7\n");
            zones += "              high:     55\n              batch:    8\n";
        }
        blocks += &format!("Node {node}, zone   Normal {}\n", "10 ".repeat(11));
    }
    made.file("proc/zoneinfo", &zones);
    made.file("proc/buddyinfo", &blocks);
}

fn add_cpu(made: &Made, node: u32, cpu: u32) {
    let folder = format!("sys/devices/system/cpu/cpu{cpu}");
    let of_node = format!("{}-{}\n", 2 * node, 2 * node + 1);
    for (file, text) in [
        ("topology/physical_package_id", format!("{node}\n")),
        ("topology/core_cpus_list", of_node.clone()),
        ("topology/package_cpus_list", of_node.clone()),
    ] {
        made.file(&format!("{folder}/{file}"), &text);
    }
    for (index, level, kind) in
        [(0, 1, "Data"), (1, 1, "Instruction"), (2, 2, "Unified"), (3, 3, "Unified")]
    {
        let cache = format!("{folder}/cache/index{index}");
        made.file(&format!("{cache}/level"), &format!("{level}\n"));
        made.file(&format!("{cache}/type"), &format!("{kind}\n"));
        made.file(&format!("{cache}/shared_cpu_list"), &of_node);
    }
    symlink(format!("../../node/node{node}"), made.path(&format!("{folder}/node{node}"))).unwrap();
    let link = made.path(&format!("sys/devices/system/node/node{node}/cpu{cpu}"));
    symlink(format!("../../cpu/cpu{cpu}"), link).unwrap();
}

/// The names in `memory.numa_stat` of Linux 6.12 (`memory_stats` in `mm/memcontrol.c`).
const STATISTICS: [&str; 27] = [
    "anon",
    "file",
    "kernel_stack",
    "pagetables",
    "sec_pagetables",
    "shmem",
    "file_mapped",
    "file_dirty",
    "file_writeback",
    "swapcached",
    "anon_thp",
    "file_thp",
    "shmem_thp",
    "inactive_anon",
    "active_anon",
    "inactive_file",
    "active_file",
    "unevictable",
    "slab_reclaimable",
    "slab_unreclaimable",
    "workingset_refault_anon",
    "workingset_refault_file",
    "workingset_activate_anon",
    "workingset_activate_file",
    "workingset_restore_anon",
    "workingset_restore_file",
    "workingset_nodereclaim",
];

/// Virtual machines of libvirt: the groups and files that libvirt and the kernel make for each.
fn add_machines(made: &Made, nodes: u32, domains: u32) {
    let store = Store::new(&made.path("run/nearside"), "b");
    let lock = store.lock().unwrap();
    let by_node = |bytes: u64| -> String {
        (0..nodes).map(|node| format!(" N{node}={}", bytes + u64::from(node))).collect()
    };
    let stat: String =
        STATISTICS.iter().map(|kind| format!("{kind}{}\n", by_node(123_456))).collect();
    let huge = format!("total=0{}\nhugetlb=0{}\n", by_node(0), by_node(0));
    made.file("proc/meminfo", &"HugePages_Total: 0\nHugetlb: 0 kB\n".repeat(25));
    for number in 0..domains {
        let cgroup = format!("/machine.slice/{number}.scope");
        let file = |name: &str, text: &str| made.file(&format!("cg{cgroup}/{name}"), text);
        for size in ["2MB", "1GB"] {
            file(&format!("hugetlb.{size}.numa_stat"), &huge);
            for name in ["current", "rsvd.current"] {
                file(&format!("hugetlb.{size}.{name}"), "0\n");
            }
        }
        for (group, processes, below) in [
            ("", "", 4),
            ("libvirt/", "7\n", 3),
            ("libvirt/emulator/", "7\n", 0),
            ("libvirt/vcpu0/", "7\n", 0),
            ("libvirt/vcpu1/", "7\n", 0),
        ] {
            file(&format!("{group}cgroup.events"), "populated 1\nfrozen 0\n");
            file(&format!("{group}cgroup.procs"), processes);
            file(
                &format!("{group}cgroup.stat"),
                &format!("nr_descendants {below}\nnr_dying_descendants 0\n"),
            );
            file(&format!("{group}memory.numa_stat"), &stat);
        }
        let home = Home {
            nodes: [NodeId(number % nodes)].into(),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Local,
        };
        let record = Record {
            name: cgroup.clone(),
            boot_id: "b".into(),
            inode: fs::metadata(made.path(&format!("cg{cgroup}"))).unwrap().ino(),
            cgroup,
            started_unix_s: 0,
            found_by: Some("machine.slice/*".into()),
            command: Vec::new(),
            limits: Limits::default(),
            parts: Part::at(home).into(),
        };
        lock.put(&record).unwrap();
    }
}

/// Questions at once beside a busy thread for each CPU. Memory is there for all of them.
#[test]
#[ignore = "a measurement"]
fn questions_at_once_on_busy_cores() {
    const ROUNDS: usize = 20;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for (at_once, domains) in [(64, 0), (20, 50), (4, 500)] {
            let (mut unreserved, mut phantoms) = (0, 0);
            let mut times_ms = Vec::new();
            for _ in 0..ROUNDS {
                let made = Made::new(4);
                add_machines(&made, 4, domains);
                let began = Instant::now();
                let ask = || {
                    let mut command = Command::new(env!("CARGO_BIN_EXE_nearside"));
                    command.args(["numad", "-w", "2:8", "--root"]).arg(made.root());
                    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
                };
                let children: Vec<_> = (0..at_once).map(|_| ask()).collect();
                let answers = children.into_iter().map(|child| child.wait_with_output().unwrap());
                let reserved = answers.filter(|output| output.stderr.is_empty()).count();
                times_ms.push(began.elapsed().as_millis());
                unreserved += at_once - reserved;
                phantoms += made.reservations().len().abs_diff(reserved);
            }
            assert_eq!(phantoms, 0, "promises and reservations differ");
            assert_eq!(unreserved, 0, "{at_once} at once beside {domains} domains");
            times_ms.sort_unstable();
            println!(
                "{at_once} at once, {domains} domains, {ROUNDS} rounds: {unreserved} unreserved, \
                 {phantoms} phantoms; all answers after {} ms in the median, {} ms at most",
                times_ms[ROUNDS / 2],
                times_ms[ROUNDS - 1]
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
}
