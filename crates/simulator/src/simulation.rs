//! Input and output of a simulation: options, progress, figures and errors.

use crate::{contender::Contender, hardware::Unsuited};
use nearside_policy::{Bytes, Refusal, Step};
use nearside_topology::NodeSet;

/// The parameters of a simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The contenders to simulate.
    pub contenders: Vec<Contender>,
    /// The limit of simulated time, in seconds.
    pub max_seconds: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// Whether Nearside knows latencies and bandwidths, as with an HMAT, or only distances.
    pub hmat: bool,
}

/// The reason why a scenario cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// The machine cannot be simulated.
    #[error(transparent)]
    Unsuited(#[from] Unsuited),
    /// Placement refuses a domain.
    #[error("nearside cannot place {domain}: {why}")]
    Refused {
        /// The domain.
        domain: String,
        /// The reason.
        why: Box<Refusal>,
    },
    /// No node has room for a domain's memory.
    #[error(
        "no memory left for {domain} under {contender}: {} too few",
        Bytes(*missing_bytes)
    )]
    NoMemory {
        /// The domain.
        domain: String,
        /// The contender.
        contender: Contender,
        /// Bytes that one of its threads lacks.
        missing_bytes: u64,
    },
}

/// The result of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Whether latencies are known; else they follow from distances and `ASSUMED_LOCAL_NS`.
    pub latencies_are_known: bool,
    /// The earliest time at which all work can be done.
    pub bound_ns: u64,
    /// CPU time of all work with local lines only.
    pub work_ns: u64,
    /// By contender, in the order of the options.
    pub played: Vec<Played>,
}

impl Simulation {
    /// Speed as a multiple of the speed under `stock`, if that was simulated.
    pub fn against_stock(&self, played: &Played) -> Option<f64> {
        let stock = self.played.iter().find(|played| played.contender == Contender::Stock)?;
        Some(played.speed() / stock.speed()).filter(|factor| factor.is_finite())
    }

    /// Speed as a share of the bound's, if all work was done.
    pub fn of_bound(&self, played: &Played) -> Option<f64> {
        played.is_done.then(|| self.bound_ns as f64 / played.elapsed_ns.max(1) as f64)
    }
}

/// The result under one contender.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// The contender.
    pub contender: Contender,
    /// Whether all work was done within the time limit.
    pub is_done: bool,
    /// The time until then, or the time limit.
    pub elapsed_ns: u64,
    /// Completed work, as CPU time with local lines only.
    pub work_ns: u64,
    /// CPU time used.
    pub cpu_ns: u64,
    /// Share of lines from the CPU's own node; none without any line.
    pub local_ppm: Option<u64>,
    /// By domain, in the order of the scenario.
    pub domains: Vec<PlayedDomain>,
    /// Changes of homes by the control loop.
    pub decided: Vec<Decided>,
}

/// The result of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct PlayedDomain {
    /// Its name.
    pub name: String,
    /// The time of its start, or the planned one.
    pub start_ns: u64,
    /// The time at which its work was done.
    pub done_ns: Option<u64>,
    /// Its last home, if it had one.
    pub home: Option<NodeSet>,
    /// CPU time used.
    pub cpu_ns: u64,
    /// As in [`Played`].
    pub local_ppm: Option<u64>,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Number of changes of its home.
    pub home_changes: u64,
}

/// A change of a home by the control loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// The time.
    pub at_ns: u64,
    /// The step, with its reason.
    pub step: Step,
}

impl Played {
    /// The mean duration of the domains, each from its start; none unless all are done.
    pub fn mean_domain_ns(&self) -> Option<u64> {
        let times = self.domains.iter().map(|domain| Some(domain.done_ns? - domain.start_ns));
        let all_ns: u64 = times.sum::<Option<u64>>().filter(|_| self.is_done)?;
        all_ns.checked_div(self.domains.len() as u64)
    }

    /// Bytes moved.
    pub fn moved_bytes(&self) -> u64 {
        self.domains.iter().map(|domain| domain.moved_bytes).sum()
    }

    /// Number of changes of homes.
    pub fn home_changes(&self) -> u64 {
        self.domains.iter().map(|domain| domain.home_changes).sum()
    }

    /// Work per elapsed time, in CPUs with local lines only.
    pub fn speed(&self) -> f64 {
        self.work_ns as f64 / self.elapsed_ns.max(1) as f64
    }
}

/// The progress of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The contender being simulated.
    pub contender: Contender,
    /// The simulated time.
    pub now_ns: u64,
}
