//! `nearside topology` as an operator uses it: the built binary on machines of the fixtures.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../topology/tests/common/acpi_builder.rs"]
mod acpi_builder;
#[path = "../../topology/tests/common/mod.rs"]
mod common;

use acpi_builder::{Builder, ENABLED, GIB, acpidump, set_checksum, two_sockets};
use serde_json::{Value, json};
use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

/// Runs `nearside topology --sysfs MACHINE FLAGS...`.
fn topology(machine: &str, flags: &[&str]) -> Output {
    let root = common::unpacked(machine).unwrap();
    nearside(&[&["topology", "--sysfs", root.path().to_str().unwrap()], flags].concat())
}

fn nearside(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearside")).args(arguments).output().unwrap()
}

/// Standard output of a run that must succeed.
fn shown(machine: &str, flags: &[&str]) -> String {
    let output = topology(machine, flags);
    assert!(output.status.success(), "{machine}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn as_json(machine: &str, flags: &[&str]) -> Value {
    serde_json::from_str(&shown(machine, &[&["--format", "json"], flags].concat())).unwrap()
}

/// Exit code and message of a run that must fail.
fn failed(output: &Output) -> (Option<i32>, String) {
    assert!(output.stdout.is_empty(), "nothing but the message is printed");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The lines below a title, to the next empty line.
fn section<'a>(report: &'a str, title: &str) -> Vec<&'a str> {
    let start = report.find(&format!("\n{title}")).expect(title);
    report[start + 1..].lines().skip(1).take_while(|line| !line.is_empty()).collect()
}

#[test]
fn text_has_the_figures_of_numactl_and_xl() {
    let report = shown("two-sockets", &[]);
    let first = "available: 2 nodes (0-1), 32 CPUs on 16 cores, 128 GiB of memory, 90 GiB free\n";
    assert!(report.starts_with(first), "{report}");
    let expected = [
        "  node  CPUs        cores  memory MiB  free MiB  free",
        "     0  0-7,16-23       8       65536     40960  62 %",
        "     1  8-15,24-31      8       65536     51200  78 %",
    ];
    assert_eq!(section(&report, "Nodes"), expected);
    assert_eq!(
        section(&report, "Distances"),
        ["   node    0   1", "      0:  10  21", "      1:  21  10"]
    );
    let expected = [
        "  node  package  LLC  CPUs                 SMT siblings",
        "     0        0    0  0-7,16-23   8 cores  0+16 .. 7+23",
        "     1        1    8  8-15,24-31  8 cores  8+24 .. 15+31",
    ];
    assert_eq!(section(&report, "CPUs"), expected);
    let huge_pages: Vec<_> = section(&report, "Huge pages")[1].split_whitespace().collect();
    assert_eq!(huge_pages, ["0", "2", "MiB", "512", "500", "0"]);
    let devices = section(&report, "Devices");
    assert!(devices.contains(&"     1  netdev  ens2f0"), "{devices:?}");
    assert!(
        devices.contains(&"     0  pci     0000:3b:00.0 0000:5e:00.0 (1 other)"),
        "{devices:?}"
    );
}

#[test]
fn odd_machines_are_shown_as_they_are() {
    assert!(shown("offline-cpus", &[]).contains("\noffline:   CPUs 3,19-20\n"));
    assert!(section(&shown("cxl", &[]), "Nodes")[3].starts_with("     2  none "));
    assert!(shown("power9", &[]).starts_with("available: 6 nodes (0,8,252-255), "));
    assert!(section(&shown("memoryless", &[]), "Nodes")[2].ends_with(" 0         0     -"));
    let performance = section(&shown("tiers", &[]), "Performance (HMAT)").join("\n");
    let from_cpus = "2  0-1         CPUs            350       400      90000       45000";
    assert!(performance.contains(from_cpus), "{performance}");
    assert!(shown("laptop", &[]).contains("\nHuge pages: no pool has any\n"));
}

