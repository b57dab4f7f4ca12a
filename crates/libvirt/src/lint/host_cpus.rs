//! The bindings of threads against the host's CPUs and nodes.

use super::checker::Checker;
use crate::{
    binding::{Binding, of_cell, of_domain},
    domain::Domain,
    id::VcpuSet,
    position::{Located, Span},
    rule::Rule,
};
use nearside_topology::{CpuSet, NodeSet, Topology};

pub(super) fn check(checker: &mut Checker<'_>, host: &Topology) {
    let domain = checker.domain;
    let online: CpuSet = host.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect();
    for cpus in cpusets(domain) {
        let missing = cpus.value.difference(&online);
        if !missing.is_empty() {
            let message = format!("the host has no {} online", missing.named());
            checker.report(Rule::CpusBeyondHost, cpus.span, message);
        }
    }
    check_emulator(checker, host);
    match domain.cells.is_empty() {
        true => {
            if let Some(binding) = of_domain(domain) {
                check_vcpus(checker, "the guest", &domain.vcpus.all(), binding, host);
            }
        }
        false => {
            for cell in &domain.cells {
                if let Some(binding) = of_cell(domain, cell) {
                    let name = format!("cell {}", cell.id);
                    check_vcpus(checker, &name, &domain.vcpus_of(cell), binding, host);
                }
            }
        }
    }
}

/// All sets of host CPUs in the XML.
fn cpusets(domain: &Domain) -> Vec<&Located<CpuSet>> {
    let of_vcpu = domain.vcpus.cpuset.iter().chain(&domain.pins.emulator);
    let vcpus = domain.pins.vcpus.iter().map(|pin| &pin.cpus);
    of_vcpu.chain(vcpus).chain(domain.pins.iothreads.iter().map(|pin| &pin.cpus)).collect()
}

/// The nodes of CPUs.
fn nodes_of(cpus: &CpuSet, host: &Topology) -> NodeSet {
    // Over the host's CPUs, since a binding may name thousands that do not exist.
    let named = host.cpus.iter().filter(|cpu| cpus.contains(cpu.id));
    named.filter_map(|cpu| cpu.node).collect()
}

/// The nodes of a binding that have CPUs. A node of memory alone can have no thread.
fn nodes_with_cpus(nodes: &NodeSet, host: &Topology) -> NodeSet {
    nodes.iter().filter(|&node| !host.cpus_of(node).is_empty()).collect()
}

fn check_emulator(checker: &mut Checker<'_>, host: &Topology) {
    let domain = checker.domain;
    let Some(emulator) = domain.emulator_cpus() else { return };
    let nodes = nodes_of(&emulator.value, host);
    let memnodes = domain.numatune.iter().flat_map(|numatune| &numatune.memnodes);
    let mut bound = memnodes.fold(NodeSet::new(), |all, it| all.union(&it.nodeset.value));
    if bound.is_empty() {
        // One set for all memory is served from any of its nodes.
        bound = of_domain(domain).map(|binding| binding.nodes.value.clone()).unwrap_or_default();
        if !bound.intersection(&nodes).is_empty() {
            return;
        }
    }
    let missing = nodes_with_cpus(&bound, host).difference(&nodes);
    if !missing.is_empty() {
        let message = format!(
            "the emulator may run on {} of {}, but memory is bound to {}",
            emulator.value.named(),
            nodes.named(),
            missing.named()
        );
        checker.report(Rule::EmulatorpinOutsideMemnodes, emulator.span, message);
    }
}

fn check_vcpus(
    checker: &mut Checker<'_>,
    name: &str,
    vcpus: &VcpuSet,
    binding: Binding<'_>,
    host: &Topology,
) {
    let domain = checker.domain;
    let memory = nodes_with_cpus(&binding.nodes.value, host);
    if memory.is_empty() {
        return;
    }
    let mut nodes = NodeSet::new();
    // The first binding that leaves the memory's nodes.
    let mut away: Option<Span> = None;
    for vcpu in vcpus.iter() {
        // An unbound vCPU may be kept home by soft affinity.
        let Some(cpus) = domain.cpus_of(vcpu) else { return };
        let own = nodes_of(&cpus.value, host);
        if !own.is_subset(&memory) {
            away = away.or(Some(cpus.span));
        }
        nodes = nodes.union(&own);
    }
    let Some(span) = away else { return };
    let rule = match nodes.intersection(&memory).is_empty() {
        true => Rule::VcpusOffMemory,
        false => Rule::VcpusOnMoreNodesThanMemory,
    };
    let message = format!(
        "the vCPUs of {name} may run on {}, but its memory is bound to {}",
        nodes.named(),
        binding.nodes.value.named()
    );
    checker.report(rule, span, message);
}
