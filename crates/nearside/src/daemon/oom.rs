//! Kills for lack of memory in domains whose memory is bound to nodes. The kernel's own log names a
//! process, and no limit was reached, so that nothing else tells the reason.

use super::{
    duty::{Duty, Interval},
    site::Site,
};
use crate::{output, report};
use nearside_linux::oom::OomKills;
use std::collections::{BTreeMap, BTreeSet};

/// The kills that are known, by domain; none before the first interval.
#[derive(Debug, Default)]
pub(super) struct Kills(Option<BTreeMap<String, OomKills>>);

impl Duty for Kills {
    /// Logs the kills since the interval before.
    fn tend(&mut self, site: &mut Site, interval: &Interval<'_>) {
        let (watcher, machine) = (&site.watcher, &interval.seen.machine);
        let names = machine.parts.iter().map(|part| part.id.domain()).collect::<BTreeSet<_>>();
        let running =
            names.iter().filter_map(|&name| Some((name.to_owned(), watcher.oom_kills(name)?)));
        let ended = watcher.ended();
        let last = ended.iter().filter_map(|it| Some((it.name.clone(), it.oom_kills?)));
        let record = |name: &str| watcher.records().find(|record| record.name == name);
        let of_ended = |name: &str| ended.iter().find(|it| it.name == name);
        let has_just_begun = |name: &str| match of_ended(name) {
            Some(ended) => !ended.was_found,
            None => record(name).is_some_and(|record| record.found_by.is_none()),
        };
        for (name, kills) in self.since_before(running.chain(last).collect(), has_just_begun) {
            let nodes = match of_ended(&name) {
                Some(ended) => ended.bound_memory_nodes.clone(),
                None => watcher.bound_memory_nodes(&name),
            };
            let Some(nodes) = nodes else { continue };
            let said = report::oom::killed(kills, Some(&nodes), &machine.topology);
            output::note(said.map(|said| format!("{name}: {said}")));
        }
    }
}

impl Kills {
    /// The kills since the call before. An earlier daemon has told those from before the first
    /// call. Kills of a domain that is new to this daemon count only if it `has_just_begun`: those
    /// of another one may be old.
    fn since_before(
        &mut self,
        now: BTreeMap<String, OomKills>,
        has_just_begun: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, OomKills> {
        let Some(before) = self.0.replace(now.clone()) else { return BTreeMap::new() };
        let since = |(name, kills): (String, OomKills)| {
            let first = || has_just_begun(&name).then(OomKills::default);
            let new = kills.since(before.get(&name).copied().or_else(first)?);
            (new.killed > 0).then_some((name, new))
        };
        now.into_iter().filter_map(since).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kill_is_new_once() {
        let mut kills = Kills::default();
        let mut new = |now: &[(&str, u64)]| {
            let of =
                |&(name, killed): &(&str, u64)| (name.to_owned(), OomKills { killed, at_limit: 0 });
            let new = kills.since_before(now.iter().map(of).collect(), |name| name == "web");
            new.into_iter().map(|(name, new)| (name, new.killed)).collect::<Vec<_>>()
        };
        assert_eq!(new(&[("db", 3)]), [], "before this daemon");
        assert_eq!(new(&[("db", 3), ("web", 2)]), [("web".into(), 2)], "web has just begun");
        assert_eq!(new(&[("db", 4), ("web", 2)]), [("db".into(), 1)]);
        assert_eq!(new(&[("db", 4), ("found", 7)]), [], "found has run before");
        assert_eq!(new(&[("db", 4)]), []);
        assert_eq!(new(&[("db", 5), ("web", 1)]), [("db".into(), 1), ("web".into(), 1)]);
    }
}
