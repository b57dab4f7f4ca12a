//! A guest by its cells: its threads, CPU time and memory, each split among its parts. Pure.

use crate::{guest::GuestCell, store::Record};
use nearside_policy::{ByNode, CellId, PartId, total};
use nearside_topology::NodeSet;

/// The parts of a domain as a sample has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// One: an ordinary domain, or a guest whose cells are unknown.
    Whole,
    /// One for each cell that was looked at.
    Cells,
    /// Its record has cells, and they were not looked at yet: nothing is known about each.
    Unknown,
}

/// The parts of a domain with these cells and this record.
pub(super) fn parts(cells: &[GuestCell], record: Option<&Record>) -> Parts {
    let Some(record) = record else {
        return if cells.is_empty() { Parts::Whole } else { Parts::Cells };
    };
    let is_whole = record.part().cell.is_none();
    match is_outdated(cells, record) || cells.is_empty() {
        false => Parts::Cells,
        true if is_whole => Parts::Whole,
        true => Parts::Unknown,
    }
}

/// Whether a record has other parts than the cells that were looked at. A guest keeps its cells
/// while it runs; a record of one part was written before they were known.
pub(super) fn is_outdated(cells: &[GuestCell], record: &Record) -> bool {
    let recorded = record.parts().map(|part| part.cell);
    !cells.is_empty() && !recorded.eq(cells.iter().map(|it| it.cell.map(CellId)))
}

/// The names of the parts.
pub(super) fn ids(
    parts: Parts,
    name: &str,
    cells: &[GuestCell],
    record: Option<&Record>,
) -> Vec<PartId> {
    let cell = |cell: &GuestCell| PartId::cell_of(name, CellId(cell.cell.unwrap_or_default()));
    match (parts, record) {
        (Parts::Cells, _) => cells.iter().map(cell).collect(),
        (Parts::Unknown, Some(record)) => record.parts().map(|part| record.id_of(part)).collect(),
        _ => vec![PartId::of(name)],
    }
}

/// The part of a thread: its cell, or the first one for the emulator and other threads.
pub(super) fn part_of_thread(cells: &[GuestCell], thread: i32) -> usize {
    cells.iter().position(|cell| cell.thread_numbers.contains(&thread)).unwrap_or(0)
}

/// Splits a guest's CPU time on each node among its parts by the weights of their threads there, or
/// by all their threads on a node without any.
pub(super) fn split_time(whole_ns: &ByNode, weights: &[ByNode]) -> Vec<ByNode> {
    let mut split = vec![ByNode::new(); weights.len()];
    for (&node, &ns) in whole_ns {
        let here: Vec<u64> = weights.iter().map(|it| it.get(&node).copied().unwrap_or(0)).collect();
        let anywhere = || weights.iter().map(total).collect();
        let weights = if here.iter().any(|&weight| weight > 0) { here } else { anywhere() };
        for (part, ns) in split.iter_mut().zip(shares(ns, &weights)) {
            part.extend((ns > 0).then_some((node, ns)));
        }
    }
    split
}

/// Splits a guest's memory on each node among its parts. Each has the memory that was found in its
/// addresses at the last look. The remainder is the monitor's own, or has moved or was touched
/// since: it counts for the cell at home there, else for the first.
pub(super) fn split_memory(
    whole_bytes: &ByNode,
    cells: &[GuestCell],
    homes: &[Option<&NodeSet>],
) -> Vec<ByNode> {
    let mut split = vec![ByNode::new(); cells.len()];
    for (&node, &bytes) in whole_bytes {
        let at = |cell: &GuestCell| cell.bytes.as_ref()?.get(&node).copied();
        let found: Vec<u64> = cells.iter().map(|cell| at(cell).unwrap_or(0)).collect();
        let all = found.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let mut here = if all > bytes { shares(bytes, &found) } else { found };
        let is_home = |home: &Option<&NodeSet>| home.is_some_and(|home| home.contains(node));
        let owner = homes.iter().position(is_home).unwrap_or(0);
        if let Some(owned) = here.get_mut(owner) {
            *owned = owned.saturating_add(bytes.saturating_sub(all));
        }
        for (part, bytes) in split.iter_mut().zip(here) {
            part.extend((bytes > 0).then_some((node, bytes)));
        }
    }
    split
}

