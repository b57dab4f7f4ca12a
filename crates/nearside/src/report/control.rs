//! JSON of the control loop: its plan and the status of each domain, as the daemon's API sends it.

#[cfg(test)]
use super::answers::StatusAnswer;
use super::{
    json::{self, Why},
    plan::StepJson,
    why::Unplaced,
};
use crate::domains::Domain;
use nearside_linux::store::Record;
use nearside_policy::{
    ControlPlan, DebtBlocker, History, Home, HomeBlocker, Origin, PartHistory, PartId, Place,
    Status,
};
use nearside_topology::{NodeId, NodeSet};
use serde::Serialize;
use std::collections::BTreeMap;

/// The plan of an interval, and each domain's status after it.
#[derive(Serialize)]
pub(crate) struct ControlJson<'a> {
    interval: u64,
    steps: Vec<PartStepJson<'a>>,
    status: BTreeMap<String, StatusJson>,
}

impl<'a> ControlJson<'a> {
    pub(crate) fn new(plan: &'a ControlPlan, history: &'a History) -> Self {
        let status =
            history.parts.iter().map(|(part, known)| (part.to_string(), StatusJson::new(known)));
        Self {
            interval: plan.interval,
            steps: steps_of(plan).map(|(part, step)| PartStepJson { domain: part, step }).collect(),
            status: status.collect(),
        }
    }
}

/// The steps of a plan that change domains, in order, each with its part.
fn steps_of(plan: &ControlPlan) -> impl Iterator<Item = (&PartId, StepJson<'_>)> {
    let changes = plan.steps().filter_map(|step| Some((step.action.part()?, StepJson::new(step))));
    changes.chain(plan.moves.iter().map(|step| (&step.action.part, StepJson::of_move(step))))
}

/// A step and the part that it changes.
#[derive(Serialize)]
struct PartStepJson<'a> {
    domain: &'a PartId,
    #[serde(flatten)]
    step: StepJson<'a>,
}

/// A domain's status.
#[derive(Serialize)]
pub(crate) struct StatusJson {
    place: &'static str,
    contention_intervals: u64,
    off_home_ppm: u64,
    demand_milli_vcpus: u64,
    debt_bytes: u64,
    home_blocker: Option<BlockerJson>,
    debt_blocker: Option<BlockerJson>,
    text: String,
}

/// The reason against a change.
#[derive(Serialize)]
struct BlockerJson {
    because: &'static str,
    text: String,
}

impl StatusJson {
    fn new(known: &PartHistory) -> Self {
        let Status { place, debt_bytes, home_blocker, debt_blocker } = &known.status;
        let (place, contention_intervals, off_home_ppm) = match *place {
            Place::NoHome => ("no-home", 0, 0),
            Place::Idle => ("idle", 0, 0),
            Place::AtHome => ("at-home", 0, 0),
            Place::Contended { intervals, off_home_ppm } => ("contended", intervals, off_home_ppm),
        };
        let home_because = |blocker: &HomeBlocker| match blocker {
            HomeBlocker::Explicit => "explicit",
            HomeBlocker::Bound => "bound",
            HomeBlocker::OwnerForbids { .. } => "owner-forbids",
            HomeBlocker::HasCpuset => "has-cpuset",
            HomeBlocker::HasCells => "has-cells",
            HomeBlocker::BelowThreshold => "below-threshold",
            HomeBlocker::Cooldown { .. } => "cooldown",
            HomeBlocker::Refused { .. } => "refused",
            HomeBlocker::Unconfirmed { .. } => "unconfirmed",
            HomeBlocker::NoneBetter { .. } => "none-better",
            HomeBlocker::DoesNotPay { .. } => "does-not-pay",
            HomeBlocker::NoRoom => "no-room",
            HomeBlocker::Queued => "queued",
        };
        let debt_because = |blocker: &DebtBlocker| match blocker {
            DebtBlocker::RunsThere => "runs-there",
            DebtBlocker::NoRoom => "no-room",
            DebtBlocker::NoBudget => "no-budget",
            DebtBlocker::HasMover { .. } => "has-mover",
            DebtBlocker::BoundElsewhere => "bound-elsewhere",
            DebtBlocker::Balancing => "balancing",
            DebtBlocker::NotAllowed => "not-allowed",
            DebtBlocker::Stuck { .. } => "stuck",
        };
        Self {
            place,
            contention_intervals,
            off_home_ppm,
            demand_milli_vcpus: known.demand.0,
            debt_bytes: *debt_bytes,
            home_blocker: home_blocker
                .as_ref()
                .map(|it| BlockerJson { because: home_because(it), text: it.to_string() }),
            debt_blocker: debt_blocker
                .as_ref()
                .map(|it| BlockerJson { because: debt_because(it), text: it.to_string() }),
            text: known.status.to_string(),
        }
    }
}

