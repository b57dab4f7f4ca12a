//! Processes of a domain that the kernel killed for lack of memory, in words.

use super::units::size;
use nearside_linux::oom::OomKills;
use nearside_topology::{Node, NodeSet, Topology};

/// The kills in a domain whose memory is bound to nodes, if it is; none if there are none.
pub(crate) fn killed(
    kills: OomKills,
    bound: Option<&NodeSet>,
    topology: &Topology,
) -> Option<String> {
    let who = match kills.killed {
        0 => return None,
        1 => "1 process was killed".into(),
        killed => format!("{killed} processes were killed"),
    };
    if kills.at_limit >= kills.killed {
        return Some(format!("{who} at the limit of its memory (memory.max)"));
    }
    let who = match kills.at_limit {
        0 => who,
        _ => format!("{who}, some at the limit of its memory (memory.max) and others"),
    };
    let Some(bound) = bound else { return Some(format!("{who} for lack of memory")) };
    let free = |is_asked: &dyn Fn(&&Node) -> bool| {
        let states = topology.nodes.iter().filter(is_asked).filter_map(|node| node.state);
        states.map(|state| state.free_bytes).reduce(u64::saturating_add)
    };
    let at_home = free(&|node| bound.contains(node.id));
    let elsewhere = free(&|node| !bound.contains(node.id) && node.memory_bytes > 0);
    let at_home = at_home.map_or("unknown".into(), size);
    let nodes = bound.named();
    Some(match elsewhere {
        Some(elsewhere) => format!(
            "{who} for lack of memory on its home, {nodes} (free now: {at_home}; other nodes: {}): \
             give it more nodes or the policy preferred",
            size(elsewhere)
        ),
        None => format!("{who} for lack of memory on its home, {nodes} (free now: {at_home})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{MemoryState, NodeId};

    const MIB: u64 = 1 << 20;

    fn machine(free_mib: &[u64]) -> Topology {
        let node = |(id, &mib): (usize, &u64)| Node {
            id: NodeId(id as u32),
            memory_bytes: 1 << 30,
            state: Some(MemoryState { free_bytes: mib * MIB, ..MemoryState::default() }),
            ..Node::default()
        };
        let nodes = free_mib.iter().enumerate().map(node).collect();
        Topology { nodes, ..Topology::default() }
    }

    #[test]
    fn kills_on_full_nodes_name_the_memory_of_others() {
        let home = NodeSet::from([NodeId(1)]);
        let said = |killed, at_limit, bound: Option<&NodeSet>, free: &[u64]| {
            killed_text(OomKills { killed, at_limit }, bound, free)
        };
        assert_eq!(
            said(2, 0, Some(&home), &[1000, 3, 200]),
            "2 processes were killed for lack of memory on its home, node 1 (free now: 3 MiB; \
             other nodes: 1.2 GiB): give it more nodes or the policy preferred"
        );
        let all = NodeSet::from([NodeId(0), NodeId(1)]);
        assert_eq!(
            said(1, 0, Some(&all), &[1, 2]),
            "1 process was killed for lack of memory on its home, nodes 0-1 (free now: 3 MiB)"
        );
        assert_eq!(
            said(1, 3, Some(&home), &[1, 2]),
            "1 process was killed at the limit of its memory (memory.max)"
        );
        assert_eq!(
            said(6, 1, Some(&all), &[1, 2]),
            "6 processes were killed, some at the limit of its memory (memory.max) and others for \
             lack of memory on its home, nodes 0-1 (free now: 3 MiB)"
        );
        assert_eq!(said(1, 0, None, &[1, 2]), "1 process was killed for lack of memory");
        assert_eq!(said(0, 0, Some(&home), &[1, 2]), "");
    }

    fn killed_text(kills: OomKills, bound: Option<&NodeSet>, free_mib: &[u64]) -> String {
        killed(kills, bound, &machine(free_mib)).unwrap_or_default()
    }
}
