//! The bindings of threads against the host's CPUs and nodes.

use super::checker::Checker;
use crate::{
    binding::{Binding, of_cell, of_domain},
    domain::{Domain, VcpuBindings},
    id::{VcpuId, VcpuSet},
    position::{Located, Span},
    rule::Rule,
};
use nearside_topology::{CpuSet, NodeId, NodeSet, Topology};

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
    let bindings = domain.vcpu_bindings();
    check_siblings(checker, &bindings, host);
    match domain.cells.is_empty() {
        true => {
            if let Some(binding) = of_domain(domain) {
                let threads = Threads {
                    of: "the guest".into(),
                    vcpus: domain.vcpus.all(),
                    bindings: &bindings,
                };
                check_vcpus(checker, &threads, binding, host);
            }
        }
        false => {
            for cell in &domain.cells {
                if let Some(binding) = of_cell(domain, cell) {
                    let threads = Threads {
                        of: format!("cell {}", cell.id),
                        vcpus: domain.vcpus_of(cell),
                        bindings: &bindings,
                    };
                    check_vcpus(checker, &threads, binding, host);
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

/// The nodes of the nearest memory of each of these nodes: itself, or the nearest ones if it has
/// none.
fn nearest_memory(nodes: &NodeSet, host: &Topology) -> NodeSet {
    let memory = host.nodes_that_may_have_memory();
    let mut nearest = nodes.intersection(&memory);
    for node in nodes.difference(&memory).iter() {
        let distance = |to: &NodeId| host.distances.get(node, *to);
        let least = memory.iter().map(|to| distance(&to)).min();
        nearest.extend(memory.iter().filter(|to| Some(distance(to)) == least));
    }
    nearest
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

/// The vCPUs of one memory.
struct Threads<'a> {
    // Their cell, or the guest.
    of: String,
    vcpus: VcpuSet,
    bindings: &'a VcpuBindings<'a>,
}

fn check_vcpus(
    checker: &mut Checker<'_>,
    threads: &Threads<'_>,
    binding: Binding<'_>,
    host: &Topology,
) {
    let memory = nodes_with_cpus(&binding.nodes.value, host);
    if memory.is_empty() {
        return;
    }
    let mut nodes = NodeSet::new();
    // The first binding that leaves the memory's nodes.
    let mut away: Option<Span> = None;
    for vcpu in threads.vcpus.iter() {
        // An unbound vCPU may be kept home by soft affinity.
        let Some(cpus) = threads.bindings.of(vcpu) else { return };
        let own = nodes_of(&cpus.value, host);
        if !own.is_subset(&memory) {
            away = away.or(Some(cpus.span));
        }
        nodes = nodes.union(&own);
    }
    let Some(span) = away else { return };
    let rule = match nearest_memory(&nodes, host).intersection(&memory).is_empty() {
        true => Rule::VcpusOffMemory,
        // On a node without memory no binding makes accesses local.
        false if nodes.intersection(&host.nodes_that_may_have_memory()).is_subset(&memory) => {
            return;
        }
        false => Rule::VcpusOnMoreNodesThanMemory,
    };
    let message = format!(
        "the vCPUs of {} may run on {}, but its memory is bound to {}",
        threads.of,
        nodes.named(),
        binding.nodes.value.named()
    );
    checker.report(rule, span, message);
}

/// The threads of the guest's first core that no core of the host has together. A vCPU that may run
/// on several cores meets its sibling as long as one of them is the sibling's, too.
fn check_siblings(checker: &mut Checker<'_>, bindings: &VcpuBindings<'_>, host: &Topology) {
    let domain = checker.domain;
    let maximum = domain.vcpus.maximum.value;
    let Some(topology) = domain.cpu_topology.filter(|it| it.vcpus() == u64::from(maximum)) else {
        return;
    };
    let cores = (0..maximum).step_by(topology.threads as usize);
    for first in cores.filter(|_| topology.threads > 1) {
        let siblings: VcpuSet = (first..first + topology.threads).map(VcpuId).collect();
        let bound: Option<Vec<_>> = siblings.iter().map(|vcpu| bindings.of(vcpu)).collect();
        let Some(bound) = bound else { continue };
        let cpus = bound.iter().fold(CpuSet::new(), |all, cpus| all.union(&cpus.value));
        let common = bound.iter().map(|cpus| cores_of(&cpus.value, host));
        let common = common.reduce(|all, cores| all.intersection(&cores));
        let Some(pin) = bound.first().filter(|_| common.is_some_and(|it| it.is_empty())) else {
            continue;
        };
        let message = format!(
            "{} are one core of the guest, but bound to {} of different cores",
            siblings.named(),
            cpus.named()
        );
        checker.report(Rule::SiblingsOnDifferentCores, pin.span, message);
        return;
    }
}

/// The host's cores of CPUs that it has.
fn cores_of(cpus: &CpuSet, host: &Topology) -> CpuSet {
    let named = host.cpus.iter().filter(|cpu| cpus.contains(cpu.id));
    named.map(|cpu| cpu.core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Finding, lint};
    use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId};

    /// Cores 3 and 4 with the siblings 11 and 12.
    fn findings(pins: [&str; 4], threads: u32) -> Vec<Finding> {
        let cpu = |id, core| Cpu { core: CpuId(core), ..Cpu::new(CpuId(id), NodeId(0)) };
        let cpus = [(3, 3), (4, 4), (11, 3), (12, 4)].map(|(id, core)| cpu(id, core));
        let host = Topology { cpus: cpus.into(), ..Topology::default() };
        let pins: String = (0..)
            .zip(pins)
            .filter(|(_, cpus)| !cpus.is_empty())
            .map(|(vcpu, cpus): (u32, _)| format!("<vcpupin vcpu='{vcpu}' cpuset='{cpus}'/>"))
            .collect();
        let text = format!(
            "<domain><memory>8</memory><vcpu>4</vcpu><cputune>{pins}</cputune><cpu><topology \
             sockets='1' cores='{}' threads='{threads}'/></cpu></domain>",
            4 / threads
        );
        let mut findings = lint(&Domain::read(&text).unwrap(), Some(&host));
        findings.retain(|it| it.rule == Rule::SiblingsOnDifferentCores);
        findings
    }

    /// Nodes 0 and 2 have memory; node 1 is next to 0, and node 3 to 2. CPU n is on node n.
    fn rule(cpus: &str, memory: &str) -> Option<Rule> {
        let ids = [0, 1, 2, 3].map(NodeId);
        let node =
            |id: NodeId| Node { id, memory_bytes: 8 * u64::from(1 - id.0 % 2), ..Node::default() };
        let rows = [[10, 20, 40, 40], [20, 10, 40, 40], [40, 40, 10, 20], [40, 40, 20, 10]];
        let host = Topology {
            nodes: ids.into_iter().map(node).collect(),
            cpus: ids.into_iter().map(|id| Cpu::new(CpuId(id.0), id)).collect(),
            distances: Distances::new(&ids, &rows.concat()).unwrap(),
            ..Topology::default()
        };
        let text = format!(
            "<domain><memory>8</memory><vcpu cpuset='{cpus}'>1</vcpu><numatune><memory \
             nodeset='{memory}'/></numatune></domain>"
        );
        let findings = lint(&Domain::read(&text).unwrap(), Some(&host));
        let wanted = [Rule::VcpusOffMemory, Rule::VcpusOnMoreNodesThanMemory];
        findings.iter().map(|it| it.rule).find(|rule| wanted.contains(rule))
    }

    #[test]
    fn a_node_without_memory_is_as_near_as_its_nearest_memory() {
        for (cpus, memory, expected) in [
            ("0-1", "0", None),
            ("1", "0", None),
            ("0,3", "0", None),
            ("0-3", "0,2", None),
            ("0-2", "0", Some(Rule::VcpusOnMoreNodesThanMemory)),
            ("3", "0", Some(Rule::VcpusOffMemory)),
            ("2-3", "0", Some(Rule::VcpusOffMemory)),
            ("1-2", "2", None),
        ] {
            assert_eq!(rule(cpus, memory), expected, "CPUs {cpus}, memory {memory}");
        }
    }

    #[test]
    fn siblings_of_the_guest_belong_on_one_core() {
        let found = findings(["3", "4", "11", "12"], 2);
        let expected = "vCPUs 0-1 are one core of the guest, but bound to CPUs 3-4 of different \
                        cores";
        assert_eq!(found.iter().map(|it| it.message.as_str()).collect::<Vec<_>>(), [expected]);
        let second = findings(["3", "11", "4", "3"], 2);
        assert!(second[0].message.starts_with("vCPUs 2-3 "), "{}", second[0].message);
        for (pins, threads) in [
            (["3", "11", "4", "12"], 2),
            // These can meet on core 4.
            (["3-4", "4", "4", "12"], 2),
            (["3", "", "", ""], 2),
            (["3", "4", "11", "12"], 1),
        ] {
            assert!(findings(pins, threads).is_empty(), "{pins:?} {threads}");
        }
    }
}
