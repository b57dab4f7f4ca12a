//! The odd machines of the fixtures in every command that reads a machine: nodes without memory or
//! without CPUs, sparse numbers, 255 between nodes.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

#[path = "../../topology/tests/common/mod.rs"]
mod common;
#[path = "common/made_host.rs"]
mod made_host;

use made_host::Made;
use nearside_topology::{CpuSet, NodeSet, Topology, sysfs};
use serde_json::Value;
use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

const POLICIES: [&str; 5] = ["strict", "preferred", "preferred-many", "interleave", "restrictive"];

/// A machine of the fixtures, unpacked.
struct Odd {
    name: &'static str,
    root: tempfile::TempDir,
    topology: Topology,
}

impl Odd {
    fn each() -> impl Iterator<Item = Self> {
        common::ODD.into_iter().map(Self::new)
    }

    fn new(name: &'static str) -> Self {
        let root = common::unpacked(name).unwrap();
        let (topology, _) = sysfs::read(root.path()).unwrap();
        Self { name, root, topology }
    }

    fn run(&self, words: &[&str], flags: &str, input: &str) -> Output {
        nearside(words, &format!("--sysfs {} {flags}", self.root.path().display()), input)
    }

    /// Standard output and standard error of a run that must succeed.
    fn shown(&self, words: &[&str], flags: &str, input: &str) -> (String, String) {
        let output = self.run(words, flags, input);
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}: {words:?} {flags}: {error}\n{input}", self.name);
        (out, error)
    }

    fn cpus(&self) -> CpuSet {
        self.topology.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect()
    }

    /// The nodes with CPUs.
    fn cpu_nodes(&self) -> NodeSet {
        let nodes = self.topology.node_set();
        nodes.iter().filter(|node| !self.topology.cpus_of(*node).is_empty()).collect()
    }

    /// Refuses bindings of memory to nodes without any, of threads to CPUs that are not there, and
    /// cells of nothing. Returns the number of bindings of memory.
    fn check_bindings(&self, text: &str, at: &str) -> usize {
        let memory = self.topology.memory_nodes();
        let words = ["membind=", "preferred=", "many=", "interleave=", "nodeset='", "host-nodes="];
        let of_memory = lists_after(text, &words);
        for list in &of_memory {
            let nodes: NodeSet = list.parse().unwrap();
            assert!(!nodes.is_empty() && nodes.is_subset(&memory), "memory on {list}: {at}{text}");
        }
        for list in lists_after(text, &["cpunodebind="]) {
            let nodes: NodeSet = list.parse().unwrap();
            let usable = memory.intersection(&self.cpu_nodes());
            assert!(!nodes.is_empty() && nodes.is_subset(&usable), "CPUs of {list}: {at}{text}");
        }
        for list in lists_after(text, &["cpuset='", "physcpubind=", "--cpu-list "]) {
            let cpus: CpuSet = list.parse().unwrap();
            assert!(!cpus.is_empty() && cpus.is_subset(&self.cpus()), "CPUs {list}: {at}{text}");
        }
        assert!(!text.contains("memory='0'") && !text.contains("size=0"), "{at}{text}");
        of_memory.len()
    }

    /// A home of `vcpus` in JSON: memory where there is some, vCPUs where CPUs are.
    fn check_home(&self, home: &Value, (vcpus, bytes): (u64, u64), at: &str) {
        let amounts = |value: &Value| -> Vec<(NodeSet, u64)> {
            let amounts = value.as_object().unwrap().iter();
            amounts.map(|(node, it)| (node.parse().unwrap(), it.as_u64().unwrap())).collect()
        };
        let (claimed, threads) =
            (amounts(&home["claim"]["bytes"]), amounts(&home["claim"]["vcpus"]));
        let memory = self.topology.memory_nodes();
        let cpus = self.cpu_nodes();
        assert!(
            claimed.iter().all(|(node, it)| *it == 0 || node.is_subset(&memory)),
            "{at}: {home}"
        );
        assert!(threads.iter().all(|(node, it)| *it == 0 || node.is_subset(&cpus)), "{at}: {home}");
        let sum = |amounts: &[(NodeSet, u64)]| amounts.iter().map(|(_, it)| it).sum::<u64>();
        assert!(sum(&claimed) >= bytes && sum(&threads) == vcpus, "{at}: {home}");
    }
}

fn nearside(words: &[&str], flags: &str, input: &str) -> Output {
    let mut nearside = Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(words)
        .args(flags.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command line that is refused reads nothing.
    let _ = nearside.stdin.take().unwrap().write_all(input.as_bytes());
    nearside.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Each list of numbers in a text that follows one of these words.
fn lists_after<'a>(text: &'a str, words: &[&str]) -> Vec<&'a str> {
    let after = words.iter().flat_map(|word| text.split(word).skip(1));
    let is_list = |it: char| it.is_ascii_digit() || it == '-' || it == ',';
    let list = |rest: &'a str| &rest[..rest.find(|it| !is_list(it)).unwrap_or(rest.len())];
    after.map(|rest| list(rest).trim_end_matches(',')).collect()
}

