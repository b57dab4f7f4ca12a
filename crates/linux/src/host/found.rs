//! Domains as a daemon changes them: as they are recorded by then, and groups that were found and have no record yet.

use super::{Home, Host, later_policy_nodes};
use crate::{
    error::Error,
    store::{Part, Record},
    watch::owner,
};
use nearside_policy::{Limits, Owner};
use std::time::{SystemTime, UNIX_EPOCH};

impl Host {
    /// Takes the lock, unless it is held already, and begins to change a domain as it is recorded now: the actions that are
    /// applied from here on are about it. A group that was found by a pattern and has no record yet gets one with its first change, and `found`
    /// says by which pattern and what its home is to be.
    ///
    /// # Errors
    /// Where there is no such domain, or no longer.
    pub fn take_up(&mut self, domain: &str, found: Option<(&str, &Home)>) -> Result<(), Error> {
        self.lock()?;
        let record = self
            .record_now(domain, found)
            .and_then(|record| record.ok_or_else(|| Error::Refused(format!("{domain} has ended"))));
        self.current = None;
        self.edit(record?);
        Ok(())
    }

    /// Lets go of the domain that was taken up. The lock is held until [`unlock`](Self::unlock): others may be changed as well.
    pub fn put_down(&mut self) {
        self.current = None;
    }

    fn record_now(
        &self,
        domain: &str,
        found: Option<(&str, &Home)>,
    ) -> Result<Option<Record>, Error> {
        match (self.store.living(domain, &self.tree)?, found) {
            (Some(record), _) => Ok(Some(record)),
            (None, Some((pattern, home))) => self.record_of_found(domain, pattern, home),
            (None, None) => Ok(None),
        }
    }

    fn record_of_found(
        &self,
        path: &str,
        pattern: &str,
        home: &Home,
    ) -> Result<Option<Record>, Error> {
        let group = self.tree.group(path)?;
        let Some(inode) = group.inode().ok().filter(|_| group.populated()) else { return Ok(None) };
        Ok(Some(Record {
            name: path.into(),
            boot_id: self.boot_id().into(),
            cgroup: path.into(),
            inode,
            started_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            found_by: Some(pattern.into()),
            command: Vec::new(),
            limits: Limits::default(),
            parts: Part::at(home.clone()).into(),
        }))
    }

    /// Gives the domain that is being changed another home.
    pub(super) fn set_home(&mut self, home: &Home) -> Result<(), Error> {
        let claim = self.current.as_ref().and_then(|record| record.part().claim.clone());
        let policy_nodes = match claim {
            Some(claim) => later_policy_nodes(home, &claim, &self.topology()?),
            None => None,
        };
        self.change(|record| {
            if record.part().home.nodes != home.nodes {
                // Where somebody wanted its memory before is over.
                record.part_mut().moving_to = None;
            }
            record.part_mut().home = home.clone();
            record.part_mut().policy_nodes = policy_nodes;
        })
    }

    /// Leaves alone where a group may run that somebody else would confine otherwise at once, or that would stay bound.
    pub(super) fn refuse_other_owners(&self) -> Result<(), Error> {
        self.current.as_ref().map_or(Ok(()), |record| self.may_bind(record))
    }

    /// Whether a domain may be confined to nodes and CPUs.
    ///
    /// # Errors
    /// Where somebody else owns its group, and would take that back or keep it for longer than the domain lives.
    pub fn may_bind(&self, record: &Record) -> Result<(), Error> {
        if record.found_by.is_none() {
            return Ok(());
        }
        let path = &record.cgroup;
        Err(Error::Refused(match owner(path, self.booted_with_systemd) {
            owner if owner.lets_bind() => return Ok(()),
            Owner::SystemdUnit => format!(
                "{path} is a service or slice of systemd's, which would keep what is set when it is started anew: set where \
                 it may run there (systemctl set-property)"
            ),
            owner => {
                format!(
                    "{path} is a cgroup of {owner}, which would take the change back: set where it may run there"
                )
            }
        }))
    }
}
