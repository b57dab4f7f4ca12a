//! Contention: a part runs off its home, or waits for a CPU, because its home's CPUs are taken.
//!
//! Contention that comes and goes is not worth a move. So contended intervals count up by one,
//! others count down by two: contention for less than two thirds of the time never adds up to the
//! threshold.

use super::smoothing::share_ppm;

/// The CPU time of a part since its last sample, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activity {
    pub(super) ran_ns: u64,
    /// The part of `ran_ns` spent off its home.
    pub(super) off_home_ns: u64,
    pub(super) waited_ns: u64,
}

impl Activity {
    /// Whether at least `min_ppm` of its time was spent off its home, or waiting.
    pub(super) fn is_contended(&self, min_ppm: u64) -> bool {
        let wanted_ns = self.ran_ns.saturating_add(self.waited_ns);
        share_ppm(self.off_home_ns, self.ran_ns) >= min_ppm
            || share_ppm(self.waited_ns, wanted_ns) >= min_ppm
    }
}

/// The count of contended intervals after a sample that counts for so many.
pub(super) fn count_after(before: u64, is_contended: bool, intervals: u64) -> u64 {
    match is_contended {
        true => before.saturating_add(intervals),
        false => before.saturating_sub(intervals.saturating_mul(2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_PPM: u64 = 100_000;

    #[test]
    fn time_off_home_and_time_waiting_are_contention() {
        // (ran, off home, waited): 10 % of CPU time, or 10 % of CPU time and waiting.
        let cases = [
            ((1000, 99, 0), false),
            ((1000, 100, 0), true),
            // 110 of 1,110 is 9.9 %, 112 of 1,112 is 10.07 %.
            ((1000, 0, 110), false),
            ((1000, 0, 112), true),
            // Each alone is below the limit; they are not added.
            ((1000, 99, 99), false),
            ((0, 0, 5), true),
            ((0, 0, 0), false),
        ];
        for ((ran_ns, off_home_ns, waited_ns), expected) in cases {
            let activity = Activity { ran_ns, off_home_ns, waited_ns };
            assert_eq!(activity.is_contended(MIN_PPM), expected, "{activity:?}");
        }
    }

    #[test]
    fn contended_intervals_count_up_by_one_and_others_down_by_two() {
        let mut count = 0;
        let counts = [true, true, true, false, true, true, false, false].map(|contended| {
            count = count_after(count, contended, 1);
            count
        });
        assert_eq!(counts, [1, 2, 3, 1, 2, 3, 1, 0]);
    }

    #[test]
    fn contention_for_less_than_two_thirds_of_the_time_never_adds_up() {
        let reached = |pattern: &[bool]| {
            let intervals = pattern.iter().cycle().take(300);
            intervals.fold((0, 0), |(max, count): (u64, u64), &contended| {
                let count = count_after(count, contended, 1);
                (max.max(count), count)
            })
        };
        // 1 of 2 and 2 of 3 intervals: bounded. 3 of 4: grows by one each four intervals, to 75 +
        // 2.
        assert_eq!(reached(&[true, false]).0, 1);
        assert_eq!(reached(&[true, true, false]).0, 2);
        assert_eq!(reached(&[true, true, true, false]).0, 77);
    }

    #[test]
    fn a_late_sample_counts_for_all_its_intervals() {
        assert_eq!(count_after(3, true, 8), 11);
        assert_eq!(count_after(20, false, 8), 4);
        assert_eq!(count_after(u64::MAX, true, 8), u64::MAX);
    }
}
