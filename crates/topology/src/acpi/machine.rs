//! Makes a machine of tables.

use super::{
    domains::Domains,
    finding::{Effect, Finding, Group, reject},
    hmat::{DataType, Hmat, Quantity, Value},
    signature::Signature,
    slit::Slit,
    srat::ProcessorId,
    tables::Tables,
};
use crate::{
    distance::Distances,
    id::{CpuId, MAX_ID, NodeId, NodeSet, Pxm},
    model::{Access, Cpu, Node, Performance, Topology},
};
use alloc::{collections::BTreeMap, format, vec::Vec};

/// The machine that `tables` describe, with all faults and oddities of the tables. Without an SRAT
/// that can be used the machine has one node of unknown memory, as Linux assumes (`numa_init` in
/// `arch/x86/mm/numa.c`).
///
/// The list has one figure for each pair of nodes that the HMAT covers: as [`Access::Access1`] if
/// the initiator has CPUs, else as [`Access::Access0`].
pub fn topology(tables: &Tables) -> (Topology, Vec<Finding>) {
    let mut findings = tables.findings.clone();
    let domains = match &tables.srat {
        Some(srat) => Domains::of(srat, &mut findings).unwrap_or_else(|fault| {
            reject(&mut findings, 0, fault);
            Domains::one_node()
        }),
        None => {
            if !findings
                .iter()
                .any(|f| f.table == Signature::SRAT && f.effect == Effect::TableIgnored)
            {
                let (read, expected) = ("no such table".into(), "one".into());
                let effect = Effect::TableMissing;
                findings.push(Finding {
                    table: Signature::SRAT,
                    offset: 0,
                    read,
                    expected,
                    effect,
                });
            }
            Domains::one_node()
        }
    };
    let distances = distances(&domains, tables.slit.as_ref(), &mut findings);
    let cpus =
        cpus(&domains, tables.madt.as_ref().map(|madt| madt.processors.as_slice()), &mut findings);
    let performance = match &tables.hmat {
        Some(hmat) => performance(&domains, hmat, &cpus, &mut findings),
        None => Vec::new(),
    };
    let source =
        if tables.source.is_empty() { "ACPI tables".into() } else { tables.source.clone() };
    let Domains { nodes, devices, .. } = domains;
    (
        Topology { source, nodes, cpus, distances, performance, devices, ..Topology::default() },
        findings,
    )
}

/// The CPUs in the order of the MADT where there is one that lists any. One without a proximity
/// domain counts as never online: its node is unknown.
fn cpus(domains: &Domains, madt: Option<&[ProcessorId]>, findings: &mut Vec<Finding>) -> Vec<Cpu> {
    let node_of: BTreeMap<_, _> = domains.processors.iter().copied().collect();
    let listing = madt.filter(|processors| !processors.is_empty());
    if madt.is_some() && listing.is_none() {
        findings.push(Finding {
            table: Signature::MADT,
            offset: 0,
            read: "no enabled processor of a known type".into(),
            expected: "some; those of the SRAT are taken".into(),
            effect: Effect::Noted,
        });
    }
    let table = if listing.is_some() { Signature::MADT } else { Signature::SRAT };
    let mut homeless = Group::default();
    let ids = match listing {
        Some(processors) => processors.to_vec(),
        None => domains.processors.iter().map(|&(id, _)| id).collect(),
    };
    let listed = ids.len();
    let cpu = |(number, id): (u32, ProcessorId)| {
        // Without an SRAT there is one node, and everything is on it.
        let alone = domains.node_of_pxm.is_empty().then_some(NodeId(0));
        let node = node_of.get(&id).copied().or(alone);
        if node.is_none() {
            homeless.add(0, || format!("processor {} (CPU {number})", id.number()));
        }
        let known = Cpu::new(CpuId(number), NodeId(0));
        Cpu { node, online: node.is_some(), firmware_id: Some(id.number()), ..known }
    };
    let cpus: Vec<Cpu> = (0..=MAX_ID).zip(ids).map(cpu).collect();
    findings.extend(homeless.finding(
        table,
        Effect::Noted,
        "a proximity domain in the SRAT; without one it counts as offline",
    ));
    if listed > cpus.len() {
        let (read, expected) = (format!("{listed} processors"), format!("at most {}", cpus.len()));
        findings.push(Finding { table, offset: 0, read, expected, effect: Effect::EntryIgnored });
    }
    cpus
}

