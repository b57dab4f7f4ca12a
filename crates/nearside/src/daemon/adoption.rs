//! Virtual machines that libvirt has started take their reservations over
//! (docs/adr/0015-numad.md).

use super::{fallback, reported::Reported};
use crate::output;
use nearside_linux::{Host, watch::Watcher};
use nearside_policy::Newcomer;

/// Gives each reservation that waits for its domain to the machine that has started meanwhile. Asks
/// libvirt about machines that fit, and takes the lock only for those that
/// adopt.
pub(super) fn adopt(host: &mut Host, watcher: &Watcher, reported: &mut Reported) {
    let mut newcomers = Vec::new();
    for newcomer in watcher.newcomers() {
        match host.described(&newcomer) {
            Ok(described) => {
                newcomers.push(Newcomer { described: Some(described), ..newcomer });
            }
            Err(why) => {
                let cgroup = &newcomer.cgroup;
                reported.report([format!("{cgroup}: takes no reservation over: {why}")]);
            }
        }
    }
    let newcomers = watcher.adopters(newcomers);
    if newcomers.is_empty() {
        return;
    }
    let adopted = match host.begin() {
        Ok(mut session) => session.adopt(&newcomers),
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
