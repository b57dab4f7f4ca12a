//! `nearside place` as an operator uses it: the built binary on machines of the fixtures.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../topology/tests/common/mod.rs"]
mod common;

use serde_json::{Value, json};
use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

/// Runs `nearside place --sysfs MACHINE FLAGS...`, with the flags in one string.
fn place(machine: &str, flags: &str) -> Output {
    let root = common::unpacked(machine).unwrap();
    let mut nearside = Command::new(env!("CARGO_BIN_EXE_nearside"));
    nearside
        .args(["place", "--sysfs", root.path().to_str().unwrap()])
        .args(flags.split_whitespace());
    if !flags.contains("--policy") {
        nearside.args(["--policy", "strict"]);
    }
    nearside.output().unwrap()
}

/// Standard output and standard error of a run that must succeed.
fn shown(machine: &str, flags: &str) -> (String, String) {
    let output = place(machine, flags);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{machine} {flags}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn as_json(machine: &str, flags: &str) -> Value {
    serde_json::from_str(&shown(machine, &format!("{flags} --format json")).0).unwrap()
}

#[test]
fn text_has_the_home_the_alternatives_and_the_reasons() {
    let (report, _) = shown("two-sockets", "--cpus 4 --memory 8G");
    // Node 1 has 50 GiB free, node 0 has 40.
    assert!(report.starts_with(
        "home: node 1, predicted slow-down 1.000 (strict, 4 vCPUs, 8 GiB of base pages)\n"
    ));
    assert!(
        report.contains("compared all 3 sets of nodes; the next best is node 0: as fast, "),
        "{report}"
    );
    let (report, _) = shown("two-sockets", "--cpus 4 --memory 8G --nodes 0-1");
    assert!(
        report.contains("the operator chose these nodes; placement would have chosen node 1: "),
        "{report}"
    );
}

#[test]
fn of_homes_that_are_as_fast_the_least_busy_is_taken() {
    let mut machine = tempfile::NamedTempFile::new().unwrap();
    let text = "insn_ps = 400
distance = [[10, 20], [20, 10]]
latency_ns = [[90, 160], [160, 90]]
[cache]
kib = 256
ways = 4
[[node]]
cpus = 2
memory_mib = 2048
[[node]]
cpus = 3
memory_mib = 1024
";
    machine.write_all(text.as_bytes()).unwrap();
    let mut nearside = Command::new(env!("CARGO_BIN_EXE_nearside"));
    nearside
        .args(["place", "--cpus", "1", "--memory", "64M", "--policy", "strict", "--machine"])
        .arg(machine.path());
    let report = String::from_utf8(nearside.output().unwrap().stdout).unwrap();
    assert!(report.starts_with("home: node 1, "), "{report}");
    assert!(
        report
            .contains("the next best is node 0: as fast, 0.50 vCPUs per core against\n    0.33\n"),
        "{report}"
    );
}

#[test]
fn ordinary_pages_have_no_size_where_none_is_known() {
    // The machine's are of 64 KiB.
    let (report, _) = shown("arm-64k", "--cpus 4 --memory 8G");
    assert!(report.contains("(strict, 4 vCPUs, 8 GiB of base pages)\n"), "{report}");
    let (report, _) = shown("two-sockets", "--cpus 4 --memory 512M --page-size 2M");
    assert!(report.contains("(strict, 4 vCPUs, 512 MiB of 2 MiB pages)\n"), "{report}");
    let output = place("arm-64k", "--cpus 4 --memory 8G --page-size 64K");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("this machine has no huge pages of 64 KiB: it has no huge pages\n"),
        "{error}"
    );
}

#[test]
fn deciding_figures_are_shown_with_enough_digits() {
    // Of 6.5 GiB each, rounded.
    let (report, _) = shown("nodes-64", "--cpus 1 --memory 1500M");
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("as fast, 6928998400 bytes left against 7004495872 "), "{report}");
    let (report, _) = shown("nodes-64", "--cpus 1 --memory 512M");
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("as fast, 7.4 GiB left against 7.5 GiB "), "{report}");
}

