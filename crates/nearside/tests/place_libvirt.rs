//! `nearside place --libvirt` as an operator uses it: the domains of `crates/libvirt/tests/domains`
//! on machines of the fixtures.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../topology/tests/common/mod.rs"]
mod common;

use serde_json::{Value, json};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

const TWO_CELLS: &str = "<domain type='kvm'>
  <name>vm</name>
  <vcpu>4</vcpu> <!-- two each -->
  <iothreads>2</iothreads>
  <cpu>
    <numa>
      <cell id='0' cpus='0-1' memory='4' unit='GiB'/>
      <cell id='1' cpus='2-3' memory='4' unit='GiB'/>
    </numa>
  </cpu>
</domain>
";

/// Runs `nearside COMMAND - FLAGS --sysfs ROOT` with the XML as standard input.
fn nearside(words: &[&str], root: &Path, flags: &str, xml: &[u8]) -> Output {
    let mut nearside = Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(words)
        .args(flags.split_whitespace())
        .args(["--sysfs", root.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command line that is refused reads nothing.
    let _ = nearside.stdin.take().unwrap().write_all(xml);
    nearside.wait_with_output().unwrap()
}

fn place(root: &Path, flags: &str, xml: &[u8]) -> Output {
    nearside(&["place", "--libvirt", "-"], root, flags, xml)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output and standard error of a run that must succeed.
fn shown(machine: &str, flags: &str, xml: &str) -> (String, String) {
    let root = common::unpacked(machine).unwrap();
    let output = place(root.path(), flags, xml.as_bytes());
    assert!(output.status.success(), "{flags}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn each_cell_is_bound_to_a_node_of_its_own() {
    let (xml, notes) = shown("two-sockets", "", TWO_CELLS);
    for line in [
        "    <vcpupin vcpu='1' cpuset='0-7,16-23'/>\n    <vcpupin vcpu='2' cpuset='8-15,24-31'/>\n",
        "    <emulatorpin cpuset='0-31'/>\n    <iothreadpin iothread='1' cpuset='0-31'/>\n",
        "    <memory mode='strict' nodeset='0-1'/>\n",
        "    <memnode cellid='0' mode='strict' nodeset='0'/>\n",
        "<vcpu>4</vcpu> <!-- two each -->\n",
        "          <sibling id='1' value='21'/>\n",
    ] {
        assert!(xml.contains(line), "{line}\n{xml}");
    }
    assert_eq!(notes, "");
    let (diff, _) = shown("two-sockets", "--format diff", TWO_CELLS);
    assert!(diff.starts_with("--- a/-\n+++ b/-\n@@ "), "{diff}");
    assert!(diff.contains("\n+    <memnode cellid='1' mode='strict' nodeset='1'/>\n"), "{diff}");
}

#[test]
fn soft_affinity_binds_no_vcpu_and_policies_are_modes() {
    let (xml, _) = shown("two-sockets", "--affinity soft --policy preferred", TWO_CELLS);
    assert!(!xml.contains("<vcpupin") && xml.contains("<emulatorpin"), "{xml}");
    assert!(xml.contains("<memnode cellid='1' mode='preferred' nodeset='1'/>"), "{xml}");
    let xml = "<domain><memory unit='GiB'>4</memory><vcpu>2</vcpu></domain>";
    let (xml, _) = shown("two-sockets", "--nodes 1 --no-metadata", xml);
    assert_eq!(
        xml,
        "<domain><memory unit='GiB'>4</memory><vcpu>2</vcpu><cputune><vcpupin vcpu='0' \
         cpuset='8-15,24-31'/><vcpupin vcpu='1' cpuset='8-15,24-31'/><emulatorpin \
         cpuset='8-15,24-31'/></cputune><numatune><memory mode='strict' nodeset='1'/></numatune>\
         </domain>"
    );
}

#[test]
fn bindings_that_nearside_wrote_are_chosen_anew() {
    let (placed, _) = shown("two-sockets", "--nodes 1 --policy preferred", TWO_CELLS);
    assert!(placed.contains("<memnode cellid='0' mode='preferred' nodeset='1'/>"), "{placed}");
    // The mode is a part of the intent, the nodes of one machine are not.
    let (again, notes) = shown("nps4", "", &placed);
    assert!(again.contains("<memnode cellid='1' mode='preferred' nodeset='1'/>"), "{again}");
    assert_eq!(notes, "");
    let (fresh, _) = shown("nps4", "--policy preferred", TWO_CELLS);
    assert_eq!(again, fresh);
    // A value that the operator has changed since is the operator's.
    let edited =
        placed.replace("cellid='0' mode='preferred' nodeset='1'", "cellid='0' nodeset='3'");
    let (again, _) = shown("nps4", "", &edited);
    assert!(again.contains("<memnode cellid='0' nodeset='3'/>"), "{again}");
    let (without, _) = shown("nps4", "--no-metadata", &placed);
    assert!(!without.contains("metadata"), "{without}");
    assert_eq!(shown("nps4", "--no-metadata --policy preferred", TWO_CELLS).0, without);
}

#[test]
fn metadata_that_cannot_be_read_stay_and_are_told() {
    let (placed, _) = shown("two-sockets", "", TWO_CELLS);
    let newer = placed.replace("\"version\":1", "\"version\":2");
    let (again, notes) = shown("two-sockets", "", &newer);
    assert_eq!(again, newer);
    assert!(notes.contains("version: read 2, expected 1"), "{notes}");
}

#[test]
fn bindings_of_the_operator_bound_the_placement() {
    // Cell 0 is bound to node 1 by its vCPUs alone, so cell 1 has to take node 0.
    let pins = "<cputune><vcpupin vcpu='0' cpuset='8'/><vcpupin vcpu='1' cpuset='9'/></cputune>";
    let pinned = TWO_CELLS.replace("  <iothreads>2</iothreads>", pins);
    let (xml, notes) = shown("two-sockets", "", &pinned);
    assert!(xml.contains("<memnode cellid='0' mode='strict' nodeset='1'/>"), "{xml}");
    assert!(xml.contains("<memnode cellid='1' mode='strict' nodeset='0'/>"), "{xml}");
    assert!(xml.contains("<vcpupin vcpu='0' cpuset='8'/>") && notes.is_empty(), "{notes}");
    // A binding that no placement can follow is reported.
    let emulator = "<cputune><emulatorpin cpuset='0-7'/></cputune>";
    let elsewhere = TWO_CELLS.replace("  <iothreads>2</iothreads>", emulator);
    let (_, notes) = shown("two-sockets", "", &elsewhere);
    assert!(
        notes.starts_with("nearside: note: -:4:31: the emulator is bound to CPUs 0-7, "),
        "{notes}"
    );
}

#[test]
fn cells_are_near_host_devices_and_iothreads_near_their_disks() {
    let xml = "<domain><memory unit='GiB'>4</memory><vcpu>2</vcpu><iothreads>1</iothreads>
<devices>
<interface type='direct'><source dev='ens2f0'/></interface>
<disk type='block'><driver iothread='1'/><source dev='/dev/nvme0n1p1'/></disk>
</devices></domain>";
    let (placed, _) = shown("two-sockets", "--format json", xml);
    let placed: Value = serde_json::from_str(&placed).unwrap();
    assert_eq!(placed["cells"][0]["near"], json!([1]));
    assert_eq!(placed["cells"][0]["chosen"]["nodes"], json!([1]));
    // The disk is on node 0, and the guest's memory on both.
    let (xml, _) = shown("two-sockets", "", &xml.replace(">4<", ">80<"));
    assert!(xml.contains("<iothreadpin iothread='1' cpuset='0-7,16-23'/>"), "{xml}");
    let (report, _) = shown("two-sockets", "--format text", TWO_CELLS);
    assert!(report.starts_with("homes of 2 cells: nodes 0-1, predicted slow-down "), "{report}");
}

#[test]
fn faults_of_the_file_have_line_and_column() {
    let root = common::unpacked("two-sockets").unwrap();
    let memnode = "<numatune><memnode cellid='0' mode='strict' nodeset='7'/></numatune>";
    let beyond = TWO_CELLS.replace("  <iothreads>2</iothreads>", memnode);
    let large = TWO_CELLS.replace("memory='4'", "memory='400'");
    let long = format!("<domain>{}</domain>", " ".repeat(10 << 20));
    let empty = TWO_CELLS.replace("cpus='2-3' memory='4'", "cpus='2-3' memory='0'");
    // libvirt 9.0 asks QEMU for the cell's own memory, whatever is plugged into it.
    let dimm = "<devices><memory model='dimm'><target><size unit='GiB'>1</size><node>1</node>\
                </target></memory></devices></domain>";
    let plugged = empty
        .replace("</domain>", dimm)
        .replace("  <vcpu>", "  <maxMemory slots='2' unit='GiB'>8</maxMemory>\n  <vcpu>");
    let scheduled = "<cputune><vcpusched vcpus='3-4' scheduler='idle'/></cputune>";
    let scheduled = TWO_CELLS.replace("  <iothreads>2</iothreads>", scheduled);
    let cases = [
        ("", "<domain>\n  <vcpu>x</vcpu>\n</domain>", 1, "-: line 2, column 9: <vcpu>: read \"x\""),
        ("", &beyond, 1, "-:4:54: the host has no node 7; it has nodes 0-1 [nodeset-beyond-host]"),
        ("", &empty, 1, "-:8:39: cell 1 has no memory [cell-without-memory]"),
        ("", &plugged, 1, "-:9:39: cell 1 has no memory [cell-without-memory]"),
        ("", &scheduled, 1, "-:4:28: <vcpusched> names vCPU 4; the guest has vCPUs 0-3 [vcpusched"),
        ("", &large, 1, "-: cell 0: 400 GiB are more than the whole machine has (128 GiB)"),
        ("", &long, 1, "-: line 1, column 1048577: the text has 10485777 bytes"),
        ("", "<!DOCTYPE x [<!ENTITY a 'b'>]><domain/>", 1, "line 1, column 1: a document type"),
        ("", "<domain/>", 1, "-:1:1: neither <memory> nor a cell states how much memory"),
        ("--policy local", TWO_CELLS, 2, "--policy local: neither libvirt nor QEMU knows it"),
        ("--format qemu", TWO_CELLS, 2, "a domain is printed as XML, diff, text or JSON"),
        ("--memory 4G", TWO_CELLS, 2, "cannot be used with"),
        ("--nodes 9", TWO_CELLS, 2, "--nodes: "),
    ];
    for (flags, xml, code, told) in cases {
        let output = place(root.path(), flags, xml.as_bytes());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags}: {message}");
        assert!(message.contains(told) && output.stdout.is_empty(), "{told}: {message}");
    }
    let output = nearside(&["place", "--format", "diff"], root.path(), "--memory 4G", b"");
    assert_eq!(output.status.code(), Some(2));
    let output = nearside(&["place", "--affinity", "soft"], root.path(), "--memory 4G", b"");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn errors_and_notes_of_one_rule_are_counted_after_ten() {
    let root = common::unpacked("two-sockets").unwrap();
    let domain = |inside: &str| {
        format!("<domain><memory unit='GiB'>4</memory><vcpu>2000</vcpu>{inside}</domain>")
    };
    let scheduled: String =
        (3000..5000).map(|vcpu| format!("<vcpusched vcpus='{vcpu}' scheduler='idle'/>")).collect();
    let scheduled = format!("<cputune>{scheduled}</cputune>");
    let output = place(root.path(), "", domain(&scheduled).as_bytes());
    let message = text(&output.stderr);
    assert_eq!(message.lines().count(), 11, "{message}");
    let last = ".. and 1,990 more of this rule [vcpusched-for-missing-vcpu]\n";
    assert!(message.ends_with(last), "{message}");
}

/// Whether `new` is `old` with bytes inserted, `/` of an empty element apart.
fn is_only_longer(old: &[u8], new: &[u8]) -> bool {
    let mut new = new.iter();
    old.iter().all(|byte| *byte == b'/' || new.any(|other| other == byte))
}

#[test]
fn every_domain_is_completed_without_an_error_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libvirt/tests/domains");
    let mut completed = 0;
    for machine in ["two-sockets", "nps4"] {
        let root = common::unpacked(machine).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            let bytes = fs::read(&path).unwrap();
            let output = place(root.path(), "", &bytes);
            if !output.status.success() {
                assert_eq!(output.status.code(), Some(1), "{name}");
                assert!(output.stdout.is_empty(), "{name}");
                continue;
            }
            completed += 1;
            let xml = output.stdout;
            assert!(is_only_longer(&bytes, &xml), "{name}");
            assert_eq!(place(root.path(), "", &xml).stdout, xml, "{name}: placed twice");
            let lint = |xml: &[u8]| -> Vec<String> {
                let output = nearside(&["lint", "-"], root.path(), "--format json", xml);
                let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                let findings = report["findings"].as_array().unwrap();
                findings.iter().map(|it| it["rule"].as_str().unwrap().to_owned()).collect()
            };
            let before = lint(&bytes);
            // A binding of the operator's may stand against every home; a note names it then.
            let is_noted = text(&output.stderr).contains("[operator-overrides-placement]");
            let is_restricted = text(&bytes).contains("'restrictive'");
            let is_accepted = |rule: &String| {
                before.contains(rule)
                    || (rule == "emulatorpin-outside-memnodes" && is_noted)
                    || (rule == "restrictive-collapses-cells" && is_restricted)
            };
            let added: Vec<String> =
                lint(&xml).into_iter().filter(|rule| !is_accepted(rule)).collect();
            assert!(added.is_empty(), "{name} on {machine}: {added:?}\n{}", text(&xml));
        }
    }
    assert!(completed >= 80, "{completed}");
}

#[test]
fn an_exported_domain_is_placed_elsewhere_in_its_shape() {
    let two = common::unpacked("two-sockets").unwrap();
    let placed = place(two.path(), "", TWO_CELLS.as_bytes()).stdout;
    let exported = nearside(&["export", "-"], two.path(), "", &placed);
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let intent: Value = serde_json::from_slice(&exported.stdout).unwrap();
    assert_eq!((&intent["version"], &intent["name"]), (&json!(1), &json!("vm")));
    let cell = json!({
        "vcpus": 2, "memory_bytes": 4_u64 << 30, "huge_page_bytes": null, "nodes": 1,
        "shares_nodes_with": [],
    });
    assert_eq!(intent["cells"], json!([cell, cell]));
    assert_eq!(intent["home_distances"], json!([[10, 21], [21, 10]]));

    let elsewhere = |machine: &str, flags: &str| {
        let root = common::unpacked(machine).unwrap();
        nearside(&["place", "--intent", "-"], root.path(), flags, &exported.stdout)
    };
    let output = elsewhere("nps4", "--format json");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let decision: Value = serde_json::from_slice(&output.stdout).unwrap();
    for cell in decision["cells"].as_array().unwrap() {
        assert_eq!(cell["chosen"]["nodes"].as_array().unwrap().len(), 1, "{decision}");
    }
    let output = elsewhere("two-sockets", "--nodes 1");
    assert!(output.status.success());
    assert_eq!(
        text(&output.stderr),
        "nearside: note: worse than before: cells 0 and 1 share node 1, they shared none\n"
    );
}

#[test]
fn a_cell_of_memory_alone_is_exported_without_a_vcpu_and_placed() {
    let root = common::unpacked("two-sockets").unwrap();
    let xml = with_memory_alone("");
    let exported = nearside(&["export", "-"], root.path(), "", xml.as_bytes());
    let intent: Value = serde_json::from_slice(&exported.stdout).unwrap();
    let vcpus = [&intent["cells"][0]["vcpus"], &intent["cells"][1]["vcpus"]];
    assert_eq!(vcpus, [&json!(4), &json!(0)]);
    let placed = nearside(&["place", "--intent", "-"], root.path(), "", &exported.stdout);
    assert!(placed.status.success(), "{}", text(&placed.stderr));
    let cxl = common::unpacked("cxl").unwrap();
    let flags = "--format json";
    let placed = nearside(&["place", "--intent", "-"], cxl.path(), flags, &exported.stdout);
    let json: Value = serde_json::from_slice(&placed.stdout).unwrap();
    let cell = &json["cells"][1];
    assert_eq!((&cell["vcpus"], &cell["chosen"]["nodes"]), (&json!(0), &json!([2])));
}

/// A guest on the machine cxl, whose node 2 has no CPUs: cell 1 is memory alone.
fn with_memory_alone(numatune: &str) -> String {
    let xml = TWO_CELLS.replace("cpus='0-1'", "cpus='0-3'").replace(" cpus='2-3'", "");
    xml.replace("  <iothreads>2</iothreads>", numatune)
}

#[test]
fn a_cell_of_memory_alone_is_on_the_node_that_its_memnode_names() {
    let memnode = |node: u32| {
        let own = format!("<memnode cellid='1' mode='strict' nodeset='{node}'/>");
        (with_memory_alone(&format!("  <numatune>{own}</numatune>")), own)
    };
    // Node 2 has no CPUs. The cell with vCPUs gets the nearest node with CPUs.
    for (node, other, distance) in [(2, 0, 14), (0, 1, 21), (1, 0, 21)] {
        let (xml, own) = memnode(node);
        let (placed, notes) = shown("cxl", "", &xml);
        assert_eq!(notes, "", "{placed}");
        assert!(placed.contains(&own), "{placed}");
        let first = format!("<memnode cellid='0' mode='strict' nodeset='{other}'/>");
        assert!(placed.contains(&first), "{placed}");
        assert!(placed.contains(&format!("<sibling id='1' value='{distance}'/>")), "{placed}");
    }
}

#[test]
fn a_cell_of_memory_alone_without_a_binding_is_on_a_node_without_cpus() {
    let (placed, notes) = shown("cxl", "", &with_memory_alone(""));
    assert_eq!(notes, "", "{placed}");
    assert!(placed.contains("<memnode cellid='0' mode='strict' nodeset='0'/>"), "{placed}");
    assert!(placed.contains("<memnode cellid='1' mode='strict' nodeset='2'/>"), "{placed}");
    assert!(placed.contains("<sibling id='1' value='14'/>"), "{placed}");
    let (json, _) = shown("cxl", "--format json", &with_memory_alone(""));
    let json: Value = serde_json::from_str(&json).unwrap();
    let cell = &json["cells"][1];
    assert_eq!((&cell["vcpus"], &cell["chosen"]["nodes"]), (&json!(0), &json!([2])));
    assert_eq!(cell["chosen"]["claim"]["vcpus"], json!({}), "{cell:#}");
    // A set for all memory bounds it as its own does.
    let all = "<numatune><memory mode='strict' nodeset='0-1'/></numatune>";
    let (placed, _) = shown("cxl", "", &with_memory_alone(all));
    assert!(placed.contains("<memnode cellid='1' mode='strict' nodeset='1'/>"), "{placed}");
}

#[test]
fn vcpus_that_are_plugged_into_a_cell_of_memory_alone_later_have_the_cpus_of_all_homes() {
    let xml = TWO_CELLS.replace("<vcpu>4", "<vcpu current='2'>4");
    let (placed, notes) = shown("cxl", "", &xml);
    assert_eq!(notes, "", "{placed}");
    assert!(placed.contains("<memnode cellid='1' mode='strict' nodeset='2'/>"), "{placed}");
    assert!(placed.contains("<vcpupin vcpu='3' cpuset='0-7,16-23'/>"), "{placed}");
}

#[test]
fn a_shape_that_a_migration_cost_is_exported_while_the_bindings_are_nearsides() {
    let two = common::unpacked("two-sockets").unwrap();
    let exported = |xml: &str| -> Value {
        let output = nearside(&["export", "-"], two.path(), "", xml.as_bytes());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (placed, _) = shown("two-sockets", "", TWO_CELLS);
    // As libvirt-hook writes it where both cells had to share a node.
    let shared = placed.replace("nodeset='1'", "nodeset='0'");
    let known = shared
        .replace("\"memnode\":{\"0\":\"0\",\"1\":\"1\"", "\"memnode\":{\"0\":\"0\",\"1\":\"0\"");
    assert_ne!(known, shared);
    assert_eq!(exported(&known)["cells"][0]["shares_nodes_with"], json!([]));
    assert_eq!(exported(&known)["home_distances"], json!([[10, 21], [21, 10]]));
    // An operator's own binding is the shape.
    assert_eq!(exported(&shared)["cells"][0]["shares_nodes_with"], json!([1]));
}

#[test]
fn a_name_of_no_file_and_no_domain_is_refused_with_both() {
    let root = common::unpacked("two-sockets").unwrap();
    for name in ["nowhere.xml", "/nowhere/vm.xml"] {
        let output = nearside(&["export", name], root.path(), "", b"");
        assert_eq!(output.status.code(), Some(1));
        let told = format!("there is no file {name}, and no such domain: ");
        assert!(text(&output.stderr).contains(&told), "{}", text(&output.stderr));
    }
}

#[test]
fn a_file_that_is_no_intent_is_refused() {
    let root = common::unpacked("two-sockets").unwrap();
    for (flags, bytes, code, told) in [
        ("", &b"{}"[..], 1, "-: missing field `version` at line 1 column 2"),
        ("", b"<domain/>", 1, "-: expected value at line 1 column 1"),
        ("", b"\xff", 1, "-: expected value at line 1 column 1"),
        ("", &[b' '; 2 << 20], 1, "-: the text has 2097152 bytes, expected at most 1048576"),
        (
            "",
            b"{\"version\":1,\"name\":null,\"mode\":\"strict\",\"cells\":[],\"distances\":null,\
              \"home_distances\":null}",
            1,
            "-: a virtual machine needs at least 1 cell",
        ),
        ("--format diff", b"{}", 2, "homes are printed as text or JSON"),
        ("--policy strict", b"{}", 2, "cannot be used with"),
    ] {
        let output = nearside(&["place", "--intent", "-"], root.path(), flags, bytes);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(told) && output.stdout.is_empty(), "{told}: {message}");
    }
    let output = nearside(&["export", "-"], root.path(), "", b"<domain");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("-: line 1, column "), "{}", text(&output.stderr));
}
