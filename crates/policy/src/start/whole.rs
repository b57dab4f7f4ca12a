//! A new virtual machine whose cells share one part.

use super::{StartCells, StartRefusal, binding, check};
use crate::{
    Action, CellsDecision, CellsRequest, Claim, CostModel, Home, Observation, Origin, PageSize,
    PartId, Plan, Reason, Request, Step, Transaction, place, place_cells_within,
};
use nearside_topology::{NodeId, NodeSet};
use std::collections::BTreeSet;

/// A virtual machine with its cells' homes, as one part.
#[derive(Debug, Clone, PartialEq)]
pub struct WholePlan {
    /// The homes of the cells.
    pub cells: CellsDecision,
    /// The plan for one part. Its home is the union of the cells' homes, its claim their sum.
    pub plan: Plan,
}

/// The plan that places the cells of `start` and makes one part of them. The command that is
/// started binds each cell; the cgroup and the memory policy keep the rest on the nodes of all.
///
/// The home of several cells is explicit: the control loop knows this part as one, and would
/// collapse its cells onto one node set.
///
/// # Errors
/// A [`StartRefusal`] as those of [`start_cells`](super::start_cells).
pub fn start_whole(
    start: &StartCells,
    observation: &Observation,
    model: &CostModel,
) -> Result<WholePlan, StartRefusal> {
    let StartCells { name, request, bounds, affinity, limits } = start;
    let all_bytes = request.cells.iter().map(|cell| cell.memory_bytes);
    let memory_bytes = all_bytes.fold(0, u64::saturating_add);
    check(name, *limits, memory_bytes, observation)?;
    let observation = &*observation.naming(request.nodes.as_ref());
    let cells = place_cells_within(request, bounds, observation, model)?;
    let claim = sum(&cells);
    let home: NodeSet =
        cells.cells.iter().fold(NodeSet::new(), |all, placed| all.union(&placed.home.nodes));
    // The figures are those of a domain on the union; its pages lie as the cells decided.
    let whole = whole(request, memory_bytes);
    let named = Request { nodes: Some(home.clone()), ..whole.clone() };
    let mut decision = place(&named, observation, model)?;
    decision.request = whole;
    decision.chosen.claim = claim.clone();
    decision.chosen.nodes = home.clone();
    decision.runners_up.clear();
    let part = PartId::of(name);
    let available = observation.available(claim.page_size);
    let available_bytes = claim.nodes().iter().map(|node| (node, available.on(node))).collect();
    let is_explicit = request.nodes.is_some() || cells.cells.len() > 1;
    let home = Home {
        nodes: home,
        origin: if is_explicit { Origin::Explicit } else { Origin::Auto },
        affinity: *affinity,
        policy: request.policy,
    };
    let create = Action::Create { part: part.clone(), limits: *limits };
    let mut steps = vec![
        Step { action: create, reason: Reason::NewDomain },
        Step {
            action: Action::Claim { part: part.clone(), claim },
            reason: Reason::Reserves { available_bytes },
        },
        Step { action: Action::SetHome { part: part.clone(), home }, reason: Reason::Placed },
    ];
    steps.extend(binding(&part, &observation.topology, &decision, *affinity));
    let transaction = Transaction::new(steps, observation);
    let decision = Some(decision);
    let plan = Plan { decision, transaction, moves: None, afterwards: None, limits: Vec::new() };
    Ok(WholePlan { cells, plan })
}

/// The claims of all cells, which have pages of one size.
fn sum(cells: &CellsDecision) -> Claim {
    let mut sum = Claim::default();
    for claim in cells.cells.iter().map(|placed| &placed.home.claim) {
        sum.page_size = claim.page_size;
        for (&node, &bytes) in &claim.bytes {
            let of_node = sum.bytes.entry(node).or_default();
            *of_node = of_node.saturating_add(bytes);
        }
        for (&node, &vcpus) in &claim.vcpus {
            let of_node = sum.vcpus.entry(node).or_default();
            *of_node = of_node.saturating_add(vcpus);
        }
    }
    sum
}

/// The cells as a domain without cells.
fn whole(request: &CellsRequest, memory_bytes: u64) -> Request {
    let near: BTreeSet<NodeId> =
        request.cells.iter().flat_map(|cell| cell.near.iter().copied()).collect();
    Request {
        vcpus: request.cells.iter().fold(0, |sum, cell| sum.saturating_add(cell.vcpus)),
        memory_bytes,
        page_size: request.cells.first().map_or(PageSize::Base, |cell| cell.page_size),
        policy: request.policy,
        nodes: request.nodes.clone(),
        near: near.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Affinity, CellRequest, Limits, MemoryPolicy};
    use nearside_topology::{Cpu, CpuId, Distances, Node, Topology};

    #[test]
    fn two_cells_share_a_part_with_both_homes_and_an_explicit_home() {
        let ids = [0, 1, 2, 3].map(NodeId);
        let topology = Topology {
            nodes: ids.map(|id| Node { id, memory_bytes: 1 << 30, ..Node::default() }).into(),
            cpus: (0..8).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            distances: Distances::uniform(&ids),
            ..Topology::default()
        };
        let cell = CellRequest {
            vcpus: 2,
            memory_bytes: 600 << 20,
            page_size: PageSize::Base,
            near: Vec::new(),
        };
        let start = StartCells {
            name: "vm".into(),
            request: CellsRequest {
                cells: vec![cell.clone(), cell],
                distances: None,
                policy: MemoryPolicy::Strict,
                nodes: None,
            },
            bounds: Vec::new(),
            affinity: Affinity::Soft,
            limits: Limits::default(),
        };
        let observation = Observation::of(topology);
        let planned = start_whole(&start, &observation, &CostModel::default()).unwrap();
        let words: Vec<_> =
            planned.plan.transaction.steps.iter().map(|step| step.action.to_string()).collect();
        let expected = [
            "create domain vm",
            "claim node 0: 2 vCPUs, 600 MiB; node 1: 2 vCPUs, 600 MiB",
            "make nodes 0-1 the home",
            "allow memory on nodes 0-1 only",
            "run on CPUs 0-3 for the time being",
            "set memory policy strict on nodes 0-1",
        ];
        assert_eq!(words, expected);
        let home = planned.plan.transaction.steps.iter().find_map(|step| match &step.action {
            Action::SetHome { home, .. } => Some(home.origin),
            _ => None,
        });
        assert_eq!(home, Some(Origin::Explicit));
    }
}