#[test]
fn json_has_the_home_and_the_alternatives() {
    let decision = as_json("two-sockets", "--cpus 4 --memory 8G --near netdev:ens2f0");
    assert_eq!(decision["chosen"]["nodes"], json!([1]));
    assert_eq!(
        decision["chosen"]["claim"],
        json!({ "bytes": { "1": 8_u64 << 30 }, "vcpus": { "1": 4 }, "huge_page_bytes": null })
    );
    assert_eq!(decision["chosen"]["slow_down_ppm"], 1_000_000);
    assert_eq!(decision["request"]["near"], json!([1]));
    // 0.1 x (21 / 10 - 1)
    assert_eq!(decision["runners_up"][0]["devices_ppm"], 1_110_000);
}

#[test]
fn every_policy_has_a_form_for_every_tool() {
    for policy in [
        "strict",
        "preferred",
        "preferred-many",
        "interleave",
        "weighted-interleave",
        "restrictive",
        "local",
    ] {
        for format in ["qemu", "libvirt", "numactl"] {
            let flags =
                format!("--cpus 4 --memory 8G --nodes 0-1 --policy {policy} --format {format}");
            assert!(!shown("two-sockets", &flags).0.is_empty());
        }
    }
}

#[test]
fn numactl_gets_a_command_line() {
    let line = |policy: &str| {
        shown(
            "two-sockets",
            &format!("--cpus 4 --memory 8G --nodes 0-1 --format numactl --policy {policy}"),
        )
        .0
    };
    assert_eq!(line("strict"), "numactl --cpunodebind=0-1 --membind=0-1 --\n");
    assert_eq!(line("preferred"), "numactl --cpunodebind=0-1 --preferred=0 --\n");
    assert_eq!(line("preferred-many"), "numactl --cpunodebind=0-1 --preferred-many=0-1 --\n");
    assert_eq!(line("interleave"), "numactl --cpunodebind=0-1 --interleave=0-1 --\n");
    assert_eq!(line("local"), "numactl --cpunodebind=0-1 --localalloc --\n");
}

#[test]
fn qemu_gets_a_cell_for_each_node_of_a_strict_home() {
    let (arguments, notes) = shown("two-sockets", "--cpus 4 --memory 8G --nodes 0-1 --format qemu");
    let expected = "\
-smp 4,sockets=2,cores=2,threads=1
-m 8388608K
-object memory-backend-ram,id=ram0,size=4194304K,host-nodes=0,policy=bind
-numa node,nodeid=0,cpus=0-1,memdev=ram0
-object memory-backend-ram,id=ram1,size=4194304K,host-nodes=1,policy=bind
-numa node,nodeid=1,cpus=2-3,memdev=ram1
-numa dist,src=0,dst=1,val=21
-numa dist,src=1,dst=0,val=21
";
    assert_eq!(arguments, expected);
    assert!(notes.contains("taskset --cpu-list 0-31"), "{notes}");
}

