//! Arrangements: each cell on its anchor, and the consequences for the whole virtual machine.

use super::{
    home::{Home, Taken},
    nearness::Nearness,
};
use crate::{
    CostModel,
    cost::{Ask, Costing, to_u64},
    index::{CellIndex, IndexVec, NodeIndex},
    view::View,
};
use std::{cmp::Reverse, rc::Rc};

/// A cell in the units of costing.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) ask: Ask,
    pub(super) page_bytes: u64,
    /// The view with pages of its size.
    pub(super) view: Rc<View>,
}

/// A cell and the node that its home begins on.
pub(super) type Seat = (CellIndex, NodeIndex);

/// Whether cells may have nodes in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nodes {
    /// Each node belongs to one cell.
    Distinct,
    /// Cells may share nodes.
    Shared,
}

/// The order of arrangements, best first: slow-down of the whole, then vCPUs a core, then memory
/// that is still available.
pub(super) type Score = (u64, u64, Reverse<u64>);

/// An arrangement and its consequences.
#[derive(Debug, Clone)]
pub(super) struct Arrangement {
    pub(super) score: Score,
    /// What the distances between the homes add to the slow-down, in millionths.
    pub(super) between_ppm: u64,
    /// The seats, by cell.
    pub(super) seats: Vec<Seat>,
    /// The homes, by cell.
    pub(super) homes: Vec<Rc<Home>>,
}

impl Arrangement {
    /// Equals are ordered by the nodes of the homes, cell by cell.
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        let nodes = |it: &Self| it.homes.iter().map(|home| home.nodes.clone()).collect::<Vec<_>>();
        match self.score.cmp(&other.score) {
            std::cmp::Ordering::Equal => nodes(self) < nodes(other),
            order => order.is_lt(),
        }
    }
}

/// Evaluates arrangements of the cells of one virtual machine.
#[derive(Debug)]
pub(super) struct Arranger<'a> {
    pub(super) cells: &'a IndexVec<CellIndex, Cell>,
    /// The nodes on which a home may begin: those with a CPU.
    pub(super) anchors: Vec<NodeIndex>,
    /// Whether a cell may have a node.
    may_have: IndexVec<NodeIndex, bool>,
    pub(super) nearness: Nearness,
    model: &'a CostModel,
    costings: IndexVec<CellIndex, Costing<'a>>,
    /// The home of each cell on each node alone; None where it does not fit.
    alone: IndexVec<CellIndex, IndexVec<NodeIndex, Option<Rc<Home>>>>,
    vcpus: u64,
    evaluated: u64,
    /// Effort spent, in steps of a few nanoseconds.
    pub(super) steps: u64,
}

impl<'a> Arranger<'a> {
    /// `may_have` has the nodes of the view that the cells may have.
    pub(super) fn new(
        cells: &'a IndexVec<CellIndex, Cell>,
        may_have: IndexVec<NodeIndex, bool>,
        nearness: Nearness,
        model: &'a CostModel,
    ) -> Self {
        let costing = |cell: &'a Cell| Costing::new(&cell.view, &cell.ask, model);
        let mut costings: IndexVec<CellIndex, _> = cells.iter().map(costing).collect();
        let nothing = Taken::nothing(may_have.len());
        let mut alone_on = |at: CellIndex, i: NodeIndex| {
            let cell = &cells[at];
            let may = may_have[i] && nothing.fits(&cell.view, &cell.ask, i);
            may.then(|| Home::lay(at, &mut costings[at], vec![i]).map(Rc::new)).flatten()
        };
        let alone: IndexVec<CellIndex, _> = cells
            .indices()
            .map(|at| may_have.indices().map(|i| alone_on(at, i)).collect())
            .collect();
        let has_cpu = |i: &NodeIndex| {
            may_have[*i] && cells.iter().next().is_some_and(|it| it.view.nodes[*i].cores > 0)
        };
        let anchors = may_have.indices().filter(has_cpu).collect();
        let vcpus = cells.iter().map(|cell| cell.ask.vcpus).sum();
        Self {
            cells,
            anchors,
            may_have,
            nearness,
            model,
            costings,
            alone,
            vcpus,
            evaluated: 0,
            steps: 0,
        }
    }

