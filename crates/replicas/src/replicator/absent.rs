//! Files that have gone from their place, and may come again: `install(1)` removes a file before it
//! writes the next one.

use super::{
    Replicator,
    file::{Absent, Wish},
};
use crate::original::Place;
use std::time::{Duration, Instant};

impl Replicator {
    /// Looks later for a file in a place that has none now.
    pub(super) fn await_file(&mut self, wish: Wish) {
        // A container's root goes with it, and the daemon asks again by itself.
        if wish.place.image.is_none() && !wish.automatic {
            self.absent.push(Absent::new(wish, Instant::now()));
        }
    }

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
            if !self.add_in_place(&absent.wish) {
                self.absent.push(absent.again(now));
            }
        }
    }
}
