//! The loop: observe, let each controller decide, apply, do the daemon's duties, publish; and
//! between two intervals, carry out the requests of operators (docs/adr/0008-daemon.md).

mod events;

use super::{
    api::Api,
    attachment::Needs,
    clock::Clock,
    config::Config,
    controllers::Controllers,
    duties::Duties,
    duty::Interval,
    failures::Failures,
    inbox::Inbox,
    notify,
    page_moves::PageMoves,
    persisted::PersistedState,
    publisher::{Decided, Publisher},
    scheduler::SchedulerControl,
    scheduling::{Inputs, Scheduling},
    settle::Settled,
    site::Site,
};
use crate::{output, report::units::count};
use nearside_linux::{
    Host, Waiting,
    folder::Folder,
    watch::{Turn, Watcher},
};
use nearside_policy::{ControlObservation, plan_all, take_back_all};
use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

/// The longest wait for the lock. Then the loop reports the holder and tries again in the next
/// interval, at the end of the queue. Dozens of starts may be ahead of it.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(5);

/// The longest wait for the lock when the daemon ends: there is no next interval.
const MAX_LOCK_WAIT_AT_END: Duration = Duration::from_secs(30);

/// The loop with its state.
#[derive(Debug)]
pub(crate) struct ControlLoop {
    site: Site,
    config: Config,
    controllers: Controllers,
    duties: Duties,
    publisher: Publisher,
    state: Folder,
    /// The number of the last interval.
    last_interval: u64,
    clock: Clock,
    /// systemd's watchdog time, if it has one.
    watchdog: Option<Duration>,
    failures: Failures,
}

impl ControlLoop {
    /// The loop before its first interval. `state` has the states of an earlier daemon.
    pub(crate) fn new(
        mut host: Host,
        watcher: Watcher,
        config: Config,
        state: Folder,
        scheduler: SchedulerControl,
        api: Arc<Api>,
    ) -> Self {
        let (persisted, unreadable) = PersistedState::read(&state, host.boot_id());
        let (controllers, dropped) = Controllers::new(&config.tuning(), &persisted.states);
        output::note(unreadable.into_iter().chain(dropped));
        host.ask_monitors_beside();
        host.set_waiting(waiting(MAX_LOCK_WAIT));
        let page_moves = PageMoves::after(persisted.moved);
        Self {
            site: Site::new(host, watcher),
            controllers,
            config,
            duties: Duties::new(Scheduling::new(scheduler), page_moves),
            publisher: Publisher::new(api),
            state,
            last_interval: persisted.interval,
            clock: Clock::default(),
            watchdog: notify::watchdog(),
            failures: Failures::default(),
        }
    }

    /// Cycles until it is stopped. `reload` reads the configuration again.
    pub(crate) fn run(&mut self, inbox: &Inbox, mut reload: impl FnMut(&mut Self)) {
        self.begin();
        let mut is_first = true;
        while !inbox.is_to_end() {
            let due = Instant::now() + self.config.interval;
            self.interval(inbox, due);
            if mem::take(&mut is_first) {
                notify::ready(&self.status());
            } else {
                notify::alive(&self.status());
            }
            if self.handle_events(inbox, due, &mut reload).is_break() {
                break;
            }
        }
        self.end();
    }

    /// An earlier daemon may have been killed within a transaction. Taking the lock rolls that
    /// back, before anything is decided.
    fn begin(&mut self) {
        if let Err(error) = self.site.host.begin() {
            self.site.reported.report([error.to_string()]);
        }
    }

