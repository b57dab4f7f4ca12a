//! The invariants of the loop, on random machines with random domains, loads and histories, likely
//! and impossible ones.

use crate::{
    machine::{INTERVAL_NS, decide},
    machines::{Random, case},
};
use nearside_policy::{
    Action, Affinity, ByNode, ControlObservation, ControlPlan, History, Home, MemoryPolicy,
    MoveReport, NodeLoad, Origin, Owner, PageMove, PageSize, PartId, PartLoad, Reason, StayedWhy,
    Tuning, allocatable,
};
use nearside_topology::{NodeId, NodeSet};
use std::collections::{BTreeMap, BTreeSet};

const CASES: u64 = 1500;
const ROUNDS: u64 = 24;

/// A random machine with random domains, of which some have homes.
fn observation(random: &mut Random) -> (Tuning, ControlObservation) {
    let nodes = random.between(1, 8);
    let (_, mut machine, model) = case(random, nodes);
    let ids: Vec<NodeId> = machine.topology.nodes.iter().map(|node| node.id).collect();
    let some = |random: &mut Random| -> NodeSet {
        (0..random.between(1, 2))
            .map(|_| ids[random.between(0, ids.len() as u64 - 1) as usize])
            .collect()
    };
    for (number, domain) in machine.parts.iter_mut().enumerate() {
        domain.id = format!("d{number}").into();
        if random.percent(80) {
            let nodes = some(random);
            let origin = if random.percent(30) { Origin::Explicit } else { Origin::Auto };
            let affinity = if random.percent(20) { Affinity::Hard } else { Affinity::Soft };
            domain.home =
                Some(Home { nodes, origin, affinity, policy: random.one_of(&MemoryPolicy::ALL) });
        } else {
            // A pattern found it.
            domain.claim = None;
        }
        if random.percent(20) {
            domain.memory_nodes = Some(some(random));
        }
        if random.percent(30) {
            let held = domain.resident_bytes.iter();
            domain.unmapped_bytes =
                held.map(|(&node, &bytes)| (node, random.between(0, bytes))).collect();
        }
    }
    let soft_affinity = random.percent(60);
    let seen = ControlObservation {
        length_ns: INTERVAL_NS,
        machine,
        soft_affinity,
        ..ControlObservation::default()
    };
    (Tuning { model, ..Tuning::default() }, seen)
}

/// The events of an interval, likely or not.
fn happen(random: &mut Random, seen: &mut ControlObservation) {
    let ids: Vec<NodeId> = seen.machine.topology.nodes.iter().map(|node| node.id).collect();
    seen.loads.clear();
    seen.moved.clear();
    for domain in &seen.machine.parts {
        if random.percent(10) {
            continue;
        }
        // Most run where they ran before, so that contention lasts.
        let steady = domain.id.domain().len() as u64
            + domain.home.as_ref().map_or(0, |home| home.nodes.len() as u64);
        let mut cpu_ns = ByNode::new();
        for _ in 0..2 {
            let at = if random.percent(80) { steady } else { random.next() };
            cpu_ns.insert(ids[at as usize % ids.len()], random.between(0, 4) * INTERVAL_NS);
        }
        let owner = random.one_of(&[
            Owner::Nearside,
            Owner::Nearside,
            Owner::Systemd,
            Owner::SystemdUnit,
            Owner::Kubelet,
        ]);
        let bound_to = random.percent(5).then(|| [ids[0]].into_iter().collect());
        let waited_ns = random.between(0, 2) * INTERVAL_NS;
        let near = if random.percent(10) { vec![ids[0]] } else { Vec::new() };
        let (has_cpuset, has_cells) = (random.percent(5), random.percent(5));
        let load = PartLoad {
            over_ns: INTERVAL_NS,
            cpu_ns,
            waited_ns,
            owner,
            bound_to,
            has_cpuset,
            has_cells,
            near,
        };
        seen.loads.insert(domain.id.clone(), load);
        if random.percent(20) {
            let stayed = [(StayedWhy::Busy, random.between(0, 1 << 30))].into();
            let from = random.one_of(&ids);
            let moved_bytes = random.between(0, 1) << 20;
            seen.moved.push(MoveReport { part: domain.id.clone(), from, moved_bytes, stayed });
        }
    }
    for &id in &ids {
        let busy_ns = random.between(0, 8) * INTERVAL_NS;
        let allocation_stalls = random.between(0, 9) / 9;
        seen.nodes.insert(id, NodeLoad { busy_ns, allocation_stalls, ..NodeLoad::default() });
    }
    seen.memory_stall_ppm = random.percent(50).then(|| random.between(0, 150_000));
    seen.interval += 1;
}

