//! A virtual machine of libvirt that may adopt a reservation: its size and the nodes it is bound
//! to, from its cgroup and its process.

use crate::{actuator::owner, cgroup::Cgroup, read, store::Process, vm::QemuMachine};
use nearside_libvirt::Domain;
use nearside_policy::{Described, Newcomer, Owner};
use nearside_topology::{CpuSet, NodeSet, Topology};
use std::path::Path;

/// The group in a virtual machine's own group that has one for each vCPU, and one for the emulator
/// (`virDomainCgroupSetupVcpus` in libvirt, `src/hypervisor/domain_cgroup.c`).
const LIBVIRT: &str = "libvirt";
const VCPU: &str = "vcpu";

/// The virtual machine in `group`. None if libvirt did not make the group for one of QEMU, or has
/// not finished: the groups of its vCPUs are the last to come.
pub(crate) fn newcomer(
    group: &Cgroup,
    proc: &Path,
    systemd: bool,
    topology: &Topology,
) -> Option<Newcomer> {
    // libvirt describes a domain by the number in the name of its group.
    if owner(group.path(), systemd) != Owner::Libvirt
        || QemuMachine::of_group(group.path()).is_none()
    {
        return None;
    }
    let is_vcpu = |below: &Cgroup| {
        let name = below.path().rsplit('/').next().unwrap_or_default();
        name.strip_prefix(VCPU).is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let nested = group.child(LIBVIRT.as_ref());
    // Some versions of libvirt put them directly below.
    let vcpus =
        [nested.children(), group.children()].concat().iter().filter(|it| is_vcpu(it)).count();
    let started = |pid| Some((Process::read(proc, u32::try_from(pid).ok()?)?, pid));
    let processes = group.all_processes().into_iter().filter_map(started);
    let (first, pid) = processes.min_by_key(|(process, _)| process.start_time_ticks)?;
    let status = read::text(&proc.join(pid.to_string()).join("status")).ok()?;
    Some(Newcomer {
        cgroup: group.path().into(),
        nodes: bound_nodes(&status, topology)?,
        vcpus: Some(vcpus as u64).filter(|&vcpus| vcpus > 0),
        started_boottime_s: first.start_time_ticks / rustix::param::clock_ticks_per_second(),
        described: None,
    })
}

/// A virtual machine as libvirt describes it, with the size for which libvirt asks `numad`: all of
/// its memory, and the vCPUs that it starts with (`qemuProcessPrepareDomainNUMAPlacement` in
/// libvirt, `src/qemu/qemu_process.c`).
pub(crate) fn described(domain: &Domain) -> Described {
    Described {
        name: domain.name.as_ref().map(|name| name.value.clone()).unwrap_or_default(),
        asked_numad: domain.asks_numad(),
        vcpus: domain.vcpus.online().iter().count() as u64,
        memory_bytes: domain.memory.as_ref().map_or(0, |memory| memory.value),
    }
}

/// The nodes with memory that a process is bound to, from `/proc/PID/status`
/// (proc_pid_status(5)): those of its memory or, if that may lie anywhere, those of its CPUs.
/// libvirt confines memory with `mode='strict'` and `'restrictive'` alone.
fn bound_nodes(status: &str, topology: &Topology) -> Option<NodeSet> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let all = topology.memory_nodes();
    let memory = field("Mems_allowed_list:")?.parse::<NodeSet>().ok()?.intersection(&all);
    if memory != all {
        return Some(memory);
    }
    let cpus: CpuSet = field("Cpus_allowed_list:")?.parse().ok()?;
    let of_cpus = topology.cpus.iter().filter(|cpu| cpu.online && cpus.contains(cpu.id));
    let nodes: NodeSet = of_cpus.filter_map(|cpu| cpu.node).collect();
    Some(nodes.intersection(&all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Cpu, CpuId, Node, NodeId};

    #[test]
    fn libvirt_asks_numad_for_machines_with_automatic_placement_alone() {
        let asked = |vcpu: &str, tuned: &str| {
            let text = format!(
                "<domain type='kvm'><name>a</name><memory unit='MiB'>64</memory>{vcpu}\
                 <numatune>{tuned}</numatune></domain>"
            );
            let Described { name, asked_numad, vcpus, memory_bytes } =
                described(&Domain::read(&text).unwrap());
            assert_eq!((&*name, memory_bytes), ("a", 64 << 20));
            (asked_numad, vcpus)
        };
        let strict = "<memory mode='strict' nodeset='1'/>";
        let auto = "<memory mode='strict' placement='auto'/>";
        assert_eq!(asked("<vcpu>4</vcpu>", strict), (false, 4));
        assert_eq!(asked("<vcpu placement='static' cpuset='1'>4</vcpu>", strict), (false, 4));
        assert_eq!(asked("<vcpu>4</vcpu>", auto), (true, 4));
        assert_eq!(asked("<vcpu placement='auto' current='2'>4</vcpu>", strict), (true, 2));
    }

    #[test]
    fn a_process_is_bound_by_its_memory_or_else_by_its_cpus() {
        let node = |id| Node { id: NodeId(id), memory_bytes: 1, ..Node::default() };
        let topology = Topology {
            nodes: (0..4).map(node).collect(),
            cpus: (0..8).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            ..Topology::default()
        };
        let bound = |mems: &str, cpus: &str| {
            let status = format!(
                "Name:\tqemu\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n\
                 Mems_allowed:\t0f\nMems_allowed_list:\t{mems}\n"
            );
            bound_nodes(&status, &topology).map(|nodes| nodes.to_string())
        };
        for (mems, cpus, nodes) in [
            ("1", "0-7", Some("1")),
            ("1-2", "2-5", Some("1-2")),
            ("0-3", "2-3", Some("1")),
            ("0-3", "0-7", Some("0-3")),
            ("0-63", "0-7", Some("0-3")),
            ("x", "0-7", None),
        ] {
            assert_eq!(bound(mems, cpus).as_deref(), nodes, "{mems} {cpus}");
        }
        assert_eq!(bound_nodes("Name:\tqemu\n", &topology), None);
    }
}
