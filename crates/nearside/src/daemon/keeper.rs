//! The loop: look, decide, act, tell; and in between, do what somebody asked for (docs/adr/0008-daemon.md).

use super::{
    api::Api,
    attachment::Needs,
    charge::{Affinities, Charge},
    config::Config,
    inbox::Inbox,
    notify,
    remembered::Remembered,
    said::Said,
    snapshot::{Asked, Event, Seen, SeenDomain, Snapshot, Totals},
    wishes,
};
use crate::{output, report::units::count};
use nearside_linux::{
    Batches, Host,
    counters::{Counters, counters},
    folder::Folder,
    store::Record,
    wants_fallback,
    watch::{Turn, Watcher},
};
use nearside_policy::{
    Action, Batch, ControlObservation, ControlPlan, CpuReason, MoveReport, Outcome, PageMove,
    PartId, Step, Tuning, control,
};
use nearside_scheduler as scheduler;
use nearside_topology::{NodeId, Topology};
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

/// Somebody else who holds the lock is waited for so long; then the loop goes on, says who it is and tries again in the next
/// interval.
const LONGEST_LOCK: Duration = Duration::from_secs(2);

/// When an interval is due already so many events come first: whoever asks again and again puts nothing off for long.
const MOST_LATE_EVENTS: usize = 16;

/// After so many looks in a row that failed the loop counts as ill.
const MOST_FAILED_LOOKS: u64 = 3;

/// How the loop goes on after what it was told.
enum Next {
    GoOn,
    Reload,
    Stop,
}

/// The loop and all it holds.
#[derive(Debug)]
pub(crate) struct Keeper {
    host: Host,
    watcher: Watcher,
    config: Config,
    tuning: Tuning,
    state: Folder,
    remembered: Remembered,
    charge: Charge,
    api: Arc<Api>,
    totals: Totals,
    moved: Vec<MoveReport>,
    /// The pages that move until the next interval.
    batches: Batches,
    counted: BTreeMap<NodeId, Option<Counters>>,
    began: Instant,
    /// How long systemd waits for a sign of life.
    watchdog: Option<Duration>,
    /// Whether the bindings on record are an earlier daemon's, which may have been killed before it had made them.
    is_heir: bool,
    said: Said,
    /// Looks that failed in a row, and why the last one did.
    failed: (u64, String),
}

impl Keeper {
    /// The loop before its first interval. What an earlier daemon remembered is in `state`.
    pub(crate) fn new(
        host: Host,
        watcher: Watcher,
        config: Config,
        state: Folder,
        charge: Charge,
        api: Arc<Api>,
    ) -> Self {
        let (remembered, forgotten) = Remembered::read(&state, host.boot_id());
        output::note(forgotten);
        let tuning = config.tuning();
        let mut host = host;
        host.wait_for_lock_at_most(LONGEST_LOCK, notify::busy);
        Self {
            host,
            watcher,
            config,
            tuning,
            state,
            remembered,
            charge,
            api,
            totals: Totals::default(),
            moved: Vec::new(),
            batches: Batches::default(),
            counted: BTreeMap::new(),
            began: Instant::now(),
            watchdog: notify::watchdog(),
            is_heir: true,
            said: Said::default(),
            failed: (0, String::new()),
        }
    }

