//! The loop: look, decide, act, tell; and in between, do what somebody asked for (docs/adr/0008-daemon.md).

use super::{
    api::Api,
    attachment::Needs,
    charge::{Affinities, Charge},
    config::Config,
    notify,
    remembered::Remembered,
    snapshot::{Asked, Event, Seen, SeenDomain, Snapshot, Totals},
    wishes,
};
use crate::{output, report::units::count};
use nearside_linux::{
    Host,
    counters::{Counters, counters},
    folder::Folder,
    store::Record,
    watch::{Turn, Watcher},
};
use nearside_policy::{
    Action, Affinity, Batch, ControlObservation, ControlPlan, CpuReason, Machine, MoveReport, Observation, Outcome,
    Step, Tuning, control,
};
use nearside_scheduler as scheduler;
use nearside_topology::{NodeId, NodeSet, Topology};
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

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
    counted: BTreeMap<NodeId, Option<Counters>>,
    began: Instant,
    /// How long systemd waits for a sign of life.
    watchdog: Option<Duration>,
    /// What was said in the last interval: what stays as it is is said once.
    said: Vec<String>,
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
            counted: BTreeMap::new(),
            began: Instant::now(),
            watchdog: notify::watchdog(),
            said: Vec::new(),
        }
    }

    /// Keeps domains at home until it is told to stop. `reload` reads the configuration again.
    pub(crate) fn run(&mut self, events: &Receiver<Event>, mut reload: impl FnMut(&mut Self)) {
        let mut is_first = true;
        loop {
            let began = Instant::now();
            self.interval();
            if std::mem::take(&mut is_first) {
                notify::ready(&self.status());
            } else {
                notify::alive(&self.status());
            }
            loop {
                match self.wait(events, began) {
                    Some(Next::GoOn) => {}
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

    /// Waits for what comes next; none where that is the next interval. However late that is, nobody who asks for something
    /// waits for longer than a round.
    fn wait(&mut self, events: &Receiver<Event>, began: Instant) -> Option<Next> {
        let left = self.config.interval.saturating_sub(began.elapsed());
        // Intervals may be longer than systemd has patience.
        let pause = self.watchdog.map_or(left, |watchdog| left.min(watchdog / 2));
        match events.recv_timeout(pause) {
            Ok(Event::Change(asked)) => {
                self.change(asked);
                Some(Next::GoOn)
            }
            Ok(Event::Reload) => Some(Next::Reload),
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => Some(Next::Stop),
            Err(RecvTimeoutError::Timeout) if pause < left => {
                notify::busy();
                Some(Next::GoOn)
            }
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    /// One round.
    fn interval(&mut self) {
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
        let mut said = Vec::new();
        self.remembered.interval = interval;
        self.totals.intervals += 1;
        match self.watcher.look(&self.remembered.history, turn) {
            Err(error) => said.push(error.to_string()),
            Ok(seen) => {
                let (plan, history) = control(&self.tuning, &seen, &self.remembered.history);
                self.remembered.history = history;
                self.act(&plan, &seen, &mut said);
                self.tend_scheduler(&seen.machine, interval, &mut said);
                if !plan.steps.is_empty() {
                    said.extend(self.remembered.write(&self.state).err().map(|error| error.to_string()));
                }
                self.publish(seen, plan);
            }
        }
        said.extend(self.watcher.take_notices());
        said.extend(self.host.take_notices());
        self.say(said);
    }

    /// Carries the plan out. What is refused is said and the rest of that domain's steps are left out: the next interval
    /// sees what there is and decides anew.
    fn act(&mut self, plan: &ControlPlan, seen: &ControlObservation, said: &mut Vec<String>) {
        let mut refused: Vec<&str> = Vec::new();
        for step in &plan.steps {
            let domain = step.action.domain();
            if refused.contains(&domain) {
                continue;
            }
            let outcome = self.try_step(step, plan, seen);
            self.totals.count(domain, &outcome);
            match &outcome {
                Outcome::Refused { why } => {
                    said.push(format!("{domain}: cannot {}: {why}", step.action));
                    refused.push(domain);
                }
                Outcome::Partly { .. } | Outcome::Applied { .. } => {
                    if let Action::SetHome { .. } = step.action {
                        self.totals.count_home(domain);
                        said.push(format!("{domain}: {}: {}", step.action, step.reason));
                    }
                }
            }
            self.moved.extend(report(&step.action, &outcome));
        }
    }

    /// Carries out a step, unless a command has given the domain another home since it was looked at.
    fn try_step(&mut self, step: &Step, plan: &ControlPlan, seen: &ControlObservation) -> Outcome {
        let domain = step.action.domain();
        let home_seen =
            seen.machine.domains.iter().find(|state| state.name == domain).and_then(|state| state.home.as_ref());
        // A group that was found gets its record with whatever is the first of these steps.
        let home_planned = plan.steps.iter().find_map(|step| match &step.action {
            Action::SetHome { domain: whose, home } if whose == domain => Some(home),
            _ => None,
        });
        let found = self.watcher.found_by(domain).zip(home_planned);
        if let Action::MovePages { batch: Some(_), .. } = step.action {
            // A batch changes nothing but where pages lie, and keeps nobody from the records meanwhile.
            return self.host.apply(&step.action, &mut |_| {
                notify::busy();
                ControlFlow::Continue(())
            });
        }
        if let Err(error) = self.host.take_up(domain, found) {
            return Outcome::Refused { why: error.to_string() };
        }
        // The home it had, or the one that an earlier step of this plan gave it.
        let home_now = self.host.edited().map(|record| record.home.clone());
        let is_expected = home_now.as_ref() == home_seen || home_now.as_ref() == home_planned;
        let outcome = match is_expected {
            true => self.host.apply(&step.action, &mut |_| ControlFlow::Continue(())),
            false => Outcome::Refused { why: "a command has given it another home meanwhile".into() },
        };
        self.host.put_down();
        outcome
    }

    /// Attaches or detaches the scheduler where it is time, and has Nearside's own bindings stand in for it where it is not
    /// in charge.
    fn tend_scheduler(&mut self, machine: &Observation, interval: u64, said: &mut Vec<String>) {
        let homes = self.affinities();
        let topology = &machine.topology;
        let needs = Needs::of(topology, machine.domains.len());
        if self.charge.is_to_leave(self.config.scheduler, needs) {
            self.restore_fallbacks(topology, said);
        }
        said.extend(self.charge.tend(self.config.scheduler, needs, topology, &homes, interval));
        match self.charge.attachment().is_attached() {
            true => self.lift_fallbacks(said),
            false => self.restore_fallbacks(topology, said),
        }
    }

    /// Where the domains prefer to run.
    fn affinities(&self) -> Affinities {
        let affinity = |record: &Record| {
            let nodes = record.home.nodes.clone();
            Some((record.inode, scheduler::Affinity { home: nodes.first()?, nodes }))
        };
        self.watcher.records().filter_map(affinity).collect()
    }

    fn lift_fallbacks(&mut self, said: &mut Vec<String>) {
        let is_own =
            |record: &&Record| record.cpus.as_ref().is_some_and(|binding| binding.on_behalf == CpuReason::Fallback);
        let names = names(self.watcher.records().filter(is_own));
        self.for_each_domain(said, names, Host::lift_fallback);
    }

    fn restore_fallbacks(&mut self, topology: &Topology, said: &mut Vec<String>) {
        let names = names(self.watcher.records().filter(|record| wants_fallback(record, topology)));
        self.for_each_domain(said, names, Host::restore_fallback);
    }

    /// Most intervals concern nobody, and then nobody has to wait for the lock.
    fn for_each_domain(
        &mut self,
        said: &mut Vec<String>,
        names: Vec<String>,
        change: fn(&mut Host, &str) -> Result<bool, nearside_linux::Error>,
    ) {
        for name in names {
            if let Err(error) = change(&mut self.host, &name) {
                said.push(format!("{name}: {error}"));
            }
        }
    }

    fn change(&mut self, asked: Asked) {
        let found_by = self.watcher.found_by(asked.change.domain());
        let answer = wishes::fulfil(&mut self.host, &asked.change, found_by);
        // Whoever asked may have gone; it is done all the same.
        let _ = asked.answer.send(answer);
    }

    fn publish(&mut self, seen: ControlObservation, plan: ControlPlan) {
        let ControlObservation { machine, length_ns, .. } = seen;
        let root = self.host.root();
        let counted: BTreeMap<NodeId, Option<Counters>> =
            machine.topology.nodes.iter().map(|node| (node.id, counters(root, node.id))).collect();
        let before = std::mem::replace(&mut self.counted, counted.clone());
        let counters =
            counted.into_iter().map(|(node, now)| (node, [before.get(&node).copied().flatten(), now])).collect();
        let records: BTreeMap<&str, _> = self.watcher.records().map(|record| (record.name.as_str(), record)).collect();
        let domain = |state: &nearside_policy::DomainState| SeenDomain {
            cgroup: self.watcher.cgroup_path(&state.name).unwrap_or_default().to_owned(),
            record: records.get(state.name.as_str()).map(|&record| record.clone()),
            usage: self.watcher.usage(&state.name).unwrap_or_default(),
            reserved_bytes: state.reserved_bytes,
        };
        let domains = machine.domains.iter().map(domain).collect();
        self.totals.keep_only(machine.domains.iter().map(|state| state.name.as_str()));
        self.api.published.publish(Snapshot::new(Seen {
            topology: machine.topology,
            domains,
            counters,
            length: Duration::from_nanos(length_ns),
            plan,
            history: self.remembered.history.clone(),
            totals: self.totals.clone(),
            scheduler_attached: self.charge.attachment().is_attached(),
        }));
    }

    /// Says what was not said in the interval before.
    fn say(&mut self, said: Vec<String>) {
        output::note(said.iter().filter(|line| !self.said.contains(line)));
        self.said = said;
    }

    /// A line for `systemctl status`.
    fn status(&self) -> String {
        let domains = self.watcher.records().count();
        let scheduler = if self.charge.attachment().is_attached() { "attached" } else { "not attached" };
        format!("{}; scheduler {scheduler}; interval {}", count(domains, "domain"), self.remembered.interval)
    }

    /// Leaves the host as it would be without a daemon.
    fn end(&mut self) {
        notify::stopping();
        let mut said = Vec::new();
        // While the scheduler is still in charge, so that nobody leaves home in between.
        if self.charge.attachment().is_attached() {
            match self.host.topology() {
                Ok(topology) => {
                    // As recorded now: what was lifted in this very interval has not been looked at again.
                    let records = self.host.records().0;
                    let names = names(records.iter().filter(|record| wants_fallback(record, &topology)));
                    self.for_each_domain(&mut said, names, Host::restore_fallback);
                }
                Err(error) => said.push(error.to_string()),
            }
            said.extend(self.charge.detach());
        }
        said.extend(self.remembered.write(&self.state).err().map(|error| error.to_string()));
        said.extend(self.host.take_notices());
        output::note(said);
    }
}

fn names<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<String> {
    records.map(|record| record.name.clone()).collect()
}

/// Whether binding a domain is to stand in for the scheduler. A home of all nodes binds nobody, so nothing is done on one node.
fn wants_fallback(record: &Record, topology: &Topology) -> bool {
    let with_cpus: NodeSet = topology.cpus.iter().filter_map(|cpu| cpu.node).collect();
    let home = &record.home;
    record.cpus.is_none() && home.affinity == Affinity::Soft && !with_cpus.is_subset(&home.nodes)
}

/// What the control loop is told of a batch.
fn report(action: &Action, outcome: &Outcome) -> Option<MoveReport> {
    let Action::MovePages { domain, batch: Some(Batch { from, .. }), .. } = action else { return None };
    MoveReport::new(domain, *from, outcome)
}
