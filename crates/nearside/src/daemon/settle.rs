//! The consequences of an interval's transactions, for its page moves and for the next decision.

use nearside_linux::Refusal;
use nearside_policy::{Batch, ControlPlan, MoveReport, Outcome, PageMove, PartId, Step};
use std::collections::BTreeSet;

/// The consequences of the outcomes.
#[derive(Debug, PartialEq)]
pub(super) struct Settled {
    /// The pages that are to move: all but those of parts whose change was not made.
    pub(super) moves: Vec<PageMove>,
    /// The positions of the transactions that were dropped: the next interval decides anew. One
    /// with a refused step is none of them, because the step would be refused again: its cooldown
    /// holds.
    pub(super) dropped: Vec<usize>,
}

/// The consequences of a plan whose first transactions have these outcomes. The others were not
/// tried.
pub(super) fn settle(plan: &ControlPlan, outcomes: &[Result<(), Refusal>]) -> Settled {
    let mut unchanged: BTreeSet<&PartId> = BTreeSet::new();
    let mut dropped = Vec::new();
    for (at, transaction) in plan.transactions.iter().enumerate() {
        let is_step_refused = match outcomes.get(at) {
            Some(Ok(())) => continue,
            Some(Err(Refusal::Step { .. })) => true,
            Some(Err(_)) | None => false,
        };
        unchanged.extend(transaction.parts());
        if !is_step_refused {
            dropped.push(at);
        }
    }
    let may_move = |step: &&Step<PageMove>| !unchanged.contains(&step.action.part);
    let moves = plan.moves.iter().filter(may_move).map(|step| step.action.clone()).collect();
    Settled { moves, dropped }
}

/// The report on a page move for its controller. A move that was never tried has none.
pub(super) fn report(pages: &PageMove, outcome: &Outcome) -> Option<MoveReport> {
    let PageMove { part, batch: Some(Batch { from, .. }), .. } = pages else { return None };
    let report = MoveReport::new(part, *from, outcome)?;
    let is_untried = matches!(
        outcome,
        Outcome::Partly { moved_bytes: 0, stayed, .. } if stayed.is_empty()
    );
    (!is_untried).then_some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_linux::Error;
    use nearside_policy::{Action, Observation, Reason, Stayed, StayedWhy, Transaction, Unmet};
    use nearside_topology::{NodeId, NodeSet};

    fn pages(part: &str) -> PageMove {
        PageMove {
            part: part.into(),
            nodes: NodeSet::from([NodeId(1)]),
            rate_bytes_per_s: None,
            batch: Some(Batch { from: NodeId(0), max_bytes: 4096 }),
        }
    }

    /// A transaction for each list of parts, and a page move for each part and for `idle`.
    fn plan(parts: &[&[&str]]) -> ControlPlan {
        let step = |part: &&str| {
            let action = Action::ConfineMemory { part: (*part).into(), nodes: NodeSet::new() };
            Step { action, reason: Reason::Arrived }
        };
        let transaction = |parts: &&[&str]| {
            Transaction::new(parts.iter().map(step).collect(), &Observation::default())
        };
        let moves = parts.iter().copied().flatten().chain([&"idle"]);
        ControlPlan {
            transactions: parts.iter().map(transaction).collect(),
            moves: moves
                .map(|part| Step { action: pages(part), reason: Reason::Arrived })
                .collect(),
            ..ControlPlan::default()
        }
    }

    /// The parts whose pages move, and those of transactions that were dropped.
    fn settled(plan: &ControlPlan, outcomes: &[Result<(), Refusal>]) -> [Vec<String>; 2] {
        let Settled { moves, dropped } = settle(plan, outcomes);
        let dropped = dropped.iter().flat_map(|at| plan.transactions[*at].parts());
        [
            moves.iter().map(|pages| pages.part.to_string()).collect(),
            dropped.map(ToString::to_string).collect(),
        ]
    }

    fn unmet() -> Result<(), Refusal> {
        Err(Unmet::Ended("a".into()).into())
    }

    fn step() -> Result<(), Refusal> {
        let why = Error::Refused("the kernel refuses".into());
        Err(Refusal::Step { action: "confine".into(), why })
    }

    #[test]
    fn the_outcome_of_a_transaction_decides_about_pages_and_cooldown() {
        let plan = plan(&[&["a"]]);
        for (outcome, moves, dropped) in [
            (Ok(()), &["a", "idle"][..], &[][..]),
            (unmet(), &["idle"], &["a"]),
            (step(), &["idle"], &[]),
            (Err(Error::Refused("no lock".into()).into()), &["idle"], &["a"]),
        ] {
            let name = format!("{outcome:?}");
            assert_eq!(settled(&plan, &[outcome]), [moves, dropped], "{name}");
        }
    }

    #[test]
    fn transactions_that_were_not_tried_are_dropped() {
        let plan = plan(&[&["a"], &["b"], &["c"]]);
        assert_eq!(settled(&plan, &[]), [&["idle"][..], &["a", "b", "c"]]);
        assert_eq!(settled(&plan, &[Ok(())]), [&["a", "idle"][..], &["b", "c"]]);
    }

    #[test]
    fn both_parts_of_an_exchange_share_its_outcome() {
        let plan = plan(&[&["a", "b"], &["c"]]);
        assert_eq!(settled(&plan, &[unmet(), Ok(())]), [&["c", "idle"][..], &["a", "b"]]);
        assert_eq!(settled(&plan, &[step(), Ok(())]), [&["c", "idle"][..], &[]]);
    }

    /// A part that is confined again after its home was changed, for example.
    #[test]
    fn a_part_with_one_failed_transaction_of_two_keeps_its_pages() {
        let plan = plan(&[&["a"], &["a"]]);
        assert_eq!(settled(&plan, &[Ok(()), step()]), [&["idle"][..], &[]]);
    }

    #[test]
    fn a_move_that_was_not_tried_has_no_report() {
        let partly =
            |moved_bytes, stayed| Outcome::Partly { moved_bytes, stayed, interrupted: true };
        let busy = Stayed::from([(StayedWhy::Busy, 4096)]);
        for (outcome, moved_bytes) in [
            (Outcome::Applied { moved_bytes: 7 }, Some(7)),
            (partly(7, Stayed::new()), Some(7)),
            (partly(0, busy), Some(0)),
            (partly(0, Stayed::new()), None),
            (Outcome::Refused { why: "it has ended".into() }, None),
        ] {
            let said = report(&pages("a"), &outcome).map(|report| report.moved_bytes);
            assert_eq!(said, moved_bytes, "{outcome:?}");
        }
        let whole = PageMove { batch: None, ..pages("a") };
        assert_eq!(report(&whole, &Outcome::Applied { moved_bytes: 7 }), None);
    }
}
