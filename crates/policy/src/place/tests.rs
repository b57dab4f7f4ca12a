//! Machines small enough for figures worked by hand. Every node has 4 cores without SMT and 8 GiB
//! unless a test changes that. The model is the default: a vCPU waits 0.4 of its time for memory, a
//! sibling adds 0.25 of a core.

use super::*;
use crate::{MemoryPolicy, PartState};
use nearside_topology::{
    Access, Cpu, CpuId, Distance, Distances, HugePagePool, MemoryState, MemoryTier, Node, NodeId,
    Performance,
};

const GIB: u64 = 1 << 30;

/// A node as the tests describe it: cores, threads a core, GiB.
type Size = (u32, u32, u64);

fn machine(sizes: &[Size], distances: &[Distance]) -> Observation {
    let ids: Vec<NodeId> = (0..sizes.len() as u32).map(NodeId).collect();
    let mut topology = Topology {
        distances: Distances::new(&ids, distances).unwrap(),
        nodes: ids
            .iter()
            .zip(sizes)
            .map(|(&id, &(_, _, gib))| Node { id, memory_bytes: gib * GIB, ..Node::default() })
            .collect(),
        ..Topology::default()
    };
    for (&id, &(cores, threads, _)) in ids.iter().zip(sizes) {
        for _ in 0..cores {
            let first = CpuId(topology.cpus.len() as u32);
            for thread in 0..threads {
                topology.cpus.push(Cpu { core: first, ..Cpu::new(CpuId(first.0 + thread), id) });
            }
        }
    }
    Observation::of(topology)
}

fn two_nodes() -> Observation {
    machine(&[(4, 1, 8), (4, 1, 8)], &[10, 20, 20, 10])
}

fn request(vcpus: u32, gib: u64, policy: MemoryPolicy) -> Request {
    Request {
        vcpus,
        memory_bytes: gib * GIB,
        page_size: PageSize::Base,
        policy,
        nodes: None,
        near: Vec::new(),
    }
}

fn resident(vcpus: &[u64], gib: &[u64]) -> PartState {
    let by_node = |amounts: &[u64], unit| {
        (0..).map(NodeId).zip(amounts.iter().map(|amount| amount * unit)).collect()
    };
    let claim =
        Claim { bytes: by_node(gib, GIB), vcpus: by_node(vcpus, 1), page_size: PageSize::Base };
    PartState { claim: Some(claim), ..PartState::default() }
}

fn decide(request: &Request, observation: &Observation) -> Decision {
    place(request, observation, &CostModel::default()).unwrap()
}

fn refuse(request: &Request, observation: &Observation) -> Refusal {
    place(request, observation, &CostModel::default()).unwrap_err()
}

/// The claim as (vCPUs, GiB) by node.
fn claimed(candidate: &Candidate) -> Vec<(u32, u64, u64)> {
    let on = |amounts: &crate::ByNode, node| amounts.get(&node).copied().unwrap_or(0);
    let nodes = candidate.claim.nodes();
    nodes
        .iter()
        .map(|n| (n.0, on(&candidate.claim.vcpus, n), on(&candidate.claim.bytes, n) / GIB))
        .collect()
}

#[test]
fn a_domain_that_fits_idle_cores_of_one_node_is_not_slowed_down() {
    let decision = decide(&request(4, 8, MemoryPolicy::Strict), &two_nodes());
    // Nodes 0 and 1 cost the same and have as much left: the lower number wins.
    assert_eq!(decision.chosen.nodes.to_string(), "0");
    assert_eq!(decision.chosen.slow_down, crate::SlowDown::NONE);
    assert_eq!(claimed(&decision.chosen), [(0, 4, 8)]);
    assert_eq!((decision.candidates, decision.exhaustive), (3, true));
    assert_eq!(decision.runners_up[0].nodes.to_string(), "1");
}

