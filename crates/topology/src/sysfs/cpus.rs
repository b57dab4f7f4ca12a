//! CPUs, their cores and last-level caches: `/sys/devices/system/cpu`
//! (Linux, `Documentation/admin-guide/cputopology.rst` and `Documentation/ABI/testing/sysfs-devices-system-cpu`).

use super::{
    nodes::NODES,
    source::{Source, quoted},
};
use crate::{
    id::{CpuId, CpuSet, NodeId},
    model::Cpu,
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

const CPUS: &str = "sys/devices/system/cpu";

/// Reads all CPUs; `nodes` is empty on a kernel without NUMA, where all CPUs are on node 0.
pub(super) fn read(source: &mut Source, nodes: &[NodeId]) -> Vec<Cpu> {
    let listed = members(source, nodes);
    let online = source.list::<CpuId>(&format!("{CPUS}/online"));
    let present = source.list_if_any::<CpuId>(&format!("{CPUS}/present"));
    let mut all: CpuSet = match present {
        Some(present) => present,
        None => source.numbered(CPUS, "cpu").into_iter().map(CpuId).collect(),
    };
    all.extend(listed.keys().copied());
    all.extend(online.iter().flat_map(CpuSet::iter));

    let mut without_core = CpuSet::new();
    let mut without_cache = CpuSet::new();
    let mut cpus = Vec::with_capacity(all.len());
    for id in all.iter() {
        let mut cpu = Cpu { node: None, ..Cpu::new(id, NodeId(0)) };
        // Without the list of online CPUs, those that a node lists are: nodes list no other.
        cpu.online = match &online {
            Some(online) => online.contains(id),
            None => nodes.is_empty() || listed.contains_key(&id),
        };
        cpu.node = match listed.get(&id).map(Vec::as_slice) {
            _ if nodes.is_empty() => Some(NodeId(0)),
            Some([node]) => Some(*node),
            several => linked_node(source, id, nodes, several.unwrap_or(&[])),
        };
        // An offline CPU has lost its topology and its caches.
        if cpu.online {
            cpu.package = package(source, id);
            match core(source, id) {
                Some(core) => cpu.core = core,
                None => _ = without_core.insert(id),
            }
            cpu.last_level_cache = last_level_cache(source, id);
            if cpu.last_level_cache.is_none() {
                without_cache.insert(id);
            }
        }
        cpus.push(cpu);
    }
    // One line for all of them: hypervisors often hide the caches of every CPU.
    if !without_core.is_empty() {
        let why = format_args!(
            "no core_cpus_list for CPUs {without_core}: each is taken as a core of its own"
        );
        source.note(&format!("{CPUS}/cpu*/topology"), why);
    }
    if !without_cache.is_empty() {
        let why = format_args!(
            "no last-level cache for CPUs {without_cache}: they are taken to share none"
        );
        source.note(&format!("{CPUS}/cpu*/cache"), why);
    }
    cpus
}

/// Online CPUs that `isolcpus=` or an isolated cpuset took from the scheduler.
pub(super) fn isolated(source: &mut Source, cpus: &[Cpu]) -> CpuSet {
    let isolated = source.list_if_any::<CpuId>(&format!("{CPUS}/isolated")).unwrap_or_default();
    cpus.iter().filter(|cpu| cpu.online && isolated.contains(cpu.id)).map(|cpu| cpu.id).collect()
}

/// Which nodes list which CPUs. The kernel's own NUMA emulation lists a CPU on several.
fn members(source: &mut Source, nodes: &[NodeId]) -> BTreeMap<CpuId, Vec<NodeId>> {
    let mut members = BTreeMap::<_, Vec<_>>::new();
    for &node in nodes {
        let cpus = source.list::<CpuId>(&format!("{NODES}/node{node}/cpulist")).unwrap_or_default();
        for cpu in cpus.iter() {
            members.entry(cpu).or_default().push(node);
        }
    }
    members
}

/// The node that a CPU's own folder names, for CPUs that no node or several nodes list.
fn linked_node(
    source: &mut Source,
    cpu: CpuId,
    nodes: &[NodeId],
    listed: &[NodeId],
) -> Option<NodeId> {
    let folder = format!("{CPUS}/cpu{cpu}");
    let linked =
        source.numbered(&folder, "node").into_iter().map(NodeId).find(|node| nodes.contains(node));
    if let (None, &[first, _, ..]) = (linked, listed) {
        let several: Vec<String> = listed.iter().map(|node| format!("{node}")).collect();
        let several = several.join(", ");
        source.note(
            &folder,
            format_args!("nodes {several} all list this CPU: it is taken to be on node {first}"),
        );
    }
    linked.or(listed.first().copied())
}

fn package(source: &mut Source, cpu: CpuId) -> Option<u32> {
    let path = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
    // -1: the architecture does not know.
    let id = source.number_if_any::<i64>(&path).filter(|&id| id != -1)?;
    let package = u32::try_from(id).ok();
    if package.is_none() {
        source.note(&path, format_args!("read {id}, expected -1 or a 32-bit number"));
    }
    package
}

fn core(source: &mut Source, cpu: CpuId) -> Option<CpuId> {
    // Linux 5.3 renamed thread_siblings_list.
    ["core_cpus_list", "thread_siblings_list"].into_iter().find_map(|name| {
        let path = format!("{CPUS}/cpu{cpu}/topology/{name}");
        let siblings = source.list_if_any::<CpuId>(&path)?;
        sharers(source, &path, cpu, &siblings)
    })
}

fn last_level_cache(source: &mut Source, cpu: CpuId) -> Option<CpuId> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let mut last: Option<(u32, u32)> = None;
    for index in source.numbered(&folder, "index") {
        let kind = source.text_if_any(&format!("{folder}/index{index}/type")).unwrap_or_default();
        let level = source.number_if_any::<u32>(&format!("{folder}/index{index}/level"));
        let Some(level) = level.filter(|_| kind.trim() != "Instruction") else { continue };
        last = last.max(Some((level, index)));
    }
    let path = format!("{folder}/index{}/shared_cpu_list", last?.1);
    let sharing = source.list_if_any::<CpuId>(&path)?;
    sharers(source, &path, cpu, &sharing)
}

/// The lowest of the CPUs that share something with `cpu`; a list that leaves `cpu` out is not believed.
fn sharers(source: &mut Source, path: &str, cpu: CpuId, sharing: &CpuSet) -> Option<CpuId> {
    if !sharing.contains(cpu) {
        let read = quoted(&format!("{sharing}"));
        source.note(path, format_args!("read {read}, expected a list with CPU {cpu} itself in it"));
        return None;
    }
    sharing.first()
}
