//! The scenarios of the repository, on the lab's machines.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use nearside_simulator::{Contender, Options, Simulation, Unsuited, scenario, simulate};
use nearside_topology::{Distances, Topology, machine_file};
use std::{fs, path::PathBuf};

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn machine(name: &str) -> Topology {
    machine_file::read(&repository(&format!("lab/machines/{name}.toml"))).unwrap().topology
}

fn options() -> Options {
    Options { contenders: Contender::ALL.to_vec(), max_seconds: 600, seed: 1, hmat: false }
}

fn play(scenario: &str, topology: &Topology) -> Simulation {
    let scenario = scenario::read(&repository(&format!("scenarios/{scenario}.toml"))).unwrap();
    simulate(topology, &scenario, &options()).unwrap()
}

#[test]
fn every_scenario_runs_on_every_small_machine() {
    for scenario in fs::read_dir(repository("scenarios")).unwrap() {
        let scenario = scenario::read(&scenario.unwrap().path()).unwrap();
        assert!(!scenario.description.is_empty(), "{}", scenario.source);
        for name in ["chain", "one-node", "opteron-8-asymmetric-small", "pairs", "x460-small"] {
            let simulation = simulate(&machine(name), &scenario, &options()).unwrap();
            for played in &simulation.played {
                assert!(played.is_done, "{} on {name} under {}", scenario.source, played.contender);
            }
        }
    }
}

#[test]
fn memory_bound_domains_are_faster_with_homes() {
    let simulation = play("warehouse-16", &machine("x460-small"));
    let [stock, pins, nearside] = &simulation.played[..] else { unreachable!() };
    assert!(simulation.against_stock(nearside).unwrap() > 1.3 && stock.local_ppm < Some(800_000));
    assert!(simulation.of_bound(nearside).unwrap() > 0.97);
    assert_eq!(
        (pins.local_ppm, nearside.local_ppm, nearside.moved_bytes()),
        (Some(1_000_000), Some(1_000_000), 0)
    );
}

#[test]
fn the_loop_gives_homes_to_domains_that_grow() {
    let simulation = play("skewed-16", &machine("x460-small"));
    let [_, pins, nearside] = &simulation.played[..] else { unreachable!() };
    assert!(
        nearside.elapsed_ns < pins.elapsed_ns
            && nearside.home_changes() > 0
            && nearside.moved_bytes() > 0
    );
    assert_eq!(nearside.home_changes(), nearside.decided.len() as u64);
}

#[test]
fn a_domain_wider_than_a_node_keeps_its_lines_local() {
    let text = "[[domain]]\nname = \"wide\"\nthreads = 4\nthread_memory_mib = 16\nrounds = 5000\n\
                compute_us = 10\nlines = 3000";
    let scenario = scenario::parse("wide.toml", text).unwrap();
    for hmat in [false, true] {
        let nearside = Options { contenders: vec![Contender::Nearside], hmat, ..options() };
        let simulation = simulate(&machine("x460-small"), &scenario, &nearside).unwrap();
        let of_bound = simulation.of_bound(&simulation.played[0]).unwrap();
        assert!(of_bound > 0.97, "{of_bound} {hmat}");
    }
}

#[test]
fn contenders_are_equal_on_one_node() {
    let simulation = play("warehouse-8", &machine("one-node"));
    for played in &simulation.played {
        assert_eq!((played.local_ppm, played.home_changes()), (Some(1_000_000), 0));
        assert!(simulation.of_bound(played).unwrap() > 0.97, "{}", played.contender);
    }
}

#[test]
fn time_limit_leaves_work_undone() {
    let scenario = scenario::read(&repository("scenarios/warehouse-16.toml")).unwrap();
    let simulation =
        simulate(&machine("x460-small"), &scenario, &Options { max_seconds: 1, ..options() })
            .unwrap();
    for played in &simulation.played {
        assert_eq!(
            (played.is_done, played.elapsed_ns, played.mean_domain_ns()),
            (false, 1_000_000_000, None)
        );
        assert!(played.work_ns < simulation.work_ns && simulation.of_bound(played).is_none());
    }
}