#[test]
fn among_equals_the_node_with_fewer_vcpus_a_core_wins_whatever_memory_is_left() {
    let mut seen = two_nodes();
    seen.parts.push(resident(&[1, 0], &[0, 4]));
    let decision = decide(&request(1, 1, MemoryPolicy::Strict), &seen);
    // Node 0 would have 2 vCPUs on 4 cores and 7 GiB left; node 1 has 1 and 3 GiB.
    assert_eq!(decision.chosen.nodes.to_string(), "1");
    assert_eq!(
        (decision.chosen.vcpus_per_core_ppm, decision.chosen.free_after_bytes),
        (Some(250_000), 3 * GIB)
    );
    let other = &decision.runners_up[0];
    assert_eq!((other.slow_down, other.vcpus_per_core_ppm), (crate::SlowDown::NONE, Some(500_000)));
}

#[test]
fn among_equals_the_node_with_more_memory_left_wins() {
    let mut seen = two_nodes();
    seen.parts.push(resident(&[0, 0], &[2, 1]));
    let decision = decide(&request(2, 1, MemoryPolicy::Strict), &seen);
    assert_eq!(decision.chosen.nodes.to_string(), "1");
    assert_eq!(decision.chosen.free_after_bytes, 6 * GIB);
}

#[test]
fn memory_that_needs_two_nodes_is_predicted_half_remote() {
    // 12 GiB on 8 + 8: 2 vCPUs and 6 GiB a node. L = (10 + 20 + 20 + 10) / 4 / 10 = 1.5; 0.6 + 0.4
    // x 1.5 = 1.2.
    let decision = decide(&request(4, 12, MemoryPolicy::Strict), &two_nodes());
    assert_eq!(claimed(&decision.chosen), [(0, 2, 6), (1, 2, 6)]);
    assert_eq!(decision.chosen.slow_down.0, 1_200_000);
}

#[test]
fn a_policy_that_spills_keeps_the_vcpus_together() {
    // All vCPUs and 8 of 10 GiB on node 0, 2 GiB from node 1: L = 0.8 x 1 + 0.2 x 2 = 1.2; 0.6 +
    // 0.48 = 1.08.
    let decision = decide(&request(4, 10, MemoryPolicy::PreferredMany), &two_nodes());
    assert_eq!(decision.chosen.nodes.to_string(), "0");
    assert_eq!(claimed(&decision.chosen), [(0, 4, 8), (1, 0, 2)]);
    assert_eq!(decision.chosen.spilled_bytes, 2 * GIB);
    assert_eq!(decision.chosen.slow_down.0, 1_080_000);
}

#[test]
fn an_smt_sibling_is_not_a_core() {
    // Node 0 has 4 cores with 2 threads. 6 vCPUs there: throughput 4 + 2 x 0.25 = 4.5 cores; 6 /
    // 4.5 = 1.333334. On both nodes each of the 6 has a core, and half of the memory is remote: 0.6
    // + 0.4 x 1.5 = 1.2, which is less.
    let seen = machine(&[(4, 2, 8), (4, 2, 8)], &[10, 20, 20, 10]);
    let decision = decide(&request(6, 4, MemoryPolicy::Strict), &seen);
    assert_eq!(decision.chosen.nodes.to_string(), "0-1");
    assert_eq!(decision.runners_up[0].slow_down.0, 1_333_334);
    // Where the other node is far the siblings are the lesser evil: L = (10 + 40) / 20 = 2.5, 0.6 +
    // 0.4 x 2.5 = 1.6.
    let far = machine(&[(4, 2, 8), (4, 2, 8)], &[10, 40, 40, 10]);
    let decision = decide(&request(6, 4, MemoryPolicy::Strict), &far);
    assert_eq!(decision.chosen.nodes.to_string(), "0");
    assert_eq!(decision.runners_up[1].slow_down.0, 1_600_000);
}

