//! Placement of a virtual machine with cells: a home for each cell
//! (docs/adr/0012-placing-cells.md).
//!
//! # Terms
//! - *anchor*: the node on which a cell's home begins.
//! - *spill*: a cell that does not fit its anchor has more nodes, nearest to the anchor first.
//! - *arrangement*: an anchor for each cell, and the homes that follow from them.
//! - *cell of memory alone*: a cell without vCPUs (docs/adr/0021-cells-of-memory-alone.md).
//! - *between*: the part of the slow-down that comes from distances between the homes.

mod arrange;
mod decision;
mod home;
mod nearness;
mod request;
mod search;
mod spill;

pub use decision::{Alone, CellsDecision, PlacedCell, Spill};
pub use request::{CellRequest, CellsRefusal, CellsRequest, MAX_CELLS};
pub use search::CellsMethod;

use crate::{
    ByNode, Candidate, CellId, Claim, CostModel, LeftOut, NoCpus, Observation, PageSize, Refusal,
    Request, SlowDown,
    cost::Ask,
    index::{CellIndex, Index, IndexVec, NodeIndex},
    offered::tiers_to_leave_out,
    place::{check, check_machine, place, unknown_memory},
    view::{NodeView, View},
};
use arrange::{Arrangement, Arranger, Cell};
use home::Home;
use nearness::Nearness;
use nearside_topology::{NodeSet, Topology};
use search::{Found, find};
use spill::Spills;
use std::{collections::BTreeSet, rc::Rc};

/// The homes for the cells of `request` on the observed machine: the arrangement with the least
/// slow-down of the whole virtual machine. Among equals the one with fewer vCPUs a core wins, then
/// more free memory afterwards, then the lowest numbers.
///
/// Cells have nodes of their own if any arrangement found fits so. A virtual machine of one cell
/// gets the home of a domain without cells ([`place()`](crate::place())).
///
/// Memory of a lower tier than that of all nodes with CPUs counts only for cells of memory alone,
/// for cells that are bound to it, if the cells fit nowhere else, or if the request names nodes.
///
/// # Errors
/// A [`CellsRefusal`] if the request is invalid on this machine or does not fit it.
pub fn place_cells(
    request: &CellsRequest,
    observation: &Observation,
    model: &CostModel,
) -> Result<CellsDecision, CellsRefusal> {
    place_cells_with(CellsMethod::BySize, request, observation, model)
}

/// [`place_cells`] with nodes that single cells are bound to: the home of cell `i` lies within
/// `bounds[i]`. A cell without a bound, or beyond the end of `bounds`, may have all nodes of the
/// request.
///
/// # Errors
/// As [`place_cells`].
pub fn place_cells_within(
    request: &CellsRequest,
    bounds: &[Option<NodeSet>],
    observation: &Observation,
    model: &CostModel,
) -> Result<CellsDecision, CellsRefusal> {
    place_by(CellsMethod::BySize, request, bounds, observation, model)
}

/// [`place_cells`] with a given way to find arrangements.
///
/// # Errors
/// As [`place_cells`].
pub fn place_cells_with(
    method: CellsMethod,
    request: &CellsRequest,
    observation: &Observation,
    model: &CostModel,
) -> Result<CellsDecision, CellsRefusal> {
    place_by(method, request, &[], observation, model)
}

fn place_by(
    method: CellsMethod,
    request: &CellsRequest,
    bounds: &[Option<NodeSet>],
    observation: &Observation,
    model: &CostModel,
) -> Result<CellsDecision, CellsRefusal> {
    request.check_shape()?;
    if let [only] = &request.cells[..] {
        let nodes = match (&request.nodes, bounds.first().and_then(Option::as_ref)) {
            (Some(nodes), Some(bound)) => Some(nodes.intersection(bound)),
            (nodes, bound) => nodes.as_ref().or(bound).cloned(),
        };
        let part = Request { nodes, ..request.part(only) };
        let decision = place(&part, observation, model)
            .map_err(|refusal| CellsRefusal::Cell { cell: CellId(0), refusal })?;
        return Ok(CellsDecision::of_one(request.clone(), decision));
    }
    let observation = &*observation.naming(request.nodes.as_ref());
    let left_out = match request.nodes {
        None => tiers_to_leave_out(&observation.topology),
        Some(_) => Vec::new(),
    };
    for left_out in left_out.iter().take_while(|nodes| !nodes.is_empty()) {
        if let Ok(decision) = arranged(method, request, bounds, left_out, observation, model) {
            return Ok(decision);
        }
    }
    arranged(method, request, bounds, &NodeSet::new(), observation, model)
}

