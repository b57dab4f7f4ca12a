//! A virtual machine from outside: for each cell of the guest, where its vCPUs run and its memory
//! lies.

use crate::{
    actuator::Actuators,
    cgroup::{Cgroup, Tree},
    mappings::{Kind, Mapping, numa_maps, sum},
    threads,
    unmovable::Unmovable,
    vm::{CellShape, Monitors, QemuMachine, Role, Told, backends, qemu_with_cells, role},
};
use nearside_libvirt::{CellId, VcpuSet};
use nearside_policy::{ByNode, local_share};
use nearside_topology::{NodeSet, Topology};
use nearside_vmm::Vm;
use serde::{Serialize, Serializer};
use std::{collections::BTreeMap, fmt, ops::Range, path::Path};

pub use crate::vm::{QemuProcess, Shape};

/// A guest, by its cells.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Guest {
    /// The cells; one without a number if the guest has none.
    pub cells: Vec<GuestCell>,
    /// The threads that are no vCPUs, by the node they run on or ran on last: emulator, iothreads,
    /// vhost.
    pub other_threads: ByNode,
    /// Its memory that no call moves.
    pub unmovable: Unmovable,
    /// Its QEMU, which has these threads and addresses; none if the QEMU has ended since, or no
    /// thread of a vCPU is known.
    #[serde(skip)]
    pub process: Option<QemuProcess>,
}

/// Why the cells of a guest are unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// Its monitor has been asked and has had no time to answer.
    NotYet,
    /// libvirt, or its monitor, does not tell.
    Because(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet => f.write_str("QEMU's monitor is being asked"),
            Self::Because(why) => f.write_str(why),
        }
    }
}

/// A cell of a guest.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct GuestCell {
    /// Its number; none for a guest without cells.
    pub cell: Option<u32>,
    /// Its vCPUs, as the guest numbers them. The JSON form is an array.
    #[serde(serialize_with = "as_array")]
    pub vcpus: VcpuSet,
    /// The nodes that its monitor binds its memory to; none if it binds it to none.
    #[serde(skip)]
    pub bound_nodes: Option<NodeSet>,
    /// The threads of its vCPUs.
    #[serde(skip)]
    pub thread_numbers: Vec<i32>,
    /// Its vCPUs' threads by the host's node they run on or ran on last.
    pub threads: ByNode,
    /// Its memory by the host's node, in bytes; none if its mapping cannot be told.
    pub bytes: Option<ByNode>,
    /// The addresses of its memory in QEMU; none if they cannot be told.
    #[serde(skip)]
    pub addresses: Option<Addresses>,
    /// The part of `bytes` in explicit huge pages.
    pub huge_bytes: Option<ByNode>,
    /// The local share of its vCPUs and its memory, from 0 to 1; none if unknown.
    pub local_share: Option<f64>,
}

/// Addresses in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The process.
    pub process: i32,
    /// Its addresses.
    pub range: Range<u64>,
}

/// The memory of a cell in QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellMemory {
    /// Its addresses.
    pub range: Range<u64>,
    /// The mapping that begins there.
    pub mapping: Mapping,
}

fn as_array<S: Serializer>(vcpus: &VcpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(vcpus.iter())
}

/// A thread of the guest's QEMU.
struct Seen {
    thread: i32,
    role: Role,
    at: ByNode,
}

/// A guest as libvirt or a command line describes it.
struct Described {
    shape: Shape,
    /// The virtual machine of QEMU's command line, and QEMU's process, if no libvirt runs it.
    alone: Option<(Vm, i32)>,
}

