//! Machines small enough for figures worked by hand.

use super::*;
use crate::{MemoryPolicy, PartState};
use nearside_topology::{Cpu, CpuId, Distance, Distances, MemoryTier, Node, NodeId};

const GIB: u64 = 1 << 30;

/// Nodes of 4 CPUs with so many GiB. Two nodes each share a socket: 12, else 20.
fn machine(gib: &[u64]) -> Observation {
    let ids: Vec<NodeId> = (0..gib.len() as u32).map(NodeId).collect();
    let distance = |from: u32, to: u32| -> Distance {
        match (from == to, from / 2 == to / 2) {
            (true, _) => 10,
            (_, true) => 12,
            _ => 20,
        }
    };
    let rows: Vec<Distance> =
        ids.iter().flat_map(|from| ids.iter().map(|to| distance(from.0, to.0))).collect();
    let node =
        |(&id, gib): (&NodeId, &u64)| Node { id, memory_bytes: gib * GIB, ..Node::default() };
    Observation::of(Topology {
        nodes: ids.iter().zip(gib).map(node).collect(),
        cpus: (0..4 * ids.len() as u32).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 4))).collect(),
        distances: Distances::new(&ids, &rows).unwrap(),
        ..Topology::default()
    })
}

/// Cells of so many vCPUs and GiB.
fn guest(cells: &[(u32, u64)]) -> CellsRequest {
    let cell = |&(vcpus, gib): &(u32, u64)| CellRequest {
        vcpus,
        memory_bytes: gib * GIB,
        page_size: PageSize::Base,
        near: Vec::new(),
    };
    CellsRequest {
        cells: cells.iter().map(cell).collect(),
        distances: None,
        policy: MemoryPolicy::PreferredMany,
        nodes: None,
    }
}

fn decide(request: &CellsRequest, seen: &Observation) -> CellsDecision {
    place_cells(request, seen, &CostModel::default()).unwrap()
}

fn homes(decision: &CellsDecision) -> Vec<String> {
    decision.cells.iter().map(|cell| cell.home.nodes.to_string()).collect()
}

/// The worked example of ADR 12, number by number.
#[test]
fn near_cells_are_near_and_a_large_one_spills_to_the_nearest_node() {
    let mut request = guest(&[(2, 8), (2, 8), (2, 20)]);
    request.distances = Some(vec![vec![10, 12, 40], vec![12, 10, 40], vec![40, 40, 10]]);
    let decision = decide(&request, &machine(&[16, 4, 16, 16]));
    assert_eq!(homes(&decision), ["2", "3", "0-1"]);
    assert_eq!((decision.slow_down, decision.between_ppm), (SlowDown(1_036_924), 23_590));
    let slow_downs: Vec<u64> = decision.cells.iter().map(|it| it.home.slow_down.0).collect();
    assert_eq!(slow_downs, [1_000_000, 1_000_000, 1_040_000]);
    let large = &decision.cells[2];
    let (bytes, vcpus) = (&large.home.claim.bytes, &large.home.claim.vcpus);
    assert_eq!(*bytes, [(NodeId(0), 16 * GIB), (NodeId(1), 4 * GIB)].into());
    assert_eq!(*vcpus, [(NodeId(0), 1), (NodeId(1), 1)].into());
    let spill = large.spill.unwrap().to_string();
    assert_eq!(spill, "node 0 has 16 GiB of 20 GiB");
    assert!(decision.cells[0].spill.is_none() && decision.shared.is_empty());
}

#[test]
fn a_cell_of_more_vcpus_than_a_node_has_cpus_spills() {
    let decision = decide(&guest(&[(6, 4), (2, 4)]), &machine(&[16; 4]));
    assert_eq!(homes(&decision), ["0-1", "2"]);
    let spill = decision.cells[0].spill.unwrap();
    assert_eq!(spill.to_string(), "node 0 has 4 CPUs for 6 vCPUs");
}

