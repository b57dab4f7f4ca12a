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
use std::{cmp::Reverse, collections::BTreeMap, rc::Rc};

/// A cell in the units of costing.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) ask: Ask,
    pub(super) page_bytes: u64,
    /// The view with pages of its size.
    pub(super) view: Rc<View>,
}

impl Cell {
    /// Whether its home may begin on a node: one with a CPU, or with memory for memory alone.
    fn may_begin_on(&self, i: NodeIndex) -> bool {
        let node = &self.view.nodes[i];
        if self.ask.vcpus > 0 { node.cores > 0 } else { node.has_memory }
    }
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

/// The order of arrangements, best first: cells of memory alone on nodes with CPUs, then slow-down
/// of the whole, then vCPUs a core, then memory that is still available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    /// Cells of memory alone on nodes with CPUs.
    pub(super) misplaced: usize,
    /// The slow-down of the whole virtual machine, in millionths.
    pub(super) slow_down: u64,
    vcpus_per_core: u64,
    free_bytes: Reverse<u64>,
}

/// An arrangement and its consequences.
#[derive(Debug, Clone)]
pub(super) struct Arrangement {
    pub(super) score: Score,
    /// The part of the slow-down that the distances between the homes add, in millionths.
    pub(super) between_ppm: u64,
    /// The seats, by cell.
    pub(super) seats: Vec<Seat>,
    /// The homes, by cell.
    pub(super) homes: Vec<Rc<Home>>,
}

impl Arrangement {
    /// Equals are ordered by the nodes of the homes, cell by cell.
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        precedes((self.score, &self.homes), other)
    }
}

fn precedes((score, homes): (Score, &[Rc<Home>]), other: &Arrangement) -> bool {
    let nodes = |homes| <[Rc<Home>]>::iter(homes).map(|home| &home.nodes);
    score.cmp(&other.score).then_with(|| nodes(homes).cmp(nodes(&other.homes))).is_lt()
}

/// Evaluates arrangements of the cells of one virtual machine.
#[derive(Debug)]
pub(super) struct Arranger<'a> {
    pub(super) cells: &'a IndexVec<CellIndex, Cell>,
    /// The nodes on which the home of some cell may begin.
    pub(super) anchors: Vec<NodeIndex>,
    /// Whether a cell may have a node.
    may_have: IndexVec<CellIndex, IndexVec<NodeIndex, bool>>,
    pub(super) nearness: Nearness,
    model: &'a CostModel,
    costings: IndexVec<CellIndex, Costing<'a>>,
    /// The home of each cell on each node alone; None where it does not fit.
    alone: IndexVec<CellIndex, IndexVec<NodeIndex, Option<Rc<Home>>>>,
    /// The homes of several nodes that were laid out; None where the cell does not fit.
    grown: BTreeMap<(CellIndex, Vec<NodeIndex>), Option<Rc<Home>>>,
    /// The homes that were evaluated last, by cell.
    homes: Vec<Rc<Home>>,
    /// The order of cells by size; equals have one number.
    rank: IndexVec<CellIndex, usize>,
    nothing_taken: Taken,
    vcpus: u64,
    evaluated: u64,
    /// Effort spent, in steps of a few nanoseconds.
    pub(super) steps: u64,
}

