mod reservations;

use super::*;
use crate::{Affinity, CgroupId, Claim, MemoryPolicy, Origin, Reason, Reservation};
use nearside_topology::{HugePagePool, MemoryState, Node, NodeSet, ReservedHugePages, Topology};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn by_node(mib: &[u64]) -> ByNode {
    let amounts = mib.iter().enumerate().filter(|(_, mib)| **mib > 0);
    amounts.map(|(node, mib)| (NodeId(node as u32), mib * MIB)).collect()
}

fn home(node: u32) -> Home {
    Home {
        nodes: NodeSet::from([NodeId(node)]),
        origin: Origin::Auto,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::PreferredMany,
    }
}

fn claim(mib: &[u64]) -> Claim {
    Claim { bytes: by_node(mib), ..Claim::default() }
}

/// A part on `node` with this claim and this resident memory, in MiB by node.
fn part(name: &str, node: u32, claimed: &[u64], resident: &[u64]) -> PartState {
    PartState {
        id: name.into(),
        cgroup: CgroupId(7),
        home: Some(home(node)),
        claim: Some(claim(claimed)),
        resident_bytes: by_node(resident),
        ..PartState::default()
    }
}

/// Nodes with this much free memory in MiB.
fn machine(free_mib: &[u64], parts: Vec<PartState>) -> Observation {
    let node = |(id, mib): (usize, &u64)| Node {
        id: NodeId(id as u32),
        memory_bytes: 1024 * MIB,
        state: Some(MemoryState { free_bytes: mib * MIB, ..MemoryState::default() }),
        ..Node::default()
    };
    let nodes = free_mib.iter().enumerate().map(node).collect();
    let topology = Topology { nodes, ..Topology::default() };
    Observation { parts, ..Observation::of(topology) }
}

fn step(action: Action) -> Step {
    Step { action, reason: Reason::Placed }
}

/// Claim and home of a part that goes to `node`.
fn going(name: &str, node: u32, claimed: &[u64]) -> Vec<Step> {
    let part = PartId::from(name);
    vec![
        step(Action::Claim { part: part.clone(), claim: claim(claimed) }),
        step(Action::SetHome { part, home: home(node) }),
    ]
}

#[test]
fn a_first_home_gives_a_found_part_no_claim() {
    let found = PartState { home: None, claim: None, ..part("vm", 0, &[0], &[0, 300]) };
    let seen = machine(&[500, 500], vec![found]);
    let steps = going("vm", 1, &[0, 300]);
    let after = seen.clone().after(&Transaction::new(steps.clone(), &seen));
    let found = after.part(&"vm".into()).unwrap();
    assert_eq!((&found.home, &found.claim), (&Some(home(1)), &None));
    // Nearside starts the other, with the same steps.
    let create = step(Action::Create { part: "db".into(), limits: Default::default() });
    let steps = [vec![create], going("db", 1, &[0, 300])].concat();
    let after = seen.clone().after(&Transaction::new(steps, &seen));
    let started = after.part(&"db".into()).unwrap();
    assert_eq!((&started.home, &started.claim), (&Some(home(1)), &Some(claim(&[0, 300]))));
}

#[test]
fn a_new_home_needs_the_whole_claim_there() {
    let seen = machine(&[0, 500], vec![part("a", 0, &[400], &[400])]);
    let transaction = Transaction::new(going("a", 1, &[0, 400]), &seen);
    assert_eq!(transaction.needs.memory, [(PageSize::Base, by_node(&[0, 400]))]);
    assert_eq!(transaction.check(&seen), Ok(()));
}

#[test]
fn an_exchange_needs_only_the_difference() {
    // Node 1: 400 MiB arrive and 300 leave. Node 0: 300 arrive and 400 leave.
    let parts = vec![part("a", 0, &[400], &[400]), part("b", 1, &[0, 300], &[0, 300])];
    let seen = machine(&[0, 100], parts);
    let steps = [going("a", 1, &[0, 400]), going("b", 0, &[300])].concat();
    let transaction = Transaction::new(steps, &seen);
    assert_eq!(transaction.needs.memory, [(PageSize::Base, by_node(&[0, 100]))]);
    assert_eq!(transaction.subjects().len(), 2);
    assert_eq!(transaction.check(&seen), Ok(()));
}

#[test]
fn memory_that_another_start_took_meanwhile_drops_the_transaction() {
    let seen = machine(&[0, 500], vec![part("a", 0, &[400], &[400])]);
    let transaction = Transaction::new(going("a", 1, &[0, 400]), &seen);
    let mut fresh = seen.clone();
    fresh.parts.push(part("new", 1, &[0, 200], &[]));
    let unmet = transaction.check(&fresh).unwrap_err();
    assert_eq!(unmet.to_string(), "node 1 has 300 MiB available by now and 400 MiB are needed");
    // So does a reservation that belongs to no domain.
    let mut reserved = seen.clone();
    let bytes = by_node(&[0, 101]);
    reserved.reservations.push(Reservation { name: "libc".into(), bytes, ..Default::default() });
    assert!(matches!(transaction.check(&reserved), Err(Unmet::Memory { .. })));
}

