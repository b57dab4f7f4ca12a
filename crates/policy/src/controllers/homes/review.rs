//! The parts that are evaluated against other homes in an interval.

use super::{confirmation::Trigger, tuning::Tuning};

// Under contention a part is evaluated again after so many intervals.
const CONTENTION_REVIEW_INTERVALS: u64 = 3;

/// A part that may move, before it is decided whether it is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Situation {
    pub(super) is_idle: bool,
    /// Whether it is contended itself, for however short a time.
    pub(super) is_contended: bool,
    /// Whether a part of its home, itself included, has reached the contention threshold.
    pub(super) shares_contended_home: bool,
    /// How many times in a row a better home was found.
    pub(super) confirmations: u64,
    pub(super) evaluated_at: Option<u64>,
}

/// The turn of a part in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Evaluate(Trigger),
    /// Not evaluated; the result of the last evaluation stays.
    Keep,
    /// Not evaluated; it is contended, below the threshold.
    Wait,
    /// Not evaluated; nothing is wrong.
    Rest,
}

/// The turn of a part. One with a contended home is evaluated every third interval, others at the
/// regular review, idle ones never. An unconfirmed better home is kept in its status until the next
/// evaluation.
pub(super) fn turn(tuning: &Tuning, part: Situation, now: u64) -> Turn {
    let rests =
        |intervals: u64| part.evaluated_at.is_some_and(|then| now < then.saturating_add(intervals));
    if part.is_idle {
        return Turn::Rest;
    }
    if part.shares_contended_home {
        return match rests(CONTENTION_REVIEW_INTERVALS) {
            true => Turn::Keep,
            false => Turn::Evaluate(Trigger::Contention),
        };
    }
    match (rests(tuning.review_intervals), part.confirmations > 0, part.is_contended) {
        (false, ..) => Turn::Evaluate(Trigger::Review),
        (true, true, _) => Turn::Keep,
        (true, false, true) => Turn::Wait,
        (true, false, false) => Turn::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(part: Situation, now: u64) -> Turn {
        turn(&Tuning::default(), part, now)
    }

    #[test]
    fn a_contended_home_is_reviewed_every_third_interval() {
        let part = Situation { shares_contended_home: true, ..Situation::default() };
        assert_eq!(at(part, 9), Turn::Evaluate(Trigger::Contention), "never evaluated before");
        let part = Situation { evaluated_at: Some(10), ..part };
        let turns = [10, 11, 12, 13].map(|now| at(part, now));
        let again = Turn::Evaluate(Trigger::Contention);
        assert_eq!(turns, [Turn::Keep, Turn::Keep, Turn::Keep, again]);
    }

    #[test]
    fn without_contention_every_tenth_interval_is_a_review() {
        let part = Situation { evaluated_at: Some(10), ..Situation::default() };
        assert_eq!(at(part, 19), Turn::Rest);
        assert_eq!(at(part, 20), Turn::Evaluate(Trigger::Review));
    }

    #[test]
    fn below_the_threshold_a_contended_part_waits_for_the_review() {
        let part = Situation { is_contended: true, evaluated_at: Some(10), ..Situation::default() };
        assert_eq!(at(part, 15), Turn::Wait);
        assert_eq!(at(part, 20), Turn::Evaluate(Trigger::Review));
    }

    #[test]
    fn an_unconfirmed_better_home_stays_in_the_status_between_evaluations() {
        let part = Situation { confirmations: 1, evaluated_at: Some(10), ..Situation::default() };
        assert_eq!(at(part, 15), Turn::Keep);
        assert_eq!(at(Situation { is_contended: true, ..part }, 15), Turn::Keep);
    }

    #[test]
    fn idle_parts_are_never_evaluated() {
        let part = Situation { is_idle: true, shares_contended_home: true, ..Situation::default() };
        assert_eq!(at(part, 100), Turn::Rest);
    }
}
