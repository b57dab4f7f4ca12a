//! The same shape on another machine: a cell that was on one node stays on one, and near cells stay
//! near.

use super::request::{VmRequest, policy};
use nearside_libvirt::{
    Domain, Intent, IntentCell, Keep, Metadata, Written, home_distances, operators,
};
use nearside_policy::{
    Candidate, CellRequest, CellsDecision, CellsRefusal, CellsRequest, CostModel, Observation,
    PageSize, place_cells_within,
};
use nearside_topology::{NodeId, NodeSet, Topology};

/// The intent of a domain: its request without the bindings of one host.
pub(crate) fn intent(domain: &Domain, request: &VmRequest, host: &Topology) -> Intent {
    let sizes = request.cells.cells.iter().map(|cell| {
        let huge_page_bytes = match cell.page_size {
            PageSize::Base => None,
            PageSize::Huge(bytes) => Some(bytes),
        };
        (cell.vcpus, cell.memory_bytes, huge_page_bytes)
    });
    Intent::of(domain, request.mode, sizes, host)
}

/// The intent to export. The shape in the domain's metadata counts while all bindings are as
/// Nearside wrote them: a migration may have cost a part of the shape.
pub(crate) fn exported(domain: &Domain, request: &VmRequest, host: &Topology) -> Intent {
    let now = intent(domain, request, host);
    let Ok(Some(Metadata { intent: mut earlier, wrote })) = Metadata::of(domain) else {
        return now;
    };
    let metadata = Metadata { intent: earlier.clone(), wrote: wrote.clone() };
    let rest = operators(domain, &metadata, Keep::Nothing);
    let stands = Written { sections: wrote.sections.clone(), ..Written::between(&rest, domain) };
    if stands != wrote || earlier.cells.len() != now.cells.len() {
        return now;
    }
    for (cell, now) in earlier.cells.iter_mut().zip(now.cells) {
        cell.vcpus = now.vcpus;
        cell.memory_bytes = now.memory_bytes;
        cell.huge_page_bytes = now.huge_page_bytes;
    }
    earlier.name = now.name;
    earlier
}

/// The request that an intent makes. Without distances of the guest, those between the former homes
/// tell which cells are near.
pub(crate) fn request(intent: &Intent, nodes: Option<NodeSet>) -> CellsRequest {
    let cell = |cell: &IntentCell| CellRequest {
        vcpus: cell.vcpus,
        memory_bytes: cell.memory_bytes,
        page_size: cell.huge_page_bytes.map_or(PageSize::Base, PageSize::Huge),
        near: Vec::new(),
    };
    CellsRequest {
        cells: intent.cells.iter().map(cell).collect(),
        distances: intent.distances.clone().or_else(|| intent.home_distances.clone()),
        policy: policy(intent.mode),
        nodes,
    }
}

/// The homes for `request` within the nodes that single cells are bound to, of the shape of
/// `intent` where the machine has room for it. A cell gets more nodes than it had only if no
/// placement that was tried avoids that.
pub(crate) fn place_in_shape(
    intent: &Intent,
    request: &CellsRequest,
    bounds: &[Option<NodeSet>],
    observation: &Observation,
    model: &CostModel,
) -> Result<CellsDecision, CellsRefusal> {
    let free = place_cells_within(request, bounds, observation, model)?;
    if wider(intent, &free) == 0 {
        return Ok(free);
    }
    let tries: Vec<Vec<Option<NodeSet>>> = match (&request.cells[..], &intent.cells[..]) {
        // `place` spreads a domain of one cell where that is faster.
        ([_], [IntentCell { nodes: Some(nodes), .. }]) => {
            let sets = nearest(&observation.topology, *nodes as usize);
            sets.into_iter().map(|nodes| vec![Some(nodes)]).collect()
        }
        _ => vec![one_node_each(intent, request, &free, observation)],
    };
    let narrow = tries.into_iter().filter_map(|narrow| {
        let bounds = narrower(bounds, narrow);
        let placed = place_cells_within(request, &bounds, observation, model).ok()?;
        let stays = |home: &Candidate| home.spilled_bytes == 0;
        placed.cells.iter().all(|cell| stays(&cell.home)).then_some(placed)
    });
    let order = |it: &CellsDecision| (wider(intent, it), it.shared.len(), it.slow_down);
    let narrow = narrow.min_by_key(order);
    Ok(narrow.filter(|it| wider(intent, it) < wider(intent, &free)).unwrap_or(free))
}

