//! Reading QEMU's command line (QEMU, `qemu-options.hx`, `qapi/qom.json`, `qapi/machine.json`).

use super::{backend::Backend, config_file, devices, options::takes_value, smp::Smp};
use crate::{
    error::{CommandLineError, at},
    grammar::{Keys, qemu_keys, set},
    model::{Binding, Cell, ConfigFiles, VcpuId, VcpuSet, Vm},
    split::memory_shares,
};
use nearside_topology::{Distance, Distances};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A command line of QEMU, with the places of the values that matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QemuLine {
    pub(crate) words: Vec<String>,
    /// The texts of the files that `-readconfig` names.
    pub(crate) files: ConfigFiles,
    pub(crate) vm: Vm,
    pub(crate) backends: BTreeMap<String, Backend>,
    /// The names of all objects.
    pub(crate) objects: BTreeSet<String>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) smp: Smp,
    pub(crate) smp_at: Option<usize>,
    /// `-mem-path`.
    pub(crate) mem_path_at: Option<usize>,
    pub(crate) machine_backend: Option<String>,
    pub(crate) names_threads: bool,
}

/// A cell as `-numa node` states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its argument.
    pub(crate) at: usize,
    pub(crate) vcpus: VcpuSet,
    pub(crate) memdev: Option<String>,
    /// Memory without a backend.
    pub(crate) mem_bytes: Option<u64>,
}

/// QEMU's memory without `-m`.
const DEFAULT_BYTES: u64 = 128 << 20;

/// Options by name, and their keys, while they are read.
struct Reader {
    line: QemuLine,
    smp: Keys,
    memory: Keys,
    memory_at: usize,
    /// `memory.size` of `-machine`, which counts where `-m` gives no size.
    machine_bytes: Option<u64>,
    /// `-numa`, with its argument.
    numa: Vec<(usize, Keys)>,
    /// The devices with memory, with their arguments.
    devices: Vec<(usize, Keys)>,
    chardevs: BTreeMap<String, String>,
    monitors: Vec<String>,
}

impl QemuLine {
    pub(crate) fn read(words: &[String], files: &ConfigFiles) -> Result<Self, CommandLineError> {
        let smp = Keys::default();
        let line = Self {
            words: words.to_vec(),
            files: files.clone(),
            vm: Vm::default(),
            backends: BTreeMap::new(),
            objects: BTreeSet::new(),
            nodes: Vec::new(),
            smp: Smp::read(&smp).map_err(CommandLineError::Whole)?,
            smp_at: None,
            mem_path_at: None,
            machine_backend: None,
            names_threads: false,
        };
        let mut reader = Reader {
            line,
            smp,
            memory: Keys::default(),
            memory_at: 0,
            machine_bytes: None,
            numa: Vec::new(),
            devices: Vec::new(),
            chardevs: BTreeMap::new(),
            monitors: Vec::new(),
        };
        let mut number = 1;
        while let Some(word) = words.get(number) {
            let option = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
            let Some(option) = option.filter(|option| !option.is_empty()) else {
                number += 1;
                continue;
            };
            match words.get(number + 1).filter(|_| takes_value(option)) {
                Some(value) => {
                    let read = reader.option(option, number + 1, value);
                    read.map_err(|why| at(words, number + 1, why))?;
                    number += 2;
                }
                None => {
                    let needs = ["smp", "m", "object", "numa"].contains(&option);
                    if needs {
                        return Err(at(words, number, "the option has no value"));
                    }
                    reader.line.vm.preallocates |= option == "mem-prealloc";
                    number += 1;
                }
            }
        }
        reader.finish()
    }

    /// An error if an argument is `-readconfig`, since what it states is in a file.
    pub(crate) fn check_is_argument(&self, at: usize, what: &str) -> Result<(), CommandLineError> {
        let option = at.checked_sub(1).and_then(|option| self.words.get(option));
        match option.is_some_and(|option| is_readconfig(option)) {
            true => Err(crate::error::at(
                &self.words,
                at,
                format!(
                    "{what} is in this file, where it cannot be bound: state it as an argument"
                ),
            )),
            false => Ok(()),
        }
    }

    /// The backends of cells and of their devices that the operator binds.
    pub(crate) fn bindings(&self) -> Vec<Binding> {
        let of_cell = |(id, cell): (usize, &Cell)| -> Vec<Binding> {
            let of_devices = cell.devices.iter();
            let of_devices = of_devices.filter_map(|it| self.backends.get_key_value(&it.backend));
            let all = self.backend_of(id).into_iter().chain(of_devices);
            let binding = |(name, backend): (&String, &Backend)| {
                Some(Binding {
                    cell: id,
                    argument: backend.at,
                    memory: format!("memory backend {name}"),
                    nodes: backend.host_nodes.clone()?,
                })
            };
            all.filter_map(binding).collect()
        };
        self.vm.cells.iter().enumerate().flat_map(of_cell).collect()
    }