/// The SLIT's distances between the nodes, and Linux's defaults where it has none.
fn distances(domains: &Domains, slit: Option<&Slit>, findings: &mut Vec<Finding>) -> Distances {
    let ids: Vec<NodeId> = domains.nodes.iter().map(|node| node.id).collect();
    let uniform = Distances::uniform(&ids);
    let Some(slit) = slit else { return uniform };
    if domains.node_of_pxm.is_empty() {
        reject(findings, 0, without_srat(Signature::SLIT));
        return uniform;
    }
    let (mut beyond, mut strangers) = (Group::default(), Group::default());
    for pxm in domains.node_of_pxm.keys().filter(|pxm| slit.get(**pxm, **pxm).is_none()) {
        beyond.add(36, || format!("{} localities, but the SRAT has PXM {pxm}", slit.localities));
    }
    for pxm in (0..slit.localities).map(|locality| Pxm(locality as u32)) {
        if !domains.node_of_pxm.contains_key(&pxm) {
            strangers.add(36, || {
                format!("{} localities, but the SRAT has no PXM {pxm}", slit.localities)
            });
        }
    }
    let expected = format!("one for every PXM; {} is assumed", Distances::REMOTE);
    findings.extend(beyond.finding(Signature::SLIT, Effect::Noted, &expected));
    findings.extend(strangers.finding(
        Signature::SLIT,
        Effect::Noted,
        "localities of the SRAT; others are passed over",
    ));
    let distance = |from: &Node, to: &Node| {
        let known = from.pxm.zip(to.pxm).and_then(|(from, to)| slit.get(from, to));
        known.unwrap_or_else(|| uniform.get(from.id, to.id))
    };
    let pairs =
        domains.nodes.iter().flat_map(|from| domains.nodes.iter().map(move |to| (from, to)));
    let rows: Vec<_> = pairs.map(|(from, to)| distance(from, to)).collect();
    findings.extend(unreachable(domains, slit));
    Distances::new(&ids, &rows).unwrap_or(uniform)
}

/// Memory that a processor does not reach. The memory of GPUs (Grace-Hopper, GB200) need not reach
/// that of other GPUs.
fn unreachable(domains: &Domains, slit: &Slit) -> Option<Finding> {
    let with_cpus: NodeSet = domains.processors.iter().map(|(_, node)| *node).collect();
    let from = domains.nodes.iter().filter(|node| with_cpus.contains(node.id));
    let to = || domains.nodes.iter().filter(|node| node.memory_bytes > 0);
    let pairs = from.flat_map(|from| to().filter_map(|to| from.pxm.zip(to.pxm)));
    let mut group = Group::default();
    for (from, to) in pairs.filter(|&(from, to)| slit.get(from, to) == Some(Distances::UNREACHABLE))
    {
        group.add(slit.offset(from.0 as usize, to.0 as usize), || {
            format!("distance {} (unreachable) from PXM {from} to {to}", Distances::UNREACHABLE)
        });
    }
    group.finding(Signature::SLIT, Effect::Noted, "a way from every processor to all memory")
}

