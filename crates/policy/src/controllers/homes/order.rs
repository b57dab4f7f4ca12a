//! The order in which parts have their turn in a round, and how many have one: the time of a round
//! is bounded.

use super::{confirmation::Trigger, evaluation::move_cost_ns, model::PartModel, tuning::Tuning};
use crate::{index::PartIndex, view::PPM};
use std::cmp::Reverse;

/// How many parts get their first home in a round.
const MAX_FIRST_HOMES: usize = 64;

/// How many parts are evaluated in a round.
const MAX_EVALUATED: usize = 16;

/// The parts of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turns<T> {
    /// Those that have their turn, in this order.
    pub(super) now: Vec<T>,
    /// Those that wait for the next round.
    pub(super) queued: Vec<T>,
}

impl<T> Turns<T> {
    fn of(mut parts: Vec<T>, most: usize) -> Self {
        let queued = parts.split_off(parts.len().min(most));
        Self { now: parts, queued }
    }
}

/// Parts without a home: the largest choose first, by CPU time and then by memory.
pub(super) fn for_first_homes<'a>(
    mut parts: Vec<PartIndex>,
    model: impl Fn(PartIndex) -> &'a PartModel,
) -> Turns<PartIndex> {
    parts.sort_by_key(|&at| (Reverse(model(at).demand_milli), Reverse(model(at).needed_bytes), at));
    Turns::of(parts, MAX_FIRST_HOMES)
}

/// Parts that may move: those under contention first, and the most promising of them.
pub(super) fn for_evaluation<'a>(
    mut parts: Vec<(PartIndex, Trigger)>,
    tuning: &Tuning,
    model: impl Fn(PartIndex) -> &'a PartModel,
) -> Turns<(PartIndex, Trigger)> {
    parts.sort_by_key(|&(at, trigger)| (trigger, Reverse(promise_ns(tuning, model(at))), at));
    Turns::of(parts, MAX_EVALUATED)
}

/// The most CPU time that a move could save, less the cost of moving all memory once.
fn promise_ns(tuning: &Tuning, part: &PartModel) -> u128 {
    let running = u128::from(part.demand_milli) * u128::from(part.horizon_ns) / 1000;
    running.saturating_sub(move_cost_ns(tuning, part.needed_bytes, PPM as u32).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controllers::homes::{
            fixture::{GIB, learned, part, seen},
            model::HostModel,
        },
        index::Index,
    };

    /// Parts with these demands in thousandths of a CPU, and so many GiB.
    fn models(of: &[(u64, u64)]) -> Vec<PartModel> {
        let (tuning, seen) = (Tuning::default(), seen(1, 0, [0, 0]));
        let learned = learned(&tuning, &seen);
        let one = HostModel::new(&tuning, &seen, &learned).part(part(0)).clone();
        let model = |&(demand_milli, gib)| PartModel {
            demand_milli,
            needed_bytes: gib * GIB,
            horizon_ns: 100_000_000_000,
            ..one.clone()
        };
        of.iter().map(model).collect()
    }

    #[test]
    fn the_largest_part_gets_its_first_home_first() {
        let models = models(&[(500, 9), (2000, 1), (2000, 4), (2000, 1)]);
        let turns = for_first_homes((0..4).map(part).collect(), |at| &models[at.position()]);
        assert_eq!((turns.now, turns.queued), ([2, 1, 3, 0].map(part).to_vec(), vec![]));
    }

    #[test]
    fn contention_comes_before_reviews_and_cpu_time_less_the_move_decides() {
        // In 100 s one CPU uses 100 s. To move 1 GiB costs 1,024 ms at the local latency.
        let models = models(&[(4000, 1), (1000, 1), (1000, 0), (1010, 4)]);
        let parts = [
            (0, Trigger::Review),
            (1, Trigger::Contention),
            (2, Trigger::Contention),
            (3, Trigger::Contention),
        ];
        let parts = parts.map(|(at, trigger)| (part(at), trigger)).to_vec();
        let turns = for_evaluation(parts, &Tuning::default(), |at| &models[at.position()]);
        let order: Vec<_> = turns.now.iter().map(|(at, _)| at.position()).collect();
        assert_eq!(order, [2, 1, 3, 0]);
    }

    #[test]
    fn those_beyond_the_bound_wait() {
        let models = models(&[(1000, 1); 70]);
        let model = |at: PartIndex| &models[at.position()];
        let all = |count| (0..count).map(part).collect::<Vec<_>>();
        let first = for_first_homes(all(70), model);
        assert_eq!((first.now.len(), first.queued), (64, (64..70).map(part).collect()));
        let contended = |at| (at, Trigger::Contention);
        let parts = all(17).into_iter().map(contended).collect();
        let evaluated = for_evaluation(parts, &Tuning::default(), model);
        assert_eq!((evaluated.now.len(), evaluated.queued), (16, vec![contended(part(16))]));
    }
}
