//! Virtual machines with cells among the domains.
//!
//! Each cell is a part, with a home of its own. The watcher splits the samples of a guest by the
//! cells that were looked at here. Under the scheduler, each vCPU prefers the home of its cell: all
//! vCPUs share a cgroup, whose home has the nodes of all cells.

use super::scheduler::SchedulerControl;
use nearside_linux::{
    Host,
    counters::{Counters, counters},
    guest::{Guest, GuestCell, Unknown},
    store::{Part, Record},
    watch::Watcher,
};
use nearside_policy::{MoveReport, cell_affinity};
use nearside_scheduler::Affinity;
use nearside_topology::{NodeId, NodeSet};
use std::collections::{BTreeMap, BTreeSet};

/// Intervals between two looks at a guest: its mappings are read, and libvirt or QEMU is asked.
const LOOK_INTERVALS: u64 = 8;

/// Guests that are looked at in one interval. The others follow in the next.
const MAX_LOOKS: usize = 4;

/// Intervals until a guest is looked at again after a first failure; after each further one twice
/// as many, up to `LOOK_INTERVALS`.
const RETRY_INTERVALS: u64 = 2;

/// The domains that were looked at, by name.
#[derive(Debug, Default)]
pub(super) struct Cells(BTreeMap<String, Looked>);

#[derive(Debug, Default)]
struct Looked {
    /// The interval of the next look.
    due_at: u64,
    /// The failed looks in a row.
    failures: u32,
    /// The homes of the cells for which the scheduler knows the nodes of their vCPUs.
    passed_for: Vec<NodeSet>,
    /// The counters of all nodes at the first look.
    first: BTreeMap<NodeId, Counters>,
}

impl Cells {
    /// Looks at found domains that are due, or whose pages have moved since, and tells the watcher
    /// their cells. Returns messages for the log.
    pub(super) fn look(
        &mut self,
        host: &mut Host,
        watcher: &mut Watcher,
        interval: u64,
        moved: &[MoveReport],
    ) -> Vec<String> {
        let (mut said, mut found) = (Vec::new(), Vec::new());
        let Some(topology) = watcher.topology() else { return said };
        let names: BTreeSet<&str> = watcher.found_with_cells().collect();
        self.0.retain(|name, _| names.contains(name.as_str()));
        let has_moved = |name: &str| moved.iter().any(|report| report.part.domain() == name);
        let due = due(&self.0, &names, interval, has_moved);
        let nodes: Vec<_> = topology.nodes.iter().map(|node| node.id).collect();
        for name in due.into_iter().take(MAX_LOOKS).map(str::to_owned) {
            let group = host.tree().group(&name).ok();
            let guest = group.and_then(|group| host.look_at_guest(&group, topology));
            let looked = self.0.entry(name.clone()).or_default();
            // One that cannot be looked at is tried again, too: it may have just begun.
            let cells = match guest {
                Some(Err(Unknown::NotYet)) => {
                    looked.due_at = interval.saturating_add(1);
                    continue;
                }
                Some(Err(why)) => {
                    said.push(format!("{name}: its cells are unknown: {why}"));
                    looked.fail(interval);
                    continue;
                }
                Some(Ok(Guest { cells, .. })) => parts(cells),
                None => Vec::new(),
            };
            match cells.is_empty() {
                true => looked.fail(interval),
                false => {
                    (looked.due_at, looked.failures) = (interval.saturating_add(LOOK_INTERVALS), 0);
                }
            }
            looked.passed_for.clear();
            if looked.first.is_empty() && !cells.is_empty() {
                let counted = |&node| Some((node, counters(host.root(), node)?));
                looked.first = nodes.iter().filter_map(counted).collect();
            }
            found.push((name, cells));
        }
        for (name, cells) in found {
            watcher.set_cells(&name, cells);
        }
        said
    }

    /// The counters of nodes when the cells of a domain were first seen.
    pub(super) fn counters_at_first(&self, domain: &str) -> BTreeMap<NodeId, Counters> {
        self.0.get(domain).map(|looked| looked.first.clone()).unwrap_or_default()
    }

    /// Forgets the homes passed to the scheduler: it is detached.
    pub(super) fn forget_passed(&mut self) {
        self.0.values_mut().for_each(|looked| looked.passed_for.clear());
    }

    /// Passes the homes of cells to the scheduler, for their vCPUs: after a look, and for a new
    /// home. Returns messages for the log.
    pub(super) fn pass(
        &mut self,
        host: &Host,
        watcher: &Watcher,
        scheduler: &mut SchedulerControl,
    ) -> Vec<String> {
        let (mut said, cells) = (Vec::new(), watcher.cells());
        for record in watcher.records() {
            let Some(cells) = cells.get(&record.name) else { continue };
            let Some(looked) = self.0.get_mut(&record.name) else { continue };
            let homes: Vec<_> = record.parts().map(|part| part.home.nodes.clone()).collect();
            if looked.passed_for == homes {
                continue;
            }
            looked.passed_for = homes;
            said.extend(scheduler.prefer(threads(record, cells), |thread| {
                let group = host.proc().join(format!("{thread}/cgroup"));
                let group = host.tree().group_of(&group);
                group.is_ok_and(|group| is_in(group.path(), &record.cgroup))
            }));
        }
        said
    }
}

impl Looked {
    fn fail(&mut self, interval: u64) {
        let pause = RETRY_INTERVALS.saturating_mul(1 << self.failures.min(8));
        self.due_at = interval.saturating_add(pause.min(LOOK_INTERVALS));
        self.failures = self.failures.saturating_add(1);
    }
}

