//! Completing a domain: elements are added, and every byte of the operator's stays.
//!
//! Bindings that are there are explicit, so they stay as they are and limit what is added:
//!
//! | the XML has | so |
//! |---|---|
//! | automatic placement of memory | nothing is added |
//! | a nodeset for all memory | a cell placed outside of it gets no `<memnode>` |
//! | a mode for all memory | each new `<memnode>` has that mode |
//! | a cell's memory on none of its nodes in the placement | its vCPUs are not bound |
//! | `cpuset=` of `<vcpu>` | new bindings stay inside of it |
//! | memory on other nodes than the placement | no `<emulatorpin>` is added: it might miss them |
//! | any distance | no distance is added |
//!
//! [`contradictions()`](crate::contradictions()) reports where this departs from the placement.

mod edit;
mod elements;
pub(crate) mod layout;

use crate::{
    binding::{in_force, is_auto, of_cell, of_domain},
    domain::Domain,
    id::{CellId, VcpuId},
    memory::MemoryMode,
    placement::{CellPlacement, Placement, cell_distance},
};
pub(crate) use edit::{Edit, apply};
pub(crate) use elements::Element;
pub(crate) use layout::Layout;
use nearside_topology::{CpuSet, Distance, Distances, NodeSet};
use std::collections::BTreeSet;

/// The text of `domain` with the bindings of `placement` added. Nothing else changes, and the text
/// stays as it is where there is nothing to add.
pub fn complete(domain: &Domain, placement: &Placement) -> String {
    apply(domain.text(), edits(domain, placement))
}

/// The insertions that complete a domain. They replace no byte except the `/` of an element that
/// has to stay open for its children, and a nodeset that is missing goes into a start tag.
pub(crate) fn edits(domain: &Domain, placement: &Placement) -> Vec<Edit> {
    let Ok(document) = roxmltree::Document::parse(domain.text()) else { return Vec::new() };
    if is_auto(domain) {
        return Vec::new();
    }
    let layout = Layout::new(domain.text(), document.root_element());
    let mut edits = layout.add_to_section("cputune", cputune(domain, placement));
    edits.extend(nodeset(domain, placement));
    edits.extend(layout.add_to_section("numatune", numatune(domain, placement)));
    let start = |(cell, added): (usize, _)| Some((domain.cells.get(cell)?.span.start, added));
    let distances = distances(domain, placement).into_iter().filter_map(start);
    edits.extend(layout.add_to_cells(distances.collect()));
    edits
}

/// The elements that `<numatune>` lacks.
fn numatune(domain: &Domain, placement: &Placement) -> Vec<Element> {
    let written = domain.numatune.as_ref();
    let has_memory = written.is_some_and(|numatune| numatune.memory.is_some());
    // A mode that libvirt does not know has to be corrected first.
    if has_memory && domain.written_mode().is_none() {
        return Vec::new();
    }
    let mode = domain.completed_mode(placement.mode);
    let memnodes: Vec<_> = memnodes(domain, placement, mode).collect();
    let nodes = nodes_in_use(domain, placement);
    let mut elements = Vec::new();
    // The mode preferred takes one node for all memory, so the cells alone are bound then.
    let is_for_cells = mode == MemoryMode::Preferred && nodes.len() > 1 && !domain.cells.is_empty();
    if !has_memory && !nodes.is_empty() && !is_for_cells {
        let attributes = [("mode", mode.to_string()), ("nodeset", nodes.to_string())];
        elements.push(Element::new("memory", attributes));
    }
    elements.extend(memnodes);
    elements
}

/// A `<memnode>` for each cell that is placed and lacks one.
fn memnodes<'a>(
    domain: &'a Domain,
    placement: &'a Placement,
    mode: MemoryMode,
) -> impl Iterator<Item = Element> + 'a {
    let bounds = of_domain(domain).map(|binding| &binding.nodes.value);
    let cells = domain.cells.iter().zip(placement.places(domain));
    let lacking = cells.filter(move |(cell, place)| {
        let inside = bounds.is_none_or(|bounds| place.nodes.is_subset(bounds));
        !has_memnode(domain, cell.id) && !place.nodes.is_empty() && inside
    });
    lacking.map(move |(cell, place)| {
        let cell = cell.id.to_string();
        let nodes = place.nodes.to_string();
        Element::new("memnode", [("cellid", cell), ("mode", mode.to_string()), ("nodeset", nodes)])
    })
}

/// The nodes that hold the domain's memory once it is completed.
fn nodes_in_use(domain: &Domain, placement: &Placement) -> NodeSet {
    let count = domain.cells.len().max(1);
    (0..count).fold(NodeSet::new(), |all, cell| all.union(&nodes_of(domain, placement, cell)))
}

/// The nodes of a cell once the domain is completed: the operator's, or those of the placement. A
/// domain without cells counts as one.
fn nodes_of(domain: &Domain, placement: &Placement, cell: usize) -> NodeSet {
    let placed = placement.places(domain).get(cell).map(|place| &place.nodes);
    let bounds = of_domain(domain).map(|binding| &binding.nodes.value);
    let own = domain.cells.get(cell).filter(|cell| has_memnode(domain, cell.id));
    let nodes = match (own.and_then(|cell| of_cell(domain, cell)), bounds, placed) {
        (Some(own), _, _) => Some(&own.nodes.value),
        // A cell inside of the bounds gets a <memnode>.
        (None, Some(bounds), Some(placed)) => {
            let gets_memnode =
                !domain.cells.is_empty() && !placed.is_empty() && placed.is_subset(bounds);
            Some(if gets_memnode { placed } else { bounds })
        }
        (None, bounds, placed) => bounds.or(placed),
    };
    nodes.cloned().unwrap_or_default()
}

