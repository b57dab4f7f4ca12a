//! A thread and its work.

use crate::scenario::Work;

/// A thread of a domain, with memory that it alone uses.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub(crate) domain: usize,
    /// Where its memory lies, by node.
    pub(crate) bytes: Vec<u64>,
    /// Where it ran last.
    pub(crate) node: usize,
    /// When it began, or its last sleep ends.
    pub(crate) awake_ns: f64,
    /// Whether it slept since its CPU was chosen.
    pub(crate) woke: bool,
    /// How many rounds it does in all, and has done.
    pub(crate) all_rounds: f64,
    pub(crate) rounds: f64,
    pub(crate) done_ns: Option<f64>,
}

/// What a thread did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Ran {
    pub(crate) cpu_ns: f64,
    pub(crate) rounds: f64,
    /// Whether it stopped by itself, in the end.
    pub(crate) is_over: bool,
}

impl Thread {
    /// How much of the time to `until_ns` it could run.
    pub(crate) fn wants_ns(&self, from_ns: f64, until_ns: f64) -> f64 {
        match self.done_ns {
            Some(_) => 0.0,
            None => (until_ns - self.awake_ns.max(from_ns)).max(0.0),
        }
    }

    /// Has a part of a CPU, `share`, to `until_ns`, where a round of its work takes `round_ns`.
    pub(crate) fn run(
        &mut self,
        work: &Work,
        round_ns: f64,
        from_ns: f64,
        until_ns: f64,
        share: f64,
    ) -> Ran {
        let mut ran = Ran::default();
        self.awake_ns = self.awake_ns.max(from_ns);
        while self.awake_ns < until_ns && self.done_ns.is_none() && share > 0.0 {
            let given_ns = (until_ns - self.awake_ns) * share;
            let part = self.run_for(work, round_ns, given_ns);
            let stopped_ns = self.awake_ns + part.cpu_ns / share;
            self.awake_ns = if part.is_over { self.stop(work, stopped_ns) } else { until_ns };
            ran.cpu_ns += part.cpu_ns;
            ran.rounds += part.rounds;
        }
        ran
    }

    /// Has so much more of a CPU in the time to `until_ns`, beside what it had of it. When it got that is not known, so what comes
    /// after comes after `until_ns`: nobody is faster than a whole CPU.
    pub(crate) fn run_more(
        &mut self,
        work: &Work,
        round_ns: f64,
        until_ns: f64,
        given_ns: f64,
    ) -> Ran {
        let ran = self.run_for(work, round_ns, given_ns);
        if ran.is_over {
            self.awake_ns = self.stop(work, until_ns);
        }
        ran
    }

    /// Runs until it stops by itself, or for so long.
    fn run_for(&mut self, work: &Work, round_ns: f64, given_ns: f64) -> Ran {
        let stop = work.next_stop(self.rounds, self.all_rounds);
        let needed_ns = (stop - self.rounds) * round_ns;
        let is_over = needed_ns <= given_ns;
        let cpu_ns = needed_ns.min(given_ns);
        let rounds = if is_over { stop - self.rounds } else { given_ns / round_ns };
        self.rounds = if is_over { stop } else { self.rounds + rounds };
        Ran { cpu_ns, rounds, is_over }
    }

    /// Is done at `now_ns`, or sleeps: until when.
    fn stop(&mut self, work: &Work, now_ns: f64) -> f64 {
        if self.rounds >= self.all_rounds {
            self.done_ns = Some(now_ns);
            return now_ns;
        }
        self.woke = true;
        now_ns + work.pause_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work {
        rounds: 10,
        compute_ns: 100,
        lines: 0,
        streamed_lines: 0,
        pause_ns: 50,
        pause_rounds: 4,
    };

    fn thread() -> Thread {
        Thread {
            domain: 0,
            bytes: vec![0],
            node: 0,
            awake_ns: 0.0,
            woke: false,
            all_rounds: 10.0,
            rounds: 0.0,
            done_ns: None,
        }
    }

    #[test]
    fn work_is_done_in_rounds_with_pauses_between() {
        let mut thread = thread();
        // Half a CPU: 4 rounds take 800, the pause 50; of the next round 75 CPU ns are had by 1000.
        let ran = thread.run(&WORK, 100.0, 0.0, 1000.0, 0.5);
        assert_eq!((ran.cpu_ns, ran.rounds), (475.0, 4.75));
        assert!(thread.woke && thread.done_ns.is_none());
        // 3.25 rounds, the pause, and 2 rounds.
        let ran = thread.run(&WORK, 100.0, 1000.0, 2000.0, 1.0);
        assert_eq!((ran.cpu_ns, thread.done_ns), (525.0, Some(1575.0)));
        assert_eq!(thread.run(&WORK, 100.0, 2000.0, 3000.0, 1.0), Ran::default());
        assert_eq!(thread.wants_ns(2000.0, 3000.0), 0.0);
    }

    #[test]
    fn more_of_a_cpu_ends_with_the_tick() {
        let mut thread = thread();
        thread.run(&WORK, 100.0, 0.0, 300.0, 0.5);
        let ran = thread.run_more(&WORK, 100.0, 300.0, 100.0);
        assert_eq!((ran.cpu_ns, thread.rounds, thread.awake_ns), (100.0, 2.5, 300.0));
        let ran = thread.run_more(&WORK, 100.0, 300.0, 200.0);
        assert_eq!((ran.cpu_ns, thread.rounds, thread.awake_ns), (150.0, 4.0, 350.0));
    }

    #[test]
    fn whoever_sleeps_wants_nothing() {
        let mut thread = thread();
        thread.run(&WORK, 100.0, 0.0, 420.0, 1.0);
        assert_eq!((thread.awake_ns, thread.rounds), (450.0, 4.0));
        assert_eq!(thread.wants_ns(420.0, 440.0), 0.0);
        assert_eq!(thread.wants_ns(420.0, 520.0), 70.0);
    }
}