#[test]
fn qemu_itself_takes_the_arguments() {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        // `make test` installs it, so a missing one is a mistake there.
        assert!(
            std::env::var_os("CI").is_none(),
            "qemu-system-x86_64 is not installed, and this is CI"
        );
        eprintln!("skipped: qemu-system-x86_64 is not installed");
        return;
    }
    for flags in ["--policy strict", "--policy preferred", "--policy interleave", "--policy local"]
    {
        let (arguments, _) = shown(
            "two-sockets",
            &format!("--cpus 4 --memory 128M --nodes 0-1 {flags} --format qemu"),
        );
        // The machine that runs this may have one node only.
        let arguments = arguments
            .replace("host-nodes=0-1", "host-nodes=0")
            .replace("host-nodes=1", "host-nodes=0");
        let mut qemu = Command::new("qemu-system-x86_64")
            .args("-machine pc -accel tcg -nodefaults -display none -S -monitor stdio".split(' '))
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // If QEMU refused the arguments, its message is better than the broken pipe.
        let _ = qemu.stdin.take().unwrap().write_all(b"quit\n");
        let output = qemu.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn libvirt_gets_pins_that_reach_every_cell() {
    let (xml, _) = shown("two-sockets", "--cpus 4 --memory 8G --nodes 0-1 --format libvirt");
    let expected = "\
<memory unit='KiB'>8388608</memory>
<vcpu placement='static' cpuset='0-31'>4</vcpu>
<numatune>
  <memory mode='strict' nodeset='0-1'/>
  <memnode cellid='0' mode='strict' nodeset='0'/>
  <memnode cellid='1' mode='strict' nodeset='1'/>
</numatune>
<cputune>
  <vcpupin vcpu='0' cpuset='0-7,16-23'/>
  <vcpupin vcpu='1' cpuset='0-7,16-23'/>
  <vcpupin vcpu='2' cpuset='8-15,24-31'/>
  <vcpupin vcpu='3' cpuset='8-15,24-31'/>
  <emulatorpin cpuset='0-31'/>
</cputune>
<cpu>
  <numa>
    <cell id='0' cpus='0-1' memory='4194304' unit='KiB'/>
    <cell id='1' cpus='2-3' memory='4194304' unit='KiB'/>
  </numa>
</cpu>
";
    assert_eq!(xml, expected);
}

#[test]
fn odd_machines_are_placed_on_too() {
    // Memory-only nodes serve when they are needed; memoryless ones run only the vCPUs that they
    // must.
    assert_eq!(as_json("cxl", "--cpus 2 --memory 1G")["exhaustive"], true);
    assert_eq!(
        as_json("memoryless", "--cpus 1 --memory 256M")["chosen"]["slow_down_ppm"],
        1_000_000
    );
    assert_eq!(as_json("nodes-64", "--cpus 1 --memory 256M")["exhaustive"], false);
    assert_eq!(as_json("laptop", "--cpus 1 --memory 256M")["candidates"], 1);
}

#[test]
fn invalid_requests_are_refused_with_the_reason() {
    let cases = [
        (
            "--cpus 0 --memory 1G",
            2,
            "invalid value '0' for '--cpus <N>': expected a whole number from 1 to 65536",
        ),
        ("--cpus -1 --memory 1G", 2, "invalid value '-1'"),
        ("--cpus 1.5 --memory 1G", 2, "expected a whole number"),
        ("--cpus 1 --memory 0", 2, "0 bytes were asked for"),
        ("--cpus 1 --memory 4X", 2, "\"X\" is no unit"),
        (
            "--cpus 1 --memory -4G",
            2,
            "invalid value '-4G' for '--memory <SIZE>': expected a number and a unit",
        ),
        (
            "--cpus 1 --memory 16777215.999T",
            1,
            "16.0 EiB are more than the whole machine has (128 GiB): 16.0 EiB too few",
        ),
        ("--cpus 1 --memory 99999P", 2, "larger than 64 bits"),
        ("--cpus 1 --memory 1G --nodes 7", 2, "there is no node 7: this machine has nodes 0-1"),
        ("--cpus 1 --memory 1G --nodes 0,^0", 2, "names no node at all"),
        (
            "--cpus 1 --memory 1G --near netdev:nosuch",
            2,
            "there is no device netdev:nosuch: this machine has netdev:",
        ),
        ("--cpus 1 --memory 1G --near nosuch", 2, "expected pci:ADDRESS"),
        ("--cpus 1 --memory 1G --policy nosuch", 2, "preferred-many"),
        ("--cpus 1 --memory 1G --page-size 3M", 2, "not a page size"),
        (
            "--cpus 1 --memory 1G --page-size 16M",
            1,
            "this machine has no huge pages of 16 MiB: its huge pages are of 2 MiB",
        ),
        (
            "--cpus 1 --memory 1T",
            1,
            "1 TiB are more than the whole machine has (128 GiB): 896 GiB too few (962072674304 \
             bytes)",
        ),
        (
            "--cpus 1 --memory 2G --page-size 2M",
            1,
            "2 GiB in pages of 2 MiB are more than the whole machine has (1 GiB): 1 GiB too few \
             (1073741824 bytes)",
        ),
        ("--cpus 1 --memory 60G --nodes 0", 1, "do not fit"),
    ];
    for (flags, code, message) in cases {
        let output = place("two-sockets", flags);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags}: {error}");
        assert!(error.contains(message) && output.stdout.is_empty(), "{flags}: {error}");
    }
}