fn has_memnode(domain: &Domain, cell: CellId) -> bool {
    let mut memnodes = domain.numatune.iter().flat_map(|numatune| &numatune.memnodes);
    memnodes.any(|memnode| memnode.cell.value == cell)
}

/// The nodeset of a `<memory>` that has a mode alone.
fn nodeset(domain: &Domain, placement: &Placement) -> Option<Edit> {
    let memory = domain.numatune.as_ref()?.memory.as_ref()?;
    let nodes = nodes_in_use(domain, placement);
    let is_lacking = memory.nodeset.is_none() && !nodes.is_empty();
    in_force(memory.mode.as_ref()).filter(|_| is_lacking)?;
    let quote = layout::quote(domain.text());
    Some(Edit::insert(memory.span.end, format!(" nodeset={quote}{nodes}{quote}")))
}

/// The bindings of threads that `<cputune>` lacks.
fn cputune(domain: &Domain, placement: &Placement) -> Vec<Element> {
    let mut elements = Vec::new();
    if placement.pins_vcpus {
        elements.extend(vcpupins(domain, placement));
    }
    elements.extend(emulatorpin(domain, placement));
    let exists = domain.iothreads.all();
    let bound: BTreeSet<_> = domain.pins.iothreads.iter().map(|pin| pin.id.value).collect();
    let iothreads = placement.iothreads.iter();
    elements.extend(
        iothreads
            .filter(|(id, cpus)| exists.contains(id) && !bound.contains(*id) && !cpus.is_empty())
            .map(|(id, cpus)| {
                let attributes = [("iothread", id.to_string()), ("cpuset", cpus.to_string())];
                Element::new("iothreadpin", attributes)
            }),
    );
    elements
}

fn vcpupins<'a>(
    domain: &'a Domain,
    placement: &'a Placement,
) -> impl Iterator<Item = Element> + 'a {
    let pinned: BTreeSet<_> = domain.pins.vcpus.iter().map(|pin| pin.id.value).collect();
    let mut cpus_by_vcpu: Vec<(VcpuId, CpuSet)> = Vec::new();
    for (at, place) in placement.places(domain).iter().enumerate() {
        let vcpus = match domain.cells.get(at) {
            Some(cell) => domain.vcpus_of(cell).intersection(&domain.vcpus.all()),
            None => domain.vcpus.all(),
        };
        let cpus = allowed(domain, &place.cpus);
        let memory = nodes_of(domain, placement, at);
        let is_near = memory.is_empty() || !memory.intersection(&place.nodes).is_empty();
        if is_near && !cpus.is_empty() {
            let free = vcpus.iter().filter(|vcpu| !pinned.contains(vcpu));
            cpus_by_vcpu.extend(free.map(|vcpu| (vcpu, cpus.clone())));
        }
    }
    cpus_by_vcpu.sort_by_key(|(vcpu, _)| *vcpu);
    cpus_by_vcpu.into_iter().map(|(vcpu, cpus)| {
        Element::new("vcpupin", [("vcpu", vcpu.to_string()), ("cpuset", cpus.to_string())])
    })
}

/// The part of these CPUs that the operator's `cpuset=` allows.
pub(crate) fn allowed(domain: &Domain, cpus: &CpuSet) -> CpuSet {
    match domain.vcpus.bound_cpus() {
        Some(bound) => cpus.intersection(&bound.value),
        None => cpus.clone(),
    }
}

/// The emulator's CPUs, if none are written and those of the placement reach all memory.
fn emulatorpin(domain: &Domain, placement: &Placement) -> Option<Element> {
    let of_vcpus = placement.cpus(domain);
    if of_vcpus.is_empty() {
        return None;
    }
    let cpus = of_vcpus.union(&placement.emulator_cpus);
    let reaches_all = nodes_in_use(domain, placement).is_subset(&placement.nodes(domain));
    let is_allowed = allowed(domain, &cpus) == cpus;
    let lacking = domain.pins.emulator.is_none() && reaches_all && is_allowed;
    lacking.then(|| Element::new("emulatorpin", [("cpuset", cpus.to_string())]))
}

/// The least distance between two cells.
const NEAREST: Distance = Distances::LOCAL + 1;

/// The distances of each cell, by its place in the list, if none are written.
fn distances(domain: &Domain, placement: &Placement) -> Vec<(usize, Element)> {
    let places = placement.places(domain);
    let is_written = domain.cells.iter().any(|cell| !cell.distances.is_empty());
    let are_placed =
        places.len() == domain.cells.len() && places.iter().all(|place| !place.nodes.is_empty());
    let Some(host) = &placement.distances else { return Vec::new() };
    if is_written || !are_placed || places.len() < 2 {
        return Vec::new();
    }
    let sibling = |from: &CellPlacement, (to, place): (usize, &CellPlacement)| {
        let value = match std::ptr::eq(from, place) {
            true => Distances::LOCAL,
            // libvirt takes 10 for a cell and itself alone, also where cells share a node.
            false => cell_distance(host, &from.nodes, &place.nodes).max(NEAREST),
        };
        Element::new("sibling", [("id", to.to_string()), ("value", value.to_string())])
    };
    let row = |from| places.iter().enumerate().map(|it| sibling(from, it)).collect();
    let rows = places.iter().enumerate();
    rows.map(|(at, from)| (at, Element::with_children("distances", row(from)))).collect()
}

#[cfg(test)]
mod tests;
