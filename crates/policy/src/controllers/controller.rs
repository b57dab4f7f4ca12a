//! One capability of the daemon's loop, and its plan.

use super::{history::History, observation::ControlObservation};
use crate::{PageMove, Step, Transaction};
use serde::Serialize;
use std::{borrow::Cow, fmt};

/// A capability of the daemon that plans once an interval.
///
/// A plan is pure: no clock, no file, no chance. The history carries all that a controller
/// remembers, so that an interval can be replayed from the observation and the history alone.
pub trait Controller: fmt::Debug {
    /// The history once an interval was observed and nothing decided. A part continues from there
    /// if its transaction is dropped.
    fn learn(&self, seen: &ControlObservation, history: &History) -> History;

    /// The plan for the interval that begins, and the history for the next one.
    fn plan(&self, seen: &ControlObservation, history: &History) -> (ControlPlan, History);
}

/// The changes of an interval.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ControlPlan {
    /// The interval it was made in.
    pub interval: u64,
    /// Changes of homes and bindings, in order; each is applied as a whole or not at all.
    pub transactions: Vec<Transaction>,
    /// Pages that move until the next interval. They are no part of a transaction: a move takes
    /// long, and can be resumed.
    pub moves: Vec<Step<PageMove>>,
}

impl ControlPlan {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty() && self.moves.is_empty()
    }

    /// The steps of all transactions, in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.transactions.iter().flat_map(|transaction| &transaction.steps)
    }
}

/// The plans of all controllers in their order, as one. Each controller continues the history of
/// those before it, and sees the claims and homes that these have planned: no two of them count on
/// the same free memory.
pub fn plan_all<'a>(
    controllers: impl IntoIterator<Item = &'a dyn Controller>,
    seen: &ControlObservation,
    history: &History,
) -> (ControlPlan, History) {
    let mut all = ControlPlan { interval: seen.interval, ..ControlPlan::default() };
    // A history has an entry for each part, so it is copied only where no controller makes another.
    let mut after: Option<History> = None;
    let mut seen = Cow::Borrowed(seen);
    let mut controllers = controllers.into_iter().peekable();
    while let Some(controller) = controllers.next() {
        let (plan, next) = controller.plan(&seen, after.as_ref().unwrap_or(history));
        if controllers.peek().is_some() && !plan.transactions.is_empty() {
            let machine = &mut seen.to_mut().machine;
            for step in plan.steps() {
                machine.change(&step.action);
            }
        }
        all.transactions.extend(plan.transactions);
        all.moves.extend(plan.moves);
        after = Some(next);
    }
    (all, after.unwrap_or_else(|| history.clone()))
}

/// The history that [`plan_all`] would lead to without any decision.
pub fn learn_all<'a>(
    controllers: impl IntoIterator<Item = &'a dyn Controller>,
    seen: &ControlObservation,
    history: &History,
) -> History {
    let learn = |history, controller: &dyn Controller| controller.learn(seen, &history);
    controllers.into_iter().fold(history.clone(), learn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, ByNode, NodeHistory, Observation, PageSize, Reason, Reservation, Until};
    use nearside_topology::{Node, NodeId, NodeSet, Topology};

    /// Plans one transaction, for a part named after the number of nodes that the history knows,
    /// and adds a node to it.
    #[derive(Debug)]
    struct Counting;

    impl Controller for Counting {
        fn learn(&self, _: &ControlObservation, history: &History) -> History {
            history.clone()
        }

        fn plan(&self, seen: &ControlObservation, history: &History) -> (ControlPlan, History) {
            let mut history = history.clone();
            let number = history.nodes.len() as u32;
            history.nodes.insert(NodeId(number), NodeHistory::default());
            let part = number.to_string().into();
            let action = Action::ConfineMemory { part, nodes: NodeSet::new() };
            let steps = vec![Step { action, reason: Reason::Arrived }];
            let transactions = vec![Transaction::new(steps, &Observation::default())];
            (ControlPlan { interval: seen.interval, transactions, moves: Vec::new() }, history)
        }
    }

    /// Reserves half of the memory that is free on node 0.
    #[derive(Debug)]
    struct Halving;

    impl Controller for Halving {
        fn learn(&self, _: &ControlObservation, history: &History) -> History {
            history.clone()
        }

        fn plan(&self, seen: &ControlObservation, history: &History) -> (ControlPlan, History) {
            let half_bytes = seen.machine.available(PageSize::Base).on(NodeId(0)) / 2;
            let bytes = ByNode::from([(NodeId(0), half_bytes)]);
            let reservation = Reservation { bytes, ..Reservation::default() };
            let action = Action::Reserve { reservation, until: Until::ProcessEnds };
            let steps = vec![Step { action, reason: Reason::Arrived }];
            let transactions = vec![Transaction::new(steps, &seen.machine)];
            (ControlPlan { transactions, ..ControlPlan::default() }, history.clone())
        }
    }

    #[test]
    fn controllers_see_what_those_before_them_have_planned() {
        let node = Node { id: NodeId(0), memory_bytes: 800 << 20, ..Node::default() };
        let machine = Observation::of(Topology { nodes: vec![node], ..Topology::default() });
        let free_bytes = machine.available(PageSize::Base).on(NodeId(0));
        let seen = ControlObservation { machine, ..ControlObservation::default() };
        let (plan, _) = plan_all([&Halving as &dyn Controller; 3], &seen, &History::default());
        let reserved = plan.steps().map(|step| match &step.action {
            Action::Reserve { reservation, .. } => reservation.bytes[&NodeId(0)],
            _ => 0,
        });
        assert!(free_bytes > 0);
        assert_eq!(reserved.collect::<Vec<_>>(), [2, 4, 8].map(|part| free_bytes / part));
    }

    #[test]
    fn controllers_continue_the_history_of_those_before_them() {
        let seen = ControlObservation { interval: 7, ..ControlObservation::default() };
        let (plan, history) =
            plan_all([&Counting as &dyn Controller; 2], &seen, &History::default());
        let parts = plan.transactions.iter().flat_map(|it| it.parts());
        let names: Vec<_> = parts.map(|part| part.domain()).collect();
        assert_eq!((plan.interval, names, history.nodes.len()), (7, vec!["0", "1"], 2));
        let (nothing, same) = plan_all([], &seen, &history);
        assert_eq!((nothing.transactions, same), (Vec::new(), history));
    }
}