/// Reads the guest in a group; none if the group has neither a QEMU domain of libvirt nor a QEMU
/// with cells.
///
/// # Errors
/// With the reason, if libvirt or QEMU cannot be asked about the guest.
pub(crate) fn guest(
    actuators: &Actuators,
    monitors: &Monitors,
    tree: &Tree,
    proc: &Path,
    group: &Cgroup,
    topology: &Topology,
) -> Option<Result<Guest, Unknown>> {
    let mut processes = group.all_processes();
    processes.dedup();
    let described = match QemuMachine::of_group(group.path()) {
        Some(_) => actuators.libvirt_domain(group).map(|domain| {
            let shape = Shape::from(&domain);
            Described { shape, alone: None }
        }),
        // The guests below belong to groups of their own.
        None if group.path() == "/" || group.path().ends_with(".slice") => return None,
        None => {
            let (process, vm) = qemu_with_cells(&processes, proc)?;
            vm.map(|vm| Described { shape: Shape::from(&vm), alone: Some((vm, process)) })
        }
    };
    Some(described.map_err(Unknown::Because).and_then(|described| {
        let mut seen = threads_seen(tree, proc, group, topology, &described.shape);
        if let Some((vm, process)) = &described.alone {
            name_vcpus(&mut seen, monitors, vm, *process, proc, &described.shape)?;
        }
        // A helper of the guest, such as virtiofsd, may map memory of the same size.
        let is_vcpu = |it: &&Seen| matches!(it.role, Role::Vcpu { .. });
        let monitor = seen.iter().find(is_vcpu).and_then(|it| process_of(it.thread, proc));
        // Read before its mappings, which may be those of a successor.
        let process = monitor.and_then(|monitor| QemuProcess::read(monitor, proc));
        let mut memory = BTreeMap::new();
        for &process in processes.iter().filter(|&&it| monitor.is_none_or(|monitor| it == monitor))
        {
            let read = |file: &str| crate::read::text(&proc.join(format!("{process}/{file}")));
            if let (Ok(maps), Ok(numa)) = (read("maps"), read("numa_maps")) {
                let cells = memory_by_cell(&described.shape, &maps, &numa).into_iter();
                memory.extend(cells.map(|(cell, memory)| (cell, (process, memory))));
            }
        }
        let unmovable = Unmovable::of_all(&processes, proc);
        Ok(Guest { unmovable, process, ..by_cell(&described.shape, &seen, &memory) })
    }))
}

/// The threads of a group, with their roles by group and name.
fn threads_seen(
    tree: &Tree,
    proc: &Path,
    group: &Cgroup,
    topology: &Topology,
    shape: &Shape,
) -> Vec<Seen> {
    let look = |thread: i32| {
        let folder = proc.join(format!("{thread}/task/{thread}"));
        let own = tree.group_of(&folder.join("cgroup")).ok()?;
        let below = own.path().strip_prefix(group.path()).unwrap_or_default();
        let comm = crate::read::text(&folder.join("comm")).ok()?;
        let node = threads::see(thread, proc, topology)?.node;
        let role = role(below, comm.trim_end(), shape);
        Some(Seen { thread, role, at: [(node, 1)].into() })
    };
    group.all_threads().into_iter().filter_map(look).collect()
}

/// Asks the monitor of a QEMU for the threads of its vCPUs, if none has a name.
///
/// # Errors
/// With the reason, if the monitor does not tell them.
fn name_vcpus(
    seen: &mut [Seen],
    monitors: &Monitors,
    vm: &Vm,
    process: i32,
    proc: &Path,
    shape: &Shape,
) -> Result<(), Unknown> {
    if seen.iter().any(|it| matches!(it.role, Role::Vcpu { .. })) {
        return Ok(());
    }
    let threads = match monitors.told(vm, process, proc) {
        None => return Ok(()),
        Some(Told::NotYet) => return Err(Unknown::NotYet),
        Some(Told::Threads(told)) => told.map_err(Unknown::Because)?,
    };
    for (vcpu, thread) in threads {
        // In a PID namespace QEMU knows its threads by other numbers.
        let is_its = proc.join(format!("{process}/task/{thread}")).exists();
        let Some(seen) = seen.iter_mut().find(|it| is_its && it.thread == thread) else {
            return Err(Unknown::Because(
                "QEMU runs in a PID namespace, so its monitor tells other numbers of its \
                 threads: name them with debug-threads=on"
                    .into(),
            ));
        };
        seen.role = Role::Vcpu { vcpu, cell: shape.cell_of(vcpu) };
    }
    Ok(())
}

