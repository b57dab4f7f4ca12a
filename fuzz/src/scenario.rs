//! The target of the crate `simulator`: scenarios. `crates/simulator/tests/corpus.rs` includes this
//! file and replays the corpus.

use nearside_simulator::{Contender, Options, scenario, simulate};
use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, Topology};

/// Scenarios in TOML. Small ones are played for a while.
pub fn scenario(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let scenario = match scenario::parse("input", text) {
        Ok(scenario) => scenario,
        Err(error) => return assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    };
    let threads: u64 = scenario.domains.iter().map(|domain| domain.all_threads()).sum();
    if threads > 16 {
        return;
    }
    let options =
        Options { contenders: Contender::ALL.to_vec(), max_seconds: 1, seed: threads, hmat: false };
    // A scenario that does not fit the machine is refused.
    let Ok(simulation) = simulate(&machine(), &scenario, &options) else { return };
    for played in simulation.played {
        assert!(
            played.work_ns <= played.cpu_ns + 1
                && played.cpu_ns <= 6 * played.elapsed_ns.next_multiple_of(1_000_000)
        );
        assert!(!played.is_done || played.elapsed_ns + 1 >= simulation.bound_ns);
    }
}

/// Two nodes with CPUs, one that has memory alone, and one that has none.
fn machine() -> Topology {
    let ids = [NodeId(0), NodeId(1), NodeId(4), NodeId(5)];
    let memory_bytes = |id| if id == NodeId(5) { 0 } else { 1 << 40 };
    Topology {
        nodes: ids
            .iter()
            .map(|&id| Node { id, memory_bytes: memory_bytes(id), ..Node::default() })
            .collect(),
        cpus: [0, 0, 1, 5, 5, 5]
            .iter()
            .zip(0..)
            .map(|(&node, cpu)| Cpu::new(CpuId(cpu), NodeId(node)))
            .collect(),
        distances: Distances::uniform(&ids),
        ..Topology::default()
    }
}