/// numactl and QEMU refuse a node without memory, and libvirt refuses a cell of none.
#[test]
fn every_format_of_place_binds_to_what_is_there() {
    for odd in Odd::each() {
        let cpus = odd.cpus().len();
        // More than half of the CPUs: a home of several nodes.
        for vcpus in [1, cpus * 5 / 8 + 1] {
            for policy in POLICIES {
                let flags = format!("--cpus {vcpus} --memory 1G --policy {policy}");
                for format in ["numactl", "libvirt", "qemu", "text"] {
                    let flags = format!("{flags} --format {format}");
                    let (text, notes) = odd.shown(&["place"], &flags, "");
                    let at = format!("{} {flags}: ", odd.name);
                    let bindings = odd.check_bindings(&(text + &notes), &at);
                    assert!(format == "text" || policy != "strict" || bindings > 0, "{at}");
                }
                let (json, _) = odd.shown(&["place"], &format!("{flags} --format json"), "");
                let json: Value = serde_json::from_str(&json).unwrap();
                let at = format!("{} {flags}", odd.name);
                odd.check_home(&json["chosen"], (vcpus as u64, 1 << 30), &at);
            }
        }
    }
}

#[test]
fn nodes_of_one_kind_alone_are_no_home() {
    for odd in Odd::each() {
        let (memory, cpus) = (odd.topology.memory_nodes(), odd.cpu_nodes());
        for node in odd.topology.node_set().iter() {
            for request in ["--cpus 1 --memory 1G", "--cell 1:1G"] {
                let flags = format!("{request} --policy strict --nodes {node}");
                let output = odd.run(&["place"], &flags, "");
                let (at, error) = (format!("{} {flags}", odd.name), text(&output.stderr));
                let fits = memory.contains(node) && cpus.contains(node);
                assert_eq!(output.status.code(), Some(i32::from(!fits)), "{at}: {error}");
                let reason = match (cpus.contains(node), memory.contains(node)) {
                    (true, true) => continue,
                    (false, _) => format!("no CPU is online on node {node}"),
                    (true, false) => format!("0 bytes are available on node {node}"),
                };
                assert!(error.contains(&reason), "{at}: {error}");
            }
        }
    }
}

#[test]
fn homes_of_cells_have_memory_and_cpus() {
    for odd in Odd::each() {
        let many = odd.cpus().len() * 3 / 8 + 1;
        for vcpus in [2, many] {
            let flags = format!("--cell {vcpus}:1G --cell {vcpus}:1G --policy strict");
            let (json, _) = odd.shown(&["place"], &format!("{flags} --format json"), "");
            let json: Value = serde_json::from_str(&json).unwrap();
            for cell in json["cells"].as_array().unwrap() {
                let at = format!("{} {flags}", odd.name);
                odd.check_home(&cell["chosen"], (vcpus as u64, 1 << 30), &at);
            }
            odd.shown(&["place"], &flags, "");
        }
    }
}

/// Domains of `vcpus` vCPUs: without cells, with one, with two, with a cell of memory alone.
fn domains(vcpus: usize) -> [String; 4] {
    let domain = |cells: &str| {
        let cells = match cells {
            "" => String::new(),
            cells => format!("  <cpu>\n    <numa>\n{cells}    </numa>\n  </cpu>\n"),
        };
        format!(
            "<domain type='kvm'>\n  <name>vm</name>\n  <memory unit='GiB'>2</memory>\n  \
             <vcpu>{vcpus}</vcpu>\n{cells}</domain>\n"
        )
    };
    let cell = |id: u32, cpus: &str, gib: u32| {
        format!("      <cell id='{id}'{cpus} memory='{gib}' unit='GiB'/>\n")
    };
    let cpus = |first: usize, last: usize| format!(" cpus='{first}-{last}'");
    let (half, last) = (vcpus / 2, vcpus - 1);
    [
        domain(""),
        domain(&cell(0, &cpus(0, last), 2)),
        domain(&(cell(0, &cpus(0, half - 1), 1) + &cell(1, &cpus(half, last), 1))),
        domain(&(cell(0, &cpus(0, last), 1) + &cell(1, "", 1))),
    ]
}

