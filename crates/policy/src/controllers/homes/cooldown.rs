//! The cooldown after a move.
//!
//! A part stays 5 intervals at a new home; after moves that soon follow each other, twice as long
//! each time. Beyond the cooldown, while the move is recent, it moves again only if the load on its
//! home has grown since it was chosen. So under steady load there is at most one move in
//! [`Tuning::steady_intervals`].
//!
//! A refused decision has the same cooldown, because the step would be refused again; so has a
//! first home that was refused.

use super::tuning::Tuning;
use crate::{LastMove, MilliVcpus};

// The maximum of a cooldown that doubles.
const MAX_COOLDOWN_INTERVALS: u64 = 480;

// The load has grown if it is higher by this, and by an eighth.
const MIN_GROWTH_MILLI: u64 = 500;

/// The cooldown of a move that is decided now.
pub(super) fn cooldown_after(tuning: &Tuning, last: Option<LastMove>, now: u64) -> u64 {
    let recent = last.filter(|last| {
        let recent_until = last.cooldown_intervals.saturating_add(tuning.steady_intervals);
        now.saturating_sub(last.at) < recent_until
    });
    recent.map_or(tuning.cooldown_intervals, |last| {
        let max = MAX_COOLDOWN_INTERVALS.max(tuning.cooldown_intervals);
        last.cooldown_intervals.saturating_mul(2).min(max)
    })
}

/// Whether the cooldown of a decision lasts.
pub(super) fn is_cooling_down(last: LastMove, now: u64) -> bool {
    now.saturating_sub(last.at) < last.cooldown_intervals
}

/// Whether a part must stay for now.
pub(super) fn must_stay(tuning: &Tuning, last: LastMove, now: u64, load_now: MilliVcpus) -> bool {
    let passed = now.saturating_sub(last.at);
    let grown = load_now.0 >= last.load.0.saturating_add(MIN_GROWTH_MILLI.max(last.load.0 / 8));
    is_cooling_down(last, now) || passed < tuning.steady_intervals && !grown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(at: u64, cooldown_intervals: u64, load: u64) -> LastMove {
        LastMove { at, cooldown_intervals, load: MilliVcpus(load) }
    }

    #[test]
    fn moves_that_soon_follow_each_other_double_the_cooldown() {
        let tuning = Tuning::default();
        let (mut last, mut cooldowns) = (None, Vec::new());
        for number in 0..10 {
            let now = number * 100;
            let cooldown = cooldown_after(&tuning, last, now);
            cooldowns.push(cooldown);
            last = Some(moved(now, cooldown, 0));
        }
        assert_eq!(cooldowns, [5, 10, 20, 40, 80, 160, 320, 480, 480, 480]);
    }

    #[test]
    fn a_move_long_after_the_last_one_starts_with_the_shortest_cooldown() {
        let tuning = Tuning::default();
        // A cooldown of 40 at interval 100: moves before 100 + 40 + 150 follow it soon.
        let last = Some(moved(100, 40, 0));
        assert_eq!([289, 290].map(|now| cooldown_after(&tuning, last, now)), [80, 5]);
        let long = Tuning { cooldown_intervals: 600, ..tuning };
        assert_eq!(cooldown_after(&long, Some(moved(100, 600, 0)), 200), 600, "no less than asked");
    }

    #[test]
    fn within_the_cooldown_a_part_stays_whatever_the_load() {
        let tuning = Tuning::default();
        let load = MilliVcpus(100_000);
        let stays = |now| must_stay(&tuning, moved(100, 5, 1000), now, load);
        assert_eq!([100, 104, 105].map(stays), [true, true, false]);
    }

    #[test]
    fn a_recent_move_is_followed_by_another_only_if_the_load_has_grown() {
        let tuning = Tuning::default();
        let stays =
            |then, now_milli| must_stay(&tuning, moved(100, 5, then), 110, MilliVcpus(now_milli));
        // By half a CPU where an eighth is less: 1.0 to 1.5. By an eighth where that is more: 8 to
        // 9.
        assert_eq!([1499, 1500].map(|now| stays(1000, now)), [true, false]);
        assert_eq!([8999, 9000].map(|now| stays(8000, now)), [true, false]);
        // After 150 intervals the load no longer matters.
        assert!(!must_stay(&tuning, moved(100, 5, 1000), 250, MilliVcpus(0)));
    }
}