/// Splits an amount by weight; the first gets the rest. Without weights it gets all.
pub(super) fn shares(amount: u64, weights: &[u64]) -> Vec<u64> {
    let all: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let share = |weight: &u64| (u128::from(amount) * u128::from(*weight) / all.max(1)) as u64;
    let mut shares: Vec<u64> = weights.iter().map(share).collect();
    let given = shares.iter().fold(0_u64, |sum, share| sum.saturating_add(*share));
    if let Some(first) = shares.first_mut() {
        *first = first.saturating_add(amount.saturating_sub(given));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Part, Parts as RecordedParts};
    use nearside_policy::{Affinity, Home, Limits, MemoryPolicy, Origin};
    use nearside_topology::NodeId;
    use proptest::prelude::*;

    fn by_node(amounts: &[(u32, u64)]) -> ByNode {
        amounts.iter().map(|&(node, amount)| (NodeId(node), amount)).collect()
    }

    fn cell(number: u32, threads: &[i32], bytes: &[(u32, u64)]) -> GuestCell {
        GuestCell {
            cell: Some(number),
            thread_numbers: threads.into(),
            bytes: Some(by_node(bytes)),
            ..GuestCell::default()
        }
    }

    fn record(cells: &[Option<u32>]) -> Record {
        let home = Home {
            nodes: [NodeId(0)].into(),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Local,
        };
        let part = |cell: &Option<u32>| Part { cell: cell.map(CellId), ..Part::at(home.clone()) };
        Record {
            name: "/vm".into(),
            boot_id: String::new(),
            cgroup: "/vm".into(),
            inode: 7,
            started_unix_s: 0,
            found_by: Some("/*".into()),
            command: Vec::new(),
            limits: Limits::default(),
            parts: RecordedParts::try_from(cells.iter().map(part).collect::<Vec<_>>()).unwrap(),
        }
    }

    #[test]
    fn a_guest_is_sampled_by_its_cells_once_they_are_known() {
        let cells = [cell(0, &[], &[]), cell(2, &[], &[])];
        let of_cells = record(&[Some(0), Some(2)]);
        for (cells, record, expected, names) in [
            (&[][..], None, Parts::Whole, &["/vm"][..]),
            (&[], Some(record(&[None])), Parts::Whole, &["/vm"]),
            (&cells, None, Parts::Cells, &["cell 0 of /vm", "cell 2 of /vm"]),
            (&cells, Some(of_cells.clone()), Parts::Cells, &["cell 0 of /vm", "cell 2 of /vm"]),
            // The record is older than the look.
            (&cells, Some(record(&[None])), Parts::Whole, &["/vm"]),
            // A new daemon has not looked yet.
            (&[], Some(of_cells.clone()), Parts::Unknown, &["cell 0 of /vm", "cell 2 of /vm"]),
        ] {
            let found = parts(cells, record.as_ref());
            assert_eq!(found, expected);
            let ids = ids(found, "/vm", cells, record.as_ref());
            assert_eq!(ids.iter().map(ToString::to_string).collect::<Vec<_>>(), names);
        }
        assert!(is_outdated(&cells, &record(&[None])) && !is_outdated(&cells, &of_cells));
        assert!(!is_outdated(&[], &of_cells));
    }

    #[test]
    fn threads_of_no_cell_count_for_the_first() {
        let cells = [cell(0, &[11, 12], &[]), cell(1, &[13], &[])];
        assert_eq!([11, 12, 13, 14].map(|thread| part_of_thread(&cells, thread)), [0, 0, 1, 0]);
        assert_eq!(part_of_thread(&[], 11), 0);
    }

    #[test]
    fn time_follows_the_threads() {
        // By the threads on node 0; no thread was seen on node 2, so by all.
        let weights = [by_node(&[(0, 30)]), by_node(&[(0, 10), (1, 20)])];
        assert_eq!(
            split_time(&by_node(&[(0, 100), (1, 7), (2, 60)]), &weights),
            [by_node(&[(0, 75), (2, 30)]), by_node(&[(0, 25), (1, 7), (2, 30)])]
        );
        assert_eq!(
            split_time(&by_node(&[(0, 9)]), &[ByNode::new(), ByNode::new()]),
            [by_node(&[(0, 9)]), ByNode::new()]
        );
    }

    #[test]
    fn memory_follows_the_last_look_and_the_homes() {
        let cells = [cell(0, &[], &[(0, 100)]), cell(1, &[], &[(1, 60), (0, 20)])];
        let homes: [NodeSet; 2] = [[NodeId(0)].into(), [NodeId(2)].into()];
        let homes = homes.each_ref().map(Some);
        // 5 more bytes on node 0; of cell 1, 40 bytes have moved from node 1 to its home.
        assert_eq!(
            split_memory(&by_node(&[(0, 125), (1, 20), (2, 40), (3, 1)]), &cells, &homes),
            [by_node(&[(0, 105), (3, 1)]), by_node(&[(0, 20), (1, 20), (2, 40)])]
        );
        // Without homes the first has the remainder.
        assert_eq!(
            split_memory(&by_node(&[(2, 40)]), &cells, &[None, None]),
            [by_node(&[(2, 40)]), ByNode::new()]
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_counted_twice(
            whole in proptest::collection::btree_map(0..4_u32, 0..u64::MAX / 8, 0..4),
            seen in proptest::collection::vec(
                proptest::collection::btree_map(0..4_u32, any::<u64>(), 0..4), 1..4),
        ) {
            let by_node = |it: &std::collections::BTreeMap<u32, u64>| -> ByNode {
                it.iter().map(|(&node, &amount)| (NodeId(node), amount)).collect()
            };
            let whole = by_node(&whole);
            let seen: Vec<ByNode> = seen.iter().map(by_node).collect();
            let cells: Vec<GuestCell> = seen
                .iter()
                .map(|bytes| GuestCell { bytes: Some(bytes.clone()), ..GuestCell::default() })
                .collect();
            let sum = |parts: &[ByNode]| {
                let mut sum = ByNode::new();
                for (&node, &amount) in parts.iter().flatten() {
                    *sum.entry(node).or_default() += amount;
                }
                sum
            };
            let whole_of: ByNode =
                whole.iter().filter(|(_, amount)| **amount > 0).map(|(&n, &a)| (n, a)).collect();
            let memory = split_memory(&whole, &cells, &vec![None; cells.len()]);
            prop_assert_eq!(&sum(&memory), &whole_of);
            prop_assert_eq!(&sum(&split_time(&whole, &seen)), &whole_of);
        }
    }
}
