//! The records of reservations that result from a transaction. They are all of its effects on them.

use crate::{
    cgroup::Tree,
    error::Error,
    store::{self, Change, Lifetime, Subject},
};
use nearside_policy::{Action, Observation, Transaction, Until};

/// The observation of a single reservation, from its record.
pub(super) fn observed(reservation: &store::Reservation) -> Observation {
    let reservations = vec![reservation.unfilled(&Default::default())];
    Observation { reservations, ..Observation::default() }
}

/// The changes of the records of reservations that a transaction makes.
pub(super) fn changes(
    store: &store::Store,
    tree: &Tree,
    transaction: &Transaction,
) -> Result<Vec<Change>, Error> {
    let mut changes: Vec<Change> = Vec::new();
    let reserved = |name: &str| store.reservation(name, tree);
    for step in &transaction.steps {
        let (name, after) = match &step.action {
            Action::Reserve { reservation, until } => {
                let lifetime = lifetime(store, *until)?;
                let nearside_policy::Reservation { name, bytes, vcpus, page_size, .. } =
                    reservation.clone();
                let after = store::Reservation { name, lifetime, bytes, vcpus, page_size };
                (&reservation.name, Some(Subject::from(after)))
            }
            Action::Release { name } => (name, None),
            Action::Adopt { name, owner, cgroup } => {
                let lifetime = store.of_cgroup(owner, cgroup.0);
                if !store.lives(&lifetime, tree) {
                    return Err(Error::Refused(format!("{owner} has ended")));
                }
                (name, reserved(name)?.map(|it| store::Reservation { lifetime, ..it }.into()))
            }
            Action::PutOff { name } => {
                let later = |it: store::Reservation| match store.put_off(&it) {
                    Some(lifetime) => store::Reservation { lifetime, ..it },
                    None => it,
                };
                (name, reserved(name)?.map(|it| later(it).into()))
            }
            _ => continue,
        };
        let earlier = |change: &&mut Change| {
            change.before.iter().chain(&change.after).any(|subject| subject.name() == name)
        };
        match changes.iter_mut().find(earlier) {
            Some(change) => change.after = after,
            None => {
                let before = reserved(name)?.map(Subject::from);
                changes.push(Change { before, after });
            }
        }
    }
    Ok(changes)
}

fn lifetime(store: &store::Store, until: Until) -> Result<Lifetime, Error> {
    match until {
        Until::Seconds(seconds) => store.term(seconds),
        Until::ProcessEnds => store.lease(None),
    }
}