#[test]
fn residents_take_cores_and_promised_memory() {
    let mut seen = two_nodes();
    seen.parts.push(resident(&[3, 0], &[6, 0]));
    // On node 0 5 vCPUs would share 4 cores: 1.25. Node 1 is idle.
    let decision = decide(&request(2, 2, MemoryPolicy::Strict), &seen);
    assert_eq!(decision.chosen.nodes.to_string(), "1");
    // 3 GiB no longer fit node 0 beside the 6 that are promised.
    let on_0 = Request { nodes: Some("0".parse().unwrap()), ..request(2, 3, MemoryPolicy::Strict) };
    let Refusal::DoesNotFit { available_bytes, short_by_bytes, .. } = refuse(&on_0, &seen) else {
        panic!()
    };
    assert_eq!((available_bytes, short_by_bytes), (2 * GIB, GIB));
}

#[test]
fn an_operators_nodes_are_the_home_and_the_alternatives_are_told() {
    let wish =
        Request { nodes: Some("0-1".parse().unwrap()), ..request(2, 2, MemoryPolicy::Strict) };
    let decision = decide(&wish, &two_nodes());
    assert_eq!(decision.chosen.nodes.to_string(), "0-1");
    assert_eq!(claimed(&decision.chosen), [(0, 1, 1), (1, 1, 1)]);
    let others: Vec<String> =
        decision.runners_up.iter().map(|other| other.nodes.to_string()).collect();
    assert_eq!(others, ["0", "1"]);
}

#[test]
fn preferred_fills_one_node_and_then_the_nearest() {
    // Three nodes in a row. All vCPUs run on node 1; 8 GiB there, 4 on node 0 (15), none on node 2
    // (30).
    let seen = machine(&[(4, 1, 8), (4, 1, 8), (4, 1, 8)], &[10, 15, 40, 15, 10, 30, 40, 30, 10]);
    let wish =
        Request { nodes: Some("1".parse().unwrap()), ..request(4, 12, MemoryPolicy::Preferred) };
    assert_eq!(claimed(&decide(&wish, &seen).chosen), [(0, 0, 4), (1, 4, 8)]);
}

#[test]
fn interleaving_spreads_memory_evenly_or_by_bandwidth() {
    let wish =
        Request { nodes: Some("0-1".parse().unwrap()), ..request(1, 6, MemoryPolicy::Interleave) };
    assert_eq!(claimed(&decide(&wish, &two_nodes()).chosen), [(0, 1, 3), (1, 0, 3)]);

    let mut seen = two_nodes();
    seen.topology.performance = vec![bandwidth(0, 20_000), bandwidth(1, 10_000)];
    let wish = Request { policy: MemoryPolicy::WeightedInterleave, ..wish };
    assert_eq!(claimed(&decide(&wish, &seen).chosen), [(0, 1, 4), (1, 0, 2)]);
}

fn bandwidth(node: u32, mb_s: u64) -> Performance {
    Performance {
        access: Access::Access0,
        initiator: NodeId(node),
        target: NodeId(node),
        read_latency_ns: None,
        write_latency_ns: None,
        read_bandwidth_mb_s: Some(mb_s),
        write_bandwidth_mb_s: None,
    }
}

#[test]
fn exhausted_bandwidth_slows_down() {
    // 4 vCPUs draw 8 GB/s from a node that gives 4 GB/s: its latency doubles, 0.6 + 0.4 x 2 = 1.4.
    let mut seen = machine(&[(4, 1, 8)], &[10]);
    seen.topology.performance = vec![bandwidth(0, 4_000)];
    assert_eq!(
        decide(&request(4, 4, MemoryPolicy::Strict), &seen).chosen.parts.memory.0,
        1_400_000
    );
}

#[test]
fn a_domain_lies_near_its_devices() {
    let wish = Request { near: vec![NodeId(1)], ..request(2, 2, MemoryPolicy::Strict) };
    let decision = decide(&wish, &two_nodes());
    assert_eq!(decision.chosen.nodes.to_string(), "1");
    // On node 0 the device is twice as far: 1 + 0.1 x (2 - 1).
    assert_eq!(decision.runners_up[0].parts.devices.0, 1_100_000);
}