#[test]
fn without_distances_cells_are_as_near_to_each_other_as_possible() {
    // Node 1 is full, so nodes 2 and 3 are the only free pair of a socket.
    let decision = decide(&guest(&[(2, 8), (2, 8)]), &machine(&[16, 4, 16, 16]));
    assert_eq!(homes(&decision), ["2", "3"]);
    // Both cells see the other at 1.2: 0.4 x 0.1 x 0.2.
    assert_eq!(decision.between_ppm, 8_000);
}

#[test]
fn cells_share_a_node_only_if_no_distinct_nodes_fit() {
    let decision = decide(&guest(&[(1, 4), (1, 4), (1, 4)]), &machine(&[16, 16]));
    assert!(!decision.shared.is_empty());
    // Twice as many vCPUs as CPUs do not make them share; they wait.
    let decision = decide(&guest(&[(8, 4), (8, 4)]), &machine(&[16, 16]));
    assert_eq!((homes(&decision), decision.shared), (vec!["0".into(), "1".into()], NodeSet::new()));
    // Node 0 has room for both, node 1 for none.
    let decision = decide(&guest(&[(1, 4), (1, 4)]), &machine(&[16, 2]));
    assert_eq!(decision.shared.to_string(), "0");
}

#[test]
fn cells_that_share_count_against_each_other() {
    // Node 0 has room for 7 GiB; the second cell of 4 GiB takes the rest there, and node 1's.
    let decision = decide(&guest(&[(2, 4), (2, 4)]), &machine(&[7, 1]));
    let claimed = |node| -> u64 {
        let of = |it: &PlacedCell| it.home.claim.bytes.get(&NodeId(node)).copied().unwrap_or(0);
        decision.cells.iter().map(of).sum()
    };
    assert_eq!((claimed(0), claimed(1)), (7 * GIB, GIB));
    let refusal = place_cells(&guest(&[(2, 4), (2, 5)]), &machine(&[7, 1]), &CostModel::default());
    let text = refusal.unwrap_err().to_string();
    assert_eq!(
        text,
        "all cells together: 9 GiB do not fit: 8 GiB are available on nodes 0-1, 1 GiB too few \
         (1073741824 bytes)"
    );
}

#[test]
fn cells_lie_on_the_nodes_that_an_operator_named() {
    let mut request = guest(&[(2, 8), (2, 8)]);
    request.nodes = Some("1,3".parse().unwrap());
    assert_eq!(homes(&decide(&request, &machine(&[16; 4]))), ["1", "3"]);
    // A cell that spills stays on them, too.
    request.cells[0].memory_bytes = 20 * GIB;
    request.nodes = Some("0,2-3".parse().unwrap());
    assert_eq!(homes(&decide(&request, &machine(&[16; 4]))), ["2-3", "0"]);
}

#[test]
fn a_cell_is_near_its_device() {
    let mut request = guest(&[(2, 8), (2, 8)]);
    request.cells[1].near = vec![NodeId(2)];
    assert_eq!(homes(&decide(&request, &machine(&[16; 4]))), ["3", "2"]);
}

#[test]
fn residents_claims_are_not_available_to_cells() {
    let mut seen = machine(&[16; 4]);
    let claim = Claim { bytes: [(NodeId(0), 10 * GIB)].into(), ..Claim::default() };
    seen.parts.push(PartState { claim: Some(claim), ..PartState::default() });
    assert_eq!(homes(&decide(&guest(&[(2, 8), (2, 8)]), &seen)), ["2", "3"]);
}

#[test]
fn invalid_requests_are_refused_with_the_value() {
    let told = |request: &CellsRequest| {
        place_cells(request, &machine(&[16; 2]), &CostModel::default()).unwrap_err().to_string()
    };
    assert_eq!(told(&guest(&[])), "a virtual machine needs at least 1 cell");
    let with = |rows: &[&[u8]]| CellsRequest {
        distances: Some(rows.iter().map(|row| row.to_vec()).collect()),
        ..guest(&[(1, 1), (1, 1)])
    };
    assert_eq!(
        told(&with(&[&[10, 20], &[20]])),
        "the guest's distances have 2 rows, and row 1 has 1 entries: expected 2 of each, one for \
         each cell"
    );
    assert_eq!(
        told(&with(&[&[10, 20], &[5, 10]])),
        "the guest's distance from cell 1 to cell 0 is 5: expected 10 (as near as its own memory) \
         to 255 (out of reach)"
    );
    assert_eq!(told(&guest(&[(0, 1), (0, 1)])), "cell 0: a domain needs at least 1 vCPU");
    let refusal = told(&guest(&[(1, 1), (1, 40)]));
    assert!(refusal.starts_with("cell 1: 40 GiB are more than the whole machine has"), "{refusal}");
}

