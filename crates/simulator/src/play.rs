//! Simulation of a scenario under one contender, from beginning to end.

use crate::{
    Contender, Decided, Options, Played, PlayedDomain, Progress, SimulateError,
    hardware::Hardware,
    scenario::{DomainPlan, Scenario},
    schedule::{self, Anywhere},
    world::{Counts, Domain, TICK_NS, World},
};
use nearside_policy::{
    Action, Affinity, Claim, Controller, History, Home, Homes, Machine, MemoryPolicy, Origin,
    Outcome, PageSize, PartLoad, Request, Tuning, place,
};
use std::ops::ControlFlow;

/// The default of `nearside run`.
const POLICY: MemoryPolicy = MemoryPolicy::PreferredMany;

/// A contender at work on its machine.
struct Play<'a> {
    contender: Contender,
    world: World<'a>,
    linux: Anywhere,
    tuning: Tuning,
    history: History,
    interval_ticks: u64,
    decided: Vec<Decided>,
}

/// Simulates until all work is done, or until the time limit.
pub(crate) fn play(
    hardware: &Hardware,
    scenario: &Scenario,
    contender: Contender,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Played, SimulateError> {
    let max_ticks = options.max_seconds.saturating_mul(1_000_000_000 / TICK_NS);
    let interval_ns = scenario.interval_ms * 1_000_000;
    let mut play = Play {
        contender,
        world: World::new(hardware),
        linux: Anywhere::new(options.seed),
        tuning: Tuning { interval_ns, ..Tuning::default() },
        history: History::default(),
        interval_ticks: interval_ns / TICK_NS,
        decided: Vec::new(),
    };
    let mut to_start: Vec<(usize, &DomainPlan)> = scenario.domains.iter().enumerate().collect();
    to_start.sort_by_key(|(_, plan)| plan.start_ms);
    let mut to_start = to_start.into_iter().peekable();
    while play.world.tick < max_ticks {
        let now_ms = play.world.tick * TICK_NS / 1_000_000;
        while let Some((number, plan)) = to_start.next_if(|(_, plan)| plan.start_ms <= now_ms) {
            play.start(number, plan)?;
        }
        if play.world.is_done() && to_start.peek().is_none() {
            break;
        }
        play.tick()?;
        watch(Progress { contender, now_ns: play.world.tick * TICK_NS });
    }
    Ok(play.told(scenario))
}

impl Play<'_> {
    fn tick(&mut self) -> Result<(), SimulateError> {
        let (threads, runnable) = self.world.runnable();
        let (hardware, tick, now_ns) = (self.world.hardware, self.world.tick, self.world.now_ns());
        let nodes = match self.contender {
            Contender::Stock => self.linux.schedule(hardware, &runnable, now_ns),
            Contender::Pins => schedule::pinned(hardware, &runnable),
            Contender::Nearside => schedule::home_first(hardware, &runnable, tick),
        };
        let ran = self.world.run(&threads, &nodes);
        ran.map_err(|(domain, missing_bytes)| SimulateError::NoMemory {
            domain: self.world.domains[domain].plan.name.clone(),
            contender: self.contender,
            missing_bytes,
        })?;
        if self.contender == Contender::Nearside
            && self.world.tick.is_multiple_of(self.interval_ticks)
        {
            self.control();
        }
        Ok(())
    }

    fn control(&mut self) {
        let interval = self.world.tick / self.interval_ticks;
        let seen = self.world.control_observation(interval, self.tuning.interval_ns, &self.history);
        let (plan, history) = Homes { tuning: self.tuning }.plan(&seen, &self.history);
        self.history = history;
        let at_ns = self.world.now_ns() as u64;
        for transaction in plan.transactions {
            if let Outcome::Refused { .. } = self.world.apply(&transaction) {
                continue;
            }
            let homes = transaction.steps.into_iter();
            let homes = homes.filter(|step| matches!(step.action, Action::SetHome { .. }));
            self.decided.extend(homes.map(|step| Decided { at_ns, step }));
        }
        for step in plan.moves {
            Machine::move_pages(&mut self.world, &step.action, &mut |_| ControlFlow::Continue(()));
        }
    }
}

