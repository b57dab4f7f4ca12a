//! The latest interval, as the loop publishes it and readers see it.

use super::snapshot::{Seen, Snapshot};
use std::{
    sync::{Arc, LazyLock, PoisonError, RwLock},
    time::Instant,
};

/// An interval that was published. The first reader makes the snapshot, because most intervals of
/// an idle host have no reader.
#[derive(Debug)]
struct Interval {
    at: Instant,
    snapshot: LazyLock<Arc<Snapshot>, Make>,
}

type Make = Box<dyn FnOnce() -> Arc<Snapshot> + Send>;

/// The latest snapshot. A reader may hold it for any time: the loop replaces it and never waits for
/// readers.
#[derive(Debug, Default)]
pub struct Published {
    latest: RwLock<Option<Arc<Interval>>>,
    failure: RwLock<Option<String>>,
}

impl Published {
    /// Replaces the latest interval.
    pub fn publish(&self, seen: Seen) {
        self.publish_as_of(seen, Instant::now());
    }

    pub(crate) fn publish_as_of(&self, seen: Seen, at: Instant) {
        let make: Make = Box::new(|| Arc::new(Snapshot::new(seen)));
        let new = Some(Arc::new(Interval { at, snapshot: LazyLock::new(make) }));
        *self.failure.write().unwrap_or_else(PoisonError::into_inner) = None;
        let old = std::mem::replace(
            &mut *self.latest.write().unwrap_or_else(PoisonError::into_inner),
            new,
        );
        // After the lock is released: this may be the last reference, and freeing a snapshot takes
        // time.
        drop(old);
    }

    /// The snapshot of the latest interval and the time of its publication; `None` until the first
    /// interval has ended.
    pub fn latest(&self) -> Option<(Instant, Arc<Snapshot>)> {
        // The lock is released before the snapshot is made, so publishing never waits for that.
        let latest = self.latest.read().unwrap_or_else(PoisonError::into_inner).clone();
        latest.map(|interval| (interval.at, interval.snapshot.clone()))
    }

    /// Records that the last observations have failed, and the reason of the last failure.
    pub fn fails(&self, observations: u64, why: &str) {
        let failure = format!("the last {observations} observations of the host failed: {why}");
        *self.failure.write().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }

    /// The reason why no snapshot was published lately, if observations fail.
    pub fn failure(&self) -> Option<String> {
        self.failure.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::snapshot::examples;

    #[test]
    fn a_reader_keeps_its_snapshot_when_a_new_one_is_published() {
        let published = Published::default();
        assert!(published.latest().is_none());
        published.publish(examples::seen());
        let (_, before) = published.latest().unwrap();
        published.publish(Seen::default());
        assert_eq!(
            (before.stat.domains.len(), published.latest().unwrap().1.stat.domains.len()),
            (3, 0)
        );
    }

    #[test]
    fn all_readers_of_an_interval_share_its_snapshot() {
        let published = Published::default();
        published.publish(examples::seen());
        let [first, second] = [published.latest(), published.latest()].map(Option::unwrap);
        assert!(Arc::ptr_eq(&first.1, &second.1));
        assert_eq!(first.1.stat.domains.len(), 3);
    }
}
