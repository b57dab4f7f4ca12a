//! The host as the loop acts on it.

use super::{
    fallback::{self, DomainChange},
    notify,
    reported::Reported,
    settle::{Settled, settle},
    totals::Totals,
};
use crate::output;
use nearside_linux::{Host, Refusal, watch::Watcher};
use nearside_policy::{Action, ControlPlan, Outcome, PartState, Transaction};
use nearside_topology::Topology;

/// The host, its watcher, the conditions that were reported, and the totals.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) host: Host,
    pub(super) watcher: Watcher,
    pub(super) reported: Reported,
    pub(super) totals: Totals,
}

impl Site {
    /// A host about which nothing was reported yet.
    pub(super) fn new(host: Host, watcher: Watcher) -> Self {
        Self { host, watcher, reported: Reported::default(), totals: Totals::default() }
    }

    /// Applies the transactions of a plan in order until `is_over`. A change that was left
    /// unfinished is rolled back first, even if there is nothing to apply.
    pub(super) fn apply(
        &mut self,
        plan: &ControlPlan,
        topology: &Topology,
        is_over: &dyn Fn() -> bool,
    ) -> Settled {
        let mut outcomes: Vec<Result<(), Refusal>> = Vec::new();
        // If the records cannot be trusted, the lock cannot be had either, which tells.
        let is_unfinished = self.host.has_unfinished_change().unwrap_or(true);
        if is_unfinished || !plan.transactions.is_empty() {
            match self.host.begin() {
                Err(error) if plan.transactions.is_empty() => {
                    self.reported.report([error.to_string()]);
                }
                Err(error) => self.reported.report([fallback::not_locked(&error)]),
                Ok(mut session) => {
                    if !plan.transactions.is_empty() {
                        // Fresh figures of memory. If this fails, the first transaction tells.
                        let _ = session.observe(Some(topology));
                    }
                    for transaction in &plan.transactions {
                        notify::busy();
                        for part in transaction.parts() {
                            if let Some(pattern) = self.watcher.found_by(part.domain()) {
                                session.found(part.domain(), pattern);
                            }
                        }
                        outcomes.push(session.apply(transaction));
                        if is_over() {
                            break;
                        }
                    }
                }
            }
        }
        for (transaction, outcome) in plan.transactions.iter().zip(&outcomes) {
            self.count(transaction, outcome);
        }
        settle(plan, &outcomes)
    }

    /// Counts and reports the outcome of a transaction.
    fn count(&mut self, transaction: &Transaction, outcome: &Result<(), Refusal>) {
        if let Err(refusal) = outcome {
            let reserved = transaction.subjects().into_iter().filter(|it| it.part().is_none());
            self.reported.report(reserved.map(|it| format!("{it}: {refusal}")));
        }
        for part in transaction.parts() {
            let domain = part.domain();
            match outcome {
                Ok(()) => {
                    self.totals.count(domain, &Outcome::Applied { moved_bytes: 0 });
                    self.reported.changed(domain);
                }
                Err(refusal) => {
                    let why = refusal.to_string();
                    self.reported.report_of(domain, &why);
                    self.totals.count(domain, &Outcome::Refused { why });
                }
            }
        }
        if outcome.is_err() {
            return;
        }
        for step in &transaction.steps {
            if let Action::SetHome { part, .. } = &step.action {
                self.totals.count_home(part.domain());
                output::note([format!("{part}: {}: {}", step.action, step.reason)]);
            }
        }
    }

    /// Changes domains one after the other until `is_over` ([`fallback::for_each_domain`]).
    pub(super) fn change_each(
        &mut self,
        names: &[String],
        change: DomainChange,
        is_over: &dyn Fn() -> bool,
    ) {
        fallback::for_each_domain(&mut self.host, &mut self.reported, names, change, is_over);
    }

    /// Forgets what it has kept for domains that have ended.
    pub(super) fn keep_only(&mut self, parts: &[PartState]) {
        self.totals.keep_only(parts.iter().map(|state| state.id.domain()));
        // Parts are in the order of their domains.
        let lives =
            |name: &str| parts.binary_search_by(|state| state.id.domain().cmp(name)).is_ok();
        self.reported.keep_only(lives);
        self.host.keep_only(lives);
    }

    /// Logs what the host and its watcher have noticed in an interval.
    pub(super) fn end_interval(&mut self) {
        let notices = [self.watcher.take_notices(), self.host.take_notices()].concat();
        self.reported.report(notices);
        self.reported.end_interval();
    }
}
