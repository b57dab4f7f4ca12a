//! Totals of the daemon since its start.

use nearside_policy::{Outcome, StayedWhy};
use std::collections::{BTreeMap, BTreeSet};

/// Totals since the start of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Intervals that ended.
    pub intervals: u64,
    /// By domain that exists.
    pub domains: BTreeMap<String, DomainTotals>,
}

/// Totals of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DomainTotals {
    /// Homes that the loop gave to it.
    pub homes: u64,
    /// Bytes of its memory that moved.
    pub moved_bytes: u64,
    /// Bytes that failed to move, by reason. A page that fails again counts again.
    pub stayed_bytes: BTreeMap<StayedWhy, u64>,
    /// Steps refused.
    pub refusals: u64,
}

impl Totals {
    /// Counts a new home of a domain.
    pub fn count_home(&mut self, domain: &str) {
        let totals = self.domains.entry(domain.to_owned()).or_default();
        totals.homes = totals.homes.saturating_add(1);
    }

    /// Drops the totals of domains that have ended.
    pub fn keep_only<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let names: BTreeSet<&str> = names.collect();
        self.domains.retain(|name, _| names.contains(name.as_str()));
    }

    /// Counts the outcome of a step.
    pub fn count(&mut self, domain: &str, outcome: &Outcome) {
        let totals = self.domains.entry(domain.to_owned()).or_default();
        match outcome {
            Outcome::Applied { moved_bytes } => {
                totals.moved_bytes = totals.moved_bytes.saturating_add(*moved_bytes)
            }
            Outcome::Partly { moved_bytes, stayed, .. } => {
                totals.moved_bytes = totals.moved_bytes.saturating_add(*moved_bytes);
                for (&why, &bytes) in stayed {
                    let sum = totals.stayed_bytes.entry(why).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
            Outcome::Refused { .. } => totals.refusals = totals.refusals.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_and_saturate() {
        let mut totals = Totals::default();
        for _ in 0..2 {
            totals.count("a", &Outcome::Applied { moved_bytes: u64::MAX });
            totals.count("a", &Outcome::Refused { why: String::new() });
        }
        assert_eq!((totals.domains["a"].moved_bytes, totals.domains["a"].refusals), (u64::MAX, 2));
    }
}
