//! Virtual machines that libvirt has started take their reservations over
//! (docs/adr/0015-numad.md).

use super::{
    duty::{Duty, Interval},
    fallback, notify,
    reported::Reported,
    site::Site,
};
use crate::output;
use nearside_linux::{Adopted, Host};
use nearside_policy::{Described, Newcomer};
use std::collections::BTreeMap;

/// Machines about which libvirt is asked in one interval, which may take long. The others follow in
/// the next.
const MAX_ASKED: usize = 4;

/// The machines about which libvirt was asked.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    /// By cgroup and start, in seconds since boot.
    asked: BTreeMap<(String, u64), Asked>,
}

#[derive(Debug, Default)]
struct Asked {
    times: u64,
    /// None while libvirt has not answered.
    described: Option<Described>,
}

impl Duty for Adoption {
    /// Gives each reservation that waits for its domain to the machine that has started meanwhile.
    /// Asks libvirt about each machine that fits until it is described, without the lock: libvirt
    /// may wait for an answer of `numad`, which needs it. Until then the machine adopts nothing,
    /// and the reservations that may be its own are put off.
    fn tend(&mut self, site: &mut Site, _: &Interval<'_>) {
        let Site { host, watcher, reported, .. } = site;
        let newcomers = self.described(host, watcher.newcomers(), reported);
        let must_put_off = watcher.must_put_off(&newcomers);
        let adopters = watcher.adopters(newcomers.clone());
        if adopters.is_empty() && !must_put_off {
            return;
        }
        let mut session = match host.begin() {
            Ok(session) => session,
            Err(error) => return reported.report([fallback::not_locked(&error)]),
        };
        let adopted = session.adopt(&adopters);
        let put_off = if must_put_off { session.put_off(&newcomers) } else { Ok(()) };
        // A write to the log may take long: no start waits for it.
        drop(session);
        reported.report(put_off.err().map(|refusal| refusal.to_string()));
        match adopted {
            Ok(adopted) => {
                for Adopted { reservation, owner, outcome } in adopted {
                    match outcome {
                        Ok(()) => output::note([format!(
                            "{owner}: takes over the reservation {reservation}"
                        )]),
                        Err(refusal) => reported.report_of(
                            &owner,
                            &format!("cannot take over the reservation {reservation}: {refusal}"),
                        ),
                    }
                }
            }
            Err(error) => reported.report([error.to_string()]),
        }
    }
}

impl Adoption {
    /// The machines with their descriptions.
    fn described(
        &mut self,
        host: &Host,
        mut newcomers: Vec<Newcomer>,
        reported: &mut Reported,
    ) -> Vec<Newcomer> {
        let key = |it: &Newcomer| (it.cgroup.clone(), it.started_boottime_s);
        self.asked.retain(|asked, _| newcomers.iter().any(|it| key(it) == *asked));
        let asked = |it: &Newcomer| self.asked.get(&key(it));
        let is_due = |it: &&Newcomer| asked(it).is_none_or(|asked| asked.described.is_none());
        let mut due: Vec<_> = newcomers.iter().filter(is_due).cloned().collect();
        due.sort_by_key(|it| asked(it).map_or(0, |asked| asked.times));
        due.truncate(MAX_ASKED);
        for newcomer in due {
            notify::busy();
            let described = host.described(&newcomer);
            if let Err(why) = &described {
                // The times in parentheses differ in each interval.
                let why = why.split(" (").next().unwrap_or_default();
                reported
                    .report_of(&newcomer.cgroup, &format!("takes no reservation over yet: {why}"));
            }
            let asked = self.asked.entry(key(&newcomer)).or_default();
            asked.times += 1;
            asked.described = described.ok();
        }
        for newcomer in &mut newcomers {
            newcomer.described =
                self.asked.get(&key(newcomer)).and_then(|asked| asked.described.clone());
        }
        newcomers
    }
}