#[test]
fn memory_of_a_lower_tier_is_the_last_resort() {
    // Node 2 is slow memory beside node 0, and firmware has figures of neither.
    let mut seen =
        machine(&[(4, 1, 8), (4, 1, 8), (0, 0, 32)], &[10, 30, 14, 30, 10, 30, 14, 30, 10]);
    let homes = |seen: &Observation| {
        [(9, None), (20, None), (9, Some("0,2"))].map(|(gib, nodes)| {
            let nodes = nodes.map(|nodes: &str| nodes.parse().unwrap());
            let request = Request { nodes, ..request(2, gib, MemoryPolicy::Strict) };
            decide(&request, seen).chosen.nodes.to_string()
        })
    };
    assert_eq!(homes(&seen), ["0,2", "0,2", "0,2"], "as near as distances say");
    let tier = |number, nodes: &str| MemoryTier { number, nodes: nodes.parse().unwrap() };
    seen.topology.memory_tiers.tiers = vec![tier(4, "0-1"), tier(22, "2")];
    assert_eq!(homes(&seen), ["0-1", "0,2", "0,2"]);
    // Firmware's figures alone do not do that: a small overflow costs less than remote CPUs.
    seen.topology.memory_tiers.tiers = vec![tier(4, "0-2")];
    assert_eq!(homes(&seen), ["0,2", "0,2", "0,2"]);
}

#[test]
fn memory_only_nodes_join_a_home_when_their_memory_is_needed() {
    // Node 1 is memory without CPUs.
    let seen = machine(&[(4, 1, 8), (0, 0, 32)], &[10, 17, 17, 10]);
    assert_eq!(decide(&request(2, 8, MemoryPolicy::Strict), &seen).chosen.nodes.to_string(), "0");
    let decision = decide(&request(2, 16, MemoryPolicy::Strict), &seen);
    assert_eq!(claimed(&decision.chosen), [(0, 2, 8), (1, 0, 8)]);
    let alone =
        Request { nodes: Some("1".parse().unwrap()), ..request(2, 8, MemoryPolicy::Strict) };
    assert_eq!(refuse(&alone, &seen), NoCpus::on(&"1".parse().unwrap(), &seen.topology).into());
}

#[test]
fn memoryless_nodes_join_a_home_when_their_cpus_are_needed() {
    let seen = machine(&[(2, 1, 8), (8, 1, 0)], &[10, 12, 12, 10]);
    // On node 0 alone 8 vCPUs share 2 cores (4.0); with node 1 each has 0.8 of one, and node 1's is
    // all remote. Spread by load: 10 cores; the loads 1/2 and k/8 are filled up to 0.875: node 0
    // one vCPU, node 1 seven. L = 1/8 x 1 + 7/8 x 1.2 = 1.175; 0.6 + 0.4 x 1.175 = 1.07. Node 1
    // with strict has no memory at all.
    let decision = decide(&request(8, 8, MemoryPolicy::Strict), &seen);
    assert_eq!(claimed(&decision.chosen), [(0, 1, 8), (1, 7, 0)]);
    assert_eq!(decision.chosen.slow_down.0, 1_070_000);
}

#[test]
fn memory_out_of_reach_is_never_used() {
    let seen = machine(&[(4, 1, 8), (4, 1, 8)], &[10, 255, 255, 10]);
    let Refusal::DoesNotFit { available_bytes, .. } =
        refuse(&request(4, 12, MemoryPolicy::Local), &seen)
    else {
        panic!()
    };
    assert_eq!(available_bytes, 8 * GIB);
}

