//! The bound: local lines only, unlimited bandwidth, ideal sharing of CPU time. No contender is
//! faster.

use crate::{
    hardware::Hardware,
    scenario::{DomainPlan, Scenario, Work},
};

/// CPU time of all work of a domain.
fn work_ns(plan: &DomainPlan, line_ns: f64) -> f64 {
    let rounds = plan.threads * plan.work.rounds + plan.later_threads * plan.later_rounds;
    rounds as f64 * plan.work.round_ns(line_ns)
}

/// Duration of a thread's first `rounds` without any wait.
fn path_ns(work: &Work, rounds: u64, line_ns: f64) -> f64 {
    let pauses = rounds.div_ceil(work.pause_rounds).saturating_sub(1);
    rounds as f64 * work.round_ns(line_ns) + pauses as f64 * work.pause_ns as f64
}

/// The earliest time at which all work can be done.
pub(crate) fn bound_ns(hardware: &Hardware, scenario: &Scenario) -> f64 {
    let line_ns = hardware.least_latency_ns();
    let start_ns = |plan: &DomainPlan| plan.start_ms as f64 * 1e6;
    let alone_ns = |plan: &DomainPlan| {
        let path_ns = |rounds| path_ns(&plan.work, rounds, line_ns);
        let later_ns = match plan.later_threads {
            0 => 0.0,
            _ => path_ns(plan.later_after_rounds) + path_ns(plan.later_rounds),
        };
        start_ns(plan) + path_ns(plan.work.rounds).max(later_ns)
    };
    // Domains that start at some time or later have all CPUs from then on.
    let together_ns = |first: &DomainPlan| {
        let from_then_on = scenario.domains.iter().filter(|plan| plan.start_ms >= first.start_ms);
        let all_ns: f64 = from_then_on.map(|plan| work_ns(plan, line_ns)).sum();
        start_ns(first) + all_ns / hardware.cpus() as f64
    };
    scenario.domains.iter().map(|plan| alone_ns(plan).max(together_ns(plan))).fold(0.0, f64::max)
}

/// CPU time of all work.
pub(crate) fn all_work_ns(hardware: &Hardware, scenario: &Scenario) -> f64 {
    scenario.domains.iter().map(|plan| work_ns(plan, hardware.least_latency_ns())).sum()
}