#[test]
fn a_bound_cell_stays_within_its_nodes_and_the_others_give_way() {
    let seen = machine(&[16; 4]);
    let within = |cells: &[(u32, u64)], bounds: &[Option<&str>]| {
        let bounds: Vec<Option<NodeSet>> =
            bounds.iter().map(|bound| bound.map(|it| it.parse().unwrap())).collect();
        place_cells_within(&guest(cells), &bounds, &seen, &CostModel::default())
    };
    let small = [(2, 4), (2, 4)];
    assert_eq!(homes(&within(&small, &[]).unwrap()), ["0", "1"]);
    assert_eq!(homes(&within(&small, &[None, Some("0")]).unwrap()), ["1", "0"]);
    assert_eq!(homes(&within(&small, &[Some("3"), Some("0")]).unwrap()), ["3", "0"]);
    // Two cells on one node share it, and a large one grows within its bound alone.
    let shared = within(&small, &[Some("2"), Some("2")]).unwrap();
    assert_eq!((homes(&shared), shared.shared.to_string()), (vec!["2".into(); 2], "2".into()));
    assert_eq!(homes(&within(&[(2, 20), (2, 4)], &[Some("1,3"), None]).unwrap())[0], "1,3");
    let refusal = within(&[(2, 4), (2, 20)], &[None, Some("1")]).unwrap_err().to_string();
    assert!(refusal.starts_with("cell 1: 20 GiB do not fit: 16 GiB "), "{refusal}");
    assert_eq!(homes(&within(&[(2, 4)], &[Some("3")]).unwrap()), ["3"]);
}

#[test]
fn the_search_respects_bounds_where_arrangements_are_many() {
    let seen = machine(&[16; 16]);
    let bounds: Vec<_> = ["15", "3", "7", "0"].map(|it| Some(it.parse().unwrap())).into();
    let decision =
        place_cells_within(&guest(&[(2, 4); 5]), &bounds, &seen, &CostModel::default()).unwrap();
    assert!(!decision.exhaustive);
    assert_eq!(homes(&decision)[..4], ["15", "3", "7", "0"]);
}

/// The machine of `machine`, whose last node has no CPUs.
fn machine_with_memory_alone(gib: &[u64]) -> Observation {
    let mut topology = machine(gib).topology;
    let last = NodeId(gib.len() as u32 - 1);
    topology.cpus.retain(|cpu| cpu.node != Some(last));
    Observation::of(topology)
}

#[test]
fn a_cell_of_memory_alone_is_on_a_node_without_cpus_and_claims_no_vcpu() {
    let guest = guest(&[(4, 3), (0, 1)]);
    for method in [CellsMethod::BySize, CellsMethod::Search] {
        for seen in [machine_with_memory_alone(&[4; 4]), machine_with_memory_alone(&[4; 3])] {
            let decision = place_cells_with(method, &guest, &seen, &CostModel::default()).unwrap();
            let last = seen.topology.nodes.len() - 1;
            let homes = homes(&decision);
            assert_eq!(homes[1], last.to_string(), "{homes:?}");
            assert!(homes[0] != homes[1]);
            let claim = &decision.cells[1].home.claim;
            assert_eq!(claim.bytes, [(NodeId(last as u32), GIB)].into());
            assert!(claim.vcpus.is_empty(), "{claim:?}");
        }
    }
}