#[test]
fn cells_get_homes_apart_and_an_operators_nodes() {
    // Two sockets of one node each: a cell on each.
    let placed = as_json("two-sockets", "--cell 4:8G --cell 4:8G");
    let homes = |placed: &Value| -> Vec<Value> {
        let cells = placed["cells"].as_array().unwrap();
        cells.iter().map(|cell| cell["chosen"]["nodes"].clone()).collect()
    };
    assert_eq!(homes(&placed), [json!([0]), json!([1])], "{placed}");
    assert_eq!(placed["shared_nodes"], json!([]));
    let placed = as_json("two-sockets", "--cell 4:8G:near=1 --cell 4:8G:near=0");
    assert_eq!(homes(&placed), [json!([1]), json!([0])], "{placed}");
    let placed = as_json("two-sockets", "--cell 4:8G --cell 4:8G --nodes 1");
    assert_eq!((homes(&placed), &placed["shared_nodes"]), (vec![json!([1]); 2], &json!([1])));
    let (report, _) = shown("two-sockets", "--cell 4:8G --cell 4:8G");
    assert!(report.starts_with("homes of 2 cells: nodes 0-1, predicted slow-down "), "{report}");
}

/// Four nodes of 3 cores with 2 threads each; nodes 1 and 3 have no memory.
fn machine_with_cpus_alone() -> String {
    let mut text = "sys/devices/system/node/online: 0-3\n".to_owned();
    text += "sys/devices/system/cpu/online: 0-23\nsys/devices/system/cpu/present: 0-23\n";
    for core in 0..12 {
        let threads = format!("{core},{}", core + 12);
        text += &format!("sys/devices/system/cpu/cpu{{{threads}}}/topology/core_cpus_list: ");
        text += &format!("{threads}\n");
    }
    let mut zones = String::new();
    for node in 0..4 {
        let (first, kib) = (3 * node, if node % 2 == 0 { 8 << 20 } else { 0 });
        let distances = ["10 16 16 16", "16 10 16 16", "16 16 10 16", "16 16 16 10"][node];
        let at = format!("sys/devices/system/node/node{node}");
        text += &format!("{at}/distance: {distances}\n{at}/cpulist: {first}-{}", first + 2);
        text += &format!(",{}-{}\n", first + 12, first + 14);
        text += &format!("{at}/meminfo:\n\tNode {node} MemTotal: {kib} kB\n");
        text += &format!("\tNode {node} MemFree: {kib} kB\n");
        if kib > 0 {
            zones += &format!("\tNode {node}, zone Normal\n\t  pages free {}\n", kib / 4);
            zones += &format!("\t        low 0\n\t        managed {}\n", kib / 4);
        }
    }
    text + "proc/zoneinfo:\n" + &zones
}

#[test]
fn a_cell_on_two_nodes_that_fits_one_has_the_slow_down_there_as_the_reason() {
    let root = tempfile::tempdir().unwrap();
    common::unpack(&machine_with_cpus_alone(), root.path()).unwrap();
    let shown = |flags: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_nearside"))
            .args(["place", "--sysfs", root.path().to_str().unwrap(), "--policy", "strict"])
            .args(["--cell", "4:1G", "--cell", "4:1G", "--format", flags])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let report = shown("text");
    let reason = "cell 0 is on nodes 0-1: it fits node 0, where the slow-down of the virtual \
                  machine would be 1.199";
    assert!(report.starts_with("homes of 2 cells: nodes 0-3, predicted slow-down 1.144 "));
    let words: Vec<&str> = report.split_whitespace().collect();
    assert!(words.join(" ").contains(reason), "{report}");
    assert!(!report.contains("node 1 has"), "{report}");
    let json: Value = serde_json::from_str(&shown("json")).unwrap();
    let spill = &json["cells"][0]["spill"];
    assert_eq!((&spill["from"], &spill["cpus"]), (&json!(0), &json!(6)));
    assert_eq!(spill["alone"], json!({"node": 0, "slow_down_ppm": 1_199_385}));
}