#[test]
fn a_part_that_ended_was_replaced_or_moved_drops_the_transaction() {
    let seen = machine(&[0, 500], vec![part("a", 0, &[100], &[100])]);
    let transaction = Transaction::new(going("a", 1, &[0, 100]), &seen);
    let unmet = |change: fn(&mut PartState)| {
        let mut fresh = seen.clone();
        change(&mut fresh.parts[0]);
        transaction.check(&fresh).unwrap_err()
    };
    assert_eq!(unmet(|part| part.cgroup = CgroupId(8)), Unmet::Replaced("a".into()));
    assert_eq!(unmet(|part| part.id = "b".into()), Unmet::Ended("a".into()));
    let rehomed = unmet(|part| part.home = Some(home(1)));
    assert_eq!(rehomed.to_string(), "another command has changed the home of a to node 1");
}

#[test]
fn a_name_that_was_taken_meanwhile_drops_the_start() {
    let create = Action::Create { part: "db".into(), limits: Default::default() };
    let empty = machine(&[500], Vec::new());
    let transaction = Transaction::new(vec![step(create)], &empty);
    assert_eq!(transaction.check(&empty), Ok(()));
    let taken = machine(&[500], vec![part("db", 0, &[], &[])]);
    assert_eq!(transaction.check(&taken), Err(Unmet::NameTaken("db".into())));
}

/// Two domains exchange homes while one of them has given memory back, which a new domain claims.
#[test]
fn memory_that_left_since_the_decision_counts_when_it_is_checked() {
    let parts = vec![part("a", 0, &[400], &[400]), part("b", 1, &[0, 300], &[0, 500])];
    let seen = machine(&[0, 0], parts);
    let steps = [going("a", 1, &[0, 400]), going("b", 0, &[300])].concat();
    let transaction = Transaction::new(steps, &seen);
    assert_eq!(transaction.check(&seen), Ok(()), "500 MiB leave node 1");
    let mut parts = seen.parts.clone();
    parts[1].resident_bytes = by_node(&[0, 300]);
    parts.push(part("new", 1, &[0, 200], &[]));
    // 400 arrive and 300 leave, and the 200 that are free are claimed.
    let unmet = transaction.check(&machine(&[0, 200], parts)).unwrap_err().to_string();
    assert_eq!(unmet, "node 1 has 0 bytes available by now and 100 MiB are needed");
}

/// Two nodes with this many free pages of 1 GiB, of which others have reserved some on no node.
fn huge_pages(free_pages: u64, reserved_pages: u64, parts: Vec<PartState>) -> Observation {
    const GIB: u64 = 1 << 30;
    let mut seen = machine(&[0, 0], parts);
    for node in &mut seen.topology.nodes {
        let (page_bytes, total_pages) = (GIB, free_pages);
        node.huge_pages =
            vec![HugePagePool { page_bytes, total_pages, free_pages, surplus_pages: 0 }];
    }
    seen.topology.reserved_huge_pages =
        vec![ReservedHugePages { page_bytes: GIB, pages: reserved_pages }];
    for part in &mut seen.parts {
        part.claim.as_mut().unwrap().page_size = PageSize::Huge(GIB);
    }
    seen
}

fn going_in_huge_pages(name: &str, node: u32, claimed_gib: &[u64]) -> Vec<Step> {
    let in_mib: Vec<u64> = claimed_gib.iter().map(|gib| gib * 1024).collect();
    let mut steps = going(name, node, &in_mib);
    let Action::Claim { claim, .. } = &mut steps[0].action else { panic!("a claim") };
    claim.page_size = PageSize::Huge(1 << 30);
    steps
}

#[test]
fn reserved_huge_pages_count_for_all_nodes_together() {
    // 8 pages are free, and 3 of them reserved. Each node has 3 to give, but not both.
    let seen = huge_pages(4, 3, vec![part("a", 0, &[0], &[0])]);
    let steps = going_in_huge_pages("a", 0, &[3, 3]);
    let unmet = Transaction::new(steps, &seen).check(&seen).unwrap_err().to_string();
    let expected = "nodes 0-1 have 5 GiB available by now and 6 GiB are needed";
    assert!(unmet.starts_with(expected), "{unmet}");
    let steps = going_in_huge_pages("a", 0, &[3, 2]);
    assert_eq!(Transaction::new(steps, &seen).check(&seen), Ok(()));
}

#[test]
fn huge_pages_that_a_part_gives_back_serve_the_reservations_of_others() {
    // The part has touched none of its 8 pages on node 0.
    let seen = huge_pages(8, 2, vec![part("a", 0, &[8 * 1024], &[])]);
    let transaction = Transaction::new(going_in_huge_pages("a", 1, &[0, 8]), &seen);
    assert_eq!(transaction.check(&seen), Ok(()));
}

