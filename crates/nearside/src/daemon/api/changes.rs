//! Permits for changes.

use super::limits::{MAX_CHANGES, MAX_ROOT_CHANGES};
use crate::daemon::access::Caller;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits for changes under way, in two shares: one for all users, and a smaller one for root
/// alone.
#[derive(Debug)]
pub(super) struct Changes {
    shared: Arc<Semaphore>,
    root: Arc<Semaphore>,
}

/// A change under way. The last clone that is dropped ends it.
#[derive(Debug, Clone)]
pub(super) struct Permit {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Default for Changes {
    fn default() -> Self {
        let share = |permits: u32| Arc::new(Semaphore::new(permits as usize));
        Self { shared: share(MAX_CHANGES), root: share(MAX_ROOT_CHANGES) }
    }
}

impl Changes {
    /// A permit for a change of `caller`; none while too many changes are under way.
    pub(super) fn begin(&self, caller: &Caller) -> Option<Permit> {
        let take = |share: &Arc<Semaphore>| Arc::clone(share).try_acquire_owned().ok();
        let of_root = || if caller.uid == 0 { take(&self.root) } else { None };
        take(&self.shared).or_else(of_root).map(|permit| Permit { _permit: Arc::new(permit) })
    }

    /// Waits until no change is under way.
    pub(super) async fn ended(&self) {
        // Neither semaphore is ever closed.
        drop(self.shared.acquire_many(MAX_CHANGES).await);
        drop(self.root.acquire_many(MAX_ROOT_CHANGES).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32) -> Caller {
        Caller { uid, gid: 0, groups: Vec::new(), pid: None }
    }

    #[test]
    fn root_has_a_share_that_other_users_cannot_take() {
        let changes = Changes::default();
        let begin = |uid| changes.begin(&caller(uid));
        let mut others: Vec<_> = (0..MAX_CHANGES).map(|_| begin(1000)).collect();
        assert!(others.iter().all(Option::is_some) && begin(1000).is_none());
        let of_root: Vec<_> = (0..MAX_ROOT_CHANGES).map(|_| begin(0)).collect();
        assert!(of_root.iter().all(Option::is_some) && begin(0).is_none());
        others.pop();
        assert!(begin(1001).is_some());
    }
}
