//! The best arrangement: all of them where they are few, a search elsewhere.
//!
//! # Approach
//! Every cell has a seat: the node on which its home begins.
//! 1. *Greedy*: one cell takes a seed, and each next cell, largest first, the seat that makes the
//!    cells seated so far fastest. Seeds are visited with a stride of the golden ratio.
//! 2. *Climbing*: from the best greedy arrangements, a cell moves to another seat, or two cells
//!    exchange theirs, as long as that helps.
//!
//! If no seed leads to an arrangement, cells are seated with going back: a cell without any seat
//! gives the one before it another.
//!
//! Effort is counted in steps, not in time, so the answer depends on the request alone. Cells get
//! nodes of their own if an arrangement is found that has them; else they may share.

use super::arrange::{Arrangement, Arranger, Nodes, Seat};
use crate::{
    index::{CellIndex, NodeIndex},
    search::golden_stride,
};

/// Up to this many assignments of cells to nodes, each is evaluated.
const EXHAUSTIVE_ARRANGEMENTS: u64 = 4_096;

// Steps of greedy seating, of seating with going back, and of climbing.
const GREEDY_EFFORT: u64 = 600_000;
const BACKTRACKING_EFFORT: u64 = 300_000;
const CLIMBING_EFFORT: u64 = 600_000;

// How many greedy arrangements are improved.
const MAX_STARTS: usize = 16;

/// The way to find arrangements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellsMethod {
    /// Every arrangement where these are few, the search elsewhere.
    BySize,
    /// The search even where arrangements are few, to measure its distance from the best.
    Search,
}

/// The best arrangement, if any was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) best: Arrangement,
    pub(super) nodes: Nodes,
    pub(super) exhaustive: bool,
}

/// Looks for the best arrangement.
pub(super) fn find(arranger: &mut Arranger<'_>, method: CellsMethod) -> Option<Found> {
    let (cells, anchors) = (arranger.cells.len() as u32, arranger.anchors.len() as u64);
    let all = anchors.checked_pow(cells).filter(|all| *all <= EXHAUSTIVE_ARRANGEMENTS);
    let exhaustive = method == CellsMethod::BySize && all.is_some();
    [Nodes::Distinct, Nodes::Shared].into_iter().find_map(|nodes| {
        if nodes == Nodes::Distinct && u64::from(cells) > anchors {
            return None;
        }
        let best = match exhaustive {
            true => best_of_all(arranger, nodes),
            false => search(arranger, nodes),
        };
        best.map(|best| Found { best, nodes, exhaustive })
    })
}

/// Whether no cell may begin on a node, as another has its seat there.
pub(super) fn is_taken(seats: &[Seat], node: NodeIndex, nodes: Nodes) -> bool {
    nodes == Nodes::Distinct && seats.iter().any(|&(_, seat)| seat == node)
}

fn best_of_all(arranger: &mut Arranger<'_>, nodes: Nodes) -> Option<Arrangement> {
    let anchors = arranger.anchors.clone();
    let cells: Vec<CellIndex> = arranger.cells.indices().collect();
    let mut best = None;
    // The number of the anchor of each cell, counted up like the digits of a number.
    let mut digits = vec![0; cells.len()];
    let mut seats: Vec<Seat> = Vec::with_capacity(cells.len());
    loop {
        seats.clear();
        for (&cell, &digit) in cells.iter().zip(&digits) {
            if !is_taken(&seats, anchors[digit], nodes) {
                seats.push((cell, anchors[digit]));
            }
        }
        if seats.len() == cells.len() {
            best = arranger.better(&seats, nodes, best.as_ref()).or(best);
        }
        let Some(last) = digits.iter().rposition(|&digit| digit + 1 < anchors.len()) else {
            return best;
        };
        digits[last] += 1;
        digits[last + 1..].fill(0);
    }
}

fn search(arranger: &mut Arranger<'_>, nodes: Nodes) -> Option<Arrangement> {
    let mut starts = greedy_starts(arranger, nodes);
    if starts.is_empty() {
        let (order, end) = (arranger.by_size(), arranger.steps + BACKTRACKING_EFFORT);
        starts.extend(seat_rest(arranger, &order, &mut Vec::new(), nodes, end));
    }
    let end = arranger.steps + CLIMBING_EFFORT;
    let mut best: Option<Arrangement> = None;
    for start in starts {
        let top = climb(arranger, start, nodes, end);
        if best.as_ref().is_none_or(|best| top.is_better_than(best)) {
            best = Some(top);
        }
    }
    best
}

