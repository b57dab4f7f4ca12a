//! Room for a virtual machine that another manager brings to this host
//! (docs/adr/0017-migration.md).

use crate::{Error, Host, Refusal, advise::NOT_AWAITED};
use nearside_policy::{Observation, RESERVED_FOR_S, Reservation, Transaction, Until};
use nearside_topology::Topology;

/// Decides on nodes and reserves their memory under `name`, as one step under the lock. A
/// reservation of that name which no domain has adopted is that of an earlier attempt: this one
/// replaces it, unless it is refused. `known` is the machine as read earlier. `is_awaited` is asked
/// right before the reservation is written: none is written for a caller that has given up.
///
/// Returns the decision, and the reason if its reservation was refused.
///
/// # Errors
/// If the lock is not free in time, or the host cannot be read.
pub fn reserve_incoming<T>(
    host: &mut Host,
    name: &str,
    known: &Topology,
    decide: impl FnOnce(&Observation) -> (T, Option<Reservation>),
    is_awaited: impl FnOnce() -> bool,
) -> Result<(T, Result<(), Refusal>), Refusal> {
    let mut session = host.begin()?;
    let seen = session.observe(Some(known))?;
    let is_earlier = seen.reservation(name).is_some_and(|it| it.owner.is_none());
    let earlier = is_earlier.then_some(name).into_iter().collect();
    let (decision, wanted) = decide(&seen.without(&earlier));
    let until = Until::Seconds(RESERVED_FOR_S);
    let reserve = wanted.map(|wanted| Transaction::reserving(wanted, until, seen));
    let reserved = match reserve {
        Some(reserve) if is_awaited() => session.apply(&reserve),
        Some(_) => Err(Error::Refused(NOT_AWAITED.into()).into()),
        None => session.release(name).map(|_| ()),
    };
    Ok((decision, reserved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::Made;
    use nearside_topology::NodeId;

    const MIB: u64 = 1 << 20;

    fn made() -> Made {
        let made = Made::of("cpuset memory", 2, 4 << 20, 1 << 20);
        made.file("cg/cgroup.procs", "");
        made.file("proc/uptime", "100.00 1.00\n");
        made
    }

    fn wanted(name: &str, mib: u64) -> Reservation {
        let on = |amount| [(NodeId(1), amount)].into();
        Reservation {
            name: name.into(),
            bytes: on(mib * MIB),
            vcpus: on(2),
            ..Reservation::default()
        }
    }

    /// The names and MiB of the reservations that the decision for `name` saw.
    fn reserve(made: &Made, name: &str, mib: u64) -> (Vec<(String, u64)>, bool) {
        reserve_if(made, name, mib, true)
    }

    fn reserve_if(
        made: &Made,
        name: &str,
        mib: u64,
        is_awaited: bool,
    ) -> (Vec<(String, u64)>, bool) {
        let mut host = made.host();
        let known = host.topology().unwrap();
        let seen = |seen: &Observation| {
            let each = |it: &Reservation| (it.name.clone(), it.bytes[&NodeId(1)] / MIB);
            (seen.reservations.iter().map(each).collect(), Some(wanted(name, mib)))
        };
        let (seen, reserved) =
            reserve_incoming(&mut host, name, &known, seen, || is_awaited).unwrap();
        (seen, reserved.is_ok())
    }

    #[test]
    fn nothing_is_reserved_for_a_caller_that_has_given_up() {
        let made = made();
        assert_eq!(reserve_if(&made, "incoming-a", 600, false), (vec![], false));
        assert_eq!(reserve(&made, "incoming-b", 600), (vec![], true));
    }

    #[test]
    fn a_second_attempt_replaces_the_reservation_of_the_first() {
        let made = made();
        assert_eq!(reserve(&made, "incoming-a", 600), (vec![], true));
        let first = ("incoming-a".to_owned(), 600);
        // Another machine sees it, and finds too little memory beside it.
        assert_eq!(reserve(&made, "incoming-b", 600), (vec![first], false));
        assert_eq!(reserve(&made, "incoming-a", 300), (vec![], true));
        let second = ("incoming-a".to_owned(), 300);
        assert_eq!(reserve(&made, "incoming-b", 600), (vec![second], true));
    }

    #[test]
    fn a_refused_attempt_leaves_the_reservation_of_the_former_one() {
        for (mib, is_awaited) in [(2000, true), (600, false)] {
            let made = made();
            assert_eq!(reserve(&made, "incoming-a", 300), (vec![], true));
            let refused = reserve_if(&made, "incoming-a", mib, is_awaited);
            assert_eq!(refused, (vec![], false), "the decision does not see its own");
            let first = ("incoming-a".to_owned(), 300);
            assert_eq!(reserve(&made, "incoming-b", 600), (vec![first], true));
        }
    }
}
