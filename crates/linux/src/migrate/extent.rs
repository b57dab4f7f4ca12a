//! The memory of a cgroup that belongs to one part.

use crate::guest::{Addresses, GuestCell};
use nearside_policy::CellId;

/// The memory of a cgroup that belongs to a part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Extent {
    /// All memory of the group: the part of an ordinary domain.
    #[default]
    Group,
    /// Only these addresses: a cell of a virtual machine.
    Only(Addresses),
    /// All memory but that of other cells: the first cell also has the monitor's own memory.
    Without(Vec<Addresses>),
}

impl Extent {
    /// The memory of one of several cells. None if the addresses of a cell are unknown.
    pub fn of_cell(cells: &[GuestCell], cell: CellId) -> Option<Self> {
        let at = cells.iter().position(|it| it.cell == Some(cell.0))?;
        match cells.split_at(at) {
            ([], [_, others @ ..]) => {
                let others = others.iter().map(|it| it.addresses.clone());
                others.collect::<Option<Vec<_>>>().map(Self::Without)
            }
            (_, [it, ..]) => it.addresses.clone().map(Self::Only),
            (_, []) => None,
        }
    }

    /// Whether the mapping that begins at an address is the part's.
    pub(super) fn has(&self, process: i32, start: u64) -> bool {
        let is_in = |it: &Addresses| it.process == process && it.range.contains(&start);
        match self {
            Self::Group => true,
            Self::Only(own) => is_in(own),
            Self::Without(others) => !others.iter().any(is_in),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(number: u32, range: Option<std::ops::Range<u64>>) -> GuestCell {
        let addresses = range.map(|range| Addresses { process: 7, range });
        GuestCell { cell: Some(number), addresses, ..GuestCell::default() }
    }

    #[test]
    fn the_first_cell_has_the_memory_of_no_other() {
        let cells = [cell(0, Some(10..20)), cell(3, Some(20..30)), cell(4, Some(40..50))];
        let parts = [0, 3, 4].map(|it| Extent::of_cell(&cells, CellId(it)).unwrap());
        for (start, expected) in
            [(0, 0), (10, 0), (19, 0), (20, 1), (29, 1), (30, 0), (40, 2), (49, 2), (50, 0)]
        {
            let having: Vec<_> = (0..3).filter(|&at| parts[at].has(7, start)).collect();
            assert_eq!(having, [expected], "{start}");
        }
        // Another process of the group.
        assert_eq!(parts.each_ref().map(|part| part.has(8, 20)), [true, false, false]);
        assert!(Extent::Group.has(8, 20));
    }

    #[test]
    fn cells_without_known_addresses_have_no_extent() {
        let cells = [cell(0, None), cell(1, Some(20..30)), cell(2, None)];
        let known = |cell| Extent::of_cell(&cells, CellId(cell)).is_some();
        assert_eq!([0, 1, 2, 3].map(known), [false, true, false, false]);
    }
}
