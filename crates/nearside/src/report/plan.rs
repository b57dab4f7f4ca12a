//! The plan that `--dry-run` prints.

use super::json::{ClaimJson, members};
use crate::printable::printable;
use nearside_policy::{Action, Batch, CpuReason, PageMove, Plan, Step};
use nearside_topology::{CpuId, NodeId};
use serde::Serialize;

/// The steps in order, and the limits of their effect.
pub(crate) fn text(plan: &Plan) -> String {
    let mut text = String::from(if is_empty(plan) { "nothing to do\n" } else { "would do:\n" });
    for (number, step) in steps_of(plan).enumerate() {
        let step_text = printable(&format!("{} ({})", step.text, step.because));
        text += &format!("  {}. {step_text}\n", number + 1);
    }
    for limit in &plan.limits {
        text += &format!("note: {}\n", printable(limit));
    }
    text
}

/// True for a plan without steps and moves.
pub(crate) fn is_empty(plan: &Plan) -> bool {
    plan.transaction.is_empty() && plan.moves.is_none()
}

/// All steps of a plan, in order.
fn steps_of(plan: &Plan) -> impl Iterator<Item = StepJson<'_>> {
    let first = plan.transaction.steps.iter().map(StepJson::new);
    let moves = plan.moves.iter().map(StepJson::of_move);
    let last = plan.afterwards.iter().flat_map(|transaction| &transaction.steps);
    first.chain(moves).chain(last.map(StepJson::new))
}

/// The plan as JSON.
#[derive(Serialize)]
pub(crate) struct PlanJson<'a> {
    name: &'a str,
    steps: Vec<StepJson<'a>>,
    notes: &'a [String],
}

impl<'a> PlanJson<'a> {
    pub(crate) fn new(name: &'a str, plan: &'a Plan) -> Self {
        Self { name, steps: steps_of(plan).collect(), notes: &plan.limits }
    }
}

/// A step; keys that its action does not use are absent.
#[derive(Serialize)]
pub(crate) struct StepJson<'a> {
    #[serde(flatten)]
    action: ActionJson<'a>,
    /// The action and its reason as text.
    text: String,
    because: String,
}

impl<'a> StepJson<'a> {
    pub(crate) fn new(step: &'a Step) -> Self {
        Self {
            action: ActionJson::new(&step.action),
            text: step.action.to_string(),
            because: step.reason.to_string(),
        }
    }

    pub(crate) fn of_move(step: &'a Step<PageMove>) -> Self {
        Self {
            action: ActionJson::of_move(&step.action),
            text: step.action.to_string(),
            because: step.reason.to_string(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
enum ActionJson<'a> {
    Create,
    UnbindCpus,
    Forget,
    Reserve,
    Release,
    Adopt {
        owner: &'a str,
    },
    PutOff,
    BeginMove {
        nodes: Vec<NodeId>,
        rate_bytes_per_s: Option<u64>,
    },
    EndMove {
        is_complete: bool,
    },
    Claim {
        claim: ClaimJson<'a>,
    },
    SetHome {
        nodes: Vec<NodeId>,
    },
    ConfineMemory {
        nodes: Vec<NodeId>,
    },
    BindCpus {
        cpus: Vec<CpuId>,
        on_behalf: CpuReason,
    },
    SetMemoryPolicy {
        nodes: Vec<NodeId>,
    },
    MovePages {
        nodes: Vec<NodeId>,
        rate_bytes_per_s: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        batch: Option<BatchJson>,
    },
}

/// The selected pages of the domain, if not all of them move.
#[derive(Serialize)]
struct BatchJson {
    from_node: NodeId,
    max_bytes: u64,
}

impl<'a> ActionJson<'a> {
    fn new(action: &'a Action) -> Self {
        match action {
            Action::Create { .. } => Self::Create,
            Action::UnbindCpus { .. } => Self::UnbindCpus,
            Action::Forget { .. } => Self::Forget,
            Action::Reserve { .. } => Self::Reserve,
            Action::Release { .. } => Self::Release,
            Action::Adopt { owner, .. } => Self::Adopt { owner },
            Action::PutOff { .. } => Self::PutOff,
            Action::BeginMove { nodes, rate_bytes_per_s, .. } => {
                Self::BeginMove { nodes: members(nodes), rate_bytes_per_s: *rate_bytes_per_s }
            }
            Action::EndMove { is_complete, .. } => Self::EndMove { is_complete: *is_complete },
            Action::Claim { claim, .. } => Self::Claim { claim: ClaimJson::new(claim) },
            Action::SetHome { home, .. } => Self::SetHome { nodes: members(&home.nodes) },
            Action::ConfineMemory { nodes, .. } => Self::ConfineMemory { nodes: members(nodes) },
            Action::BindCpus { cpus, on_behalf, .. } => {
                Self::BindCpus { cpus: members(cpus), on_behalf: *on_behalf }
            }
            Action::SetMemoryPolicy { nodes, .. } => {
                Self::SetMemoryPolicy { nodes: members(nodes) }
            }
        }
    }

    fn of_move(pages: &PageMove) -> Self {
        let batch =
            pages.batch.map(|Batch { from, max_bytes }| BatchJson { from_node: from, max_bytes });
        let (nodes, rate_bytes_per_s) = (members(&pages.nodes), pages.rate_bytes_per_s);
        Self::MovePages { nodes, rate_bytes_per_s, batch }
    }
}