#[test]
fn cells_that_make_no_sense_or_do_not_fit_are_refused() {
    for (flags, code, told) in [
        ("--cell 4:8G --memory 8G", 2, "cannot be used with"),
        ("--cell 4:8G --near pci:3b:00.0", 2, "cannot be used with"),
        ("--cell 4", 2, "expected VCPUS:MEM or VCPUS:MEM:near=NODE"),
        ("--cell 4:8G --cell 4:8G:near=9", 2, "cell 1: there is no node 9"),
        ("--cell 4:8G --cell 4:8G --format qemu", 2, "printed as text or JSON"),
        ("--cell 4:8G --cell 4:9000G", 1, "cell 1: 8.8 TiB are more than the whole machine has"),
        ("--cell 4:60G --cell 4:60G", 1, "all cells together: 120 GiB do not fit"),
    ] {
        let output = place("two-sockets", flags);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{flags}: {message}");
        assert!(message.contains(told), "{flags}: {message}");
    }
}

/// libvirt allocates memory ahead with threads on its nodes, which must be among the emulator's.
#[test]
fn libvirt_gets_an_emulator_that_reaches_the_nodes_of_the_memory() {
    for policy in ["preferred", "interleave"] {
        let flags = format!("--memory 1G --nodes 1 --format libvirt --policy {policy}");
        let (xml, _) = shown("memoryless", &flags);
        assert!(xml.contains("<vcpu placement='static' cpuset='8-15'>"), "{xml}");
        assert!(xml.contains("<emulatorpin cpuset='0-15'/>"), "{xml}");
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"<domain><name>a</name><memory unit='GiB'>1</memory><vcpu>1</vcpu></domain>")
        .unwrap();
    let path = file.path().display();
    let (xml, notes) =
        shown("memoryless", &format!("--libvirt {path} --nodes 1 --policy preferred"));
    assert!(xml.contains("<vcpupin vcpu='0' cpuset='8-15'/>"), "{xml}");
    assert!(xml.contains("<emulatorpin cpuset='0-15'/>"), "{xml}");
    assert!(!notes.contains("no CPU"), "{notes}");
}

#[test]
fn memory_that_libvirt_allocates_ahead_on_a_node_without_cpus_is_noted() {
    let told = |backing: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "<domain><name>a</name><memory unit='GiB'>1</memory><vcpu>1</vcpu>{backing}\
             <cpu><numa><cell id='0' cpus='0' memory='512' unit='MiB'/>\
             <cell id='1' memory='512' unit='MiB'/></numa></cpu></domain>"
        );
        file.write_all(text.as_bytes()).unwrap();
        shown("cxl", &format!("--libvirt {} --nodes 0,2", file.path().display())).1
    };
    let ahead = "<memoryBacking><allocation mode='immediate'/></memoryBacking>";
    assert!(told(ahead).contains("node 2: no CPU is there to allocate"), "{}", told(ahead));
    assert!(!told("").contains("no CPU is there"), "{}", told(""));
}

#[test]
fn numactl_gets_the_cpus_of_a_node_without_memory_by_their_numbers() {
    let line = |policy: &str| {
        let flags = format!("--cpus 16 --memory 1G --format numactl --policy {policy}");
        shown("memoryless", &flags).0
    };
    assert_eq!(line("strict"), "numactl --physcpubind=0-15 --membind=0 --\n");
    assert_eq!(line("interleave"), "numactl --physcpubind=0-15 --interleave=0 --\n");
    assert_eq!(line("preferred-many"), "numactl --physcpubind=0-15 --preferred-many=0 --\n");
}
