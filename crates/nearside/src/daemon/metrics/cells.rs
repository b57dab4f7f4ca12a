//! The figures of the cells of virtual machines.

use crate::{domains::Domain, report::cell_stat::CellStat};
use nearside_policy::ByNode;
use nearside_topology::NodeId;
use prometheus_client::registry::Unit;

/// A figure of cells: its name, its help text, its unit, and a value for each set of labels.
pub(super) struct Figure<const N: usize> {
    pub(super) about: (&'static str, &'static str, Option<Unit>),
    pub(super) values: Vec<([(&'static str, String); N], f64)>,
}

/// The cells of all domains, with their labels.
fn cells(domains: &[Domain]) -> Vec<(&CellStat, [(&'static str, String); 2])> {
    let labelled = |domain: &'_ str, cell: &CellStat| {
        let number = cell.guest.cell?.to_string();
        Some([("domain", domain.to_owned()), ("cell", number)])
    };
    let of = |domain: &'_ Domain| domain.name.clone();
    let all = domains.iter().flat_map(|it| it.cells.iter().map(move |cell| (of(it), cell)));
    all.filter_map(|(domain, cell)| Some((cell, labelled(&domain, cell)?))).collect()
}

/// The figures by node.
pub(super) fn by_node(domains: &[Domain]) -> [Figure<3>; 4] {
    type Amounts = fn(&CellStat) -> ByNode;
    let cells = cells(domains);
    let figure = |name, help, unit, amounts: Amounts| {
        let of_cell = |(cell, [domain, number]): &(&CellStat, [(&'static str, String); 2])| {
            let labels =
                |node: NodeId| [domain.clone(), number.clone(), ("node", node.to_string())];
            let amounts = amounts(cell).into_iter();
            amounts.map(|(node, amount)| (labels(node), amount as f64)).collect::<Vec<_>>()
        };
        Figure { about: (name, help, unit), values: cells.iter().flat_map(of_cell).collect() }
    };
    [
        figure("nearside_cell_home", "1 for each node of the cell's home", None, |cell| {
            let nodes = cell.home.iter().flat_map(|home| home.nodes.iter());
            nodes.map(|node| (node, 1)).collect()
        }),
        figure(
            "nearside_cell_vcpus",
            "vCPUs of the cell by the node they run on or ran on last",
            None,
            |cell| cell.guest.threads.clone(),
        ),
        figure("nearside_cell_memory", "Memory of the cell by node", Some(Unit::Bytes), |cell| {
            cell.guest.bytes.clone().unwrap_or_default()
        }),
        figure(
            "nearside_cell_huge",
            "The part of the cell's memory in explicit huge pages, by node",
            Some(Unit::Bytes),
            |cell| cell.guest.huge_bytes.clone().unwrap_or_default(),
        ),
    ]
}

/// The figures of each cell as a whole.
pub(super) fn whole(domains: &[Domain]) -> [Figure<2>; 3] {
    type Value = fn(&CellStat) -> Option<f64>;
    let cells = cells(domains);
    let figure = |name, help, unit, value: Value| {
        let values = cells.iter().filter_map(|(cell, labels)| Some((labels.clone(), value(cell)?)));
        Figure { about: (name, help, unit), values: values.collect() }
    };
    [
        figure(
            "nearside_cell_local_share",
            "Local share of the cell's vCPUs and its memory",
            Some(Unit::Other("ratio".into())),
            |cell| cell.guest.local_share,
        ),
        figure("nearside_cell_debt", "Memory off the cell's home", Some(Unit::Bytes), |cell| {
            Some(cell.debt_bytes? as f64)
        }),
        figure(
            "nearside_cell_missed_pages",
            "Pages wanted on the cell's home and allocated elsewhere, by any process, since the \
             cell was first seen",
            None,
            |cell| Some(cell.missed_pages? as f64),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{cell_stat, domain::examples};
    use nearside_linux::guest::GuestCell;

    #[test]
    fn each_cell_has_its_figures() {
        let cell = |number, node: u32| GuestCell {
            cell: Some(number),
            threads: [(NodeId(node), 2)].into(),
            bytes: Some([(NodeId(node), 4096), (NodeId(7), 1024)].into()),
            ..GuestCell::default()
        };
        let cells = cell_stat::cells(None, vec![cell(0, 1), cell(1, 3)], |_| None);
        let domain = examples::domains_told_of().remove(0).with_cells(cells);
        let name = domain.name.clone();
        let domains = [domain];
        let [home, vcpus, memory, _] = by_node(&domains);
        let labels = |cell: &str, node: &str| {
            [("domain", name.clone()), ("cell", cell.into()), ("node", node.into())]
        };
        assert!(home.values.is_empty(), "without a record there is no home");
        assert_eq!(vcpus.values, [(labels("0", "1"), 2.0), (labels("1", "3"), 2.0)]);
        assert_eq!(
            memory.values,
            [
                (labels("0", "1"), 4096.0),
                (labels("0", "7"), 1024.0),
                (labels("1", "3"), 4096.0),
                (labels("1", "7"), 1024.0)
            ]
        );
        let [_, debt, missed] = whole(&domains);
        assert!(debt.values.is_empty() && missed.values.is_empty());
    }
}