    /// The cells' memory backends by cell.
    pub(crate) fn backend_of(&self, cell: usize) -> Option<(&String, &Backend)> {
        let id = match self.vm.states_cells {
            true => self.nodes.get(cell)?.memdev.as_ref()?,
            false => self.machine_backend.as_ref()?,
        };
        self.backends.get_key_value(id)
    }
}

// Text that is JSON, or QEMU's grammar.
fn keys(text: &str, implied: &str) -> Result<Keys, String> {
    if !text.starts_with('{') {
        return Ok(qemu_keys(text, implied));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| format!("JSON: {error}"))?;
    let Value::Object(members) = value else { return Err("JSON: expected an object".into()) };
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Bool(is_on) => (if *is_on { "on" } else { "off" }).into(),
        other => other.to_string(),
    };
    let pairs = members.iter().flat_map(|(key, value)| {
        let values: Vec<_> = match value {
            Value::Array(items) => items.iter().map(word).collect(),
            one => vec![word(one)],
        };
        values.into_iter().map(|value| (key.clone(), value))
    });
    Ok(Keys(pairs.collect()))
}

impl Reader {
    fn option(&mut self, option: &str, number: usize, value: &str) -> Result<(), String> {
        let keys = match option {
            "smp" => qemu_keys(value, "cpus"),
            "m" => qemu_keys(value, "size"),
            "object" => keys(value, "qom-type")?,
            "numa" | "machine" | "M" => keys(value, "type")?,
            "overcommit" => qemu_keys(value, ""),
            "name" => qemu_keys(value, "guest"),
            "device" => keys(value, "driver")?,
            "chardev" => qemu_keys(value, "backend"),
            "mon" => qemu_keys(value, "chardev"),
            "qmp" | "qmp-pretty" => qemu_keys(value, "address"),
            "mem-path" => {
                self.line.mem_path_at = Some(number);
                return Ok(());
            }
            "readconfig" => return self.config_file(number, value),
            _ => return Ok(()),
        };
        self.keys(option, number, keys)
    }

    /// Reads a file of `-readconfig`, whose sections are options in another form.
    fn config_file(&mut self, number: usize, path: &str) -> Result<(), String> {
        let text = self.line.files.get(path).cloned();
        let text = text.ok_or(
            "cells and memory may be in this file, which is not read: state them as arguments",
        )?;
        for section in config_file::sections(&text)? {
            let Some(option) = section.option() else { continue };
            let read = self.keys(option, number, section.keys);
            read.map_err(|why| format!("line {}, [{}]: {why}", section.line, section.name))?;
        }
        Ok(())
    }

    /// `-machine` has the keys of `-smp` and `-m`, too (QEMU, `hw/core/machine.c`).
    fn machine(&mut self, number: usize, keys: &Keys) -> Result<(), String> {
        if let Some(backend) = keys.get("memory-backend") {
            self.line.machine_backend = Some(backend.into());
        }
        // Here a number without a suffix is one of bytes.
        if let Some(bytes) = keys.size("memory.size", 1)? {
            self.machine_bytes = Some(bytes);
        }
        let of_smp = |(key, value): &(String, String)| {
            Some((key.strip_prefix("smp.")?.to_owned(), value.clone()))
        };
        let of_smp: Vec<_> = keys.0.iter().filter_map(of_smp).collect();
        match of_smp.is_empty() {
            true => Ok(()),
            false => self.keys("smp", number, Keys(of_smp)),
        }
    }

    fn keys(&mut self, option: &str, number: usize, keys: Keys) -> Result<(), String> {
        let vm = &mut self.line.vm;
        match option {
            "smp" => {
                self.smp.0.extend(keys.0);
                self.line.smp = Smp::read(&self.smp)?;
                self.line.smp_at = Some(number);
            }
            "m" => {
                self.memory.0.extend(keys.0);
                self.memory_at = number;
                self.memory.size("size", 1 << 20)?;
                self.memory.size("maxmem", 1 << 20)?;
            }
            "object" => self.object(number, &keys)?,
            "numa" => self.numa.push((number, keys)),
            "machine" | "M" => self.machine(number, &keys)?,
            "overcommit" => vm.locks_memory |= locks(&keys),
            "name" => {
                vm.name = keys.get("guest").map(Into::into).or(vm.name.take());
                self.line.names_threads |= keys.is_on("debug-threads");
            }
            "device" => {
                let is_vfio = keys.get("driver").is_some_and(|name| name.starts_with("vfio-"));
                let host = keys.get("host").or_else(|| keys.get("sysfsdev"));
                vm.host_devices.extend(host.filter(|_| is_vfio).map(Into::into));
                if devices::has_memory(&keys) {
                    self.devices.push((number, keys));
                }
            }
            "chardev" => {
                if let (Some(id), Some(path)) = (keys.get("id"), keys.get("path")) {
                    self.chardevs.insert(id.into(), path.into());
                }
            }
            "mon" => {
                let chardev = keys.get("chardev").filter(|_| keys.get("mode") == Some("control"));
                self.monitors.extend(chardev.map(Into::into));
            }
            "qmp" | "qmp-pretty" => {
                let path = keys.get("address").and_then(|address| address.strip_prefix("unix:"));
                vm.qmp_sockets.extend(path.map(Into::into));
            }
            _ => {}
        }
        Ok(())
    }

