//! Reads a machine from the files of a running Linux: `/sys/devices/system/node`,
//! `/sys/devices/system/cpu`, `/proc/zoneinfo`, `/proc/buddyinfo`, and the devices under
//! `/sys/bus/pci` and `/sys/class`.
//!
//! The root is an argument, so a copy of another machine's files is read exactly as the host's own.
//! Files change while they are read, kernels leave some of them out and permissions hide others: a
//! missing file is noted and its content left unknown. Only a root without any of them is an error.

mod cpus;
mod devices;
mod mask;
mod nodes;
mod note;
mod source;
mod tiers;
mod zones;

pub use note::{Error, Note};

use crate::{
    distance::Distances,
    id::NodeId,
    model::{Node, Topology, Withheld},
};
use alloc::{string::ToString, vec, vec::Vec};
use source::Source;
use std::path::Path;

/// Reads the machine whose `/sys` and `/proc` lie below `root` (`/` for this host).
///
/// A kernel without `CONFIG_NUMA` has no node directory; it becomes one node 0 with all CPUs and
/// all of `/proc/meminfo`. Properties that sysfs lacks (`pxm`, firmware's CPU numbers, physical
/// ranges) stay unknown.
///
/// CPUs are read again, within bounds, while CPUs come or go meanwhile.
///
/// # Errors
/// If `root` is no readable folder, or there is no file of a node, a CPU or memory below it.
pub fn read(root: &Path) -> Result<(Topology, Vec<Note>), Error> {
    read_but(None, false, root)
}

/// Reads a machine that was read a moment ago. CPUs and devices, with most of the files, are taken
/// from `known` unless other nodes exist or other CPUs are online now. Distances and HMAT figures
/// are those of `known` while the memory of all nodes is unchanged.
///
/// # Errors
/// As [`read`].
pub fn read_again(known: &Topology, root: &Path) -> Result<(Topology, Vec<Note>), Error> {
    read_but(Some(known), false, root)
}

/// As [`read_again`], for a caller that reads in short intervals. Zones are those of `known` while
/// they add up to a node's free memory, within a 64th.
///
/// # Errors
/// As [`read`].
pub fn read_changes(known: &Topology, root: &Path) -> Result<(Topology, Vec<Note>), Error> {
    read_but(Some(known), true, root)
}

fn read_but(
    known: Option<&Topology>,
    only_changes: bool,
    root: &Path,
) -> Result<(Topology, Vec<Note>), Error> {
    let mut source = Source::open(root)?;
    let ids = nodes::numbers(&mut source);
    let known =
        known.filter(|known| known.nodes.iter().map(|node| node.id).eq(ids.iter().copied()));
    let known = known.filter(|known| cpus::are_online_as_in(&mut source, known));
    let cpus = known.map_or_else(|| cpus::read(&mut source, &ids), |known| known.cpus.clone());
    let (mut nodes, distances, performance) = if ids.is_empty() {
        let node = source.about_memory(nodes::without_numa);
        if cpus.is_empty() && node.memory_bytes == 0 {
            return Err(Error::Nothing { root: root.to_path_buf() });
        }
        (vec![node], Distances::uniform(&[NodeId(0)]), Vec::new())
    } else {
        let read: Vec<Node> = source.about_memory(|source| nodes::read_all(source, &ids));
        match known.filter(|known| has_memory_of(known, &read)) {
            Some(known) => (read, known.distances.clone(), known.performance.clone()),
            None => {
                let distances = nodes::distances(&mut source, &ids);
                let performance = nodes::performance(&mut source, &ids);
                (read, distances, performance)
            }
        }
    };
    let memory_tiers = match known.filter(|known| has_memory_of(known, &nodes)) {
        Some(known) => tiers::read_again(&known.memory_tiers, &mut source),
        None => tiers::read(&mut source),
    };
    if !known.is_some_and(|known| only_changes && zones::stand(known, &mut nodes)) {
        zones::fill(&mut source, &mut nodes);
    }
    let devices =
        known.map_or_else(|| devices::read(&mut source, &nodes), |known| known.devices.clone());
    let reserved_huge_pages = source.about_memory(nodes::reserved_huge_pages);
    let isolated_cpus = cpus::isolated(&mut source, &cpus);
    let topology = Topology {
        source: root.display().to_string(),
        nodes,
        cpus,
        distances,
        performance,
        memory_tiers,
        devices,
        reserved_huge_pages,
        isolated_cpus,
        isolated_partition: None,
        withheld: Withheld::default(),
    };
    Ok((topology, source.into_notes()))
}

/// Whether the memory of all nodes is unchanged: a node gets its distances and figures with its
/// memory.
fn has_memory_of(known: &Topology, nodes: &[Node]) -> bool {
    known.nodes.iter().map(|node| node.memory_bytes).eq(nodes.iter().map(|node| node.memory_bytes))
}
