//! The loop: observe, let each controller decide, apply, publish; and between two intervals, carry
//! out the requests of operators (docs/adr/0008-daemon.md).

use super::{
    adoption::Adoption,
    api::Api,
    attachment::Needs,
    cells::Cells,
    config::Config,
    controllers::Controllers,
    fallback::{self, bound_names, for_each_domain},
    inbox::Inbox,
    interrupted, notify,
    oom::Kills,
    persisted::PersistedState,
    reported::Reported,
    requests,
    scheduler::{Affinities, SchedulerControl},
    settle::{Settled, report, settle},
    snapshot::{Asked, Event, Seen, SeenDomain, Totals},
    text::{Allowed, Text},
};
use crate::{output, report::units::count};
use nearside_linux::{
    Batches, Host, Refusal, Waiting,
    counters::{Counters, counters},
    folder::Folder,
    store::Record,
    wants_fallback,
    watch::{Turn, Watcher},
};
use nearside_policy::{
    Action, ControlObservation, ControlPlan, Outcome, PageMove, PartState, Transaction, plan_all,
    take_back_all,
};
use nearside_scheduler as scheduler;
use nearside_topology::{NodeId, Topology};
use std::{
    collections::BTreeMap,
    mem,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

/// The longest wait for the lock. Then the loop reports the holder and tries again in the next
/// interval, at the end of the queue. Dozens of starts may be ahead of it.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(5);

/// The longest wait for the lock when the daemon ends: there is no next interval.
const MAX_LOCK_WAIT_AT_END: Duration = Duration::from_secs(30);

/// Events that are handled although the next interval is due. It bounds the delay that a client
/// with many requests can cause.
const MAX_LATE_EVENTS: usize = 16;

/// Failed samples in a row after which the loop counts as unhealthy.
const MAX_FAILED_SAMPLES: u64 = 3;

/// How the loop continues after an event.
enum Next {
    Continue,
    Reload,
    Stop,
}

/// The loop with its state.
#[derive(Debug)]
pub(crate) struct ControlLoop {
    host: Host,
    watcher: Watcher,
    config: Config,
    controllers: Controllers,
    state: Folder,
    persisted: PersistedState,
    scheduler: SchedulerControl,
    cells: Cells,
    kills: Kills,
    adoption: Adoption,
    text: Text,
    api: Arc<Api>,
    totals: Totals,
    /// The pages that move until the next interval.
    batches: Batches,
    counted: BTreeMap<NodeId, Option<Counters>>,
    began: Instant,
    /// systemd's watchdog time, if it has one.
    watchdog: Option<Duration>,
    reported: Reported,
    /// Failed samples in a row, and the reason of the last.
    failed: (u64, String),
}

impl ControlLoop {
    /// The loop before its first interval. `state` has the history of an earlier daemon.
    pub(crate) fn new(
        mut host: Host,
        watcher: Watcher,
        config: Config,
        state: Folder,
        scheduler: SchedulerControl,
        api: Arc<Api>,
    ) -> Self {
        let (mut persisted, unreadable) = PersistedState::read(&state, host.boot_id());
        let states = mem::take(&mut persisted.states);
        let (controllers, dropped) = Controllers::new(&config.tuning(), &states);
        output::note(unreadable.into_iter().chain(dropped));
        host.ask_monitors_beside();
        host.set_waiting(Waiting {
            at_most: Some(MAX_LOCK_WAIT),
            notify: |_| {},
            meanwhile: notify::busy,
        });
        Self {
            host,
            watcher,
            controllers,
            config,
            state,
            persisted,
            scheduler,
            cells: Cells::default(),
            kills: Kills::default(),
            adoption: Adoption::default(),
            text: Text::default(),
            api,
            totals: Totals::default(),
            batches: Batches::default(),
            counted: BTreeMap::new(),
            began: Instant::now(),
            watchdog: notify::watchdog(),
            reported: Reported::default(),
            failed: (0, String::new()),
        }
    }

    /// Cycles until it is stopped. `reload` reads the configuration again.
    pub(crate) fn run(&mut self, inbox: &Inbox, mut reload: impl FnMut(&mut Self)) {
        // An earlier daemon may have been killed within a transaction. Taking the lock rolls that
        // back, before anything is decided.
        if let Err(error) = self.host.begin() {
            self.reported.report([error.to_string()]);
        }
        let mut is_first = true;
        while !inbox.is_to_end() {
            let due = Instant::now() + self.config.interval;
            self.interval(inbox, due);
            if mem::take(&mut is_first) {
                notify::ready(&self.status());
            } else {
                notify::alive(&self.status());
            }
            let mut late = 0;
            while late < MAX_LATE_EVENTS {
                late += usize::from(Instant::now() >= due);
                match self.wait(inbox, due) {
                    Some(Next::Continue) => notify::busy(),
                    Some(Next::Reload) => {
                        notify::reloading();
                        reload(self);
                        notify::ready(&self.status());
                    }
                    Some(Next::Stop) => return self.end(),
                    None => break,
                }
            }
        }
        self.end();
    }

    /// Replaces the configuration.
    pub(crate) fn reconfigure(&mut self, config: Config) {
        self.controllers.tune(&config.tuning());
        self.watcher.set_patterns(config.found.clone());
        self.config = config;
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Moves pages until an event comes or the next interval is due, and then waits for either.
    /// None if the interval is due. So an event waits for one round without its page moves at
    /// most.
    fn wait(&mut self, inbox: &Inbox, due: Instant) -> Option<Next> {
        if self.batches.is_busy() {
            self.host.move_batches(&mut self.batches, due, &|| {
                notify::busy();
                if inbox.is_waiting() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        loop {
            let left = due.saturating_duration_since(Instant::now());
            // An interval may be longer than systemd's watchdog time.
            let pause = self.watchdog.map_or(left, |watchdog| left.min(watchdog / 2));
            match inbox.next(pause) {
                Some(Event::Change(asked)) => {
                    self.change(asked);
                    return Some(Next::Continue);
                }
                Some(Event::Reload) => return Some(Next::Reload),
                Some(Event::Stop) => return Some(Next::Stop),
                None if pause < left => notify::busy(),
                None => return None,
            }
        }
    }

    /// One round without its page moves, which last until the next is `due`.
    fn interval(&mut self, inbox: &Inbox, due: Instant) {
        self.end_batches();
        let interval = self.persisted.interval.saturating_add(1);
        let said =
            self.cells.look(&mut self.host, &mut self.watcher, interval, &self.persisted.moved);
        self.reported.report(said);
        let is_attached = self.scheduler.attachment().is_attached();
        let counted = is_attached.then(|| self.scheduler.cpu_ns());
        let turn = Turn {
            interval,
            now_ns: self.now_ns(),
            soft_affinity: is_attached,
            scheduler: counted.as_ref(),
            moved: &self.persisted.moved,
        };
        let seen = self.watcher.observe(self.controllers.homes.state(), turn);
        self.persisted.interval = interval;
        self.totals.intervals += 1;
        match seen {
            Err(error) => self.sample_failed(&error.to_string(), inbox, due),
            Ok(seen) => {
                self.persisted.moved.clear();
                self.failed = (0, String::new());
                self.control(seen, inbox, due);
            }
        }
        let notices = [self.watcher.take_notices(), self.host.take_notices()].concat();
        self.reported.report(notices);
        self.reported.end_interval();
    }

    fn sample_failed(&mut self, why: &str, inbox: &Inbox, due: Instant) {
        self.failed = (self.failed.0 + 1, why.to_owned());
        self.reported.report([why.to_owned()]);
        if self.failed.0 >= MAX_FAILED_SAMPLES {
            self.api.published.fails(self.failed.0, &self.failed.1);
        }
        // The kernel may have ejected the scheduler. All other facts are as in the last sample.
        if let Some((_, before)) = self.api.published.latest() {
            self.tend_scheduler(&before.topology, before.stat.domains.len(), inbox, due);
        }
    }

    /// Lets each controller decide, applies its transactions and begins its page moves.
    fn control(&mut self, seen: ControlObservation, inbox: &Inbox, due: Instant) {
        let plans = plan_all(&mut self.controllers.list(), &seen);
        // Before acting: the next daemon must know the cooldown of a decision that this one was
        // killed in, or it could take the decision again.
        if !plans.all.is_empty() {
            self.persist();
        }
        let Settled { moves, dropped } = self.act(&plans.all, &seen.machine.topology, inbox, due);
        if !dropped.is_empty() {
            take_back_all(&mut self.controllers.list(), &seen, &plans, &dropped);
            self.persist();
        }
        self.tend_scheduler(&seen.machine.topology, seen.machine.parts.len(), inbox, due);
        self.adoption.adopt(&mut self.host, &self.watcher, &mut self.reported);
        self.kills.tell(&self.watcher, &seen.machine.parts, &seen.machine.topology);
        self.reported.report(self.balancing(&seen));
        let forgotten = [self.watcher.no_longer_named(), self.watcher.outdated()].concat();
        let is_over = || inbox.is_to_end() || Instant::now() >= due;
        let forget: fallback::DomainChange = |session, name| session.forget(name);
        for_each_domain(&mut self.host, &mut self.reported, &forgotten, forget, is_over);
        let moved =
            interrupted::over(self.watcher.records(), &seen, self.controllers.homes.state());
        let end: fallback::DomainChange = |session, name| session.forget_interrupted_moves(name);
        for_each_domain(&mut self.host, &mut self.reported, &moved, end, is_over);
        // Last, because a change of a domain's record ends its page moves.
        self.begin_batches(&moves);
        self.tend_text(&seen);
        self.publish(seen, plans.all);
    }

    fn tend_text(&mut self, seen: &ControlObservation) {
        let allowed = Allowed {
            moves: self.config.move_text,
            copies: self.config.replicate_text,
            rate_bytes_per_s: self.config.rate_bytes_per_s,
        };
        let now_ns = self.now_ns();
        self.text.tend(&self.host, &self.watcher, seen, now_ns, allowed, &notify::busy);
    }

    /// The monotonic time since the loop began.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn persist(&mut self) {
        let saved = self.controllers.save();
        let saved = saved.map_err(|error| nearside_linux::Error::Refused(error.to_string()));
        let written = saved.and_then(|states| {
            self.persisted.states = states;
            let written = self.persisted.write(&self.state);
            self.persisted.states.clear();
            written
        });
        self.reported.report(written.err().map(|error| error.to_string()));
    }

    /// Applies the transactions of a plan, until the next interval is `due`.
    fn act(
        &mut self,
        plan: &ControlPlan,
        topology: &Topology,
        inbox: &Inbox,
        due: Instant,
    ) -> Settled {
        let mut outcomes: Vec<Result<(), Refusal>> = Vec::new();
        if !plan.transactions.is_empty() {
            match self.host.begin() {
                Err(error) => {
                    self.reported.report([fallback::not_locked(&error)]);
                }
                Ok(mut session) => {
                    // Fresh figures of memory. If this fails, the first transaction tells.
                    let _ = session.observe(Some(topology));
                    for transaction in &plan.transactions {
                        notify::busy();
                        for part in transaction.parts() {
                            if let Some(pattern) = self.watcher.found_by(part.domain()) {
                                session.found(part.domain(), pattern);
                            }
                        }
                        outcomes.push(session.apply(transaction));
                        if inbox.is_to_end() || Instant::now() >= due {
                            break;
                        }
                    }
                }
            }
        }
        for (transaction, outcome) in plan.transactions.iter().zip(&outcomes) {
            self.count(transaction, outcome);
        }
        settle(plan, &outcomes)
    }

    /// Counts and reports the outcome of a transaction.
    fn count(&mut self, transaction: &Transaction, outcome: &Result<(), Refusal>) {
        for part in transaction.parts() {
            let domain = part.domain();
            match outcome {
                Ok(()) => {
                    self.totals.count(domain, &Outcome::Applied { moved_bytes: 0 });
                    self.reported.changed(domain);
                }
                Err(refusal) => {
                    let why = refusal.to_string();
                    self.reported.report_of(domain, &why);
                    self.totals.count(domain, &Outcome::Refused { why });
                }
            }
        }
        if outcome.is_err() {
            return;
        }
        for step in &transaction.steps {
            if let Action::SetHome { part, .. } = &step.action {
                self.totals.count_home(part.domain());
                output::note([format!("{part}: {}: {}", step.action, step.reason)]);
            }
        }
    }

    fn begin_batches(&mut self, moves: &[PageMove]) {
        let (begun, refused) = self.host.begin_batches(moves);
        self.batches = begun;
        for (pages, outcome) in refused {
            self.count_batch(&pages, &outcome);
        }
    }

    fn count_batch(&mut self, pages: &PageMove, outcome: &Outcome) {
        let domain = pages.part.domain();
        self.totals.count(domain, outcome);
        if let Outcome::Refused { why } = outcome {
            self.reported.report_of(domain, &format!("cannot {pages}: {why}"));
        }
        self.persisted.moved.extend(report(pages, outcome));
    }

    /// Takes the outcome of the page moves since the interval before.
    fn end_batches(&mut self) {
        let batches = mem::take(&mut self.batches);
        for (pages, outcome) in self.host.end_batches(batches) {
            self.count_batch(&pages, &outcome);
        }
    }

    /// Attaches or detaches the scheduler when it is time, and binds domains to their homes while
    /// it is not attached.
    fn tend_scheduler(&mut self, topology: &Topology, domains: usize, inbox: &Inbox, due: Instant) {
        let homes = self.affinities();
        let needs = Needs::of(topology, domains);
        let (mode, interval) = (self.config.scheduler, self.persisted.interval);
        // Domains are bound before the scheduler is detached, however long that takes, so that none
        // leaves its home in between.
        if self.scheduler.is_to_leave(mode, needs, interval)
            && !self.bind_to_homes(topology, || false)
        {
            return;
        }
        let said = self.scheduler.tend(mode, needs, &homes, interval);
        self.reported.report(said);
        let is_over = || inbox.is_to_end() || Instant::now() >= due;
        if !self.scheduler.attachment().is_attached() {
            self.cells.forget_passed();
            self.bind_to_homes(topology, is_over);
            return;
        }
        let said = self.cells.pass(&self.host, &self.watcher, &mut self.scheduler);
        self.reported.report(said);
        let bound = bound_names(self.watcher.records());
        let unbind: fallback::DomainChange = |session, name| session.unbind(name);
        for_each_domain(&mut self.host, &mut self.reported, &bound, unbind, is_over);
    }

    fn bind_to_homes(&mut self, topology: &Topology, is_over: impl Fn() -> bool) -> bool {
        let records = self.watcher.records();
        let wanting: Vec<_> =
            records.filter(|record| wants_fallback(record, topology)).cloned().collect();
        fallback::bind(&mut self.host, &mut self.reported, &wanting, is_over)
    }

    /// The effect of the kernel's NUMA balancing, if it is on.
    fn balancing(&self, seen: &ControlObservation) -> Option<String> {
        let several_nodes = seen.machine.topology.nodes.len() > 1;
        let mode = seen.numa_balancing.filter(|&mode| mode != 0 && several_nodes)?;
        let effect = match self.scheduler.attachment().is_attached() {
            true => "has no effect while the scheduler is attached",
            false => {
                "moves the memory of domains that Nearside did not start, so Nearside leaves that \
                 memory alone"
            }
        };
        Some(format!(
            "NUMA balancing (kernel.numa_balancing = {mode}) {effect}; Nearside does not switch \
             it off"
        ))
    }

    /// The homes of domains, for the scheduler.
    fn affinities(&self) -> Affinities {
        let affinity = |record: &Record| {
            let home = record.part().home.nodes.first()?;
            Some((record.inode, scheduler::Affinity { home, nodes: record.home_nodes() }))
        };
        self.watcher.records().filter_map(affinity).collect()
    }

    fn change(&mut self, asked: Asked) {
        let found_by = self.watcher.found_by(asked.change.domain());
        let answer = requests::fulfil(&mut self.host, &asked.change, found_by);
        // The client may have gone; the change stands all the same.
        let _ = asked.answer.send(answer);
    }

    fn publish(&mut self, seen: ControlObservation, plan: ControlPlan) {
        let ControlObservation { machine, length_ns, numa_balancing, .. } = seen;
        let root = self.host.root();
        let counted: BTreeMap<NodeId, Option<Counters>> =
            machine.topology.nodes.iter().map(|node| (node.id, counters(root, node.id))).collect();
        let before = mem::replace(&mut self.counted, counted.clone());
        let counters = counted
            .into_iter()
            .map(|(node, now)| (node, [before.get(&node).copied().flatten(), now]))
            .collect();
        let records: BTreeMap<&str, _> =
            self.watcher.records().map(|record| (record.name.as_str(), record)).collect();
        let mut cells = self.watcher.cells();
        // Parts are in the order of their domains.
        let domain = |parts: &[PartState]| {
            let name = parts.first().map(|part| part.id.domain()).unwrap_or_default();
            SeenDomain {
                cgroup: self.watcher.cgroup_path(name).unwrap_or_default().to_owned(),
                record: records.get(name).map(|&record| record.clone()),
                usage: self.watcher.usage(name).unwrap_or_default(),
                reserved_bytes: parts.iter().map(|part| part.reserved_bytes).sum(),
                cells: cells.remove(name).unwrap_or_default(),
                counters_at_first: self.cells.counters_at_first(name),
            }
        };
        let by_domain = machine.parts.chunk_by(|a, b| a.id.domain() == b.id.domain());
        let domains = by_domain.map(domain).collect();
        self.totals.keep_only(machine.parts.iter().map(|state| state.id.domain()));
        let lives = |name: &str| {
            machine.parts.binary_search_by(|state| state.id.domain().cmp(name)).is_ok()
        };
        self.reported.keep_only(lives);
        self.host.keep_walks(lives);
        self.api.published.publish(Seen {
            topology: machine.topology,
            domains,
            reservations: machine.reservations,
            counters,
            length: Duration::from_nanos(length_ns),
            interval: self.config.interval,
            plan,
            history: Arc::clone(self.controllers.homes.state()),
            totals: self.totals.clone(),
            text: self.text.report(),
            scheduler_attached: self.scheduler.attachment().is_attached(),
            numa_balancing,
        });
    }

    /// A line for `systemctl status`.
    fn status(&self) -> String {
        let domains = count(self.watcher.records().count(), "domain");
        let is_attached = self.scheduler.attachment().is_attached();
        let scheduler = if is_attached { "attached" } else { "not attached" };
        let failed = match &self.failed {
            (samples, why) if *samples >= MAX_FAILED_SAMPLES => {
                format!("; the last {samples} samples of the host failed: {why}")
            }
            _ => String::new(),
        };
        let interval = self.persisted.interval;
        format!("{domains}; scheduler {scheduler}; interval {interval}{failed}")
    }

    /// Restores the host to its state without a daemon.
    fn end(&mut self) {
        notify::stopping();
        self.host.set_waiting(Waiting {
            at_most: Some(MAX_LOCK_WAIT_AT_END),
            notify: |_| {},
            meanwhile: notify::busy,
        });
        self.end_batches();
        // From the records as they are now: the last interval may have changed them.
        let (found, started): (Vec<_>, Vec<_>) =
            self.host.records().0.into_iter().partition(|record| record.found_by.is_some());
        // Lifts bindings of found cgroups, because no process would lift them later.
        let bound = bound_names(found.iter());
        let unbind: fallback::DomainChange = |session, name| session.unbind(name);
        for_each_domain(&mut self.host, &mut self.reported, &bound, unbind, || false);
        // Domains are bound while the scheduler is still attached, so that none leaves its home in
        // between.
        if self.scheduler.attachment().is_attached() {
            match self.host.topology() {
                Ok(topology) => {
                    let wanting: Vec<_> = started
                        .into_iter()
                        .filter(|record| wants_fallback(record, &topology))
                        .collect();
                    fallback::bind(&mut self.host, &mut self.reported, &wanting, || false);
                }
                Err(error) => self.reported.report([error.to_string()]),
            }
            let said = self.scheduler.detach();
            self.reported.report(said);
        }
        self.persist();
        let notices = self.host.take_notices();
        self.reported.report(notices);
    }
}
