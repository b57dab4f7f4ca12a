//! The figures of each cell of a virtual machine, as `list`, `stat`, `top` and the daemon's API
//! report them.

use super::{answers::StatusAnswer, json};
use nearside_linux::{guest::GuestCell, store::Record};
use nearside_policy::{Home, debt_bytes, total};
use nearside_topology::NodeSet;
use serde::Serialize;

/// A cell of a virtual machine.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct CellStat {
    #[serde(flatten)]
    pub(crate) guest: GuestCell,
    /// Its home; none if it has none of its own.
    #[serde(serialize_with = "json::home")]
    pub(crate) home: Option<Home>,
    /// Bytes off its home; none if they are unknown, or it has no home.
    pub(crate) debt_bytes: Option<u64>,
    /// Pages that were wanted on its home and allocated on another node (`numa_foreign`), by any
    /// process, since the daemon first saw the cell. None without a daemon or a home.
    pub(crate) missed_pages: Option<u64>,
    /// Its status in the control loop, if a daemon answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<StatusAnswer>,
}

/// The cells of a guest with their homes; empty for a guest with less than two. `missed_pages`
/// counts those of a home.
pub(crate) fn cells(
    record: Option<&Record>,
    cells: Vec<GuestCell>,
    missed_pages: impl Fn(&NodeSet) -> Option<u64>,
) -> Vec<CellStat> {
    if cells.len() < 2 {
        return Vec::new();
    }
    let stat = |guest: GuestCell| {
        let parts = record.into_iter().flat_map(Record::parts);
        let mut its = parts.filter(|part| part.cell.map(|cell| cell.0) == guest.cell);
        let home = its.next().map(|part| part.home.clone());
        let nodes = home.as_ref().map(|home| &home.nodes);
        CellStat {
            debt_bytes: nodes.zip(guest.bytes.as_ref()).map(|(home, held)| debt_bytes(held, home)),
            missed_pages: nodes.and_then(&missed_pages),
            home,
            guest,
            status: None,
        }
    };
    cells.into_iter().map(stat).collect()
}

/// The local share of a guest: the mean of those of its cells, weighted by their vCPUs. None if
/// that of a cell is unknown.
pub(crate) fn local_share(cells: &[CellStat]) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for cell in cells {
        let weight = total(&cell.guest.threads) as f64;
        sum += weight * cell.guest.local_share?;
        weights += weight;
    }
    (weights > 0.0).then(|| sum / weights)
}

/// The status of a guest: that of the first cell that is not at home, else of the first one.
pub(crate) fn status(cells: &[CellStat]) -> Option<&StatusAnswer> {
    let all = || cells.iter().filter_map(|cell| cell.status.as_ref());
    let is_well = |status: &&StatusAnswer| ["at-home", "idle"].contains(&status.place.as_str());
    all().find(|status| !is_well(status)).or_else(|| all().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::domain::examples;
    use nearside_policy::{ByNode, CellId};
    use nearside_topology::NodeId;

    fn by_node(amounts: &[(u32, u64)]) -> ByNode {
        amounts.iter().map(|&(node, amount)| (NodeId(node), amount)).collect()
    }

    fn cell(number: u32, threads: &[(u32, u64)], bytes: &[(u32, u64)]) -> GuestCell {
        let (threads, bytes) = (by_node(threads), by_node(bytes));
        GuestCell {
            cell: Some(number),
            local_share: nearside_policy::local_share(&threads, &bytes),
            threads,
            bytes: Some(bytes),
            ..GuestCell::default()
        }
    }

    #[test]
    fn each_cell_is_compared_with_its_own_home() {
        let mut record = examples::record();
        let parts = [(0, "0"), (1, "1")].map(|(number, nodes)| {
            let mut part = record.part().clone();
            (part.cell, part.home.nodes) = (Some(CellId(number)), nodes.parse().unwrap());
            part
        });
        record.parts = parts.to_vec().try_into().unwrap();
        let guest =
            vec![cell(0, &[(0, 2)], &[(0, 30), (1, 10)]), cell(1, &[(1, 1), (0, 1)], &[(1, 5)])];
        let missed = |home: &NodeSet| Some(u64::from(home.first().unwrap().0) + 7);
        let stats = cells(Some(&record), guest.clone(), missed);
        let debts: Vec<_> = stats.iter().map(|it| (it.debt_bytes, it.missed_pages)).collect();
        assert_eq!(debts, [(Some(10), Some(7)), (Some(0), Some(8))]);
        // 30 of 40 bytes for two vCPUs, and half of the time of two others.
        assert_eq!(local_share(&stats), Some((0.75 + 0.5) / 2.0));

        let homeless = cells(None, guest.clone(), missed);
        assert!(homeless.iter().all(|it| it.home.is_none() && it.missed_pages.is_none()));
        assert!(cells(None, guest[..1].to_vec(), missed).is_empty(), "it has no several cells");
        assert_eq!(local_share(&[]), None);
    }
}