#[test]
fn domain_that_never_started_is_reported() {
    let mut scenario = scenario::read(&repository("scenarios/warehouse-8.toml")).unwrap();
    scenario.domains[0].start_ms = 3000;
    let simulation =
        simulate(&machine("x460-small"), &scenario, &Options { max_seconds: 1, ..options() })
            .unwrap();
    for played in &simulation.played {
        let names: Vec<_> = played.domains.iter().map(|domain| domain.name.as_str()).collect();
        assert_eq!((names.len(), &names[..2]), (8, ["warehouse-0", "warehouse-1"].as_slice()));
        let late = &played.domains[0];
        assert_eq!(
            (late.start_ns, late.done_ns, late.cpu_ns, late.local_ppm),
            (3_000_000_000, None, 0, None)
        );
        assert!(played.domains[1].cpu_ns > 0 && !played.is_done);
    }
}

/// Grace-Hopper and GB200 have 255 between the nodes of their GPUs' memory.
#[test]
fn distances_that_no_cpu_uses_may_be_unreachable() {
    let scenario = scenario::read(&repository("scenarios/warehouse-8.toml")).unwrap();
    let mut topology = Topology { performance: Vec::new(), ..machine("pairs") };
    let ids: Vec<_> = topology.nodes.iter().map(|node| node.id).collect();
    // Node 2 has memory alone, node 3 neither CPUs nor memory.
    topology.cpus.retain(|cpu| cpu.node < Some(ids[2]));
    topology.nodes[3].memory_bytes = 0;
    let rows = [[10, 21, 40, 255], [21, 10, 60, 255], [40, 60, 10, 255], [255, 255, 255, 10]];
    topology.distances = Distances::new(&ids, &rows.concat()).unwrap();
    let result = simulate(&topology, &scenario, &options()).unwrap();
    for played in &result.played {
        assert!(played.is_done && played.elapsed_ns >= result.bound_ns, "{}", played.contender);
    }
}

#[test]
fn machine_with_unknown_figures_is_refused() {
    let scenario = scenario::read(&repository("scenarios/warehouse-8.toml")).unwrap();
    let refused =
        |topology: &Topology| simulate(topology, &scenario, &options()).unwrap_err().to_string();
    let plain = Topology { performance: Vec::new(), ..machine("pairs") };

    let no_distances = Topology { distances: Distances::default(), ..plain.clone() };
    assert!(refused(&no_distances).ends_with(
        "expected latencies or distances of 4 nodes, found none: name a --machine file"
    ));
    let mut no_cpus = plain.clone();
    no_cpus.cpus.clear();
    assert!(refused(&no_cpus).ends_with("expected a machine with online CPUs, found none"));
    let mut unknown = plain.clone();
    unknown.nodes[2].memory_is_unknown = true;
    assert!(refused(&unknown).ends_with("but that of node 2 is unknown"));
    let ids: Vec<_> = plain.nodes.iter().map(|node| node.id).collect();
    let distances =
        Distances::new(&ids, &[[10; 4], [10; 4], [10; 4], [10, 255, 10, 10]].concat()).unwrap();
    let unreachable =
        simulate(&Topology { distances, ..plain.clone() }, &scenario, &options()).unwrap_err();
    let expected =
        Unsuited::Unreachable { machine: plain.source.clone(), from: ids[3], to: ids[1] };
    assert_eq!(unreachable, expected.into());

    let mut small = plain;
    small.nodes.iter_mut().for_each(|node| node.memory_bytes = 16 << 20);
    assert!(
        refused(&small).starts_with("no memory left for warehouse-2 under stock: 16 MiB too few"),
        "{}",
        refused(&small)
    );
    let nearside = Options { contenders: vec![Contender::Nearside], ..options() };
    let error = simulate(&small, &scenario, &nearside).unwrap_err().to_string();
    assert!(error.starts_with("nearside cannot place warehouse-1: 32 MiB do not fit: "), "{error}");
}
