//! A thread and its work.

use crate::scenario::Work;

/// A thread of a domain, with memory of its own.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub(crate) domain: usize,
    /// Its memory by node.
    pub(crate) bytes: Vec<u64>,
    /// The node of its last CPU.
    pub(crate) node: usize,
    /// The time of its start, or of the end of its last pause.
    pub(crate) awake_ns: f64,
    /// Whether it slept since its CPU was chosen.
    pub(crate) woke: bool,
    /// Total rounds, and completed ones.
    pub(crate) all_rounds: f64,
    pub(crate) rounds: f64,
    pub(crate) done_ns: Option<f64>,
}

/// The activity of a thread in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Ran {
    pub(crate) cpu_ns: f64,
    pub(crate) rounds: f64,
    /// Whether it ended in a pause or finished.
    pub(crate) is_over: bool,
}

impl Thread {
    /// The time until `until_ns` during which it can run.
    pub(crate) fn wants_ns(&self, from_ns: f64, until_ns: f64) -> f64 {
        match self.done_ns {
            Some(_) => 0.0,
            None => (until_ns - self.awake_ns.max(from_ns)).max(0.0),
        }
    }

    /// Runs on a `share` of a CPU until `until_ns`, with rounds of `round_ns`.
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

    /// Runs for `given_ns` more before `until_ns`, beside its share. The time of that is unknown,
    /// so the next pause begins at `until_ns`; no thread is faster than a whole CPU.
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

    /// Runs until the next pause or the end, at most for `given_ns`.
    fn run_for(&mut self, work: &Work, round_ns: f64, given_ns: f64) -> Ran {
        let stop = work.next_stop(self.rounds, self.all_rounds);
        let needed_ns = (stop - self.rounds) * round_ns;
        let is_over = needed_ns <= given_ns;
        let cpu_ns = needed_ns.min(given_ns);
        let rounds = if is_over { stop - self.rounds } else { given_ns / round_ns };
        // Rounded up to `stop`, the sum would skip the pause there.
        self.rounds = if is_over { stop } else { (self.rounds + rounds).min(stop.next_down()) };
        Ran { cpu_ns, rounds, is_over }
    }

    /// Finishes at `now_ns`, or pauses; returns the time of waking.
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
        // Half a CPU: 4 rounds take 800 ns, the pause 50; the next round has 75 CPU ns by 1000.
        let ran = thread.run(&WORK, 100.0, 0.0, 1000.0, 0.5);
        assert_eq!((ran.cpu_ns, ran.rounds), (475.0, 4.75));
        assert!(thread.woke && thread.done_ns.is_none());
        // 3.25 rounds, the pause, and 2 rounds.
        let ran = thread.run(&WORK, 100.0, 1000.0, 2000.0, 1.0);
        assert_eq!((ran.cpu_ns, thread.done_ns), (525.0, Some(1575.0)));
        assert_eq!(thread.run(&WORK, 100.0, 2000.0, 3000.0, 1.0), Ran::default());
        assert_eq!(thread.wants_ns(2000.0, 3000.0), 0.0);
    }

    /// 250 rounds of 450 us with 83 pauses of 1.375 ms from 11 ms on: 11 + 112.5 + 114.125 ms.
    /// Ticks end within rounding errors of the end of a third round.
    #[test]
    fn rounding_skips_no_pause() {
        let work = Work { rounds: 250, pause_ns: 1_375_000, pause_rounds: 3, ..WORK };
        let mut thread = Thread { awake_ns: 11e6, all_rounds: 250.0, ..thread() };
        for tick in 11..300 {
            let from_ns = f64::from(tick) * 1e6;
            thread.run(&work, 450_000.0, from_ns, from_ns + 1e6, 1.0);
        }
        assert!(thread.done_ns.is_some_and(|done_ns| (done_ns - 237_625_000.0).abs() < 1.0));
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
    fn sleeping_thread_cannot_run() {
        let mut thread = thread();
        thread.run(&WORK, 100.0, 0.0, 420.0, 1.0);
        assert_eq!((thread.awake_ns, thread.rounds), (450.0, 4.0));
        assert_eq!(thread.wants_ns(420.0, 440.0), 0.0);
        assert_eq!(thread.wants_ns(420.0, 520.0), 70.0);
    }
}
