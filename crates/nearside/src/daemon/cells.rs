//! Virtual machines with cells among the domains.
//!
//! A machine with several cells is at home on the nodes of all of them, because no cell may share
//! the nodes of another. Under the scheduler, each vCPU prefers the nodes of its cell's memory: all
//! vCPUs share a cgroup, whose home is that of the whole machine.

use super::scheduler::SchedulerControl;
use nearside_linux::{
    Host,
    guest::{Guest, GuestCell},
    store::Record,
};
use nearside_policy::{ControlObservation, cell_affinity};
use nearside_scheduler::Affinity;
use nearside_topology::NodeSet;
use std::collections::{BTreeMap, BTreeSet};

/// Intervals between two looks at a guest: its mappings are read, and libvirt is asked.
const LOOK_INTERVALS: u64 = 8;

/// Guests that are looked at in one interval. The others follow in the next.
const MAX_LOOKS: usize = 4;

/// The domains that were looked at, by name.
#[derive(Debug, Default)]
pub(super) struct Cells(BTreeMap<String, Looked>);

#[derive(Debug)]
struct Looked {
    at: u64,
    /// Its cells, if it has several.
    cells: Vec<GuestCell>,
    /// The home of the machine for which the scheduler knows the nodes of its vCPUs.
    passed_for: Option<NodeSet>,
}

impl Cells {
    /// Looks at found domains that are due, and adds the nodes of their cells to their loads.
    /// Returns messages for the log.
    pub(super) fn look(&mut self, host: &Host, seen: &mut ControlObservation) -> Vec<String> {
        let (mut said, mut looks) = (Vec::new(), 0);
        let (machine, interval) = (&seen.machine, seen.interval);
        let found = machine.parts.iter().filter(|part| part.was_found());
        let names: BTreeSet<&str> = found.map(|part| part.id.domain()).collect();
        let due = names.iter().filter(|name| is_due(self.0.get(**name), interval));
        for name in due.copied().collect::<Vec<_>>() {
            if looks == MAX_LOOKS {
                break;
            }
            let group = host.tree().group(name).ok();
            let guest = group.and_then(|group| host.guest(&group, &machine.topology));
            looks += usize::from(guest.is_some());
            let cells = match guest {
                Some(Ok(Guest { cells, .. })) if cells.len() > 1 => cells,
                Some(Err(why)) => {
                    said.push(format!("{name}: its cells are unknown: {why}"));
                    continue;
                }
                _ => Vec::new(),
            };
            self.0.insert(name.into(), Looked { at: interval, cells, passed_for: None });
        }
        self.0.retain(|name, _| names.contains(name.as_str()));
        let all = machine.topology.node_set();
        for (part, load) in &mut seen.loads {
            let looked = self.0.get(part.domain());
            load.cell_nodes = looked.and_then(|looked| nodes_of_all(&all, &looked.cells));
        }
        said
    }

    /// Forgets the bindings passed to the scheduler: it is detached.
    pub(super) fn forget_passed(&mut self) {
        self.0.values_mut().for_each(|looked| looked.passed_for = None);
    }

    /// Passes the nodes of vCPUs to the scheduler, after a look and for a new home. Returns
    /// messages for the log.
    pub(super) fn pass<'r>(
        &mut self,
        host: &Host,
        records: impl Iterator<Item = &'r Record>,
        scheduler: &mut SchedulerControl,
    ) -> Vec<String> {
        let mut said = Vec::new();
        for record in records {
            let home = &record.part().home.nodes;
            let Some(looked) = self.0.get_mut(&record.name) else { continue };
            if looked.cells.is_empty() || looked.passed_for.as_ref() == Some(home) {
                continue;
            }
            looked.passed_for = Some(home.clone());
            said.extend(scheduler.prefer(threads(home, &looked.cells), |thread| {
                let group = host.proc().join(format!("{thread}/cgroup"));
                let group = host.tree().group_of(&group);
                group.is_ok_and(|group| is_in(group.path(), &record.cgroup))
            }));
        }
        said
    }
}

fn is_due(looked: Option<&Looked>, interval: u64) -> bool {
    looked.is_none_or(|looked| interval.saturating_sub(looked.at) >= LOOK_INTERVALS)
}