fn apply(plan: &ControlPlan, seen: &mut ControlObservation) {
    for step in plan.steps() {
        let find =
            |part: &PartId| seen.machine.parts.iter().position(|state| state.id == *part).unwrap();
        match &step.action {
            Action::Claim { part, claim } => {
                // A found domain has no claim.
                let at = find(part);
                if let Some(now) = &mut seen.machine.parts[at].claim {
                    *now = claim.clone();
                }
            }
            Action::SetHome { part, home } => {
                let at = find(part);
                seen.machine.parts[at].home = Some(home.clone());
            }
            Action::ConfineMemory { part, nodes } => {
                let at = find(part);
                seen.machine.parts[at].memory_nodes = Some(nodes.clone());
            }
            _ => {}
        }
    }
}

/// All claims on each node in pages of one size, and the memory held by the domains with claims.
fn claimed(seen: &ControlObservation) -> BTreeMap<(String, NodeId), (u128, u128)> {
    let mut sums: BTreeMap<_, (u128, u128)> = BTreeMap::new();
    for domain in &seen.machine.parts {
        let Some(claim) = &domain.claim else { continue };
        for node in &seen.machine.topology.nodes {
            let on = |by_node: &ByNode| u128::from(by_node.get(&node.id).copied().unwrap_or(0));
            let sum = sums.entry((format!("{:?}", claim.page_size), node.id)).or_default();
            sum.0 += on(&claim.bytes);
            sum.1 += on(&domain.resident_bytes);
        }
    }
    sums
}

fn check(tuning: &Tuning, before: &ControlObservation, plan: &ControlPlan) {
    let topology = &before.machine.topology;
    let state = |part: &PartId| before.machine.part(part).unwrap();
    if topology.nodes.len() <= 1 {
        assert!(plan.is_empty());
    }
    let mut arriving: BTreeMap<(String, NodeId), u128> = BTreeMap::new();
    let mut on_the_way: BTreeMap<(NodeId, NodeId), u128> = BTreeMap::new();
    for step in plan.steps() {
        let domain = state(step.action.part().unwrap());
        let load = &before.loads[&domain.id];
        let is_explicit = domain.home.as_ref().is_some_and(|home| home.origin == Origin::Explicit);
        let is_bound = load.bound_to.as_ref().is_some_and(|bound| *bound != topology.node_set());
        match &step.action {
            Action::SetHome { home, .. } => {
                assert!(!is_explicit, "an operator's home was changed");
                // Another program never binds a domain that Nearside started.
                assert!(domain.home.is_none() || !is_bound || domain.claim.is_none());
                assert!(
                    !is_bound
                        || Some(&home.nodes) == load.bound_to.as_ref()
                            && home.origin == Origin::Adopted
                );
                assert!(!home.nodes.is_empty() && home.nodes.is_subset(&topology.node_set()));
                let policy = domain.home.as_ref().map(|home| (home.policy, home.affinity));
                let was_adopted =
                    domain.home.as_ref().is_some_and(|home| home.origin == Origin::Adopted);
                assert!(
                    is_bound
                        || was_adopted
                        || policy.is_none_or(|before| before == (home.policy, home.affinity))
                );
            }
            Action::Claim { .. } => assert!(!is_explicit),
            Action::BindCpus { cpus, .. } => {
                assert!(!is_explicit && !is_bound && !cpus.is_empty());
                assert!(load.owner.lets_bind() && !load.has_cpuset && !load.has_cells);
            }
            Action::ConfineMemory { nodes, .. } => {
                assert!(load.owner.lets_bind());
                assert!(!nodes.is_empty() && nodes.is_subset(&topology.memory_nodes()));
            }
            other => panic!("{other}"),
        }
    }
    for step in &plan.moves {
        let PageMove { part, nodes, batch, rate_bytes_per_s } = &step.action;
        let (domain, batch) = (state(part), batch.unwrap());
        let to = nodes.first().unwrap();
        assert!(nodes.len() == 1 && domain.home.as_ref().unwrap().nodes.contains(to));
        assert!(!domain.home.as_ref().unwrap().nodes.contains(batch.from));
        assert!(domain.memory_nodes.as_ref().is_none_or(|allowed| allowed.contains(to)));
        assert!(batch.max_bytes <= domain.resident_bytes[&batch.from] && batch.max_bytes > 0);
        assert!(rate_bytes_per_s.unwrap() <= tuning.rate_bytes_per_s);
        let page_size = domain.claim.as_ref().map_or(PageSize::Base, |claim| claim.page_size);
        *arriving.entry((format!("{page_size:?}"), to)).or_default() += u128::from(batch.max_bytes);
        *on_the_way.entry((batch.from, to)).or_default() += u128::from(batch.max_bytes);
        let room = allocatable(topology.node(to).unwrap(), page_size).allocatable_bytes;
        assert!(
            arriving[&(format!("{page_size:?}"), to)] <= u128::from(room),
            "more moves than there is room"
        );
    }
    let budget =
        u128::from(tuning.rate_bytes_per_s) * u128::from(tuning.interval_ns) / 1_000_000_000;
    assert!(on_the_way.values().all(|&bytes| bytes <= budget), "{on_the_way:?}");

    let mut after = before.clone();
    apply(plan, &mut after);
    let sums_before = claimed(before);
    for ((page_size, node), (claims, held)) in claimed(&after) {
        let claims_before = sums_before.get(&(page_size.clone(), node)).map_or(0, |sums| sums.0);
        if claims > claims_before {
            let sizes = after
                .machine
                .parts
                .iter()
                .filter_map(|domain| Some(domain.claim.as_ref()?.page_size));
            let size = sizes.into_iter().find(|size| format!("{size:?}") == page_size).unwrap();
            // A found domain has no claim, but its memory moves in an exchange.
            let swaps = |name: &PartId| {
                plan.steps().any(|it| {
                    matches!(it.reason, Reason::Exchange { .. }) && it.action.part() == Some(name)
                })
            };
            let found = after
                .machine
                .parts
                .iter()
                .filter(|domain| domain.claim.is_none() && swaps(&domain.id));
            let left: u64 = found.filter_map(|domain| domain.resident_bytes.get(&node)).sum();
            let there =
                u128::from(allocatable(topology.node(node).unwrap(), size).allocatable_bytes)
                    + held;
            let there = there + u128::from(left);
            assert!(claims <= there, "node {node}: {claims} bytes are promised, {there} are there");
        }
    }
}

