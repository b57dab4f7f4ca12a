//! Memory against the host's nodes.

use super::checker::Checker;
use crate::{
    binding::{Binding, Block, blocks, of_cell},
    distances::GuestDistances,
    domain::Domain,
    id::CellId,
    memory::{Allocation, MemoryMode},
    position::{Located, Span},
    rule::Rule,
    size::shown,
};
use nearside_topology::{MAX_NODES, Node, NodeId, NodeSet, Topology};
use std::cmp::Reverse;

pub(super) fn check(checker: &mut Checker<'_>, host: &Topology) {
    for nodes in nodesets(checker.domain) {
        check_nodeset(checker, nodes, host);
    }
    let blocks = blocks(checker.domain);
    check_sizes(checker, &blocks, host);
    check_preallocated(checker, &blocks, host);
    check_devices(checker, &blocks, host);
    check_distances(checker, host);
}

/// All sets of host nodes in the XML.
fn nodesets(domain: &Domain) -> Vec<&Located<NodeSet>> {
    let numatune = domain.numatune.iter();
    let memory = numatune.clone().filter_map(|it| it.memory.as_ref()?.nodeset.as_ref());
    let memnodes = numatune.flat_map(|it| it.memnodes.iter().map(|memnode| &memnode.nodeset));
    let devices = domain.memory_devices.iter().filter_map(|device| device.nodes.as_ref());
    memory.chain(memnodes).chain(devices).collect()
}

fn check_nodeset(checker: &mut Checker<'_>, nodes: &Located<NodeSet>, host: &Topology) {
    let missing = nodes.value.difference(&host.node_set());
    if !missing.is_empty() {
        let message =
            format!("the host has no {}; it has {}", missing.named(), host.node_set().named());
        checker.report(Rule::NodesetBeyondHost, nodes.span, message);
    }
    let with_memory = host.nodes_that_may_have_memory();
    let empty = nodes.value.intersection(&host.node_set()).difference(&with_memory);
    if !empty.is_empty() {
        let has = if empty.len() == 1 { "has" } else { "have" };
        let message = format!("{} {has} no memory", empty.named());
        checker.report(Rule::NodesWithoutMemory, nodes.span, message);
    }
}

/// The memory of all blocks that are confined to subsets of one nodeset, against that nodeset.
fn check_sizes(checker: &mut Checker<'_>, blocks: &[Block<'_>], host: &Topology) {
    let confined = |block: &&Block<'_>| {
        let mode = block.binding.and_then(|binding| binding.mode);
        matches!(mode, Some(MemoryMode::Strict | MemoryMode::Restrictive))
    };
    let confined: Vec<_> = blocks.iter().filter(confined).collect();
    let mut checked: Vec<(&NodeSet, Option<u64>)> = Vec::new();
    for block in &confined {
        let Some(binding) = block.binding else { continue };
        let nodes = &binding.nodes.value;
        let page = block.huge_page_bytes;
        // The rule about missing nodes has reported the others.
        let exists = nodes.is_subset(&host.node_set());
        if !exists || checked.contains(&(nodes, page)) {
            continue;
        }
        checked.push((nodes, page));
        let inside = confined.iter().filter(|other| {
            let subset = other.binding.is_some_and(|it| it.nodes.value.is_subset(nodes));
            subset && other.huge_page_bytes == page
        });
        let need = inside.map(|block| block.bytes).fold(0, u64::saturating_add);
        let (rule, have, what) = match page {
            None => (Rule::StrictNodesetTooSmall, memory_of(nodes, host), "of memory".to_owned()),
            Some(bytes) => {
                let what = format!("in huge pages of {}", shown(bytes));
                (Rule::HugePagesTooFew, pool_of(nodes, bytes, host), what)
            }
        };
        if let Some(have) = have.filter(|&have| have < need) {
            let has = if nodes.len() == 1 { "has" } else { "have" };
            let message = format!(
                "{} {has} {} {what}, but {} are bound there",
                nodes.named(),
                shown(have),
                shown(need)
            );
            checker.report(rule, binding.nodes.span, message);
        }
    }
}