/// Whether a group is another one or below it.
fn is_in(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The nodes of a cell: those that libvirt binds its memory to, else those that hold most of it.
fn nodes_of(within: &NodeSet, cell: &GuestCell) -> Option<NodeSet> {
    let bound = cell.bound_nodes.as_ref().map(|bound| bound.intersection(within));
    let lies = || cell_affinity(within, cell.bytes.as_ref()?).map(|(_, nodes)| nodes);
    bound.filter(|bound| !bound.is_empty()).or_else(lies)
}

/// The nodes of all cells; none if those of a cell are unknown.
fn nodes_of_all(within: &NodeSet, cells: &[GuestCell]) -> Option<NodeSet> {
    let mut nodes = cells.iter().map(|cell| nodes_of(within, cell));
    let union = nodes.try_fold(NodeSet::new(), |all, nodes| Some(all.union(&nodes?)))?;
    Some(union).filter(|union| !union.is_empty())
}

/// The nodes that each vCPU's thread prefers; none for those of the whole machine.
fn threads(home: &NodeSet, cells: &[GuestCell]) -> Vec<(i32, Option<Affinity>)> {
    let of_cell = |cell: &GuestCell| {
        let nodes = nodes_of(home, cell);
        // Of several nodes it returns to the one with most of its memory.
        let most = nodes.as_ref().and_then(|nodes| cell_affinity(nodes, cell.bytes.as_ref()?));
        let affinity = nodes.and_then(|nodes| {
            let home = most.map(|(node, _)| node).or(nodes.first())?;
            Some(Affinity { nodes, home })
        });
        cell.thread_numbers.iter().map(move |&it| (it, affinity.clone())).collect::<Vec<_>>()
    };
    cells.iter().flat_map(of_cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;

    fn set(list: &str) -> NodeSet {
        list.parse().unwrap()
    }

    fn cell(thread_numbers: &[i32], node: u32, bytes: u64) -> GuestCell {
        let bytes = (bytes > 0).then(|| [(NodeId(node), bytes)].into());
        GuestCell { thread_numbers: thread_numbers.into(), bytes, ..GuestCell::default() }
    }

    fn bound(cell: GuestCell, nodes: &str) -> GuestCell {
        GuestCell { bound_nodes: Some(set(nodes)), ..cell }
    }

    #[test]
    fn vcpus_prefer_the_nodes_of_their_cell() {
        let on = |nodes: &str, home| Some(Affinity { nodes: set(nodes), home: NodeId(home) });
        let cells = [
            cell(&[7, 8], 0, 9),
            cell(&[9], 1, 9),
            // Memory off the home, or memory that cannot be told, leaves the home of the whole.
            cell(&[10], 3, 9),
            cell(&[11], 0, 0),
            // The binding counts more than the pages that are there by now.
            bound(cell(&[12], 1, 9), "0"),
            bound(cell(&[13], 1, 9), "0-1"),
            bound(cell(&[14], 0, 9), "3"),
        ];
        assert_eq!(
            threads(&set("0-1"), &cells),
            [
                (7, on("0", 0)),
                (8, on("0", 0)),
                (9, on("1", 1)),
                (10, None),
                (11, None),
                (12, on("0", 0)),
                (13, on("0-1", 1)),
                (14, on("0", 0)),
            ]
        );
    }

    #[test]
    fn the_home_of_a_machine_has_the_nodes_of_all_cells() {
        let all = set("0-3");
        let cells = [cell(&[], 0, 9), bound(cell(&[], 1, 9), "2-3")];
        assert_eq!(nodes_of_all(&all, &cells), Some(set("0,2-3")));
        assert_eq!(nodes_of_all(&all, &[cell(&[], 0, 9), cell(&[], 1, 0)]), None);
        assert_eq!(nodes_of_all(&all, &[]), None);
    }

    #[test]
    fn a_guest_is_due_at_first_and_after_eight_intervals() {
        let looked = Looked { at: 3, cells: Vec::new(), passed_for: None };
        assert!(is_due(None, 3));
        assert_eq!([3, 10, 11].map(|now| is_due(Some(&looked), now)), [false, false, true]);
    }

    #[test]
    fn groups_below_are_told_from_groups_with_a_longer_name() {
        assert!(is_in("/machine/a/vcpu0", "/machine/a") && is_in("/machine/a", "/machine/a"));
        assert!(!is_in("/machine/ab", "/machine/a") && !is_in("/machine", "/machine/a"));
    }
}