/// The process of a thread.
fn process_of(thread: i32, proc: &Path) -> Option<i32> {
    let status = crate::read::text(&proc.join(format!("{thread}/status"))).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The memory of each cell, as far as it can be told from the process's `maps` and
/// `numa_maps`.
pub fn memory_by_cell(
    shape: &Shape,
    maps: &str,
    numa_maps_text: &str,
) -> BTreeMap<Option<CellId>, CellMemory> {
    let mappings = numa_maps(numa_maps_text);
    let of = |at: &Range<usize>| mappings.iter().find(|mapping| mapping.start == at.start).cloned();
    let found = backends(shape, maps).into_iter().filter_map(|(cell, at)| {
        let range = at.start as u64..at.end as u64;
        Some((cell, CellMemory { range, mapping: of(&at)? }))
    });
    found.collect()
}

/// Threads and memory by cell.
fn by_cell(
    shape: &Shape,
    seen: &[Seen],
    memory: &BTreeMap<Option<CellId>, (i32, CellMemory)>,
) -> Guest {
    let threads_of = |wanted: &dyn Fn(&Role) -> bool| {
        sum(seen.iter().filter(|it| wanted(&it.role)).map(|it| &it.at))
    };
    let cell = |CellShape { cell, vcpus, bound_nodes, .. }: &CellShape| {
        let cell = *cell;
        let is_its = |role: &Role| matches!(role, Role::Vcpu { cell: its, .. } if *its == cell);
        let threads = threads_of(&is_its);
        let its = seen.iter().filter(|it| is_its(&it.role));
        let mapping = memory.get(&cell).map(|(_, memory)| &memory.mapping);
        let addresses = memory
            .get(&cell)
            .map(|(process, memory)| Addresses { process: *process, range: memory.range.clone() });
        let bytes = mapping.map(|mapping| mapping.bytes.clone());
        GuestCell {
            cell: cell.map(|cell| cell.0),
            vcpus: vcpus.clone(),
            bound_nodes: bound_nodes.clone(),
            thread_numbers: its.map(|it| it.thread).collect(),
            local_share: bytes.as_ref().and_then(|bytes| local_share(&threads, bytes)),
            threads,
            huge_bytes: mapping.map(|mapping| match mapping.kind {
                Kind::Huge => mapping.bytes.clone(),
                _ => ByNode::new(),
            }),
            bytes,
            addresses,
        }
    };
    Guest {
        cells: shape.0.iter().map(cell).collect(),
        other_threads: threads_of(&|role| !matches!(role, Role::Vcpu { .. })),
        ..Guest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_libvirt::{Domain, VcpuId};
    use nearside_topology::NodeId;

    const MAPS: &str = include_str!("vm/captured/anonymous.maps");
    const NUMA_MAPS: &str = include_str!("vm/captured/anonymous.numa_maps");
    const MIB: u64 = 1 << 20;

    fn shape(cells: &str) -> Shape {
        let xml = format!(
            "<domain><memory unit='MiB'>64</memory><vcpu>2</vcpu><cpu>{cells}</cpu></domain>"
        );
        Shape::from(&Domain::read(&xml).unwrap())
    }

    fn two_cells() -> Shape {
        shape(
            "<numa><cell id='0' cpus='0' memory='32' unit='MiB'/>\
             <cell id='1' cpus='1' memory='32' unit='MiB'/></numa>",
        )
    }

    fn in_process_7(
        memory: BTreeMap<Option<CellId>, CellMemory>,
    ) -> BTreeMap<Option<CellId>, (i32, CellMemory)> {
        memory.into_iter().map(|(cell, memory)| (cell, (7, memory))).collect()
    }

    fn at(node: u32, amount: u64) -> ByNode {
        [(NodeId(node), amount)].into()
    }

    fn vcpu(vcpu: u32, cell: Option<u32>, node: u32) -> Seen {
        let role = Role::Vcpu { vcpu: VcpuId(vcpu), cell: cell.map(CellId) };
        Seen { thread: 100 + vcpu as i32, role, at: at(node, 1) }
    }

    #[test]
    fn cells_have_their_threads_and_the_memory_of_their_backend() {
        let shape = two_cells();
        let memory = in_process_7(memory_by_cell(&shape, MAPS, NUMA_MAPS));
        let emulator = Seen { thread: 99, role: Role::Emulator, at: at(1, 1) };
        let seen = [vcpu(0, Some(0), 0), vcpu(1, Some(1), 1), emulator];
        let guest = by_cell(&shape, &seen, &memory);
        assert_eq!(guest.other_threads, at(1, 1));
        let [first, second] = &guest.cells[..] else { panic!("two cells") };
        assert_eq!((first.cell, &first.threads), (Some(0), &at(0, 1)));
        assert_eq!(
            (&first.thread_numbers[..], &second.thread_numbers[..]),
            (&[100][..], &[101][..])
        );
        let addresses = first.addresses.clone().unwrap();
        assert_eq!((addresses.process, addresses.range.end - addresses.range.start), (7, 32 * MIB));
        // 512 and 1024 pages of 4 KiB in the captured file.
        assert_eq!(first.bytes, Some(at(0, 2 * MIB)));
        assert_eq!(first.local_share, Some(1.0));
        assert_eq!((second.cell, &second.bytes), (Some(1), &Some(at(0, 4 * MIB))));
        assert_eq!(second.local_share, Some(0.0), "it runs on node 1, and its memory is on node 0");
        assert_eq!(second.huge_bytes, Some(ByNode::new()));
    }

    #[test]
    fn vcpus_are_an_array_in_json() {
        let cell = GuestCell { vcpus: [VcpuId(0), VcpuId(2)].into(), ..GuestCell::default() };
        let json = serde_json::to_value(cell).unwrap();
        assert_eq!(json["vcpus"], serde_json::json!([0, 2]));
    }

    #[test]
    fn huge_pages_are_counted_apart() {
        let shape = two_cells();
        let maps = "40000000-42000000 rw-s 0 00:10 7 /dev/hugepages/libvirt/qemu/1-vm/ram-node1\n";
        let numa = "40000000 bind:1 file=/dev/hugepages/libvirt/qemu/1-vm/ram-node1 huge dirty=16 \
                    N1=16 kernelpagesize_kB=2048\n";
        let memory = in_process_7(memory_by_cell(&shape, maps, numa));
        let guest = by_cell(&shape, &[vcpu(1, Some(1), 1)], &memory);
        assert_eq!(guest.cells[0].bytes, None, "its mapping cannot be told");
        assert_eq!(guest.cells[0].local_share, None);
        assert_eq!(guest.cells[1].huge_bytes, Some(at(1, 32 * MIB)));
        assert_eq!(guest.cells[1].bytes, guest.cells[1].huge_bytes);
        assert_eq!(guest.cells[1].local_share, Some(1.0));
    }

    #[test]
    fn a_guest_without_cells_has_one_without_a_number() {
        let guest = by_cell(&shape(""), &[vcpu(0, None, 0), vcpu(1, None, 1)], &BTreeMap::new());
        let [whole] = &guest.cells[..] else { panic!("one") };
        assert_eq!((whole.cell, whole.vcpus.to_string().as_str()), (None, "0-1"));
        assert_eq!(whole.threads, [(NodeId(0), 1), (NodeId(1), 1)].into());
    }
}
