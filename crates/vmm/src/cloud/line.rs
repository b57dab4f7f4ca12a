//! Reading cloud-hypervisor's command line (cloud-hypervisor, `vmm/src/config.rs`).

use crate::{
    error::{CommandLineError, at},
    grammar::{Keys, cloud_keys, cloud_list, set},
    model::{Binding, Cell, DeviceMemory, PageSize, VcpuId, VcpuSet, Vm},
    split::{memory_shares, shares},
};
use nearside_topology::{Distance, Distances, NodeId, NodeSet};
use std::collections::{BTreeMap, BTreeSet};

/// A command line of cloud-hypervisor, with the places of the values that matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CloudLine {
    pub(crate) words: Vec<String>,
    pub(crate) vm: Vm,
    pub(crate) zones: Vec<Zone>,
    /// The last value of `--memory`.
    pub(crate) memory: Option<(usize, Keys)>,
    /// The last value of `--cpus`.
    pub(crate) cpus_at: Option<usize>,
    /// The first `--numa`, with its argument.
    pub(crate) numa_at: Option<usize>,
}

/// A memory zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Zone {
    /// Its argument.
    pub(crate) at: usize,
    pub(crate) id: String,
    pub(crate) bytes: u64,
    pub(crate) page_size: PageSize,
    pub(crate) host_node: Option<NodeId>,
    /// Memory of virtio-mem that it has at the start.
    pub(crate) plugged_bytes: u64,
}

/// cloud-hypervisor's memory without `--memory` (`vmm/src/vm_config.rs`: `DEFAULT_MEMORY_MB`).
const DEFAULT_BYTES: u64 = 512 << 20;

/// The most vCPUs of a virtual machine that is read.
const MAX_VCPUS: u32 = 8192;

/// A node of the guest as `--numa` states it.
struct Numa {
    at: usize,
    vcpus: VcpuSet,
    zones: Vec<String>,
}

impl CloudLine {
    pub(crate) fn read(words: &[String]) -> Result<Self, CommandLineError> {
        let mut line = Self {
            words: words.to_vec(),
            vm: Vm { vcpus: 1, max_vcpus: 1, ..Vm::default() },
            zones: Vec::new(),
            memory: None,
            cpus_at: None,
            numa_at: None,
        };
        let mut numas = BTreeMap::new();
        let mut flag = "";
        for (number, word) in words.iter().enumerate().skip(1) {
            let mut value = word.as_str();
            if let Some(option) = word.strip_prefix("--") {
                // A flag and its value may be one word, --memory=size=4G.
                (flag, value) = option.split_once('=').unwrap_or((option, ""));
                if value.is_empty() {
                    continue;
                }
            }
            let read = line.value(flag, number, value, &mut numas);
            read.map_err(|why| at(words, number, why))?;
        }
        line.finish(numas)?;
        Ok(line)
    }

