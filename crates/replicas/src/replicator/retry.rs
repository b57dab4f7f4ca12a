//! The time of the next attempt, after others have kept one from success.

use nearside_policy::replication::RECOVERY;
use std::time::{Duration, Instant};

/// The next attempt. Each wait is twice as long as the one before.
#[derive(Debug)]
pub(super) struct Retry {
    at: Option<Instant>,
    /// The last wait.
    wait: Option<Duration>,
    first: Duration,
    longest: Duration,
    /// Whether the attempts end after the longest wait.
    ends: bool,
}

impl Retry {
    /// For the lease of a file. The kernel reports that a writer has closed a file before it counts
    /// the writer out (`fsnotify_close` and `put_file_access` in `__fput`, `fs/file_table.c`). So a
    /// lease that is asked for at once may be refused, with no event to follow.
    pub(super) fn of_lease() -> Self {
        Self::between(Duration::from_millis(1), Duration::from_secs(1), false)
    }

    /// For running processes that a debugger held, that waited in vfork, or that did not stop in
    /// time: nothing tells of the end of that. Each attempt may take a second, while writers wait,
    /// so there are eight of them.
    pub(super) fn of_processes() -> Self {
        Self::between(Duration::from_millis(250), Duration::from_secs(32), true)
    }

    /// For copies that the kernel placed on other nodes although theirs seemed to have room. An
    /// attempt copies the whole file.
    pub(super) fn of_spills() -> Self {
        Self::between(RECOVERY, Duration::from_secs(3600), false)
    }

    fn between(first: Duration, longest: Duration, ends: bool) -> Self {
        Self { at: None, wait: None, first, longest, ends }
    }

    /// The time of the next attempt, if there is to be one.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Whether it is time for an attempt, which is then no longer to be.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }

    /// The attempt was in vain.
    pub(super) fn refused(&mut self, now: Instant) {
        if self.ends && self.wait == Some(self.longest) {
            return;
        }
        let wait = self.wait.map_or(self.first, |wait| (wait * 2).min(self.longest));
        (self.at, self.wait) = (Some(now + wait), Some(wait));
    }

    /// A writer has ended the copies. One that opens without waiting (`O_NONBLOCK`) was refused,
    /// and may try again some time later.
    pub(super) fn collapsed(&mut self, now: Instant) {
        (self.at, self.wait) = (Some(now + self.longest), Some(self.longest));
    }

    /// The cause has gone, or the attempt was a success.
    pub(super) fn reset(&mut self) {
        (self.at, self.wait) = (None, None);
    }
}

/// Looks at places after an event there. The event may come before the change that it belongs to: a
/// file is removed before the next one is written.
#[derive(Debug)]
pub(super) struct Looks {
    last: Option<Instant>,
    next: Retry,
}

impl Default for Looks {
    fn default() -> Self {
        let next = Retry::between(Duration::from_millis(10), Duration::from_secs(10), true);
        Self { last: None, next }
    }
}

impl Looks {
    /// The shortest time between looks at once: events may come without end.
    const REST: Duration = Duration::from_millis(100);

    /// After an event: a look at once, or soon if there was one just now, and further ones later.
    pub(super) fn begin(&mut self, now: Instant) {
        self.next.reset();
        match self.last {
            Some(last) if now.duration_since(last) < Self::REST => self.next.refused(now),
            _ => self.next.at = Some(now),
        }
    }

    /// The time of the next look, if there is to be one.
    pub(super) fn at(&self) -> Option<Instant> {
        self.next.at()
    }

    /// Whether it is time for a look.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.next.take_due(now);
        if is_due {
            self.last = Some(now);
            self.next.refused(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_asked_eight_times() {
        let now = Instant::now();
        let mut retry = Retry::of_processes();
        let mut waits = Vec::new();
        retry.refused(now);
        while let Some(at) = retry.at() {
            waits.push(at.duration_since(now).as_millis());
            assert!(retry.take_due(at));
            retry.refused(now);
        }
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000]);
        retry.reset();
        retry.refused(now);
        assert!(retry.at().is_some());
    }

    #[test]
    fn waits_double_up_to_a_second_and_start_anew() {
        let now = Instant::now();
        let mut retry = Retry::of_lease();
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
        assert_eq!(retry.at(), Some(now + Duration::from_millis(1)));
        retry.collapsed(now);
        assert_eq!(retry.at(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn after_an_event_looks_follow_each_other_at_growing_intervals_and_end() {
        let start = Instant::now();
        let mut looks = Looks::default();
        assert!(!looks.take_due(start));
        looks.begin(start);
        let mut times = Vec::new();
        while let Some(at) = looks.at() {
            assert!(looks.take_due(at) && !looks.take_due(at));
            times.push(at.duration_since(start).as_millis());
        }
        assert_eq!(times[..5], [0, 10, 30, 70, 150]);
        assert_eq!(
            times.last(),
            Some(&(10 + 20 + 40 + 80 + 160 + 320 + 640 + 1280 + 2560 + 5120 + 10_000))
        );
    }

    #[test]
    fn events_without_end_bring_ten_looks_a_second() {
        let start = Instant::now();
        let mut looks = Looks::default();
        let mut count = 0;
        for ms in 0..1000 {
            let now = start + Duration::from_millis(ms);
            looks.begin(now);
            count += u32::from(looks.take_due(now));
        }
        assert_eq!(count, 10);
    }
}
