//! The host as a machine of the policy.

use super::handle::Host;
use crate::error::Error;
use nearside_policy::{Machine, Observation, Outcome, PageMove, Progress, Transaction};
use std::ops::ControlFlow;

impl Machine for Host {
    type Error = Error;

    fn observe(&mut self) -> Result<Observation, Error> {
        self.observe_from(None)
    }

    fn apply(&mut self, transaction: &Transaction) -> Outcome {
        let applied = match self.begin() {
            Ok(mut session) => session.apply(transaction).map_err(|refusal| refusal.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match applied {
            Ok(()) => Outcome::Applied { moved_bytes: 0 },
            Err(why) => Outcome::Refused { why },
        }
    }

    fn move_pages(
        &mut self,
        pages: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Outcome {
        let moved = match pages.batch {
            Some(_) => self.move_batch(pages, progress),
            None => self.move_from_begin_to_end(pages, progress),
        };
        moved.unwrap_or_else(|error| Outcome::Refused { why: error.to_string() })
    }
}
