//! Which of two ways serves a lock better: a decision from turns and times.

/// How the waiters of a mutex wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As the C library has it.
    Direct,
    /// In a queue before it.
    Queue,
}

/// The shortest time that is measured: several slices of the scheduler.
const WINDOW_NS: u64 = 16_000_000;

/// The time from another way to a measurement, so that those who wait the former way are gone.
const LEAD_NS: u64 = 8_000_000;

/// A measurement that took longer says nothing: the lock was at rest meanwhile, or has few turns.
/// The mutex then goes the C library's way.
const LONGEST_NS: u64 = 2 * WINDOW_NS;

/// A queue has to have so many more turns, per cent: less is chance.
const MARGIN: u128 = 5;

/// The ways of a trial in turn, so that a load that grows or shrinks favours neither.
const WINDOWS: [Way; 4] = [Way::Direct, Way::Queue, Way::Queue, Way::Direct];

/// The time from a first trial to the second one. A trial spends two windows, each with what leads
/// to it, on the worse way: 2 % of this.
const FIRST_REST_NS: u64 = 100 * (LEAD_NS + WINDOW_NS);

/// The longest time between two trials.
const LAST_REST_NS: u64 = 16 * FIRST_REST_NS;

/// The present step of a lock's trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Goes the way of this window. Nanoseconds are those of the caller's clock, here and below.
    Lead { number: usize, begin_ns: u64 },
    /// Measures this window.
    Window { number: usize, turns: u64, begin_ns: u64 },
    /// Goes the better way until then.
    Rest { until_ns: u64 },
}

/// A lock's trials: it measures its turns each way, goes the better one, and tries again later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trial {
    stage: Stage,
    /// Turns and nanoseconds of each way in this trial.
    direct: (u64, u64),
    queue: (u64, u64),
    better: Way,
    rest_ns: u64,
}

impl Trial {
    /// The first trial. It begins the C library's way.
    pub(crate) const fn new(now_ns: u64) -> Self {
        Self {
            stage: Stage::Lead { number: 0, begin_ns: now_ns },
            direct: (0, 0),
            queue: (0, 0),
            better: Way::Direct,
            rest_ns: FIRST_REST_NS / 2,
        }
    }

    /// The way to go now.
    pub(crate) fn way(&self) -> Way {
        match self.stage {
            Stage::Lead { number, .. } | Stage::Window { number, .. } => WINDOWS[number],
            Stage::Rest { .. } => self.better,
        }
    }

    /// Whether turns have to be counted now.
    pub(crate) fn counts(&self) -> bool {
        !matches!(self.stage, Stage::Rest { .. })
    }

    /// Looks at the clock. `turns` is the number of turns that were counted so far.
    pub(crate) fn look(&mut self, turns: u64, now_ns: u64) {
        match self.stage {
            Stage::Rest { until_ns } => {
                if now_ns >= until_ns {
                    (self.direct, self.queue) = ((0, 0), (0, 0));
                    self.stage = Stage::Lead { number: 0, begin_ns: now_ns };
                }
            }
            Stage::Lead { number, begin_ns } => {
                if now_ns.saturating_sub(begin_ns) >= LEAD_NS {
                    self.stage = Stage::Window { number, turns, begin_ns: now_ns };
                }
            }
            Stage::Window { number, turns: before, begin_ns } => {
                let elapsed_ns = now_ns.saturating_sub(begin_ns);
                if elapsed_ns < WINDOW_NS {
                    return;
                }
                if elapsed_ns > LONGEST_NS {
                    return self.rest(Way::Direct, now_ns);
                }
                let sum = match WINDOWS[number] {
                    Way::Direct => &mut self.direct,
                    Way::Queue => &mut self.queue,
                };
                sum.0 += turns.saturating_sub(before);
                sum.1 += elapsed_ns;
                match number + 1 < WINDOWS.len() {
                    true => self.stage = Stage::Lead { number: number + 1, begin_ns: now_ns },
                    false => self.decide(now_ns),
                }
            }
        }
    }

    fn decide(&mut self, now_ns: u64) {
        let (direct, queue) = (self.direct, self.queue);
        // Turns per time, multiplied out.
        let is_queue_better = u128::from(queue.0) * u128::from(direct.1) * 100
            > u128::from(direct.0) * u128::from(queue.1) * (100 + MARGIN);
        self.rest(if is_queue_better { Way::Queue } else { Way::Direct }, now_ns);
    }

