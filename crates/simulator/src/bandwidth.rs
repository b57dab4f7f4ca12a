//! Waits for the bandwidth of memory and of the routes to it.

use crate::hardware::Hardware;

/// Factors on the latency of lines, by node of the CPU and node of the memory.
///
/// A node whose demand exceeds its bandwidth gets longer waits, until demand equals bandwidth: each
/// tick corrects the factors by the bytes that passed in it.
#[derive(Debug)]
pub(crate) struct Queues {
    nodes: usize,
    /// By node: for its memory.
    memory: Vec<f64>,
    /// By pair: for the route.
    way: Vec<f64>,
    /// By pair: bytes in this tick.
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

    /// Two nodes of 1,000 MB/s each, with 250 MB/s between them.
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

    /// Bytes per tick in the steady state, for a demand of `wanted_bytes` without waits.
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
    fn bandwidth_of_memory_and_route_limits_lines() {
        // 1,000 MB/s are 1 MB in 1 ms.
        for (from, to, wanted, expected) in
            [(0, 0, 5e5, 5e5), (0, 0, 3e6, 1e6), (0, 1, 2e5, 2e5), (0, 1, 1e6, 2.5e5)]
        {
            assert!((passes(from, to, wanted) - expected).abs() < 1.0, "{from} {to} {wanted}");
        }
    }

    #[test]
    fn lower_demand_ends_the_wait() {
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
