//! Observe, decide, act: the types that every decision and every machine share.

use crate::{Decision, Observation, Outcome, PageMove, Progress, Step, Transaction};
use std::ops::ControlFlow;

/// A machine that can be observed and changed: a Linux host, or a machine in software.
pub trait Machine {
    /// The reason why a machine cannot be observed.
    type Error;

    /// Reads its present state.
    fn observe(&mut self) -> Result<Observation, Self::Error>;

    /// Applies a transaction: all of its steps, or none if a need does not hold or a step is
    /// refused.
    fn apply(&mut self, transaction: &Transaction) -> Outcome;

    /// Moves pages. `progress` is called now and then; if it breaks off, the move stops at the
    /// next point from which the same call can resume it.
    fn move_pages(
        &mut self,
        pages: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Outcome;
}

/// The plan of `run` or `set`, in this order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The placement behind it, if there is one.
    pub decision: Option<Decision>,
    /// The change of claim, home and bindings.
    pub transaction: Transaction,
    /// The pages that move once the transaction is applied.
    pub moves: Option<Step<PageMove>>,
    /// The change that follows once the pages have moved ([`may_go_on`](crate::may_go_on)).
    pub afterwards: Option<Transaction>,
    /// The limits of the plan, for the user to know beforehand.
    pub limits: Vec<String>,
}
