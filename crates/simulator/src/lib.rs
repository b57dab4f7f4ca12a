//! A NUMA machine in software: what a way of placing domains would bring, before it is tried.
//!
//! # Problem
//! Whether homes pay depends on the machine, on how much its domains wait for memory and on when they come, grow and go. On
//! the machine itself that shows when it is done; in a guest under modelled time (`lab/`) a second takes half a minute.
//!
//! # Approach
//! [`simulate`] plays a [`Scenario`] on a machine under each [`Contender`], in time of the model. Nearside's decisions are the
//! real ones: [`place`](nearside_policy::place()) when a domain starts, the [homes controller](nearside_policy::Homes) once an
//! interval, on what the machine in software shows them. The rest is a model, in ticks of 1 ms:
//!
//! - *Work*: a thread does rounds. Each computes, and waits for lines of the thread's own memory, one after the other; lines in a
//!   row are foreseen and take a quarter. So a thread is as fast as the latencies to where its memory lies allow: those of
//!   the machine file, or what distances say. After some rounds it sleeps.
//! - *Bandwidth*: a node's memory, and the way between two nodes, give no more than they have for longer than some ticks; whoever
//!   wants lines of a node that is asked for more waits longer for each.
//! - *CPUs*: the threads on a node share its CPUs alike, within a tick. Which threads are on which node says the scheduler:
//!   - `nearside`, a fluid model of the credit scheduler: home first, and there where a thread ran last; what does not fit goes
//!     to the nearest idle CPUs; all wait alike;
//!   - `pins`: nobody leaves his node;
//!   - `stock`: a thread that wakes goes to any idle CPU, a node with idle CPUs takes waiting threads from anywhere, and
//!     each node takes one in each of Linux's balancing periods for busy CPUs (16 ms for each CPU of the machine).
//! - *Memory* is there when its thread starts, on the node where that starts, or the home's nearest one; where that is full, the
//!   nearest with room. It moves when the control loop says so: at once, and then a CPU of the node it went to is busy for
//!   1 ms a MiB and the longer way of its lines.
//! - *The bound* has all lines local, all bandwidth, and CPU time shared out ideally.
//!
//! # Properties
//! - It repeats: the same machine, scenario and seed give the same figures. Only `stock` asks for chance.
//! - No node gives more CPU time than its CPUs have, and work that is done is what was asked.
//! - Nobody is faster than the bound.
//!
//! # What is not in the model
//! Caches (each line comes from memory), program text, lines handed over between CPUs, memory that several threads use, SMT
//! siblings, the cost of switches, of the scheduler and of the daemon, filling memory at the start, weights and caps, links that
//! several pairs of nodes share, NUMA balancing. How Linux chooses CPUs is here a few lines; `stock` is the least certain of all
//! figures.
//!
//! docs/performance/simulator.md holds the figures against measured ones.

#![forbid(unsafe_code)]

mod bandwidth;
mod bound;
mod contender;
mod hardware;
mod observe;
mod play;
mod random;
pub mod scenario;
mod schedule;
mod thread;
mod world;

pub use contender::Contender;
pub use hardware::{ASSUMED_LOCAL_NS, Unsuited};
pub use scenario::{DomainPlan, Scenario, Work};

use nearside_policy::{Bytes, Refusal, Step};
use nearside_topology::{NodeSet, Topology};

/// How to play.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Under whom.
    pub contenders: Vec<Contender>,
    /// How long at most, in time of the model.
    pub most_seconds: u64,
    /// Of all that is left to chance.
    pub seed: u64,
    /// Whether Nearside is told latencies and bandwidths, as by firmware with an HMAT; else distances alone.
    pub hmat: bool,
}

/// Why a scenario cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// The machine is none to simulate on.
    #[error(transparent)]
    Unsuited(#[from] Unsuited),
    /// Placement refuses a domain.
    #[error("nearside cannot place {domain}: {why}")]
    Refused {
        /// Which.
        domain: String,
        /// Why.
        why: Box<Refusal>,
    },
    /// A domain's memory has room nowhere.
    #[error("there is no memory left for {domain} under {contender}: {} too few", Bytes(*missing_bytes))]
    NoMemory {
        /// Which.
        domain: String,
        /// Under whom.
        contender: Contender,
        /// How much a thread of it lacks.
        missing_bytes: u64,
    },
}

