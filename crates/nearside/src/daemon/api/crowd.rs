//! Connections by user.

use super::limits::Limits;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The number of connections of each user.
#[derive(Debug, Clone, Default)]
pub(super) struct Crowd(Arc<Mutex<HashMap<u32, usize>>>);

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Seat {
    crowd: Crowd,
    uid: u32,
}

const ROOT: u32 = 0;

impl Crowd {
    /// A place for a connection of a user, if one is free.
    pub(super) fn enter(&self, uid: u32, limits: &Limits) -> Option<Seat> {
        let mut by_user = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others: usize =
            by_user.iter().filter(|(uid, _)| **uid != ROOT).map(|(_, count)| count).sum();
        let own = by_user.entry(uid).or_default();
        if *own >= limits.connections_of_a_user || (uid != ROOT && others >= limits.connections) {
            return None;
        }
        *own += 1;
        Some(Seat { crowd: self.clone(), uid })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut by_user = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_user.get_mut(&self.uid) {
            *count = count.saturating_sub(1);
        }
        by_user.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_share_of_the_places_and_root_has_places_of_its_own() {
        let limits = Limits { connections: 3, connections_of_a_user: 2, ..Limits::default() };
        let crowd = Crowd::default();
        let enter = |uid| crowd.enter(uid, &limits);
        let mine = [enter(1), enter(1), enter(1)];
        assert_eq!(mine.each_ref().map(Option::is_some), [true, true, false]);
        let theirs = [enter(2), enter(3)];
        assert_eq!(theirs.each_ref().map(Option::is_some), [true, false]);
        let roots = [enter(ROOT), enter(ROOT), enter(ROOT)];
        assert_eq!(roots.each_ref().map(Option::is_some), [true, true, false]);
        drop(mine);
        assert!(enter(3).is_some() && enter(ROOT).is_none());
    }
}
