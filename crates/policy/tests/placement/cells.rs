//! Placement of cells against its definition, on random machines.

use crate::{
    assert_same,
    machines::{Random, case},
    naive_cells,
};
use nearside_policy::{
    CellRequest, CellsDecision, CellsMethod, CellsRefusal, CellsRequest, CostModel, Observation,
    PageSize, Refusal, place, place_cells, place_cells_with,
};
use nearside_topology::Distance;
use std::collections::BTreeSet;

/// A machine of so many nodes and a virtual machine of so many cells, which has a fair chance to
/// fit it. Every other one has equal cells.
fn guest(random: &mut Random, nodes: u64, cells: u64) -> (CellsRequest, Observation, CostModel) {
    let (request, seen, mut model) = case(random, nodes);
    if random.percent(50) {
        model.cell_share = random.between(0, 1000) as f64 / 1000.0;
    }
    let alike = random.percent(50);
    let one = |random: &mut Random| {
        let part = |random: &mut Random, whole: u64| match alike {
            true => whole.div_ceil(cells),
            false => random.between(1, (2 * whole).div_ceil(cells)),
        };
        let page_size = match random.percent(90) {
            true => request.page_size,
            false => PageSize::Base,
        };
        CellRequest {
            vcpus: part(random, request.vcpus.into()) as u32,
            memory_bytes: part(random, request.memory_bytes),
            page_size,
            near: if random.percent(80) { Vec::new() } else { request.near.clone() },
        }
    };
    let each: Vec<CellRequest> = (0..cells).map(|_| one(random)).collect();
    let mut distance =
        || -> Distance { if random.percent(5) { 255 } else { random.between(10, 60) as Distance } };
    let table: Vec<Vec<Distance>> =
        (0..cells).map(|_| (0..cells).map(|_| distance()).collect()).collect();
    let distances = random.percent(70).then_some(table);
    let nodes = request.nodes.filter(|_| random.percent(50));
    (CellsRequest { cells: each, distances, policy: request.policy, nodes }, seen, model)
}

fn assert_within_what_is_available(decision: &CellsDecision, seen: &Observation) {
    let sizes: BTreeSet<PageSize> =
        decision.cells.iter().map(|it| it.home.claim.page_size).collect();
    for size in sizes {
        let alike = || decision.cells.iter().filter(|it| it.home.claim.page_size == size);
        let claimed = |of: &dyn Fn(&nearside_policy::Claim) -> u64| -> u64 {
            alike().map(|it| of(&it.home.claim)).sum()
        };
        for node in &seen.topology.nodes {
            let bytes = claimed(&|claim| claim.bytes.get(&node.id).copied().unwrap_or(0));
            assert!(bytes <= seen.available_bytes(node.id, size), "node {}", node.id);
        }
        assert!(claimed(&|claim| claim.total_bytes()) <= seen.available(size).total_bytes());
    }
}

/// Placement of cells equals brute force on 2,000 random machines of up to 5 nodes.
#[test]
fn cells_equal_brute_force_on_2_000_random_machines() {
    let (mut placed, mut spilled, mut fits_one) = (0, 0, 0);
    let (mut shared, mut refused) = (0, 0);
    for seed in 0..2_000 {
        let mut random = Random(seed);
        let (nodes, cells) = (random.between(1, 5), random.between(2, 3));
        let (request, seen, model) = guest(&mut random, nodes, cells);
        println!("seed {seed}: {request:?}");
        let naming = seen.naming(request.nodes.as_ref());
        let decision = match place_cells(&request, &seen, &model) {
            Ok(decision) => decision,
            Err(CellsRefusal::Cell { refusal: Refusal::NoHugePages { .. }, .. }) => continue,
            Err(refusal) => {
                let best = naive_cells::best(&request, &naming, &model);
                assert!(best.is_none(), "{refusal}");
                refused += 1;
                continue;
            }
        };
        let (best, sharing) = naive_cells::best(&request, &naming, &model).unwrap();
        assert!(decision.exhaustive);
        assert_eq!(decision.slow_down.0, best.slow_down);
        assert_eq!(decision.between_ppm, best.between);
        for (cell, home) in decision.cells.iter().zip(&best.homes) {
            let mut home = home.clone();
            // ADR 12 has its own figure.
            home.free_after_bytes = cell.home.free_after_bytes;
            assert_same(&cell.home, &home);
            assert_eq!(cell.spill.is_some(), home.nodes.len() > 1);
            let alone = cell.spill.and_then(|spill| spill.alone);
            assert!(alone.is_none_or(|alone| alone.slow_down >= decision.slow_down));
            fits_one += u32::from(alone.is_some());
        }
        assert_eq!(decision.shared, best.shared());
        assert!(sharing || decision.shared.is_empty());
        assert_within_what_is_available(&decision, &seen);
        placed += 1;
        spilled += u32::from(decision.cells.iter().any(|cell| cell.spill.is_some()));
        shared += u32::from(!decision.shared.is_empty());
    }
    println!("{placed} placed, {spilled} with a spilled cell, {shared} shared, {refused} refused");
    assert!(placed > 1_000 && spilled > 100 && shared > 100 && refused > 100 && fits_one > 10);
}