#[test]
fn a_cell_of_memory_alone_is_near_the_others_where_all_nodes_have_cpus() {
    let decision = decide(&guest(&[(4, 3), (0, 1)]), &machine(&[4; 4]));
    assert_eq!(homes(&decision), ["0", "1"]);
    // Without a node of its own it shares one.
    let decision = decide(&guest(&[(2, 1), (0, 1)]), &machine(&[4]));
    assert_eq!(homes(&decision), ["0", "0"]);
    assert_eq!(decision.cells[0].home.claim.vcpus, [(NodeId(0), 2)].into());
}

#[test]
fn a_large_cell_of_memory_alone_has_several_nodes_under_every_policy() {
    for policy in MemoryPolicy::ALL {
        let request = CellsRequest { policy, ..guest(&[(2, 3), (0, 10)]) };
        let decision = decide(&request, &machine_with_memory_alone(&[4, 4, 4, 8]));
        // The node without CPUs is too small, and the home of the other cell is next to it.
        assert_eq!(homes(&decision), ["2", "0,3"], "{policy}");
        let bytes: u64 = decision.cells[1].home.claim.bytes.values().sum();
        assert_eq!(bytes, 10 * GIB, "{policy}");
        let spill = decision.cells[1].spill.unwrap();
        assert_eq!(spill.to_string(), "node 3 has 8 GiB of 10 GiB", "{policy}");
    }
}

#[test]
fn a_cell_of_memory_alone_stays_within_its_nodes() {
    let bounds = [None, Some("0".parse().unwrap())];
    let seen = machine_with_memory_alone(&[4; 4]);
    let guest = guest(&[(4, 2), (0, 1)]);
    let decision = place_cells_within(&guest, &bounds, &seen, &CostModel::default()).unwrap();
    assert_eq!(homes(&decision), ["1", "0"]);
    let bounds = [Some("3".parse().unwrap()), None];
    let refusal = place_cells_within(&guest, &bounds, &seen, &CostModel::default()).unwrap_err();
    assert_eq!(refusal.to_string(), "cell 0: no CPU is online on node 3");
}

/// Nodes of 3 cores with 2 threads each at distance 16; nodes 1 and 3 have no memory.
fn machine_with_cpus_alone() -> Observation {
    let ids: Vec<NodeId> = (0..4).map(NodeId).collect();
    let rows: Vec<Distance> =
        (0..16).map(|pair| if pair / 4 == pair % 4 { 10 } else { 16 }).collect();
    let node = |&id: &NodeId| Node {
        id,
        memory_bytes: if id.0 % 2 == 0 { 8 * GIB } else { 0 },
        ..Node::default()
    };
    let cpu = |cpu: u32| {
        let core = cpu % 12;
        Cpu { core: CpuId(core), ..Cpu::new(CpuId(cpu), NodeId(core / 3)) }
    };
    Observation::of(Topology {
        nodes: ids.iter().map(node).collect(),
        cpus: (0..24).map(cpu).collect(),
        distances: Distances::new(&ids, &rows).unwrap(),
        ..Topology::default()
    })
}

#[test]
fn a_cell_on_two_nodes_that_fits_one_names_the_slow_down_there() {
    let decision = decide(&guest(&[(4, 1), (4, 1)]), &machine_with_cpus_alone());
    assert_eq!(homes(&decision), ["0-1", "2-3"]);
    // 2 vCPUs a node run at once, and half of them read at 1.6: 0.6 + 0.4 x 1.3. The cells see
    // each other at 1.6: 0.4 x 0.1 x 0.6.
    assert_eq!((decision.slow_down, decision.between_ppm), (SlowDown(1_144_000), 24_000));
    let spill = decision.cells[0].spill.unwrap();
    // 4 vCPUs on 3 cores do the work of 3.25: 1.230770 with all memory local, the mean of it and
    // 1.12 for both.
    let alone = Alone { node: NodeId(0), slow_down: SlowDown(1_199_385) };
    assert_eq!((spill.from, spill.alone), (NodeId(0), Some(alone)));
    assert_eq!((spill.vcpus, spill.cpus), (4, 6));
    assert_eq!((spill.needed_bytes, spill.available_bytes), (GIB, 8 * GIB));
    assert_eq!(
        spill.to_string(),
        "it fits node 0, where the slow-down of the virtual machine would be 1.199"
    );
    assert_eq!(decision.cells[1].spill.unwrap().from, NodeId(2));
}