/// What came of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Whether latencies are those of the machine; else distances and [`ASSUMED_LOCAL_NS`] stand in for them.
    pub latencies_are_known: bool,
    /// When all work is done at the earliest.
    pub bound_ns: u64,
    /// CPU time of all work, all lines local.
    pub work_ns: u64,
    /// By contender, in the order in which they were asked for.
    pub played: Vec<Played>,
}

impl Simulation {
    /// How many times as fast as under `stock` work was done, where that was played.
    pub fn against_stock(&self, played: &Played) -> Option<f64> {
        let stock = self.played.iter().find(|played| played.contender == Contender::Stock)?;
        Some(played.speed() / stock.speed()).filter(|factor| factor.is_finite())
    }

    /// The part of the bound's speed, where all work was done.
    pub fn of_bound(&self, played: &Played) -> Option<f64> {
        played.is_done.then(|| self.bound_ns as f64 / played.elapsed_ns.max(1) as f64)
    }
}

/// What came of it under one contender.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// Under whom.
    pub contender: Contender,
    /// Whether all work was done in the time there was.
    pub is_done: bool,
    /// The time until then, or all of it.
    pub elapsed_ns: u64,
    /// What was done, as CPU time that it would take with all lines local.
    pub work_ns: u64,
    /// CPU time that it took.
    pub cpu_ns: u64,
    /// The part of lines that came from the CPU's own node; none where nobody fetched any.
    pub local_ppm: Option<u64>,
    /// By domain, as in the scenario.
    pub domains: Vec<PlayedDomain>,
    /// Homes that the control loop changed.
    pub decided: Vec<Decided>,
}

/// What became of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct PlayedDomain {
    /// Its name.
    pub name: String,
    /// When it started, or would have.
    pub start_ns: u64,
    /// When its work was done.
    pub done_ns: Option<u64>,
    /// Its home in the end, where it had one.
    pub home: Option<NodeSet>,
    /// CPU time that it used.
    pub cpu_ns: u64,
    /// As of all domains.
    pub local_ppm: Option<u64>,
    /// How much of its memory was moved.
    pub moved_bytes: u64,
    /// How often its home was changed.
    pub home_changes: u64,
}

/// A home that the control loop changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// When.
    pub at_ns: u64,
    /// What was done, and why.
    pub step: Step,
}

impl Played {
    /// The mean of the times that the domains took, each from its start; none as long as one is not done.
    pub fn mean_domain_ns(&self) -> Option<u64> {
        let times = self.domains.iter().map(|domain| Some(domain.done_ns? - domain.start_ns));
        let all_ns: u64 = times.sum::<Option<u64>>().filter(|_| self.is_done)?;
        all_ns.checked_div(self.domains.len() as u64)
    }

    /// Memory that was moved.
    pub fn moved_bytes(&self) -> u64 {
        self.domains.iter().map(|domain| domain.moved_bytes).sum()
    }

    /// How often a home was changed.
    pub fn home_changes(&self) -> u64 {
        self.domains.iter().map(|domain| domain.home_changes).sum()
    }

    /// Work done in the time it took, in CPUs that have all lines local.
    pub fn speed(&self) -> f64 {
        self.work_ns as f64 / self.elapsed_ns.max(1) as f64
    }
}

/// How far a simulation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Who is at work.
    pub contender: Contender,
    /// The time of the model.
    pub now_ns: u64,
}

/// Plays `scenario` on the machine, which counts as empty whatever runs there now.
///
/// # Errors
/// Where the machine has no CPUs, memory or distances that are known, and where a domain finds no memory.
pub fn simulate(
    topology: &Topology,
    scenario: &Scenario,
    options: &Options,
) -> Result<Simulation, SimulateError> {
    simulate_watched(topology, scenario, options, &mut |_| ())
}

/// Likewise, and tells each tick how far it is.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_watched(
    topology: &Topology,
    scenario: &Scenario,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Simulation, SimulateError> {
    let hardware = hardware::Hardware::new(topology, options.hmat)?;
    let play = |&contender: &Contender| play::play(&hardware, scenario, contender, options, watch);
    Ok(Simulation {
        latencies_are_known: hardware.latencies_are_known,
        bound_ns: bound::bound_ns(&hardware, scenario) as u64,
        work_ns: bound::all_work_ns(&hardware, scenario) as u64,
        played: options.contenders.iter().map(play).collect::<Result<_, _>>()?,
    })
}
