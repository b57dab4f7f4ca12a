//! The worked example of ADR 7, number by number.
#![allow(clippy::unwrap_used, clippy::panic)]

use nearside_policy::{
    Action, Affinity, Batch, ByNode, Claim, ControlObservation, Controller, History, Home, Homes,
    MemoryPolicy, NodeLoad, Observation, Origin, PartLoad, PartState, Reason, SlowDown,
};
use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, NodeSet, Topology};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;
const NODES: [NodeId; 2] = [NodeId(0), NodeId(1)];

/// Two nodes of two CPUs, distance 20. A neighbour uses one CPU of node 0, so one of db's two busy
/// vCPUs runs on node 1.
fn seen(interval: u64, held_bytes: u64) -> ControlObservation {
    let held: ByNode = [(NODES[0], held_bytes)].into();
    let part = PartState {
        id: "db".into(),
        home: Some(Home {
            nodes: NodeSet::from([NODES[0]]),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Preferred,
        }),
        claim: Some(Claim {
            bytes: held.clone(),
            vcpus: [(NODES[0], 2)].into(),
            ..Claim::default()
        }),
        resident_bytes: held,
        ..PartState::default()
    };
    let cpu_ns: ByNode = NODES.map(|node| (node, 2 * SECOND)).into();
    let busy = |ns| NodeLoad { busy_ns: ns, ..NodeLoad::default() };
    let load = PartLoad { over_ns: 2 * SECOND, cpu_ns, ..PartLoad::default() };
    let node = |id| Node { id, memory_bytes: 32 * GIB, ..Node::default() };
    let topology = Topology {
        nodes: NODES.map(node).to_vec(),
        cpus: (0..4).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
        distances: Distances::uniform(&NODES),
        ..Topology::default()
    };
    ControlObservation {
        interval,
        length_ns: 2 * SECOND,
        machine: Observation { parts: vec![part], ..Observation::of(topology) },
        loads: [("db".into(), load)].into(),
        nodes: [(NODES[0], busy(4 * SECOND)), (NODES[1], busy(2 * SECOND))].into(),
        soft_affinity: true,
        ..ControlObservation::default()
    }
}

#[test]
fn a_domain_follows_its_vcpus_once_the_move_pays_within_its_age() {
    for (held_gib, moves_in, costs_ns) in [(1, 5, 2_048_000_000_u64), (12, 38, 24_576_000_000)] {
        let mut history = History::default();
        let mut interval = 0;
        let plan = loop {
            interval += 1;
            assert!(interval < 100, "{:?}", history);
            let (plan, next) = Homes::default().plan(&seen(interval, held_gib * GIB), &history);
            history = next;
            if !plan.is_empty() {
                break plan;
            }
        };
        assert_eq!(interval, moves_in, "{held_gib} GiB");
        let step = plan.steps().find(|step| matches!(step.action, Action::SetHome { .. }));
        let Some(Reason::PaysBack { payback }) = step.map(|step| &step.reason) else {
            panic!("{plan:?}")
        };
        assert_eq!((payback.here(), payback.there()), (SlowDown(1_200_000), SlowDown::NONE));
        assert_eq!(payback.bytes_to_move(), held_gib * GIB);
        let figures = serde_json::to_value(payback).unwrap();
        assert_eq!(figures["saves_ns_per_s"], 333_333_333);
        assert_eq!(figures["costs_ns"], costs_ns);
    }
}

#[test]
fn debt_comes_home_in_batches_of_two_gib() {
    let mut seen = seen(1, 12 * GIB);
    let home = seen.machine.parts[0].home.as_mut().unwrap();
    home.nodes = NodeSet::from([NODES[1]]);
    let claim = seen.machine.parts[0].claim.as_mut().unwrap();
    claim.bytes = [(NODES[1], 12 * GIB)].into();
    seen.loads.get_mut(&"db".into()).unwrap().cpu_ns = [(NODES[1], 4 * SECOND)].into();
    let (plan, _) = Homes::default().plan(&seen, &History::default());
    assert!(plan.transactions.is_empty(), "{plan:?}");
    let [step] = &plan.moves[..] else { panic!("{plan:?}") };
    assert_eq!(step.action.batch, Some(Batch { from: NODES[0], max_bytes: 2 * GIB }));
}
