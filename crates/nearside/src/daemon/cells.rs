//! The vCPUs of virtual machines with cells: under the scheduler, each prefers the nodes that hold
//! the memory of its cell. All of them share a cgroup, whose home is that of the whole machine.

use super::scheduler::SchedulerControl;
use nearside_linux::{Host, guest::GuestCell, store::Record};
use nearside_policy::cell_affinity;
use nearside_scheduler::Affinity;
use nearside_topology::{NodeSet, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Intervals between two looks at a guest: its mappings are read, and libvirt is asked.
const LOOK_INTERVALS: u64 = 8;

/// Guests that are looked at in one interval. The others follow in the next.
const MAX_LOOKS: usize = 4;

/// The guests that were looked at, by the names of their domains.
#[derive(Debug, Default)]
pub(super) struct Cells(BTreeMap<String, Looked>);

#[derive(Debug)]
struct Looked {
    at: u64,
    /// The home of the whole machine then.
    home: NodeSet,
}

impl Cells {
    /// Forgets all guests. A scheduler that is attached later knows none of their threads.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Passes the nodes of vCPUs to the scheduler for guests that are due. Returns messages for the
    /// log.
    pub(super) fn tend<'r>(
        &mut self,
        host: &Host,
        topology: &Topology,
        records: impl Iterator<Item = &'r Record>,
        interval: u64,
        scheduler: &mut SchedulerControl,
    ) -> Vec<String> {
        let (mut said, mut alive, mut looks) = (Vec::new(), BTreeSet::new(), 0);
        for record in records {
            alive.insert(record.name.clone());
            let home = &record.part().home.nodes;
            if looks == MAX_LOOKS || !self.is_due(&record.name, home, interval) {
                continue;
            }
            self.0.insert(record.name.clone(), Looked { at: interval, home: home.clone() });
            let Ok(group) = host.tree().group(&record.cgroup) else { continue };
            let Some(guest) = host.guest(&group, topology) else { continue };
            looks += 1;
            match guest {
                Err(why) => said.push(format!("{}: the cells are unknown: {why}", record.name)),
                Ok(guest) => {
                    let threads = threads(home, &guest.cells);
                    said.extend(scheduler.prefer(threads, |thread| {
                        host.tree()
                            .group_of(&host.proc().join(format!("{thread}/cgroup")))
                            .is_ok_and(|now| {
                                now.path() == group.path() || is_below(now.path(), group.path())
                            })
                    }));
                }
            }
        }
        self.0.retain(|name, _| alive.contains(name));
        said
    }

    fn is_due(&self, name: &str, home: &NodeSet, interval: u64) -> bool {
        self.0.get(name).is_none_or(|looked| {
            looked.home != *home || interval.saturating_sub(looked.at) >= LOOK_INTERVALS
        })
    }
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// The nodes that each vCPU's thread prefers; none for those of the whole machine. Guests of one
/// cell need no others.
fn threads(home: &NodeSet, cells: &[GuestCell]) -> Vec<(i32, Option<Affinity>)> {
    let has_several = cells.len() > 1;
    let of_cell = |cell: &GuestCell| {
        let bytes = cell.bytes.as_ref().filter(|_| has_several);
        let affinity = bytes.and_then(|bytes| cell_affinity(home, bytes));
        let affinity = affinity.map(|(home, nodes)| Affinity { nodes, home });
        cell.thread_numbers
            .iter()
            .map(move |&thread| (thread, affinity.clone()))
            .collect::<Vec<_>>()
    };
    cells.iter().flat_map(of_cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;

    fn cell(thread_numbers: &[i32], node: u32, bytes: u64) -> GuestCell {
        let bytes = (bytes > 0).then(|| [(NodeId(node), bytes)].into());
        GuestCell { thread_numbers: thread_numbers.into(), bytes, ..GuestCell::default() }
    }

    #[test]
    fn vcpus_prefer_the_node_of_their_cell() {
        let home = "0-1".parse().unwrap();
        let on = |node: &str| {
            let nodes: NodeSet = node.parse().unwrap();
            Some(Affinity { home: nodes.first().unwrap(), nodes })
        };
        let cells = [cell(&[7, 8], 0, 9), cell(&[9], 1, 9), cell(&[10], 3, 9), cell(&[11], 0, 0)];
        assert_eq!(
            threads(&home, &cells),
            // Memory off the home, or memory that cannot be told, leaves the home of the whole.
            [(7, on("0")), (8, on("0")), (9, on("1")), (10, None), (11, None)]
        );
        assert_eq!(threads(&home, &cells[..1]), [(7, None), (8, None)], "one cell");
    }

    #[test]
    fn a_guest_is_due_at_first_then_after_eight_intervals_or_with_a_new_home() {
        let (home, other) = ("0-1".parse().unwrap(), "2".parse().unwrap());
        let mut cells = Cells::default();
        assert!(cells.is_due("vm", &home, 3));
        cells.0.insert("vm".into(), Looked { at: 3, home: home.clone() });
        let due = |interval| cells.is_due("vm", &home, interval);
        assert_eq!([3, 10, 11].map(due), [false, false, true]);
        assert!(cells.is_due("vm", &other, 4));
    }

    #[test]
    fn groups_below_are_told_from_groups_with_a_longer_name() {
        assert!(is_below("/machine/a/vcpu0", "/machine/a"));
        assert!(!is_below("/machine/ab", "/machine/a") && !is_below("/machine/a", "/machine/a"));
    }
}