#[test]
fn memory_tiers_are_shown_with_demotion() {
    assert!(!shown("cxl", &[]).contains("Memory tiers"));
    let root = common::unpacked("cxl").unwrap();
    let add = |text: &str| common::unpack(text, root.path()).unwrap();
    add("sys/devices/virtual/memory_tiering/memory_tier4/nodelist: 0-1\n\
         sys/kernel/mm/numa/demotion_enabled: false\n");
    let run = |flags: &[&str]| {
        let output =
            nearside(&[&["topology", "--sysfs", root.path().to_str().unwrap()], flags].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!run(&[]).contains("Memory tiers"), "one tier is no news");
    add("sys/devices/virtual/memory_tiering/memory_tier22/nodelist: 2\n");
    let report = run(&[]);
    let tiers = section(&report, "Memory tiers (less is faster)");
    assert_eq!(tiers, ["  tier  nodes", "     4  0-1", "    22  2", "  demotion off"]);
    let json: Value = serde_json::from_str(&run(&["--format", "json"])).unwrap();
    let expected = json!([{"tier": 4, "nodes": [0, 1]}, {"tier": 22, "nodes": [2]}]);
    assert_eq!((&json["memory_tiers"], &json["demotion_enabled"]), (&expected, &json!(false)));
    let json = as_json("cxl", &[]);
    assert_eq!((&json["memory_tiers"], &json["demotion_enabled"]), (&json!([]), &Value::Null));
}

#[test]
fn sixty_four_nodes_stay_legible() {
    let report = shown("nodes-64", &[]);
    assert!(report.lines().all(|line| line.chars().count() <= 100));
    assert_eq!(
        section(&report, "Distances")[17],
        "    17:  10:17  16:16,18-19  32:20-31  64:0-15,32-63"
    );
}

#[test]
fn every_machine_is_shown_in_every_format() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../topology/fixtures");
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "machine") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let root = common::unpacked(name).unwrap();
        for format in ["text", "json", "svg"] {
            let output = nearside(&[
                "topology",
                "--sysfs",
                root.path().to_str().unwrap(),
                "--format",
                format,
            ]);
            assert!(output.status.success(), "{name} as {format}");
            let report = String::from_utf8(output.stdout).unwrap();
            let width = report.lines().map(|line| line.chars().count()).max();
            assert!(format != "text" || width <= Some(100), "{name}: {width:?} columns\n{report}");
        }
    }
}

#[test]
fn json_has_the_promised_keys() {
    let machine = as_json("cxl", &[]);
    assert_eq!((&machine["nodes_count"], &machine["cpus"]), (&json!(3), &json!(32)));
    assert_eq!(machine["memory_bytes"], json!(256u64 << 30));
    let node = &machine["nodes"][2];
    assert_eq!((&node["node"], &node["pxm"], &node["cpus"]), (&json!(2), &Value::Null, &json!([])));
    assert_eq!(node["memory_bytes"], json!(128u64 << 30));
    assert_eq!(node["free_bytes"], json!(128u64 << 30));
    assert_eq!(node["distances"], json!([14, 24, 10]));
    let second = json!([8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31]);
    assert_eq!(machine["nodes"][1]["cpus"], second);
    assert_eq!(machine["nodes"][0]["zones"][0]["name"], "DMA32");
    assert_eq!(machine["performance"][2]["read_latency_ns"], 210);
    assert_eq!(machine["cpu_list"][17]["core"], 1);

    let machine = as_json("two-sockets", &[]);
    let devices = machine["devices"].as_array().unwrap();
    let network = devices.iter().find(|device| device["name"] == "ens2f0").unwrap();
    assert_eq!((&network["kind"], &network["node"]), (&json!("netdev"), &json!(1)));
    assert_eq!(devices[0]["class"], "0x060100");
    assert_eq!(machine["nodes"][0]["huge_pages"][0]["page_bytes"], 2 << 20);
}

#[test]
fn unknown_figures_are_null_and_noted() {
    let output = topology("missing-files", &["--format", "json"]);
    let machine: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["memory_bytes", "free_bytes", "active_file_bytes"] {
        assert_eq!(machine["nodes"][1][key], Value::Null, "{key}");
    }
    assert_eq!((&machine["memory_bytes"], &machine["free_bytes"]), (&Value::Null, &Value::Null));
    assert_eq!(machine["nodes"][0]["memory_bytes"], json!(64u64 << 30));
    assert_eq!(machine["cpu_list"][0]["last_level_cache"], Value::Null);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.lines().all(|line| line.starts_with("nearside: note: ")), "{notes}");
    assert!(notes.contains("/sys/devices/system/node/node1/meminfo: No such file"), "{notes}");
}

