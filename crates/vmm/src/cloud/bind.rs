//! Binding the cells of a command line of cloud-hypervisor.

use super::line::CloudLine;
use crate::{
    error::{CommandLineError, at},
    placement::{Placement, Policy, mirrored},
};

/// The keys of `--memory` that its zones take over.
const OF_ZONES: [&str; 4] = ["shared", "hugepages", "hugepage_size", "prefault"];

/// The command line with each cell's memory bound to its place, and notes.
pub(crate) fn bind(
    line: &CloudLine,
    placement: &Placement,
) -> Result<(Vec<String>, Vec<String>), CommandLineError> {
    if placement.policy != Policy::Bind {
        let why = format!("cloud-hypervisor knows no policy {}: use strict", placement.policy);
        return Err(CommandLineError::Whole(why));
    }
    match line.zones.is_empty() {
        true => add_zones(line, placement),
        false => bind_zones(line, placement),
    }
}

/// Binds the operator's zones.
fn bind_zones(
    line: &CloudLine,
    placement: &Placement,
) -> Result<(Vec<String>, Vec<String>), CommandLineError> {
    let (mut words, mut notes) = (line.words.clone(), Vec::new());
    for (id, (cell, place)) in line.vm.cells.iter().zip(&placement.cells).enumerate() {
        let home = place.memory_nodes();
        for zone in line.zones.iter().filter(|zone| cell.backends.contains(&zone.id)) {
            match (zone.host_node, home.first()) {
                (Some(node), _) if home.contains(node) => {}
                (Some(node), _) => notes.push(format!(
                    "cell {id}: argument {} binds memory to node {node}, and its home is {}",
                    zone.at,
                    home.named()
                )),
                (None, Some(node)) if home.len() == 1 => {
                    if let Some(text) = words.get_mut(zone.at) {
                        *text += &format!(",host_numa_node={node}");
                    }
                }
                (None, _) => {
                    let why = format!(
                        "a zone is bound to one node, and the home of cell {id} is {}: state a \
                         zone for each",
                        home.named()
                    );
                    return Err(at(&line.words, zone.at, why));
                }
            }
        }
    }
    let host = mirrored(placement);
    if host.iter().any(|(pair, distance)| line.vm.distances.get(pair) != Some(distance)) {
        notes.push("the guest's distances are not the host's; they stay as they are".into());
    }
    Ok((words, notes))
}

/// Puts all memory into zones, one for each node of a cell's home: a zone is bound to one node.
fn add_zones(
    line: &CloudLine,
    placement: &Placement,
) -> Result<(Vec<String>, Vec<String>), CommandLineError> {
    if let Some(number) = line.numa_at {
        let why = "cells without memory zones cannot be bound: state memory_zones=";
        return Err(at(&line.words, number, why));
    }
    let mut words = line.words.clone();
    let mut options = String::new();
    match &line.memory {
        Some((number, keys)) => {
            if let Some(key) = ["hotplug_size", "hotplugged_size"]
                .iter()
                .find(|key| keys.get(key).is_some_and(|size| size != "0"))
            {
                let why = format!("{key} does not go with memory zones: state zones with it");
                return Err(at(&words, *number, why));
            }
            for key in OF_ZONES {
                if let Some(value) = keys.get(key) {
                    options += &format!(",{key}={value}");
                }
            }
            if let Some(text) = words.get_mut(*number) {
                *text = without_size(text);
            }
        }
        None => words.extend(["--memory".into(), "size=0".into()]),
    }
    let (mut zones, mut cells) = (vec!["--memory-zone".to_owned()], vec!["--numa".to_owned()]);
    let distances = mirrored(placement);
    for (id, (cell, place)) in (0_u32..).zip(line.vm.cells.iter().zip(&placement.cells)) {
        let sum = place.bytes.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        if sum < cell.bytes {
            let why = format!("the home of cell {id} has {sum} of {} bytes", cell.bytes);
            return Err(CommandLineError::Whole(why));
        }
        let (mut names, mut left) = (Vec::new(), cell.bytes);
        for (node, bytes) in place.bytes.iter().filter(|(_, bytes)| **bytes > 0) {
            // The home may be rounded up to whole huge pages.
            let bytes = left.min(*bytes);
            left -= bytes;
            if bytes > 0 {
                let name = format!("nearside-mem{id}-{node}");
                zones.push(format!("id={name},size={bytes},host_numa_node={node}{options}"));
                names.push(name);
            }
        }
        let far: Vec<_> = distances
            .iter()
            .filter(|((from, _), _)| *from == id)
            .map(|((_, to), distance)| format!("{to}@{distance}"))
            .collect();
        let far =
            if far.is_empty() { String::new() } else { format!(",distances=[{}]", far.join(",")) };
        cells.push(format!(
            "guest_numa_id={id},cpus=[{}]{far},memory_zones=[{}]",
            cell.vcpus,
            names.join(",")
        ));
    }
    words.extend(zones);
    if placement.cells.len() > 1 {
        words.extend(cells);
    }
    Ok((words, Vec::new()))
}

/// A value of `--memory` with size=0, since zones have the memory.
fn without_size(text: &str) -> String {
    let (flag, keys) = match text.strip_prefix("--memory=") {
        Some(keys) => ("--memory=", keys),
        None => ("", text),
    };
    let is_size = |item: &&str| item.starts_with("size=");
    let others = keys.split(',').filter(|item| !is_size(item));
    let items: Vec<_> = std::iter::once("size=0").chain(others).collect();
    format!("{flag}{}", items.join(","))
}
