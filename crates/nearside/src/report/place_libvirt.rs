//! A home as elements of a libvirt domain (<https://libvirt.org/formatdomain.html>).

use super::guest::{huge_page_kib, kib, lacking};
use nearside_policy::{Cell, Guest, MemoryPolicy, PageSize};

/// The elements, to be put below `<domain>`, and a note for each limit of libvirt.
pub(crate) fn report(guest: &Guest) -> (String, Vec<String>) {
    let Guest { vcpus, memory_bytes, memory_nodes: nodes, primary, cpus, cells, .. } = guest;
    let mut notes = Vec::new();
    let mut xml = format!("<memory unit='KiB'>{}</memory>\n", kib(*memory_bytes));
    xml += &format!("<vcpu placement='static' cpuset='{cpus}'>{vcpus}</vcpu>\n");
    if let Some(kib) = huge_page_kib(guest) {
        let page = format!("<page size='{kib}' unit='KiB'/>");
        xml += &format!(
            "<memoryBacking>\n  <hugepages>\n    {page}\n  </hugepages>\n</memoryBacking>\n"
        );
    }
    let has_nodes = !matches!(guest.policy, MemoryPolicy::Restrictive | MemoryPolicy::Local);
    if guest.page_size != PageSize::Base && guest.has_cell_off_cpus && has_nodes {
        notes.push(
            "libvirt 9.0 cannot allocate huge pages on nodes without CPUs: QEMU 7.2 ends with \
             \"The nodes select no CPUs\""
                .into(),
        );
    }
    let memory = match guest.policy {
        MemoryPolicy::Strict => format!("  <memory mode='strict' nodeset='{nodes}'/>\n"),
        MemoryPolicy::Preferred => format!("  <memory mode='preferred' nodeset='{primary}'/>\n"),
        MemoryPolicy::PreferredMany => {
            notes.push("older versions of libvirt accept only one preferred node".into());
            format!("  <memory mode='preferred' nodeset='{nodes}'/>\n")
        }
        MemoryPolicy::Interleave => format!("  <memory mode='interleave' nodeset='{nodes}'/>\n"),
        MemoryPolicy::WeightedInterleave => {
            notes.push(lacking("libvirt", guest.policy, "this uses plain interleave"));
            format!("  <memory mode='interleave' nodeset='{nodes}'/>\n")
        }
        MemoryPolicy::Restrictive => format!("  <memory mode='restrictive' nodeset='{nodes}'/>\n"),
        MemoryPolicy::Local => String::new(),
    };
    let cells: &[Cell] = if cells.len() > 1 { cells } else { &[] };
    let with_memory = || cells.iter().enumerate().filter(|(_, cell)| cell.memory_bytes > 0);
    let memnode = |(id, cell): (usize, &Cell)| {
        format!("  <memnode cellid='{id}' mode='strict' nodeset='{}'/>\n", cell.nodes)
    };
    let memnodes: String = with_memory().map(memnode).collect();
    if !memory.is_empty() {
        xml += &format!("<numatune>\n{memory}{memnodes}</numatune>\n");
    }
    let pins = cells.iter().flat_map(|cell| cell.vcpus.clone().map(move |vcpu| (vcpu, &cell.cpus)));
    let pins: String =
        pins.map(|(vcpu, cpus)| format!("  <vcpupin vcpu='{vcpu}' cpuset='{cpus}'/>\n")).collect();
    // Memory cannot be allocated ahead by threads that may not reach its nodes.
    let emulator = format!("  <emulatorpin cpuset='{}'/>\n", guest.emulator_cpus);
    xml += &format!("<cputune>\n{pins}{emulator}</cputune>\n");
    let cell = |(id, cell): (usize, &Cell)| {
        let vcpus = match cell.vcpus.is_empty() {
            true => String::new(),
            false => format!(" cpus='{}-{}'", cell.vcpus.start, cell.vcpus.end - 1),
        };
        format!("    <cell id='{id}'{vcpus} memory='{}' unit='KiB'/>\n", kib(cell.memory_bytes))
    };
    let cells: String = cells.iter().enumerate().map(cell).collect();
    if !cells.is_empty() {
        xml += &format!("<cpu>\n  <numa>\n{cells}  </numa>\n</cpu>\n");
    }
    (xml, notes)
}
