//! Plans applied in transactions, some of which are refused, beside starts that take memory in
//! between.

use crate::{
    machine::{INTERVAL_NS, decide},
    machines::Random,
};
use nearside_policy::{
    Affinity, ByNode, CgroupId, Claim, ControlObservation, History, Home, MemoryPolicy, NodeLoad,
    Observation, Origin, PageMove, PageSize, PartLoad, PartState, Reservation, Transaction, Tuning,
    outstanding,
};
use nearside_topology::{Cpu, CpuId, Distances, MemoryState, Node, NodeId, NodeSet, Topology};

const CASES: u64 = 400;
const ROUNDS: u64 = 20;
const MIB: u64 = 1 << 20;

/// Numbers of transactions by outcome.
#[derive(Debug, Default)]
struct Ends {
    applied: u64,
    exchanges: u64,
    refused: u64,
    dropped: u64,
    moves: u64,
}

fn free_mut(seen: &mut Observation, node: NodeId) -> &mut u64 {
    let node = seen.topology.nodes.iter_mut().find(|it| it.id == node).unwrap();
    &mut node.state.as_mut().unwrap().free_bytes
}

/// A random machine of 2 to 5 nodes on which all claims and reservations fit.
fn machine(random: &mut Random) -> ControlObservation {
    let ids: Vec<NodeId> = (0..random.between(2, 5) as u32).map(NodeId).collect();
    let node = |&id: &NodeId| {
        let state = MemoryState { free_bytes: 0, ..MemoryState::default() };
        Node { id, memory_bytes: 4096 * MIB, state: Some(state), ..Node::default() }
    };
    let cpus =
        ids.iter().flat_map(|&id| (0..2).map(move |cpu| Cpu::new(CpuId(id.0 * 2 + cpu), id)));
    let topology = Topology {
        nodes: ids.iter().map(node).collect(),
        cpus: cpus.collect(),
        distances: Distances::uniform(&ids),
        ..Topology::default()
    };
    let mut seen = Observation::of(topology);
    for number in 0..random.between(1, 8) {
        let part = part(random, &ids, number);
        for (node, bytes) in part.outstanding_bytes() {
            *free_mut(&mut seen, node) += bytes;
        }
        seen.parts.push(part);
    }
    for &id in &ids {
        if random.percent(30) {
            let bytes = random.between(1, 300) * MIB;
            *free_mut(&mut seen, id) += bytes;
            let (name, page_size) = (format!("copy-{id}"), PageSize::Base);
            let bytes = [(id, bytes)].into();
            seen.reservations.push(Reservation { name, bytes, page_size, ..Default::default() });
        }
        *free_mut(&mut seen, id) += random.between(0, 600) * MIB;
    }
    let soft_affinity = random.percent(80);
    ControlObservation {
        length_ns: INTERVAL_NS,
        machine: seen,
        soft_affinity,
        ..ControlObservation::default()
    }
}

/// A part with a home and a claim, or one that was found.
fn part(random: &mut Random, ids: &[NodeId], number: u64) -> PartState {
    let (home, other) = (random.one_of(ids), random.one_of(ids));
    let claimed = random.between(1, 400) * MIB;
    let mut resident_bytes = ByNode::new();
    *resident_bytes.entry(home).or_default() += random.between(0, claimed / 2);
    *resident_bytes.entry(other).or_default() += random.between(0, claimed / 2);
    let mut state = PartState {
        id: format!("d{number}").into(),
        cgroup: CgroupId(number),
        resident_bytes,
        ..PartState::default()
    };
    if random.percent(30) {
        let unmapped = random.between(0, state.resident_bytes[&other]);
        state.unmapped_bytes = [(other, unmapped)].into();
    }
    if random.percent(80) {
        let bytes = [(home, claimed)].into();
        state.claim = Some(Claim { bytes, vcpus: [(home, 1)].into(), ..Claim::default() });
        state.home = Some(Home {
            nodes: NodeSet::from([home]),
            origin: if random.percent(10) { Origin::Explicit } else { Origin::Auto },
            affinity: Affinity::Soft,
            policy: random.one_of(&MemoryPolicy::ALL),
        });
    }
    state
}

/// An interval: each part demands much or little, for a while, and runs at home or on one other
/// node.
fn run(random: &mut Random, seen: &mut ControlObservation) {
    seen.interval += 1;
    seen.loads.clear();
    let ids: Vec<NodeId> = seen.machine.topology.nodes.iter().map(|node| node.id).collect();
    for part in &seen.machine.parts {
        let number = part.cgroup.0;
        let demand = (number + seen.interval / 10) % 4;
        let at = match (&part.home, (number + seen.interval / 7) % 3) {
            (Some(home), 1..) => home.nodes.first().unwrap(),
            _ => ids[number as usize % ids.len()],
        };
        let load = PartLoad {
            over_ns: INTERVAL_NS,
            cpu_ns: [(at, demand * INTERVAL_NS)].into(),
            waited_ns: random.between(0, demand) * INTERVAL_NS / 2,
            ..PartLoad::default()
        };
        seen.loads.insert(part.id.clone(), load);
    }
    for &id in &ids {
        let busy_ns = random.between(0, 4) * INTERVAL_NS / 2;
        seen.nodes.insert(id, NodeLoad { busy_ns, ..NodeLoad::default() });
    }
}

