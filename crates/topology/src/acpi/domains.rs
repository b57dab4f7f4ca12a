//! The nodes that an SRAT makes, numbered as Linux numbers them.

use super::{
    finding::{Effect, Finding, Group},
    signature::Signature,
    srat::{DeviceHandle, ProcessorId, Srat, Subject},
};
use crate::{
    id::{MAX_NODES, NodeId, Pxm},
    model::{Device, DeviceKind, MemoryRange, Node},
};
use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::fmt;

/// Holes that end here are no RAM: the PCI hole of x86 below 4 GiB, and below 1 TiB the addresses
/// that AMD keeps for HyperTransport (0xfd_0000_0000 on, reserved by `iommu` and `e820` in Linux).
const ENDS_OF_HOLES: [u64; 2] = [4 << 30, 1 << 40];
/// Legacy video memory and ROMs, missing on every x86 machine.
const LEGACY_HOLE: (u64, u64) = (0xa_0000, 0x10_0000);

/// The content of the SRAT in the operating system's numbers.
pub(super) struct Domains {
    pub(super) nodes: Vec<Node>,
    pub(super) node_of_pxm: BTreeMap<Pxm, NodeId>,
    /// The enabled processors in the order of the SRAT, each once.
    pub(super) processors: Vec<(ProcessorId, NodeId)>,
    pub(super) devices: Vec<Device>,
}

impl Domains {
    /// All CPUs and memory in one node of unknown memory: firmware's memory map, which has the
    /// amount, is no ACPI table.
    pub(super) fn one_node() -> Self {
        let nodes = vec![Node { memory_is_unknown: true, ..Node::default() }];
        Self { nodes, node_of_pxm: BTreeMap::new(), processors: Vec::new(), devices: Vec::new() }
    }

    /// Numbers the nodes as Linux does.
    ///
    /// # Errors
    /// The reason why Linux would not use the SRAT.
    pub(super) fn of(srat: &Srat, findings: &mut Vec<Finding>) -> Result<Self, Finding> {
        let mut domains = Self { nodes: Vec::new(), ..Self::one_node() };
        let mut place_of = BTreeMap::new();
        let (mut twice, mut unusable, mut large) =
            (Group::default(), Group::default(), Group::default());
        let enabled = || srat.entries.iter().filter(|entry| entry.enabled);

        for entry in enabled() {
            match entry.subject {
                Subject::Processor(id) => {
                    let node = domains.node(entry.pxm, entry.offset)?;
                    // The later entry wins, as in `set_apicid_to_node`.
                    let place = *place_of.entry(id).or_insert(domains.processors.len());
                    match domains.processors.get_mut(place) {
                        None => domains.processors.push((id, node)),
                        Some(known) => {
                            twice.add(entry.offset, || format!("processor {} again", id.number()));
                            known.1 = node;
                        }
                    }
                }
                Subject::GenericInitiator(handle) => {
                    let node = domains.node(entry.pxm, entry.offset)?;
                    if let DeviceHandle::Pci { .. } = handle {
                        let (kind, name) = (DeviceKind::Pci, handle.to_string());
                        domains.devices.push(Device { kind, name, node: Some(node), class: None });
                    }
                }
                Subject::Memory(_) | Subject::GicIts(_) | Subject::GenericPort(_) => {}
            }
        }

        let mut ranges = Vec::new();
        for entry in enabled() {
            let Subject::Memory(range) = entry.subject else { continue };
            let node = domains.node(entry.pxm, entry.offset)?;
            match range.start.checked_add(range.length_bytes) {
                Some(end) if end > range.start => {
                    ranges.push(Placed { offset: entry.offset, node, range, end })
                }
                _ => unusable.add(entry.offset, || {
                    format!("{:#x} bytes from {:#x}", range.length_bytes, range.start)
                }),
            }
        }
        if !enabled().any(|entry| matches!(entry.subject, Subject::Memory(_))) {
            let (read, expected) = ("no enabled memory".into(), "at least one range".into());
            return Err(srat_finding(0, Effect::TableIgnored, read, expected));
        }
        domains.place_memory(ranges, findings)?;

        for entry in enabled().filter(|entry| entry.pxm.0 >= MAX_NODES) {
            large.add(entry.offset, || format!("PXM {}", entry.pxm));
        }
        let pxm_limit =
            format!("less than {MAX_NODES}: Linux refuses a table with more (MAX_PXM_DOMAINS)");
        findings.extend(twice.finding(
            Signature::SRAT,
            Effect::Noted,
            "each processor once; the last entry counts",
        ));
        findings.extend(unusable.finding(
            Signature::SRAT,
            Effect::EntryIgnored,
            "a range that ends after it starts",
        ));
        findings.extend(large.finding(Signature::SRAT, Effect::Noted, &pxm_limit));
        Ok(domains)
    }

