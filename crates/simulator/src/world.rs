//! The simulated machine: domains, their threads and memory, and the passing of time.

use crate::{
    bandwidth::Queues,
    hardware::Hardware,
    scenario::DomainPlan,
    schedule::Runnable,
    thread::{Ran, Thread},
};
use nearside_policy::{ByNode, Claim, Home, MoveReport, PartLoad};

/// Within a tick, threads fall asleep and wake; nothing else changes.
pub(crate) const TICK_NS: u64 = 1_000_000;
const TICK: f64 = TICK_NS as f64;
/// The unit of a CPU's memory accesses.
pub(crate) const LINE_BYTES: u64 = 64;

/// A running or finished domain.
#[derive(Debug)]
pub(crate) struct Domain<'a> {
    pub(crate) plan: &'a DomainPlan,
    /// Its index in the scenario.
    pub(crate) number: usize,
    /// Indices of its preferred nodes; all nodes without a home.
    pub(crate) nodes: Vec<usize>,
    /// Its facts for the policy.
    pub(crate) home: Option<Home>,
    pub(crate) claim: Option<Claim>,
    pub(crate) has_grown: bool,
    pub(crate) start_ns: f64,
    pub(crate) done_ns: Option<f64>,
    pub(crate) counts: Counts,
    /// Activity since the last observation of the control loop.
    pub(crate) untold: PartLoad,
}

/// Counters of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Counts {
    pub(crate) cpu_ns: f64,
    pub(crate) rounds: f64,
    pub(crate) lines: f64,
    pub(crate) local_lines: f64,
    pub(crate) moved_bytes: u64,
    pub(crate) home_changes: u64,
}

/// The CPU time offered to a thread in a tick.
#[derive(Debug, Clone, Copy)]
enum Time {
    /// This share of a CPU during the whole tick.
    Share(f64),
    /// So many ns more, at some time in the tick.
    More(f64),
}

/// The machine and its domains at one moment.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) hardware: &'a Hardware,
    pub(crate) tick: u64,
    pub(crate) domains: Vec<Domain<'a>>,
    pub(crate) threads: Vec<Thread>,
    queues: Queues,
    /// By node: CPU time that page moves still need.
    pub(crate) moving_ns: Vec<f64>,
    /// By node: CPU time used since the last observation of the control loop.
    pub(crate) busy_ns: Vec<f64>,
    /// Results of page moves since then.
    pub(crate) moved: Vec<MoveReport>,
}

