//! What operators ask the daemon for, carried out between two intervals.

use super::snapshot::{Answer, Change};
use crate::rehome::carry_out;
use nearside_linux::Host;
use nearside_policy::{Affinity, Home, MemoryPolicy, Origin, Rehome};
use nearside_topology::NodeSet;
use std::ops::ControlFlow;

/// Does it. `found_by`: the pattern by which the domain was found, where it was.
pub(super) fn fulfil(host: &mut Host, change: &Change, found_by: Option<&str>) -> Answer {
    let answer = match change {
        Change::SetAffinity { domain, nodes, affinity } => match found_by {
            Some(pattern) => prefer(host, domain, pattern, nodes, *affinity),
            None => rehome(host, domain, nodes, *affinity),
        },
        Change::Release { domain } => release(host, domain),
    };
    host.put_down();
    answer
}

/// Another home for a domain of `nearside run`. Its memory follows as debt, at the rate of the control loop.
fn rehome(host: &mut Host, domain: &str, nodes: &NodeSet, affinity: Option<Affinity>) -> Answer {
    let wish = Rehome { domain: domain.to_owned(), nodes: nodes.clone(), move_memory: false, rate_bytes_per_s: None };
    match host.record(domain).map(|_| carry_out(host, &wish, affinity, &mut |_| ControlFlow::Continue(()))) {
        None => Answer::Gone,
        Some(Err(failure)) => Answer::Refused(failure.message().to_owned()),
        Some(Ok(report)) => match host.record(domain) {
            None => Answer::Gone,
            Some(record) => Answer::Done { nodes_before: report.nodes_before, home: record.home, notes: report.notes },
        },
    }
}

/// A home for a domain that was found: it is preferred, and nothing of its cgroup is touched, which is its owner's.
fn prefer(host: &mut Host, domain: &str, pattern: &str, nodes: &NodeSet, affinity: Option<Affinity>) -> Answer {
    if affinity == Some(Affinity::Hard) {
        return Answer::Refused(format!(
            "{domain} was not started by `nearside run`: whoever made that cgroup binds it to CPUs; here it can prefer them"
        ));
    }
    let home =
        Home { nodes: nodes.clone(), origin: Origin::Explicit, affinity: Affinity::Soft, policy: MemoryPolicy::Local };
    let before = host.record(domain).map(|record| record.home.nodes).unwrap_or_default();
    change_home(host, domain, Some((pattern, &home)), before, |now| *now = home.clone())
}

/// From here on the control loop may choose again.
fn release(host: &mut Host, domain: &str) -> Answer {
    let Some(record) = host.record(domain) else { return Answer::Gone };
    change_home(host, domain, None, record.home.nodes, |home| home.origin = Origin::Auto)
}

fn change_home(
    host: &mut Host,
    domain: &str,
    found: Option<(&str, &Home)>,
    nodes_before: NodeSet,
    change: impl FnOnce(&mut Home),
) -> Answer {
    if let Err(error) = host.take_up(domain, found) {
        return Answer::Refused(error.to_string());
    }
    let Some(record) = host.edited() else { return Answer::Gone };
    change(&mut record.home);
    let home = record.home.clone();
    match host.save() {
        Ok(()) => Answer::Done { nodes_before, home, notes: host.take_notices() },
        Err(error) => Answer::Refused(error.to_string()),
    }
}