impl<'a> Arranger<'a> {
    /// `may_have` has the nodes of the view that each cell may have.
    pub(super) fn new(
        cells: &'a IndexVec<CellIndex, Cell>,
        may_have: IndexVec<CellIndex, IndexVec<NodeIndex, bool>>,
        nearness: Nearness,
        model: &'a CostModel,
    ) -> Self {
        let costing = |cell: &'a Cell| Costing::new(&cell.view, &cell.ask, model);
        let mut costings: IndexVec<CellIndex, _> = cells.iter().map(costing).collect();
        let nodes = cells.iter().next().map_or(0, |cell| cell.view.nodes.len());
        let nothing_taken = Taken::nothing(nodes);
        let mut alone_on = |at: CellIndex, i: NodeIndex| {
            let cell = &cells[at];
            let may = may_have[at][i] && nothing_taken.fits(&cell.view, &cell.ask, i);
            may.then(|| Home::lay(at, &mut costings[at], vec![i]).map(Rc::new)).flatten()
        };
        let alone: IndexVec<CellIndex, _> = cells
            .indices()
            .map(|at| nothing_taken.vcpus.indices().map(|i| alone_on(at, i)).collect())
            .collect();
        let is_anchor = |i: &NodeIndex| {
            cells.indices().any(|at| may_have[at][*i] && cells[at].may_begin_on(*i))
        };
        let anchors = nothing_taken.vcpus.indices().filter(is_anchor).collect();
        let vcpus = cells.iter().map(|cell| cell.ask.vcpus).sum();
        Self {
            cells,
            anchors,
            may_have,
            nearness,
            model,
            costings,
            alone,
            grown: BTreeMap::new(),
            homes: Vec::new(),
            rank: ranks(cells),
            nothing_taken,
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
        order.sort_by_key(|&at| (self.rank[at], at));
        order
    }

    /// The arrangement of these seats (in the order of cells), of all cells or of some, if it is
    /// better than another: equals are ordered by the nodes of the homes, cell by cell. None if a
    /// seat is not the cell's to take, or the memory of a cell does not fit.
    pub(super) fn better(
        &mut self,
        seats: &[Seat],
        nodes: Nodes,
        than: Option<&Arrangement>,
    ) -> Option<Arrangement> {
        self.steps += (20 + seats.len() * (10 + 3 * seats.len())) as u64;
        let may_begin = |at: CellIndex, anchor| {
            self.may_have[at][anchor] && self.cells[at].may_begin_on(anchor)
        };
        if seats.iter().any(|&(at, anchor)| !may_begin(at, anchor)) {
            return None;
        }
        self.evaluated += u64::from(seats.len() == self.cells.len());
        self.homes.clear();
        match nodes {
            Nodes::Distinct => self.distinct(seats)?,
            Nodes::Shared => self.shared(seats)?,
        }
        let (score, between_ppm) = self.assess(nodes);
        let is_better = than.is_none_or(|than| precedes((score, &self.homes), than));
        is_better.then(|| Arrangement {
            score,
            between_ppm,
            seats: seats.to_vec(),
            homes: self.homes.clone(),
        })
    }

    // Homes on nodes of their own. They do not affect each other, except that none takes the
    // anchor of another, nor a node that one before it took.
    fn distinct(&mut self, seats: &[Seat]) -> Option<()> {
        let alone = seats.iter().map_while(|&(at, anchor)| self.alone[at][anchor].clone());
        self.homes.extend(alone);
        if self.homes.len() == seats.len() {
            return Some(());
        }
        self.homes.clear();
        for (at, anchor) in self.in_turn(seats) {
            let home = match &self.alone[at][anchor] {
                Some(home) => home.clone(),
                None => self.grown(at, anchor, seats)?,
            };
            self.homes.push(home);
        }
        self.homes.sort_by_key(|home| home.cell);
        Some(())
    }

    // A home beside other seats, and beside the homes so far.
    fn grown(&mut self, at: CellIndex, anchor: NodeIndex, seats: &[Seat]) -> Option<Rc<Home>> {
        let Cell { ask, view, .. } = &self.cells[at];
        let is_free = |i| {
            let is_seat = seats.iter().any(|&(_, seat)| seat == i);
            self.may_have[at][i]
                && !is_seat
                && !self.homes.iter().any(|home| home.nodes.contains(&i))
        };
        let nodes = self.nothing_taken.grow(view, ask, anchor, is_free);
        self.steps += 50 + 10 * nodes.len() as u64;
        let key = (at, nodes);
        if let Some(known) = self.grown.get(&key) {
            return known.clone();
        }
        self.steps += 100 + 50 * key.1.len() as u64;
        let home = Home::lay(at, &mut self.costings[at], key.1.clone()).map(Rc::new);
        self.grown.insert(key, home.clone());
        home
    }

    // Homes that may have nodes in common: each cell sees the claims of those before it as those
    // of residents.
    fn shared(&mut self, seats: &[Seat]) -> Option<()> {
        for (at, anchor) in self.in_turn(seats) {
            self.steps += 20 * self.nothing_taken.vcpus.len() as u64;
            let Cell { ask, view, .. } = &self.cells[at];
            let taken = self.taken(&self.homes, at);
            let grown = taken.grow(view, ask, anchor, |i| self.may_have[at][i]);
            let view = self.beside(&self.homes, at);
            let mut costing = Costing::new(&view, ask, self.model);
            self.homes.push(Rc::new(Home::lay(at, &mut costing, grown)?));
        }
        self.homes.sort_by_key(|home| home.cell);
        Some(())
    }

    /// The order in which seats are taken: by size, then by lowest anchor.
    pub(super) fn in_turn(&self, seats: &[Seat]) -> Vec<Seat> {
        let mut seats = seats.to_vec();
        seats.sort_unstable_by_key(|&(at, anchor)| (self.rank[at], anchor, at));
        seats
    }

    /// The claims of these homes, in pages of the size of `cell`.
    pub(super) fn taken(&self, homes: &[Rc<Home>], cell: CellIndex) -> Taken {
        let mut taken = Taken::nothing(self.nothing_taken.vcpus.len());
        for home in homes {
            home.vcpus.iter().for_each(|&(i, vcpus)| taken.vcpus[i] += vcpus);
            if self.has_same_pages(home.cell, cell) {
                home.pages.iter().for_each(|&(i, pages)| taken.pages[i] += pages);
            }
        }
        taken
    }

    /// The claims of the homes that an arrangement has before that of `cell`.
    pub(super) fn taken_before(&self, of: &Arrangement, cell: CellIndex) -> Taken {
        let turns = self.in_turn(&of.seats);
        let before = turns.iter().take_while(|&&(at, _)| at != cell);
        let home = |&(at, _): &Seat| of.homes.iter().find(|home| home.cell == at).cloned();
        self.taken(&before.filter_map(home).collect::<Vec<_>>(), cell)
    }

    /// Whether a cell fits a node of which no other cell has a part.
    pub(super) fn fits_alone(&self, at: CellIndex, node: NodeIndex) -> bool {
        self.alone[at][node].is_some()
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

    fn assess(&self, nodes: Nodes) -> (Score, u64) {
        let (mut slow_down, mut vcpus_per_core, mut free_bytes) = (0_u128, 0_u128, 0_u64);
        let is_misplaced = |home: &&Rc<Home>| {
            let Cell { ask, view, .. } = &self.cells[home.cell];
            ask.vcpus == 0 && home.nodes.iter().any(|&i| view.nodes[i].cores > 0)
        };
        let misplaced = self.homes.iter().filter(is_misplaced).count();
        for home in &self.homes {
            let vcpus = u128::from(self.cells[home.cell].ask.vcpus);
            slow_down += vcpus * u128::from(home.slow_down.0);
            vcpus_per_core += vcpus * u128::from(home.vcpus_per_core_ppm);
            free_bytes = free_bytes.saturating_add(self.free_bytes(home, &self.homes, nodes));
        }
        let mean = |sum: u128| to_u64(sum.div_ceil(u128::from(self.vcpus)));
        let view = &self.cells[self.homes[0].cell].view;
        let between_ppm = self.nearness.between_ppm(&self.homes, self.vcpus, view);
        let slow_down = mean(slow_down).saturating_add(between_ppm);
        let vcpus_per_core = mean(vcpus_per_core);
        let free_bytes = Reverse(free_bytes);
        (Score { misplaced, slow_down, vcpus_per_core, free_bytes }, between_ppm)
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

// Most memory first, then most vCPUs.
fn ranks(cells: &IndexVec<CellIndex, Cell>) -> IndexVec<CellIndex, usize> {
    let size = |Cell { ask, page_bytes, .. }: &Cell| {
        (Reverse(ask.pages.saturating_mul(*page_bytes)), Reverse(ask.vcpus))
    };
    let mut sizes: Vec<_> = cells.iter().map(size).collect();
    sizes.sort_unstable();
    cells.iter().map(|cell| sizes.partition_point(|other| *other < size(cell))).collect()
}