impl<'a> World<'a> {
    pub(crate) fn new(hardware: &'a Hardware) -> Self {
        let n = hardware.nodes.len();
        let (moving_ns, busy_ns) = (vec![0.0; n], vec![0.0; n]);
        let (domains, threads, moved) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            hardware,
            tick: 0,
            domains,
            threads,
            queues: Queues::new(n),
            moving_ns,
            busy_ns,
            moved,
        }
    }

    pub(crate) fn now_ns(&self) -> f64 {
        self.tick as f64 * TICK
    }

    pub(crate) fn is_done(&self) -> bool {
        self.domains.iter().all(|domain| domain.done_ns.is_some())
    }

    /// Memory of a domain by node.
    pub(crate) fn resident_bytes(&self, domain: usize) -> ByNode {
        let of_domain = self.threads.iter().filter(|thread| thread.domain == domain);
        let mut resident = ByNode::new();
        for thread in of_domain {
            for (node, &bytes) in
                self.hardware.nodes.iter().zip(&thread.bytes).filter(|(_, bytes)| **bytes > 0)
            {
                *resident.entry(node.id).or_default() += bytes;
            }
        }
        resident
    }

    pub(crate) fn free_bytes(&self, node: usize) -> u64 {
        let held: u64 = self.threads.iter().map(|thread| thread.bytes[node]).sum();
        self.hardware.nodes[node].memory_bytes.saturating_sub(held)
    }

    /// Adds a thread, which has not run yet.
    pub(crate) fn add_thread(&mut self, domain: usize, rounds: u64) {
        let awake_ns = self.now_ns();
        let bytes = vec![0; self.hardware.nodes.len()];
        let node = usize::MAX;
        let all_rounds = rounds as f64;
        self.threads.push(Thread {
            domain,
            bytes,
            node,
            awake_ns,
            woke: false,
            all_rounds,
            rounds: 0.0,
            done_ns: None,
        });
    }

    /// Allocates a thread's memory at its first touch: on its node, or the nearest node of its
    /// home, or the nearest with room. Fails with the bytes that fit nowhere.
    fn touch(&mut self, thread: usize, bytes: u64) -> u64 {
        let nearest = self.hardware.nearest(self.threads[thread].node);
        let home = &self.domains[self.threads[thread].domain].nodes;
        let (at_home, elsewhere): (Vec<usize>, Vec<usize>) =
            nearest.iter().partition(|&node| home.contains(node));
        let mut left = bytes;
        for node in at_home.into_iter().chain(elsewhere) {
            let part = left.min(self.free_bytes(node));
            self.threads[thread].bytes[node] += part;
            left -= part;
        }
        left
    }

    /// The threads that can run in this tick, in the form that schedulers use.
    pub(crate) fn runnable(&self) -> (Vec<usize>, Vec<Runnable<'_>>) {
        let (from_ns, until_ns) = (self.now_ns(), self.now_ns() + TICK);
        let can_run = |&thread: &usize| self.threads[thread].wants_ns(from_ns, until_ns) > 0.0;
        let threads: Vec<usize> = (0..self.threads.len()).filter(can_run).collect();
        let known = |&thread: &usize| {
            let Thread { node, woke, domain, .. } = self.threads[thread];
            let last = (node != usize::MAX).then_some(node);
            Runnable { last, woke, home: &self.domains[domain].nodes }
        };
        let runnable = threads.iter().map(known).collect();
        (threads, runnable)
    }

    /// Advances one tick, with `threads` running on `nodes`. Fails with a domain without room for
    /// its memory, and the missing bytes.
    pub(crate) fn run(&mut self, threads: &[usize], nodes: &[usize]) -> Result<(), (usize, u64)> {
        for (&thread, &node) in threads.iter().zip(nodes) {
            let is_new = self.threads[thread].node == usize::MAX;
            self.threads[thread].node = node;
            self.threads[thread].woke = false;
            if is_new {
                let domain = self.threads[thread].domain;
                let missing = self.touch(thread, self.domains[domain].plan.thread_memory_bytes);
                if missing > 0 {
                    return Err((domain, missing));
                }
            }
        }
        for node in 0..self.hardware.nodes.len() {
            let here = threads.iter().zip(nodes).filter(|(_, on)| **on == node);
            let here: Vec<usize> = here.map(|(&thread, _)| thread).collect();
            self.run_node(node, &here);
        }
        self.queues.end_of_tick(self.hardware, TICK);
        self.tick += 1;
        self.grow_and_end();
        Ok(())
    }

    /// The threads of a node share its CPUs for a tick; threads that stay awake get the time of
    /// those that fall asleep.
    fn run_node(&mut self, node: usize, threads: &[usize]) {
        let (from_ns, until_ns) = (self.now_ns(), self.now_ns() + TICK);
        let all_ns = self.hardware.nodes[node].cpus as f64 * TICK;
        let moving_ns = self.moving_ns[node].min(TICK).min(all_ns);
        self.moving_ns[node] -= moving_ns;
        self.busy_ns[node] += moving_ns;
        let mut left_ns = all_ns - moving_ns;
        let wants: Vec<f64> = threads
            .iter()
            .map(|&thread| self.threads[thread].wants_ns(from_ns, until_ns))
            .collect();
        let share = (left_ns / wants.iter().sum::<f64>()).min(1.0);
        let mut waited_ns = wants;
        for (&thread, waited_ns) in threads.iter().zip(&mut waited_ns) {
            let used_ns = self.run_thread(thread, node, Time::Share(share));
            left_ns -= used_ns;
            if share > 0.0 {
                *waited_ns = used_ns / share * (1.0 - share);
            }
        }
        let is_awake = |thread: &Thread| thread.done_ns.is_none() && thread.awake_ns <= until_ns;
        let awake = threads.iter().filter(|&&thread| is_awake(&self.threads[thread])).count();
        let part_ns = left_ns.max(0.0) / awake as f64;
        for (&thread, mut waited_ns) in threads.iter().zip(waited_ns) {
            if waited_ns > 0.0 && is_awake(&self.threads[thread]) {
                waited_ns -= self.run_thread(thread, node, Time::More(part_ns.min(waited_ns)));
            }
            self.domains[self.threads[thread].domain].untold.waited_ns += waited_ns.max(0.0) as u64;
        }
    }

    /// The CPU time that a thread used of its offer in this tick.
    fn run_thread(&mut self, at: usize, node: usize, given: Time) -> f64 {
        let (from_ns, until_ns) = (self.now_ns(), self.now_ns() + TICK);
        let thread = &mut self.threads[at];
        let domain = &mut self.domains[thread.domain];
        let work = &domain.plan.work;
        let all_bytes: u64 = thread.bytes.iter().sum();
        let parts = thread.bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        let parts: Vec<_> =
            parts.map(|(to, &bytes)| (to, bytes as f64 / all_bytes as f64)).collect();
        let line_ns = |&(to, part): &(usize, f64)| {
            part * self.hardware.latency_ns(node, to) * self.queues.stretch(node, to)
        };
        let round_ns = work.round_ns(parts.iter().map(line_ns).sum());
        let Ran { cpu_ns, rounds, .. } = match given {
            Time::Share(share) => thread.run(work, round_ns, from_ns, until_ns, share),
            Time::More(given_ns) => thread.run_more(work, round_ns, until_ns, given_ns),
        };
        let lines = rounds * work.all_lines();
        for (to, part) in parts {
            self.queues.pass(node, to, lines * part * LINE_BYTES as f64);
            domain.counts.local_lines += if to == node { lines * part } else { 0.0 };
        }
        domain.counts.lines += lines;
        domain.counts.cpu_ns += cpu_ns;
        domain.counts.rounds += rounds;
        *domain.untold.cpu_ns.entry(self.hardware.nodes[node].id).or_default() += cpu_ns as u64;
        self.busy_ns[node] += cpu_ns;
        cpu_ns
    }

    /// Starts later threads; ends domains whose threads are all done, and frees their memory.
    fn grow_and_end(&mut self) {
        // By domain: rounds of its first thread, and the end of its last thread.
        let mut first_rounds = vec![None; self.domains.len()];
        let mut last_done_ns = vec![Some(0.0); self.domains.len()];
        for &Thread { domain, rounds, done_ns, .. } in &self.threads {
            first_rounds[domain].get_or_insert(rounds);
            last_done_ns[domain] =
                last_done_ns[domain].zip(done_ns).map(|(last, done)| f64::max(last, done));
        }
        for (at, (first_rounds, last_done_ns)) in
            first_rounds.into_iter().zip(last_done_ns).enumerate()
        {
            let Domain { plan, has_grown, done_ns, .. } = self.domains[at];
            if done_ns.is_some() {
                continue;
            }
            if !has_grown
                && first_rounds.is_some_and(|rounds| rounds >= plan.later_after_rounds as f64)
            {
                self.domains[at].has_grown = true;
                (0..plan.later_threads).for_each(|_| self.add_thread(at, plan.later_rounds));
            } else if last_done_ns.is_some() {
                self.domains[at].done_ns = last_done_ns;
                self.threads.retain(|thread| thread.domain != at);
            }
        }
    }

    /// Moves pages of a domain between two nodes as far as there is room; returns the moved bytes.
    pub(crate) fn move_pages(
        &mut self,
        domain: usize,
        from: usize,
        to: usize,
        max_bytes: u64,
    ) -> u64 {
        let mut left = max_bytes.min(self.free_bytes(to));
        let all = left;
        for thread in self.threads.iter_mut().filter(|thread| thread.domain == domain) {
            let part = left.min(thread.bytes[from]);
            thread.bytes[from] -= part;
            thread.bytes[to] += part;
            left -= part;
        }
        let moved_bytes = all - left;
        self.domains[domain].counts.moved_bytes += moved_bytes;
        // Reads at the source, writes at the target.
        self.queues.pass(to, from, moved_bytes as f64);
        self.queues.pass(to, to, moved_bytes as f64);
        moved_bytes
    }
}
