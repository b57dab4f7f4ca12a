//! Another home for a domain that runs, carried out on this host: for `set`, and for the daemon.

use crate::{domains::named, failure::Failure, report::set::Report};
use nearside_linux::{Host, store::Record};
use nearside_policy::{
    Action, Home, Machine, Observation, Origin, Outcome as Applied, PartId, Plan, Progress, Rehome,
    RehomeRefusal, home_after, later_policy_nodes, may_go_on, rehome,
};
use std::ops::ControlFlow;

/// The failure that a refusal is.
pub(crate) fn refused(refusal: RehomeRefusal) -> Failure {
    match refusal {
        RehomeRefusal::NoNodes(_) | RehomeRefusal::UnknownNodes { .. } => Failure::usage(refusal),
        _ => Failure::could_not(refusal),
    }
}

/// The plan for a wish, and the observation behind it.
pub(crate) fn plan(host: &mut Host, wish: &Rehome) -> Result<(Plan, Observation), Failure> {
    let observation = host.observe().map_err(Failure::could_not)?;
    Ok((rehome(wish, &observation).map_err(refused)?, observation))
}

/// Carries the wish out, step by step, with the affinity as for [`plan`].
/// `watch` is called while pages move, and may break off.
pub(crate) fn carry_out(
    host: &mut Host,
    wish: &Rehome,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, Failure> {
    host.lock().map_err(Failure::could_not)?;
    let (plan, observation) = plan(host, wish)?;
    let before = named(host, wish.part.domain())?;
    let record = record_after(wish, &before, &plan, &observation);
    host.edit(record);
    host.save().map_err(Failure::could_not)?;

    let mut report = Report {
        name: wish.part.to_string(),
        nodes_before: before.part().home.nodes.clone(),
        nodes: wish.nodes.clone(),
        asked_to_move: wish.move_memory,
        confined: true,
        ..Report::default()
    };
    report.notes.extend(plan.limits.clone());
    for step in &plan.transaction.steps {
        if let Applied::Refused { why } = host.apply_step(&step.action) {
            let undone = undo(host, before);
            return Err(failed(&step.action, &why, undone));
        }
    }
    let Some(step) = &plan.moves else {
        report.notes.extend(host.take_notices());
        return Ok(report);
    };
    let outcome = host.move_pages(&step.action, watch);
    let goes_on = may_go_on(&outcome);
    match outcome {
        Applied::Applied { moved_bytes } => report.moved_bytes += moved_bytes,
        Applied::Partly { moved_bytes, stayed, interrupted } => {
            report.moved_bytes += moved_bytes;
            report.stayed_bytes = stayed;
            report.interrupted = interrupted;
        }
        // Where memory has moved already, the new home stands.
        Applied::Refused { why } => return Err(failed(&step.action, &why, Ok(()))),
    }
    report.confined = goes_on;
    let narrowing = plan.afterwards.filter(|_| goes_on).map_or_else(Vec::new, |it| it.steps);
    for step in narrowing {
        if let Applied::Refused { why } = host.apply_step(&step.action) {
            return Err(failed(&step.action, &why, Ok(())));
        }
    }
    report.notes.extend(host.take_notices());
    Ok(report)
}

/// Gives a home that an operator chose back to placement; which one that is. None where the domain has ended, or has none.
pub(crate) fn give_back(host: &mut Host, domain: &str) -> Result<Option<Home>, Failure> {
    let Some(record) = host.record(domain) else { return Ok(None) };
    if record.part().home.origin == Origin::Adopted {
        return Err(Failure::could_not(format_args!(
            "somebody else keeps {domain} on {}: whoever does can let it go, and its home is placement's then",
            record.part().home.nodes.named()
        )));
    }
    host.take_up(domain, None).map_err(Failure::could_not)?;
    let given = host.edited().map(|record| {
        record.part_mut().home.origin = Origin::Auto;
        record.part().home.clone()
    });
    let saved = host.save().map_err(Failure::could_not);
    host.put_down();
    saved.map(|()| given)
}

/// The record of the domain at its new home. From here on the home is the new one, even if its memory is not there yet:
/// its claim and its CPUs are.
fn record_after(wish: &Rehome, before: &Record, plan: &Plan, observation: &Observation) -> Record {
    let home = home_after(wish, Some(&before.part().home));
    let claim = plan.transaction.steps.iter().find_map(|step| match &step.action {
        Action::Claim { claim, .. } => Some(claim),
        _ => None,
    });
    // A plan without steps binds nothing, so nothing is to be bound later either.
    let policy_nodes =
        claim.and_then(|claim| later_policy_nodes(&home, claim, &observation.topology));
    let mut after = before.clone();
    let part = after.part_mut();
    (part.home, part.policy_nodes) = (home, policy_nodes);
    after
}

fn failed(action: &dyn std::fmt::Display, why: &str, undone: Result<(), String>) -> Failure {
    let also = undone
        .err()
        .map_or_else(String::new, |also| format!("; nor could it be taken back: {also}"));
    Failure::could_not(format_args!("cannot {action}: {why}{also}"))
}

/// Puts the record and the nodes that are allowed back. Says why not.
fn undo(host: &mut Host, before: Record) -> Result<(), String> {
    if host.edited().is_none() {
        // The domain has ended, or is another command's to change.
        return Ok(());
    }
    let part = PartId::of(&before.name);
    let mems = before
        .part()
        .memory_nodes
        .clone()
        .map(|nodes| Action::ConfineMemory { part: part.clone(), nodes });
    let cpus = before.part().cpus.clone();
    let cpus = cpus.map(|binding| Action::BindCpus {
        part,
        cpus: binding.cpus,
        on_behalf: binding.on_behalf,
    });
    host.edit(before);
    host.save().map_err(|error| error.to_string())?;
    for action in mems.iter().chain(&cpus) {
        if let Applied::Refused { why } = host.apply_step(action) {
            return Err(why);
        }
    }
    Ok(())
}