    fn object(&mut self, number: usize, keys: &Keys) -> Result<(), String> {
        let (Some(kind), Some(id)) = (keys.get("qom-type"), keys.get("id")) else { return Ok(()) };
        if !self.line.objects.insert(id.into()) {
            return Err(format!("there are two objects with id={id}"));
        }
        if kind == "iothread" {
            self.line.vm.iothreads.push(id.into());
        }
        if !kind.starts_with("memory-backend-") {
            return Ok(());
        }
        let backend = Backend::read(number, keys)?;
        self.line.vm.backends.push(id.into());
        self.line.backends.insert(id.into(), backend);
        Ok(())
    }

    fn finish(mut self) -> Result<QemuLine, CommandLineError> {
        let words = std::mem::take(&mut self.line.words);
        let fault = |number: usize, why: String| at(&words, number, why);
        self.nodes(&words)?;
        let Self { mut line, memory, memory_at, machine_bytes, .. } = self;
        let Self { devices, chardevs, monitors, .. } = self;
        let vm = &mut line.vm;
        vm.qmp_sockets.extend(monitors.iter().filter_map(|id| chardevs.get(id).cloned()));
        (vm.vcpus, vm.max_vcpus) = (line.smp.vcpus, line.smp.max_vcpus);
        let stated = memory.size("size", 1 << 20).map_err(|why| fault(memory_at, why))?;
        let of_backend = line.machine_backend.as_ref().and_then(|id| line.backends.get(id));
        // QEMU takes -m 0 for its default size, and -machine memory.size=0 for no memory.
        let stated = stated.filter(|bytes| *bytes > 0).or(machine_bytes);
        vm.bytes = stated.or(of_backend.map(|it| it.bytes)).unwrap_or(DEFAULT_BYTES);
        if vm.bytes == 0 {
            return Err(CommandLineError::Whole("the virtual machine has no memory".into()));
        }
        vm.states_cells = !line.nodes.is_empty();
        vm.preallocates |= line.backends.values().any(|backend| backend.preallocates);
        let mut cells = Vec::new();
        for (id, node) in line.nodes.iter().enumerate() {
            let backend = match &node.memdev {
                Some(name) => Some(line.backends.get(name).ok_or_else(|| {
                    fault(node.at, format!("cell {id}: there is no memory backend {name}"))
                })?),
                None => None,
            };
            cells.push(cell(node.vcpus.clone(), node.memdev.as_ref(), backend, node.mem_bytes));
        }
        if !vm.states_cells {
            let vcpus = (0..vm.max_vcpus).map(VcpuId).collect();
            let id = line.machine_backend.as_ref();
            cells.push(cell(vcpus, id, of_backend, Some(vm.bytes)));
        }
        let states_memory =
            line.nodes.iter().any(|node| node.memdev.is_some() || node.mem_bytes.is_some());
        if vm.states_cells && !states_memory {
            // Completing gives such cells a backend each.
            let sizes = memory_shares(vm.bytes, cells.len() as u64);
            let sizes = sizes.map_err(CommandLineError::Whole)?;
            cells.iter_mut().zip(sizes).for_each(|(cell, bytes)| cell.bytes = bytes);
        }
        let sum = cells.iter().fold(0_u64, |sum, cell| sum.saturating_add(cell.bytes));
        if sum > 0 && sum != vm.bytes {
            let why = format!("the cells have {sum} bytes, and the virtual machine {}", vm.bytes);
            return Err(match (memory_at, of_backend.map(|backend| backend.at)) {
                (0, Some(number)) => fault(number, why),
                (0, None) => CommandLineError::Whole(format!("{why}: add -m")),
                (number, _) => fault(number, why),
            });
        }
        for (number, keys) in &devices {
            let added = devices::add(keys, &line.backends, &mut cells, vm.states_cells);
            added.map_err(|why| fault(*number, why))?;
        }
        vm.cells = cells;
        line.words = words;
        Ok(line)
    }

