//! Schedules: the node of each thread in a tick. Three pure functions.
//!
//! The threads of a node share its CPUs equally, so a schedule is a node for each runnable thread.

use crate::{hardware::Hardware, random::Random};
use std::collections::BTreeMap;

/// A runnable thread as a scheduler knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runnable<'a> {
    /// The node of its last CPU; none for a new thread.
    pub(crate) last: Option<usize>,
    /// Whether it slept since then.
    pub(crate) woke: bool,
    /// The nodes that it prefers, or may not leave.
    pub(crate) home: &'a [usize],
}

/// Linux's interval of balancing busy CPUs, for each CPU of the machine: 1 ms x `busy_factor`
/// (`sd_init` and `get_sd_balance_interval`, `kernel/sched/topology.c` and `fair.c`).
const BUSY_BALANCE_NS_A_CPU: f64 = 16e6;

/// Threads by node.
struct Load<'a> {
    hardware: &'a Hardware,
    threads: Vec<Vec<usize>>,
}

impl<'a> Load<'a> {
    fn new(hardware: &'a Hardware) -> Self {
        Self { hardware, threads: vec![Vec::new(); hardware.nodes.len()] }
    }

    fn cpus(&self, node: usize) -> usize {
        self.hardware.nodes[node].cpus
    }

    /// Threads per CPU with so many more threads.
    fn crowd(&self, node: usize, more: isize) -> f64 {
        self.threads[node].len().saturating_add_signed(more) as f64 / self.cpus(node) as f64
    }

    fn idle_cpus(&self, node: usize) -> usize {
        self.cpus(node).saturating_sub(self.threads[node].len())
    }

    fn with_cpus(&self) -> impl Iterator<Item = usize> + use<> {
        let cpus: Vec<_> = self.hardware.nodes.iter().map(|node| node.cpus).collect();
        (0..cpus.len()).filter(move |&node| cpus[node] > 0)
    }

    /// The node with the most threads per CPU among nodes with waiting threads.
    fn most_crowded(&self) -> Option<usize> {
        let waits = |&node: &usize| self.threads[node].len() > self.cpus(node);
        self.with_cpus()
            .filter(waits)
            .max_by(|&a, &b| self.crowd(a, 0).total_cmp(&self.crowd(b, 0)).then(b.cmp(&a)))
    }

    /// The least crowded node of a home, the first among equals; of all nodes if the home has no
    /// CPU.
    fn least_crowded(&self, home: &[usize]) -> usize {
        let less = |&a: &usize, &b: &usize| self.crowd(a, 1).total_cmp(&self.crowd(b, 1));
        let at_home = home.iter().copied().filter(|&node| self.cpus(node) > 0).min_by(less);
        at_home.or_else(|| self.with_cpus().min_by(less)).unwrap_or(0)
    }

    fn nodes(self, threads: usize) -> Vec<usize> {
        let mut nodes = vec![0; threads];
        for (node, here) in self.threads.iter().enumerate() {
            here.iter().for_each(|&thread| nodes[thread] = node);
        }
        nodes
    }
}