    /// Replaces the configuration.
    pub(crate) fn reconfigure(&mut self, config: Config) {
        self.controllers.tune(&config.tuning());
        self.site.watcher.set_patterns(config.found.clone());
        self.config = config;
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// One round without its page moves, which last until the next is `due`.
    fn interval(&mut self, inbox: &Inbox, due: Instant) {
        self.duties.page_moves.end(&mut self.site);
        let is_over = || inbox.is_to_end() || Instant::now() >= due;
        match self.observe() {
            Err(error) => self.sample_failed(error.to_string(), &is_over),
            Ok(seen) => self.control(seen, &is_over),
        }
        self.site.end_interval();
    }

    fn observe(&mut self) -> Result<ControlObservation, nearside_linux::Error> {
        let Self { site, duties, .. } = self;
        let interval = self.last_interval.saturating_add(1);
        let (scheduling, moved) = (&mut duties.scheduling, &duties.page_moves.reports);
        let said = scheduling.cells.look(&mut site.host, &mut site.watcher, interval, moved);
        site.reported.report(said);
        let soft_affinity = scheduling.is_attached();
        let counted = soft_affinity.then(|| scheduling.scheduler.cpu_ns());
        let now_ns = self.clock.now_ns();
        let scheduler = counted.as_ref();
        let turn = Turn { interval, now_ns, soft_affinity, scheduler, moved };
        let seen = site.watcher.observe(self.controllers.homes.state(), turn);
        self.last_interval = interval;
        site.totals.intervals += 1;
        seen
    }

    fn sample_failed(&mut self, why: String, is_over: &dyn Fn() -> bool) {
        self.site.reported.report([why.clone()]);
        self.failures.count(why);
        if let Some((samples, why)) = self.failures.unhealthy() {
            self.publisher.api.published.fails(samples, why);
        }
        // The kernel may have ejected the scheduler. All other facts are as in the last sample.
        if let Some((_, before)) = self.publisher.api.published.latest() {
            let needs = Needs::of(&before.topology, before.stat.domains.len());
            let mode = self.config.scheduler;
            let inputs = Inputs { mode, needs, number: self.last_interval, is_over };
            self.duties.scheduling.keep_homes(&mut self.site, &before.topology, &inputs);
        }
    }

    /// Lets each controller decide, applies its transactions, does the duties, and publishes all of
    /// that.
    fn control(&mut self, seen: ControlObservation, is_over: &dyn Fn() -> bool) {
        self.duties.page_moves.reports.clear();
        self.failures = Failures::default();
        let plans = plan_all(&mut self.controllers.list(), &seen);
        // Before acting: the next daemon must know the cooldown of a decision that this one was
        // killed in, or it could take the decision again.
        if !plans.all.is_empty() {
            self.persist();
        }
        let Settled { moves, dropped } =
            self.site.apply(&plans.all, &seen.machine.topology, is_over);
        if !dropped.is_empty() {
            take_back_all(&mut self.controllers.list(), &seen, &plans, &dropped);
            self.persist();
        }
        let (history, config) = (Arc::clone(self.controllers.homes.state()), &self.config);
        let interval = Interval {
            seen: &seen,
            history: &history,
            moves: &moves,
            config,
            clock: &self.clock,
            is_over,
        };
        for duty in self.duties.list() {
            duty.tend(&mut self.site, &interval);
        }
        self.site.keep_only(&seen.machine.parts);
        let decided = Decided { plan: plans.all, history, interval: config.interval };
        self.publisher.publish(seen, decided, &self.site, &self.duties);
    }

    fn persist(&mut self) {
        let states = self.controllers.save();
        let states = states.map_err(|error| nearside_linux::Error::Refused(error.to_string()));
        let written = states.and_then(|states| {
            let (boot_id, moved) = (self.site.host.boot_id(), &self.duties.page_moves.reports);
            PersistedState::new(boot_id, self.last_interval, states, moved.clone())
                .write(&self.state)
        });
        self.site.reported.report(written.err().map(|error| error.to_string()));
    }

    /// A line for `systemctl status`.
    fn status(&self) -> String {
        let domains = count(self.site.watcher.records().count(), "domain");
        let is_attached = self.duties.scheduling.is_attached();
        let scheduler = if is_attached { "attached" } else { "not attached" };
        let failed = self.failures.unhealthy().map_or_else(String::new, |(samples, why)| {
            format!("; the last {samples} samples of the host failed: {why}")
        });
        let interval = self.last_interval;
        format!("{domains}; scheduler {scheduler}; interval {interval}{failed}")
    }

    /// Restores the host to its state without a daemon.
    fn end(&mut self) {
        notify::stopping();
        self.site.host.set_waiting(waiting(MAX_LOCK_WAIT_AT_END));
        self.duties.page_moves.end(&mut self.site);
        self.duties.scheduling.end(&mut self.site);
        self.persist();
        let notices = self.site.host.take_notices();
        self.site.reported.report(notices);
    }
}

fn waiting(at_most: Duration) -> Waiting {
    Waiting { at_most: Some(at_most), notify: |_| {}, meanwhile: notify::busy }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
