//! The machine as the BPF program sees it: queues, and from each queue the others, nearest first.

use nearside_topology::{CpuId, NodeId, Topology};
use std::collections::BTreeMap;

/// The capacity of the BPF program (`state.h`).
pub(crate) const MAX_CPUS: usize = 4096;
pub(crate) const MAX_NODES: usize = 64;
pub(crate) const MAX_QUEUES: usize = 256;

/// A machine that has more than the BPF program has room for, or nothing to schedule on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// More nodes than a set of nodes has bits.
    #[error("this machine has {0} nodes; the scheduler knows {MAX_NODES} at most")]
    Nodes(usize),
    /// More last-level caches.
    #[error("this machine has {0} last-level caches; the scheduler knows {MAX_QUEUES} at most")]
    Queues(usize),
    /// CPU numbers beyond the tables.
    #[error("this machine has a CPU numbered {0}; the scheduler knows those below {MAX_CPUS}")]
    Cpu(CpuId),
    /// No online CPU on any node.
    #[error("no node of this machine has a CPU")]
    NoCpus,
}

/// Nodes are numbered without gaps here, in rising order, and so are queues: one for each
/// last-level cache of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// The kernel's numbers of the nodes.
    pub(crate) nodes: Vec<NodeId>,
    /// The distance from each node to each.
    pub(crate) distances: Vec<Vec<u8>>,
    /// The node of each queue.
    pub(crate) queue_node: Vec<usize>,
    /// From each queue, all queues: itself, those of its node, then by distance.
    pub(crate) order: Vec<Vec<usize>>,
    /// Each CPU's queue. Offline CPUs have one if their node is known.
    pub(crate) cpu_queue: BTreeMap<CpuId, usize>,
    /// Online CPUs in each queue.
    pub(crate) online: Vec<u32>,
    /// The nearest queue to each node: its own first one, if it has CPUs.
    pub(crate) node_queue: Vec<usize>,
    /// Whether CPUs share cores.
    pub(crate) smt: bool,
}

impl Machine {
    pub(crate) fn new(topology: &Topology) -> Result<Self, Unsuitable> {
        let nodes: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
        if nodes.len() > MAX_NODES {
            return Err(Unsuitable::Nodes(nodes.len()));
        }
        let index = |id| nodes.iter().position(|&node| node == id);
        // A CPU without a known cache shares one with the others of its node that have none.
        let mut caches = BTreeMap::<(usize, Option<CpuId>), Vec<(CpuId, bool)>>::new();
        for cpu in &topology.cpus {
            let Some(node) = cpu.node.and_then(index) else { continue };
            if cpu.id.0 as usize >= MAX_CPUS {
                return Err(Unsuitable::Cpu(cpu.id));
            }
            caches.entry((node, cpu.last_level_cache)).or_default().push((cpu.id, cpu.online));
        }
        if caches.len() > MAX_QUEUES {
            return Err(Unsuitable::Queues(caches.len()));
        }
        if !topology.cpus.iter().any(|cpu| cpu.online && cpu.node.is_some()) {
            return Err(Unsuitable::NoCpus);
        }
        let distance = |from: usize, to: usize| topology.distances.get(nodes[from], nodes[to]);
        let queue_node: Vec<usize> = caches.keys().map(|&(node, _)| node).collect();
        // Among equally distant nodes, each node begins with the next one, so that they do not all
        // choose the same.
        let after = |from: usize, to: usize| (to + nodes.len() - from) % nodes.len();
        let order = (0..queue_node.len())
            .map(|from| {
                let mut all: Vec<usize> = (0..queue_node.len()).collect();
                let here = queue_node[from];
                let key = |&to: &usize| {
                    (
                        to != from,
                        queue_node[to] != here,
                        distance(here, queue_node[to]),
                        after(here, queue_node[to]),
                    )
                };
                all.sort_by_key(key);
                all
            })
            .collect();
        let nearest = |from: usize| {
            (0..queue_node.len())
                .min_by_key(|&to| (queue_node[to] != from, distance(from, queue_node[to]), to))
        };
        Ok(Self {
            distances: (0..nodes.len())
                .map(|from| (0..nodes.len()).map(|to| distance(from, to)).collect())
                .collect(),
            node_queue: (0..nodes.len()).filter_map(nearest).collect(),
            order,
            cpu_queue: caches
                .values()
                .enumerate()
                .flat_map(|(queue, cpus)| cpus.iter().map(move |&(cpu, _)| (cpu, queue)))
                .collect(),
            online: caches
                .values()
                .map(|cpus| cpus.iter().filter(|(_, online)| *online).count() as u32)
                .collect(),
            queue_node,
            smt: topology.cpus.iter().any(|cpu| cpu.core != cpu.id),
            nodes,
        })
    }

