//! When a lease is asked for again that a writer has kept back.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(1);

/// The next attempt. The kernel reports that a writer has closed a file before it counts the writer
/// out (`fsnotify_close` and `put_file_access` in `__fput`, `fs/file_table.c`). So a lease that is
/// asked for at once may be refused, with no event to follow.
#[derive(Debug, Default)]
pub(super) struct Retry {
    at: Option<Instant>,
    /// The last wait.
    wait: Option<Duration>,
}

impl Retry {
    /// The time of the next attempt, if there is to be one.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Whether it is time for an attempt, which is then no longer to be.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }

    /// The lease was refused. Each wait is twice as long as the one before.
    pub(super) fn refused(&mut self, now: Instant) {
        let wait = self.wait.map_or(FIRST, |wait| (wait * 2).min(LONGEST));
        *self = Self { at: Some(now + wait), wait: Some(wait) };
    }

    /// A writer has ended the copies. One that opens without waiting (`O_NONBLOCK`) was refused,
    /// and may try again some time later.
    pub(super) fn collapsed(&mut self, now: Instant) {
        *self = Self { at: Some(now + LONGEST), wait: Some(LONGEST) };
    }

    /// A writer has closed the file, or the lease was granted.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_second_and_start_anew() {
        let now = Instant::now();
        let mut retry = Retry::default();
        assert_eq!(retry.at(), None);
        let mut waits = Vec::new();
        for _ in 0..12 {
            retry.refused(now);
            let at = retry.at().unwrap();
            waits.push(at.duration_since(now).as_millis());
            assert!(!retry.take_due(now) && retry.take_due(at) && !retry.take_due(at));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
        retry.reset();
        assert_eq!(retry.at(), None);
        retry.refused(now);
        assert_eq!(retry.at(), Some(now + FIRST));
        retry.collapsed(now);
        assert_eq!(retry.at(), Some(now + LONGEST));
    }
}
