//! A new virtual machine with cells: one transaction creates all of them.

use super::{StartRefusal, check};
use crate::{
    Action, Affinity, CellsDecision, CellsRequest, CostModel, Home, Limits, Observation, Origin,
    PartId, PlacedCell, Reason, Step, Transaction, place_cells_within,
};
use nearside_topology::NodeSet;

/// A virtual machine with cells that is to be started.
#[derive(Debug, Clone, PartialEq)]
pub struct StartCells {
    /// Its name.
    pub name: String,
    /// The request for the homes of its cells.
    pub request: CellsRequest,
    /// The nodes that the home of each cell lies within, by cell; a cell without such nodes, or
    /// beyond the end, may have all nodes of the request.
    pub bounds: Vec<Option<NodeSet>>,
    /// The binding of the vCPUs of each cell to its home.
    pub affinity: Affinity,
    /// The limits of its use.
    pub limits: Limits,
}

/// The homes of a new virtual machine's cells, and the transaction that claims them.
#[derive(Debug, Clone, PartialEq)]
pub struct CellsPlan {
    /// The decision.
    pub decision: CellsDecision,
    /// One domain, and a claim and a home for each cell.
    pub transaction: Transaction,
}

/// The plan that gives each cell of `start` a home and reserves its memory: all or none.
///
/// Cells share a cgroup, so nothing is bound here: the owner of the virtual machine binds each
/// cell's vCPUs and memory.
///
/// # Errors
/// A [`StartRefusal`] if the name or a limit is invalid, or the cells do not fit.
pub fn start_cells(
    start: &StartCells,
    observation: &Observation,
    model: &CostModel,
) -> Result<CellsPlan, StartRefusal> {
    let StartCells { name, request, bounds, affinity, limits } = start;
    let all_bytes = request.cells.iter().map(|cell| cell.memory_bytes);
    check(name, *limits, all_bytes.fold(0, u64::saturating_add), observation)?;
    let observation = &*observation.naming(request.nodes.as_ref());
    let decision = place_cells_within(request, bounds, observation, model)?;
    let part = |placed: &PlacedCell| PartId::cell_of(name, placed.cell);
    let step = |action, reason| Step { action, reason };
    let mut steps = Vec::with_capacity(1 + 2 * decision.cells.len());
    if let Some(first) = decision.cells.first() {
        let action = Action::Create { part: part(first), limits: *limits };
        steps.push(step(action, Reason::NewDomain));
    }
    for placed in &decision.cells {
        let claim = placed.home.claim.clone();
        let available = observation.available(claim.page_size);
        let available_bytes = claim.nodes().iter().map(|node| (node, available.on(node))).collect();
        let action = Action::Claim { part: part(placed), claim };
        steps.push(step(action, Reason::Reserves { available_bytes }));
        let home = Home {
            nodes: placed.home.nodes.clone(),
            origin: if request.nodes.is_some() { Origin::Explicit } else { Origin::Auto },
            affinity: *affinity,
            policy: request.policy,
        };
        steps.push(step(Action::SetHome { part: part(placed), home }, Reason::Placed));
    }
    let transaction = Transaction::new(steps, observation);
    Ok(CellsPlan { decision, transaction })
}

#[cfg(test)]
mod tests;
