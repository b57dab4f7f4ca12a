//! The control loop: what keeps domains at home once they run (docs/adr/0007-control-loop.md).
//!
//! # Problem
//! A home is chosen when a domain starts, and loads change afterwards. vCPUs that find their home full run elsewhere and
//! leave their memory behind. Whoever brings both together again moves gigabytes, which costs what it may never save;
//! whoever does it at once moves them back when the load has passed.
//!
//! # Approach
//! [`control`] is called once an interval with what was seen ([`ControlObservation`]) and what it remembered
//! ([`History`]); it answers with what is to be done ([`ControlPlan`]) and what it will remember. It knows neither clock nor
//! chance: time is the number of an interval.
//!
//! 1. *Remember*: demand and where it ran are smoothed, trouble (off home, or waiting) is counted, what would not move
//!    is put off for twice as long each time, and nodes that are short of memory halve the pace of what comes and goes.
//! 2. *First homes*, for domains that were found. One that somebody else keeps on some nodes has its home there, and when that
//!    changes, elsewhere.
//! 3. *Other homes*, for domains in long trouble, those they share a home with, and in turn all others. A home is weighed
//!    as in placement (ADR 2), with measured demand; CPU time saved within a horizon is set against the bytes that would
//!    have to move. Both ways to bring vCPUs and pages together are in one scale: the domain's memory follows it, or its
//!    neighbour moves away and it returns. Where neither fits alone, two change places.
//! 4. *Debt* comes home in batches, nearest first, under a budget for each pair of nodes.
//!
//! # Properties
//! - What an operator chose is never changed. On one node nothing is ever done.
//! - Each domain counts at its home wherever it runs, and each move lowers what all of them lose together, by more than
//!   measurements vary; so under steady load moves end.
//! - Between two moves of a domain lie at least [`Tuning::minimum_stay_intervals`]; within
//!   [`Tuning::steady_intervals`] there is a second only if its home has become fuller.
//! - What is promised on a node is never more than there is; what moves there leaves its reserve alone.
//! - A call takes O(domains x nodes) for the sums, and O(nodes) and one placement for each of the few domains (16) that are
//!   weighed in a round. Idle domains are not looked at in most rounds: [`History::next_look`].

mod debts;
mod history;
mod homes;
mod observed;
mod round;
mod scene;
mod standing;
mod swaps;
mod tuning;
mod weigh;

pub use history::{DomainHistory, History, LastMove, MilliVcpus, NodeHistory, Stuck};
pub use observed::{ControlObservation, DomainLoad, MoveReport, NodeLoad, Owner};
pub use standing::{DebtWaits, HomeWaits, Payback, Place, Standing};
pub use tuning::Tuning;

use crate::{PageMove, PartId, Step, Transaction, debt_bytes, view::PPM};
use round::Round;
use serde::Serialize;

/// What is to be done in the interval that begins.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ControlPlan {
    /// The interval it was made in.
    pub interval: u64,
    /// Changes of homes and bindings, each applied as a whole or not at all.
    pub transactions: Vec<Transaction>,
    /// Pages that move until the next interval.
    pub moves: Vec<Step<PageMove>>,
}

impl ControlPlan {
    /// The steps of all transactions, in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.transactions.iter().flat_map(|transaction| &transaction.steps)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty() && self.moves.is_empty()
    }
}

/// What is to be done, and what is to be remembered; how each domain stands is in the latter.
pub fn control(
    tuning: &Tuning,
    seen: &ControlObservation,
    history: &History,
) -> (ControlPlan, History) {
    let mut round = Round::new(tuning, seen, history.after(tuning, seen));
    if seen.machine.topology.nodes.len() > 1 {
        round.first_homes();
        round.follow_owners();
        round.change_homes();
        round.repatriate();
    }
    round.take_stock();
    round.finish()
}

impl Round<'_> {
    /// How each domain that was looked at stands, and when it is looked at again.
    fn take_stock(&mut self) {
        let (now, tuning) = (self.now(), self.tuning);
        let has_choice = self.scene.view.nodes.len() > 1;
        for at in self.domains() {
            if !self.looked_at[at] {
                continue;
            }
            let state = self.state(at);
            let known = &mut self.known[at];
            let Some(home) = &known.home else {
                known.standing.place = Place::NoHome;
                known.look_again(tuning, now, &state.id, has_choice);
                continue;
            };
            let off_home_ppm = debt_bytes(&known.share_ppm, &home.nodes).min(PPM);
            let intervals = known.trouble_intervals;
            known.standing.debt_bytes = debts::debt_in_pages(state, &home.nodes);
            known.standing.place = match intervals {
                _ if known.is_idle(tuning) => Place::Idle,
                0 => Place::AtHome,
                intervals => Place::PushedOff { intervals, off_home_ppm },
            };
            known.look_again(tuning, now, &state.id, has_choice);
        }
    }
}

impl DomainHistory {
    /// A busy domain is looked at in every interval, as is one whose debt is coming home; an idle one twice as late each
    /// time, and in the end when it is the turn of its name, so that no interval has to look at all of them. So is each where
    /// there is nothing to choose: on one node.
    fn look_again(&mut self, tuning: &Tuning, now: u64, part: &PartId, has_choice: bool) {
        let is_coming_home = self.standing.debt_bytes > 0
            && matches!(self.standing.debt_waits, None | Some(DebtWaits::NoBudget));
        let is_quiet =
            !has_choice || self.is_idle(tuning) && !is_coming_home && self.trouble_intervals == 0;
        let longest = tuning.idle_look_intervals.max(1);
        let later = if is_quiet { self.look_intervals.saturating_mul(2).max(1) } else { 1 };
        let turn = longest - now.wrapping_add(fnv(part.domain())) % longest;
        self.look_intervals = if later < longest { later } else { turn };
        self.next_look = now.saturating_add(self.look_intervals);
    }
}

/// The FNV-1a hash (Fowler, Noll and Vo): the same for the same name everywhere and always.
fn fnv(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