#[test]
fn memory_without_a_figure_is_unknown_and_not_0() {
    let report = shown("lies", &[]);
    assert!(report.contains(" 64 GiB of memory, unknown on node 0\n"), "{report}");
    assert!(section(&report, "Nodes")[1].ends_with("  8           -         -     -"), "{report}");
    assert!(shown("lies", &["--format", "svg"]).contains("memory unknown"));
    let (code, message) = failed(&topology("missing-files", &["--fake", "4"]));
    assert_eq!(code, Some(1));
    assert!(message.contains("tells how much memory there is on node 1"), "{message}");

    // Most laptops have no table of affinities.
    let tables = Builder::madt().madt_apic(0, true).madt_apic(1, true).build();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, tables).unwrap();
    let path = file.path().to_str().unwrap();
    let run = |flags: &[&str]| nearside(&[&["topology", "--acpi", path], flags].concat());
    let report = String::from_utf8(run(&[]).stdout).unwrap();
    assert!(
        report.starts_with("available: 1 node (0), 2 CPUs on 2 cores, memory unknown\n"),
        "{report}"
    );
    let machine: Value = serde_json::from_slice(&run(&["--format", "json"]).stdout).unwrap();
    for totals in [&machine, &machine["nodes"][0]] {
        assert_eq!((&totals["memory_bytes"], &totals["free_bytes"]), (&Value::Null, &Value::Null));
    }
    let (code, message) = failed(&run(&["--fake", "2G"]));
    assert_eq!(code, Some(1));
    let expected = format!("fake=2G: nothing in {path} tells how much memory there is on node 0");
    assert!(message.contains(&expected), "{message}");
    let (code, message) = failed(&nearside(&["place", "--memory", "1G", "--acpi", path]));
    assert_eq!(code, Some(1));
    let expected = format!(
        "1 GiB are more than is known to be there: nothing in {path} tells how much memory"
    );
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn a_laptop_can_be_cut_into_nodes() {
    let machine = as_json("laptop", &["--fake", "4"]);
    assert_eq!(machine["nodes_count"], 4);
    for node in machine["nodes"].as_array().unwrap() {
        assert_eq!(node["memory_bytes"], json!(4u64 << 30));
    }
    assert_eq!(machine["nodes"][1]["cpus"], json!([1, 5]));
    assert!(machine["source"].as_str().unwrap().starts_with("fake=4 over /"));
    assert_eq!(as_json("chassis-4", &["--fake", "2U"])["nodes_count"], 8);
    assert_eq!(as_json("laptop", &["--fake", "2G"])["nodes_count"], 8);
}

#[test]
fn a_machine_file_is_a_machine_to_place_on() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/machines/x460.toml");
    let report = String::from_utf8(nearside(&["topology", "--machine", file]).stdout).unwrap();
    assert!(
        report.starts_with("available: 4 nodes (0-3), 32 CPUs on 32 cores, 64 GiB of memory\n"),
        "{report}"
    );
    let described = nearside(&["topology", "--machine", file, "--format", "json"]);
    let described: Value = serde_json::from_slice(&described.stdout).unwrap();
    let costs = &described["machine_file"];
    assert_eq!(costs["links"].as_array().unwrap().len(), 6, "{costs}");
    assert_eq!(costs["routes"][5], json!([2, 3]), "{costs}");
    let cut = nearside(&["topology", "--machine", file, "--fake", "2", "--format", "json"]);
    let cut: Value = serde_json::from_slice(&cut.stdout).unwrap();
    assert_eq!(cut.get("machine_file"), None, "costs are those of the nodes as they are");
    let placed = nearside(&[
        "place",
        "--machine",
        file,
        "--cpus",
        "8",
        "--memory",
        "4G",
        "--format",
        "json",
    ]);
    let placed: Value = serde_json::from_slice(&placed.stdout).unwrap();
    assert_eq!(placed["chosen"]["nodes"], json!([0]), "{placed}");

    let odd = tempfile::NamedTempFile::new().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once("insn_ps").unwrap();
    let odd_text = format!("description = \"a\\u007Fb\"\ninsn_ps{rest}");
    std::fs::write(&odd, odd_text).unwrap();
    let path = odd.path().to_str().unwrap();
    let described = nearside(&["topology", "--machine", path, "--format", "json"]);
    let described: Value = serde_json::from_slice(&described.stdout).unwrap();
    assert_eq!(described["machine_file"]["description"], json!("a\u{7f}b"));

    let broken = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &broken,
        std::fs::read_to_string(file).unwrap().replace("insn_ps = ", "insn_ps = -"),
    )
    .unwrap();
    let path = broken.path().to_str().unwrap();
    let (code, message) = failed(&nearside(&["topology", "--machine", path]));
    assert_eq!(code, Some(1));
    assert!(message.starts_with(&format!("nearside: {path}:")), "{message}");
    assert!(
        message.contains(": insn_ps: a whole number from 1 to 1000000 ps is expected, not -"),
        "{message}"
    );
    let (code, message) = failed(&topology("laptop", &["--machine", file]));
    assert_eq!(code, Some(2));
    assert!(message.contains("cannot be used with"), "{message}");
}

