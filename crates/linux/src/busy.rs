//! The time for which the CPUs of each node worked since boot (`/proc/stat`).

use nearside_policy::ByNode;
use nearside_topology::{CpuId, Topology};
use std::path::Path;

/// CPU time by node, in ns; none if the kernel does not count it. A node with only idle CPUs has 0.
pub fn busy_ns(root: &Path, topology: &Topology) -> Option<ByNode> {
    Some(parse(&crate::read::text(&root.join("proc/stat")).ok()?, topology))
}

/// From lines such as `cpu3 user nice system idle iowait irq softirq steal ...` (proc_stat(5)).
pub(crate) fn parse(text: &str, topology: &Topology) -> ByNode {
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let mut busy = ByNode::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        let Some(node) = cpu.and_then(|cpu| topology.cpu(CpuId(cpu))?.node) else { continue };
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(7).collect();
        let [user, nice, system, _idle, _waiting, interrupts, soft_interrupts] = ticks[..] else {
            continue;
        };
        let used = [user, nice, system, interrupts, soft_interrupts]
            .into_iter()
            .fold(0_u64, u64::saturating_add);
        let of_node = busy.entry(node).or_default();
        *of_node = u64::saturating_add(*of_node, used.saturating_mul(tick_ns));
    }
    busy
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Cpu, NodeId};

    #[test]
    fn idle_and_waiting_is_not_busy() {
        let cpus = (0..4).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect();
        let machine = Topology { cpus, ..Topology::default() };
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        // One line is cut off; another names a CPU that the machine does not have.
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 50 7 4 5 5 0 0\ncpu1 1 1\n\
                    cpu3 0 0 0 9 9 0 0 0 0 0\n\
                    cpu9 7 7 7 7 7 7 7 7 0 0\nintr 9 1 1\n";
        assert_eq!(parse(text, &machine), [(NodeId(0), 15 * tick_ns), (NodeId(1), 0)].into());
        assert_eq!(busy_ns(Path::new("/no/such/folder"), &machine), None);
    }
}
