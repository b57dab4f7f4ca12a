//! The ends of reservations, and the domains that adopt them (docs/adr/0015-numad.md).

use super::{
    reservations,
    session::{Refusal, Session},
};
use crate::{
    error::Error,
    store::{self, Lifetime},
};
use nearside_policy::{Action, Newcomer, Reason, Step, Transaction, Unmet, adoptions, awaiting};

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
        let action = Action::Release { name: name.into() };
        let steps = vec![Step { action, reason: Reason::NotNeeded }];
        match self.apply(&Transaction::new(steps, &reservations::observed(&reservation))) {
            Ok(()) => Ok(true),
            // Its time may be over since it was read.
            Err(Refusal::Unmet(Unmet::NotReserved(_))) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// Gives reservations without an owner to the domains that they were made for. Each then lasts
    /// as long as its domain, and no longer counts memory that the domain holds. Returns the names
    /// of the reservations, each with the path of its domain's cgroup.
    ///
    /// # Errors
    /// If the machine cannot be read, or a record cannot be written. Reservations that were adopted
    /// before that stay adopted.
    pub fn adopt(&mut self, newcomers: &[Newcomer]) -> Result<Vec<(String, String)>, Error> {
        let reservations = self.host.store.reservations(&self.host.tree);
        let is_owner =
            |path: &str| reservations.iter().any(|reservation| reservation.owner() == Some(path));
        let newcomers: Vec<_> =
            newcomers.iter().filter(|it| !is_owner(&it.cgroup)).cloned().collect();
        let unowned: Vec<_> = reservations.iter().filter_map(store::Reservation::unowned).collect();
        let memory_nodes = self.observe(None)?.topology.memory_nodes();
        let mut adopted = Vec::new();
        for (reservation, newcomer) in adoptions(&unowned, &newcomers, &memory_nodes) {
            let (name, path) = (&unowned[reservation].name, &newcomers[newcomer].cgroup);
            let group = self.host.tree.group(path)?;
            let Some(record) = reservations.iter().find(|it| it.name == *name) else { continue };
            let Some(inode) = group.inode().ok().filter(|_| group.populated()) else { continue };
            let boot_id = self.host.boot_id().into();
            let lifetime = Lifetime::Cgroup { boot_id, path: path.clone(), inode };
            self.lock.reserve(&store::Reservation { lifetime, ..record.clone() })?;
            adopted.push((name.clone(), path.clone()));
        }
        self.have_changed();
        Ok(adopted)
    }

    /// Puts off the end of each reservation that one of these domains may own, as far as their
    /// groups tell, while their manager does not answer. Its owner then finds it as late.
    ///
    /// # Errors
    /// If the machine cannot be read, or a record cannot be written; the others are.
    pub fn put_off(&mut self, newcomers: &[Newcomer]) -> Result<(), Error> {
        let reservations = self.host.store.reservations(&self.host.tree);
        let waiting: Vec<_> =
            reservations.iter().filter_map(|it| Some((it, it.unowned()?))).collect();
        let unowned: Vec<_> = waiting.iter().map(|(_, unowned)| unowned.clone()).collect();
        let memory_nodes = self.observe(None)?.topology.memory_nodes();
        let mut written = Ok(());
        for at in awaiting(&unowned, newcomers, &memory_nodes) {
            let (reservation, _) = waiting[at];
            let Some(lifetime) = self.host.store.put_off(reservation) else { continue };
            let later = store::Reservation { lifetime, ..reservation.clone() };
            written = written.and(self.lock.reserve(&later));
        }
        self.have_changed();
        written
    }
}
