//! Devices that bind a domain to nodes or fill its memory.

use super::{
    numatune::size_below,
    xml::{
        Node, Read, Value, attribute, child, children, descend, digits, fault, has_text, id, list,
        required, size_of, tag, text_of, word,
    },
};
use crate::{
    domain::{HostDevice, HostDeviceKind},
    id::CellId,
    memory::{MemoryDevice, MemoryModel, SharedMemory},
    position::Located,
};

/// QEMU has slots for 256 (`ACPI_MAX_RAM_SLOTS`).
const MAX_MEMORY_DEVICES: usize = 1024;

const USUAL_SHARED_BYTES: u64 = 4 << 20;

const MODELS: [(&str, MemoryModel); 5] = [
    ("dimm", MemoryModel::Dimm),
    ("nvdimm", MemoryModel::Nvdimm),
    ("virtio-mem", MemoryModel::VirtioMem),
    ("virtio-pmem", MemoryModel::VirtioPmem),
    ("sgx-epc", MemoryModel::SgxEpc),
];

pub(super) fn memory_devices(devices: Node<'_, '_>) -> Read<Vec<MemoryDevice>> {
    if let Some(beyond) = children(devices, "memory").nth(MAX_MEMORY_DEVICES) {
        let problem = format!("expected at most {MAX_MEMORY_DEVICES} memory devices");
        return Err(fault(beyond.range().start, problem));
    }
    children(devices, "memory").map(memory_device).collect()
}

