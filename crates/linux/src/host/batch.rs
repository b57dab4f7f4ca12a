//! Moving pages in batches, for a daemon: what lies on one node comes home, so much an interval.

use super::{Host, is_unchanged, while_so};
use crate::{
    error::Error,
    migrate::{Part, move_part},
};
use nearside_policy::{Batch, Outcome, Progress};
use nearside_topology::NodeSet;
use std::ops::ControlFlow;

/// Domains and nodes of which it is kept how far moving has come; those beyond begin anew.
const MOST_WALKS: usize = 256;

impl Host {
    /// Moves a batch of a domain's pages to nodes of its home.
    ///
    /// Nothing of it is recorded, so no lock is needed: what was not moved is there to be seen. What counts is the home as
    /// it is recorded now, and another command that changes the domain meanwhile ends the batch.
    pub(super) fn move_batch(
        &mut self,
        domain: &str,
        nodes: &NodeSet,
        rate_bytes_per_s: Option<u64>,
        batch: Batch,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let Batch { from, most_bytes } = batch;
        let Some(record) = self.store.living(domain, &self.tree)? else {
            return Err(Error::Refused(format!("{domain} has ended, or has no home")));
        };
        let home = &record.home.nodes;
        if !nodes.is_subset(home) || home.contains(from) {
            return Err(Error::Refused(format!(
                "another command has changed the home of {domain} to {}",
                home.named()
            )));
        }
        let (group, proc, topology) = (self.tree.group(&record.cgroup)?, self.proc(), self.topology()?);
        // Batches take long; nobody shall wait for them.
        let was_locked = self.lock.take().is_some();
        let claim = record.claim.as_ref();
        let part = Part {
            group: &group,
            proc: &proc,
            topology: &topology,
            to: nodes,
            from,
            most_bytes,
            rate_bytes_per_s,
            claim,
        };
        let mut walk = self.walks.remove(&(domain.to_owned(), from)).unwrap_or_default();
        let moved = move_part(&part, &mut walk, &mut while_so(|| is_unchanged(&self.store, &record), progress));
        if !walk.has_ended() && self.walks.len() < MOST_WALKS {
            self.walks.insert((domain.to_owned(), from), walk);
        }
        if was_locked {
            self.lock()?;
        }
        for why in &moved.unread {
            self.notice(&format!("the memory of a process of {domain} was left alone: {why}"));
        }
        Ok(moved.into_outcome())
    }
}