#[test]
fn a_picture_shows_each_node_cpu_and_distance() {
    let picture = shown("opteron-8", &["--format", "svg"]);
    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert!(picture.ends_with("</svg>\n"));
    for node in 0..8 {
        assert!(picture.contains(&format!(">node {node}</text>")));
    }
    assert!(picture.contains("<title>CPU 31, core 31</title>"));
    assert_eq!(
        picture.matches(">22</text>").count(),
        24,
        "twelve pairs of nodes are two hops apart"
    );
}

#[test]
fn bad_requests_and_bad_sources_have_their_own_exit_codes() {
    let (code, message) = failed(&topology("laptop", &["--fake", "four"]));
    assert_eq!(code, Some(2));
    assert!(
        message.contains("fake=four: expected a number of nodes (4), a size (512M, 2G)"),
        "{message}"
    );
    let (code, message) = failed(&topology("laptop", &["--acpi", "/tables"]));
    assert_eq!(code, Some(2));
    assert!(message.contains("cannot be used with"), "{message}");
    let (code, _) = failed(&topology("laptop", &["--format", "yaml"]));
    assert_eq!(code, Some(2));

    let (code, message) = failed(&topology("laptop", &["--fake", "1000"]));
    assert_eq!(code, Some(1));
    let expected =
        "nearside: fake=1000: nodes of 17178624 bytes, expected at least 33554432 (32 MiB) each";
    assert!(message.contains(expected), "{message}");
    let (code, message) = failed(&nearside(&["topology", "--sysfs", "/nowhere"]));
    assert_eq!(code, Some(1));
    let expected =
        "nearside: /nowhere: cannot be read as the root of a Linux file tree: No such file";
    assert!(message.starts_with(expected), "{message}");
    let empty = tempfile::tempdir().unwrap();
    let (code, message) =
        failed(&nearside(&["topology", "--sysfs", empty.path().to_str().unwrap()]));
    assert_eq!(code, Some(1));
    assert!(message.contains("found none of them"), "{message}");
}

#[test]
fn fifos_and_large_files_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    for (flag, kind) in [("--machine", "the machine file"), ("--acpi", "ACPI tables from")] {
        let (code, message) = failed(&nearside(&["topology", flag, fifo]));
        let expected = format!("cannot read {kind} {fifo}: it is a FIFO, expected a regular file");
        assert_eq!((code, message.trim()), (Some(1), &*format!("nearside: {expected}")));
    }
    let large = folder.path().join("large.toml");
    std::fs::File::create(&large).unwrap().set_len((1 << 20) + 1).unwrap();
    let (code, message) = failed(&nearside(&["topology", "--machine", large.to_str().unwrap()]));
    assert_eq!(code, Some(1));
    assert!(message.contains("large.toml: it is larger than 1 MiB"), "{message}");
}

