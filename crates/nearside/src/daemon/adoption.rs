//! Virtual machines that libvirt has started take their reservations over
//! (docs/adr/0015-numad.md).

use super::{fallback, notify, reported::Reported};
use crate::output;
use nearside_linux::{Host, watch::Watcher};
use nearside_policy::{Described, Newcomer};
use std::collections::BTreeMap;

/// Machines about which libvirt is asked in one interval, which may take long. The others follow in
/// the next.
const MAX_ASKED: usize = 4;

/// The machines about which libvirt was asked.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    /// By cgroup and start, in seconds since boot. None: nobody has described it yet.
    asked: BTreeMap<(String, u64), Option<Described>>,
}

impl Adoption {
    /// Gives each reservation that waits for its domain to the machine that has started meanwhile.
    /// Asks libvirt about each machine that fits until it is described, and takes the lock only for
    /// those that adopt.
    pub(super) fn adopt(&mut self, host: &mut Host, watcher: &Watcher, reported: &mut Reported) {
        let adopters = watcher.adopters(self.described(host, watcher.newcomers(), reported));
        if adopters.is_empty() {
            return;
        }
        let adopted = match host.begin() {
            Ok(mut session) => session.adopt(&adopters),
            Err(error) => return reported.report([fallback::not_locked(&error)]),
        };
        match adopted {
            Ok(adopted) => {
                let note = |(name, cgroup)| format!("{cgroup}: takes over the reservation {name}");
                output::note(adopted.into_iter().map(note));
            }
            Err(error) => reported.report([error.to_string()]),
        }
    }

    /// The machines with their descriptions.
    fn described(
        &mut self,
        host: &Host,
        mut newcomers: Vec<Newcomer>,
        reported: &mut Reported,
    ) -> Vec<Newcomer> {
        let key = |it: &Newcomer| (it.cgroup.clone(), it.started_boottime_s);
        self.asked.retain(|asked, _| newcomers.iter().any(|it| key(it) == *asked));
        let known = |it: &&Newcomer| self.asked.get(&key(it));
        let new = newcomers.iter().filter(|it| known(it).is_none());
        let again = newcomers.iter().filter(|it| known(it).is_some_and(Option::is_none));
        let due: Vec<_> = new.chain(again).take(MAX_ASKED).cloned().collect();
        for newcomer in due {
            notify::busy();
            let described = host.described(&newcomer);
            if let Err(why) = &described {
                // The times in parentheses differ in each interval.
                let why = why.split(" (").next().unwrap_or_default();
                reported.report_of(&newcomer.cgroup, &format!("takes no reservation over: {why}"));
            }
            self.asked.insert(key(&newcomer), described.ok());
        }
        for newcomer in &mut newcomers {
            newcomer.described = self.asked.get(&key(newcomer)).cloned().flatten();
        }
        newcomers
    }
}