#[test]
fn measured_latency_goes_before_the_slit_and_scales_it() {
    // Node 2 is CXL memory: 240 ns from node 0, its nearest initiator, where local memory takes 80
    // ns.
    let slit = [10, 21, 14, 21, 10, 24, 14, 24, 10];
    let mut seen = machine(&[(4, 1, 8), (4, 1, 8), (0, 0, 64)], &slit);
    let latency = |initiator, target, ns| Performance {
        access: Access::Access1,
        initiator: NodeId(initiator),
        target: NodeId(target),
        read_latency_ns: Some(ns),
        write_latency_ns: None,
        read_bandwidth_mb_s: None,
        write_bandwidth_mb_s: None,
    };
    seen.topology.performance = vec![latency(0, 0, 80), latency(1, 1, 80), latency(0, 2, 240)];
    let view = View::new(&seen, PageSize::Base, 4096, &CostModel::default());
    let latencies =
        |from| -> Vec<u32> { view.latencies_ppm(NodeIndex::at(from)).iter().copied().collect() };
    // From node 1 there is no figure: 3.0 x 24 / 14 = 5.142858. Between the DRAM nodes 1.0 x 21 /
    // 10.
    assert_eq!(latencies(0), [1_000_000, 2_100_000, 3_000_000]);
    assert_eq!(latencies(1), [2_100_000, 1_000_000, 5_142_858]);
}

#[test]
fn huge_pages_come_from_their_pools_in_whole_pages() {
    let mut seen = two_nodes();
    seen.topology.nodes[1].huge_pages =
        vec![HugePagePool { page_bytes: GIB, total_pages: 4, free_pages: 3, surplus_pages: 0 }];
    let wish = |bytes| Request {
        page_size: PageSize::Huge(GIB),
        memory_bytes: bytes,
        ..request(2, 0, MemoryPolicy::Strict)
    };
    // One byte more than 2 GiB needs 3 pages.
    let decision = decide(&wish(2 * GIB + 1), &seen);
    assert_eq!(claimed(&decision.chosen), [(1, 2, 3)]);
    assert_eq!(decision.chosen.claim.page_size, PageSize::Huge(GIB));
    assert!(matches!(
        refuse(&wish(4 * GIB), &seen),
        Refusal::DoesNotFit { available_bytes, .. } if available_bytes == 3 * GIB
    ));
    assert!(matches!(refuse(&wish(5 * GIB), &seen), Refusal::MoreThanMachine { .. }));
    let other = Request { page_size: PageSize::Huge(2 << 20), ..wish(GIB) };
    let known = "its huge pages are of 1 GiB".to_owned();
    assert_eq!(refuse(&other, &seen), Refusal::NoHugePages { page_bytes: 2 << 20, known });
    seen.topology.nodes[1].huge_pages[0].total_pages = 0;
    assert_eq!(refuse(&wish(GIB), &seen), Refusal::NoPool { page_bytes: GIB });
}

#[test]
fn invalid_requests_are_refused() {
    let good = request(1, 1, MemoryPolicy::Strict);
    let known: NodeSet = "0-1".parse().unwrap();
    let cases = [
        (Request { vcpus: 0, ..good.clone() }, Refusal::NoVcpus),
        (Request { memory_bytes: 0, ..good.clone() }, Refusal::NoMemory),
        (
            Request { nodes: Some(NodeSet::new()), ..good.clone() },
            Refusal::NoNodes { known: known.clone() },
        ),
        (
            Request { nodes: Some("0,7".parse().unwrap()), ..good.clone() },
            Refusal::UnknownNode { node: NodeId(7), known: known.clone() },
        ),
        (
            Request { near: vec![NodeId(9)], ..good.clone() },
            Refusal::UnknownNode { node: NodeId(9), known },
        ),
        (
            Request { memory_bytes: 17 * GIB, ..good.clone() },
            Refusal::MoreThanMachine {
                needed_bytes: 17 * GIB,
                machine_bytes: 16 * GIB,
                page_size: PageSize::Base,
            },
        ),
        (
            Request { page_size: PageSize::Huge(0), ..good },
            Refusal::NoHugePages { page_bytes: 0, known: "it has no huge pages".into() },
        ),
    ];
    for (request, expected) in cases {
        assert_eq!(refuse(&request, &two_nodes()), expected);
    }
}

