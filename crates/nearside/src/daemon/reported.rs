//! Conditions that were reported: a condition that lasts is reported once.

use crate::output;
use std::collections::{BTreeMap, BTreeSet};

/// Conditions that are kept for a domain. A domain with more has figures in them that change.
const MAX_PER_DOMAIN: usize = 16;

/// The conditions that were reported and may still hold.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// Of domains: kept until they change or end, because many intervals may pass between two
    /// attempts.
    of_domains: BTreeMap<String, BTreeSet<String>>,
    /// Of the host, in the interval before.
    before: BTreeSet<String>,
    now: BTreeSet<String>,
}

impl Reported {
    /// Logs the lines that were not logged in the interval before.
    pub(super) fn report(&mut self, lines: impl IntoIterator<Item = String>) {
        output::note(lines.into_iter().filter(|line| self.is_new(line)));
    }

    /// Logs a line about a domain, unless it was logged since the domain changed last.
    pub(super) fn report_of(&mut self, domain: &str, line: &str) {
        if self.is_new_of(domain, line) {
            output::note([format!("{domain}: {line}")]);
        }
    }

    /// Forgets the reports about a domain that has changed.
    pub(super) fn changed(&mut self, domain: &str) {
        self.of_domains.remove(domain);
    }

    /// Forgets domains that have ended.
    pub(super) fn keep_only(&mut self, lives: impl Fn(&str) -> bool) {
        self.of_domains.retain(|domain, _| lives(domain));
    }

    /// Ends an interval.
    pub(super) fn end_interval(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    fn is_new_of(&mut self, domain: &str, line: &str) -> bool {
        let of_domain = self.of_domains.entry(domain.to_owned()).or_default();
        if of_domain.len() >= MAX_PER_DOMAIN {
            of_domain.clear();
        }
        of_domain.insert(line.to_owned())
    }

    fn is_new(&mut self, line: &str) -> bool {
        self.now.insert(line.to_owned()) && !self.before.contains(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_of_a_domain_is_reported_once_until_the_domain_changes() {
        let mut reported = Reported::default();
        assert!(reported.is_new_of("db", "no room") && reported.is_new_of("web", "no room"));
        for _ in 0..20 {
            reported.end_interval();
            assert!(!reported.is_new_of("db", "no room"));
        }
        reported.changed("web");
        assert!(reported.is_new_of("web", "no room") && !reported.is_new_of("db", "no room"));
        reported.keep_only(|domain| domain == "web");
        assert!(reported.is_new_of("db", "no room") && !reported.is_new_of("web", "no room"));
        assert!((0..1000).all(|n| reported.is_new_of("db", &n.to_string())));
        assert!(reported.of_domains["db"].len() <= MAX_PER_DOMAIN);
    }

    #[test]
    fn a_condition_of_the_host_is_reported_again_when_it_returns() {
        let mut reported = Reported::default();
        assert!(reported.is_new("disk full") && !reported.is_new("disk full"));
        reported.end_interval();
        assert!(!reported.is_new("disk full"));
        reported.end_interval();
        reported.end_interval();
        assert!(reported.is_new("disk full"));
    }
}
