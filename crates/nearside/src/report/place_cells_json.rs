//! The homes of a virtual machine's cells as JSON.

use super::{
    json::{CandidateJson, LeftOutJson, huge_page_bytes, members},
    place_cells_text::reasons,
};
use nearside_policy::{CellId, CellsDecision, CostModel, MemoryPolicy, PlacedCell, Spill};
use nearside_topology::{Distance, NodeId};
use serde::Serialize;

/// The output of `nearside place --cell`.
#[derive(Serialize)]
pub(crate) struct PlacedCells<'a> {
    source: &'a str,
    policy: MemoryPolicy,
    nodes: Option<Vec<NodeId>>,
    distances: Option<&'a [Vec<Distance>]>,
    slow_down_ppm: Option<u64>,
    between_ppm: u64,
    shared_nodes: Vec<NodeId>,
    cells: Vec<CellJson<'a>>,
    left_out: LeftOutJson<'a>,
    candidates: u64,
    exhaustive: bool,
    reasons: Vec<String>,
    model: CostModel,
}

#[derive(Serialize)]
struct CellJson<'a> {
    cell: CellId,
    vcpus: u32,
    memory_bytes: u64,
    huge_page_bytes: Option<u64>,
    near: &'a [NodeId],
    chosen: CandidateJson<'a>,
    spill: Option<SpillJson>,
}

#[derive(Serialize)]
struct SpillJson {
    from: NodeId,
    needed_bytes: u64,
    available_bytes: u64,
    vcpus: u64,
    cpus: u64,
    alone: Option<AloneJson>,
}

#[derive(Serialize)]
struct AloneJson {
    node: NodeId,
    slow_down_ppm: Option<u64>,
}

impl<'a> PlacedCells<'a> {
    pub(crate) fn new(source: &'a str, decision: &'a CellsDecision) -> Self {
        let request = &decision.request;
        let cells = request.cells.iter().zip(&decision.cells);
        let cell = |(asked, placed): (&'a nearside_policy::CellRequest, &'a PlacedCell)| CellJson {
            cell: placed.cell,
            vcpus: asked.vcpus,
            memory_bytes: asked.memory_bytes,
            huge_page_bytes: huge_page_bytes(asked.page_size),
            near: &asked.near,
            chosen: CandidateJson::new(&placed.home),
            spill: placed.spill.map(SpillJson::new),
        };
        Self {
            source,
            policy: request.policy,
            nodes: request.nodes.as_ref().map(members),
            distances: request.distances.as_deref(),
            slow_down_ppm: decision.slow_down.ppm(),
            between_ppm: decision.between_ppm,
            shared_nodes: members(&decision.shared),
            cells: cells.map(cell).collect(),
            left_out: LeftOutJson::new(&decision.left_out),
            candidates: decision.candidates,
            exhaustive: decision.exhaustive,
            reasons: reasons(decision),
            model: decision.model,
        }
    }
}

impl SpillJson {
    fn new(spill: Spill) -> Self {
        let Spill { from, needed_bytes, available_bytes, vcpus, cpus, alone, page_size: _ } = spill;
        let alone =
            alone.map(|alone| AloneJson { node: alone.node, slow_down_ppm: alone.slow_down.ppm() });
        Self { from, needed_bytes, available_bytes, vcpus, cpus, alone }
    }
}
