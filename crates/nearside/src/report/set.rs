//! The result of `nearside set`.

use super::{json, units::size};
use crate::printable::printable;
use nearside_policy::Stayed;
use nearside_topology::NodeSet;
use serde::Serialize;

/// The new home, and the memory that followed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Report {
    /// The domain.
    pub(crate) name: String,
    /// The home before.
    #[serde(serialize_with = "json::set")]
    pub(crate) nodes_before: NodeSet,
    /// The home now.
    #[serde(serialize_with = "json::set")]
    pub(crate) nodes: NodeSet,
    /// Whether memory was asked to follow.
    #[serde(skip)]
    pub(crate) asked_to_move: bool,
    /// Bytes that moved.
    pub(crate) moved_bytes: u64,
    /// Bytes that stayed, by reason.
    pub(crate) stayed_bytes: Stayed,
    /// Whether the move was interrupted.
    pub(crate) interrupted: bool,
    /// Whether new memory comes only from the new home, if the policy demands that.
    pub(crate) confined: bool,
    /// Whether the daemon made the change: then memory follows later, and the figures above are 0.
    pub(crate) by_daemon: bool,
    /// Notes for the operator.
    pub(crate) notes: Vec<String>,
}

/// The report as text.
pub(crate) fn text(report: &Report) -> String {
    let Report { name, nodes_before, nodes, .. } = report;
    let before = match nodes_before == nodes {
        true => "as before".into(),
        false => format!("before: {}", nodes_before.named()),
    };
    let moved = match report.asked_to_move {
        true => format!("; {} moved", size(report.moved_bytes)),
        false => String::new(),
    };
    let (name, nodes) = (printable(name), nodes.named());
    let mut text = format!("{name}: home is {nodes} ({before}){moved}\n");
    for (why, bytes) in &report.stayed_bytes {
        text += &format!("  {} stayed: {}\n", size(*bytes), why.words());
    }
    for note in &report.notes {
        text += &format!("note: {}\n", printable(note));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::StayedWhy;
    use nearside_topology::NodeId;

    const MIB: u64 = 1 << 20;

    #[test]
    fn report_has_moved_and_remaining_bytes_with_reasons() {
        let report = Report {
            name: "db".into(),
            nodes_before: NodeSet::from([NodeId(0), NodeId(1)]),
            nodes: NodeSet::from([NodeId(1)]),
            asked_to_move: true,
            moved_bytes: 96 * MIB,
            stayed_bytes: [
                (StayedWhy::NoHugePage, 32 * MIB),
                (StayedWhy::Busy, 4096),
                (StayedWhy::NotMapped, 16 * MIB),
            ]
            .into(),
            notes: vec!["3 MiB of mapped files stay elsewhere".into()],
            ..Report::default()
        };
        insta::assert_snapshot!(text(&report), @r"
        db: home is node 1 (before: nodes 0-1); 96 MiB moved
          4 KiB stayed: busy
          32 MiB stayed: no free huge page on the target
          16 MiB stayed: not mapped by its processes (tmpfs files, detached shared memory)
        note: 3 MiB of mapped files stay elsewhere
        ");
    }

    #[test]
    fn unrequested_move_is_not_reported() {
        let nodes = NodeSet::from([NodeId(1)]);
        let report =
            Report { name: "db".into(), nodes_before: nodes.clone(), nodes, ..Report::default() };
        assert_eq!(text(&report), "db: home is node 1 (as before)\n");
    }
}
