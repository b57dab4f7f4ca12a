//! The homes of a virtual machine's cells.

use crate::{
    Bytes, Candidate, CellId, CellsRequest, CostModel, Count, Decision, LeftOut, PageSize, SlowDown,
};
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The homes of all cells, and the reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellsDecision {
    /// The request.
    pub request: CellsRequest,
    /// The cells in the order of the request.
    pub cells: Vec<PlacedCell>,
    /// The predicted slow-down of the whole virtual machine: the mean of its cells', weighted by
    /// their vCPUs, and `between_ppm`.
    pub slow_down: SlowDown,
    /// The part of the slow-down that the distances between the cells' homes add, in millionths.
    pub between_ppm: u64,
    /// Nodes that several cells share; empty if each cell has nodes of its own.
    pub shared: NodeSet,
    /// CPUs and memory of the machine that were left out.
    pub left_out: LeftOut,
    /// The number of arrangements that were evaluated.
    pub candidates: u64,
    /// Whether these were all arrangements.
    pub exhaustive: bool,
    /// The assumptions behind the slow-downs.
    pub model: CostModel,
}

/// A cell and its home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedCell {
    /// The cell.
    pub cell: CellId,
    /// Its home, and the consequences.
    pub home: Candidate,
    /// The reason why its home has several nodes; none if it fits one.
    pub spill: Option<Spill>,
}

/// The reason why a cell has several nodes: it does not fit the node from which its home grows, or
/// it fits another one where the virtual machine is slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spill {
    /// The node from which the home grows: one of the home that the cell fits alone, if any, else
    /// that on which the home begins.
    pub from: NodeId,
    /// The memory of the cell in bytes.
    pub needed_bytes: u64,
    /// The memory available to it there in bytes.
    pub available_bytes: u64,
    /// The size of its pages.
    pub page_size: PageSize,
    /// The cell's vCPUs.
    pub vcpus: u64,
    /// The CPUs there that no other cell has.
    pub cpus: u64,
    /// A node that it fits alone; none if none was found.
    pub alone: Option<Alone>,
}

/// A node that a cell fits, and where it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alone {
    /// The node.
    pub node: NodeId,
    /// The predicted slow-down of the whole virtual machine with the cell there.
    pub slow_down: SlowDown,
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, needed_bytes, available_bytes, page_size, vcpus, cpus, alone } = *self;
        if let Some(Alone { node, slow_down }) = alone {
            return write!(
                f,
                "it fits node {node}, where the slow-down of the virtual machine would be \
                 {slow_down}"
            );
        }
        write!(f, "node {from} has ")?;
        let is_small = available_bytes < needed_bytes;
        if is_small {
            let page_size = page_size.in_words();
            write!(f, "{} of {}{page_size}", Bytes(available_bytes), Bytes(needed_bytes))?;
        }
        if cpus < vcpus {
            let and = if is_small { " and " } else { "" };
            write!(f, "{and}{} for {}", Count(cpus, "CPU"), Count(vcpus, "vCPU"))?;
        }
        Ok(())
    }
}

impl CellsDecision {
    /// The decision for a virtual machine of one cell: that of `place` for a part.
    pub(crate) fn of_one(request: CellsRequest, decision: Decision) -> Self {
        let Decision { chosen, left_out, candidates, exhaustive, model, .. } = decision;
        Self {
            request,
            slow_down: chosen.slow_down,
            cells: vec![PlacedCell { cell: CellId(0), home: chosen, spill: None }],
            between_ppm: 0,
            shared: NodeSet::new(),
            left_out,
            candidates,
            exhaustive,
            model,
        }
    }

    /// Memory that all cells claim, in bytes.
    pub fn total_bytes(&self) -> u64 {
        let each = self.cells.iter().map(|placed| placed.home.claim.total_bytes());
        each.fold(0, u64::saturating_add)
    }
}
