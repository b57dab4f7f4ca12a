//! Devices and the nodes they are near: PCI functions, network interfaces, block devices.

use super::source::Source;
use crate::{
    id::NodeId,
    model::{Device, DeviceKind, Node},
};
use alloc::{format, string::String, vec::Vec};

pub(super) fn read(source: &mut Source, nodes: &[Node]) -> Vec<Device> {
    let mut devices = Vec::new();
    for name in source.names("sys/bus/pci/devices") {
        let folder = format!("sys/bus/pci/devices/{name}");
        let class = source.text_if_any(&format!("{folder}/class"));
        let class =
            class.and_then(|text| u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok());
        let node = own_node(source, &folder, nodes).flatten();
        devices.push(Device { kind: DeviceKind::Pci, name, node, class });
    }
    for (kind, class_folder) in
        [(DeviceKind::Netdev, "sys/class/net"), (DeviceKind::Block, "sys/class/block")]
    {
        for name in source.names(class_folder) {
            // Only hardware has this link: bridges, loop devices and partitions have no node of
            // their own.
            let Some(hardware) = source.follow(&format!("{class_folder}/{name}/device")) else {
                continue;
            };
            let node = nearest_node(source, &hardware, nodes);
            devices.push(Device { kind, name, node, class: None });
        }
    }
    devices
}

/// The node of a device, or of the first device above it that has one: a virtio disk's is that of
/// its PCI function.
fn nearest_node(source: &mut Source, hardware: &str, nodes: &[Node]) -> Option<NodeId> {
    let mut folder = hardware;
    loop {
        if let Some(node) = own_node(source, folder, nodes) {
            return node;
        }
        folder = folder.rsplit_once('/')?.0;
    }
}

/// The node in a device's `numa_node`, if it has that file. The inner value is none for -1.
fn own_node(source: &mut Source, folder: &str, nodes: &[Node]) -> Option<Option<NodeId>> {
    let path: String = format!("{folder}/numa_node");
    let number = source.number_if_any::<i64>(&path)?;
    if number == -1 {
        return Some(None);
    }
    let node = nodes.iter().map(|node| node.id).find(|id| i64::from(id.0) == number);
    if node.is_none() {
        source.note(
            &path,
            format_args!("read {number}, expected -1 or an online node: taken as near no node"),
        );
    }
    Some(node)
}