/// The search, forced upon machines whose arrangements can all be evaluated, is measured against
/// the best of these. The figures are in docs/performance/decisions.md.
#[test]
fn the_search_for_cells_is_near_the_best() {
    let mut excess = Vec::new();
    let (mut seed, mut shared_for_nothing, mut refused_for_nothing) = (2_000_000, 0, 0);
    while excess.len() < 1_000 {
        seed += 1;
        let mut random = Random(seed);
        let (nodes, cells) = match random.percent(50) {
            true => (random.between(6, 8), 4),
            false => (random.between(9, 16), 3),
        };
        let (mut request, seen, model) = guest(&mut random, nodes, cells);
        request.nodes = None;
        let best = place_cells(&request, &seen, &model);
        let found = place_cells_with(CellsMethod::Search, &request, &seen, &model);
        let (Ok(best), Ok(found)) = (&best, &found) else {
            assert!(found.is_err(), "seed {seed}");
            refused_for_nothing += u32::from(best.is_ok());
            continue;
        };
        assert!(best.exhaustive && !found.exhaustive);
        assert_within_what_is_available(found, &seen);
        if best.shared.is_empty() && !found.shared.is_empty() {
            shared_for_nothing += 1;
            continue;
        }
        assert!(found.slow_down >= best.slow_down, "seed {seed}");
        excess.push(found.slow_down.factor() / best.slow_down.factor() - 1.0);
    }
    excess.sort_by(f64::total_cmp);
    let within =
        |bound: f64| excess.partition_point(|&excess| excess <= bound) as f64 / excess.len() as f64;
    let worst = excess.last().unwrap();
    println!(
        "the best: {:.2} %, within 1 %: {:.2} %, within 2 %: {:.2} %, worst: {:.1} % slower; \
         {shared_for_nothing} shared nodes and {refused_for_nothing} were refused without need",
        within(0.0) * 100.0,
        within(0.01) * 100.0,
        within(0.02) * 100.0,
        worst * 100.0,
    );
    assert!(within(0.0) >= 0.96 && within(0.02) >= 0.99 && *worst <= 0.1);
    assert_eq!((shared_for_nothing, refused_for_nothing), (0, 0));
}

/// The numbers of cells are names: another order of the same cells costs the same.
#[test]
fn the_order_of_cells_does_not_matter() {
    let mut compared = 0;
    for seed in 3_000_000..3_001_000 {
        let mut random = Random(seed);
        let (nodes, cells) = (random.between(2, 6), random.between(2, 4) as usize);
        let (request, seen, model) = guest(&mut random, nodes, cells as u64);
        let turn = random.between(1, cells as u64 - 1) as usize;
        let mut turned = request.clone();
        turned.cells.rotate_left(turn);
        if let Some(rows) = &mut turned.distances {
            rows.rotate_left(turn);
            rows.iter_mut().for_each(|row| row.rotate_left(turn));
        }
        let [one, other] =
            [&request, &turned].map(|request| place_cells(request, &seen, &model).ok());
        assert_eq!(one.is_some(), other.is_some(), "seed {seed}");
        let Some((one, other)) = one.zip(other) else { continue };
        assert_eq!(one.shared.is_empty(), other.shared.is_empty(), "seed {seed}");
        // Equal cells that begin on one node take it in the order of their numbers.
        if one.shared.is_empty() {
            assert_eq!((one.slow_down, one.between_ppm), (other.slow_down, other.between_ppm));
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn a_virtual_machine_of_one_cell_gets_what_place_gives_a_part() {
    let mut placed = 0;
    for seed in 4_000_000..4_001_000 {
        let mut random = Random(seed);
        let nodes = random.between(1, 8);
        let (part, seen, model) = case(&mut random, nodes);
        let cell = CellRequest {
            vcpus: part.vcpus,
            memory_bytes: part.memory_bytes,
            page_size: part.page_size,
            near: part.near.clone(),
        };
        let request = CellsRequest {
            cells: vec![cell],
            distances: None,
            policy: part.policy,
            nodes: part.nodes.clone(),
        };
        match (place(&part, &seen, &model), place_cells(&request, &seen, &model)) {
            (Ok(part), Ok(cells)) => {
                assert_eq!(part.chosen, cells.cells[0].home, "seed {seed}");
                assert_eq!(part.chosen.slow_down, cells.slow_down);
                placed += 1;
            }
            (Err(refused), Err(CellsRefusal::Cell { refusal, .. })) => assert_eq!(refused, refusal),
            (part, cells) => panic!("seed {seed}: {part:?} {cells:?}"),
        }
    }
    assert!(placed > 500, "{placed}");
}