    /// How many arrangements of all cells were evaluated.
    pub(super) fn evaluated(&self) -> u64 {
        self.evaluated
    }

    /// The cells in the order in which they take nodes: most memory first, then most vCPUs.
    pub(super) fn by_size(&self) -> Vec<CellIndex> {
        let mut order: Vec<CellIndex> = self.cells.indices().collect();
        order.sort_by_key(|&at| (self.size(at), at));
        order
    }

    fn size(&self, at: CellIndex) -> (Reverse<u64>, Reverse<u64>) {
        let Cell { ask, page_bytes, .. } = &self.cells[at];
        (Reverse(ask.pages.saturating_mul(*page_bytes)), Reverse(ask.vcpus))
    }

    /// The consequences of seats, in the order of cells: of all cells, or of some. None if the
    /// memory of one does not fit, or if homes have nodes in common that must not.
    pub(super) fn evaluate(&mut self, seats: &[Seat], nodes: Nodes) -> Option<Arrangement> {
        self.evaluated += u64::from(seats.len() == self.cells.len());
        self.steps += 40 + (seats.len() * (20 + 5 * seats.len())) as u64;
        let homes = match nodes {
            Nodes::Distinct => self.distinct(seats)?,
            Nodes::Shared => self.shared(seats)?,
        };
        Some(self.assess(seats, homes, nodes))
    }

    // Homes on nodes of their own. They do not affect each other, except that none takes the
    // anchor of another, nor a node that one before it took.
    fn distinct(&mut self, seats: &[Seat]) -> Option<Vec<Rc<Home>>> {
        let alone: Option<Vec<_>> =
            seats.iter().map(|&(at, anchor)| self.alone[at][anchor].clone()).collect();
        if let Some(homes) = alone {
            return Some(homes);
        }
        let mut is_free = self.may_have.clone();
        seats.iter().for_each(|&(_, anchor)| is_free[anchor] = false);
        let nothing = Taken::nothing(is_free.len());
        let mut homes = Vec::with_capacity(seats.len());
        self.steps += (seats.len() * is_free.len()) as u64;
        for (at, anchor) in self.in_turn(seats) {
            if let Some(home) = &self.alone[at][anchor] {
                homes.push(home.clone());
                continue;
            }
            let Cell { ask, view, .. } = &self.cells[at];
            let grown = nothing.grow(view, ask, anchor, |i| is_free[i]);
            grown.iter().for_each(|&i| is_free[i] = false);
            homes.push(Rc::new(Home::lay(at, &mut self.costings[at], grown)?));
        }
        homes.sort_by_key(|home| home.cell);
        Some(homes)
    }

    // Homes that may have nodes in common: each cell sees the claims of those before it as those
    // of residents.
    fn shared(&mut self, seats: &[Seat]) -> Option<Vec<Rc<Home>>> {
        let mut homes: Vec<Rc<Home>> = Vec::with_capacity(seats.len());
        for (at, anchor) in self.in_turn(seats) {
            self.steps += 10 * self.may_have.len() as u64;
            let Cell { ask, view, .. } = &self.cells[at];
            let taken = self.taken(&homes, at);
            let grown = taken.grow(view, ask, anchor, |i| self.may_have[i]);
            let view = self.beside(&homes, at);
            let mut costing = Costing::new(&view, ask, self.model);
            homes.push(Rc::new(Home::lay(at, &mut costing, grown)?));
        }
        homes.sort_by_key(|home| home.cell);
        Some(homes)
    }

    /// The order in which seats are taken: by size, then by lowest anchor.
    pub(super) fn in_turn(&self, seats: &[Seat]) -> Vec<Seat> {
        let mut seats = seats.to_vec();
        seats.sort_by_key(|&(at, anchor)| (self.size(at), anchor, at));
        seats
    }

