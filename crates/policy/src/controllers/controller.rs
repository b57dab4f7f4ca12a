//! One capability of the daemon's loop, and its plan.

use super::{history::History, observation::ControlObservation};
use crate::{PageMove, Step, Transaction};
use serde::Serialize;
use std::fmt;

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
/// those before it.
pub fn plan_all<'a>(
    controllers: impl IntoIterator<Item = &'a dyn Controller>,
    seen: &ControlObservation,
    history: &History,
) -> (ControlPlan, History) {
    let mut all = ControlPlan { interval: seen.interval, ..ControlPlan::default() };
    // A history has an entry for each part, so it is copied only where no controller makes another.
    let mut after: Option<History> = None;
    for controller in controllers {
        let (plan, next) = controller.plan(seen, after.as_ref().unwrap_or(history));
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
    use crate::{Action, NodeHistory, Observation, Reason};
    use nearside_topology::{NodeId, NodeSet};

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
