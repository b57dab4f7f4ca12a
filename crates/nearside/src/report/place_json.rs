//! A decision as one JSON object, in the shape that `docs/formats.md` promises.

use super::place_text::reasons;
use nearside_policy::{Candidate, CostModel, Decision, MemoryPolicy, PageSize};
use nearside_topology::{NodeId, Topology};
use serde::Serialize;

/// The whole report.
pub(crate) fn report(decision: &Decision, topology: &Topology) -> serde_json::Result<String> {
    let request = &decision.request;
    let report = DecisionReport {
        source: &topology.source,
        request: RequestReport {
            vcpus: request.vcpus,
            memory_bytes: request.memory_bytes,
            huge_page_bytes: match request.page_size {
                PageSize::Base => None,
                PageSize::Huge(bytes) => Some(bytes),
            },
            policy: request.policy,
            nodes: request.nodes.as_ref().map(|nodes| nodes.iter().collect()),
            near: &request.near,
        },
        chosen: CandidateReport::new(&decision.chosen),
        runners_up: decision.runners_up.iter().map(CandidateReport::new).collect(),
        candidates: decision.candidates,
        exhaustive: decision.exhaustive,
        reasons: reasons(decision),
        model: decision.model,
    };
    serde_json::to_string_pretty(&report).map(|text| text + "\n")
}

#[derive(Serialize)]
struct DecisionReport<'a> {
    source: &'a str,
    request: RequestReport<'a>,
    chosen: CandidateReport,
    runners_up: Vec<CandidateReport>,
    candidates: u64,
    exhaustive: bool,
    reasons: Vec<String>,
    model: CostModel,
}

#[derive(Serialize)]
struct RequestReport<'a> {
    vcpus: u32,
    memory_bytes: u64,
    huge_page_bytes: Option<u64>,
    policy: MemoryPolicy,
    nodes: Option<Vec<NodeId>>,
    near: &'a [NodeId],
}

#[derive(Serialize)]
struct CandidateReport {
    nodes: Vec<NodeId>,
    slow_down_ppm: u64,
    cpu_ppm: u64,
    memory_ppm: u64,
    devices_ppm: u64,
    claim: Vec<NodeClaim>,
    spilled_bytes: u64,
    free_after_bytes: u64,
}

#[derive(Serialize)]
struct NodeClaim {
    node: NodeId,
    vcpus: u64,
    bytes: u64,
}

impl CandidateReport {
    fn new(candidate: &Candidate) -> Self {
        let claim = &candidate.claim;
        let on = |node| NodeClaim {
            node,
            vcpus: claim.vcpus.get(&node).copied().unwrap_or(0),
            bytes: claim.bytes.get(&node).copied().unwrap_or(0),
        };
        Self {
            nodes: candidate.nodes.iter().collect(),
            slow_down_ppm: candidate.slow_down.0,
            cpu_ppm: candidate.parts.cpu.0,
            memory_ppm: candidate.parts.memory.0,
            devices_ppm: candidate.parts.devices.0,
            claim: claim.nodes().iter().map(on).collect(),
            spilled_bytes: candidate.spilled_bytes,
            free_after_bytes: candidate.free_after_bytes,
        }
    }
}