fn memory_device(element: Node<'_, '_>) -> Read<MemoryDevice> {
    let text =
        |names: &[&'static str]| descend(element, names).filter(|it| has_text(*it)).map(text_of);
    let model = word(required(element, "model")?, &MODELS)?;
    let Some(bytes) = size_below(element, &["target", "size"])? else {
        return Err(fault(element.range().start, "<memory> has no <target><size>, which it needs"));
    };
    // libvirt reads it of virtio-mem alone (virDomainMemoryTargetDefParseXML,
    // src/conf/domain_conf.c).
    let requested_bytes = match model.value {
        MemoryModel::VirtioMem => size_below(element, &["target", "requested"])?,
        _ => None,
    };
    Ok(MemoryDevice {
        span: tag(element),
        model,
        bytes: Some(bytes),
        requested_bytes,
        cell: text(&["target", "node"]).map(id).transpose()?,
        nodes: text(&["source", "nodemask"]).map(list).transpose()?,
        page_bytes: size_below(element, &["source", "pagesize"])?,
    })
}

/// The memory of `<shmem>`. With a `<server>` it belongs to that, as always of `ivshmem-doorbell`.
/// libvirt counts bytes where no unit stands (`virDomainShmemDefParseXML`,
/// `src/conf/domain_conf.c`); without a size, or with 0, it is 4 MiB
/// (`qemuDomainShmemDefPostParse` in `src/qemu`).
pub(super) fn shared_memory(devices: Node<'_, '_>) -> Vec<SharedMemory> {
    let is_file = |element: &Node<'_, '_>| {
        child(*element, "server").is_none()
            && child(*element, "model").and_then(kind_of) != Some("ivshmem-doorbell")
    };
    let bytes = |element: Node<'_, '_>| {
        let Some(size) = child(element, "size") else { return Some(USUAL_SHARED_BYTES) };
        let bytes = match attribute(size, "unit").is_some_and(|unit| !unit.text.is_empty()) {
            true => size_of(size).ok()?.value,
            false => digits(&text_of(size).text).parse().ok()?,
        };
        Some(if bytes == 0 { USUAL_SHARED_BYTES } else { bytes })
    };
    let shared = children(devices, "shmem").filter(is_file).take(MAX_MEMORY_DEVICES);
    let shared = shared.filter_map(|it| Some(Located { value: bytes(it)?, span: tag(it) }));
    shared.collect()
}

/// The cells that PCI controllers name (`<controller><target><node>`).
pub(super) fn controller_cells(devices: Node<'_, '_>) -> Read<Vec<Located<CellId>>> {
    let controllers = children(devices, "controller").filter(|it| kind_of(*it) == Some("pci"));
    let cells = controllers.filter_map(|it| descend(it, &["target", "node"]));
    let cells = cells.filter(|cell| has_text(*cell));
    cells.map(|cell| controller_cell(text_of(cell))).collect()
}

/// libvirt reads a number with a sign here, so -0 is cell 0.
fn controller_cell(value: Value<'_>) -> Read<Located<CellId>> {
    match value.text.parse::<i32>() {
        Ok(0) => Ok(value.located(CellId(0))),
        _ => id(value),
    }
}

/// Host devices of `<hostdev>` and `<interface>`, in the order of the text.
pub(super) fn host_devices(devices: Node<'_, '_>) -> Read<Vec<HostDevice>> {
    let elements = devices.children().filter(|child| child.tag_name().namespace().is_none());
    let mut found = Vec::new();
    for element in elements {
        let kind = match element.tag_name().name() {
            "hostdev" => host_device(element)?,
            "interface" => interface(element)?,
            _ => None,
        };
        found.extend(kind.map(|kind| HostDevice { span: tag(element), kind }));
    }
    Ok(found)
}

fn kind_of<'a>(element: Node<'a, '_>) -> Option<&'a str> {
    element.attribute("type")
}

/// USB and SCSI devices bind nothing to a node, so they are passed over.
fn host_device(element: Node<'_, '_>) -> Read<Option<HostDeviceKind>> {
    match kind_of(element) {
        Some("pci") => pci(element),
        Some("mdev") => Ok(Some(HostDeviceKind::Mediated)),
        _ => Ok(None),
    }
}

fn interface(element: Node<'_, '_>) -> Read<Option<HostDeviceKind>> {
    let source = || {
        let source = child(element, "source")?;
        attribute(source, "dev").map(|dev| dev.text.into_owned())
    };
    match kind_of(element) {
        Some("hostdev") => pci(element),
        Some("direct") => Ok(source().map(HostDeviceKind::Netdev)),
        Some("vdpa") => Ok(source().map(HostDeviceKind::Vdpa)),
        _ => Ok(None),
    }
}

/// The name of the PCI function as sysfs has it.
fn pci(element: Node<'_, '_>) -> Read<Option<HostDeviceKind>> {
    let Some(address) = descend(element, &["source", "address"]) else { return Ok(None) };
    // Digits of a number that is hexadecimal with 0x, octal with 0, decimal otherwise.
    let part = |name: &str, max: u32| -> Read<u32> {
        let Some(value) = attribute(address, name) else { return Ok(0) };
        let text = digits(&value.text);
        let number = match (text.strip_prefix("0x").or(text.strip_prefix("0X")), text) {
            (Some(digits), _) => parse(digits, 16),
            (None, "0") => Some(0),
            (None, text) if text.starts_with('0') => parse(text, 8),
            (None, text) => parse(text, 10),
        };
        number
            .filter(|number| *number <= max)
            .ok_or_else(|| value.unexpected(format_args!("a number from 0 to {max:#x}")))
    };
    let (domain, bus) = (part("domain", 0xffff_ffff)?, part("bus", 0xff)?);
    let (slot, function) = (part("slot", 0x1f)?, part("function", 7)?);
    Ok(Some(HostDeviceKind::Pci(format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}"))))
}

/// A number of digits alone: Rust also takes a sign.
fn parse(digits: &str, radix: u32) -> Option<u32> {
    let all_digits = digits.chars().all(|digit| digit.is_digit(radix));
    u32::from_str_radix(digits, radix).ok().filter(|_| all_digits)
}

/// Devices whose other end is a process that maps the guest's memory.
pub(super) fn memory_sharers(devices: Node<'_, '_>) -> Vec<Located<&'static str>> {
    let sharer = |element: Node<'_, '_>| {
        let driver = child(element, "driver").and_then(|driver| driver.attribute("type"));
        let what = match (element.tag_name().name(), kind_of(element), driver) {
            ("interface", Some("vhostuser"), _) => "a vhost-user interface",
            ("disk", Some("vhostuser"), _) => "a vhost-user disk",
            ("filesystem", _, Some("virtiofs")) => "a virtiofs file system",
            _ => return None,
        };
        Some(Located { value: what, span: tag(element) })
    };
    devices.children().filter(Node::is_element).filter_map(sharer).collect()
}
