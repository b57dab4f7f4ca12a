//! The figures of the cells of virtual machines.

use super::{Page, ratio};
use crate::{domains::Domain, report::cell_stat::CellStat};
use nearside_policy::ByNode;
use nearside_topology::NodeId;
use prometheus_client::registry::Unit;
use std::fmt;

/// A count or an amount by node.
type Amounts = fn(&CellStat) -> ByNode;

/// Adds the figures of all cells.
pub(super) fn add(domains: &[Domain], page: &mut Page<'_>) -> fmt::Result {
    let cells: Vec<_> = domains
        .iter()
        .flat_map(|domain| domain.cells.iter().map(|cell| (domain.name.as_str(), cell)))
        .filter_map(|(domain, cell)| {
            let number = cell.guest.cell?.to_string();
            Some((cell, [("domain", domain.to_owned()), ("cell", number)]))
        })
        .collect();
    let by_node: [(&str, &str, Option<Unit>, Amounts); 4] = [
        ("nearside_cell_home", "1 for each node of the cell's home", None, |cell| {
            let nodes = cell.home.iter().flat_map(|home| home.nodes.iter());
            nodes.map(|node| (node, 1)).collect()
        }),
        (
            "nearside_cell_vcpus",
            "vCPUs of the cell by the node they run on or ran on last",
            None,
            |cell| cell.guest.threads.clone(),
        ),
        ("nearside_cell_memory", "Memory of the cell by node", Some(Unit::Bytes), |cell| {
            cell.guest.bytes.clone().unwrap_or_default()
        }),
        (
            "nearside_cell_huge",
            "The part of the cell's memory in explicit huge pages, by node",
            Some(Unit::Bytes),
            |cell| cell.guest.huge_bytes.clone().unwrap_or_default(),
        ),
    ];
    for (name, help, unit, amounts) in by_node {
        page.gauge(
            (name, help, unit),
            cells.iter().flat_map(|(cell, [domain, number])| {
                let labels =
                    |node: NodeId| [domain.clone(), number.clone(), ("node", node.to_string())];
                amounts(cell).into_iter().map(move |(node, amount)| (labels(node), amount))
            }),
        )?;
    }
    let of_cell = |figure: fn(&CellStat) -> Option<f64>| {
        let values = cells.iter();
        values.filter_map(move |(cell, labels)| Some((labels.clone(), figure(cell)?)))
    };
    page.gauge(
        (
            "nearside_cell_local_share",
            "Local share of the cell's vCPUs and its memory",
            Some(ratio()),
        ),
        of_cell(|cell| cell.guest.local_share),
    )?;
    page.gauge(
        ("nearside_cell_debt", "Memory off the cell's home", Some(Unit::Bytes)),
        of_cell(|cell| Some(cell.debt_bytes? as f64)),
    )?;
    page.gauge(
        (
            "nearside_cell_missed_pages",
            "Pages wanted on the cell's home and allocated elsewhere, by any process, since \
                 the cell was first seen",
            None,
        ),
        of_cell(|cell| Some(cell.missed_pages? as f64)),
    )
}
