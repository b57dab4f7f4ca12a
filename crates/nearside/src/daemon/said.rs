//! What was said already: a condition that lasts is said once.

use std::collections::{BTreeMap, BTreeSet};

/// So many conditions of a domain are kept. Whoever has more has figures in them that change.
const MOST_OF_A_DOMAIN: usize = 16;

/// What was said and still holds, as far as anybody knows.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Of domains: until they change or end, for nothing of theirs may be tried for many intervals.
    of_domains: BTreeMap<String, BTreeSet<String>>,
    /// Of the rest, in the interval before.
    before: BTreeSet<String>,
    now: BTreeSet<String>,
}

impl Said {
    /// Whether this was not said of the domain since it changed last.
    pub(super) fn is_new_of(&mut self, domain: &str, line: &str) -> bool {
        let of_domain = self.of_domains.entry(domain.to_owned()).or_default();
        if of_domain.len() >= MOST_OF_A_DOMAIN {
            of_domain.clear();
        }
        of_domain.insert(line.to_owned())
    }

    /// Whether this was said neither in the interval before nor in this one.
    pub(super) fn is_new(&mut self, line: &str) -> bool {
        self.now.insert(line.to_owned()) && !self.before.contains(line)
    }

    /// Something of the domain's was done: what was said of it may come anew.
    pub(super) fn changed(&mut self, domain: &str) {
        self.of_domains.remove(domain);
    }

    /// Forgets domains that have ended.
    pub(super) fn keep_only(&mut self, lives: impl Fn(&str) -> bool) {
        self.of_domains.retain(|domain, _| lives(domain));
    }

    /// An interval has ended.
    pub(super) fn end_interval(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_so_of_a_domain_is_said_once_until_it_changes() {
        let mut said = Said::default();
        assert!(said.is_new_of("db", "no room") && said.is_new_of("web", "no room"));
        for _ in 0..20 {
            said.end_interval();
            assert!(!said.is_new_of("db", "no room"));
        }
        said.changed("web");
        assert!(said.is_new_of("web", "no room") && !said.is_new_of("db", "no room"));
        said.keep_only(|domain| domain == "web");
        assert!(said.is_new_of("db", "no room") && !said.is_new_of("web", "no room"));
        assert!((0..1000).all(|n| said.is_new_of("db", &n.to_string())));
        assert!(said.of_domains["db"].len() <= MOST_OF_A_DOMAIN);
    }

    #[test]
    fn what_is_so_of_the_host_is_said_again_when_it_comes_back() {
        let mut said = Said::default();
        assert!(said.is_new("disk full") && !said.is_new("disk full"));
        said.end_interval();
        assert!(!said.is_new("disk full"));
        said.end_interval();
        said.end_interval();
        assert!(said.is_new("disk full"));
    }
}
