//! What the control loop decided and how domains stand, as the daemon's API tells it.

use super::{
    json::{self, Why},
    plan::StepJson,
    why::Unplaced,
};
use crate::domains::Domain;
use nearside_linux::store::Record;
use nearside_policy::{
    ControlPlan, DebtWaits, History, Home, HomeWaits, Origin, PartHistory, PartId, Place, Status,
};
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The plan of an interval, and how each domain stands after it.
#[derive(Serialize)]
pub(crate) struct ControlJson<'a> {
    interval: u64,
    steps: Vec<PartStepJson<'a>>,
    standing: BTreeMap<String, StandingJson>,
}

impl<'a> ControlJson<'a> {
    pub(crate) fn new(plan: &'a ControlPlan, history: &'a History) -> Self {
        let standing =
            history.parts.iter().map(|(part, known)| (part.to_string(), StandingJson::new(known)));
        Self {
            interval: plan.interval,
            steps: steps_of(plan).map(|(part, step)| PartStepJson { domain: part, step }).collect(),
            standing: standing.collect(),
        }
    }
}

/// The steps of a plan in order, each with the part that it changes.
fn steps_of(plan: &ControlPlan) -> impl Iterator<Item = (&PartId, StepJson<'_>)> {
    let changes = plan.steps().map(|step| (step.action.part(), StepJson::new(step)));
    changes.chain(plan.moves.iter().map(|step| (&step.action.part, StepJson::of_move(step))))
}

/// A step and the part that it changes.
#[derive(Serialize)]
struct PartStepJson<'a> {
    domain: &'a PartId,
    #[serde(flatten)]
    step: StepJson<'a>,
}

/// How a domain stands.
#[derive(Serialize)]
pub(crate) struct StandingJson {
    place: &'static str,
    trouble_intervals: u64,
    off_home_ppm: u64,
    demand_milli_vcpus: u64,
    debt_bytes: u64,
    home_waits: Option<WaitsJson>,
    debt_waits: Option<WaitsJson>,
    text: String,
}

/// Why something is not done.
#[derive(Serialize)]
struct WaitsJson {
    because: &'static str,
    text: String,
}

impl StandingJson {
    fn new(known: &PartHistory) -> Self {
        let Status { place, debt_bytes, home_waits, debt_waits } = &known.status;
        let (place, trouble_intervals, off_home_ppm) = match *place {
            Place::NoHome => ("no-home", 0, 0),
            Place::Idle => ("idle", 0, 0),
            Place::AtHome => ("at-home", 0, 0),
            Place::Contended { intervals, off_home_ppm } => ("pushed-off", intervals, off_home_ppm),
        };
        let home_because = |waits: &HomeWaits| match waits {
            HomeWaits::Explicit => "explicit",
            HomeWaits::Bound => "kept",
            HomeWaits::OwnerForbids { .. } => "owner-keeps",
            HomeWaits::HasCpuset => "has-cpuset",
            HomeWaits::BelowThreshold => "may-pass",
            HomeWaits::Cooldown { .. } => "moved-lately",
            HomeWaits::Unconfirmed { .. } => "may-vary",
            HomeWaits::NoneBetter { .. } => "none-better",
            HomeWaits::DoesNotPay { .. } => "does-not-pay",
            HomeWaits::NoRoom => "no-room",
            HomeWaits::Queued => "in-turn",
        };
        let debt_because = |waits: &DebtWaits| match waits {
            DebtWaits::RunsThere => "runs-there",
            DebtWaits::NoRoom => "no-room",
            DebtWaits::NoBudget => "no-budget",
            DebtWaits::BoundElsewhere => "kept-elsewhere",
            DebtWaits::Balancing => "balancing",
            DebtWaits::NotAllowed => "not-allowed",
            DebtWaits::Stuck { .. } => "stuck",
        };
        Self {
            place,
            trouble_intervals,
            off_home_ppm,
            demand_milli_vcpus: known.demand.0,
            debt_bytes: *debt_bytes,
            home_waits: home_waits
                .as_ref()
                .map(|waits| WaitsJson { because: home_because(waits), text: waits.to_string() }),
            debt_waits: debt_waits
                .as_ref()
                .map(|waits| WaitsJson { because: debt_because(waits), text: waits.to_string() }),
            text: known.status.to_string(),
        }
    }
}

/// One domain: as `nearside list` tells it, its record, and how it stands.
#[derive(Serialize)]
pub(crate) struct DomainJson<'a> {
    #[serde(flatten)]
    domain: &'a Domain,
    #[serde(serialize_with = "json::record")]
    record: &'a Option<Record>,
    standing: Option<StandingJson>,
}

impl<'a> DomainJson<'a> {
    pub(crate) fn new(
        domain: &'a Domain,
        record: &'a Option<Record>,
        known: Option<&PartHistory>,
    ) -> Self {
        Self { domain, record, standing: known.map(StandingJson::new) }
    }
}

/// What a daemon answered about a domain: how it stands, and what was done about it in the last interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Control {
    pub(crate) standing: StandingTold,
    pub(crate) steps: Vec<StepTold>,
}

/// How a domain stands, as it was answered ([`StandingJson`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StandingTold {
    /// Where it runs, in a word.
    pub(crate) place: String,
    /// All of it, for people.
    pub(crate) text: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[cfg(test)]
impl StandingTold {
    /// As a daemon would tell of `known`.
    pub(crate) fn of(known: &PartHistory) -> Self {
        serde_json::from_value(serde_json::to_value(StandingJson::new(known)).unwrap()).unwrap()
    }
}

/// A step, as it was answered ([`StepJson`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepTold {
    pub(crate) text: String,
    pub(crate) because: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// Why a domain lives where it does: as `nearside why` tells it, what the loop makes of it, and what it does about it.
#[derive(Serialize)]
pub(crate) struct WhyJson<'a> {
    #[serde(flatten)]
    placed: PlacedJson<'a>,
    standing: Option<StandingJson>,
    steps: Vec<StepJson<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PlacedJson<'a> {
    Decided(Box<Why<'a>>),
    /// It was found.
    Found(Box<Unplaced>),
}

impl<'a> WhyJson<'a> {
    /// `unplaced` looks at a group that was found.
    pub(crate) fn new<E>(
        domain: &'a Domain,
        record: Option<&'a Record>,
        known: Option<&PartHistory>,
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
        Ok(Self {
            placed,
            standing: known.map(StandingJson::new),
            steps: steps.map(|(_, step)| step).collect(),
        })
    }
}

/// What a change through the API came to.
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
