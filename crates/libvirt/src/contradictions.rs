//! Where the operator's bindings differ from a placement.

use crate::{
    binding::{is_auto, of_cell, of_domain},
    complete::allowed,
    domain::Domain,
    finding::Finding,
    placement::Placement,
    position::Span,
    rule::Rule,
};
use nearside_topology::{CpuSet, NodeSet};

/// The bindings of `domain` that keep it from `placement`. [`complete()`](crate::complete()) leaves
/// them as they are.
pub fn contradictions(domain: &Domain, placement: &Placement) -> Vec<Finding> {
    if is_auto(domain) {
        let written = domain.numatune.as_ref().and_then(|numatune| numatune.memory.as_ref());
        let span = written.map_or(domain.vcpus.span, |memory| memory.span);
        let message = "placement='auto' leaves the choice of nodes to numad at each start";
        return vec![Finding::new(domain, Rule::OperatorOverridesPlacement, span, message.into())];
    }
    let mut found = Vec::new();
    let mut report = |span: Span, message: String| {
        found.push(Finding::new(domain, Rule::OperatorOverridesPlacement, span, message));
    };
    let places = placement.places(domain);
    if domain.cells.is_empty()
        && let (Some(written), Some(place)) = (of_domain(domain), places.first())
    {
        let nodes = &written.nodes.value;
        if *nodes != place.nodes {
            report(written.nodes.span, differs("the memory is", nodes, &place.nodes));
        }
    }
    for (cell, place) in domain.cells.iter().zip(places) {
        let Some(written) = of_cell(domain, cell) else { continue };
        let is_own = of_domain(domain).is_none_or(|all| all.nodes.span != written.nodes.span);
        let nodes = &written.nodes.value;
        // A set for all memory may be larger: the cell gets a <memnode> inside of it.
        let agrees = if is_own { *nodes == place.nodes } else { place.nodes.is_subset(nodes) };
        if !agrees {
            let what = format!("the memory of cell {} is", cell.id);
            report(written.nodes.span, differs(&what, nodes, &place.nodes));
        }
    }
    for (id, place) in (0..).zip(places) {
        let cell = domain.cells.get(id);
        let vcpus = cell.map_or_else(|| domain.vcpus.all(), |cell| domain.vcpus_of(cell));
        for pin in domain.pins.vcpus.iter().filter(|pin| vcpus.contains(pin.id.value)) {
            if !pin.cpus.value.is_subset(&place.cpus) {
                let what = format!("vCPU {} is bound to", pin.id.value);
                report(pin.cpus.span, cpus_differ(&what, &pin.cpus.value, &place.cpus));
            }
        }
    }
    let all = placement.cpus(domain);
    if let Some(bound) = domain.vcpus.bound_cpus().filter(|_| allowed(domain, &all) != all) {
        report(bound.span, cpus_differ("all threads are bound to", &bound.value, &all));
    }
    if let Some(emulator) = domain.pins.emulator.as_ref().filter(|it| !all.is_subset(&it.value)) {
        report(emulator.span, cpus_differ("the emulator is bound to", &emulator.value, &all));
    }
    for pin in &domain.pins.iothreads {
        let Some(cpus) = placement.iothreads.get(&pin.id.value) else { continue };
        if pin.cpus.value != *cpus {
            let what = format!("iothread {} is bound to", pin.id.value);
            report(pin.cpus.span, cpus_differ(&what, &pin.cpus.value, cpus));
        }
    }
    found.sort_by_key(|finding| finding.span.start);
    found
}

fn differs(what: &str, written: &NodeSet, placed: &NodeSet) -> String {
    format!("{what} bound to {}, the placement chose {}", written.named(), placed.named())
}

fn cpus_differ(what: &str, written: &CpuSet, placed: &CpuSet) -> String {
    format!("{what} {}, the placement chose {}", written.named(), placed.named())
}