/// The HMAT's latencies and bandwidths between nodes.
fn performance(
    domains: &Domains,
    hmat: &Hmat,
    cpus: &[Cpu],
    findings: &mut Vec<Finding>,
) -> Vec<Performance> {
    if domains.node_of_pxm.is_empty() {
        reject(findings, 0, without_srat(Signature::HMAT));
        return Vec::new();
    }
    if let Err(fault) = check_attachments(domains, hmat) {
        reject(findings, 0, fault);
        return Vec::new();
    }
    let node_of = |pxm: &Pxm| (*pxm, domains.node_of_pxm.get(pxm).copied());
    let with_cpus: NodeSet = cpus.iter().filter_map(|cpu| cpu.node).collect();
    let (mut unreachable, mut large, mut strangers) =
        (Group::default(), Group::default(), Group::default());
    let mut performance = BTreeMap::new();
    // Entries of caches hold only for hits, so they are not the memory's.
    for locality in hmat.localities.iter().filter(|locality| locality.hierarchy == 0) {
        let targets: Vec<_> = locality.targets.iter().map(node_of).collect();
        let rows = locality.initiators.iter().map(node_of);
        for (initiator, row) in rows.zip(locality.entries.chunks(targets.len().max(1))) {
            for (target, &entry) in targets.iter().zip(row) {
                let ((from_pxm, Some(from)), (to_pxm, Some(to))) = (initiator, *target) else {
                    let pxm = if initiator.1.is_none() { initiator.0 } else { target.0 };
                    strangers.add(locality.offset, || format!("PXM {pxm}"));
                    continue;
                };
                let pair = || format!("an entry of {entry:#x} from PXM {from_pxm} to {to_pxm}");
                match locality.value(entry, hmat.revision) {
                    Value::NotProvided => {}
                    Value::Unreachable => unreachable.add(locality.offset, pair),
                    Value::TooLarge => large.add(locality.offset, || {
                        format!("{} in base units of {}", pair(), locality.base_unit)
                    }),
                    Value::Known(value) => {
                        let access = if with_cpus.contains(from) {
                            Access::Access1
                        } else {
                            Access::Access0
                        };
                        let known = performance
                            .entry((from, to))
                            .or_insert_with(|| without_figures(access, from, to));
                        record(known, locality.data_type, value);
                    }
                }
            }
        }
    }
    let reach = "a way from every initiator to every target";
    findings.extend(unreachable.finding(Signature::HMAT, Effect::Noted, reach));
    findings.extend(large.finding(
        Signature::HMAT,
        Effect::EntryIgnored,
        "a value of at most 32 bits",
    ));
    findings.extend(strangers.finding(Signature::HMAT, Effect::EntryIgnored, "a PXM of the SRAT"));
    performance.into_values().collect()
}

/// Linux drops the HMAT when a structure of type 0 names a domain that the SRAT does not have
/// (`hmat_parse_proximity_domain` in `drivers/acpi/numa/hmat.c`).
fn check_attachments(domains: &Domains, hmat: &Hmat) -> Result<(), Finding> {
    let table = Signature::HMAT;
    let node = |pxm: &Pxm| domains.nodes.get(domains.node_of_pxm.get(pxm)?.0 as usize);
    for attachment in &hmat.attachments {
        let Some(memory) = attachment.memory else { continue };
        let effect = Effect::TableIgnored;
        if node(&memory).is_none_or(|node| node.ranges.is_empty()) {
            let (offset, read) = (attachment.offset + 16, format!("memory in PXM {memory}"));
            return Err(Finding {
                table,
                offset,
                read,
                expected: "one with memory in the SRAT".into(),
                effect,
            });
        }
        if let Some(initiator) = attachment.initiator.filter(|pxm| node(pxm).is_none()) {
            let (offset, read) =
                (attachment.offset + 12, format!("an initiator in PXM {initiator}"));
            return Err(Finding {
                table,
                offset,
                read,
                expected: "a PXM of the SRAT".into(),
                effect,
            });
        }
    }
    Ok(())
}

fn without_figures(access: Access, initiator: NodeId, target: NodeId) -> Performance {
    Performance {
        access,
        initiator,
        target,
        read_latency_ns: None,
        write_latency_ns: None,
        read_bandwidth_mb_s: None,
        write_bandwidth_mb_s: None,
    }
}

fn record(performance: &mut Performance, data_type: DataType, value: u64) {
    let (read, write) = match data_type.quantity {
        Quantity::LatencyNs => {
            (&mut performance.read_latency_ns, &mut performance.write_latency_ns)
        }
        Quantity::BandwidthMbS => {
            (&mut performance.read_bandwidth_mb_s, &mut performance.write_bandwidth_mb_s)
        }
    };
    if data_type.read {
        *read = Some(value);
    }
    if data_type.write {
        *write = Some(value);
    }
}

fn without_srat(table: Signature) -> Finding {
    let (read, expected) =
        ("proximity domains".into(), "an SRAT that gives them CPUs and memory".into());
    Finding { table, offset: 0, read, expected, effect: Effect::TableIgnored }
}
