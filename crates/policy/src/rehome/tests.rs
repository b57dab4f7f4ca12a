use super::*;
use nearside_topology::{Cpu, CpuId, Distances, HugePagePool, Node, ReservedHugePages};

const GIB: u64 = 1 << 30;

fn set(nodes: &[u32]) -> NodeSet {
    nodes.iter().map(|&node| NodeId(node)).collect()
}

fn by_node(gib: &[u64]) -> ByNode {
    gib.iter()
        .enumerate()
        .filter(|(_, gib)| **gib > 0)
        .map(|(node, gib)| (NodeId(node as u32), gib * GIB))
        .collect()
}

/// A strict domain `db` of 2 vCPUs that was promised 4 GiB on node 0 and holds them there.
fn db() -> PartState {
    let home = Home {
        nodes: set(&[0]),
        origin: Origin::Auto,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::Strict,
    };
    let claim = Claim { bytes: by_node(&[4]), vcpus: [(NodeId(0), 2)].into(), ..Claim::default() };
    PartState {
        id: "db".into(),
        home: Some(home),
        claim: Some(claim),
        memory_nodes: Some(set(&[0])),
        resident_bytes: by_node(&[4]),
        ..PartState::default()
    }
}

/// Nodes with two CPUs each and this much free memory in GiB.
fn machine(free_gib: &[u64], domain: PartState) -> Observation {
    let ids: Vec<_> = (0..free_gib.len() as u32).map(NodeId).collect();
    let node =
        |(&id, &gib): (&NodeId, &u64)| Node { id, memory_bytes: gib * GIB, ..Node::default() };
    let topology = Topology {
        nodes: ids.iter().zip(free_gib).map(node).collect(),
        cpus: ids
            .iter()
            .flat_map(|&id| [0, 1].map(|cpu| Cpu::new(CpuId(2 * id.0 + cpu), id)))
            .collect(),
        distances: Distances::uniform(&ids),
        ..Topology::default()
    };
    Observation { topology, parts: vec![domain], reservations: Vec::new() }
}

fn moving(nodes: &[u32]) -> Rehome {
    Rehome {
        part: "db".into(),
        affinity: None,
        nodes: set(nodes),
        move_memory: true,
        rate_bytes_per_s: Some(GIB),
    }
}

fn staying(nodes: &[u32]) -> Rehome {
    Rehome { move_memory: false, ..moving(nodes) }
}

fn words(wish: &Rehome, observation: &Observation) -> Vec<String> {
    let Plan { transaction, moves, afterwards, .. } = rehome(wish, observation).unwrap();
    let steps = transaction.steps.iter().map(|step| step.action.to_string());
    let moves = moves.iter().map(|step| step.action.to_string());
    let afterwards = afterwards.iter().flat_map(|transaction| &transaction.steps);
    steps.chain(moves).chain(afterwards.map(|step| step.action.to_string())).collect()
}

#[test]
fn a_strict_domain_moves_while_both_homes_are_allowed() {
    let expected = [
        "claim node 1: 2 vCPUs, 4 GiB",
        "allow memory on nodes 0-1 only",
        "run on CPUs 2-3 for the time being",
        "make node 1 the home",
        "move pages to node 1, at most 1 GiB/s",
        "allow memory on node 1 only",
    ];
    assert_eq!(words(&moving(&[1]), &machine(&[8; 4], db())), expected);
}

#[test]
fn without_its_memory_it_keeps_the_right_to_both_homes() {
    let expected = [
        "claim node 1: 2 vCPUs, 4 GiB",
        "allow memory on nodes 0-1 only",
        "run on CPUs 2-3 for the time being",
        "make node 1 the home",
    ];
    let observation = machine(&[8; 4], db());
    assert_eq!(words(&staying(&[1]), &observation), expected);
    let limits = rehome(&staying(&[1]), &observation).unwrap().limits;
    assert!(limits.iter().any(|limit| limit.contains("until it is moved")), "{limits:?}");
}

#[test]
fn the_home_it_has_is_no_change_and_needs_no_remarks() {
    let plan = rehome(&staying(&[0]), &machine(&[8; 4], db())).unwrap();
    assert_eq!(plan.limits, [""; 0]);
    assert_eq!(plan.transaction.steps[0].reason.to_string(), "the home stays node 0");
}