/// One domain: the keys of `nearside list`, its record, and its status.
#[derive(Serialize)]
pub(crate) struct DomainJson<'a> {
    #[serde(flatten)]
    domain: &'a Domain,
    #[serde(serialize_with = "json::record")]
    record: &'a Option<Record>,
    status: Option<StatusJson>,
    status_of_cells: BTreeMap<u32, StatusJson>,
}

impl<'a> DomainJson<'a> {
    pub(crate) fn new(domain: &'a Domain, record: &'a Option<Record>, history: &History) -> Self {
        let (status, status_of_cells) = statuses(&domain.name, history);
        Self { domain, record, status, status_of_cells }
    }
}

/// The status of a domain, or those of its cells by their numbers.
fn statuses(domain: &str, history: &History) -> (Option<StatusJson>, BTreeMap<u32, StatusJson>) {
    let whole = PartId::of(domain);
    // The cells of a domain follow it in the order of parts.
    let parts = history.parts.range(whole.clone()..).take_while(|(id, _)| id.domain() == domain);
    let cells = parts.filter_map(|(id, known)| Some((id.cell()?.0, StatusJson::new(known))));
    (history.parts.get(&whole).map(StatusJson::new), cells.collect())
}

#[cfg(test)]
impl StatusAnswer {
    /// The answer of a daemon whose history of the domain is `known`.
    pub(crate) fn of(known: &PartHistory) -> Self {
        serde_json::from_value(serde_json::to_value(StatusJson::new(known)).unwrap()).unwrap()
    }
}

/// The keys of `nearside why`, the domain's status, and the steps that concern it.
#[derive(Serialize)]
pub(crate) struct WhyJson<'a> {
    #[serde(flatten)]
    placed: PlacedJson<'a>,
    status: Option<StatusJson>,
    status_of_cells: BTreeMap<u32, StatusJson>,
    steps: Vec<StepJson<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PlacedJson<'a> {
    Decided(Box<Why<'a>>),
    /// A group that was found by a pattern.
    Found(Box<Unplaced>),
}

impl<'a> WhyJson<'a> {
    /// `unplaced` reads a group that has no decision.
    pub(crate) fn new<E>(
        domain: &'a Domain,
        record: Option<&'a Record>,
        history: &History,
        plan: &'a ControlPlan,
        unplaced: impl FnOnce() -> Result<Unplaced, E>,
    ) -> Result<Self, E> {
        let placed = match record
            .and_then(|record| Some((record, record.part().decision.as_ref()?)))
        {
            Some((record, decision)) => PlacedJson::Decided(Box::new(Why::new(record, decision))),
            None => PlacedJson::Found(Box::new(unplaced()?)),
        };
        let steps = steps_of(plan).filter(|(part, _)| part.domain() == domain.name);
        let (status, status_of_cells) = statuses(&domain.name, history);
        Ok(Self { placed, status, status_of_cells, steps: steps.map(|(_, step)| step).collect() })
    }
}

/// The result of a change through the API.
#[derive(Serialize)]
pub(crate) struct ChangedJson<'a> {
    pub(crate) name: &'a str,
    pub(crate) nodes_before: Vec<NodeId>,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) origin: Origin,
    pub(crate) notes: &'a [String],
}

impl<'a> ChangedJson<'a> {
    pub(crate) fn new(
        name: &'a str,
        nodes_before: &NodeSet,
        home: &Home,
        notes: &'a [String],
    ) -> Self {
        Self {
            name,
            nodes_before: json::members(nodes_before),
            nodes: json::members(&home.nodes),
            origin: home.origin,
            notes,
        }
    }
}