/// A start between plan and transaction: a new part claims memory that is available.
fn start(random: &mut Random, seen: &mut Observation, number: u64) {
    let ids: Vec<NodeId> = seen.topology.nodes.iter().map(|node| node.id).collect();
    let node = random.one_of(&ids);
    let bytes = seen.available_bytes(node, PageSize::Base) / 10 * 9;
    if bytes == 0 || seen.parts.len() > 12 {
        return;
    }
    let mut new = part(random, &[node], number);
    new.resident_bytes.clear();
    new.unmapped_bytes.clear();
    if let Some(claim) = &mut new.claim {
        claim.bytes = [(node, bytes)].into();
    }
    seen.parts.push(new);
}

/// Claims and reservations fit on every node: those that are not resident yet are no more than
/// allocatable memory and memory that is on its way to another home. A part that holds more than it
/// claimed on one node is owed less on others (ADR 1), by at most that excess.
fn check(seen: &Observation) {
    let excess = |part: &PartState| -> u64 {
        let claimed = part.claim.iter().flat_map(|claim| &claim.bytes);
        let held = |node| part.resident_bytes.get(node).copied().unwrap_or(0);
        claimed.map(|(node, &bytes)| held(node).saturating_sub(bytes)).sum()
    };
    let excess: u64 = seen.parts.iter().map(excess).sum();
    for node in &seen.topology.nodes {
        let on = |by_node: &ByNode| by_node.get(&node.id).copied().unwrap_or(0);
        let claimed = seen.parts.iter().filter_map(|part| {
            let claim = part.claim.as_ref()?;
            Some(on(&outstanding(claim, &part.resident_bytes, &part.staying_bytes())))
        });
        let reserved = seen.reservations.iter().map(|reservation| on(&reservation.bytes));
        let needed: u64 = claimed.chain(reserved).sum();
        let is_leaving = |part: &&PartState| {
            part.home.as_ref().is_some_and(|home| !home.nodes.contains(node.id))
        };
        let leaving = seen
            .parts
            .iter()
            .filter(is_leaving)
            .map(|part| on(&part.resident_bytes).saturating_sub(on(&part.staying_bytes())));
        let there = node.state.as_ref().unwrap().free_bytes + leaving.sum::<u64>() + excess;
        assert!(needed <= there, "node {}: {needed} of {there} bytes: {seen:#?}", node.id);
    }
}

/// Applies all of a transaction, or none of it.
fn apply(random: &mut Random, seen: &mut Observation, transaction: &Transaction, ends: &mut Ends) {
    let before = seen.clone();
    if transaction.check(seen).is_err() {
        ends.dropped += 1;
        return;
    }
    // A step that is refused takes back those before it.
    if random.percent(25) {
        let applied = random.between(0, transaction.steps.len() as u64 - 1) as usize;
        transaction.steps[..applied].iter().for_each(|step| seen.change(&step.action));
        *seen = before;
        ends.refused += 1;
        return;
    }
    *seen = seen.clone().after(transaction);
    // A found part has no claim.
    for (part, before) in seen.parts.iter_mut().zip(&before.parts) {
        part.claim = part.claim.take().filter(|_| before.claim.is_some());
    }
    ends.applied += 1;
    ends.exchanges += u64::from(transaction.subjects().len() > 1);
}

fn move_pages(random: &mut Random, seen: &mut Observation, pages: &PageMove) {
    let batch = pages.batch.unwrap();
    let (from, to) = (batch.from, pages.nodes.first().unwrap());
    let part = seen.parts.iter_mut().find(|part| part.id == pages.part).unwrap();
    // A transaction that was applied meanwhile may have changed the home: then nothing moves.
    if !part.home.as_ref().unwrap().nodes.contains(to) {
        return;
    }
    let staying = part.staying_bytes().get(&from).copied().unwrap_or(0);
    let held = part.resident_bytes.get_mut(&from).unwrap();
    let bytes = random.between(0, batch.max_bytes).min(held.saturating_sub(staying));
    *held -= bytes;
    *part.resident_bytes.entry(to).or_default() += bytes;
    *free_mut(seen, from) += bytes;
    let free = free_mut(seen, to);
    *free = free.checked_sub(bytes).unwrap();
}

#[test]
fn claims_and_reservations_never_exceed_a_node_whatever_is_refused() {
    let mut ends = Ends::default();
    for seed in 0..CASES {
        let mut random = Random(seed);
        let mut seen = machine(&mut random);
        let tuning = Tuning { horizon_intervals: 1_000_000, ..Tuning::default() };
        let mut history = History::default();
        println!("seed {seed}");
        check(&seen.machine);
        for round in 0..ROUNDS {
            run(&mut random, &mut seen);
            // Some memory is moved by a command now and then.
            for (at, part) in seen.machine.parts.iter_mut().enumerate() {
                part.mover = (at + round as usize).is_multiple_of(5).then_some(731);
            }
            let (plan, next) = decide(&tuning, &seen, &history);
            history = next;
            let has_mover = |part| seen.machine.part(part).unwrap().mover.is_some();
            assert!(!plan.moves.iter().any(|step| has_mover(&step.action.part)));
            // Pages move first, then starts and transactions: any order must hold.
            for step in &plan.moves {
                move_pages(&mut random, &mut seen.machine, &step.action);
                check(&seen.machine);
                ends.moves += 1;
            }
            if random.percent(50) {
                start(&mut random, &mut seen.machine, 100 + round);
                check(&seen.machine);
            }
            for transaction in &plan.transactions {
                apply(&mut random, &mut seen.machine, transaction, &mut ends);
                check(&seen.machine);
            }
        }
    }
    println!("{ends:?}");
    let Ends { applied, exchanges, refused, dropped, moves } = ends;
    assert!(applied > 500 && exchanges > 5 && refused > 100 && dropped > 20 && moves > 1000);
}
