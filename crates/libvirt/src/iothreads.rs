//! The CPUs near the disks that an iothread serves.

use crate::{domain::Iothreads, id::IothreadId};
use nearside_topology::{CpuSet, DeviceKind, NodeSet, Topology};

impl Iothreads {
    /// Those of `cpus` on the node nearest to the disk that a thread serves, or all of them if no
    /// disk of the thread has a node that the host knows. The memory that the thread reads and
    /// writes is the guest's, so it stays among the guest's CPUs.
    pub fn cpus_near_disks(&self, thread: IothreadId, cpus: &CpuSet, host: &Topology) -> CpuSet {
        let nodes = host.nodes.iter().map(|node| node.id);
        let of = |node| host.cpus_of(node).intersection(cpus);
        let homes: Vec<_> = nodes.filter(|&node| !of(node).is_empty()).collect();
        let disks = self.disks.iter().filter(|(id, _)| *id == thread);
        let near = disks.filter_map(|(_, disk)| {
            let is_disk = |name: &str| disk == name || is_partition(disk, name);
            let mut known = host.devices.iter().filter(|it| it.kind == DeviceKind::Block);
            let device = known.find(|device| is_disk(&device.name))?.node?;
            homes.iter().copied().min_by_key(|&node| (host.distances.get(device, node), node))
        });
        let near: NodeSet = near.collect();
        match near.is_empty() {
            true => cpus.clone(),
            false => host.cpus_of_nodes(&near).intersection(cpus),
        }
    }
}

/// `sda1` is a partition of `sda`, `nvme0n1p2` one of `nvme0n1`.
fn is_partition(partition: &str, disk: &str) -> bool {
    let Some(rest) = partition.strip_prefix(disk) else { return false };
    let digits = match disk.ends_with(|c: char| c.is_ascii_digit()) {
        true => rest.strip_prefix('p').unwrap_or_default(),
        false => rest,
    };
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_belong_to_their_disk() {
        for (partition, disk, expected) in [
            ("sda1", "sda", true),
            ("sdab1", "sda", false),
            ("nvme0n1p2", "nvme0n1", true),
            ("nvme0n12", "nvme0n1", false),
            ("sda", "sda", false),
        ] {
            assert_eq!(is_partition(partition, disk), expected, "{partition} {disk}");
        }
    }
}
