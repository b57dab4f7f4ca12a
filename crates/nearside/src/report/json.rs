//! JSON shapes that several commands share, as `docs/formats.md` describes them: sets are arrays of
//! numbers, and names carry their units. Files on disk have shapes of their own.

use super::place_text::reasons;
use nearside_linux::store::{CpuBinding, Mover, Record};
use nearside_policy::{
    Affinity, ByNode, Candidate, Claim, CostModel, Decision, Home, LeftOut, Limits, MemoryPolicy,
    Origin, PageSize, Request,
};
use nearside_topology::{CpuId, Id, IdSet, NodeId};
use serde::{Serialize, Serializer};

/// A set as an array.
pub(crate) fn members<T: Id>(set: &IdSet<T>) -> Vec<T> {
    set.iter().collect()
}

/// `#[serde(serialize_with)]` for a set.
pub(crate) fn set<T: Id + Serialize, S: Serializer>(
    set: &IdSet<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    members(set).serialize(serializer)
}

/// The same for a set that may be missing.
pub(crate) fn set_if_any<T: Id + Serialize, S: Serializer>(
    set: &Option<IdSet<T>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    set.as_ref().map(members).serialize(serializer)
}

/// The same for a home.
pub(crate) fn home<S: Serializer>(home: &Option<Home>, serializer: S) -> Result<S::Ok, S::Error> {
    home.as_ref().map(HomeJson::new).serialize(serializer)
}

/// The same for a claim.
pub(crate) fn claim<S: Serializer>(
    claim: &Option<Claim>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    claim.as_ref().map(ClaimJson::new).serialize(serializer)
}

/// The same for a record.
pub(crate) fn record<S: Serializer>(
    record: &Option<Record>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    record.as_ref().map(RecordJson::new).serialize(serializer)
}

pub(super) fn huge_page_bytes(page_size: PageSize) -> Option<u64> {
    match page_size {
        PageSize::Base => None,
        PageSize::Huge(bytes) => Some(bytes),
    }
}

#[derive(Serialize)]
struct HomeJson {
    nodes: Vec<NodeId>,
    origin: Origin,
    affinity: Affinity,
    policy: MemoryPolicy,
}

impl HomeJson {
    fn new(home: &Home) -> Self {
        Self {
            nodes: members(&home.nodes),
            origin: home.origin,
            affinity: home.affinity,
            policy: home.policy,
        }
    }
}

/// A claim by node.
#[derive(Serialize)]
pub(crate) struct ClaimJson<'a> {
    bytes: &'a ByNode,
    vcpus: &'a ByNode,
    huge_page_bytes: Option<u64>,
}

impl<'a> ClaimJson<'a> {
    pub(crate) fn new(claim: &'a Claim) -> Self {
        Self {
            bytes: &claim.bytes,
            vcpus: &claim.vcpus,
            huge_page_bytes: huge_page_bytes(claim.page_size),
        }
    }
}

/// The process that moves the memory of a domain.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MoverJson {
    pid: u32,
    to_nodes: Vec<NodeId>,
    rate_bytes_per_s: Option<u64>,
}

impl MoverJson {
    pub(crate) fn of(record: &Record) -> Option<Self> {
        record.parts().find_map(|part| {
            let (mover, to) = part.mover.as_ref().zip(part.moving_to.as_ref())?;
            let Mover { pid, rate_bytes_per_s, .. } = *mover;
            Some(Self { pid, to_nodes: members(to), rate_bytes_per_s })
        })
    }
}

/// The output of `nearside place`.
#[derive(Serialize)]
pub(crate) struct Placed<'a> {
    source: &'a str,
    #[serde(flatten)]
    decision: DecisionJson<'a>,
}

impl<'a> Placed<'a> {
    pub(crate) fn new(source: &'a str, decision: &'a Decision) -> Self {
        Self { source, decision: DecisionJson::new(decision) }
    }
}

/// The output of `nearside why`: the current home, and the decision behind the first one.
#[derive(Serialize)]
pub(crate) struct Why<'a> {
    name: &'a str,
    cgroup: &'a str,
    home: HomeJson,
    claim: Option<ClaimJson<'a>>,
    moving_to: Option<Vec<NodeId>>,
    mover: Option<MoverJson>,
    #[serde(flatten)]
    decision: DecisionJson<'a>,
}

impl<'a> Why<'a> {
    pub(crate) fn new(record: &'a Record, decision: &'a Decision) -> Self {
        Self {
            name: &record.name,
            cgroup: &record.cgroup,
            home: HomeJson::new(&record.part().home),
            claim: record.part().claim.as_ref().map(ClaimJson::new),
            moving_to: record.part().moving_to.as_ref().map(members),
            mover: MoverJson::of(record),
            decision: DecisionJson::new(decision),
        }
    }
}

