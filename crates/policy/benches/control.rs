//! How long a round of the control loop takes. Figures and their reading:
//! docs/performance/decisions.md.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use criterion::{Criterion, criterion_group, criterion_main};
use nearside_policy::{
    Affinity, Claim, ControlObservation, ControlPlan, Controller, History, Home, Homes,
    MemoryPolicy, Origin, PartId, PartLoad, PartState, Tuning,
};
use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, NodeSet, Topology};

const GIB: u64 = 1 << 30;
const INTERVAL_NS: u64 = 2_000_000_000;

/// The plan of the homes controller, and the history after it.
fn decide(tuning: &Tuning, seen: &ControlObservation, history: &History) -> (ControlPlan, History) {
    Homes { tuning: *tuning }.plan(seen, history)
}

/// Nodes of 16 cores and 256 GiB, all as far from each other.
fn machine(nodes: u32) -> Topology {
    let ids: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    Topology {
        nodes: ids
            .iter()
            .map(|&id| Node { id, memory_bytes: 256 * GIB, ..Node::default() })
            .collect(),
        cpus: (0..nodes * 16).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 16))).collect(),
        distances: Distances::uniform(&ids),
        ..Topology::default()
    }
}

/// Domains with homes in turn. Each uses so many thousandths of a CPU, on the node `beside` its
/// home.
fn observation(nodes: u32, domains: u32, milli_vcpus: u64, beside: u32) -> ControlObservation {
    let mut seen = ControlObservation {
        length_ns: INTERVAL_NS,
        soft_affinity: true,
        ..ControlObservation::default()
    };
    for number in 0..domains {
        let node = NodeId(number % nodes);
        let claim = Claim {
            bytes: [(node, GIB / 16)].into(),
            vcpus: [(node, 1)].into(),
            ..Claim::default()
        };
        let home = Home {
            nodes: NodeSet::from([node]),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Preferred,
        };
        let id = PartId::of(format!("machine-qemu-{number}.scope"));
        let cpu_ns = milli_vcpus * INTERVAL_NS / 1000;
        let runs = NodeId((number + beside) % nodes);
        let load = PartLoad {
            over_ns: INTERVAL_NS,
            cpu_ns: [(runs, cpu_ns)].into(),
            ..PartLoad::default()
        };
        seen.loads.insert(id.clone(), load);
        seen.nodes.entry(runs).or_default().busy_ns += cpu_ns;
        let resident_bytes = claim.bytes.clone();
        seen.machine.parts.push(PartState {
            id,
            home: Some(home),
            claim: Some(claim),
            memory_nodes: None,
            resident_bytes,
            ..PartState::default()
        });
    }
    seen.machine.topology = machine(nodes);
    seen
}

/// The observation of a later interval, with the parts due in it sampled, and the history by then.
fn later(mut seen: ControlObservation, intervals: u64) -> (ControlObservation, History) {
    let all = seen.loads.clone();
    let mut history = History::default();
    for _ in 0..intervals {
        seen.interval += 1;
        seen.loads = all.clone();
        seen.loads.retain(|name, _| history.next_sample(name) <= seen.interval);
        history = decide(&Tuning::default(), &seen, &history).1;
    }
    seen.interval += 1;
    seen.loads = all;
    seen.loads.retain(|name, _| history.next_sample(name) <= seen.interval);
    (seen, history)
}

fn rounds(criterion: &mut Criterion) {
    let tuning = Tuning::default();
    let mut group = criterion.benchmark_group("control");
    let cases = [
        ("4 nodes, 1,000 idle domains", observation(4, 1000, 1, 0)),
        ("4 nodes, 1,000 busy domains at home", observation(4, 1000, 50, 0)),
        ("8 nodes, 1,000 domains under contention", observation(8, 1000, 500, 1)),
        ("64 nodes, 1,000 domains under contention", observation(64, 1000, 1500, 1)),
        ("1,024 nodes, 1,000 domains at home", observation(1024, 1000, 1500, 0)),
    ];
    for (name, seen) in cases {
        let (seen, history) = later(seen, 31);
        group.bench_function(name, |bench| bench.iter(|| decide(&tuning, &seen, &history)));
    }
    group.finish();
}

criterion_group!(benches, rounds);
criterion_main!(benches);