/// The best arrangement that leaves out some nodes: cells with vCPUs and without a bound have no
/// memory there. Cells of memory alone may.
fn arranged(
    method: CellsMethod,
    request: &CellsRequest,
    bounds: &[Option<NodeSet>],
    left_out: &NodeSet,
    observation: &Observation,
    model: &CostModel,
) -> Result<CellsDecision, CellsRefusal> {
    let cells = cells(request, observation, model)?;
    let nodes = request.nodes.clone().unwrap_or_else(|| observation.topology.node_set());
    let of_cell = |at: CellIndex| match bounds.get(at.position()) {
        Some(Some(bound)) => nodes.intersection(bound),
        _ if cells[at].ask.vcpus > 0 => nodes.difference(left_out),
        _ => nodes.clone(),
    };
    let nodes_by_cell: IndexVec<CellIndex, NodeSet> = cells.indices().map(of_cell).collect();
    check_room(request, &cells, &nodes, &nodes_by_cell, &observation.topology)?;
    let some_view = &cells[CellIndex::at(0)].view;
    let may_have_of = |nodes: &NodeSet| -> IndexVec<NodeIndex, bool> {
        some_view.nodes.iter().map(|node| nodes.contains(node.id)).collect()
    };
    let may_have = nodes_by_cell.iter().map(may_have_of).collect();
    let mut arranger = Arranger::new(&cells, may_have, Nearness::new(request, model), model);
    let Some(found) = find(&mut arranger, method) else {
        return Err(CellsRefusal::NoArrangement { nodes });
    };
    Ok(CellsDecision {
        request: request.clone(),
        slow_down: SlowDown(found.best.score.slow_down),
        between_ppm: found.best.between_ppm,
        shared: shared(&found.best, some_view),
        left_out: LeftOut::of(&observation.topology, request.nodes.as_ref()),
        candidates: arranger.evaluated(),
        exhaustive: found.exhaustive,
        cells: placed(&mut arranger, &found),
        model: *model,
    })
}

// The cells in the units of costing.
fn cells(
    request: &CellsRequest,
    observation: &Observation,
    model: &CostModel,
) -> Result<IndexVec<CellIndex, Cell>, CellsRefusal> {
    let topology = &observation.topology;
    let mut cells: Vec<Cell> = Vec::with_capacity(request.cells.len());
    for (id, cell) in (0..).map(CellId).zip(&request.cells) {
        let refused = |refusal| CellsRefusal::Cell { cell: id, refusal };
        // A domain needs a vCPU, and a cell of memory alone does not.
        let part = Request { vcpus: cell.vcpus.max(1), ..request.part(cell) };
        let page_bytes = check(&part, topology).map_err(refused)?;
        let pages = cell.memory_bytes.div_ceil(page_bytes);
        check_machine(cell.page_size, pages.saturating_mul(page_bytes), topology)
            .map_err(refused)?;
        let known = cells.iter().find(|known| known.ask.page_size == cell.page_size);
        let view = known.map(|known| known.view.clone());
        let view = view
            .unwrap_or_else(|| Rc::new(View::new(observation, cell.page_size, page_bytes, model)));
        let near = cell.near.iter().filter_map(|&node| view.index_of(node)).collect();
        let ask = Ask {
            vcpus: cell.vcpus.into(),
            pages,
            policy: request.policy,
            // The home is as large as the memory needs.
            stays_home: true,
            page_size: cell.page_size,
            near,
        };
        cells.push(Cell { ask, page_bytes, view });
    }
    Ok(cells.into())
}

