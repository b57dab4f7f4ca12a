//! A NUMA machine in software: predicts the effect of a way to place domains.
//!
//! # Problem
//! The gain from homes depends on the machine, on the share of time that domains wait for memory,
//! and on when domains start, grow and end. A trial on the machine shows it too late; in a guest
//! under modelled time (`lab/`) a second takes half a minute.
//!
//! # Approach
//! [`simulate`] plays a [`Scenario`] on a machine under each [`Contender`], in simulated time.
//! Nearside's decisions are the real ones: [`place`](nearside_policy::place()) at the start of a
//! domain, the [homes controller](nearside_policy::Homes) once an interval, on observations of the
//! simulated machine. The rest is a model, in ticks of 1 ms:
//!
//! - *Work*: a thread does rounds. Each computes, and fetches lines of the thread's own memory one
//!   after the other; consecutive lines are prefetched and take a quarter. So the latency to its
//!   memory limits a thread: from the machine file, or estimated from distances. After some rounds
//!   it pauses.
//! - *Bandwidth*: a node's memory, and the route between two nodes, deliver at most their
//!   bandwidth over a few ticks; above it, each line waits longer.
//! - *CPUs*: the threads of a node share its CPUs equally within a tick. The scheduler chooses the
//!   node of each thread:
//!   - `nearside`, a fluid model of the credit scheduler: home first, and there the node of the
//!     last CPU; surplus threads run on the nearest idle CPUs; without any, all threads wait
//!     equally;
//!   - `pins`: threads never leave their node;
//!   - `stock`: a waking thread takes any idle CPU, a node with idle CPUs takes waiting threads
//!     from anywhere, and each node takes one thread in each of Linux's balancing periods for busy
//!     CPUs (16 ms for each CPU of the machine).
//! - *Memory* is allocated when its thread starts, on that thread's node or the nearest node of
//!   the home; if that is full, on the nearest with room. The control loop moves it: at once, and
//!   then a CPU of the target node is busy for 1 ms a MiB plus the extra latency of the lines.
//! - *The bound* has only local lines, unlimited bandwidth and ideal sharing of CPU time.
//!
//! # Properties
//! - Repeatable: the same machine, scenario and seed give the same figures. Only `stock` uses
//!   random numbers.
//! - No node gives more CPU time than its CPUs have, and the completed work equals the requested
//!   work.
//! - No contender is faster than the bound.
//!
//! # Limits
//! The model has no caches (each line comes from memory), program text, lines handed over between
//! CPUs, shared memory, SMT siblings, costs of switches, scheduler and daemon, initial filling of
//! memory, weights and caps, links shared by several pairs of nodes, or NUMA balancing. Linux's
//! choice of CPUs takes a few lines here; `stock` is the least certain of all figures.
//!
//! docs/performance/simulator.md compares the figures with measured ones.

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
mod simulation;
mod thread;
mod world;

pub use contender::Contender;
pub use hardware::{ASSUMED_LOCAL_NS, Unsuited};
pub use scenario::{DomainPlan, Scenario, Work};
pub use simulation::{Decided, Options, Played, PlayedDomain, Progress, SimulateError, Simulation};

use nearside_topology::Topology;

/// Simulates `scenario` on the machine, without the processes that run there now.
///
/// # Errors The machine has no known CPUs, memory or distances, or a domain finds no memory.
pub fn simulate(
    topology: &Topology,
    scenario: &Scenario,
    options: &Options,
) -> Result<Simulation, SimulateError> {
    simulate_watched(topology, scenario, options, &mut |_| ())
}

/// As [`simulate`], and reports its progress each tick.
///
/// # Errors As [`simulate`].
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
