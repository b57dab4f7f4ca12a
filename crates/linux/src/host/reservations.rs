//! The records of reservations that result from a transaction. They are all of its effects on them.

use super::refusal::Refusal;
use crate::{
    cgroup::Tree,
    error::Error,
    store::{self, Change, Lifetime},
};
use nearside_policy::{Action, Observation, Reservation, Subject, Transaction, Unmet, Until};
use std::collections::BTreeMap;

/// The observation of a single reservation, from its record.
pub(super) fn observed(reservation: &store::Reservation) -> Observation {
    let reservations = vec![reservation.unfilled(&Default::default())];
    Observation { reservations, ..Observation::default() }
}

/// The changes of the records of reservations that a transaction makes.
///
/// # Errors
/// If a reservation has ended that a step is about, or the domain that adopts it; if a record or
/// the time cannot be read.
pub(super) fn changes(
    store: &store::Store,
    tree: &Tree,
    transaction: &Transaction,
) -> Result<Vec<Change>, Refusal> {
    let mut changes: BTreeMap<String, [Option<store::Reservation>; 2]> = BTreeMap::new();
    for step in &transaction.steps {
        let Subject::Reservation(name) = step.action.subject() else { continue };
        if !changes.contains_key(name) {
            let present = store.reservation(name, tree)?;
            changes.insert(name.into(), [present.clone(), present]);
        }
        let Some([_, now]) = changes.get_mut(name) else { continue };
        let present = now.take();
        let ended = || Refusal::from(Unmet::NotReserved(name.into()));
        *now = match &step.action {
            Action::Reserve { reservation, until } => {
                let lifetime = lifetime(store, *until)?;
                let Reservation { name, purpose, bytes, vcpus, page_size, .. } =
                    reservation.clone();
                Some(store::Reservation { name, purpose, lifetime, bytes, vcpus, page_size })
            }
            Action::Adopt { owner, cgroup, .. } => {
                let lifetime = store.of_cgroup(owner, cgroup.0);
                if !store.lives(&lifetime, tree) {
                    return Err(Error::Refused(format!("{owner} has ended")).into());
                }
                Some(store::Reservation { lifetime, ..present.ok_or_else(ended)? })
            }
            Action::PutOff { .. } => {
                let present = present.ok_or_else(ended)?;
                let lifetime = store.put_off(&present).unwrap_or(present.lifetime);
                Some(store::Reservation { lifetime, ..present })
            }
            Action::Release { .. } => {
                present.ok_or_else(ended)?;
                None
            }
            // Actions on parts.
            Action::Create { .. }
            | Action::Claim { .. }
            | Action::SetHome { .. }
            | Action::ConfineMemory { .. }
            | Action::BindCpus { .. }
            | Action::UnbindCpus { .. }
            | Action::Forget { .. }
            | Action::SetMemoryPolicy { .. }
            | Action::BeginMove { .. }
            | Action::EndMove { .. } => present,
        };
    }
    let change = |[before, after]: [Option<store::Reservation>; 2]| Change {
        before: before.map(store::Subject::from),
        after: after.map(store::Subject::from),
    };
    let changed = changes.into_values().filter(|both| both.iter().any(Option::is_some));
    Ok(changed.map(change).collect())
}

fn lifetime(store: &store::Store, until: Until) -> Result<Lifetime, Error> {
    match until {
        Until::Seconds(seconds) => store.term(seconds),
        Until::ProcessEnds => store.lease(None),
    }
}
