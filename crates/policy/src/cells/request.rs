//! A request for the homes of a virtual machine's cells.

use crate::{CellId, MemoryPolicy, PageSize, Refusal, Request};
use nearside_topology::{Distance, Distances, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

/// The most cells of a virtual machine (QEMU, `include/system/numa.h`: `MAX_NODES`).
pub const MAX_CELLS: usize = 128;

/// A virtual machine whose cells are to be given homes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellsRequest {
    /// Its cells, from cell 0 on.
    pub cells: Vec<CellRequest>,
    /// The guest's distances, from each cell (row) to each; without them, all cells are as far from
    /// each other as nodes of which nothing is known ([`Distances::REMOTE`]).
    pub distances: Option<Vec<Vec<Distance>>>,
    /// How the memory of each cell is bound to its home.
    pub policy: MemoryPolicy,
    /// The nodes that an operator chose for the cells; without them, all nodes.
    pub nodes: Option<NodeSet>,
}

/// A cell that is to be given a home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellRequest {
    /// The number of vCPUs that it keeps busy; 0 for a cell of memory alone.
    pub vcpus: u32,
    /// The memory that it will fill, in bytes.
    pub memory_bytes: u64,
    /// The size of its pages.
    pub page_size: PageSize,
    /// Nodes of devices it should be near.
    pub near: Vec<NodeId>,
}

/// The reason why a virtual machine cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellsRefusal {
    /// No cells were asked for.
    #[error("a virtual machine needs at least 1 cell")]
    NoCells,
    /// More cells than a guest can have.
    #[error("{cells} cells are more than a guest can have ({MAX_CELLS})")]
    TooManyCells {
        /// Their number.
        cells: usize,
    },
    /// The table of distances does not match the cells.
    #[error(
        "the guest's distances have {rows} rows, and row {row} has {columns} entries: expected \
         {cells} of each, one for each cell"
    )]
    DistanceTable {
        /// The number of cells.
        cells: usize,
        /// The number of rows.
        rows: usize,
        /// The first row that does not match, or the last.
        row: usize,
        /// The number of entries in it.
        columns: usize,
    },
    /// A distance that no firmware may give.
    #[error(
        "the guest's distance from cell {from} to cell {to} is {distance}: expected 10 (as near as \
         its own memory) to 255 (out of reach)"
    )]
    Distance {
        /// The cell that accesses memory.
        from: CellId,
        /// The cell that has it.
        to: CellId,
        /// The distance read.
        distance: Distance,
    },
    /// A cell is invalid on this machine, or does not fit it.
    #[error("cell {cell}: {refusal}")]
    Cell {
        /// The cell.
        cell: CellId,
        /// The reason.
        refusal: Refusal,
    },
    /// The cells do not fit the machine together.
    #[error("all cells together: {0}")]
    Together(Refusal),
    /// No arrangement keeps the memory of all cells within reach of their vCPUs.
    #[error(
        "no arrangement of the cells on {} keeps the memory of each within reach of its vCPUs",
        nodes.named()
    )]
    NoArrangement {
        /// The nodes that the cells may have.
        nodes: NodeSet,
    },
}

impl CellsRequest {
    /// A cell as a domain without cells, to which `place` gives a home.
    pub(crate) fn part(&self, cell: &CellRequest) -> Request {
        Request {
            vcpus: cell.vcpus,
            memory_bytes: cell.memory_bytes,
            page_size: cell.page_size,
            policy: self.policy,
            nodes: self.nodes.clone(),
            near: cell.near.clone(),
        }
    }

    /// The guest's distance from one cell to another.
    pub fn distance(&self, from: CellId, to: CellId) -> Distance {
        let local = if from == to { Distances::LOCAL } else { Distances::REMOTE };
        let at = |cell: CellId| cell.0 as usize;
        let row = self.distances.as_ref().and_then(|rows| rows.get(at(from)));
        row.and_then(|row| row.get(at(to)).copied()).unwrap_or(local)
    }

    /// Refuses a request without cells, or with distances that are not the cells'.
    pub(crate) fn check_shape(&self) -> Result<(), CellsRefusal> {
        let cells = self.cells.len();
        if cells == 0 {
            return Err(CellsRefusal::NoCells);
        }
        if cells > MAX_CELLS {
            return Err(CellsRefusal::TooManyCells { cells });
        }
        if self.cells.iter().all(|cell| cell.vcpus == 0) {
            return Err(CellsRefusal::Cell { cell: CellId(0), refusal: Refusal::NoVcpus });
        }
        let Some(table) = &self.distances else { return Ok(()) };
        let odd = table.iter().position(|row| row.len() != cells);
        if table.len() != cells || odd.is_some() {
            let row = odd.unwrap_or(table.len().saturating_sub(1));
            let columns = table.get(row).map_or(0, Vec::len);
            return Err(CellsRefusal::DistanceTable { cells, rows: table.len(), row, columns });
        }
        for (from, row) in (0..).map(CellId).zip(table) {
            for (to, &distance) in (0..).map(CellId).zip(row) {
                if from != to && distance < Distances::LOCAL {
                    return Err(CellsRefusal::Distance { from, to, distance });
                }
            }
        }
        Ok(())
    }
}