    fn rest(&mut self, better: Way, now_ns: u64) {
        let rest_ns = if better == self.better { self.rest_ns * 2 } else { FIRST_REST_NS };
        self.rest_ns = rest_ns.min(LAST_REST_NS);
        self.better = better;
        self.stage = Stage::Rest { until_ns: now_ns.saturating_add(self.rest_ns) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A lock of these turns per window each way; the trial after some windows, each with what
    /// leads to it, and its way in each.
    fn played(direct: u64, queue: u64, windows: usize) -> (Trial, Vec<Way>) {
        let (mut turns, mut now_ns) = (7, 1_000);
        let mut trial = Trial::new(now_ns);
        let mut ways = Vec::new();
        for _ in 0..windows {
            ways.push(trial.way());
            // Turns just after a change of ways are not measured.
            turns += 1_000_000;
            now_ns += LEAD_NS;
            trial.look(turns, now_ns);
            if trial.counts() {
                turns += if trial.way() == Way::Direct { direct } else { queue };
            }
            now_ns += WINDOW_NS;
            trial.look(turns, now_ns);
        }
        (trial, ways)
    }

    #[test]
    fn each_way_is_measured_twice_and_the_better_one_stays() {
        use Way::{Direct, Queue};
        for (direct, queue, better) in
            [(1000, 2000, Queue), (1000, 1051, Queue), (1000, 1050, Direct), (0, 0, Direct)]
        {
            let (trial, ways) = played(direct, queue, 50);
            assert_eq!(ways[..4], [Direct, Queue, Queue, Direct]);
            assert!(ways[4..].iter().all(|way| *way == better), "{direct} {queue}");
            assert!(!trial.counts());
        }
    }

    #[test]
    fn rests_are_longer_the_longer_a_way_stays_the_better_one() {
        for (direct, queue) in [(1000, 1), (1, 1000)] {
            let (_, ways) = played(direct, queue, 20_000);
            let better = if direct > queue { Way::Direct } else { Way::Queue };
            let worse = ways.iter().filter(|way| **way != better).count();
            assert!(worse * 100 < ways.len(), "{worse} windows");
            assert!(worse >= 10, "{worse} windows: it has to be tried again");
        }
    }

    #[test]
    fn a_lock_that_the_queue_stops_goes_the_other_way() {
        let (mut turns, mut now_ns, mut in_queue_ns) = (0, 0, 0);
        let mut trial = Trial::new(now_ns);
        for _ in 0..100_000 {
            // A look comes after so many turns, however long they take.
            turns += 16;
            let way = trial.way();
            let took_ns = if way == Way::Direct { 160_000 } else { LONGEST_NS + 1 };
            now_ns += took_ns;
            in_queue_ns += if way == Way::Queue { took_ns } else { 0 };
            trial.look(turns, now_ns);
        }
        assert!(in_queue_ns > 0 && in_queue_ns * 50 < now_ns, "{in_queue_ns} of {now_ns} ns");
    }

    #[test]
    fn a_lock_that_is_at_rest_now_and_then_goes_the_c_librarys_way() {
        let mut trial = Trial::new(0);
        trial.look(5, LEAD_NS);
        trial.look(10, LEAD_NS + LONGEST_NS + 1);
        assert_eq!((trial.way(), trial.counts()), (Way::Direct, false));
    }

    proptest! {
        #[test]
        fn at_most_a_fiftieth_of_the_time_after_a_trial_is_lost(
            rates in proptest::collection::vec((0_u64..1000, 0_u64..1000), 1..8),
        ) {
            // Half of what is measured is the worse way.
            let (mut turns, mut now_ns) = (0, 0);
            let mut trial = Trial::new(now_ns);
            let (mut measured, steps) = (0, 12_000);
            for step in 0..steps {
                let (direct, queue) = rates[step * rates.len() / steps];
                measured += usize::from(trial.counts());
                turns += if trial.way() == Way::Direct { direct } else { queue };
                now_ns += LEAD_NS;
                trial.look(turns, now_ns);
            }
            // A window and what leads to it are three of these steps, and four of them a trial.
            prop_assert!(measured <= 12 + 4 * steps / 100, "{measured}");
        }
    }
}
