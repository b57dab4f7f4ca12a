//! Another home for a running domain: for `set`, and for the daemon.

use crate::{
    failure::Failure,
    report::set::Report,
    room::{self, Shortage},
};
use nearside_linux::{Host, OwnMove, Refusal, store::Part};
use nearside_policy::{
    Action, Bytes, CpuReason, Home, Machine, Origin, Outcome as Applied, PartId, Plan, Progress,
    Reason, Rehome, RehomeRefusal, Step, Transaction, may_go_on, rehome,
};
use std::ops::ControlFlow;

/// Turns a refusal into a failure.
pub(crate) fn refused(refusal: RehomeRefusal) -> Failure {
    match refusal {
        RehomeRefusal::NoNodes(_) | RehomeRefusal::UnknownNodes { .. } => Failure::usage(refusal),
        _ => Failure::could_not(refusal),
    }
}

/// The plan for a request, from the host as it is now.
pub(crate) fn plan(host: &mut Host, wish: &Rehome) -> Result<Plan, Failure> {
    let observation = host.observe().map_err(Failure::could_not)?;
    rehome(wish, &observation).map_err(refused)
}

/// Carries out a request: the change of home as one transaction, then the move of the memory
/// without the lock, then the confinement to the new home. From the first to the last the record
/// names this process as the one that moves. `watch` is called while pages move, and
/// may interrupt them. Copies of program text go if the new home lacks their memory.
pub(crate) fn carry_out(
    host: &mut Host,
    wish: &Rehome,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, Failure> {
    let mut may_make_room = true;
    let (mut session, plan, home_before) = loop {
        let root = host.root().to_owned();
        let mut session = host.begin().map_err(Failure::could_not)?;
        let observation = session.observe(None).map_err(Failure::could_not)?;
        let refusal = match rehome(wish, observation) {
            Ok(plan) => {
                let home = observation.part(&wish.part).and_then(|part| part.home.clone());
                break (session, plan, home);
            }
            Err(refusal) => refusal,
        };
        drop(session);
        let lacks = Shortage::of_move(&refusal).filter(|_| may_make_room);
        may_make_room = false;
        if !lacks.is_some_and(|it| it.copies_go(&root, room::PATIENCE)) {
            return Err(refused(refusal));
        }
    };
    session.apply(&plan.transaction).map_err(Failure::could_not)?;
    let mut report = Report {
        name: wish.part.domain().into(),
        nodes_before: home_before.map(|home| home.nodes).unwrap_or_default(),
        nodes: wish.nodes.clone(),
        asked_to_move: wish.move_memory,
        confined: true,
        ..Report::default()
    };
    report.notes.extend(plan.limits);
    // Under the same lock as the new home, so that the daemon moves nothing in between.
    let begun = plan.moves.as_ref().map(|step| Ok((session.begin_move(&step.action)?, step)));
    drop(session);
    let begun = begun.transpose();
    let begun = begun.map_err(|refusal: Refusal| done_in_part(&report, &refusal.to_string()))?;
    if let Some((own, step)) = begun {
        let outcome = host.move_memory(&own, &step.action, watch);
        report.confined = may_go_on(&outcome);
        let refused = match outcome {
            Applied::Applied { moved_bytes } => {
                report.moved_bytes += moved_bytes;
                None
            }
            Applied::Partly { moved_bytes, stayed, interrupted } => {
                report.moved_bytes += moved_bytes;
                report.stayed_bytes = stayed;
                report.interrupted = interrupted;
                None
            }
            // The new home remains: some of the memory may be there already.
            Applied::Refused { why } => Some(format!("cannot {}: {why}", step.action)),
        };
        let narrowing = plan.afterwards.as_ref().filter(|_| report.confined);
        let is_complete = refused.is_none() && !report.interrupted;
        let ended = end_move(host, &own, narrowing, is_complete);
        if let Some(why) = refused.or_else(|| ended.err()) {
            return Err(done_in_part(&report, &why));
        }
    }
    report.notes.extend(host.take_notices());
    Ok(report)
}

fn end_move(
    host: &mut Host,
    own: &OwnMove,
    narrowing: Option<&Transaction>,
    is_complete: bool,
) -> Result<(), String> {
    let mut session = host.begin().map_err(|error| error.to_string())?;
    session.end_move(own, narrowing, is_complete).map_err(|refusal| refusal.to_string())
}

/// A failure after the home was changed: it names the changes that remain.
fn done_in_part(report: &Report, why: &str) -> Failure {
    let moved = match report.moved_bytes {
        0 => String::new(),
        moved_bytes => format!(" and {} moved there", Bytes(moved_bytes)),
    };
    let Report { name, nodes, .. } = report;
    Failure::could_not(format_args!(
        "the home of {name} is {} now{moved}, but: {why}",
        nodes.named()
    ))
}

/// Gives a home that an operator chose back to placement, and returns it. None if the domain has
/// ended, or has no home.
pub(crate) fn give_back(host: &mut Host, domain: &str) -> Result<Option<Home>, Failure> {
    let mut session = host.begin().map_err(Failure::could_not)?;
    let Some(record) = session.record(domain).map_err(Failure::could_not)? else {
        return Ok(None);
    };
    let before = record.whole_home();
    // An operator chooses for all cells, or for some of them.
    let chosen = record.parts().filter(|part| part.home.origin != Origin::Adopted);
    let step = |part: &Part| {
        let (from, to) = (part.home.nodes.clone(), part.home.nodes.clone());
        let home = Home { origin: Origin::Auto, ..part.home.clone() };
        let action = Action::SetHome { part: record.id_of(part), home };
        Step { action, reason: Reason::NewHome { from, to } }
    };
    let steps: Vec<_> = chosen.map(step).collect();
    if steps.is_empty() {
        return Err(Failure::could_not(format_args!(
            "the owner of its cgroup binds {domain} to {}: once that binding is lifted, placement \
             chooses its home",
            before.nodes.named()
        )));
    }
    let transaction = Transaction::new(steps, &session.state_of(&record));
    session.apply(&transaction).map_err(Failure::could_not)?;
    Ok(Some(Home { origin: Origin::Auto, ..before }))
}

/// Sets the home of a part of a domain that a pattern found, and returns the former one. The
/// scheduler prefers it. The domain's cgroup stays as it is, except for Nearside's own binding,
/// which goes with the former home.
pub(crate) fn prefer(
    host: &mut Host,
    part: &PartId,
    pattern: &str,
    home: &Home,
) -> Result<Option<Home>, Refusal> {
    let mut session = host.begin()?;
    session.found(part.domain(), pattern);
    let record = session.record(part.domain())?;
    let recorded = record.as_ref().and_then(|record| record.part_of(part));
    let before = recorded.map(|part| part.home.clone());
    let from = before.as_ref().map(|home| home.nodes.clone()).unwrap_or_default();
    let reason = Reason::NewHome { from, to: home.nodes.clone() };
    let binding = recorded.and_then(|part| part.cpus.as_ref());
    let has_fallback = binding.is_some_and(|it| it.on_behalf == CpuReason::Fallback);
    let unbind = has_fallback.then(|| Action::UnbindCpus { part: part.clone() });
    let set_home = Action::SetHome { part: part.clone(), home: home.clone() };
    let actions = unbind.into_iter().chain([set_home]);
    let steps = actions.map(|action| Step { action, reason: reason.clone() }).collect();
    let seen = record.map(|record| session.state_of(&record)).unwrap_or_default();
    session.apply(&Transaction::new(steps, &seen))?;
    Ok(before)
}