#[test]
fn a_move_that_was_broken_off_goes_on_where_it_was() {
    // Its home is the new one already; half its memory still lies on the old one.
    let mut half = db();
    half.home = Some(home_after(&moving(&[1]), half.home.as_ref()));
    half.claim = half.claim.map(|claim| Claim {
        bytes: by_node(&[0, 4]),
        vcpus: [(NodeId(1), 2)].into(),
        ..claim
    });
    half.memory_nodes = Some(set(&[0, 1]));
    half.resident_bytes = by_node(&[2, 2]);
    let observation = machine(&[8; 4], half);
    let steps = words(&moving(&[1]), &observation);
    assert!(
        steps.contains(&"allow memory on nodes 0-1 only".into()),
        "narrowing first would move all at once: {steps:?}"
    );
    assert_eq!(steps.last().unwrap(), "allow memory on node 1 only");
    let elsewhere = words(&moving(&[2]), &observation);
    assert!(elsewhere.contains(&"allow memory on nodes 0-2 only".into()), "{elsewhere:?}");
}

#[test]
fn only_policies_that_confine_touch_cpuset_mems() {
    for policy in MemoryPolicy::ALL {
        let mut domain = db();
        domain.home = domain.home.map(|home| Home { policy, ..home });
        domain.memory_nodes = policy.confines().then(|| set(&[0]));
        let steps = words(&moving(&[1]), &machine(&[8; 4], domain));
        assert_eq!(
            steps.iter().filter(|step| step.starts_with("allow")).count(),
            2 * usize::from(policy.confines())
        );
        assert!(steps.iter().any(|step| step.starts_with("move pages")), "{policy}");
    }
}

#[test]
fn growing_into_a_larger_home_moves_and_narrows_nothing() {
    let expected = [
        "claim node 0: 1 vCPU, 2 GiB; node 1: 1 vCPU, 2 GiB",
        "allow memory on nodes 0-1 only",
        "run on CPUs 0-3 for the time being",
        "make nodes 0-1 the home",
        "move pages to nodes 0-1, at most 1 GiB/s",
    ];
    // Node 0 has 4 GiB free beside the 4 GiB that the domain holds there.
    assert_eq!(words(&moving(&[0, 1]), &machine(&[4, 8], db())), expected);
}

#[test]
fn a_confined_domain_must_fit_its_new_home() {
    let needed = |wish: &Rehome, observation: Observation| match rehome(wish, &observation) {
        Err(RehomeRefusal::DoesNotFit { needed_bytes, available_bytes, .. }) => {
            Some((needed_bytes / GIB, available_bytes / GIB))
        }
        _ => None,
    };
    assert_eq!(needed(&moving(&[1]), machine(&[8, 3], db())), Some((4, 3)));
    assert_eq!(needed(&moving(&[1]), machine(&[8, 4], db())), None);
    // Memory that is there already needs no room; memory beyond the claim does.
    let mut beyond = db();
    beyond.resident_bytes = by_node(&[5, 3]);
    assert_eq!(needed(&moving(&[1]), machine(&[8, 5], beyond.clone())), None);
    assert_eq!(needed(&moving(&[1]), machine(&[8, 4], beyond)), Some((8, 7)));
    // Memory that stays for now needs its place as well, because the daemon brings it home later.
    assert_eq!(needed(&staying(&[1]), machine(&[8, 1], db())), Some((4, 1)));
    assert_eq!(needed(&staying(&[1]), machine(&[8, 4], db())), None);
}

#[test]
fn reservations_of_others_do_not_block_an_exchange_of_pages() {
    let refusal = |claim_gib, reserved| {
        let mut domain = db();
        let claim = Claim {
            bytes: by_node(&[claim_gib]),
            page_size: PageSize::Huge(GIB),
            ..Claim::default()
        };
        domain.claim = Some(claim);
        let mut seen = machine(&[8, 8], domain);
        for (node, free_pages) in seen.topology.nodes.iter_mut().zip([1, 6]) {
            node.huge_pages = vec![HugePagePool {
                page_bytes: GIB,
                total_pages: 8,
                free_pages,
                surplus_pages: 0,
            }];
        }
        seen.topology.reserved_huge_pages =
            vec![ReservedHugePages { page_bytes: GIB, pages: reserved }];
        rehome(&moving(&[1]), &seen).err()
    };
    // 7 pages are free. Moving the 4 pages on node 0 frees as many as it takes, so the reservation
    // of the 7 does not matter.
    assert_eq!(refusal(4, 7), None);
    // The 2 untouched pages need free ones.
    assert_eq!(refusal(6, 5), None);
    let too_small = RehomeRefusal::DoesNotFit {
        nodes: set(&[1]),
        needed_bytes: 6 * GIB,
        available_bytes: 4 * GIB,
    };
    assert_eq!(refusal(6, 7), Some(too_small));
}

#[test]
fn other_policies_may_overflow() {
    let mut domain = db();
    domain.home = domain.home.map(|home| Home { policy: MemoryPolicy::Preferred, ..home });
    assert!(rehome(&moving(&[1]), &machine(&[8, 1], domain)).is_ok());
}