    /// The node of a domain: the next free number at its first use (`acpi_map_pxm_to_node`).
    fn node(&mut self, pxm: Pxm, offset: usize) -> Result<NodeId, Finding> {
        if let Some(&node) = self.node_of_pxm.get(&pxm) {
            return Ok(node);
        }
        let id = NodeId(self.nodes.len() as u32);
        if id.0 == MAX_NODES {
            let read = format!("PXM {pxm} after {MAX_NODES} others");
            return Err(srat_finding(
                offset,
                Effect::TableIgnored,
                read,
                format!("at most {MAX_NODES}"),
            ));
        }
        self.nodes.push(Node { id, pxm: Some(pxm), ..Node::default() });
        self.node_of_pxm.insert(pxm, id);
        Ok(id)
    }

    /// Gives each node its ranges. Ranges of one node may overlap; for a byte on two nodes Linux
    /// rejects the table (`numa_cleanup_meminfo` in `mm/numa_memblks.c`).
    fn place_memory(
        &mut self,
        mut ranges: Vec<Placed>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Finding> {
        ranges.sort_by_key(|placed| placed.range.start);
        let (mut overlaps, mut holes, mut uncounted) =
            (Group::default(), Group::default(), Group::default());
        let mut furthest: Option<Placed> = None;
        let mut counted_up_to = 0;
        for placed in ranges {
            let Placed { offset, node, range, end } = placed;
            if let Some(before) = furthest {
                if range.start < before.end && node != before.node {
                    let read = format!("{placed} although {before}");
                    return Err(srat_finding(
                        offset,
                        Effect::TableIgnored,
                        read,
                        "each byte on one node".into(),
                    ));
                }
                if range.start < before.end {
                    overlaps.add(offset, || format!("{placed} although {before}"));
                }
                if may_be_ram(before, placed) {
                    holes.add(offset, || {
                        format!("no node from {:#x} to {:#x}", before.end, range.start)
                    });
                }
            }
            if furthest.is_none_or(|before| before.end < end) {
                furthest = Some(placed);
            }
            let Some(node) = self.nodes.get_mut(node.0 as usize) else { continue };
            node.ranges.push(range);
            if range.hot_pluggable || range.non_volatile {
                let kind = if range.non_volatile { "non-volatile" } else { "hot-pluggable" };
                uncounted.add(offset, || format!("{kind} memory: {placed}"));
            } else {
                node.memory_bytes += end.saturating_sub(range.start.max(counted_up_to));
                counted_up_to = counted_up_to.max(end);
            }
        }
        findings.extend(overlaps.finding(Signature::SRAT, Effect::Noted, "each byte once"));
        findings.extend(holes.finding(
            Signature::SRAT,
            Effect::Noted,
            "no RAM there: where Linux finds some, it refuses the table",
        ));
        let expected = "memory that is present for certain; this is listed but not counted";
        findings.extend(uncounted.finding(Signature::SRAT, Effect::Noted, expected));
        Ok(())
    }
}

/// Whether there is a hole between two ranges that RAM may lie in. Ranges that are plugged in while
/// the machine runs, or are no RAM, have windows of their own, with nothing around them.
fn may_be_ram(before: Placed, after: Placed) -> bool {
    let in_window = |placed: Placed| placed.range.hot_pluggable || placed.range.non_volatile;
    after.range.start > before.end
        && !ENDS_OF_HOLES.contains(&after.range.start)
        && (before.end, after.range.start) != LEGACY_HOLE
        && !in_window(before)
        && !in_window(after)
}

/// A range of memory with its node.
#[derive(Clone, Copy)]
struct Placed {
    offset: usize,
    node: NodeId,
    range: MemoryRange,
    end: u64,
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} to {:#x} is on node {}", self.range.start, self.end, self.node)
    }
}

fn srat_finding(offset: usize, effect: Effect, read: String, expected: String) -> Finding {
    Finding { table: Signature::SRAT, offset, read, expected, effect }
}
