//! The homes of a virtual machine's cells as tables, and the reasons as sentences.

use super::{
    table::{Side, table, wrapped},
    units::{count, size},
};
use nearside_policy::{CellsDecision, Observation, PlacedCell};
use nearside_topology::{NodeId, NodeSet};

/// The whole report.
pub(crate) fn report(decision: &CellsDecision, observation: &Observation) -> String {
    let nodes = decision.cells.iter().fold(NodeSet::new(), |all, it| all.union(&it.home.nodes));
    let vcpus: u32 = decision.request.cells.iter().map(|cell| cell.vcpus).sum();
    let mut report = format!(
        "homes of {}: {}, predicted slow-down {} ({}, {}, {})\n",
        count(decision.cells.len(), "cell"),
        nodes.named(),
        decision.slow_down,
        decision.request.policy,
        count(vcpus as usize, "vCPU"),
        size(decision.total_bytes()),
    );
    report += &homes(decision);
    report += &claims(decision, observation);
    report += "\nWhy\n";
    for reason in reasons(decision) {
        let words: Vec<String> = reason.split(' ').map(Into::into).collect();
        report += &format!("  - {}\n", wrapped(&words, 4));
    }
    report
}

fn homes(decision: &CellsDecision) -> String {
    use Side::{Left, Right};
    let columns = [
        ("cell", Right),
        ("home", Left),
        ("slow-down", Right),
        ("= CPU", Right),
        ("x memory", Right),
        ("x devices", Right),
        ("available", Right),
    ];
    let row = |PlacedCell { cell, home, .. }: &PlacedCell| {
        vec![
            cell.to_string(),
            home.nodes.to_string(),
            home.slow_down.to_string(),
            home.parts.cpu.to_string(),
            home.parts.memory.to_string(),
            home.parts.devices.to_string(),
            size(home.free_after_bytes),
        ]
    };
    let rows: Vec<_> = decision.cells.iter().map(row).collect();
    table("Homes", &columns, &rows)
}

fn claims(decision: &CellsDecision, observation: &Observation) -> String {
    use Side::Right;
    let columns = [
        ("cell", Right),
        ("node", Right),
        ("vCPUs", Right),
        ("of cores", Right),
        ("busy", Right),
        ("memory", Right),
        ("of free", Right),
    ];
    let of_cell = |placed: &PlacedCell| {
        let claim = &placed.home.claim;
        let row = |node: NodeId| {
            vec![
                placed.cell.to_string(),
                node.to_string(),
                claim.vcpus.get(&node).copied().unwrap_or(0).to_string(),
                observation.topology.cores_of(node).to_string(),
                observation.claimed_vcpus(node).to_string(),
                size(claim.bytes.get(&node).copied().unwrap_or(0)),
                size(observation.available_bytes(node, claim.page_size)),
            ]
        };
        claim.nodes().iter().map(row).collect::<Vec<_>>()
    };
    let rows: Vec<_> = decision.cells.iter().flat_map(of_cell).collect();
    table("Claims", &columns, &rows)
}

/// The reasons for the homes, as sentences with figures.
pub(crate) fn reasons(decision: &CellsDecision) -> Vec<String> {
    let mut reasons = Vec::new();
    let what = if decision.cells.len() == 1 { "sets of nodes" } else { "arrangements" };
    reasons.push(match decision.exhaustive {
        true => format!("compared all {} {what}", decision.candidates),
        false => format!("searched {} {what}", decision.candidates),
    });
    for placed in &decision.cells {
        if let Some(spill) = placed.spill {
            let home = placed.home.nodes.named();
            reasons.push(format!("cell {} is on {home}: {spill}", placed.cell));
        } else if placed.home.spilled_bytes > 0 {
            reasons.push(format!(
                "cell {}: {} do not fit on {} and come from other nodes",
                placed.cell,
                size(placed.home.spilled_bytes),
                placed.home.nodes.named()
            ));
        }
    }
    if !decision.shared.is_empty() {
        let found = if decision.exhaustive { "fits" } else { "was found" };
        reasons.push(format!(
            "cells share {}: no arrangement with nodes of its own for each cell {found}",
            decision.shared.named()
        ));
    }
    if decision.between_ppm > 0 {
        reasons.push(format!(
            "the distances between the homes add {:.1} % of the time",
            decision.between_ppm as f64 / 10_000.0
        ));
    }
    reasons.extend(decision.left_out.lines().into_iter().map(|line| format!("left out: {line}")));
    let model = decision.model;
    reasons.push(format!(
        "assumed: a vCPU waits {:.0} % of its time for memory and makes {:.0} % of its accesses \
         in other cells, a busy SMT sibling adds {:.0} % of a core, a vCPU uses {:.0} MB/s",
        model.memory_share * 100.0,
        model.cell_share * 100.0,
        model.smt_gain * 100.0,
        model.vcpu_bandwidth_mb_s,
    ));
    reasons
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nearside_policy::{
        CellRequest, CellsRequest, CostModel, MemoryPolicy, PageSize, place_cells,
    };
    use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, Topology};

    const GIB: u64 = 1 << 30;

    /// The worked example of ADR 12, and a fourth cell that has to share.
    pub(crate) fn example() -> (CellsDecision, Observation) {
        let ids = [0, 1, 2, 3].map(NodeId);
        let rows = [10, 12, 20, 20, 12, 10, 20, 20, 20, 20, 10, 12, 20, 20, 12, 10];
        let node =
            |(id, gib): (NodeId, u64)| Node { id, memory_bytes: gib * GIB, ..Node::default() };
        let seen = Observation::of(Topology {
            nodes: ids.into_iter().zip([16, 4, 16, 16]).map(node).collect(),
            cpus: (0..16).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 4))).collect(),
            distances: Distances::new(&ids, &rows).unwrap(),
            ..Topology::default()
        });
        let cell = |gib: u64| CellRequest {
            vcpus: 2,
            memory_bytes: gib * GIB,
            page_size: PageSize::Base,
            near: Vec::new(),
        };
        let distances = [[10, 12, 40, 40], [12, 10, 40, 40], [40, 40, 10, 40], [40, 40, 40, 10]];
        let request = CellsRequest {
            cells: [8, 8, 20, 4].map(cell).into(),
            distances: Some(distances.map(Vec::from).into()),
            policy: MemoryPolicy::Strict,
            nodes: None,
        };
        (place_cells(&request, &seen, &CostModel::default()).unwrap(), seen)
    }

    #[test]
    fn every_cell_has_its_home_its_claim_and_its_reason() {
        let (decision, seen) = example();
        insta::assert_snapshot!("place_cells", report(&decision, &seen));
    }
}
