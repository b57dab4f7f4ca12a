//! The reason why a cell has several nodes.
//!
//! Its home began on a node that it does not fit. That explains the home only if there is no node
//! that it fits: else the virtual machine would be slower with the cell on that node, which is the
//! reason. An example is a node with CPUs and no memory beside one that has both and fewer cores
//! than the cell has vCPUs.

use super::{
    arrange::{Arrangement, Arranger, Seat},
    decision::{Alone, Spill},
    home::Home,
    search::{Found, is_taken},
};
use crate::{
    SlowDown,
    index::{CellIndex, NodeIndex},
};

/// Steps that the reasons of all cells may take.
const EFFORT: u64 = 200_000;

/// Looks for the reasons.
pub(super) struct Spills<'a, 'b> {
    pub(super) arranger: &'a mut Arranger<'b>,
    found: &'a Found,
    /// The number of steps at which it gives up.
    end: u64,
}

impl<'a, 'b> Spills<'a, 'b> {
    pub(super) fn new(arranger: &'a mut Arranger<'b>, found: &'a Found) -> Self {
        let end = arranger.steps.saturating_add(EFFORT);
        Self { arranger, found, end }
    }

    /// The reason of a home; none if it has one node.
    pub(super) fn of(&mut self, home: &Home) -> Option<Spill> {
        if home.nodes.len() < 2 {
            return None;
        }
        let at = home.cell;
        let &(_, anchor) = self.found.best.seats.iter().find(|&&(cell, _)| cell == at)?;
        let alone = self.alone(home, anchor);
        let from = alone.map(|(node, _)| node).filter(|node| home.nodes.contains(node));
        let from = from.unwrap_or(anchor);
        let taken = self.arranger.taken_before(&self.found.best, at);
        let cell = &self.arranger.cells[at];
        let bytes = |pages: u64| pages.saturating_mul(cell.page_bytes);
        let id = |i: NodeIndex| cell.view.nodes[i].id;
        Some(Spill {
            from: id(from),
            needed_bytes: bytes(cell.ask.pages),
            available_bytes: bytes(taken.pages_left(&cell.view, from)),
            page_size: cell.ask.page_size,
            vcpus: cell.ask.vcpus,
            cpus: taken.cpus_left(&cell.view, from),
            alone: alone.map(|(node, slow_down)| Alone { node: id(node), slow_down }),
        })
    }

    /// A node that the cell of a home fits, the others staying on their seats: one of the home, or
    /// else the nearest to its anchor.
    fn alone(&mut self, home: &Home, anchor: NodeIndex) -> Option<(NodeIndex, SlowDown)> {
        let view = self.arranger.cells[home.cell].view.clone();
        let (of_home, others): (Vec<NodeIndex>, Vec<NodeIndex>) =
            view.nearest(anchor).iter().partition(|i| home.nodes.contains(i));
        for node in of_home.into_iter().chain(others) {
            if self.arranger.steps >= self.end {
                return None;
            }
            if let Some(slow_down) = self.slow_down_on(home.cell, node) {
                return Some((node, slow_down));
            }
        }
        None
    }

    /// The slow-down of the virtual machine with a cell on one node alone; None if it does not fit
    /// there.
    fn slow_down_on(&mut self, at: CellIndex, node: NodeIndex) -> Option<SlowDown> {
        let Found { best, nodes, .. } = self.found;
        let moved = |&(cell, seat): &Seat| (cell, if cell == at { node } else { seat });
        let is_taken = is_taken(&best.seats, node, *nodes);
        if is_taken || !self.arranger.fits_alone(at, node) {
            return None;
        }
        let seats: Vec<Seat> = best.seats.iter().map(moved).collect();
        let there = self.arranger.better(&seats, *nodes, None)?;
        // Memory alone on a node without CPUs goes before any slow-down (ADR 21).
        let is_like = there.score.misplaced <= best.score.misplaced;
        (is_like && self.is_on(&there, at, node)).then_some(SlowDown(there.score.slow_down))
    }

    /// Whether a cell has one node, and fits it beside the cells before it.
    fn is_on(&self, there: &Arrangement, at: CellIndex, node: NodeIndex) -> bool {
        let cell = &self.arranger.cells[at];
        let taken = self.arranger.taken_before(there, at);
        there.homes.iter().any(|home| home.cell == at && home.nodes == [node])
            && taken.fits(&cell.view, &cell.ask, node)
    }
}
