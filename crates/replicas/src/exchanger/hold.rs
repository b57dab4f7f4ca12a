//! Processes that are held: stopped, and exchanged once a writer has gone on.
//!
//! A writer has to wait until nobody reads a copy any more. A process that is stopped reads none,
//! and the stop is a small part of its exchange.

use super::messages::Exchanged;
use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

/// The most processes that are held, the last ones of a task. The others are exchanged at once. All
/// that are held stand still until their turn: 16 for 20 ms where two CPUs take 2.5 ms for each.
pub(super) const MAX_HELD: usize = 16;

/// The longest wait of a process. One that has been exchanged before the writer goes on is right,
/// too, so a process that does not stop holds others up for no longer than this.
const MAX_WAIT: Duration = Duration::from_millis(20);

/// The place where stopped processes wait.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    opened: Condvar,
    max_wait: Duration,
}

impl Default for Gate {
    fn default() -> Self {
        Self::that_waits_for(MAX_WAIT)
    }
}

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    held: usize,
}

impl Gate {
    fn that_waits_for(max_wait: Duration) -> Self {
        Self { state: Mutex::default(), opened: Condvar::new(), max_wait }
    }

    /// Lets a process wait, unless the gate is open or too many wait. Says whether it does.
    pub(super) fn admits(&self) -> bool {
        let mut state = self.state();
        let admits = !state.is_open && state.held < MAX_HELD;
        state.held += usize::from(admits);
        admits
    }

    /// Waits until it is open, though not for too long.
    pub(super) fn await_open(&self) {
        let closed = |state: &mut State| !state.is_open;
        // Either outcome lets the process go on.
        let waited = self.opened.wait_timeout_while(self.state(), self.max_wait, closed);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.held = state.held.saturating_sub(1);
    }

    fn open(&self) {
        self.state().is_open = true;
        self.opened.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task's processes that are held.
#[derive(Debug)]
struct HeldOfTask {
    processes: Vec<u32>,
    reports: Receiver,
}

/// The end where reports arrive.
type Receiver = mpsc::Receiver<(u32, Exchanged)>;

/// The processes that are held, and the reports of the threads that hold them.
#[derive(Debug, Default)]
pub(super) struct Held {
    gate: Arc<Gate>,
    tasks: Vec<HeldOfTask>,
}

impl Held {
    /// One whose processes wait as long as they have to.
    #[cfg(test)]
    pub(super) fn without_haste() -> Self {
        let gate = Gate::that_waits_for(Duration::from_secs(600));
        Self { gate: Arc::new(gate), tasks: Vec::new() }
    }

    /// Where those of the next task wait.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// The processes of a task with their first outcomes. Those that are held have another one,
    /// which `reports` will tell.
    pub(super) fn add(&mut self, processes: &[u32], reports: Receiver) -> Vec<(u32, Exchanged)> {
        let outcomes = outcomes_of(processes, &reports, |_| true);
        let held = outcomes.iter().filter(|(_, outcome)| *outcome == Exchanged::Held);
        let processes: Vec<_> = held.map(|(process, _)| *process).collect();
        if !processes.is_empty() {
            self.tasks.push(HeldOfTask { processes, reports });
        }
        outcomes
    }

    /// Lets all of them be exchanged. Returns each with its outcome.
    pub(super) fn finish(&mut self) -> Vec<(u32, Exchanged)> {
        let Self { gate, tasks } = mem::take(self);
        gate.open();
        let is_last = |outcome: &Exchanged| *outcome != Exchanged::Held;
        let outcomes = |held: HeldOfTask| outcomes_of(&held.processes, &held.reports, is_last);
        tasks.into_iter().flat_map(outcomes).collect()
    }
}

/// Each process with the last report of it, by the time when each has one that is awaited. One that
/// did not wait until the gate was open may have two by then. A thread that fails has none.
fn outcomes_of(
    processes: &[u32],
    reports: &Receiver,
    is_awaited: impl Fn(&Exchanged) -> bool,
) -> Vec<(u32, Exchanged)> {
    let mut told = BTreeMap::new();
    while told.len() < processes.len() {
        let Ok((process, outcome)) = reports.recv() else { break };
        if is_awaited(&outcome) {
            told.insert(process, outcome);
        }
    }
    let outcome = |process: &u32| {
        (*process, told.remove(process).unwrap_or_else(|| Exchanged::failed(*process)))
    };
    processes.iter().map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    #[test]
    fn no_more_wait_than_may_and_none_once_the_gate_is_open() {
        let gate = Gate::default();
        for _ in 0..MAX_HELD {
            assert!(gate.admits());
        }
        assert!(!gate.admits());
        let gate = Gate::default();
        gate.open();
        assert!(!gate.admits());
    }

    #[test]
    fn one_that_has_waited_makes_room_for_another() {
        let gate = Gate::that_waits_for(Duration::ZERO);
        for _ in 0..2 * MAX_HELD {
            assert!(gate.admits());
            gate.await_open();
        }
    }

    #[test]
    fn those_that_wait_go_on_when_the_others_do_not_stop_in_time() {
        let gate = Gate::default();
        gate.await_open();
        assert!(gate.admits(), "it was not opened");
    }

    #[test]
    fn each_process_has_an_outcome_and_one_that_was_held_another() {
        let done = Exchanged::Unconcerned;
        let mut held = Held::without_haste();
        let gate = held.gate();
        let (tell, reports) = mpsc::channel();
        let holds = {
            let (tell, gate) = (tell.clone(), held.gate());
            thread::spawn(move || {
                assert!(gate.admits());
                tell.send((7, Exchanged::Held)).unwrap();
                gate.await_open();
                tell.send((7, Exchanged::Gone)).unwrap();
            })
        };
        let fails = thread::spawn(move || {
            assert!(gate.admits());
            tell.send((8, Exchanged::Held)).unwrap();
            tell.send((9, Exchanged::Unconcerned)).unwrap();
            panic!("as a test");
        });
        let first = held.add(&[7, 8, 9], reports);
        assert_eq!(first, [(7, Exchanged::Held), (8, Exchanged::Held), (9, done)]);
        assert_eq!(held.finish(), [(7, Exchanged::Gone), (8, Exchanged::failed(8))]);
        assert_eq!(held.finish(), []);
        assert!(held.gate().admits(), "the next writer's processes wait, too");
        holds.join().unwrap();
        fails.join().unwrap_err();
    }

    #[test]
    fn a_process_that_has_gone_on_before_the_others_stopped_is_not_held() {
        let (tell, reports) = mpsc::channel();
        for (process, outcome) in
            [(7, Exchanged::Held), (7, Exchanged::Gone), (8, Exchanged::Unconcerned)]
        {
            tell.send((process, outcome)).unwrap();
        }
        let mut held = Held::default();
        let outcomes = held.add(&[7, 8], reports);
        assert_eq!(outcomes, [(7, Exchanged::Gone), (8, Exchanged::Unconcerned)]);
        assert_eq!(held.finish(), []);
    }

    #[test]
    fn a_process_that_nobody_tells_of_has_failed() {
        let (tell, reports) = mpsc::channel();
        tell.send((7, Exchanged::Gone)).unwrap();
        drop(tell);
        let outcomes = Held::default().add(&[7, 8], reports);
        assert_eq!(outcomes, [(7, Exchanged::Gone), (8, Exchanged::failed(8))]);
    }
}