#[test]
fn a_cell_of_as_many_vcpus_as_cores_has_one_node_beside_a_node_without_memory() {
    let decision = decide(&guest(&[(3, 1), (3, 1)]), &machine_with_cpus_alone());
    assert_eq!(homes(&decision), ["0", "2"]);
    assert!(decision.cells.iter().all(|cell| cell.spill.is_none()));
}

#[test]
fn cells_that_share_a_node_name_it_where_each_fits_beside_the_others() {
    let decision = decide(&guest(&[(4, 1), (4, 1), (4, 1)]), &machine_with_cpus_alone());
    assert_eq!((homes(&decision), decision.shared.to_string()), {
        (vec!["0-1".into(), "0,3".into(), "2".into()], "0".into())
    });
    let alone = Some(Alone { node: NodeId(0), slow_down: SlowDown(1_349_232) });
    let spills =
        decision.cells.iter().map(|cell| cell.spill.map(|it| (it.from, it.cpus, it.alone)));
    let expected = [Some((NodeId(0), 6, alone)), Some((NodeId(0), 4, alone)), None];
    assert_eq!(spills.collect::<Vec<_>>(), expected);
}

#[test]
fn a_cell_that_fits_a_far_node_alone_names_that_node() {
    // Node 0 has too little memory for cell 0, which is near its device there.
    let mut request = guest(&[(4, 4), (1, 1)]);
    request.cells[0].near = vec![NodeId(0)];
    let decision = decide(&request, &machine(&[2, 3, 16, 16]));
    assert_eq!(homes(&decision)[0], "0-1");
    let spill = decision.cells[0].spill.unwrap();
    assert_eq!((spill.from, spill.available_bytes), (NodeId(0), 2 * GIB));
    assert!(spill.alone.is_some_and(|it| it.slow_down > decision.slow_down), "{spill:?}");
}

#[test]
fn memory_alone_on_two_nodes_without_cpus_names_no_node_with_cpus() {
    let mut topology = machine(&[16, 16, 4, 8]).topology;
    topology.cpus.retain(|cpu| cpu.node < Some(NodeId(2)));
    let decision = decide(&guest(&[(2, 3), (0, 10)]), &Observation::of(topology));
    assert_eq!(homes(&decision)[1], "2-3");
    let spill = decision.cells[1].spill.unwrap();
    assert_eq!(spill.alone, None);
}

#[test]
fn cells_get_memory_of_a_lower_tier_last() {
    // Nodes 0 and 1 have CPUs, node 2 is slow memory.
    let mut seen = machine_with_memory_alone(&[8, 8, 32]);
    let all = |request: &CellsRequest, seen: &Observation| homes(&decide(request, seen));
    let large = guest(&[(2, 9), (2, 2)]);
    assert_eq!(all(&large, &seen), ["0,2", "1"], "as near as distances say");
    let tier = |number, nodes: &str| MemoryTier { number, nodes: nodes.parse().unwrap() };
    seen.topology.memory_tiers.tiers = vec![tier(4, "0-1"), tier(22, "2")];
    assert_eq!(all(&large, &seen), ["0-1", "0"]);
    assert_eq!(all(&guest(&[(2, 9), (2, 12)]), &seen), ["0-2", "0-1"], "they fit nowhere else");
    // A cell of memory alone is what such a node is for.
    assert_eq!(all(&guest(&[(2, 4), (2, 4), (0, 4)]), &seen), ["0", "1", "2"]);
    let named = CellsRequest { nodes: Some("0,2".parse().unwrap()), ..guest(&[(1, 6), (1, 6)]) };
    assert_eq!(all(&named, &seen), ["0", "0,2"], "the operator asks for it");
    let bounds = [Some("0,2".parse().unwrap()), None];
    let bound = place_cells_within(&large, &bounds, &seen, &CostModel::default()).unwrap();
    assert_eq!(homes(&bound), ["0,2", "1"]);
}
