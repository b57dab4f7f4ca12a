//! The fuzz targets: one function a target, named as the target and its folder in `corpus/`.
//!
//! `crates/topology/tests/corpus.rs` includes this file and replays the corpus through it, so it
//! uses no crate that only a fuzzer needs. Targets of the crate `linux`, which `topology` cannot
//! see, are in `linux.rs`, and `crates/linux/tests/corpus.rs` includes that; those of `simulator`,
//! `libvirt`, `replicas` and `nearside` are in `scenario.rs`, `libvirt.rs`, `replicas.rs` and
//! `api.rs` likewise.

pub mod sysfs;

use nearside_topology::{
    Cpu, CpuId, Distances, MAX_NODES, Node, NodeId, NodeSet, Performance, Topology,
    acpi::{self, Effect, Finding, Tables},
    fake::{self, FakeSpec},
    grammar::{CpuContext, NodeContext, parse_cpus, parse_nodes},
    machine_file,
};

/// Tables as raw bytes. An input may hold several, each as long as its header says, so that an
/// SRAT, a SLIT and an HMAT can be tried together.
pub fn acpi(input: &[u8]) {
    let mut raw = Vec::new();
    let mut rest = input;
    while let Some(length) =
        rest.get(4..8).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes)
    {
        let Some((table, more)) = rest.split_at_checked(length.max(36) as usize) else { break };
        raw.push(table);
        rest = more;
    }
    // Each is also tried alone: the tables before it must not shield it.
    raw.iter().for_each(|table| check_machine(&Tables::from_bytes(table)));
    check_machine(&Tables::from_bytes(rest));
    acpidump(hexadecimal(&raw).as_bytes());
}

/// Tables as the text of `acpidump`.
pub fn acpidump(input: &[u8]) {
    check_machine(&Tables::from_bytes(input));
}

/// Lists of nodes and CPUs, as the kernel writes them and as people type them.
pub fn nodeset(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(nodes) = text.parse::<NodeSet>() {
        assert_eq!(nodes.to_string().parse().as_ref(), Ok(&nodes));
    }
    for machine in machines() {
        let context = NodeContext::of(&machine);
        if let Ok(nodes) = parse_nodes(text, &context) {
            assert!(nodes.is_subset(&context.existing));
            assert_eq!(parse_nodes(&nodes.to_string(), &context).as_ref(), Ok(&nodes));
        }
        let context = CpuContext::of(&machine);
        if let Ok(cpus) = parse_cpus(text, &context) {
            assert!(cpus.is_subset(&context.allowed));
            assert_eq!(parse_cpus(&cpus.to_string(), &context).as_ref(), Ok(&cpus));
        }
    }
}

/// Machines as TOML describes them.
pub fn machine_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let machine = match machine_file::parse("input", text) {
        Ok(file) => file.topology,
        Err(error) => return assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    };
    assert!(machine.nodes.iter().all(|node| !machine.cpus_of(node.id).is_empty()));
    let figures = |p: &Performance| p.read_latency_ns > Some(0) && p.read_bandwidth_mb_s != Some(0);
    assert!(
        machine.performance.len() == machine.nodes.len().pow(2)
            && machine.performance.iter().all(figures)
    );
}

/// Machines made up by a `fake=` specification.
pub fn fake(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(spec) = text.parse::<FakeSpec>() else { return };
    assert_eq!(spec.to_string().parse().as_ref(), Ok(&spec));
    for machine in machines() {
        let Ok(faked) = fake::fake(&machine, &spec) else { continue };
        assert!((1..=MAX_NODES as usize).contains(&faked.nodes.len()));
        assert_eq!(
            (faked.memory_bytes(), faked.cpus.len()),
            (machine.memory_bytes(), machine.cpus.len())
        );
        assert!(
            faked.cpus.iter().all(|cpu| cpu.node.is_some_and(|node| faked.node(node).is_some()))
        );
        assert!(
            faked
                .nodes
                .iter()
                .all(|node| faked.distances.row(node.id).count() == faked.nodes.len())
        );
    }
}

/// One node; three with sparse numbers, unequal memory, one without memory and one without CPUs.
fn machines() -> [Topology; 2] {
    let node = |id, memory_bytes| Node { id: NodeId(id), memory_bytes, ..Node::default() };
    let machine = |nodes: Vec<Node>, cpus: &[u32]| {
        let ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
        let cpus =
            cpus.iter().zip(0..).map(|(&node, cpu)| Cpu::new(CpuId(cpu), NodeId(node))).collect();
        Topology { distances: Distances::uniform(&ids), nodes, cpus, ..Topology::default() }
    };
    const GIB: u64 = 1 << 30;
    [
        machine(vec![node(0, 64 * GIB)], &[0, 0, 0, 0]),
        machine(vec![node(0, 5 * GIB + 4096), node(3, 0), node(8, GIB)], &[0, 0, 3, 3, 0, 3]),
    ]
}

/// For any tables, the machine must be one that the rest of Nearside can rely on.
fn check_machine(tables: &Tables) {
    let (machine, findings) = acpi::topology(tables);
    // A table may still turn out to be unusable; that only changes the effect of the findings.
    let same = |(all, own): (&Finding, &Finding)| {
        (all.table, all.offset, &all.read) == (own.table, own.offset, &own.read)
            && (all.effect == own.effect || all.effect == Effect::TableIgnored)
    };
    assert!(findings.len() >= tables.findings.len());
    assert!(findings.iter().zip(&tables.findings).all(same));
    for finding in &findings {
        assert!(!finding.to_string().contains('\n'), "one line: {finding:?}");
    }
    assert!((1..=MAX_NODES as usize).contains(&machine.nodes.len()));
    for (at, node) in machine.nodes.iter().enumerate() {
        assert_eq!(node.id, NodeId(at as u32));
        let ranges = node.ranges.iter().map(|range| u128::from(range.length_bytes)).sum::<u128>();
        assert!(u128::from(node.memory_bytes) <= ranges);
        assert_eq!(machine.distances.get(node.id, node.id), 10);
        assert_eq!(machine.distances.row(node.id).count(), machine.nodes.len());
    }
    for (at, cpu) in machine.cpus.iter().enumerate() {
        assert_eq!(cpu.id.0, at as u32);
        assert!(cpu.node.is_none_or(|node| machine.node(node).is_some()));
    }
    for performance in &machine.performance {
        assert!(
            machine.node(performance.initiator).is_some()
                && machine.node(performance.target).is_some()
        );
    }
    // A table is either used or has a finding; none is dropped in silence.
    if tables.srat.is_none() {
        assert!(findings.iter().any(|finding| finding.table == acpi::Signature::SRAT));
    }
}

fn hexadecimal(tables: &[&[u8]]) -> String {
    let mut text = String::new();
    for table in tables {
        text.push_str("SRAT @ 0x0\n");
        for (line, bytes) in table.chunks(16).enumerate() {
            let bytes: String = bytes.iter().map(|byte| format!("{byte:02X} ")).collect();
            text.push_str(&format!("    {:04X}: {bytes}\n", line * 16));
        }
    }
    text
}
