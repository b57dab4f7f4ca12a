//! One capability of the daemon's loop, and its plan.

use super::observation::ControlObservation;
use crate::{PageMove, Step, Transaction};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt;

/// A capability of the daemon that plans once an interval.
///
/// A plan is pure: no clock, no file, no chance. The state is all that a controller remembers, so
/// that an interval can be replayed from the observation and the state alone.
pub trait Controller: fmt::Debug {
    /// The values that it carries from one interval to the next.
    type State: fmt::Debug + Clone + Default + Serialize + DeserializeOwned;

    /// The name under which the state is saved.
    const NAME: &'static str;

    /// The state once an interval was observed and nothing decided.
    fn learn(&self, seen: &ControlObservation, state: &Self::State) -> Self::State;

    /// The plan for the interval that begins, and the state for the next one.
    fn plan(&self, seen: &ControlObservation, state: &Self::State) -> (ControlPlan, Self::State);

    /// Takes the decision of a planned transaction back, because it was dropped: the next interval
    /// decides anew. `state` is that after the plan, `learned` that without any decision.
    fn take_back(&self, state: &mut Self::State, learned: &Self::State, dropped: &Transaction);
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
