//! What holds on any machine and in any scenario.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use nearside_simulator::{Contender, DomainPlan, Options, Scenario, Work, simulate};
use nearside_topology::{Access, Cpu, CpuId, Distances, Node, NodeId, Performance, Topology};
use proptest::prelude::*;

/// A node for each number of CPUs; latencies and bandwidths are as drawn, from each node to each.
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
        most_seconds: 120,
        seed,
        hmat: seed.is_multiple_of(2),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn work_is_done_as_asked_within_what_the_machine_has(machine in machines(), scenario in scenarios(), seed in 0..9_u64) {
        let simulation = simulate(&machine, &scenario, &options(seed)).unwrap();
        prop_assert_eq!(&simulation, &simulate(&machine, &scenario, &options(seed)).unwrap());
        for played in &simulation.played {
            let who = played.contender;
            prop_assert!(played.is_done, "{who}: {played:?}");
            // Each thread's rounds add up to the last bits of a sum of as many parts as there were ticks.
            prop_assert!(played.work_ns.abs_diff(simulation.work_ns) <= 1 + simulation.work_ns / 1_000_000_000, "{who}");
            // A nanosecond is what rounding to whole ones takes.
            prop_assert!(played.elapsed_ns + 1 >= simulation.bound_ns, "{who}: {} {}", played.elapsed_ns, simulation.bound_ns);
            prop_assert!(played.cpu_ns + 1 >= played.work_ns, "{who}");
            prop_assert!(played.cpu_ns <= (played.elapsed_ns + 1_000_000) * machine.cpus.len() as u64, "{who}");
            prop_assert!(played.local_ppm.is_none_or(|local| local <= 1_000_000), "{who}");
            prop_assert_eq!(played.domains.len(), scenario.domains.len(), "{}", who);
            let is_late = |(domain, plan): (&nearside_simulator::PlayedDomain, &DomainPlan)| {
                domain.name == plan.name && domain.start_ns == plan.start_ms * 1_000_000 && domain.done_ns > Some(domain.start_ns)
            };
            prop_assert!(played.domains.iter().zip(&scenario.domains).all(is_late), "{who}");
        }
        let moved = |who: Contender| simulation.played.iter().filter(|p| p.contender == who).map(|p| p.moved_bytes()).sum::<u64>();
        prop_assert_eq!((moved(Contender::Stock), moved(Contender::Pins)), (0, 0));
    }

    #[test]
    fn where_all_memory_is_as_near_only_waiting_for_cpus_counts(
        cpus in proptest::collection::vec(1..5_u32, 1..5),
        scenario in scenarios(),
    ) {
        let simulation = simulate(&machine(&cpus, &[(0, None)]), &scenario, &options(1)).unwrap();
        for played in &simulation.played {
            let moving_ns = 2 * (played.moved_bytes() >> 20) * 1_000_000;
            prop_assert!(played.cpu_ns.abs_diff(simulation.work_ns) <= 1000 + moving_ns, "{}", played.contender);
        }
    }
}
