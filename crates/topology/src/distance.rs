//! Distances between nodes, as the ACPI System Locality Information Table (SLIT) gives them.

use crate::id::NodeId;
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// A SLIT value: 10 is local, 20 is "twice as far", 255 is unreachable (ACPI 6.6, section 5.2.17).
pub type Distance = u8;

/// The distance of every pair of nodes; not necessarily symmetric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "Rows")
)]
pub struct Distances {
    nodes: Vec<NodeId>,
    // Row by row: rows[i * nodes.len() + j] is from nodes[i] to nodes[j].
    // Invariant: there are as many as the square of the nodes.
    rows: Vec<Distance>,
    #[cfg_attr(feature = "serde", serde(skip))]
    index: BTreeMap<NodeId, usize>,
}

/// A table as it was written, before it is known to have a distance for every pair.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct Rows {
    nodes: Vec<NodeId>,
    rows: Vec<Distance>,
}

#[cfg(feature = "serde")]
impl TryFrom<Rows> for Distances {
    type Error = InvalidDistances;

    fn try_from(Rows { nodes, rows }: Rows) -> Result<Self, InvalidDistances> {
        Self::new(&nodes, &rows)
    }
}

/// A table of distances without one row and one column for each node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{nodes} nodes need {} distances, but there are {values}", nodes * nodes)]
pub struct InvalidDistances {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of values.
    pub values: usize,
}

impl Distances {
    /// A node's distance to itself (`LOCAL_DISTANCE` in Linux).
    pub const LOCAL: Distance = 10;
    /// The distance between nodes about which nothing is known (`REMOTE_DISTANCE` in Linux).
    pub const REMOTE: Distance = 20;
    /// "No way from here to there" (ACPI 6.6, section 5.2.17).
    pub const UNREACHABLE: Distance = 255;

    /// The table whose `rows` hold, row by row, the distances from each of `nodes` to each of them.
    pub fn new(nodes: &[NodeId], rows: &[Distance]) -> Result<Self, InvalidDistances> {
        if rows.len() != nodes.len() * nodes.len() {
            return Err(InvalidDistances { nodes: nodes.len(), values: rows.len() });
        }
        let index = nodes.iter().enumerate().map(|(i, &node)| (node, i)).collect();
        Ok(Self { nodes: nodes.to_vec(), rows: rows.to_vec(), index })
    }

    /// The distances that Linux assumes without a SLIT: 10 on a node, 20 between any two.
    pub fn uniform(nodes: &[NodeId]) -> Self {
        let n = nodes.len();
        let mut rows = vec![Self::REMOTE; n * n];
        rows.iter_mut().step_by(n + 1).for_each(|d| *d = Self::LOCAL);
        let index = nodes.iter().enumerate().map(|(i, &node)| (node, i)).collect();
        Self { nodes: nodes.to_vec(), rows, index }
    }

    /// The distance of memory on `to` for a CPU on `from`; Linux's default for a node that is not
    /// in the table.
    pub fn get(&self, from: NodeId, to: NodeId) -> Distance {
        match (self.position(from), self.position(to)) {
            (Some(i), Some(j)) => self.rows[i * self.nodes.len() + j],
            _ if from == to => Self::LOCAL,
            _ => Self::REMOTE,
        }
    }

    /// The nodes of the table, in the order of its rows.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The distances from `from` to each node in the order of [`Self::nodes`].
    pub fn row(&self, from: NodeId) -> impl Iterator<Item = Distance> + '_ {
        let row = self.position(from).map(|i| &self.rows[i * self.nodes.len()..]);
        self.nodes.iter().enumerate().map(move |(j, &to)| match row {
            Some(row) => row[j],
            None if from == to => Self::LOCAL,
            None => Self::REMOTE,
        })
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.index.get(&node).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_looked_up_by_node_number_not_by_row() {
        let sparse = Distances::new(&[NodeId(0), NodeId(8)], &[10, 40, 17, 10]).unwrap();
        assert_eq!(sparse.get(NodeId(0), NodeId(8)), 40);
        assert_eq!(sparse.get(NodeId(8), NodeId(0)), 17);
        assert_eq!(sparse.get(NodeId(8), NodeId(3)), 20);
        assert_eq!(sparse.row(NodeId(8)).collect::<Vec<_>>(), [17, 10]);
    }

    #[test]
    fn a_ragged_table_is_refused() {
        assert!(Distances::new(&[NodeId(0), NodeId(1)], &[10, 20, 20]).is_err());
    }

    #[test]
    fn without_a_table_every_other_node_is_as_far() {
        let plain = Distances::uniform(&[NodeId(0), NodeId(1), NodeId(2)]);
        assert_eq!(plain.row(NodeId(1)).collect::<Vec<_>>(), [20, 10, 20]);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_table_survives_json_and_a_mangled_one_is_refused() {
        let table = Distances::new(&[NodeId(0), NodeId(8)], &[10, 40, 17, 10]).unwrap();
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(text, r#"{"nodes":[0,8],"rows":[10,40,17,10]}"#);
        assert_eq!(serde_json::from_str::<Distances>(&text).unwrap(), table);
        let error =
            serde_json::from_str::<Distances>(r#"{"nodes":[0,8],"rows":[10]}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("2 nodes need 4 distances, but there are 1"),
            "{error}"
        );
    }
}