    /// Reads `-numa`, once vCPUs are known.
    fn nodes(&mut self, words: &[String]) -> Result<(), CommandLineError> {
        let mut nodes: BTreeMap<u32, Node> = BTreeMap::new();
        let smp = self.line.smp;
        for (number, keys) in &self.numa {
            let fault = |why: String| at(words, *number, why);
            match keys.get("type") {
                Some("node") => {
                    let next = nodes.len() as u32;
                    let id = keys.number("nodeid").map_err(fault)?.unwrap_or(next);
                    let node = node(*number, keys, smp.max_vcpus).map_err(fault)?;
                    if id >= MAX_CELLS || nodes.insert(id, node).is_some() {
                        return Err(fault(format!("cell {id} is stated twice, or above 127")));
                    }
                }
                Some("cpu") => {
                    let id = keys.number("node-id").map_err(fault)?;
                    let node = id.and_then(|id| nodes.get_mut(&id));
                    let node = node.ok_or_else(|| fault("there is no such cell yet".into()))?;
                    node.vcpus = node.vcpus.union(&smp.matching(keys).map_err(fault)?);
                }
                Some("dist") => {
                    let (pair, distance) = distance(keys).map_err(fault)?;
                    self.line.vm.distances.insert(pair, distance);
                }
                _ => {}
            }
        }
        let count = nodes.len() as u32;
        let mut taken = VcpuSet::new();
        for (expected, (id, node)) in (0..).zip(&nodes) {
            if *id != expected {
                return Err(at(words, node.at, format!("there is no cell {expected}")));
            }
            let twice = taken.intersection(&node.vcpus);
            if !twice.is_empty() {
                return Err(at(words, node.at, format!("{} of two cells", twice.named())));
            }
            taken = taken.union(&node.vcpus);
        }
        // Without any cpus=, a PC deals its sockets out to the cells; else the rest is cell 0's
        // (QEMU, `hw/i386/x86-common.c`: `x86_get_default_cpu_node_id`; `hw/core/machine.c`).
        for vcpu in (0..smp.max_vcpus).map(VcpuId).filter(|vcpu| !taken.contains(*vcpu)) {
            let dealt = (vcpu.0 / smp.per_socket()).checked_rem(count).unwrap_or(0);
            let id = if taken.is_empty() { dealt } else { 0 };
            if let Some(node) = nodes.get_mut(&id) {
                node.vcpus.insert(vcpu);
            }
        }
        self.line.nodes = nodes.into_values().collect();
        Ok(())
    }
}

/// QEMU, `include/system/numa.h`: `MAX_NODES`.
const MAX_CELLS: u32 = 128;

/// Whether a word is the option `-readconfig`.
pub(crate) fn is_readconfig(word: &str) -> bool {
    word == "-readconfig" || word == "--readconfig"
}

fn locks(keys: &Keys) -> bool {
    matches!(keys.get("mem-lock"), Some("on" | "on-fault"))
}

fn node(at: usize, keys: &Keys, max_vcpus: u32) -> Result<Node, String> {
    let mut vcpus = VcpuSet::new();
    for list in keys.all("cpus") {
        vcpus = vcpus.union(&set(list)?);
    }
    if let Some(beyond) = vcpus.iter().next_back().filter(|vcpu| vcpu.0 >= max_vcpus) {
        return Err(format!("there is no vCPU {beyond}: -smp gives {max_vcpus}"));
    }
    let mem_bytes = keys.size("mem", 1 << 20)?;
    Ok(Node { at, vcpus, memdev: keys.get("memdev").map(Into::into), mem_bytes })
}

fn distance(keys: &Keys) -> Result<((u32, u32), Distance), String> {
    let (Some(from), Some(to)) = (keys.number("src")?, keys.number("dst")?) else {
        return Err("expected src= and dst=".into());
    };
    let value = keys.number("val")?.and_then(|val| Distance::try_from(val).ok());
    let value = value.filter(|val| *val >= Distances::LOCAL);
    value.map(|val| ((from, to), val)).ok_or_else(|| "expected val=10 to 255".into())
}

fn cell(
    vcpus: VcpuSet,
    id: Option<&String>,
    backend: Option<&Backend>,
    bytes: Option<u64>,
) -> Cell {
    Cell {
        vcpus,
        bytes: backend.map(|backend| backend.bytes).or(bytes).unwrap_or(0),
        page_size: backend.map(|backend| backend.page_size.clone()).unwrap_or_default(),
        backends: id.into_iter().cloned().collect(),
        host_nodes: backend.and_then(|backend| backend.host_nodes.clone()),
        devices: Vec::new(),
    }
}