#[derive(Serialize)]
struct DecisionJson<'a> {
    request: RequestJson<'a>,
    chosen: CandidateJson<'a>,
    runners_up: Vec<CandidateJson<'a>>,
    left_out: LeftOutJson<'a>,
    candidates: u64,
    exhaustive: bool,
    reasons: Vec<String>,
    model: CostModel,
}

impl<'a> DecisionJson<'a> {
    fn new(decision: &'a Decision) -> Self {
        Self {
            request: RequestJson::new(&decision.request),
            chosen: CandidateJson::new(&decision.chosen),
            runners_up: decision.runners_up.iter().map(CandidateJson::new).collect(),
            left_out: LeftOutJson::new(&decision.left_out),
            candidates: decision.candidates,
            exhaustive: decision.exhaustive,
            reasons: reasons(decision),
            model: decision.model,
        }
    }
}

#[derive(Serialize)]
pub(super) struct LeftOutJson<'a> {
    isolated_cpus: Vec<CpuId>,
    withheld_cpus: Vec<CpuId>,
    withheld_memory_nodes: Vec<NodeId>,
    withheld_by: Option<&'a str>,
}

impl<'a> LeftOutJson<'a> {
    pub(super) fn new(LeftOut { isolated_cpus, withheld }: &'a LeftOut) -> Self {
        let is_something = !withheld.cpus.is_empty() || !withheld.memory_nodes.is_empty();
        Self {
            isolated_cpus: members(isolated_cpus),
            withheld_cpus: members(&withheld.cpus),
            withheld_memory_nodes: members(&withheld.memory_nodes),
            withheld_by: is_something.then_some(&withheld.by),
        }
    }
}

#[derive(Serialize)]
struct RequestJson<'a> {
    vcpus: u32,
    memory_bytes: u64,
    huge_page_bytes: Option<u64>,
    policy: MemoryPolicy,
    nodes: Option<Vec<NodeId>>,
    near: &'a [NodeId],
}

impl<'a> RequestJson<'a> {
    fn new(request: &'a Request) -> Self {
        Self {
            vcpus: request.vcpus,
            memory_bytes: request.memory_bytes,
            huge_page_bytes: huge_page_bytes(request.page_size),
            policy: request.policy,
            nodes: request.nodes.as_ref().map(members),
            near: &request.near,
        }
    }
}

#[derive(Serialize)]
pub(super) struct CandidateJson<'a> {
    nodes: Vec<NodeId>,
    slow_down_ppm: Option<u64>,
    cpu_ppm: Option<u64>,
    memory_ppm: Option<u64>,
    devices_ppm: Option<u64>,
    vcpus_per_core_ppm: Option<u64>,
    claim: ClaimJson<'a>,
    spilled_bytes: u64,
    free_after_bytes: u64,
}

impl<'a> CandidateJson<'a> {
    pub(super) fn new(candidate: &'a Candidate) -> Self {
        Self {
            nodes: members(&candidate.nodes),
            slow_down_ppm: candidate.slow_down.ppm(),
            cpu_ppm: candidate.parts.cpu.ppm(),
            memory_ppm: candidate.parts.memory.ppm(),
            devices_ppm: candidate.parts.devices.ppm(),
            vcpus_per_core_ppm: candidate.vcpus_per_core_ppm,
            claim: ClaimJson::new(&candidate.claim),
            spilled_bytes: candidate.spilled_bytes,
            free_after_bytes: candidate.free_after_bytes,
        }
    }
}

/// Facts that only a record has.
#[derive(Serialize)]
struct RecordJson<'a> {
    started_unix_s: u64,
    found_by: Option<&'a str>,
    command: &'a [String],
    limits: Limits,
    cpus: Option<Vec<CpuId>>,
    memory_nodes: Option<Vec<NodeId>>,
    policy_nodes: Option<Vec<NodeId>>,
    moving_to: Option<Vec<NodeId>>,
    decision: Option<DecisionJson<'a>>,
}

impl<'a> RecordJson<'a> {
    fn new(record: &'a Record) -> Self {
        let cpus = |binding: &CpuBinding| members(&binding.cpus);
        Self {
            started_unix_s: record.started_unix_s,
            found_by: record.found_by.as_deref(),
            command: &record.command,
            limits: record.limits,
            cpus: record.part().cpus.as_ref().map(cpus),
            memory_nodes: record.part().memory_nodes.as_ref().map(members),
            policy_nodes: record.part().policy_nodes.as_ref().map(members),
            moving_to: record.part().moving_to.as_ref().map(members),
            decision: record.part().decision.as_ref().map(DecisionJson::new),
        }
    }
}