/// Threads never leave their home.
pub(crate) fn pinned(hardware: &Hardware, runnable: &[Runnable<'_>]) -> Vec<usize> {
    let mut load = Load::new(hardware);
    for (thread, Runnable { home, .. }) in runnable.iter().enumerate() {
        let node = load.least_crowded(home);
        load.threads[node].push(thread);
    }
    load.nodes(runnable.len())
}

/// Home first: the node of the last CPU, or else the least crowded node of the home. Surplus
/// threads run on the nearest nodes with idle CPUs; without any, on less crowded nodes, so that all
/// threads wait equally. The surplus threads change from tick to tick.
pub(crate) fn home_first(hardware: &Hardware, runnable: &[Runnable<'_>], tick: u64) -> Vec<usize> {
    let mut load = Load::new(hardware);
    let count = runnable.len();
    // The final number of threads of each node: a thread whose node has no more than that may stay.
    let fair = |cpus: usize| cpus.max((count * cpus).div_ceil(hardware.cpus()));
    let stays = |load: &Load<'_>, thread: usize| {
        let Runnable { last, home, .. } = runnable[thread];
        last.filter(|&last| {
            home.contains(&last) && load.threads[last].len() < fair(load.cpus(last))
        })
    };
    let (staying, last_in_turn) = turns(runnable, tick);
    let mut others = Vec::new();
    for thread in staying {
        match stays(&load, thread) {
            Some(node) => load.threads[node].push(thread),
            None => others.push(thread),
        }
    }
    for thread in others.into_iter().chain(last_in_turn) {
        let node =
            stays(&load, thread).unwrap_or_else(|| load.least_crowded(runnable[thread].home));
        load.threads[node].push(thread);
    }
    while let Some(from) = load.most_crowded() {
        let fair = load.crowd(from, -1);
        let others =
            || hardware.nearest(from).iter().copied().filter(|&to| to != from && load.cpus(to) > 0);
        let to = others()
            .find(|&to| load.idle_cpus(to) > 0)
            .or_else(|| others().find(|&to| load.crowd(to, 1) <= fair));
        let Some(to) = to else { break };
        let Some(thread) = load.threads[from].pop() else { break };
        load.threads[to].push(thread);
    }
    load.nodes(count)
}

/// All threads, those of each home in rotation, and separately the ones whose turn it is to leave.
/// Homes of the fewest nodes come first, since threads of other homes have a choice.
fn turns(runnable: &[Runnable<'_>], tick: u64) -> (Vec<usize>, Vec<usize>) {
    let mut by_home = BTreeMap::<(usize, &[usize]), Vec<usize>>::new();
    for (thread, of) in runnable.iter().enumerate() {
        by_home.entry((of.home.len(), of.home)).or_default().push(thread);
    }
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for mut threads in by_home.into_values() {
        let turn = tick as usize % threads.len();
        threads.rotate_left(turn);
        last.extend(threads.pop());
        first.extend(threads);
    }
    (first, last)
}

/// Linux without NUMA balancing: it ignores the place of memory.
#[derive(Debug)]
pub(crate) struct Anywhere {
    random: Random,
    balances_ns: f64,
}

impl Anywhere {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Random(seed), balances_ns: 0.0 }
    }

    /// A waking thread takes any idle CPU, a new one the least crowded node; other threads stay. A
    /// node with an idle CPU takes a waiting thread from elsewhere. In each balancing period, each
    /// node takes one thread from a most crowded node, even if it is as crowded itself: measured
    /// loads always differ.
    pub(crate) fn schedule(
        &mut self,
        hardware: &Hardware,
        runnable: &[Runnable<'_>],
        now_ns: f64,
    ) -> Vec<usize> {
        let mut load = Load::new(hardware);
        let nodes: Vec<usize> = load.with_cpus().collect();
        let mut to_choose = Vec::new();
        for (thread, of) in runnable.iter().enumerate() {
            match of.last {
                Some(node) if !of.woke => load.threads[node].push(thread),
                _ => to_choose.push(thread),
            }
        }
        for thread in to_choose {
            let node = match runnable[thread].last {
                Some(last) => self.any_idle(&load, &nodes).unwrap_or(last),
                None => self.any_least_crowded(&load, &nodes),
            };
            load.threads[node].push(thread);
        }
        for &to in &nodes {
            while load.idle_cpus(to) > 0 && self.take_from_most_crowded(&mut load, to) {}
        }
        if now_ns >= self.balances_ns {
            self.balances_ns = now_ns + BUSY_BALANCE_NS_A_CPU * hardware.cpus() as f64;
            for &to in &nodes {
                self.take_from_most_crowded(&mut load, to);
            }
        }
        load.nodes(runnable.len())
    }

    fn any_idle(&mut self, load: &Load<'_>, nodes: &[usize]) -> Option<usize> {
        let idle: Vec<_> = nodes
            .iter()
            .flat_map(|&node| std::iter::repeat_n(node, load.idle_cpus(node)))
            .collect();
        (!idle.is_empty()).then(|| idle[self.random.below(idle.len())])
    }

    fn any_least_crowded(&mut self, load: &Load<'_>, nodes: &[usize]) -> usize {
        let least = nodes.iter().map(|&node| load.crowd(node, 1)).fold(f64::INFINITY, f64::min);
        let equal: Vec<_> =
            nodes.iter().copied().filter(|&node| load.crowd(node, 1) <= least).collect();
        equal.get(self.random.below(equal.len().max(1))).copied().unwrap_or(0)
    }

    /// A thread from one of the most crowded nodes, if that has at least as many waiting threads as
    /// `to`.
    fn take_from_most_crowded(&mut self, load: &mut Load<'_>, to: usize) -> bool {
        let Some(most) = load.most_crowded().map(|node| load.crowd(node, 0)) else { return false };
        let from: Vec<_> =
            load.with_cpus().filter(|&node| node != to && load.crowd(node, 0) >= most).collect();
        if from.is_empty() {
            return false;
        }
        let from = from[self.random.below(from.len())];
        let at = self.random.below(load.threads[from].len());
        let thread = load.threads[from].swap_remove(at);
        load.threads[to].push(thread);
        true
    }
}

#[cfg(test)]
mod tests;
