use super::*;
use crate::{ByNode, CellRequest, Claim, MemoryPolicy, PageSize, PartState, Unmet};
use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, Topology};

const GIB: u64 = 1 << 30;

/// Nodes of 4 CPUs and 16 GiB, all 20 apart.
fn machine(nodes: u32) -> Observation {
    let ids: Vec<_> = (0..nodes).map(NodeId).collect();
    let node = |&id: &NodeId| Node { id, memory_bytes: 16 * GIB, ..Node::default() };
    Observation::of(Topology {
        nodes: ids.iter().map(node).collect(),
        cpus: (0..4 * nodes).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 4))).collect(),
        distances: Distances::uniform(&ids),
        ..Topology::default()
    })
}

/// Two cells of 2 vCPUs and 10 GiB.
fn wish() -> StartCells {
    let cell = CellRequest {
        vcpus: 2,
        memory_bytes: 10 * GIB,
        page_size: PageSize::Base,
        near: Vec::new(),
    };
    let request = CellsRequest {
        cells: vec![cell; 2],
        distances: None,
        policy: MemoryPolicy::Strict,
        nodes: None,
    };
    let limits = Limits::default();
    StartCells { name: "vm".into(), request, bounds: Vec::new(), affinity: Affinity::Soft, limits }
}

fn begin(wish: &StartCells, seen: &Observation) -> Result<CellsPlan, StartRefusal> {
    start_cells(wish, seen, &CostModel::default())
}

#[test]
fn one_transaction_creates_the_domain_and_gives_each_cell_a_claim_and_a_home() {
    let plan = begin(&wish(), &machine(2)).unwrap();
    let steps = &plan.transaction.steps;
    let words: Vec<String> =
        steps.iter().map(|step| format!("{}: {}", step.action.subject(), step.action)).collect();
    let expected = [
        "cell 0 of vm: create domain vm",
        "cell 0 of vm: claim node 0: 2 vCPUs, 10 GiB",
        "cell 0 of vm: make node 0 the home",
        "cell 1 of vm: claim node 1: 2 vCPUs, 10 GiB",
        "cell 1 of vm: make node 1 the home",
    ];
    assert_eq!(words, expected);
    let needs = &plan.transaction.needs;
    let both: ByNode = [(NodeId(0), 10 * GIB), (NodeId(1), 10 * GIB)].into();
    assert_eq!(needs.memory, [(PageSize::Base, both)]);
    assert!(needs.free_names.contains("vm") && needs.parts.is_empty());
}

#[test]
fn once_applied_each_cell_is_a_part_with_its_claim() {
    let seen = machine(2);
    let transaction = begin(&wish(), &seen).unwrap().transaction;
    assert_eq!(transaction.check(&seen), Ok(()));
    let after = seen.after(&transaction);
    let parts: Vec<_> = after.parts.iter().map(|part| part.id.to_string()).collect();
    assert_eq!(parts, ["cell 0 of vm", "cell 1 of vm"]);
    for (node, part) in [NodeId(0), NodeId(1)].into_iter().zip(&after.parts) {
        assert_eq!(part.claim.as_ref().unwrap().nodes().to_string(), node.to_string());
        assert_eq!(part.home.as_ref().unwrap().nodes.to_string(), node.to_string());
        assert_eq!(after.available_bytes(node, PageSize::Base), 6 * GIB);
    }
    assert!(matches!(begin(&wish(), &after), Err(StartRefusal::Taken(_))));
}

#[test]
fn memory_that_one_cell_lacks_by_now_drops_the_start_of_all() {
    let seen = machine(2);
    let transaction = begin(&wish(), &seen).unwrap().transaction;
    let mut fresh = seen.clone();
    let claim = Claim { bytes: [(NodeId(1), 7 * GIB)].into(), ..Claim::default() };
    fresh.parts.push(PartState { id: "db".into(), claim: Some(claim), ..PartState::default() });
    let unmet = transaction.check(&fresh);
    let is_of_node_1 =
        |it: &Unmet| matches!(it, Unmet::Memory { nodes, .. } if nodes.to_string() == "1");
    assert!(unmet.as_ref().is_err_and(is_of_node_1), "{unmet:?}");
    // A domain of that name, too, with cells or without.
    let mut fresh = seen.clone();
    fresh.parts.push(PartState { id: "cell 5 of vm".into(), ..PartState::default() });
    assert_eq!(transaction.check(&fresh), Err(Unmet::NameTaken("vm".into())));
}

#[test]
fn a_limit_below_the_memory_of_all_cells_is_refused() {
    let mut wish = wish();
    wish.limits.memory_bytes = Some(15 * GIB);
    let refusal = begin(&wish, &machine(2)).unwrap_err();
    assert_eq!(refusal.to_string(), "a memory limit of 15 GiB is below the 20 GiB that it claims");
}
