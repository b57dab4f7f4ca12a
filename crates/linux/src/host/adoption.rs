//! The ends of reservations, and the domains that adopt them (docs/adr/0015-numad.md).

use super::{refusal::Refusal, reservations, session::Session};
use crate::{error::Error, store};
use nearside_policy::{
    Action, CgroupId, Newcomer, Reason, Step, Transaction, Unmet, Unowned, adoptions, awaiting,
};

/// A reservation, and its outcome where a domain may adopt it.
#[derive(Debug)]
pub struct Adopted {
    /// The name of the reservation.
    pub reservation: String,
    /// The path of its domain's cgroup.
    pub owner: String,
    /// Whether the domain has it now.
    pub outcome: Result<(), Refusal>,
}

impl Session<'_> {
    /// Ends a reservation that no domain has adopted, whatever else would end it. False if there is
    /// none of this name.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn release(&mut self, name: &str) -> Result<bool, Refusal> {
        let Some(reservation) = self.reservation(name)?.filter(|it| it.owner().is_none()) else {
            return Ok(false);
        };
        let release = Action::Release { name: name.into() };
        match self.change_reservation(&reservation, release, Reason::NotNeeded) {
            Ok(()) => Ok(true),
            // Its time may be over since it was read.
            Err(Refusal::Unmet(Unmet::NotReserved(_))) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// Gives reservations without an owner to the domains that they were made for. Each then lasts
    /// as long as its domain, and no longer counts memory that the domain holds. Each is a
    /// transaction of its own: one that is refused leaves the others.
    ///
    /// # Errors
    /// If the machine cannot be read.
    pub fn adopt(&mut self, newcomers: &[Newcomer]) -> Result<Vec<Adopted>, Error> {
        let reservations = self.host.store.reservations(&self.host.tree);
        let is_owner =
            |path: &str| reservations.iter().any(|reservation| reservation.owner() == Some(path));
        let newcomers: Vec<_> =
            newcomers.iter().filter(|it| !is_owner(&it.cgroup)).cloned().collect();
        let waiting = waiting(&reservations);
        let unowned: Vec<_> = waiting.iter().map(|(_, unowned)| unowned.clone()).collect();
        let memory_nodes = self.observe(None)?.topology.memory_nodes();
        let mut adopted = Vec::new();
        for (reservation, newcomer) in adoptions(&unowned, &newcomers, &memory_nodes) {
            let (reservation, owner) = (waiting[reservation].0, &newcomers[newcomer].cgroup);
            // A domain that has ended takes nothing over.
            let Ok(group) = self.host.tree.group(owner) else { continue };
            let Some(inode) = group.inode().ok().filter(|_| group.populated()) else { continue };
            let (name, owner, cgroup) = (reservation.name.clone(), owner.clone(), CgroupId(inode));
            let adopt = Action::Adopt { name: name.clone(), owner: owner.clone(), cgroup };
            let outcome = self.change_reservation(reservation, adopt, Reason::DomainStarted);
            // Its time may be over since it was read.
            if matches!(outcome, Err(Refusal::Unmet(Unmet::NotReserved(_)))) {
                continue;
            }
            adopted.push(Adopted { reservation: name, owner, outcome });
        }
        Ok(adopted)
    }

    /// Puts off the end of each reservation that one of these domains may own, as far as their
    /// groups tell, while their manager does not answer. Its owner then finds it as late.
    ///
    /// # Errors
    /// If the machine cannot be read, or a record cannot be written; the others are.
    pub fn put_off(&mut self, newcomers: &[Newcomer]) -> Result<(), Refusal> {
        let reservations = self.host.store.reservations(&self.host.tree);
        let waiting = waiting(&reservations);
        let unowned: Vec<_> = waiting.iter().map(|(_, unowned)| unowned.clone()).collect();
        let memory_nodes = self.observe(None)?.topology.memory_nodes();
        let mut written = Ok(());
        for at in awaiting(&unowned, newcomers, &memory_nodes) {
            let (reservation, _) = waiting[at];
            if self.host.store.put_off(reservation).is_some() {
                let put_off = Action::PutOff { name: reservation.name.clone() };
                let outcome = self.change_reservation(reservation, put_off, Reason::ManagerSilent);
                match outcome {
                    Err(Refusal::Unmet(Unmet::NotReserved(_))) => {}
                    outcome => written = written.and(outcome),
                }
            }
        }
        written
    }

    fn change_reservation(
        &mut self,
        reservation: &store::Reservation,
        action: Action,
        reason: Reason,
    ) -> Result<(), Refusal> {
        let steps = vec![Step { action, reason }];
        self.apply(&Transaction::new(steps, &reservations::observed(reservation)))
    }
}

/// The reservations that wait for their domains.
fn waiting(reservations: &[store::Reservation]) -> Vec<(&store::Reservation, Unowned)> {
    reservations.iter().filter_map(|it| Some((it, it.unowned()?))).collect()
}
