//! Records of domains whose pattern is gone or whose parts are outdated, and destinations of
//! interrupted moves that are over.

use super::{
    duty::{Duty, Interval},
    fallback::DomainChange,
    interrupted,
    site::Site,
};

/// Removes such records and destinations.
#[derive(Debug)]
pub(super) struct Records;

impl Duty for Records {
    fn tend(&mut self, site: &mut Site, interval: &Interval<'_>) {
        let outdated = [site.watcher.no_longer_named(), site.watcher.outdated()].concat();
        let forget: DomainChange = |session, name| session.forget(name);
        site.change_each(&outdated, forget, interval.is_over);
        let moved = interrupted::over(site.watcher.records(), interval.seen, interval.history);
        let end: DomainChange = |session, name| session.forget_interrupted_moves(name);
        site.change_each(&moved, end, interval.is_over);
    }
}