// Refuses cells that cannot fit these nodes, whatever the arrangement.
fn check_room(
    request: &CellsRequest,
    cells: &IndexVec<CellIndex, Cell>,
    nodes: &NodeSet,
    nodes_by_cell: &IndexVec<CellIndex, NodeSet>,
    topology: &Topology,
) -> Result<(), CellsRefusal> {
    let no_room = |of: &Cell, pages: u64, nodes: &NodeSet| {
        let Cell { page_bytes, view, ask } = of;
        let on_nodes = view.nodes.iter().filter(|node| nodes.contains(node.id));
        let sum = on_nodes.fold(0, |sum: u64, node| sum.saturating_add(node.available_pages));
        let available_pages = sum.min(view.available_pages);
        (available_pages < pages).then(|| {
            let needed_bytes = pages.saturating_mul(*page_bytes);
            let available_bytes = available_pages.saturating_mul(*page_bytes);
            let short_by_bytes = needed_bytes - available_bytes;
            let unknown = unknown_memory(ask.page_size, needed_bytes, nodes, topology);
            unknown.unwrap_or(Refusal::DoesNotFit {
                needed_bytes,
                available_bytes,
                short_by_bytes,
                where_: nodes.named(),
                page_size: ask.page_size,
            })
        })
    };
    for (id, (cell, nodes)) in (0..).map(CellId).zip(cells.iter().zip(nodes_by_cell.iter())) {
        let has_cpu = |node: &NodeView| node.cores > 0 && nodes.contains(node.id);
        if cell.ask.vcpus > 0 && !cell.view.nodes.iter().any(has_cpu) {
            let refusal = NoCpus::on(nodes, topology).into();
            return Err(CellsRefusal::Cell { cell: id, refusal });
        }
        if let Some(refusal) = no_room(cell, cell.ask.pages, nodes) {
            return Err(CellsRefusal::Cell { cell: id, refusal });
        }
    }
    let sizes: BTreeSet<PageSize> = request.cells.iter().map(|cell| cell.page_size).collect();
    for size in sizes {
        let alike = || cells.iter().filter(|cell| cell.ask.page_size == size);
        let pages = alike().fold(0, |sum: u64, cell| sum.saturating_add(cell.ask.pages));
        if let Some(refusal) = alike().next().and_then(|cell| no_room(cell, pages, nodes)) {
            return Err(CellsRefusal::Together(refusal));
        }
    }
    Ok(())
}

// The nodes of several homes.
fn shared(best: &Arrangement, view: &View) -> NodeSet {
    let homes_with = |i| best.homes.iter().filter(|home| home.nodes.contains(&i)).count();
    view.nodes.indices().filter(|&i| homes_with(i) > 1).map(|i| view.nodes[i].id).collect()
}

// The cells with their homes, in the order of the request.
fn placed(arranger: &mut Arranger<'_>, found: &Found) -> Vec<PlacedCell> {
    let homes = &found.best.homes;
    let mut spills = Spills::new(arranger, found);
    let each = homes.iter().map(|home| {
        let spill = spills.of(home);
        let cell = &spills.arranger.cells[home.cell];
        let free_after_bytes = spills.arranger.free_bytes(home, homes, found.nodes);
        PlacedCell {
            cell: CellId(home.cell.position() as u32),
            home: candidate(home, cell, free_after_bytes),
            spill,
        }
    });
    each.collect()
}

// A home in the form of a decision.
fn candidate(home: &Home, cell: &Cell, free_after_bytes: u64) -> Candidate {
    let id = |i: NodeIndex| cell.view.nodes[i].id;
    let bytes: ByNode =
        home.pages.iter().map(|&(i, n)| (id(i), n.saturating_mul(cell.page_bytes))).collect();
    Candidate {
        nodes: home.nodes.iter().map(|&i| id(i)).collect(),
        slow_down: home.slow_down,
        parts: home.parts,
        vcpus_per_core_ppm: Some(home.vcpus_per_core_ppm),
        claim: Claim {
            bytes,
            vcpus: home.vcpus.iter().map(|&(i, vcpus)| (id(i), vcpus)).collect(),
            page_size: cell.ask.page_size,
        },
        spilled_bytes: 0,
        free_after_bytes,
    }
}

#[cfg(test)]
mod tests;