/// Bounds of a try within those of an operator.
fn narrower(bounds: &[Option<NodeSet>], tried: Vec<Option<NodeSet>>) -> Vec<Option<NodeSet>> {
    let both = |(at, tried): (usize, Option<NodeSet>)| {
        let bound = bounds.get(at).and_then(Option::as_ref);
        match (bound, tried) {
            (Some(bound), Some(tried)) => Some(bound.intersection(&tried)),
            (bound, tried) => tried.or_else(|| bound.cloned()),
        }
    };
    tried.into_iter().enumerate().map(both).collect()
}

/// The number of cells with more nodes than they had.
fn wider(intent: &Intent, decision: &CellsDecision) -> usize {
    let cells = intent.cells.iter().zip(&decision.cells);
    cells.filter(|(was, is)| was.nodes.is_some_and(|n| is.home.nodes.len() > n as usize)).count()
}

/// For each node with CPUs, the set of `count` nodes nearest to it.
fn nearest(host: &Topology, count: usize) -> Vec<NodeSet> {
    let ids: Vec<NodeId> = host.nodes.iter().map(|node| node.id).collect();
    let around = |&from: &NodeId| -> NodeSet {
        let mut order = ids.clone();
        order.sort_by_key(|&to| (to != from, host.distances.get(from, to), to));
        order.into_iter().take(count.max(1)).collect()
    };
    ids.iter().filter(|&&id| !host.cpus_of(id).is_empty()).map(around).collect()
}

/// Bounds that keep cells which had one node, and got more, on nodes that they fit.
fn one_node_each(
    intent: &Intent,
    request: &CellsRequest,
    free: &CellsDecision,
    observation: &Observation,
) -> Vec<Option<NodeSet>> {
    let host = &observation.topology;
    let cells = intent.cells.iter().zip(&request.cells).zip(&free.cells);
    let bound = |((was, asked), is): ((&IntentCell, &CellRequest), _)| {
        let is: &nearside_policy::PlacedCell = is;
        let fits = |&node: &NodeId| {
            host.cpus_of(node).len() >= asked.vcpus as usize
                && observation.available_bytes(node, asked.page_size) >= asked.memory_bytes
        };
        let nodes: NodeSet = host.nodes.iter().map(|node| node.id).filter(fits).collect();
        let lost_its_node = was.nodes == Some(1) && is.home.nodes.len() > 1;
        (lost_its_node && !nodes.is_empty()).then_some(nodes)
    };
    cells.map(bound).collect()
}