    /// The CPUs of each queue, by rising number.
    pub(crate) fn cpus_by_queue(&self) -> Vec<Vec<CpuId>> {
        let mut cpus = vec![vec![]; self.queue_node.len()];
        for (&cpu, &queue) in &self.cpu_queue {
            cpus[queue].push(cpu);
        }
        cpus
    }

    /// The set of these nodes in the BPF program's form; none if one of them does not exist.
    pub(crate) fn mask<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a NodeId>,
    ) -> Result<u64, NodeId> {
        nodes.into_iter().try_fold(0, |mask, &node| Ok(mask | 1 << self.index(node)?))
    }

    pub(crate) fn index(&self, node: NodeId) -> Result<usize, NodeId> {
        self.nodes.binary_search(&node).map_err(|_| node)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nearside_topology::{Cpu, Distances, Node};
    use proptest::prelude::*;

    /// Nodes with gaps in their numbers, some without CPUs, and caches of two CPUs.
    fn topologies() -> impl Strategy<Value = Topology> {
        let nodes = prop::collection::vec(0..=3_u32, 1..=8)
            .prop_filter("some CPU", |caches| caches.iter().any(|&n| n > 0));
        nodes.prop_flat_map(|caches| {
            let rows = prop::collection::vec(11..=255_u8, caches.len() * caches.len());
            (Just(caches), rows).prop_map(|(caches, mut rows)| {
                rows.iter_mut()
                    .step_by(caches.len() + 1)
                    .for_each(|distance| *distance = Distances::LOCAL);
                let ids: Vec<NodeId> =
                    (0..caches.len()).map(|node| NodeId(2 * node as u32)).collect();
                let owners =
                    ids.iter().zip(&caches).flat_map(|(&id, &caches)| (0..caches).map(move |_| id));
                let cpus = owners.enumerate().flat_map(|(cache, node)| {
                    let first = CpuId(2 * cache as u32);
                    [first, CpuId(first.0 + 1)]
                        .map(|id| Cpu { last_level_cache: Some(first), ..Cpu::new(id, node) })
                });
                Topology {
                    cpus: cpus.collect(),
                    distances: Distances::new(&ids, &rows).unwrap(),
                    nodes: ids.into_iter().map(|id| Node { id, ..Node::default() }).collect(),
                    ..Topology::default()
                }
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn each_cache_has_a_queue_that_serves_itself_then_its_node_then_nearest_first(
            topology in topologies(),
        ) {
            let machine = Machine::new(&topology).unwrap();
            for cpu in &topology.cpus {
                for other in &topology.cpus {
                    let same = cpu.last_level_cache == other.last_level_cache;
                    let queues = [cpu, other].map(|cpu| machine.cpu_queue[&cpu.id]);
                    prop_assert_eq!(queues[0] == queues[1], same);
                }
            }
            for (queue, cpus) in machine.cpus_by_queue().iter().enumerate() {
                prop_assert!(cpus.is_sorted());
                prop_assert!(cpus.iter().all(|cpu| machine.cpu_queue[cpu] == queue));
            }
            let listed: usize = machine.cpus_by_queue().iter().map(Vec::len).sum();
            prop_assert_eq!(listed, topology.cpus.len());
            for (from, order) in machine.order.iter().enumerate() {
                let here = machine.queue_node[from];
                let mut all = order.clone();
                all.sort_unstable();
                prop_assert_eq!(all, (0..machine.queue_node.len()).collect::<Vec<_>>());
                prop_assert_eq!(order[0], from);
                let distance = |queue: &usize| machine.distances[here][machine.queue_node[*queue]];
                prop_assert!(order[1..].is_sorted_by_key(distance), "{order:?} from {from}");
            }
            for (node, &queue) in machine.node_queue.iter().enumerate() {
                let to = |queue: usize| machine.distances[node][machine.queue_node[queue]];
                prop_assert!((0..machine.queue_node.len()).all(|other| to(queue) <= to(other)));
            }
        }
    }
}
