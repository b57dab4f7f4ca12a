//! Files that have gone from their place, and may come again: `install(1)` removes a file before it
//! writes the next one.

use super::Replicator;
use crate::original::Place;
use nearside_policy::replication::Event;
use std::time::{Duration, Instant};

/// The time between looks at the places of all files. The kernel tells nothing of a folder that is
/// renamed, or of a new file where one has gone that has another name.
const PLACES: Duration = Duration::from_secs(60);

impl Replicator {
    /// Looks for other files at the places of those that have copies, if it is time.
    pub(super) fn look_at_places(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.places_seen) < PLACES {
            return;
        }
        self.places_seen = now;
        let places = self.files.iter().map(|(id, file)| (*id, file.wish.place.on_host()));
        for id in self.visitor.perhaps_not_on_host(places) {
            if self.is_replaced(id) {
                self.take(id, Event::Replaced);
            }
        }
    }

    /// The time until that, if there are files.
    pub(super) fn until_places(&self) -> Option<Duration> {
        let since = self.places_seen.elapsed();
        (!self.files.is_empty()).then(|| PLACES.saturating_sub(since))
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
            let is_there = self.add_in_place(&absent.wish);
            // A container's root goes with it, and the daemon asks again by itself.
            if !is_there && absent.wish.place.image.is_none() && !absent.wish.automatic {
                self.absent.push(absent.again(now));
            }
        }
    }
}