    /// Keeps domains at home until it is told to stop. `reload` reads the configuration again.
    pub(crate) fn run(&mut self, inbox: &Inbox, mut reload: impl FnMut(&mut Self)) {
        let mut is_first = true;
        while !inbox.is_to_end() {
            let due = Instant::now() + self.config.interval;
            self.interval(inbox, due);
            if std::mem::take(&mut is_first) {
                notify::ready(&self.status());
            } else {
                notify::alive(&self.status());
            }
            let mut late = 0;
            while late < MOST_LATE_EVENTS {
                late += usize::from(Instant::now() >= due);
                match self.wait(inbox, due) {
                    Some(Next::GoOn) => notify::busy(),
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

    /// Goes by another configuration from now on.
    pub(crate) fn reconfigure(&mut self, config: Config) {
        self.tuning = config.tuning();
        self.watcher.set_patterns(config.found.clone());
        self.config = config;
    }

    /// What it goes by.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Moves pages until somebody wants something or the next interval is due, and waits for either; none where it is the
    /// next interval. So whoever asks waits for a round without its moving pages at most.
    fn wait(&mut self, inbox: &Inbox, due: Instant) -> Option<Next> {
        if self.batches.is_busy() {
            self.host.move_batches(&mut self.batches, due, &|| {
                notify::busy();
                if inbox.is_waiting() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        loop {
            let left = due.saturating_duration_since(Instant::now());
            // Intervals may be longer than systemd has patience.
            let pause = self.watchdog.map_or(left, |watchdog| left.min(watchdog / 2));
            match inbox.next(pause) {
                Some(Event::Change(asked)) => {
                    self.change(asked);
                    return Some(Next::GoOn);
                }
                Some(Event::Reload) => return Some(Next::Reload),
                Some(Event::Stop) => return Some(Next::Stop),
                None if pause < left => notify::busy(),
                None => return None,
            }
        }
    }

    /// One round, but for the pages that move until the next, which is `due` then.
    fn interval(&mut self, inbox: &Inbox, due: Instant) {
        self.end_batches();
        let interval = self.remembered.interval + 1;
        let is_attached = self.charge.attachment().is_attached();
        let counted = is_attached.then(|| self.charge.cpu_ns());
        let turn = Turn {
            interval,
            now_ns: u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            soft_affinity: is_attached,
            scheduler: counted.as_ref(),
            moved: std::mem::take(&mut self.moved),
        };
        self.remembered.interval = interval;
        self.totals.intervals += 1;
        match self.watcher.look(&self.remembered.history, turn) {
            Err(error) => {
                self.failed = (self.failed.0 + 1, error.to_string());
                self.say([error.to_string()]);
                if self.failed.0 >= MOST_FAILED_LOOKS {
                    self.api.published.fails(self.failed.0, &self.failed.1);
                }
                // It may have been ejected, and what it needs to know is as it was.
                if let Some((_, before)) = self.api.published.latest() {
                    self.tend_scheduler(&before.topology, before.stat.domains.len(), inbox, due);
                }
            }
            Ok(seen) => {
                self.failed = (0, String::new());
                let (plan, history) = control(&self.tuning, &seen, &self.remembered.history);
                self.remembered.history = history;
                let batches = self.act(&plan, &seen, inbox, due);
                self.tend_scheduler(&seen.machine.topology, seen.machine.parts.len(), inbox, due);
                self.say(self.balancing(&seen));
                let forgotten = self.watcher.no_longer_named();
                self.for_each_domain(forgotten, Host::forget_found, || {
                    inbox.is_to_end() || Instant::now() >= due
                });
                // Last, for a change of what is recorded of a domain ends its batch.
                self.begin_batches(&batches);
                if !plan.is_empty() {
                    let written = self.remembered.write(&self.state);
                    self.say(written.err().map(|error| error.to_string()));
                }
                self.publish(seen, plan);
            }
        }
        let notices = [self.watcher.take_notices(), self.host.take_notices()].concat();
        self.say(notices);
        self.said.end_interval();
    }

    /// Carries the plan out. What is refused is said and the rest of that domain's steps are left out: the next interval
    /// sees what there is and decides anew, also about those whose turn has not come when that is `due`. Returns the pages that
    /// are to move until then.
    fn act(
        &mut self,
        plan: &ControlPlan,
        seen: &ControlObservation,
        inbox: &Inbox,
        due: Instant,
    ) -> Vec<PageMove> {
        let mut refused: Vec<PartId> = Vec::new();
        if !plan.transactions.is_empty() && self.lock() {
            for transaction in &plan.transactions {
                notify::busy();
                for step in &transaction.steps {
                    let outcome = self.try_step(step, plan, seen);
                    if !self.count(step, &outcome) {
                        refused.extend(transaction.subjects().into_iter().cloned());
                        break;
                    }
                }
                if inbox.is_to_end() || Instant::now() >= due {
                    break;
                }
            }
            self.host.unlock();
        }
        let may_move = |step: &&Step<PageMove>| !refused.contains(&step.action.part);
        plan.moves.iter().filter(may_move).map(|step| step.action.clone()).collect()
    }

    fn begin_batches(&mut self, batches: &[PageMove]) {
        let (begun, refused) = self.host.begin_batches(batches);
        self.batches = begun;
        for (action, outcome) in refused {
            self.count_batch(&action, &outcome);
        }
    }

    /// Counts what became of a step, and says what there is to say. Whether later ones of the domain may be tried.
    fn count(&mut self, step: &Step, outcome: &Outcome) -> bool {
        let domain = step.action.part().domain();
        self.totals.count(domain, outcome);
        match outcome {
            Outcome::Refused { why } => {
                self.say_of(domain, &format!("cannot {}: {why}", step.action));
                false
            }
            Outcome::Partly { .. } | Outcome::Applied { .. } => {
                self.said.changed(domain);
                if let Action::SetHome { .. } = step.action {
                    self.totals.count_home(domain);
                    output::note([format!("{domain}: {}: {}", step.action, step.reason)]);
                }
                true
            }
        }
    }

    fn count_batch(&mut self, action: &PageMove, outcome: &Outcome) {
        let domain = action.part.domain();
        self.totals.count(domain, outcome);
        if let Outcome::Refused { why } = outcome {
            self.say_of(domain, &format!("cannot {action}: {why}"));
        }
        self.moved.extend(report(action, outcome));
    }

    /// Takes stock of the pages that moved since the interval before.
    fn end_batches(&mut self) {
        let batches = std::mem::take(&mut self.batches);
        for (action, outcome) in self.host.end_batches(batches) {
            self.count_batch(&action, &outcome);
        }
    }

    /// Takes the lock, for all that is to be done in a row. Where somebody else holds on to it that is said, and nothing done.
    fn lock(&mut self) -> bool {
        match self.host.lock() {
            Ok(()) => true,
            Err(error) => {
                self.say([format!("nothing is changed in this interval: {error}")]);
                false
            }
        }
    }

    /// Carries out a step, unless a command has given the domain another home since it was looked at.
    fn try_step(&mut self, step: &Step, plan: &ControlPlan, seen: &ControlObservation) -> Outcome {
        let domain = step.action.part().domain();
        let home_seen = seen
            .machine
            .parts
            .iter()
            .find(|state| state.id.domain() == domain)
            .and_then(|state| state.home.as_ref());
        // A group that was found gets its record with whatever is the first of these steps.
        let home_planned = plan.steps().find_map(|step| match &step.action {
            Action::SetHome { part, home } if part.domain() == domain => Some(home),
            _ => None,
        });
        let found = self.watcher.found_by(domain).zip(home_planned);
        if let Err(error) = self.host.take_up(domain, found) {
            return Outcome::Refused { why: error.to_string() };
        }
        // The home it had, or the one that an earlier step of this plan gave it.
        let home_now = self.host.edited().map(|record| record.part().home.clone());
        let is_expected = home_now.as_ref() == home_seen || home_now.as_ref() == home_planned;
        let outcome = match is_expected {
            true => self.host.apply_step(&step.action),
            false => {
                Outcome::Refused { why: "a command has given it another home meanwhile".into() }
            }
        };
        self.host.put_down();
        outcome
    }

    /// Attaches or detaches the scheduler where it is time, and has Nearside's own bindings stand in for it where it is not
    /// in charge.
    fn tend_scheduler(&mut self, topology: &Topology, domains: usize, inbox: &Inbox, due: Instant) {
        let homes = self.affinities();
        let needs = Needs::of(topology, domains);
        // However long it takes: nobody leaves home in between.
        if self.charge.is_to_leave(self.config.scheduler, needs, self.remembered.interval) {
            let wanting = self.wanting_fallback(topology);
            if !self.restore_fallbacks(wanting, || false) {
                return;
            }
        }
        let said = self.charge.tend(self.config.scheduler, needs, &homes, self.remembered.interval);
        self.say(said);
        let is_over = || inbox.is_to_end() || Instant::now() >= due;
        match self.charge.attachment().is_attached() {
            true => self.lift_fallbacks(is_over),
            false => {
                let wanting = self.wanting_fallback(topology);
                self.restore_fallbacks(wanting, is_over);
            }
        }
    }

    /// What becomes of the kernel's NUMA balancing, where it is on.
    fn balancing(&self, seen: &ControlObservation) -> Option<String> {
        let mode = seen
            .numa_balancing
            .filter(|&mode| mode != 0 && seen.machine.topology.nodes.len() > 1)?;
        let is = match self.charge.attachment().is_attached() {
            true => "does nothing on this host while the scheduler is attached",
            false => {
                "moves the memory of domains that Nearside did not start, which it therefore leaves where it is"
            }
        };
        Some(format!(
            "NUMA balancing (kernel.numa_balancing = {mode}) {is}; it is not switched off"
        ))
    }

    /// Where the domains prefer to run.
    fn affinities(&self) -> Affinities {
        let affinity = |record: &Record| {
            let nodes = record.part().home.nodes.clone();
            Some((record.inode, scheduler::Affinity { home: nodes.first()?, nodes }))
        };
        self.watcher.records().filter_map(affinity).collect()
    }

    fn lift_fallbacks(&mut self, is_over: impl Fn() -> bool) {
        let names = names(self.watcher.records().filter(|record| is_bound_for_scheduler(record)));
        self.for_each_domain(names, Host::lift_fallback, is_over);
    }

    fn wanting_fallback(&self, topology: &Topology) -> Vec<Record> {
        let wants = |record: &&Record| {
            wants_fallback(record, topology) || self.is_heir && is_bound_for_scheduler(record)
        };
        self.watcher.records().filter(wants).cloned().collect()
    }

    fn restore_fallbacks(&mut self, wanting: Vec<Record>, is_over: impl Fn() -> bool) -> bool {
        let (bound, left): (Vec<_>, Vec<_>) =
            wanting.into_iter().partition(|record| self.host.may_bind(record).is_ok());
        if !left.is_empty() {
            self.say([format!(
                "{}: not bound to the CPUs of the home meanwhile, for the sake of the cgroup's owner: `nearside why` tells",
                count(left.len(), "domain")
            )]);
        }
        let done = self.for_each_domain(names(bound.iter()), Host::restore_fallback, is_over);
        self.is_heir &= !done;
        done
    }

    /// Changes them one after the other until it `is_over`; the rest has its turn in the next interval. Most intervals concern
    /// nobody, and then nobody has to wait for the lock. False where that could not be had.
    fn for_each_domain(
        &mut self,
        names: Vec<String>,
        change: fn(&mut Host, &str) -> Result<bool, nearside_linux::Error>,
        is_over: impl Fn() -> bool,
    ) -> bool {
        if names.is_empty() {
            return true;
        }
        if !self.lock() {
            return false;
        }
        for name in &names {
            notify::busy();
            match change(&mut self.host, name) {
                Ok(true) => self.said.changed(name),
                Ok(false) => {}
                Err(error) => self.say_of(name, &error.to_string()),
            }
            if is_over() {
                break;
            }
        }
        self.host.unlock();
        true
    }

    fn change(&mut self, asked: Asked) {
        let found_by = self.watcher.found_by(asked.change.domain());
        let answer = wishes::fulfil(&mut self.host, &asked.change, found_by);
        // Whoever asked may have gone; it is done all the same.
        let _ = asked.answer.send(answer);
    }

    fn publish(&mut self, seen: ControlObservation, plan: ControlPlan) {
        let ControlObservation { machine, length_ns, numa_balancing, .. } = seen;
        let root = self.host.root();
        let counted: BTreeMap<NodeId, Option<Counters>> =
            machine.topology.nodes.iter().map(|node| (node.id, counters(root, node.id))).collect();
        let before = std::mem::replace(&mut self.counted, counted.clone());
        let counters = counted
            .into_iter()
            .map(|(node, now)| (node, [before.get(&node).copied().flatten(), now]))
            .collect();
        let records: BTreeMap<&str, _> =
            self.watcher.records().map(|record| (record.name.as_str(), record)).collect();
        let domain = |state: &nearside_policy::PartState| SeenDomain {
            cgroup: self.watcher.cgroup_path(state.id.domain()).unwrap_or_default().to_owned(),
            record: records.get(state.id.domain()).map(|&record| record.clone()),
            usage: self.watcher.usage(state.id.domain()).unwrap_or_default(),
            reserved_bytes: state.reserved_bytes,
        };
        let domains = machine.parts.iter().map(domain).collect();
        self.totals.keep_only(machine.parts.iter().map(|state| state.id.domain()));
        let lives = |name: &str| {
            machine.parts.binary_search_by(|state| state.id.domain().cmp(name)).is_ok()
        };
        self.said.keep_only(lives);
        self.host.keep_walks(lives);
        self.api.published.publish(Snapshot::new(Seen {
            topology: machine.topology,
            domains,
            counters,
            length: Duration::from_nanos(length_ns),
            interval: self.config.interval,
            plan,
            history: self.remembered.history.clone(),
            totals: self.totals.clone(),
            scheduler_attached: self.charge.attachment().is_attached(),
            numa_balancing,
        }));
    }

    /// Says what was not said in the interval before.
    fn say(&mut self, lines: impl IntoIterator<Item = String>) {
        output::note(lines.into_iter().filter(|line| self.said.is_new(line)));
    }

    /// Says of a domain what was not said since it changed last.
    fn say_of(&mut self, domain: &str, line: &str) {
        if self.said.is_new_of(domain, line) {
            output::note([format!("{domain}: {line}")]);
        }
    }

    /// A line for `systemctl status`.
    fn status(&self) -> String {
        let domains = self.watcher.records().count();
        let scheduler =
            if self.charge.attachment().is_attached() { "attached" } else { "not attached" };
        let failed = match &self.failed {
            (looks, why) if *looks >= MOST_FAILED_LOOKS => {
                format!("; the last {looks} looks at the host failed: {why}")
            }
            _ => String::new(),
        };
        format!(
            "{}; scheduler {scheduler}; interval {}{failed}",
            count(domains, "domain"),
            self.remembered.interval
        )
    }

    /// Leaves the host as it would be without a daemon.
    fn end(&mut self) {
        notify::stopping();
        self.end_batches();
        // As recorded now: what was lifted in this very interval has not been looked at again.
        let (found, started): (Vec<_>, Vec<_>) =
            self.host.records().0.into_iter().partition(|record| record.found_by.is_some());
        // Nobody would lift later what stood in for the scheduler at groups that others made.
        let bound = names(found.iter().filter(|record| is_bound_for_scheduler(record)));
        self.for_each_domain(bound, Host::lift_fallback, || false);
        // While the scheduler is still in charge, so that nobody leaves home in between.
        if self.charge.attachment().is_attached() {
            match self.host.topology() {
                Ok(topology) => {
                    let wanting = started
                        .into_iter()
                        .filter(|record| wants_fallback(record, &topology))
                        .collect();
                    self.restore_fallbacks(wanting, || false);
                }
                Err(error) => self.say([error.to_string()]),
            }
            let said = self.charge.detach();
            self.say(said);
        }
        let written = self.remembered.write(&self.state);
        self.say(written.err().map(|error| error.to_string()));
        let notices = self.host.take_notices();
        self.say(notices);
    }
}

fn names<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<String> {
    records.map(|record| record.name.clone()).collect()
}

/// Whether a domain's CPUs are bound in the scheduler's stead.
fn is_bound_for_scheduler(record: &Record) -> bool {
    record.part().cpus.as_ref().is_some_and(|binding| binding.on_behalf == CpuReason::Fallback)
}

/// What the control loop is told of a batch.
fn report(action: &PageMove, outcome: &Outcome) -> Option<MoveReport> {
    let PageMove { part, batch: Some(Batch { from, .. }), .. } = action else {
        return None;
    };
    // Of one whose turn never came nothing was learnt.
    let report = MoveReport::new(part, *from, outcome)?;
    let is_untried =
        matches!(outcome, Outcome::Partly { moved_bytes: 0, stayed, .. } if stayed.is_empty());
    (!is_untried).then_some(report)
}
