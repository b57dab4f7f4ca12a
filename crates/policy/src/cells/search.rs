//! The best arrangement: all of them where they are few, a search elsewhere.
//!
//! # Approach
//! Every cell has a seat: the node on which its home begins.
//! 1. *Greedy*: from a seed, the largest cell takes the seed, and each next cell the seat that makes
//!    the cells seated so far fastest. Seeds are visited with a stride of the golden ratio.
//! 2. *Climbing*: from the best greedy arrangements, a cell moves to another seat, or two cells
//!    exchange theirs, as long as that helps.
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

// Steps of greedy seating, and of climbing.
const GREEDY_EFFORT: u64 = 600_000;
const CLIMBING_EFFORT: u64 = 600_000;

// How many greedy arrangements are improved.
const MAX_STARTS: usize = 4;

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

fn keep(best: &mut Option<Arrangement>, other: Option<Arrangement>) {
    if let Some(other) = other
        && best.as_ref().is_none_or(|best| other.is_better_than(best))
    {
        *best = Some(other);
    }
}

fn is_taken(seats: &[Seat], node: NodeIndex, nodes: Nodes) -> bool {
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
            keep(&mut best, arranger.evaluate(&seats, nodes));
        }
        let Some(last) = digits.iter().rposition(|&digit| digit + 1 < anchors.len()) else {
            return best;
        };
        digits[last] += 1;
        digits[last + 1..].fill(0);
    }
}

fn search(arranger: &mut Arranger<'_>, nodes: Nodes) -> Option<Arrangement> {
    let anchors = arranger.anchors.clone();
    let order = arranger.by_size();
    let stride = golden_stride(anchors.len());
    let end = arranger.steps + GREEDY_EFFORT;
    let mut starts: Vec<Arrangement> = Vec::new();
    for visited in 0..anchors.len() {
        let seed = anchors[visited * stride % anchors.len()];
        if let Some(seated) = seat_all(arranger, &order, seed, &anchors, nodes)
            && !starts.iter().any(|other| other.seats == seated.seats)
        {
            let at = starts.iter().position(|other| seated.is_better_than(other));
            starts.insert(at.unwrap_or(starts.len()), seated);
            starts.truncate(MAX_STARTS);
        }
        if arranger.steps >= end {
            break;
        }
    }
    let end = arranger.steps + CLIMBING_EFFORT;
    let mut best = None;
    for start in starts {
        keep(&mut best, Some(climb(arranger, start, &anchors, nodes, end)));
    }
    best
}

// Seats the cells one after the other, the first on `seed`.
fn seat_all(
    arranger: &mut Arranger<'_>,
    order: &[CellIndex],
    seed: NodeIndex,
    anchors: &[NodeIndex],
    nodes: Nodes,
) -> Option<Arrangement> {
    let mut seats: Vec<Seat> = Vec::with_capacity(order.len());
    let mut best = None;
    for (number, &cell) in order.iter().enumerate() {
        best = None;
        let choices = if number == 0 { std::slice::from_ref(&seed) } else { anchors };
        for &node in choices {
            if is_taken(&seats, node, nodes) {
                continue;
            }
            let mut tried = seats.clone();
            tried.insert(tried.partition_point(|&(other, _)| other < cell), (cell, node));
            keep(&mut best, arranger.evaluate(&tried, nodes));
        }
        seats.clone_from(&best.as_ref()?.seats);
    }
    best
}

// Moves and exchanges seats as long as that helps.
fn climb(
    arranger: &mut Arranger<'_>,
    mut best: Arrangement,
    anchors: &[NodeIndex],
    nodes: Nodes,
    end: u64,
) -> Arrangement {
    while let Some(better) = first_better(arranger, &best, anchors, nodes, end) {
        best = better;
    }
    best
}

fn first_better(
    arranger: &mut Arranger<'_>,
    best: &Arrangement,
    anchors: &[NodeIndex],
    nodes: Nodes,
    end: u64,
) -> Option<Arrangement> {
    let seats = &best.seats;
    let exchanges =
        (0..seats.len()).flat_map(|one| (one + 1..seats.len()).map(move |it| (one, it)));
    let exchanged = exchanges.map(|(one, other)| {
        let mut changed = seats.clone();
        (changed[one].1, changed[other].1) = (seats[other].1, seats[one].1);
        changed
    });
    let moves = (0..seats.len()).flat_map(|at| anchors.iter().map(move |&node| (at, node)));
    let moved = moves.filter(|&(_, node)| !is_taken(seats, node, nodes)).map(|(at, node)| {
        let mut changed = seats.clone();
        changed[at].1 = node;
        changed
    });
    for changed in exchanged.chain(moved) {
        if arranger.steps >= end {
            return None;
        }
        if let Some(better) = arranger.evaluate(&changed, nodes)
            && better.is_better_than(best)
        {
            return Some(better);
        }
    }
    None
}