#[test]
fn invalid_homes_are_refused() {
    let mut observation = machine(&[8, 8, 8, 0], db());
    observation.topology.cpus.retain(|cpu| cpu.node != Some(NodeId(2)));
    let refusal = |nodes: &[u32]| rehome(&moving(nodes), &observation).unwrap_err();
    assert_eq!(refusal(&[]), RehomeRefusal::NoNodes(set(&[0, 1, 2, 3])));
    assert_eq!(
        refusal(&[1, 7]),
        RehomeRefusal::UnknownNodes { unknown: set(&[7]), known: set(&[0, 1, 2, 3]) }
    );
    assert_eq!(refusal(&[2]), NoCpus::on(&set(&[2]), &observation.topology).into());
    assert_eq!(refusal(&[3]), RehomeRefusal::NoMemory(set(&[3])));
    let stranger = Rehome { part: "web".into(), ..moving(&[1]) };
    assert_eq!(rehome(&stranger, &observation), Err(RehomeRefusal::UnknownDomain("web".into())));
}

#[test]
fn memory_goes_to_nodes_that_have_some_and_cpus_to_those_that_have_them() {
    let expected = [
        "claim node 1: 2 vCPUs; node 2: 4 GiB",
        "allow memory on nodes 0,2 only",
        "run on CPUs 2-3 for the time being",
        "make nodes 1-2 the home",
        "move pages to node 2, at most 1 GiB/s",
        "allow memory on node 2 only",
    ];
    let mut observation = machine(&[8, 0, 8], db());
    observation.topology.cpus.retain(|cpu| cpu.node != Some(NodeId(2)));
    assert_eq!(words(&moving(&[1, 2]), &observation), expected);
}

#[test]
fn hard_affinity_stays_the_operators() {
    let mut domain = db();
    domain.home = domain.home.map(|home| Home { affinity: Affinity::Hard, ..home });
    let steps = words(&moving(&[1]), &machine(&[8; 2], domain));
    assert!(steps.contains(&"run on CPUs 2-3 only".into()), "{steps:?}");
}

#[test]
fn on_one_node_nothing_is_done() {
    assert_eq!(words(&moving(&[0]), &machine(&[8], db())), [""; 0]);
}

#[test]
fn an_operators_choice_of_home_is_remembered_as_one() {
    let before = db().home;
    let after = home_after(&moving(&[2, 3]), before.as_ref());
    assert_eq!(
        (after.nodes, after.origin, after.policy),
        (set(&[2, 3]), Origin::Explicit, MemoryPolicy::Strict)
    );
}

#[test]
fn huge_pages_are_claimed_whole() {
    let mut domain = db();
    domain.home = domain.home.map(|home| Home { policy: MemoryPolicy::Preferred, ..home });
    domain.claim = domain.claim.map(|claim| Claim { page_size: PageSize::Huge(GIB), ..claim });
    let plan = rehome(&moving(&[1, 2]), &machine(&[8; 3], domain)).unwrap();
    let Some(Action::Claim { claim, .. }) = plan.transaction.steps.first().map(|step| &step.action)
    else {
        panic!("{plan:?}")
    };
    assert_eq!(claim.total_bytes(), 4 * GIB);
    assert!(claim.bytes.values().all(|bytes| bytes % GIB == 0), "{claim:?}");
}

#[test]
fn a_domain_is_not_confined_to_nodes_that_are_full() {
    let partly = |why, interrupted| Outcome::Partly {
        moved_bytes: 1,
        stayed: [(why, 1)].into(),
        interrupted,
    };
    for why in [StayedWhy::Busy, StayedWhy::MappedElsewhere, StayedWhy::Device, StayedWhy::Other] {
        assert!(may_go_on(&partly(why, false)), "{why:?}");
        assert!(!may_go_on(&partly(why, true)), "{why:?}");
    }
    assert!(!may_go_on(&partly(StayedWhy::NoRoom, false)));
    assert!(!may_go_on(&partly(StayedWhy::NoHugePage, false)));
    assert!(may_go_on(&Outcome::Applied { moved_bytes: 0 }));
    assert!(!may_go_on(&Outcome::Refused { why: String::new() }));
}

#[test]
fn later_processes_get_the_policy_of_the_new_home() {
    let observation = machine(&[8, 8, 0], db());
    let claim = Claim { bytes: by_node(&[1, 3]), ..Claim::default() };
    let nodes = |policy| {
        let home = Home {
            nodes: set(&[0, 1, 2]),
            origin: Origin::Explicit,
            affinity: Affinity::Soft,
            policy,
        };
        later_policy_nodes(&home, &claim, &observation.topology)
    };
    assert_eq!(nodes(MemoryPolicy::Strict), Some(set(&[0, 1])));
    assert_eq!(nodes(MemoryPolicy::Preferred), Some(set(&[1])));
    assert_eq!(nodes(MemoryPolicy::Local), Some(NodeSet::new()));
    assert_eq!(nodes(MemoryPolicy::Restrictive), None);
}
