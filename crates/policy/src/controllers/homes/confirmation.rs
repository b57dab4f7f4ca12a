//! When a better home is taken: at once, or after it was found several times in a row.
//!
//! Measured demand varies by some percent, so homes seem to differ by some percent. A difference
//! that is measured three times in a row is real: smoothing leaves a fifth of a deviation by then.

use super::tuning::Tuning;
use crate::Payback;

// So many times in a row a better home must be found.
const CONFIRMATIONS: u64 = 3;

// A clear gain is so many times the minimum.
const CLEAR_GAIN: u64 = 2;

/// Why other homes are evaluated for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trigger {
    /// Contention, its own or that of a part it shares a home with.
    Contention,
    /// The regular review.
    Review,
}

/// The minimum gain of another home.
pub(super) fn min_gain_ppm(tuning: &Tuning, trigger: Trigger) -> u64 {
    match trigger {
        Trigger::Contention => tuning.min_gain_ppm,
        Trigger::Review => tuning.min_gain_ppm.saturating_mul(CLEAR_GAIN),
    }
}

/// How many times in a row a home with this gain must be found before it is taken.
pub(super) fn needed(tuning: &Tuning, trigger: Trigger, payback: Payback) -> u64 {
    let is_clear = payback.is_gain_of(tuning.min_gain_ppm.saturating_mul(CLEAR_GAIN));
    if trigger == Trigger::Contention && is_clear { 1 } else { CONFIRMATIONS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MilliVcpus, SlowDown};

    fn gain(there: u64) -> Payback {
        Payback::new(MilliVcpus(2000), SlowDown(1_200_000), SlowDown(there), 0, 0)
    }

    #[test]
    fn only_a_clear_gain_under_contention_is_taken_at_once() {
        let tuning = Tuning::default();
        // 1.2 instead of 1.0 is 20 %, instead of 1.14 5.3 %; twice the minimum is 10 %.
        let cases = [
            (1_000_000, Trigger::Contention, 1),
            (1_140_000, Trigger::Contention, 3),
            (1_000_000, Trigger::Review, 3),
        ];
        for (there, trigger, expected) in cases {
            assert_eq!(needed(&tuning, trigger, gain(there)), expected, "{there} {trigger:?}");
        }
    }

    #[test]
    fn a_review_asks_for_twice_the_gain() {
        let tuning = Tuning::default();
        let min = [Trigger::Contention, Trigger::Review].map(|it| min_gain_ppm(&tuning, it));
        assert_eq!(min, [50_000, 100_000]);
    }
}