    /// The claims of these homes, in pages of the size of `cell`.
    pub(super) fn taken(&self, homes: &[Rc<Home>], cell: CellIndex) -> Taken {
        let mut taken = Taken::nothing(self.may_have.len());
        for home in homes {
            home.vcpus.iter().for_each(|&(i, vcpus)| taken.vcpus[i] += vcpus);
            if self.has_same_pages(home.cell, cell) {
                home.pages.iter().for_each(|&(i, pages)| taken.pages[i] += pages);
            }
        }
        taken
    }

    fn has_same_pages(&self, one: CellIndex, other: CellIndex) -> bool {
        self.cells[one].ask.page_size == self.cells[other].ask.page_size
    }

    /// The machine as `cell` finds it beside these homes.
    pub(super) fn beside(&self, homes: &[Rc<Home>], cell: CellIndex) -> View {
        let mut view = View::clone(&self.cells[cell].view);
        for home in homes {
            home.vcpus.iter().for_each(|&(i, vcpus)| view.nodes[i].busy += vcpus);
            let Ask { vcpus, pages: all_pages, .. } = self.cells[home.cell].ask;
            for &(i, pages) in &home.pages {
                let node = &mut view.nodes[i];
                let demand_kb_s = self.model.demand_kb_s(vcpus, pages, all_pages);
                node.demand_kb_s = node.demand_kb_s.saturating_add(demand_kb_s);
                if self.has_same_pages(home.cell, cell) {
                    node.available_pages = node.available_pages.saturating_sub(pages);
                    view.available_pages = view.available_pages.saturating_sub(pages);
                }
            }
        }
        view
    }

    fn assess(&self, seats: &[Seat], homes: Vec<Rc<Home>>, nodes: Nodes) -> Arrangement {
        let mean = |of: fn(&Home) -> u64| {
            let weighted = homes
                .iter()
                .map(|home| u128::from(self.cells[home.cell].ask.vcpus) * u128::from(of(home)));
            to_u64(weighted.sum::<u128>().div_ceil(u128::from(self.vcpus)))
        };
        let slow_down = mean(|home| home.slow_down.0);
        let vcpus_per_core_ppm = mean(|home| home.vcpus_per_core_ppm);
        let all: Vec<&Home> = homes.iter().map(AsRef::as_ref).collect();
        let view = &self.cells[all[0].cell].view;
        let between_ppm = self.nearness.between_ppm(&all, self.vcpus, view);
        let free_bytes = homes.iter().map(|home| self.free_bytes(home, &homes, nodes));
        let free_bytes = free_bytes.fold(0, u64::saturating_add);
        Arrangement {
            score: (slow_down.saturating_add(between_ppm), vcpus_per_core_ppm, Reverse(free_bytes)),
            between_ppm,
            seats: seats.to_vec(),
            homes,
        }
    }

    /// Memory that remains available on a home beside all homes, in bytes.
    pub(super) fn free_bytes(&self, home: &Home, homes: &[Rc<Home>], nodes: Nodes) -> u64 {
        let Cell { view, page_bytes, .. } = &self.cells[home.cell];
        let available = home.nodes.iter().map(|&i| view.nodes[i].available_pages);
        let available = available.fold(0, u64::saturating_add);
        let claimed = |other: &Home| -> u64 {
            let here = other.pages.iter().filter(|(i, _)| home.nodes.contains(i));
            here.map(|&(_, pages)| pages).sum()
        };
        let taken: u64 = match nodes {
            Nodes::Distinct => claimed(home),
            Nodes::Shared => {
                let others = homes.iter().filter(|it| self.has_same_pages(it.cell, home.cell));
                others.map(|other| claimed(other)).sum()
            }
        };
        available.saturating_sub(taken).saturating_mul(*page_bytes)
    }
}