// The best arrangements of all seeds. Each cell is the first once, as long as effort lasts.
fn greedy_starts(arranger: &mut Arranger<'_>, nodes: Nodes) -> Vec<Arrangement> {
    let count = arranger.anchors.len();
    let stride = golden_stride(count);
    let end = arranger.steps + GREEDY_EFFORT;
    let mut order = arranger.by_size();
    let mut starts: Vec<Arrangement> = Vec::new();
    for first in 0..order.len() {
        order[..=first].rotate_right(1);
        for visited in 0..count {
            let seed = arranger.anchors[visited * stride % count];
            if let Some(seated) = seat_all(arranger, &order, seed, nodes, end)
                && !starts.iter().any(|other| other.seats == seated.seats)
            {
                let at = starts.iter().position(|other| seated.is_better_than(other));
                starts.insert(at.unwrap_or(starts.len()), seated);
                starts.truncate(MAX_STARTS);
            }
            if arranger.steps >= end {
                return starts;
            }
        }
        order[..=first].rotate_left(1);
    }
    starts
}

// Seats the cells one after the other, the first on `seed`, each where the whole is fastest; where
// effort has ended, on the first node that fits.
fn seat_all(
    arranger: &mut Arranger<'_>,
    order: &[CellIndex],
    seed: NodeIndex,
    nodes: Nodes,
    end: u64,
) -> Option<Arrangement> {
    let (&first, rest) = order.split_first()?;
    let mut best = arranger.better(&[(first, seed)], nodes, None)?;
    for &cell in rest {
        let mut seats = best.seats;
        let at = seats.partition_point(|&(other, _)| other < cell);
        let mut next = None;
        for number in 0..arranger.anchors.len() {
            let node = arranger.anchors[number];
            if is_taken(&seats, node, nodes) {
                continue;
            }
            seats.insert(at, (cell, node));
            next = arranger.better(&seats, nodes, next.as_ref()).or(next);
            seats.remove(at);
            if next.is_some() && arranger.steps >= end {
                break;
            }
        }
        best = next?;
    }
    Some(best)
}

// Any arrangement of the cells in `order` beside those seated already.
fn seat_rest(
    arranger: &mut Arranger<'_>,
    order: &[CellIndex],
    seats: &mut Vec<Seat>,
    nodes: Nodes,
    end: u64,
) -> Option<Arrangement> {
    let (&cell, rest) = order.split_first()?;
    let at = seats.partition_point(|&(other, _)| other < cell);
    for number in 0..arranger.anchors.len() {
        let node = arranger.anchors[number];
        if arranger.steps >= end {
            return None;
        }
        if is_taken(seats, node, nodes) {
            continue;
        }
        seats.insert(at, (cell, node));
        let found = match arranger.better(seats, nodes, None) {
            Some(_) if !rest.is_empty() => seat_rest(arranger, rest, seats, nodes, end),
            found => found,
        };
        seats.remove(at);
        if found.is_some() {
            return found;
        }
    }
    None
}

// Moves and exchanges seats as long as that helps.
fn climb(
    arranger: &mut Arranger<'_>,
    mut best: Arrangement,
    nodes: Nodes,
    end: u64,
) -> Arrangement {
    while let Some(better) = first_better(arranger, &best, nodes, end) {
        best = better;
    }
    best
}

fn first_better(
    arranger: &mut Arranger<'_>,
    best: &Arrangement,
    nodes: Nodes,
    end: u64,
) -> Option<Arrangement> {
    let mut seats = best.seats.clone();
    for one in 0..seats.len() {
        for other in one + 1..seats.len() {
            (seats[one].1, seats[other].1) = (best.seats[other].1, best.seats[one].1);
            let better = arranger.better(&seats, nodes, Some(best));
            if better.is_some() || arranger.steps >= end {
                return better;
            }
            seats.clone_from(&best.seats);
        }
        for number in 0..arranger.anchors.len() {
            let node = arranger.anchors[number];
            if is_taken(&seats, node, nodes) {
                continue;
            }
            seats[one].1 = node;
            let better = arranger.better(&seats, nodes, Some(best));
            if better.is_some() || arranger.steps >= end {
                return better;
            }
            seats[one].1 = best.seats[one].1;
        }
    }
    None
}