/// A line for each thing that is worse than the intent's shape.
pub(crate) fn worse(intent: &Intent, decision: &CellsDecision, host: &Topology) -> Vec<String> {
    let homes: Vec<NodeSet> = decision.cells.iter().map(|it| it.home.nodes.clone()).collect();
    let mut lines = Vec::new();
    for ((id, was), home) in (0..).zip(&intent.cells).zip(&homes) {
        if let Some(nodes) = was.nodes.filter(|&nodes| home.len() > nodes as usize) {
            lines.push(format!("cell {id} spans {} nodes, it had {nodes}", home.len()));
        }
    }
    for ((id, was), placed) in (0..).zip(&intent.cells).zip(&decision.cells) {
        let bytes = placed.home.spilled_bytes;
        if was.nodes.is_some() && bytes > 0 {
            let bytes = nearside_policy::Bytes(bytes);
            lines.push(format!("{bytes} of cell {id} come from nodes off its home"));
        }
    }
    let now = home_distances(&homes, host);
    let at = |table: &[Vec<u8>], from: usize, to: usize| table.get(from)?.get(to).copied();
    for (from, was) in intent.cells.iter().enumerate() {
        for to in from + 1..homes.len() {
            let shared = homes[from].intersection(&homes[to]);
            let (had, shares) = (was.nodes.is_some(), !shared.is_empty());
            if had && shares && !was.shares_nodes_with.contains(&(to as u32)) {
                let nodes = shared.named();
                lines.push(format!("cells {from} and {to} share {nodes}, they shared none"));
            }
            // Cells that shared a node are not worse off apart.
            let were_apart = !was.shares_nodes_with.contains(&(to as u32));
            let before = intent.home_distances.as_deref().and_then(|it| at(it, from, to));
            let before = before.filter(|_| were_apart);
            if let (Some(before), Some(now)) = (before, at(&now, from, to))
                && now > before
            {
                lines.push(format!(
                    "cells {from} and {to} are at distance {now}, they were at {before}"
                ));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_libvirt::MemoryMode;
    use nearside_policy::place_cells;
    use nearside_topology::{Cpu, CpuId, Distances, Node};

    const GIB: u64 = 1 << 30;

    /// Nodes of 4 CPUs with so many GiB, all at distance 20.
    fn machine(gib: &[u64]) -> Observation {
        let ids: Vec<NodeId> = (0..gib.len() as u32).map(NodeId).collect();
        let node =
            |(&id, gib): (&NodeId, &u64)| Node { id, memory_bytes: gib * GIB, ..Node::default() };
        let cpus = 0..4 * ids.len() as u32;
        Observation::of(Topology {
            nodes: ids.iter().zip(gib).map(node).collect(),
            cpus: cpus.map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 4))).collect(),
            distances: Distances::uniform(&ids),
            ..Topology::default()
        })
    }

    /// A guest of so many vCPUs and GiB a cell, each on one node at distance 12 of the others.
    fn guest(cells: &[(u32, u64)]) -> Intent {
        let numbers = 0..cells.len();
        let xml: String = numbers.map(|id| format!("<cell cpus='{id}' memory='1'/>")).collect();
        let text = format!("<domain><vcpu>9</vcpu><cpu><numa>{xml}</numa></cpu></domain>");
        let sizes = cells.iter().map(|&(vcpus, gib)| (vcpus, gib * GIB, None));
        let mut intent = Intent::of(
            &Domain::read(&text).unwrap(),
            MemoryMode::Strict,
            sizes,
            &Topology::default(),
        );
        intent.cells.iter_mut().for_each(|cell| cell.nodes = Some(1));
        intent
    }

    fn place(intent: &Intent, seen: &Observation) -> (Vec<String>, Vec<String>) {
        let decision =
            place_in_shape(intent, &request(intent, None), &[], seen, &CostModel::default())
                .unwrap();
        let homes = decision.cells.iter().map(|it| it.home.nodes.to_string()).collect();
        (homes, worse(intent, &decision, &seen.topology))
    }

    #[test]
    fn a_guest_of_one_node_stays_on_one_although_two_are_faster() {
        let intent = guest(&[(6, 8)]);
        let seen = machine(&[16, 16]);
        let free = place_cells(&request(&intent, None), &seen, &CostModel::default()).unwrap();
        assert_eq!(free.cells[0].home.nodes.len(), 2);
        assert_eq!(place(&intent, &seen), (vec!["0".into()], vec![]));
        // It had two nodes, so it may have two.
        let mut wide = intent;
        wide.cells[0].nodes = Some(2);
        assert_eq!(place(&wide, &seen), (vec!["0-1".into()], vec![]));
    }

    #[test]
    fn nodes_that_a_cell_is_bound_to_come_before_its_shape() {
        let intent = guest(&[(6, 8)]);
        let seen = machine(&[16, 16, 16]);
        let bound = |nodes: &str| {
            let bounds = [Some(nodes.parse().unwrap())];
            let request = request(&intent, None);
            let model = CostModel::default();
            let decision = place_in_shape(&intent, &request, &bounds, &seen, &model).unwrap();
            decision.cells[0].home.nodes.to_string()
        };
        assert_eq!(bound("2"), "2");
        assert_eq!(bound("1-2"), "1");
    }

    #[test]
    fn each_loss_has_a_line() {
        let (homes, lines) = place(&guest(&[(2, 20)]), &machine(&[16, 16]));
        assert_eq!(homes, ["0-1"]);
        assert_eq!(lines, ["cell 0 spans 2 nodes, it had 1"]);
        let mut two = guest(&[(2, 4), (2, 4)]);
        two.home_distances = Some(vec![vec![10, 12], vec![12, 10]]);
        let (homes, lines) = place(&two, &machine(&[16, 16]));
        assert_eq!(homes, ["0", "1"]);
        assert_eq!(lines, ["cells 0 and 1 are at distance 20, they were at 12"]);
        let (_, lines) = place(&two, &machine(&[16]));
        assert_eq!(lines, ["cells 0 and 1 share node 0, they shared none"]);
        // Cells that shared a node are apart.
        two.home_distances = Some(vec![vec![10, 10], vec![10, 10]]);
        two.cells[0].shares_nodes_with = vec![1];
        assert_eq!(place(&two, &machine(&[16, 16])), (vec!["0".into(), "1".into()], vec![]));
    }

    #[test]
    fn a_machine_without_room_refuses() {
        let intent = guest(&[(2, 40)]);
        let seen = machine(&[16, 16]);
        let refused =
            place_in_shape(&intent, &request(&intent, None), &[], &seen, &CostModel::default());
        assert!(refused.is_err());
    }
}