#[test]
fn completed_domains_have_no_findings_on_their_machine() {
    for odd in Odd::each() {
        let many = odd.cpus().len() * 3 / 4;
        for xml in domains(4).into_iter().chain(domains(many)) {
            for policy in ["strict", "preferred", "interleave", "restrictive"] {
                let flags = format!("--affinity hard --policy {policy}");
                let (completed, _) = odd.shown(&["place", "--libvirt", "-"], &flags, &xml);
                let bindings = odd.check_bindings(&completed, &format!("{} {flags}: ", odd.name));
                assert!(bindings > 0, "{} {flags}: {completed}", odd.name);
                assert!(completed.contains("<vcpupin "), "{}: {completed}", odd.name);
                // The mode has these on every machine: libvirt prefers one node of several.
                let allowed = match policy {
                    "preferred" => "--allow vcpus-on-more-nodes-than-memory",
                    "restrictive" => "--allow restrictive-collapses-cells",
                    _ => "",
                };
                let lint = odd.run(&["lint", "-"], allowed, &completed);
                let found = text(&lint.stdout);
                assert!(lint.status.success(), "{} {flags}: {found}\n{completed}", odd.name);
                let (intent, _) = odd.shown(&["export", "-"], "", &completed);
                let intent: Value = serde_json::from_str(&intent).unwrap();
                let cells = intent["cells"].as_array().unwrap().iter();
                let vcpus: u64 = cells.map(|cell| cell["vcpus"].as_u64().unwrap()).sum();
                assert!(completed.contains(&format!("<vcpu>{vcpus}</vcpu>")), "{intent}");
            }
        }
    }
}

#[test]
fn a_domain_that_libvirt_places_stays_as_it_is() {
    for odd in Odd::each() {
        let [xml, ..] = domains(4);
        let auto = xml.replace("<vcpu>", "<vcpu placement='auto'>");
        let numatune = "</vcpu>\n  <numatune>\n    <memory mode='strict' placement='auto'/>\n  \
                        </numatune>";
        let auto = auto.replace("</vcpu>", numatune);
        let (completed, _) = odd.shown(&["place", "--libvirt", "-"], "", &auto);
        assert_eq!(completed, auto, "{}", odd.name);
    }
}

/// libvirt takes the CPUs of the nodes, and of the nodes those with memory
/// (`qemuProcessPrepareDomainNUMAPlacement`).
#[test]
fn numad_answers_with_memory_and_cpus() {
    for odd in Odd::each() {
        let made = Made::on(common::unpacked(odd.name).unwrap());
        let (memory, cpus) = (odd.topology.memory_nodes(), odd.cpu_nodes());
        let many = odd.cpus().len() * 5 / 8 + 1;
        for (number, vcpus) in [(1, 1), (2, many)] {
            let root = made.root().display();
            let output =
                nearside(&["numad"], &format!("--within 60 --root {root} -w {vcpus}:512"), "");
            let (answer, remark) = (text(&output.stdout), text(&output.stderr));
            let at = format!("{} {vcpus}: {answer}{remark}", odd.name);
            let nodes: NodeSet = answer.trim().parse().unwrap();
            assert!(!nodes.intersection(&memory).is_empty(), "{at}");
            assert!(!nodes.intersection(&cpus).is_empty(), "{at}");
            assert!(nodes.is_subset(&memory.union(&cpus)), "{at}");
            let reservations = made.reservations();
            assert_eq!(reservations.len(), number, "{at}");
            let subject = &reservations[&format!("numad-{number}")]["subject"]["reservation"];
            for node in subject["bytes"].as_object().unwrap().keys() {
                let node: NodeSet = node.parse().unwrap();
                assert!(node.is_subset(&memory) && node.is_subset(&nodes), "{at}: {subject}");
            }
        }
    }
}

#[test]
fn every_machine_is_simulated() {
    let warehouse = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/warehouse-8.toml");
    for odd in Odd::each() {
        let (json, _) = odd.shown(&["simulate", warehouse], "--format json --under nearside", "");
        let json: Value = serde_json::from_str(&json).unwrap();
        let nearside = &json["contenders"][0];
        assert_eq!(nearside["is_done"], true, "{}", odd.name);
        for domain in nearside["domains"].as_array().unwrap() {
            let nodes = domain["nodes"].as_array().unwrap().iter();
            let nodes: Vec<String> = nodes.map(|node| node.to_string()).collect();
            let nodes: NodeSet = nodes.join(",").parse().unwrap();
            assert!(!nodes.intersection(&odd.cpu_nodes()).is_empty(), "{}: {domain}", odd.name);
        }
    }
}

#[test]
fn topology_shows_each_node_as_it_is() {
    for odd in Odd::each() {
        let (json, _) = odd.shown(&["topology"], "--format json", "");
        let json: Value = serde_json::from_str(&json).unwrap();
        let nodes = json["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), odd.topology.nodes.len());
        let (report, _) = odd.shown(&["topology"], "", "");
        for (shown, node) in nodes.iter().zip(&odd.topology.nodes) {
            let at = format!("{} node {}: {shown}", odd.name, node.id);
            let cpus = odd.topology.cpus_of(node.id);
            assert_eq!(shown["cpus"].as_array().unwrap().len(), cpus.len(), "{at}");
            assert_eq!(shown["memory_bytes"].as_u64(), Some(node.memory_bytes), "{at}");
            let row: Vec<u8> = odd.topology.distances.row(node.id).collect();
            assert_eq!(shown["distances"], serde_json::json!(row), "{at}");
            let start = format!("{:>6}  {}", node.id, if cpus.is_empty() { "none " } else { "" });
            assert!(report.lines().any(|line| line.starts_with(&start)), "{at}\n{report}");
        }
    }
}
