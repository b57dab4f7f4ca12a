//! The guest's own distances.

use crate::{domain::Domain, id::CellId};
use nearside_topology::{Distance, Distances};
use std::collections::BTreeMap;

/// The distances in force between cells. libvirt takes a written one for the other direction, too,
/// and 20 without any (`virDomainNumaGetNodeDistance`, `src/conf/numa_conf.c`).
pub(crate) struct GuestDistances {
    by_pair: BTreeMap<(CellId, CellId), u8>,
}

impl GuestDistances {
    pub(crate) fn new(domain: &Domain) -> Self {
        let written = domain.cells.iter().flat_map(|cell| {
            cell.distances.iter().map(|it| ((cell.id, it.to.value), it.value.value))
        });
        let mut by_pair: BTreeMap<_, _> =
            written.clone().map(|((from, to), value)| ((to, from), value)).collect();
        by_pair.extend(written);
        Self { by_pair }
    }

    pub(crate) fn get(&self, from: CellId, to: CellId) -> Distance {
        self.by_pair.get(&(from, to)).copied().unwrap_or(Distances::REMOTE)
    }
}

impl Domain {
    /// The distances in force from each cell (row) to each; none if the XML has none.
    pub fn distances(&self) -> Option<Vec<Vec<Distance>>> {
        if self.cells.iter().all(|cell| cell.distances.is_empty()) {
            return None;
        }
        let distances = GuestDistances::new(self);
        let value = |from, to| match from == to {
            true => Distances::LOCAL,
            false => distances.get(from, to),
        };
        let ids = || self.cells.iter().map(|cell| cell.id);
        Some(ids().map(|from| ids().map(|to| value(from, to)).collect()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_counts_for_both_directions_and_20_is_the_default() {
        let cells: String = (0..3)
            .map(|id| {
                let sibling = "<distances><sibling id='1' value='12'/></distances>";
                let sibling = if id == 0 { sibling } else { "" };
                format!("<cell cpus='{id}' memory='1'>{sibling}</cell>")
            })
            .collect();
        let text = format!("<domain><vcpu>3</vcpu><cpu><numa>{cells}</numa></cpu></domain>");
        let distances = Domain::read(&text).unwrap().distances().unwrap();
        assert_eq!(distances, [[10, 12, 20], [12, 10, 20], [20, 20, 10]].map(Vec::from));
        let without = Domain::read("<domain><vcpu>3</vcpu></domain>").unwrap();
        assert_eq!(without.distances(), None);
    }
}
