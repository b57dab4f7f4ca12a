//! Files that have gone from their place, and may come again: `install(1)` removes a file before it
//! writes the next one.

use super::Replicator;
use crate::original::Place;
use std::time::{Duration, Instant};

impl Replicator {
    /// Forgets the wish for a place. Says whether there was one.
    pub(super) fn forget_absent(&mut self, place: &Place) -> bool {
        let before = self.absent.len();
        self.absent.retain(|absent| absent.wish.place != *place);
        self.absent.len() < before
    }

    /// The time until the next look.
    pub(super) fn until_absent(&self) -> Option<Duration> {
        let next = self.absent.iter().map(|absent| absent.at).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Looks for files whose time has come.
    pub(super) fn look_for_absent(&mut self) {
        let now = Instant::now();
        for absent in self.absent.extract_if(.., |absent| absent.at <= now).collect::<Vec<_>>() {
            let is_there = self.add_in_place(&absent.wish);
            // A container's root goes with it, and the daemon asks again by itself.
            if !is_there && absent.wish.place.image.is_none() && !absent.wish.automatic {
                self.absent.push(absent.again(now));
            }
        }
    }
}
