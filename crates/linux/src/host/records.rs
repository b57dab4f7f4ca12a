//! The records that result from a transaction: pure functions over records and steps.

use crate::store::{Change, CpuBinding, Mover, Part, Record, Subject};
use nearside_policy::{
    Action, Affinity, CpuReason, Decision, Home, Origin, PartId, Step, later_policy_nodes,
};
use nearside_topology::{NodeSet, Topology};

/// The facts in the record of a new domain besides its home and claim.
#[derive(Debug, Clone)]
pub struct NewDomain {
    /// The command with its arguments.
    pub command: Vec<String>,
    /// The placement behind its home.
    pub decision: Decision,
}

/// The facts besides its steps that decide to which records a transaction leads.
#[derive(Debug)]
pub(super) struct Circumstances {
    /// Whether the transaction creates the domain.
    pub(super) is_new: bool,
    /// The machine as domains may use it.
    pub(super) topology: Topology,
    /// This process, if it begins to move memory.
    pub(super) mover: Option<Mover>,
}

/// A record after a step. None once its domain is forgotten.
pub(super) fn record_after(
    mut record: Record,
    step: &Step,
    circumstances: &Circumstances,
) -> Option<Record> {
    let was_found = record.found_by.is_some();
    let part = step.action.part().and_then(|id| part_mut(&mut record, id));
    let Some(part) = part else { return Some(record) };
    match &step.action {
        Action::Create { .. }
        | Action::Reserve { .. }
        | Action::Release { .. }
        | Action::Adopt { .. }
        | Action::PutOff { .. } => {}
        // A domain that a pattern found claims nothing beyond the memory that it holds.
        Action::Claim { claim, .. } => part.claim = (!was_found).then(|| claim.clone()),
        Action::SetHome { home, .. } => set_home(part, home, circumstances),
        Action::ConfineMemory { nodes, .. } => part.memory_nodes = Some(nodes.clone()),
        Action::BindCpus { cpus, on_behalf, .. } => {
            part.cpus = Some(CpuBinding { cpus: cpus.clone(), on_behalf: *on_behalf });
        }
        Action::UnbindCpus { .. } => part.cpus = None,
        Action::SetMemoryPolicy { nodes, .. } => part.policy_nodes = Some(nodes.clone()),
        Action::BeginMove { nodes, rate_bytes_per_s, .. } => {
            let rate_bytes_per_s = *rate_bytes_per_s;
            part.moving_to = Some(nodes.clone());
            part.mover = circumstances.mover.clone().map(|it| Mover { rate_bytes_per_s, ..it });
        }
        Action::EndMove { is_complete, .. } => {
            part.mover = None;
            part.moving_to.take_if(|_| *is_complete);
        }
        Action::Forget { .. } => return None,
    }
    Some(record)
}

fn part_mut<'a>(record: &'a mut Record, id: &PartId) -> Option<&'a mut Part> {
    record.parts.iter_mut().find(|part| part.cell == id.cell())
}

fn set_home(part: &mut Part, home: &Home, circumstances: &Circumstances) {
    if part.home.nodes != home.nodes {
        // A new home ends a move to the former one.
        (part.moving_to, part.mover) = (None, None);
    }
    // A new domain gets its policy in a separate step, or none on a machine of one node.
    if !circumstances.is_new {
        let topology = &circumstances.topology;
        let claim = part.claim.as_ref();
        part.policy_nodes = claim.and_then(|claim| later_policy_nodes(home, claim, topology));
    }
    part.home = home.clone();
}

/// Whether Nearside's own binding is to replace a scheduler that knows node affinity: a part is not
/// bound yet, and prefers a home with CPUs that is not the whole machine.
pub fn wants_fallback(record: &Record, topology: &Topology) -> bool {
    let with_cpus: NodeSet = topology.cpus.iter().filter_map(|cpu| cpu.node).collect();
    let wants = |part: &Part| needs_binding(part) && !with_cpus.is_subset(&part.home.nodes);
    record.parts().any(wants)
}

/// Whether a part needs a binding to stay at home without such a scheduler. One that is bound
/// already needs none, by whomever it is bound.
pub(super) fn needs_binding(part: &Part) -> bool {
    part.cpus.is_none()
        && part.home.affinity == Affinity::Soft
        && part.home.origin != Origin::Adopted
}

/// Whether Nearside binds a part's CPUs in place of a scheduler.
pub(super) fn has_fallback(part: &Part) -> bool {
    part.cpus.as_ref().is_some_and(|binding| binding.on_behalf == CpuReason::Fallback)
}
/// The record of a domain before and after a change. For a missing one, a record without bindings
/// is used: a cgroup without a home is not bound.
pub(super) fn before_and_after(change: &Change) -> Option<(Record, Record)> {
    let record = |subject: &Option<Subject>| match subject {
        Some(Subject::Domain(record)) => Some(record.clone()),
        _ => None,
    };
    let bare = |record: &Record| {
        let mut bare = record.clone();
        for part in bare.parts.iter_mut() {
            *part = Part { cell: part.cell, ..Part::at(part.home.clone()) };
        }
        bare
    };
    match (record(&change.before), record(&change.after)) {
        (Some(before), Some(after)) => Some((before, after)),
        (None, Some(after)) => Some((bare(&after), after)),
        (Some(before), None) => Some((before.clone(), bare(&before))),
        (None, None) => None,
    }
}