#[test]
fn tables_come_from_a_pipe_of_the_shell_too() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(["topology", "--acpi", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let dump = acpidump(&[two_sockets().build()]);
    child.stdin.take().unwrap().write_all(dump.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.starts_with("available: 2 nodes (0-1), 4 CPUs"), "{report}");
    assert!(report.contains("source:    /dev/stdin"), "{report}");
}

#[test]
fn a_second_srat_takes_the_place_of_a_broken_one() {
    let broken = two_sockets().memory(1, 3 * GIB, 2 * GIB, ENABLED).build();
    let madt = (0..4).fold(Builder::madt(), |madt, id| madt.madt_apic(id, true)).build();
    let dump = acpidump(&[broken, two_sockets().build(), madt]);
    let output = topology_of_tables(dump.as_bytes());
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    assert!(notes.contains("is on node 1 although"), "{notes}");
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.starts_with("available: 2 nodes (0-1), 4 CPUs"), "{report}");
}

#[test]
fn a_copy_with_masks_alone_has_its_cpus_online() {
    let output = topology("copied-masks", &[]);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.starts_with("available: 2 nodes (0-1), 32 CPUs on 16 cores"), "{report}");
    assert!(!report.contains("offline:"), "{report}");
}

/// The message about tables in a file.
fn topology_of_tables(tables: &[u8]) -> Output {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, tables).unwrap();
    nearside(&["topology", "--acpi", file.path().to_str().unwrap()])
}

#[test]
fn false_tables_of_affinities_are_refused_with_table_and_offset() {
    let srat = two_sockets().build();
    let patched = |offset: usize, bytes: &[u8]| {
        let mut table = srat.clone();
        table[offset..offset + bytes.len()].copy_from_slice(bytes);
        set_checksum(&mut table);
        table
    };
    // The last entry, of memory.
    let last = srat.len() - 40;
    let twice = two_sockets().memory(1, 3 * GIB, 2 * GIB, ENABLED).build();
    let cases = [
        (
            patched(4, &[0; 4]),
            "SRAT at 0x4: read a length of 0 bytes, expected at least the 36 bytes of the header",
        ),
        (
            patched(4, &[0xff; 4]),
            "SRAT at 0x4: read a length of 4294967295 bytes, expected at most the 192 bytes there",
        ),
        (
            srat[..100].to_vec(),
            "SRAT at 0x4: read a length of 192 bytes, expected at most the 100 bytes there",
        ),
        (srat[..20].to_vec(), "SRAT at 0x0: read 20 bytes in all, expected a header of 36 bytes"),
        (patched(last + 1, &[0]), "SRAT at 0x98: read an entry of type 1 with a length of 0 bytes"),
        (
            patched(last + 1, &[200]),
            "SRAT at 0x98: read an entry of type 1 with a length of 200 bytes, expected at most",
        ),
        (twice, "SRAT at 0xc0: read 0xc0000000 to 0x140000000 is on node 1 although"),
        (
            Vec::new(),
            "holds no ACPI table: expected a folder of raw tables, a raw table or the text of \
             acpidump",
        ),
    ];
    for (table, expected) in cases {
        let (code, message) = failed(&topology_of_tables(&table));
        assert_eq!(code, Some(1), "{message}");
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

#[test]
fn tables_that_linux_would_use_are_used_and_faults_are_noted() {
    let mut unsound = two_sockets().build();
    unsound[9] ^= 0xff;
    // A table of distances that counts past its end, beside affinities that are sound.
    let slit = Builder::slit(3, &[10, 21, 21, 10]).build();
    let cases = [
        (unsound, "SRAT at 0x9: read checksum 0x"),
        (
            acpidump(&[two_sockets().build(), slit]).into_bytes(),
            "SLIT at 0x24: read 3 localities, expected as many as 4",
        ),
    ];
    for (tables, expected) in cases {
        let output = topology_of_tables(&tables);
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && notes.contains(expected), "{expected}: {notes}");
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(report.starts_with("available: 2 nodes (0-1), 4 CPUs"), "{report}");
        // Without a usable table, every other node is at 20.
        assert_eq!(
            section(&report, "Distances"),
            ["   node    0   1", "      0:  10  20", "      1:  20  10"]
        );
    }
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    let root = common::unpacked("nodes-64").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(["topology", "--format", "svg", "--sysfs", root.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty());
}