    fn value(
        &mut self,
        flag: &str,
        number: usize,
        value: &str,
        numas: &mut BTreeMap<u32, Numa>,
    ) -> Result<(), String> {
        let keys = cloud_keys(value);
        let vm = &mut self.vm;
        match flag {
            "cpus" => {
                vm.vcpus = keys.number("boot")?.unwrap_or(1);
                vm.max_vcpus = keys.number("max")?.unwrap_or(vm.vcpus);
                if !(1..=vm.max_vcpus).contains(&vm.vcpus) || vm.max_vcpus > MAX_VCPUS {
                    return Err(format!("expected boot=1 to max={}", vm.max_vcpus.min(MAX_VCPUS)));
                }
                self.cpus_at = Some(number);
            }
            "memory" => {
                vm.bytes = keys.size("size", 1)?.unwrap_or(DEFAULT_BYTES);
                vm.preallocates |= keys.is_on("prefault");
                self.memory = Some((number, keys));
            }
            "memory-zone" => {
                let id = keys.get("id").ok_or("a memory zone needs id=")?.to_owned();
                if self.zones.iter().any(|zone| zone.id == id) {
                    return Err(format!("there are two memory zones {id}"));
                }
                let bytes = keys.size("size", 1)?.filter(|bytes| *bytes > 0);
                let bytes = bytes.ok_or("a memory zone needs size=, above 0")?;
                let host_node = keys.number("host_numa_node")?.map(NodeId);
                if host_node.is_some_and(|node| node.0 > nearside_topology::MAX_ID) {
                    return Err("there is no such host_numa_node".into());
                }
                vm.preallocates |= keys.is_on("prefault");
                let page_size = page_size(&keys)?;
                let plugged_bytes = keys.size("hotplugged_size", 1)?.unwrap_or(0);
                self.zones.push(Zone {
                    at: number,
                    id,
                    bytes,
                    page_size,
                    host_node,
                    plugged_bytes,
                });
            }
            "numa" => {
                self.numa_at.get_or_insert(number);
                let id = keys.number("guest_numa_id")?.ok_or("expected guest_numa_id=")?;
                let mut vcpus = VcpuSet::new();
                for list in keys.get("cpus").into_iter().flat_map(cloud_list) {
                    vcpus = vcpus.union(&set(list)?);
                }
                for pair in keys.get("distances").into_iter().flat_map(cloud_list) {
                    let (to, distance) = distance(pair)?;
                    vm.distances.insert((id, to), distance);
                }
                let zones = keys.get("memory_zones").into_iter().flat_map(cloud_list);
                let numa = Numa { at: number, vcpus, zones: zones.map(Into::into).collect() };
                if numas.insert(id, numa).is_some() {
                    return Err(format!("cell {id} is stated twice"));
                }
            }
            "restore" => {
                return Err(
                    "a restored virtual machine has the cells and memory it was saved with: \
                            they cannot be placed here"
                        .into(),
                );
            }
            "device" => vm.host_devices.extend(keys.get("path").map(Into::into)),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, numas: BTreeMap<u32, Numa>) -> Result<(), CommandLineError> {
        let words = &self.words;
        let vm = &mut self.vm;
        if self.memory.is_none() {
            vm.bytes = if self.zones.is_empty() { DEFAULT_BYTES } else { 0 };
        }
        let of_zones = self.zones.iter().fold(0_u64, |sum, zone| sum.saturating_add(zone.bytes));
        if let Some((number, _)) = self.memory.as_ref().filter(|_| of_zones > 0 && vm.bytes > 0) {
            return Err(at(words, *number, "memory in zones needs --memory size=0"));
        }
        // cloud-hypervisor, `vmm/src/memory_manager.rs`: `MissingMemoryZones`.
        if let Some((number, _)) = self.memory.as_ref().filter(|_| of_zones == 0 && vm.bytes == 0) {
            return Err(at(words, *number, "--memory size=0 needs memory in zones"));
        }
        vm.bytes = vm.bytes.max(of_zones);
        let mut taken = VcpuSet::new();
        let mut zones_taken = BTreeSet::new();
        for (expected, (id, numa)) in (0..).zip(&numas) {
            let fault = |why: String| at(words, numa.at, why);
            if *id != expected {
                return Err(fault(format!("there is no guest_numa_id={expected}")));
            }
            let beyond = numa.vcpus.iter().next_back().filter(|vcpu| vcpu.0 >= vm.max_vcpus);
            if let Some(vcpu) = beyond {
                return Err(fault(format!(
                    "there is no vCPU {vcpu}: --cpus gives {}",
                    vm.max_vcpus
                )));
            }
            let twice = taken.intersection(&numa.vcpus);
            if !twice.is_empty() {
                return Err(fault(format!("{} of two cells", twice.named())));
            }
            taken = taken.union(&numa.vcpus);
            let mut zones = Vec::new();
            for name in &numa.zones {
                let zone = self.zones.iter().find(|zone| zone.id == *name);
                zones.push(zone.ok_or_else(|| fault(format!("there is no memory zone {name}")))?);
                if !zones_taken.insert(name.clone()) {
                    return Err(fault(format!("memory zone {name} belongs to two cells")));
                }
            }
            vm.cells.push(cell(numa.vcpus.clone(), &zones));
        }
        vm.states_cells = !numas.is_empty();
        if !vm.states_cells {
            let vcpus = (0..vm.max_vcpus).map(VcpuId).collect();
            let zones: Vec<_> = self.zones.iter().collect();
            let mut only = cell(vcpus, &zones);
            only.bytes = vm.bytes;
            if let Some((number, keys)) = self.memory.as_ref().filter(|_| zones.is_empty()) {
                only.page_size = page_size(keys).map_err(|why| at(words, *number, why))?;
            }
            vm.cells.push(only);
        }
        Ok(())
    }

    /// The zones that the operator binds.
    pub(crate) fn bindings(&self) -> Vec<Binding> {
        let of_zone = |cell: usize, zone: &Zone| {
            Some(Binding {
                cell,
                argument: zone.at,
                memory: format!("memory zone {}", zone.id),
                nodes: [zone.host_node?].into_iter().collect(),
            })
        };
        let cells = self.vm.cells.iter().enumerate();
        let of_cell = |(id, cell): (usize, &Cell)| -> Vec<Binding> {
            let zones = self.zones.iter().filter(|zone| cell.backends.contains(&zone.id));
            zones.filter_map(|zone| of_zone(id, zone)).collect()
        };
        cells.flat_map(of_cell).collect()
    }

    /// The command line with its vCPUs and memory in `count` cells, which it does not state yet.
    pub(crate) fn split(&self, count: u32) -> Result<Self, CommandLineError> {
        let stated = self.numa_at.or(self.zones.first().map(|zone| zone.at));
        if let Some(number) = stated {
            let why = "the command line has cells or zones, so --cells cannot split it";
            return Err(at(&self.words, number, why));
        }
        let vm = &self.vm;
        if vm.max_vcpus != vm.vcpus || vm.vcpus < count {
            let why = match vm.max_vcpus != vm.vcpus {
                true => format!("--cells needs max={}: state cells with --numa", vm.vcpus),
                false => format!("{} vCPUs cannot be split into {count} cells", vm.vcpus),
            };
            return Err(match self.cpus_at {
                Some(number) => at(&self.words, number, why),
                None => CommandLineError::Whole(format!("{why} (there is no --cpus)")),
            });
        }
        let sizes = memory_shares(vm.bytes, count.into()).map_err(CommandLineError::Whole)?;
        let mut first = 0;
        let page_size = vm.cells.first().map(|cell| cell.page_size.clone()).unwrap_or_default();
        let cells = shares(vm.vcpus.into(), count.into()).into_iter().zip(sizes);
        let cells = cells.map(|(vcpus, bytes)| {
            let end = first + u32::try_from(vcpus).unwrap_or(0);
            let vcpus = (std::mem::replace(&mut first, end)..end).map(VcpuId).collect();
            Cell { vcpus, bytes, page_size: page_size.clone(), ..Cell::default() }
        });
        Ok(Self { vm: Vm { cells: cells.collect(), ..vm.clone() }, ..self.clone() })
    }
}

fn page_size(keys: &Keys) -> Result<PageSize, String> {
    Ok(match (keys.get("file"), keys.is_on("hugepages")) {
        (Some(path), _) => PageSize::Path(path.into()),
        (None, true) => {
            keys.size("hugepage_size", 1)?.map_or(PageSize::DefaultHuge, PageSize::Huge)
        }
        (None, false) => PageSize::Base,
    })
}

fn distance(pair: &str) -> Result<(u32, Distance), String> {
    let read = pair.split_once('@').and_then(|(to, distance)| {
        let distance = distance.parse().ok().filter(|it| *it >= Distances::LOCAL)?;
        Some((to.parse().ok()?, distance))
    });
    read.ok_or_else(|| format!("\"{pair}\" is no distance such as 1@20"))
}

fn cell(vcpus: VcpuSet, zones: &[&Zone]) -> Cell {
    let nodes: Option<NodeSet> = zones.iter().map(|zone| zone.host_node).collect::<Option<_>>();
    Cell {
        vcpus,
        bytes: zones.iter().fold(0, |sum, zone| sum.saturating_add(zone.bytes)),
        page_size: zones.first().map(|zone| zone.page_size.clone()).unwrap_or_default(),
        backends: zones.iter().map(|zone| zone.id.clone()).collect(),
        host_nodes: nodes.filter(|nodes| !nodes.is_empty()),
        devices: zones.iter().filter_map(|zone| plugged(zone)).collect(),
    }
}

fn plugged(zone: &Zone) -> Option<DeviceMemory> {
    (zone.plugged_bytes > 0).then(|| DeviceMemory {
        backend: zone.id.clone(),
        bytes: zone.plugged_bytes,
        page_size: zone.page_size.clone(),
        host_nodes: zone.host_node.map(|node| [node].into_iter().collect()),
    })
}
