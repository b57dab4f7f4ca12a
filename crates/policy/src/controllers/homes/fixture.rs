//! The host of the unit tests.

use super::{learning::Learned, tuning::Tuning};
use crate::{
    Affinity, ByNode, Claim, ControlObservation, History, Home, MemoryPolicy, NodeLoad,
    Observation, Origin, PartLoad, PartState,
    index::{Index, PartIndex},
};
use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, NodeSet, Topology};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Two nodes of two CPUs and 16 GiB, twice as far from each other as from themselves. The domain
/// `db` of 2 vCPUs and 4 GiB has its home on node 0; `elsewhere` of its 4 s of CPU time in 2 s it
/// spends on node 1. `others` is the CPU time of other work on each node, in s.
pub(crate) fn seen(interval: u64, elsewhere: u64, others: [u64; 2]) -> ControlObservation {
    let ids = [NodeId(0), NodeId(1)];
    let home = Home {
        nodes: NodeSet::from([ids[0]]),
        origin: Origin::Auto,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::Preferred,
    };
    let held: ByNode = [(ids[0], 4 * GIB)].into();
    let claim = Claim { bytes: held.clone(), vcpus: [(ids[0], 2)].into(), ..Claim::default() };
    let domain = PartState {
        id: "db".into(),
        home: Some(home),
        claim: Some(claim),
        resident_bytes: held,
        ..PartState::default()
    };
    let cpu_ns: ByNode = [(ids[0], (4 - elsewhere) * SECOND), (ids[1], elsewhere * SECOND)].into();
    let load = |i: usize, own: u64| NodeLoad {
        busy_ns: (others[i] + own) * SECOND,
        ..NodeLoad::default()
    };
    let node = |id| Node { id, memory_bytes: 16 * GIB, ..Node::default() };
    let topology = Topology {
        nodes: ids.map(node).to_vec(),
        cpus: (0..4).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
        distances: Distances::uniform(&ids),
        ..Topology::default()
    };
    let part = PartLoad { over_ns: 2 * SECOND, cpu_ns, ..PartLoad::default() };
    ControlObservation {
        interval,
        length_ns: 2 * SECOND,
        machine: Observation { parts: vec![domain], ..Observation::of(topology) },
        loads: [("db".into(), part)].into(),
        nodes: [(ids[0], load(0, 4 - elsewhere)), (ids[1], load(1, elsewhere))].into(),
        soft_affinity: true,
        ..ControlObservation::default()
    }
}

/// The history after a first observation, before any decision.
pub(crate) fn learned(tuning: &Tuning, seen: &ControlObservation) -> Learned {
    Learned::new(tuning, &History::default(), seen)
}

pub(crate) fn part(position: usize) -> PartIndex {
    PartIndex::at(position)
}
