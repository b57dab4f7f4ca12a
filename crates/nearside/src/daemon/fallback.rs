//! Nearside's own CPU bindings: they stand in for a scheduler that knows node affinity while none
//! is attached.

use super::{notify, reported::Reported};
use crate::report::units::count;
use nearside_linux::{
    Host, Refusal, Session,
    store::{Part, Record},
};
use nearside_policy::CpuReason;

/// A change of one domain by its name. False if there was nothing to change.
pub(super) type DomainChange = fn(&mut Session<'_>, &str) -> Result<bool, Refusal>;

/// Binds domains to the CPUs of their homes, as far as the owners of their cgroups let Nearside.
/// False if the lock could not be taken.
pub(super) fn bind(
    host: &mut Host,
    reported: &mut Reported,
    wanting: &[Record],
    is_over: impl Fn() -> bool,
) -> bool {
    let (bound, left): (Vec<_>, Vec<_>) =
        wanting.iter().partition(|record| host.may_bind(record).is_ok());
    if !left.is_empty() {
        reported.report([format!(
            "{} cannot be bound to the CPUs of their homes meanwhile, because of the owners of \
             their cgroups (see `nearside why`)",
            count(left.len(), "domain")
        )]);
    }
    let names = names(bound.into_iter());
    for_each_domain(host, reported, &names, |session, name| session.bind_to_home(name), is_over)
}

/// Changes domains one after the other under one lock until `is_over`, but one in any case: an
/// interval can be over before it comes to these. The rest follow in the next interval. False if
/// the lock could not be taken.
pub(super) fn for_each_domain(
    host: &mut Host,
    reported: &mut Reported,
    names: &[String],
    change: DomainChange,
    is_over: impl Fn() -> bool,
) -> bool {
    // Most intervals change no domain. Then no start waits for the lock.
    if names.is_empty() {
        return true;
    }
    let mut session = match host.begin() {
        Ok(session) => session,
        Err(error) => {
            reported.report([not_locked(&error)]);
            return false;
        }
    };
    let mut outcomes = Vec::new();
    for name in names {
        notify::busy();
        outcomes.push((name, change(&mut session, name)));
        if is_over() {
            break;
        }
    }
    // A write to the log may take long: no start waits for it.
    drop(session);
    for (name, outcome) in outcomes {
        match outcome {
            Ok(true) => reported.changed(name),
            Ok(false) => {}
            Err(refusal) => reported.report_of(name, &refusal.to_string()),
        }
    }
    true
}

/// The report on changes that wait for the next interval, because the lock could not be taken.
pub(super) fn not_locked(why: &nearside_linux::Error) -> String {
    format!("some changes wait for the next interval: {why}")
}

/// The names of the domains that Nearside binds in place of a scheduler.
pub(super) fn bound_names<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<String> {
    let is_bound = |part: &Part| {
        part.cpus.as_ref().is_some_and(|binding| binding.on_behalf == CpuReason::Fallback)
    };
    names(records.filter(|record| record.parts().any(is_bound)))
}

fn names<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<String> {
    records.map(|record| record.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::made::Made;
    use nearside_linux::wants_fallback;
    use nearside_policy::{
        Action, Affinity, Home, MemoryPolicy, Observation, Origin, Reason, Step, Transaction,
    };
    use nearside_topology::NodeId;

    const NAMES: [&str; 3] = ["/nearside/a", "/nearside/b", "/nearside/c"];

    /// A host whose domains have a home on the second node.
    fn host(made: &Made) -> Host {
        let mut host = made.host();
        for name in NAMES {
            let home = Home {
                nodes: [NodeId(1)].into(),
                origin: Origin::Auto,
                affinity: Affinity::Soft,
                policy: MemoryPolicy::Local,
            };
            let action = Action::SetHome { part: name.into(), home };
            let steps = vec![Step { action, reason: Reason::Placed }];
            let mut session = host.begin().unwrap();
            session.found(name, "*/*");
            session.apply(&Transaction::new(steps, &Observation::default())).unwrap();
        }
        host
    }

    /// The domains that still want a binding, as the loop finds them.
    fn wanting(host: &Host) -> Vec<Record> {
        let topology = host.topology().unwrap();
        let records = host.records().0.into_iter();
        records.filter(|record| wants_fallback(record, &topology)).collect()
    }

    #[test]
    fn bindings_left_over_from_an_interval_are_made_in_the_next() {
        let made = Made::with(&NAMES);
        let (mut host, mut reported) = (host(&made), Reported::default());
        let mut left = Vec::new();
        for _ in 0..4 {
            let wanting = wanting(&host);
            left.push(wanting.len());
            // Each interval is over as soon as one domain is bound.
            assert!(bind(&mut host, &mut reported, &wanting, || true));
        }
        assert_eq!(left, [3, 2, 1, 0]);
        let bound = bound_names(host.records().0.iter());
        assert_eq!(bound, NAMES);
    }
}