/// The guests that are due, the longest overdue first: guests that fail do not keep others waiting.
fn due<'a>(
    looked: &BTreeMap<String, Looked>,
    names: &BTreeSet<&'a str>,
    interval: u64,
    has_moved: impl Fn(&str) -> bool,
) -> Vec<&'a str> {
    let due_at = |name: &str| looked.get(name).map_or(0, |looked| looked.due_at);
    let is_due = |name: &&str| due_at(name) <= interval || has_moved(name);
    let mut due: Vec<_> = names.iter().copied().filter(is_due).collect();
    due.sort_by_key(|name| due_at(name));
    due
}

/// Whether a group is another one or below it.
fn is_in(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The cells that can be parts: there are several, each one's nodes are known, and so are threads.
fn parts(cells: Vec<GuestCell>) -> Vec<GuestCell> {
    let is_known = |cell: &GuestCell| cell.bytes.is_some() || cell.bound_nodes.is_some();
    // Memory must not move to a home that no vCPU is kept at.
    let has_threads = cells.iter().any(|cell| !cell.thread_numbers.is_empty());
    match cells.len() > 1 && has_threads && cells.iter().all(is_known) {
        true => cells,
        false => Vec::new(),
    }
}

/// The nodes that each vCPU's thread prefers. None for a cell without a home of its own: its vCPUs
/// prefer the home of the whole guest.
fn threads(record: &Record, cells: &[GuestCell]) -> Vec<(i32, Option<Affinity>)> {
    let of_cell = |cell: &GuestCell| {
        let is_its = |part: &&Part| part.cell.is_some() && part.cell.map(|it| it.0) == cell.cell;
        let affinity = record.parts().find(is_its).and_then(|part| {
            let nodes = part.home.nodes.clone();
            // Of several nodes a vCPU returns to the one with most of its memory.
            let most = cell.bytes.as_ref().and_then(|bytes| cell_affinity(&nodes, bytes));
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
    use crate::report::domain::examples;
    use nearside_policy::CellId;

    fn set(list: &str) -> NodeSet {
        list.parse().unwrap()
    }

    fn cell(number: u32, thread_numbers: &[i32], bytes: &[(u32, u64)]) -> GuestCell {
        let bytes = bytes.iter().map(|&(node, bytes)| (NodeId(node), bytes)).collect();
        GuestCell {
            cell: Some(number),
            thread_numbers: thread_numbers.into(),
            bytes: Some(bytes),
            ..GuestCell::default()
        }
    }

    fn record(homes: &[(Option<u32>, &str)]) -> Record {
        let example = examples::record();
        let part = |(cell, nodes): &(Option<u32>, &str)| {
            let mut part = example.part().clone();
            (part.cell, part.home.nodes) = (cell.map(CellId), set(nodes));
            part
        };
        let parts: Vec<_> = homes.iter().map(part).collect();
        Record { parts: parts.try_into().unwrap(), ..example }
    }

    #[test]
    fn vcpus_prefer_the_home_of_their_cell() {
        let on = |nodes: &str, home| Some(Affinity { nodes: set(nodes), home: NodeId(home) });
        let cells = [cell(0, &[7, 8], &[(0, 9)]), cell(1, &[9], &[(1, 4), (2, 5)])];
        assert_eq!(
            threads(&record(&[(Some(0), "3"), (Some(1), "1-2")]), &cells),
            [(7, on("3", 3)), (8, on("3", 3)), (9, on("1-2", 2))]
        );
        assert_eq!(
            threads(&record(&[(None, "0-2")]), &cells),
            [(7, None), (8, None), (9, None)],
            "a record that is older than the look"
        );
    }

    #[test]
    fn cells_are_parts_if_nodes_and_threads_are_known() {
        let unknown = |number| GuestCell { bytes: None, ..cell(number, &[], &[]) };
        let bound = GuestCell { bound_nodes: Some(set("1")), ..unknown(1) };
        let known = |cells: &[&GuestCell]| parts(cells.iter().copied().cloned().collect()).len();
        let first = cell(0, &[7], &[(0, 9)]);
        assert_eq!(known(&[&first, &cell(1, &[], &[])]), 2);
        assert_eq!(known(&[&first, &bound]), 2);
        assert_eq!(known(&[&first, &unknown(1)]), 0);
        assert_eq!(known(&[&cell(0, &[], &[(0, 9)]), &bound]), 0, "no thread is known");
        assert_eq!(known(&[&first]), 0, "a guest of one cell is one part");
        assert_eq!(known(&[]), 0);
    }

    #[test]
    fn guests_that_fail_keep_no_other_waiting() {
        let names: BTreeSet<_> = ["a", "b", "c", "d", "e", "f"].into();
        let mut looked = BTreeMap::<String, Looked>::new();
        let mut looks = BTreeMap::<&str, u32>::new();
        for interval in 1..=64 {
            for name in due(&looked, &names, interval, |_| false).into_iter().take(MAX_LOOKS) {
                // Only `f` answers.
                let its = looked.entry(name.into()).or_default();
                match name {
                    "f" => its.due_at = interval + LOOK_INTERVALS,
                    _ => its.fail(interval),
                }
                *looks.entry(name).or_default() += 1;
            }
        }
        // Each about once in eight intervals; at first those that fail are tried more often.
        assert!(looks["f"] >= 7 && looks.values().all(|&looks| looks <= 10), "{looks:?}");
        assert_eq!(due(&looked, &names, 64, |name| name == "f"), ["f"], "its pages have moved");
    }

    #[test]
    fn groups_below_are_told_from_groups_with_a_longer_name() {
        assert!(is_in("/machine/a/vcpu0", "/machine/a") && is_in("/machine/a", "/machine/a"));
        assert!(!is_in("/machine/ab", "/machine/a") && !is_in("/machine", "/machine/a"));
    }
}
