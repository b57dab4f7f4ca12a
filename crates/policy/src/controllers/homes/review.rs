//! The parts that are evaluated against other homes in an interval.

use super::{confirmation::Trigger, tuning::Tuning};
use crate::HomeBlocker;

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
enum Turn {
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
fn turn(tuning: &Tuning, part: Situation, now: u64) -> Turn {
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

/// The reason in the status why the home of a part stays, before any evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    AsBefore,
    Now(Option<HomeBlocker>),
}

/// Whether a part is evaluated, and the reason in its status until then.
pub(super) fn review(
    tuning: &Tuning,
    may_move: Result<(), HomeBlocker>,
    part: Situation,
    now: u64,
) -> (Option<Trigger>, Told) {
    let below_threshold = part.is_contended.then_some(HomeBlocker::BelowThreshold);
    if let Err(blocker) = may_move {
        let is_unbound = matches!(
            blocker,
            HomeBlocker::OwnerForbids { .. } | HomeBlocker::HasCpuset | HomeBlocker::HasCells
        );
        // A home that need not change is no news, unless CPUs could not be bound to it either.
        return (None, Told::Now(Some(blocker).filter(|_| part.is_contended || is_unbound)));
    }
    match turn(tuning, part, now) {
        Turn::Evaluate(Trigger::Contention) => (Some(Trigger::Contention), Told::AsBefore),
        Turn::Evaluate(Trigger::Review) => (Some(Trigger::Review), Told::Now(below_threshold)),
        Turn::Keep => (None, Told::AsBefore),
        Turn::Wait => (None, Told::Now(below_threshold)),
        Turn::Rest => (None, Told::Now(None)),
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

    #[test]
    fn the_status_tells_why_a_home_stays_where_that_is_news() {
        let tuning = Tuning::default();
        let contended = |is_contended| Situation {
            is_contended,
            evaluated_at: Some(10),
            ..Situation::default()
        };
        let forbidden = |blocker: HomeBlocker, is_contended| {
            review(&tuning, Err(blocker), contended(is_contended), 15)
        };
        let told = |blocker| (None, Told::Now(blocker));
        let (explicit, cpuset) = (HomeBlocker::Explicit, HomeBlocker::HasCpuset);
        assert_eq!(forbidden(explicit.clone(), true), told(Some(explicit.clone())));
        assert_eq!(forbidden(explicit, false), told(None), "it is fine where it is");
        assert_eq!(forbidden(cpuset.clone(), false), told(Some(cpuset)), "it is not bound");
        let free = |part, now| review(&tuning, Ok(()), part, now);
        let below = || Some(HomeBlocker::BelowThreshold);
        assert_eq!(free(contended(true), 15), told(below()));
        assert_eq!(free(contended(false), 15), told(None));
        let due = |blocker| (Some(Trigger::Review), Told::Now(blocker));
        assert_eq!(free(contended(true), 20), due(below()));
        assert_eq!(free(contended(false), 20), due(None));
        let beside = Situation { shares_contended_home: true, ..contended(true) };
        assert_eq!(free(beside, 12), (None, Told::AsBefore));
        assert_eq!(free(beside, 13), (Some(Trigger::Contention), Told::AsBefore));
    }
}
