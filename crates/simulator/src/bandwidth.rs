//! Waiting for the bandwidth of memory and of the ways to it.

use crate::hardware::Hardware;

/// How much longer lines take than their latency, by the node of the CPU and that of the memory.
///
/// Whoever wants more than there is waits for so much longer that in the end it gets what there is: each tick corrects the
/// factors by what was wanted in it.
#[derive(Debug)]
pub(crate) struct Queues {
    nodes: usize,
    /// By node: for its memory.
    memory: Vec<f64>,
    /// By pair: on the way.
    way: Vec<f64>,
    /// By pair: what passed in this tick.
    passed_bytes: Vec<f64>,
}

impl Queues {
    pub(crate) fn new(nodes: usize) -> Self {
        let way = vec![1.0; nodes * nodes];
        Self { nodes, memory: vec![1.0; nodes], passed_bytes: vec![0.0; nodes * nodes], way }
    }

    /// The factor for lines of `to` that go to `from`.
    pub(crate) fn stretch(&self, from: usize, to: usize) -> f64 {
        self.memory[to].max(self.way[from * self.nodes + to])
    }

    pub(crate) fn pass(&mut self, from: usize, to: usize, bytes: f64) {
        self.passed_bytes[from * self.nodes + to] += bytes;
    }

    pub(crate) fn end_of_tick(&mut self, hardware: &Hardware, tick_ns: f64) {
        for to in 0..self.nodes {
            let all: f64 =
                (0..self.nodes).map(|from| self.passed_bytes[from * self.nodes + to]).sum();
            correct(&mut self.memory[to], all, hardware.bandwidth(to, to), tick_ns);
            for from in (0..self.nodes).filter(|&from| from != to) {
                let at = from * self.nodes + to;
                correct(
                    &mut self.way[at],
                    self.passed_bytes[at],
                    hardware.bandwidth(from, to),
                    tick_ns,
                );
            }
        }
        self.passed_bytes.fill(0.0);
    }
}

fn correct(stretch: &mut f64, passed_bytes: f64, bandwidth: Option<f64>, tick_ns: f64) {
    let Some(bandwidth) = bandwidth else { return };
    *stretch = (*stretch * passed_bytes / (bandwidth * tick_ns)).max(1.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Access, Cpu, CpuId, Distances, Node, NodeId, Performance, Topology};

    /// Two nodes of 1,000 MB/s each; 250 pass between them.
    fn hardware() -> Hardware {
        let ids = [NodeId(0), NodeId(1)];
        let performance = |(initiator, target)| Performance {
            access: Access::Access1,
            initiator,
            target,
            read_latency_ns: Some(100),
            write_latency_ns: None,
            read_bandwidth_mb_s: Some(if initiator == target { 1000 } else { 250 }),
            write_bandwidth_mb_s: None,
        };
        let topology = Topology {
            nodes: ids
                .iter()
                .map(|&id| Node { id, memory_bytes: 1 << 30, ..Node::default() })
                .collect(),
            cpus: (0..2).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu))).collect(),
            distances: Distances::uniform(&ids),
            performance: ids
                .iter()
                .flat_map(|&from| ids.iter().map(move |&to| performance((from, to))))
                .collect(),
            ..Topology::default()
        };
        Hardware::new(&topology, true).unwrap()
    }

    /// What passes in a tick in the end where `wanted_bytes` would if nobody waited.
    fn passes(from: usize, to: usize, wanted_bytes: f64) -> f64 {
        let (hardware, mut queues) = (hardware(), Queues::new(2));
        let mut bytes = 0.0;
        for _ in 0..100 {
            bytes = wanted_bytes / queues.stretch(from, to);
            queues.pass(from, to, bytes);
            queues.end_of_tick(&hardware, 1e6);
        }
        bytes
    }

    #[test]
    fn no_more_passes_than_memory_and_way_give() {
        // In 1 ms 1,000 MB/s are 1 MB.
        for (from, to, wanted, expected) in
            [(0, 0, 5e5, 5e5), (0, 0, 3e6, 1e6), (0, 1, 2e5, 2e5), (0, 1, 1e6, 2.5e5)]
        {
            assert!((passes(from, to, wanted) - expected).abs() < 1.0, "{from} {to} {wanted}");
        }
    }

    #[test]
    fn whoever_wants_less_no_longer_waits() {
        let (hardware, mut queues) = (hardware(), Queues::new(2));
        queues.pass(0, 0, 4e6);
        queues.end_of_tick(&hardware, 1e6);
        assert_eq!(
            (queues.stretch(0, 0), queues.stretch(1, 0), queues.stretch(1, 1)),
            (4.0, 4.0, 1.0)
        );
        queues.end_of_tick(&hardware, 1e6);
        assert_eq!(queues.stretch(0, 0), 1.0);
    }
}