impl<'a> Play<'a> {
    fn start(&mut self, number: usize, plan: &'a DomainPlan) -> Result<(), SimulateError> {
        let hardware = self.world.hardware;
        let all = (0..hardware.nodes.len()).collect();
        let (nodes, home, claim) = match self.contender {
            Contender::Stock => (all, None, None),
            Contender::Pins => (vec![self.pin(number)], None, None),
            Contender::Nearside => {
                let (home, claim) = self.place(plan)?;
                (
                    home.nodes.iter().filter_map(|node| hardware.index_of(node)).collect(),
                    Some(home),
                    Some(claim),
                )
            }
        };
        let (start_ns, at) = (self.world.now_ns(), self.world.domains.len());
        self.world.domains.push(Domain {
            plan,
            number,
            nodes,
            home,
            claim,
            has_grown: plan.later_threads == 0,
            start_ns,
            done_ns: None,
            counts: Counts::default(),
            untold: PartLoad::default(),
        });
        (0..plan.threads).for_each(|_| self.world.add_thread(at, plan.work.rounds));
        Ok(())
    }

    /// Nodes in turn, if possible only those with CPUs and memory.
    fn pin(&self, number: usize) -> usize {
        let nodes = &self.world.hardware.nodes;
        let with_cpus: Vec<_> = (0..nodes.len()).filter(|&node| nodes[node].cpus > 0).collect();
        let with_both: Vec<_> =
            with_cpus.iter().copied().filter(|&node| nodes[node].memory_bytes > 0).collect();
        let nodes = if with_both.is_empty() { with_cpus } else { with_both };
        nodes[number % nodes.len()]
    }

    /// The real placement, on the present state of the simulated machine.
    fn place(&mut self, plan: &DomainPlan) -> Result<(Home, Claim), SimulateError> {
        let request = Request {
            vcpus: plan.all_threads() as u32,
            memory_bytes: plan.memory_bytes(),
            page_size: PageSize::Base,
            policy: POLICY,
            nodes: None,
            near: Vec::new(),
        };
        let decision = place(&request, &self.world.observation(), &self.tuning.model);
        let refused =
            |why| SimulateError::Refused { domain: plan.name.clone(), why: Box::new(why) };
        let chosen = decision.map_err(refused)?.chosen;
        let home = Home {
            nodes: chosen.nodes,
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: POLICY,
        };
        Ok((home, chosen.claim))
    }

    fn told(self, scenario: &Scenario) -> Played {
        let mut world = self.world;
        world.domains.sort_by_key(|domain| domain.number);
        let mut started = world.domains.iter().peekable();
        let told = |(number, plan)| {
            started
                .next_if(|domain| domain.number == number)
                .map_or_else(|| not_started(plan), told_of)
        };
        let domains = scenario.domains.iter().enumerate().map(told).collect();
        let is_done = world.is_done() && world.domains.len() == scenario.domains.len();
        let last_ns = world.domains.iter().filter_map(|domain| domain.done_ns).fold(0.0, f64::max);
        let elapsed_ns = if is_done { last_ns } else { world.now_ns() };
        let least_ns = world.hardware.least_latency_ns();
        let work_ns =
            |domain: &Domain<'_>| domain.counts.rounds * domain.plan.work.round_ns(least_ns);
        let sum = |of: fn(&Counts) -> f64| {
            world.domains.iter().map(|domain| of(&domain.counts)).sum::<f64>()
        };
        Played {
            contender: self.contender,
            is_done,
            elapsed_ns: elapsed_ns as u64,
            work_ns: world.domains.iter().map(work_ns).sum::<f64>() as u64,
            cpu_ns: sum(|counts| counts.cpu_ns) as u64,
            local_ppm: ppm(sum(|counts| counts.local_lines), sum(|counts| counts.lines)),
            domains,
            decided: self.decided,
        }
    }
}

fn told_of(domain: &Domain<'_>) -> PlayedDomain {
    let Counts { cpu_ns, lines, local_lines, moved_bytes, home_changes, .. } = domain.counts;
    PlayedDomain {
        name: domain.plan.name.clone(),
        start_ns: domain.start_ns as u64,
        done_ns: domain.done_ns.map(|done_ns| done_ns as u64),
        home: domain.home.as_ref().map(|home| home.nodes.clone()),
        cpu_ns: cpu_ns as u64,
        local_ppm: ppm(local_lines, lines),
        moved_bytes,
        home_changes,
    }
}

/// The result of a domain that never started.
fn not_started(plan: &DomainPlan) -> PlayedDomain {
    PlayedDomain {
        name: plan.name.clone(),
        start_ns: plan.start_ms * 1_000_000,
        done_ns: None,
        home: None,
        cpu_ns: 0,
        local_ppm: None,
        moved_bytes: 0,
        home_changes: 0,
    }
}

fn ppm(part: f64, whole: f64) -> Option<u64> {
    (whole > 0.0).then(|| (part / whole * 1e6).round() as u64)
}
