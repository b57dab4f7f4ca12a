//! The clock of the loop.

use std::time::{Duration, Instant};

/// The monotonic time since the loop began.
#[derive(Debug, Clone)]
pub(super) enum Clock {
    /// The time of this machine.
    Monotonic { began: Instant },
    /// The time that a simulation has reached.
    #[cfg(test)]
    Simulated(Duration),
}

impl Default for Clock {
    fn default() -> Self {
        Self::Monotonic { began: Instant::now() }
    }
}

impl Clock {
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::Monotonic { began } => began.elapsed(),
            #[cfg(test)]
            Self::Simulated(now) => *now,
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.now().as_nanos()).unwrap_or(u64::MAX)
    }
}