#[test]
fn invariants_hold_on_random_machines() {
    let (mut rehomed, mut swapped, mut first, mut moved) = (0, 0, 0, 0);
    for seed in 0..CASES {
        let mut random = Random(seed);
        let (tuning, mut seen) = observation(&mut random);
        let mut history = History::default();
        let mut last_moves: BTreeMap<PartId, Vec<u64>> = BTreeMap::new();
        println!("seed {seed}");
        for _ in 0..ROUNDS {
            happen(&mut random, &mut seen);
            let (plan, next) = decide(&tuning, &seen, &history);
            assert_eq!(
                (&plan, &next),
                (&decide(&tuning, &seen, &history).0, &decide(&tuning, &seen, &history).1)
            );
            check(&tuning, &seen, &plan);
            let text = serde_json::to_string(&next).unwrap();
            assert_eq!(serde_json::from_str::<History>(&text).unwrap(), next);
            if seed % 50 == 0 {
                let text = serde_json::to_string(&seen).unwrap();
                assert_eq!(serde_json::from_str::<ControlObservation>(&text).unwrap(), seen);
                serde_json::to_string(&plan).unwrap();
            }
            let mut once = BTreeSet::new();
            moved += plan.moves.len();
            for step in plan.steps() {
                assert!(!step.action.to_string().is_empty() && !step.reason.to_string().is_empty());
                let Action::SetHome { part: domain, .. } = &step.action else {
                    continue;
                };
                assert!(once.insert(domain), "{domain} got two homes at once");
                match step.reason {
                    Reason::PaysBack { .. } => rehomed += 1,
                    Reason::Exchange { .. } => swapped += 1,
                    _ => {
                        first += 1;
                        continue;
                    }
                }
                let moves = last_moves.entry(domain.clone()).or_default();
                let apart = moves.last().map(|last| seen.interval - last);
                assert!(
                    apart.is_none_or(|apart| apart >= tuning.cooldown_intervals),
                    "{moves:?} {}",
                    seen.interval
                );
                moves.push(seen.interval);
            }
            for (name, domain) in &next.parts {
                assert!(domain.next_sample > seen.interval || !seen.loads.contains_key(name));
                // Bounded, and shares of one whole, apart from rounding.
                assert!(
                    domain.share_ppm.values().sum::<u64>() <= 1_000_000 && domain.stuck.len() <= 8
                );
            }
            apply(&plan, &mut seen);
            history = next;
        }
    }
    println!(
        "{first} first homes, {rehomed} re-homed, {swapped} swapped, {moved} batches of pages"
    );
    assert!(first > 500 && rehomed > 500 && swapped > 20 && moved > 5000);
}