/// Memory that libvirt has allocated by threads on its nodes, which need a CPU.
fn check_preallocated(checker: &mut Checker<'_>, blocks: &[Block<'_>], host: &Topology) {
    let allocation = checker.domain.backing.allocation.as_ref();
    let is_immediate = allocation.is_some_and(|it| it.value == Allocation::Immediate);
    let mut checked: Vec<Span> = Vec::new();
    for block in blocks.iter().filter(|it| is_immediate || it.huge_page_bytes.is_some()) {
        // With other modes QEMU has no nodes.
        let is_bound = |it: &Binding<'_>| it.mode.is_some_and(|it| it != MemoryMode::Restrictive);
        let Some(nodes) = block.binding.filter(is_bound).map(|it| it.nodes) else { continue };
        let exists = !nodes.value.is_empty() && nodes.value.is_subset(&host.node_set());
        // All cells that one nodeset binds have one finding.
        if exists && host.cpus_of_nodes(&nodes.value).is_empty() && !checked.contains(&nodes.span) {
            checked.push(nodes.span);
            let named = nodes.value.named();
            let message = format!("{named}: no CPU is there to allocate the memory at the start");
            checker.report(Rule::PreallocationWithoutCpus, nodes.span, message);
        }
    }
}

/// The memory of these nodes; none if that of one is unknown.
fn memory_of(nodes: &NodeSet, host: &Topology) -> Option<u64> {
    let known = |node| host.node(node).and_then(Node::known_memory_bytes);
    nodes.iter().try_fold(0, |sum: u64, node| Some(sum.saturating_add(known(node)?)))
}

/// The bytes in huge pages of one size on these nodes; none if the host's pools are unknown, or
/// the size is.
fn pool_of(nodes: &NodeSet, page_bytes: u64, host: &Topology) -> Option<u64> {
    if page_bytes == 0 || host.nodes.iter().all(|node| node.huge_pages.is_empty()) {
        return None;
    }
    let on = host.nodes.iter().filter(|node| nodes.contains(node.id));
    let pools = on.flat_map(|node| &node.huge_pages).filter(|pool| pool.page_bytes == page_bytes);
    let bytes = pools.map(|pool| pool.total_pages.saturating_mul(page_bytes));
    Some(bytes.fold(0, u64::saturating_add))
}

/// Host devices against the nodes of the memory, if all of it is bound.
fn check_devices(checker: &mut Checker<'_>, blocks: &[Block<'_>], host: &Topology) {
    let nodes = blocks
        .iter()
        .try_fold(NodeSet::new(), |all, block| Some(all.union(&block.binding?.nodes.value)));
    let Some(nodes) = nodes.filter(|nodes| !nodes.is_empty()) else { return };
    for device in &checker.domain.host_devices {
        let Some((name, node)) = device.node(host) else { continue };
        if !nodes.contains(node) {
            let message =
                format!("{name} is on node {node}, but all memory is bound to {}", nodes.named());
            checker.report(Rule::DeviceFarFromMemory, device.span, message);
        }
    }
}

/// The order of the guest's distances against that of the host's, if each cell is on one node.
fn check_distances(checker: &mut Checker<'_>, host: &Topology) {
    let domain = checker.domain;
    let node = |cell| {
        let nodes = &of_cell(domain, cell)?.nodes.value;
        nodes.first().filter(|_| nodes.len() == 1)
    };
    let Some(nodes) = domain.cells.iter().map(node).collect::<Option<Vec<NodeId>>>() else {
        return;
    };
    // More cells than the largest machine has nodes are no machine's topology, and the comparison
    // is one of all pairs.
    if nodes.len() > MAX_NODES as usize {
        return;
    }
    let guest = GuestDistances::new(domain);
    for (cell, from) in domain.cells.iter().zip(0..) {
        let home = nodes[from as usize];
        // By rising distance on the host, each cell is to be farther in the guest than all cells
        // that are nearer on the host.
        let mut others: Vec<_> = (0..nodes.len() as u32).filter(|&to| to != from).collect();
        let on_host = |to: u32| host.distances.get(home, nodes[to as usize]);
        let in_guest = |to: u32| guest.get(CellId(from), CellId(to));
        others.sort_by_key(|&to| (on_host(to), Reverse(in_guest(to))));
        let mut nearer: Option<u32> = None;
        let mut of_level: Option<u32> = None;
        for &to in &others {
            if of_level.is_some_and(|level| on_host(level) < on_host(to)) {
                nearer = match (nearer, of_level) {
                    (Some(a), Some(b)) if in_guest(a) >= in_guest(b) => Some(a),
                    (_, level) => level,
                };
                of_level = None;
            }
            // The first of its level is the farthest in the guest.
            of_level = of_level.or(Some(to));
            if let Some(near) = nearer.filter(|&near| in_guest(near) >= in_guest(to)) {
                let message = format!(
                    "for the guest cell {to} is as near to cell {from} as cell {near} or nearer \
                     ({} and {}), but on the host it is farther ({} and {})",
                    in_guest(to),
                    in_guest(near),
                    on_host(to),
                    on_host(near)
                );
                checker.report(Rule::DistancesUnlikeHost, cell.span, message);
                return;
            }
        }
    }
}