/// Random machines of four nodes with domains that hold parts of their claims.
fn machines() -> impl Strategy<Value = Observation> {
    let domain = (0..4_usize, 1..200_u64, 0..=100_u64);
    let domains = proptest::collection::vec(domain, 1..8);
    (domains, proptest::collection::vec(0..600_u64, 4)).prop_map(|(domains, spare)| {
        let mut free = spare;
        let parts = domains.into_iter().enumerate().map(|(n, (node, claimed, percent))| {
            let mut on = [0; 4];
            on[node] = claimed;
            let mut resident = [0; 4];
            resident[node] = claimed * percent / 100;
            // Room for the rest of the claim.
            free[node] += claimed - resident[node];
            part(&format!("d{n}"), node as u32, &on, &resident)
        });
        let parts: Vec<_> = parts.collect();
        machine(&free, parts)
    })
}

/// Memory that is free, less memory that is claimed and not resident, on the fullest node.
fn is_overcommitted(seen: &Observation) -> bool {
    seen.topology.nodes.iter().any(|node| {
        let free = node.state.as_ref().map_or(0, |state| state.free_bytes);
        let on = |part: &PartState| part.outstanding_bytes().get(&node.id).copied().unwrap_or(0);
        let reserved: u64 = seen.parts.iter().map(on).sum();
        // Memory that leaves the node makes room.
        let leaving = seen.parts.iter().map(|part| match &part.home {
            Some(home) if !home.nodes.contains(node.id) => {
                part.resident_bytes.get(&node.id).copied().unwrap_or(0)
            }
            _ => 0,
        });
        reserved > free + leaving.sum::<u64>()
    })
}

/// A domain gives memory back.
fn shrink(seen: &mut Observation, at: usize, kept_percent: u64) {
    let at = at % seen.parts.len();
    for (node, bytes) in &mut seen.parts[at].resident_bytes {
        let kept = *bytes * kept_percent / 100;
        let its = seen.topology.nodes.iter_mut().find(|it| it.id == *node).unwrap();
        its.state.as_mut().unwrap().free_bytes += *bytes - kept;
        *bytes = kept;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Plans from an old observation: a transaction whose needs hold in the present one never
    /// overcommits a node, and a transaction is applied as a whole.
    #[test]
    fn checked_transactions_never_overcommit_a_node(
        start in machines(),
        plans in
            proptest::collection::vec(
                (0..8_usize, 0..8_usize, 0..4_u32, any::<bool>(), 0..=100_u64),
                1..20,
            ),
    ) {
        let mut now = start.clone();
        prop_assert!(!is_overcommitted(&now));
        for (one, other, to, is_exchange, kept_percent) in plans {
            shrink(&mut now, other, kept_percent);
            // Every plan is made from the first observation, as if all were late.
            let at = |n: usize| start.parts[n % start.parts.len()].clone();
            let node_of = |part: &PartState| part.home.as_ref().unwrap().nodes.first().unwrap().0;
            let bytes = |part: &PartState, node: u32| {
                let mut on = [0; 4];
                on[node as usize] = part.claim.as_ref().unwrap().total_bytes() / MIB;
                going(&part.id.to_string(), node, &on)
            };
            let (one, other) = (at(one), at(other));
            let steps = match is_exchange && one.id != other.id {
                true => [bytes(&one, node_of(&other)), bytes(&other, node_of(&one))].concat(),
                false => bytes(&one, to),
            };
            let transaction = Transaction::new(steps, &start);
            if transaction.check(&now).is_ok() {
                now = now.after(&transaction);
                prop_assert!(!is_overcommitted(&now), "{transaction:?}");
                for id in transaction.parts() {
                    let part = now.part(id).unwrap();
                    let nodes = part.claim.as_ref().unwrap().nodes();
                    prop_assert_eq!(&nodes, &part.home.as_ref().unwrap().nodes);
                }
            }
        }
    }
}

#[test]
fn memory_that_a_process_moves_has_not_arrived() {
    let seen = machine(&[500, 500], vec![part("db", 1, &[0, 300], &[0, 300])]);
    let nodes = NodeSet::from([NodeId(1)]);
    let confine = Action::ConfineMemory { part: "db".into(), nodes };
    let arrived = Step { action: confine.clone(), reason: Reason::Arrived };
    let policy = MemoryPolicy::Strict;
    let own = Step { action: confine, reason: Reason::PolicyConfines { policy } };
    let mut moved = seen.clone();
    moved.parts[0].mover = Some(731);
    let cases = [
        (&arrived, &seen, Ok(())),
        (&arrived, &moved, Err(Unmet::HasMover { part: "db".into(), pid: 731 })),
        // The mover's own step.
        (&own, &moved, Ok(())),
    ];
    for (step, fresh, expected) in cases {
        let transaction = Transaction::new(vec![step.clone()], &seen);
        assert_eq!(transaction.check(fresh), expected, "{}", step.reason);
    }
    let said = Unmet::HasMover { part: "db".into(), pid: 731 }.to_string();
    assert_eq!(said, "process 731 moves the memory of db");
}
