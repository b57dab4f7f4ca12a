//! The homes controller: it keeps parts at home once they run (docs/adr/0007-control-loop.md).
//!
//! # Problem
//! Placement chooses a home when a part starts, and loads change afterwards. vCPUs whose home is
//! full run elsewhere and leave their memory behind. Bringing both together again means to move
//! either the vCPUs (a neighbour has to make room) or the pages (a gigabyte takes about a second of
//! CPU time). A balancer that follows every change moves pages back and forth; one that waits for
//! certainty leaves a part remote for minutes.
//!
//! # Approach
//! [`Homes::plan`] is called once an interval. It compares all remedies by one figure: CPU time
//! saved within a horizon against CPU time that moving takes. A home is evaluated as in placement
//! (ADR 2), with measured demand in place of claims.
//!
//! # Terminology
//! - *demand*: CPU time that a part used and waited for, smoothed.
//! - *contention*: 10 % of a part's time is spent off its home, or waiting. Contended intervals are
//!   counted up to a *threshold* ([`contention`]).
//! - *host model*: the host with every part at its home, wherever it runs now ([`model`]).
//! - *evaluation*: the consequences of a home for a part: slow-down, bytes to move, room
//!   ([`evaluation`]).
//! - *gain*, *payback*: how much faster another home is; CPU time saved, and the cost of the move
//!   ([`Payback`](crate::Payback)).
//! - *horizon*: how long a part is expected to run, as long again as it has so far.
//! - *confirmation*: a better home is found once more in a row ([`confirmation`]).
//! - *cooldown*: the minimum time between two moves of a part ([`cooldown`]).
//! - *exchange*: two parts take each other's homes ([`exchange`]).
//! - *debt*, *rate*, *budget*: bytes off home; the speed at which a node's pages may move; bytes a
//!   pair of nodes may move in an interval ([`debt`], [`rate`]).
//!
//! # Pseudo-code
//! ```text
//! plan(seen, history):
//!     history = learn(seen, history)   # smooth demand, count contention, back off stuck pages
//!     host = model(seen, history)
//!     for each part without a home, largest first:
//!         home = external binding, else best of candidates(part)
//!     for each found part whose binding differs from its home for a threshold of samples:
//!         home = binding
//!     for each part that is due:       # contended home: every 3rd interval; others: every 10th
//!         best = home with the least CPU time over the horizon, moving included
//!         if gain and payback suffice: offer it
//!     for each offer, most savings first:
//!         if still best and confirmed: move
//!     for each contended part without an offer:
//!         if an exchange with a smaller part pays twice its cost and is confirmed:
//!             both move, in one transaction
//!     for each pair of nodes, nearest first:
//!         share its budget among the parts with debt to cross it
//!     for each confined part whose debt has arrived: confine it to its home again
//!     for each part: status, next sample
//! ```
//!
//! # Properties
//! - An operator's choice is never changed. On one node nothing is ever done.
//! - Each accepted move lowers the CPU time that all parts lose together, by more than measurements
//!   vary; so under steady load moves end.
//! - Two moves of a part are at least [`Tuning::cooldown_intervals`] apart, and within
//!   [`Tuning::steady_intervals`] there is a second only if the load on its home has grown.
//! - Claims and reservations on a node never exceed its allocatable memory; page moves leave its
//!   high watermark alone.
//! - A round takes O(parts x nodes) for sums, and O(nodes) and one placement for each of at most 16
//!   evaluated parts. Idle parts are not sampled in most intervals.

mod amounts;
mod backoff;
mod binding;
mod change;
mod confine;
mod confirmation;
mod contention;
mod cooldown;
mod debt;
mod evaluation;
mod exchange;
mod first;
#[cfg(test)]
mod fixture;
mod learning;
mod mobility;
mod model;
mod order;
mod rate;
mod review;
mod round;
mod sampling;
mod smoothing;
mod status;
mod steps;
mod tuning;

pub use tuning::Tuning;

use super::controller::{ControlPlan, Controller};
use crate::{ControlObservation, History, Transaction};
use learning::Learned;
use round::Round;

/// The homes controller.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Homes {
    /// Its constants.
    pub tuning: Tuning,
}

impl Controller for Homes {
    type State = History;

    const NAME: &'static str = "homes";

    fn learn(&self, seen: &ControlObservation, history: &History) -> History {
        Learned::new(&self.tuning, history, seen).into_history(&seen.machine.parts)
    }

    fn plan(&self, seen: &ControlObservation, history: &History) -> (ControlPlan, History) {
        let mut round = Round::new(&self.tuning, seen, Learned::new(&self.tuning, history, seen));
        if seen.machine.topology.nodes.len() > 1 {
            round.first_homes();
            round.follow_bindings();
            round.change_homes();
            round.move_debt();
            round.confine_again();
        }
        round.report();
        round.finish()
    }

    fn take_back(&self, history: &mut History, learned: &History, dropped: &Transaction) {
        dropped.parts().into_iter().for_each(|part| history.take_back(part, learned));
    }
}

#[cfg(test)]
mod tests;
