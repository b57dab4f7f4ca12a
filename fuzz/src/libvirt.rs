//! The targets of the crate `libvirt`: the XML of a domain, an intent, and metadata.
//! `crates/libvirt/tests/corpus.rs` includes this file and replays the corpora.

use nearside_libvirt::{
    CellPlacement, Domain, Intent, IothreadId, Keep, MemoryMode, Metadata, Placement, Written,
    complete, contradictions, lint, operators,
    render::{json, sarif, text, unified_diff},
    strip,
};
use nearside_topology::{Cpu, CpuId, Distances, HugePagePool, Node, NodeId, NodeSet, Topology};

/// A domain's XML. One that is read is checked against a small host and completed.
pub fn libvirt(input: &[u8]) {
    let domain = match Domain::from_bytes(input) {
        Ok(domain) => domain,
        Err(error) => return assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    };
    let host = host();
    lint(&domain, None);
    let mut findings = lint(&domain, Some(&host));
    // Each change of the input chooses another placement.
    let choice = input.iter().fold(0_usize, |sum, byte| sum.wrapping_add(usize::from(*byte)));
    let placement = placement(choice, domain.cells.len(), &host);
    findings.extend(contradictions(&domain, &placement));
    for finding in &findings {
        assert!(finding.start <= finding.end && !finding.message.contains('\n'), "{finding:?}");
    }
    text("input", &findings);
    json("input", &findings).expect("findings are JSON");
    sarif("input", &findings).expect("findings are JSON");
    let completed = complete(&domain, &placement);
    // The additions may exceed the bound of a text.
    if completed.len() > nearside_libvirt::MAX_BYTES {
        return;
    }
    let again = Domain::read(&completed).expect("a completed domain can be read");
    assert_eq!(complete(&again, &placement), completed, "completed twice");
    if completed.len() < 10_000 {
        unified_diff("input", domain.text(), &completed);
    }
}

/// An intent. One that is read is the same after it was written.
pub fn intent(input: &[u8]) {
    match Intent::read(input) {
        Ok(intent) => {
            let text = serde_json::to_vec(&intent).expect("an intent is JSON");
            // Escapes may lead over the bound of a text.
            if text.len() <= nearside_libvirt::MAX_BYTES {
                assert_eq!(Intent::read(&text).expect("a written intent can be read"), intent);
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    }
}

/// A domain's XML with metadata. Without the values that they name it is a domain, which can be
/// completed again; the metadata are the same after they were written.
pub fn metadata(input: &[u8]) {
    let Ok(domain) = Domain::from_bytes(input) else { return };
    let metadata = match Metadata::of(&domain) {
        Ok(Some(metadata)) => metadata,
        Ok(None) => return,
        Err(error) => return assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    };
    for keep in [Keep::Nothing, Keep::Distances] {
        let stripped = strip(&domain, &metadata, keep).expect("what is left is a domain");
        let model = operators(&domain, &metadata, keep);
        assert_eq!(model.pins.vcpus.len(), stripped.pins.vcpus.len());
        assert_eq!(model.distances(), stripped.distances());
        let completed = complete(&stripped, &placement(input.len(), domain.cells.len(), &host()));
        let Ok(completed) = Domain::read(&completed) else { continue };
        let wrote = Written::between(&stripped, &completed);
        let written = Metadata { wrote, ..metadata.clone() };
        let text = written.write_to(&completed).expect("metadata are JSON");
        let Ok(again) = Domain::read(&text) else { continue };
        assert_eq!(Metadata::of(&again).expect("written metadata can be read"), Some(written));
        Metadata::remove_from(&again);
    }
}

fn placement(choice: usize, cells: usize, host: &Topology) -> Placement {
    let cell = |cell: usize| {
        let nodes = NodeSet::from([NodeId(((cell + choice) % 3) as u32)]);
        CellPlacement { cpus: host.cpus_of_nodes(&nodes), nodes }
    };
    Placement {
        mode: MemoryMode::ALL[choice % 4],
        cells: (0..cells + choice % 2).map(cell).collect(),
        pins_vcpus: !choice.is_multiple_of(3),
        emulator_cpus: host.cpus_of(NodeId((choice % 2) as u32)),
        iothreads: [(IothreadId(1), host.cpus_of(NodeId(0)))].into(),
        distances: (!choice.is_multiple_of(5)).then(|| host.distances.clone()),
    }
}

/// Two nodes with CPUs, and one of memory alone.
fn host() -> Topology {
    let ids = [NodeId(0), NodeId(1), NodeId(2)];
    let pool =
        HugePagePool { page_bytes: 2 << 20, total_pages: 64, free_pages: 0, surplus_pages: 0 };
    let node = |&id| Node { id, memory_bytes: 1 << 33, huge_pages: vec![pool], ..Node::default() };
    Topology {
        nodes: ids.iter().map(node).collect(),
        cpus: (0..8).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 4))).collect(),
        distances: Distances::uniform(&ids),
        ..Topology::default()
    }
}
