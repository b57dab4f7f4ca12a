//! Properties of any simulation.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use nearside_simulator::{Contender, DomainPlan, Options, Scenario, Work, simulate};
use nearside_topology::{Access, Cpu, CpuId, Distances, Node, NodeId, Performance, Topology};
use proptest::prelude::*;

/// A node for each number of CPUs, with random latencies and bandwidths between all nodes.
fn machine(cpus: &[u32], figures: &[(u64, Option<u64>)]) -> Topology {
    let ids: Vec<_> = (0..cpus.len() as u32).map(NodeId).collect();
    let pairs = ids.iter().flat_map(|&from| ids.iter().map(move |&to| (from, to)));
    let performance =
        pairs.zip(figures.iter().cycle()).map(|((initiator, target), &(extra_ns, mb_per_s))| {
            let latency_ns = Some(if initiator == target { 100 } else { 100 + extra_ns });
            Performance {
                access: Access::Access1,
                initiator,
                target,
                read_latency_ns: latency_ns,
                write_latency_ns: latency_ns,
                read_bandwidth_mb_s: mb_per_s,
                write_bandwidth_mb_s: mb_per_s,
            }
        });
    let mut topology = Topology {
        nodes: ids
            .iter()
            .map(|&id| Node { id, memory_bytes: 8 << 30, ..Node::default() })
            .collect(),
        distances: Distances::uniform(&ids),
        performance: performance.collect(),
        ..Topology::default()
    };
    for (&node, &count) in ids.iter().zip(cpus) {
        let first = topology.cpus.len() as u32;
        topology.cpus.extend((first..first + count).map(|cpu| Cpu::new(CpuId(cpu), node)));
    }
    topology
}

fn machines() -> impl Strategy<Value = Topology> {
    let figures = (0..400_u64, proptest::option::of(500..5000_u64));
    (proptest::collection::vec(1..5_u32, 1..5), proptest::collection::vec(figures, 16))
        .prop_map(|(cpus, figures)| machine(&cpus, &figures))
}

fn domains() -> impl Strategy<Value = DomainPlan> {
    let threads = (1..4_u64, 0..3_u64, 0..100_u64, 1..64_u64);
    let work = (1..300_u64, 1..200_u64, 0..3000_u64, 0..2000_u64, 0..3000_u64, 1..20_u64);
    (threads, work).prop_map(
        |((threads, later_threads, start_ms, mib), (rounds, us, lines, streamed, pause, every))| {
            DomainPlan {
                name: String::new(),
                start_ms,
                threads,
                later_threads,
                later_after_rounds: rounds / 2 + 1,
                later_rounds: rounds,
                thread_memory_bytes: mib << 20,
                work: Work {
                    rounds,
                    compute_ns: us * 1000,
                    lines,
                    streamed_lines: streamed,
                    pause_ns: pause * 1000,
                    pause_rounds: every,
                },
            }
        },
    )
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    (proptest::collection::vec(domains(), 1..8), 1..100_u64).prop_map(
        |(mut domains, interval_ms)| {
            domains
                .iter_mut()
                .zip(0..)
                .for_each(|(domain, number)| domain.name = format!("d{number}"));
            Scenario { source: "drawn".into(), description: String::new(), interval_ms, domains }
        },
    )
}

fn options(seed: u64) -> Options {
    Options {
        contenders: Contender::ALL.to_vec(),
        max_seconds: 120,
        seed,
        hmat: seed.is_multiple_of(2),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn work_is_complete_within_the_machines_time_and_behind_the_bound(
        machine in machines(),
        scenario in scenarios(),
        seed in 0..9_u64,
    ) {
        let simulation = simulate(&machine, &scenario, &options(seed)).unwrap();
        prop_assert_eq!(&simulation, &simulate(&machine, &scenario, &options(seed)).unwrap());
        for played in &simulation.played {
            let contender = played.contender;
            prop_assert!(played.is_done, "{contender}: {played:?}");
            // The sum of a thread's rounds has as many rounding errors as there were ticks.
            let error_ns = 1 + simulation.work_ns / 1_000_000_000;
            prop_assert!(played.work_ns.abs_diff(simulation.work_ns) <= error_ns, "{contender}");
            // Times are rounded to whole nanoseconds.
            let (elapsed_ns, bound_ns) = (played.elapsed_ns, simulation.bound_ns);
            prop_assert!(elapsed_ns + 1 >= bound_ns, "{contender}: {elapsed_ns} {bound_ns}");
            prop_assert!(played.cpu_ns + 1 >= played.work_ns, "{contender}");
            let all_cpus_ns = (elapsed_ns + 1_000_000) * machine.cpus.len() as u64;
            prop_assert!(played.cpu_ns <= all_cpus_ns, "{contender}");
            prop_assert!(played.local_ppm.is_none_or(|local| local <= 1_000_000), "{contender}");
            prop_assert_eq!(played.domains.len(), scenario.domains.len(), "{}", contender);
            let is_complete = |(domain, plan): (&nearside_simulator::PlayedDomain, &DomainPlan)| {
                domain.name == plan.name
                    && domain.start_ns == plan.start_ms * 1_000_000
                    && domain.done_ns > Some(domain.start_ns)
            };
            let mut pairs = played.domains.iter().zip(&scenario.domains);
            prop_assert!(pairs.all(is_complete), "{contender}");
        }
        let moved = |contender| {
            let played = simulation.played.iter().filter(|played| played.contender == contender);
            played.map(|played| played.moved_bytes()).sum::<u64>()
        };
        prop_assert_eq!((moved(Contender::Stock), moved(Contender::Pins)), (0, 0));
    }

    #[test]
    fn cpu_time_equals_work_if_all_memory_is_local(
        cpus in proptest::collection::vec(1..5_u32, 1..5),
        scenario in scenarios(),
    ) {
        let simulation = simulate(&machine(&cpus, &[(0, None)]), &scenario, &options(1)).unwrap();
        for played in &simulation.played {
            let moving_ns = 2 * (played.moved_bytes() >> 20) * 1_000_000;
            let error_ns = played.cpu_ns.abs_diff(simulation.work_ns);
            prop_assert!(error_ns <= 1000 + moving_ns, "{}", played.contender);
        }
    }
}