#[test]
fn unknown_memory_is_neither_claimed_nor_taken_for_absent() {
    let mut seen = two_nodes();
    seen.topology.source = "/tables".into();
    let node = &mut seen.topology.nodes[1];
    (node.memory_bytes, node.memory_is_unknown) = (0, true);
    let fits = decide(&request(1, 8, MemoryPolicy::Strict), &seen);
    assert_eq!(claimed(&fits.chosen), [(0, 1, 8)]);
    let said = "9 GiB are more than is known to be there: nothing in /tables tells how much \
                memory there is on node 1";
    assert_eq!(refuse(&request(1, 9, MemoryPolicy::Strict), &seen).to_string(), said);
    let on = |nodes: &str| Request {
        nodes: Some(nodes.parse().unwrap()),
        ..request(1, 8, MemoryPolicy::Strict)
    };
    assert!(matches!(refuse(&on("1"), &seen), Refusal::UnknownMemory { .. }));
    seen.parts.push(resident(&[0, 0], &[1, 0]));
    assert!(
        matches!(refuse(&on("0"), &seen), Refusal::DoesNotFit { .. }),
        "all of node 0 is known"
    );
    assert!(matches!(refuse(&on("0-1"), &seen), Refusal::UnknownMemory { .. }));
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let mut seen = two_nodes();
    seen.parts.push(resident(&[u64::MAX, u64::MAX], &[0, 0]));
    for node in &mut seen.topology.nodes {
        node.memory_bytes = u64::MAX;
    }
    for policy in MemoryPolicy::ALL {
        let most = Request { memory_bytes: u64::MAX, vcpus: u32::MAX, ..request(1, 1, policy) };
        let outcome = place(
            &most,
            &seen,
            &CostModel { vcpu_bandwidth_mb_s: f64::MAX, ..CostModel::default() },
        );
        assert!(outcome.is_ok_and(|decision| decision.chosen.slow_down > crate::SlowDown::NONE));
    }
}

#[test]
fn the_view_agrees_with_the_observation() {
    let mut seen = two_nodes();
    seen.topology.nodes[0].state =
        Some(MemoryState { free_bytes: 5 * GIB, ..MemoryState::default() });
    seen.parts = vec![resident(&[1, 2], &[1, 2]), resident(&[3, 0], &[0, 1])];
    seen.parts[1].resident_bytes.insert(NodeId(1), GIB / 2);
    let view = View::new(&seen, PageSize::Base, 4096, &CostModel::default());
    for node in view.nodes.iter() {
        assert_eq!(node.available_pages, seen.available_bytes(node.id, PageSize::Base) / 4096);
        assert_eq!(node.busy, seen.claimed_vcpus(node.id));
    }
}

#[test]
fn domains_on_a_busy_machine_share_nodes_two_by_two_instead_of_all_spreading() {
    // Four nodes of two cores, near in pairs, and eight domains of two vCPUs: the first four fill
    // the cores. For the fifth, a node with a resident means 1 x (1 + 1 x (1 + 0.05 x 1)) = 2.05.
    // On two nodes it would wait less, 3 vCPUs on 2 cores, but take as much from others: 1 x (1 + 1
    // x (1 + 0.05 x 0.5)) = 2.025, and half of its accesses would go to the neighbour at 15: 2.025
    // x (0.6 + 0.4 x 1.25) = 2.2275.
    let near_in_pairs = [10, 15, 30, 30, 15, 10, 30, 30, 30, 30, 10, 15, 30, 30, 15, 10];
    let mut seen = machine(&[(2, 1, 8); 4], &near_in_pairs);
    let wish = request(2, 2, MemoryPolicy::Strict);
    for number in 0..8 {
        let decision = decide(&wish, &seen);
        let expected = if number < 4 { 1_000_000 } else { 2_050_000 };
        assert_eq!(
            (decision.chosen.nodes.len(), decision.chosen.slow_down.0),
            (1, expected),
            "{number}"
        );
        let claim = Some(decision.chosen.claim);
        seen.parts.push(PartState { id: number.to_string().into(), claim, ..PartState::default() });
    }
    let on_each: Vec<u64> = (0..4).map(|node| seen.claimed_vcpus(NodeId(node))).collect();
    assert_eq!(on_each, [4; 4]);
}
