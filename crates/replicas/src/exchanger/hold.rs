//! Processes that are held: stopped, and exchanged once a writer has gone on.
//!
//! A writer has to wait until nobody reads a copy any more. A process that is stopped reads none,
//! and the stop is a third of its exchange.

use super::messages::Exchanged;
use std::{
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread::JoinHandle,
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
    fn admits(&self) -> bool {
        let mut state = self.state();
        let admits = !state.is_open && state.held < MAX_HELD;
        state.held += usize::from(admits);
        admits
    }

    /// Waits until it is open, though not for too long.
    fn await_open(&self) {
        let closed = |state: &mut State| !state.is_open;
        // Either outcome lets the process go on.
        _ = self.opened.wait_timeout_while(self.state(), self.max_wait, closed);
    }

    fn open(&self) {
        self.state().is_open = true;
        self.opened.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a process at the gate, if it may wait.
#[derive(Debug, Default)]
pub(super) struct Hold {
    place: Option<(Arc<Gate>, Sender<()>)>,
    has_waited: AtomicBool,
}

impl Hold {
    /// `stopped` is told once it waits.
    pub(super) fn at(gate: Arc<Gate>, stopped: Sender<()>) -> Self {
        Self { place: Some((gate, stopped)), has_waited: AtomicBool::new(false) }
    }

    /// Whether it has a place, and has not waited yet.
    pub(super) fn may_wait(&self) -> bool {
        self.place.is_some() && !self.has_waited()
    }

    /// Waits, once.
    pub(super) fn wait(&self) {
        let Some((gate, stopped)) = &self.place else { return };
        if self.has_waited() || !gate.admits() {
            return;
        }
        self.has_waited.store(true, Ordering::Relaxed);
        // The worker listens until it has heard this.
        _ = stopped.send(());
        gate.await_open();
    }

    pub(super) fn has_waited(&self) -> bool {
        self.has_waited.load(Ordering::Relaxed)
    }
}

/// The processes that are held, each with the thread that exchanges it.
#[derive(Debug, Default)]
pub(super) struct Held {
    gate: Arc<Gate>,
    threads: Vec<(u32, JoinHandle<Exchanged>)>,
}

impl Held {
    /// One whose processes wait as long as they have to.
    #[cfg(test)]
    pub(super) fn without_haste() -> Self {
        let gate = Gate::that_waits_for(Duration::from_secs(600));
        Self { gate: Arc::new(gate), threads: Vec::new() }
    }

    /// Where those of the next task wait.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Another one.
    pub(super) fn add(&mut self, process: u32, thread: JoinHandle<Exchanged>) {
        self.threads.push((process, thread));
    }

    /// Lets all of them be exchanged. Returns each with its outcome.
    pub(super) fn finish(&mut self) -> Vec<(u32, Exchanged)> {
        let Self { gate, threads } = mem::take(self);
        gate.open();
        let outcome = |(process, thread): (u32, JoinHandle<_>)| {
            (process, thread.join().unwrap_or_else(|_| Exchanged::failed(process)))
        };
        threads.into_iter().map(outcome).collect()
    }
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
    fn those_that_wait_go_on_when_the_others_do_not_stop_in_time() {
        let gate = Gate::default();
        gate.await_open();
        assert!(gate.admits(), "it was not opened");
    }

    #[test]
    fn each_outcome_is_told_once_and_a_thread_that_fails_has_one() {
        let mut held = Held::default();
        let gate = held.gate();
        let (send, waits) = mpsc::channel();
        held.add(
            7,
            thread::spawn(move || {
                assert!(gate.admits());
                send.send(()).unwrap();
                gate.await_open();
                Exchanged::Gone
            }),
        );
        held.add(8, thread::spawn(|| panic!("as a test")));
        waits.recv().unwrap();
        assert_eq!(held.finish(), [(7, Exchanged::Gone), (8, Exchanged::failed(8))]);
        assert_eq!(held.finish(), []);
        assert!(held.gate().admits(), "the next writer's processes wait, too");
    }
}