/// Replaces numbers in a recorded observation or history by extreme ones.
fn spoil(random: &mut Random, value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Number(number) if number.is_u64() && random.percent(25) => {
            *value = random.one_of(&[0, 1, u64::MAX, u64::MAX / 2, u64::from(u32::MAX)]).into();
        }
        serde_json::Value::Array(values) => {
            values.iter_mut().for_each(|value| spoil(random, value))
        }
        serde_json::Value::Object(values) => {
            values.values_mut().for_each(|value| spoil(random, value))
        }
        _ => {}
    }
}

#[test]
fn impossible_figures_do_no_harm() {
    let mut read = 0;
    for seed in 0..2000 {
        let mut random = Random(seed);
        let (mut tuning, mut seen) = observation(&mut random);
        if random.percent(30) {
            let share = random.one_of(&[0.0, -1.0, f64::NAN, f64::INFINITY, 1e300]);
            tuning.model.memory_share = share;
            tuning.model.vcpu_bandwidth_mb_s = share;
            let number = |random: &mut Random| random.one_of(&[0, 1, 2, u64::MAX]);
            (tuning.interval_ns, tuning.horizon_intervals) =
                (number(&mut random), number(&mut random));
            (tuning.threshold_intervals, tuning.cooldown_intervals) =
                (number(&mut random), number(&mut random));
            (tuning.idle_sample_intervals, tuning.rate_bytes_per_s) =
                (number(&mut random), number(&mut random));
            (tuning.move_cost_ns_per_mib, tuning.min_gain_ppm) =
                (number(&mut random), number(&mut random));
        }
        let mut history = History::default();
        for _ in 0..3 {
            happen(&mut random, &mut seen);
            let mut spoilt = serde_json::to_value(&seen).unwrap();
            // Node numbers stay as they are, or nothing could be read.
            let nodes = spoilt["machine"]["topology"].clone();
            if random.percent(50) {
                spoil(&mut random, &mut spoilt);
            }
            spoilt["machine"]["topology"] = nodes;
            for node in spoilt["machine"]["topology"]["nodes"].as_array_mut().unwrap() {
                for key in ["memory_bytes", "state", "zones", "huge_pages"] {
                    spoil(&mut random, &mut node[key]);
                }
            }
            let Ok(spoilt) = serde_json::from_value::<ControlObservation>(spoilt) else { continue };
            read += 1;
            let (plan, next) = decide(&tuning, &spoilt, &history);
            assert_eq!(decide(&tuning, &spoilt, &history), (plan.clone(), next.clone()));
            for step in plan.steps() {
                assert!(!step.to_owned().reason.to_string().is_empty());
            }
            let mut text = serde_json::to_value(&next).unwrap();
            assert_eq!(serde_json::from_value::<History>(text.clone()).unwrap(), next);
            spoil(&mut random, &mut text);
            history = serde_json::from_value(text).unwrap_or(next);
        }
    }
    println!("{read} spoilt observations");
    assert!(read > 2000);
}

#[test]
fn an_empty_machine_has_an_empty_plan() {
    let (plan, history) =
        decide(&Tuning::default(), &ControlObservation::default(), &History::default());
    assert!(plan.is_empty());
    assert_eq!(history, History::default());
}

/// A name that occurs twice, and domains that were not sampled: no decision concerns them.
#[test]
fn parts_without_a_sample_are_left_alone() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let (tuning, mut seen) = observation(&mut random);
        happen(&mut random, &mut seen);
        if let Some(first) = seen.machine.parts.first().cloned() {
            seen.machine.parts.push(first);
        }
        seen.loads.retain(|name, _| name.domain().ends_with(['0', '2', '4']));
        let (plan, _) = decide(&tuning, &seen, &History::default());
        for step in plan.steps() {
            assert!(seen.loads.contains_key(step.action.part().unwrap()));
        }
    }
}
