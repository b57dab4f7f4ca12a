//! A machine in software. It asks the scheduler's own decisions in the order in which the BPF
//! program asks them.

mod dispatch;
mod enqueue;
mod groups;
mod place;

use crate::cpus::Cpus;
use nearside_credit::{Cap, Grant, Group, ONE, Params};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

/// As in `state.h` and `dispatch.h`.
const TICK_NS: u64 = 10_000_000;
const MAX_THROTTLED_NS: u64 = 8_000_000_000;
const LOOKED_AT: usize = 8;
const ANYWHERE: u32 = 256;

/// The work of a task.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// Always wants a CPU.
    Burns,
    /// Runs for so long, then sleeps for so long.
    Naps(u64, u64),
}

#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) group: usize,
    pub(crate) home: usize,
    /// The set of nodes it prefers; none means that it is at home where it is.
    pub(crate) affine: u64,
    /// The set of CPUs it may use.
    pub(crate) allowed: Cpus,
    /// The nodes of these CPUs.
    allowed_nodes: u64,
    pub(crate) weight: u32,
    pub(crate) work: Work,
    pub(crate) used_ns: u64,
    pub(crate) by_node_ns: Vec<u64>,
    pub(crate) longest_wait_ns: u64,
    pub(crate) last_cpu: usize,
    grant: Grant,
    /// The total cost of its CPU time among the tasks of its group.
    own: u64,
    /// In a queue, of this grant.
    place: u64,
    since_ns: u64,
    woken_ns: u64,
    queued_ns: u64,
    moved_ns: u64,
    left_ns: u64,
    /// Since it last slept, and on average.
    ran_ns: u64,
    runs_ns: u64,
    has_slept: bool,
    leads: bool,
    waits: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    task: Option<usize>,
    /// Between two tasks: neither idle nor to be claimed.
    switches: bool,
    foreign: bool,
    tag: u64,
    until_ns: u64,
    balanced_ns: u64,
    /// When it last added to the average of places.
    noted_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) params: Params,
    pub(crate) tasks: Vec<Task>,
    pub(crate) groups: Vec<Group>,
    pub(crate) caps: Vec<Cap>,
    /// The group that each is nested in.
    pub(crate) parents: Vec<Option<usize>>,
    pub(crate) balanced: u64,
    /// The number of times a task came to a CPU, and how often it was not its last one.
    pub(crate) starts: u64,
    pub(crate) changes: u64,
    /// CPUs that were compared for woken tasks, and the most compared for one of them.
    pub(crate) compared: u64,
    pub(crate) max_compared: u64,
    /// Throttled tasks that the timer asked for, and those of them that went on.
    pub(crate) asked: u64,
    pub(crate) released: u64,
    /// CPU time that passed with a CPU idle and a task waiting that may use it.
    pub(crate) wasted_ns: u64,
    /// Slices end at multiples of this.
    pub(crate) tick_ns: u64,
    distances: Vec<Vec<u32>>,
    caches_a_node: usize,
    cpus_a_cache: usize,
    threads_a_core: usize,
    weights: Vec<u64>,
    /// The place of each group's tasks among each other.
    own_now: Vec<u64>,
    cpus: Vec<Cpu>,
    /// One for each cache, in the order in which tasks are taken.
    queues: Vec<Vec<usize>>,
    /// The CPU that was too late for a queue's task, and is called when the next one comes.
    wanted: Vec<Option<usize>>,
    called: BTreeSet<usize>,
    /// By the group whose cap refused the task, in the order in which they came.
    throttled: BTreeMap<usize, VecDeque<usize>>,
    sleeping: BTreeSet<(u64, usize)>,
    now_v: u64,
    time_ns: u64,
    timer_ns: u64,
}

impl Task {
    /// It never sleeps again once it has woken up.
    pub(crate) fn burns_from_now_on(&mut self) {
        self.work = Work::Burns;
        self.left_ns = u64::MAX;
    }
}

impl Machine {
    pub(crate) fn new(distances: &[&[u32]], cpus_a_node: usize) -> Self {
        let distances: Vec<Vec<u32>> = distances.iter().map(|row| row.to_vec()).collect();
        Self::shaped(&distances, 1, cpus_a_node, 1)
    }

    /// CPUs are numbered node by node, in that cache by cache, in that core by core.
    pub(crate) fn shaped(
        distances: &[Vec<u32>],
        caches_a_node: usize,
        cores_a_cache: usize,
        threads_a_core: usize,
    ) -> Self {
        let cpus_a_cache = cores_a_cache * threads_a_core;
        let queues = distances.len() * caches_a_node;
        let cpus = queues * cpus_a_cache;
        assert!(cpus <= Cpus::MAX, "more CPUs than a set holds");
        Self {
            params: Params::new(cpus as u32),
            tasks: vec![],
            groups: vec![],
            caps: vec![],
            parents: vec![],
            balanced: 0,
            starts: 0,
            changes: 0,
            compared: 0,
            max_compared: 0,
            asked: 0,
            released: 0,
            wasted_ns: 0,
            tick_ns: 1,
            distances: distances.to_vec(),
            caches_a_node,
            cpus_a_cache,
            threads_a_core,
            weights: vec![],
            own_now: vec![],
            cpus: vec![Cpu::default(); cpus],
            queues: vec![vec![]; queues],
            wanted: vec![None; queues],
            called: BTreeSet::new(),
            throttled: BTreeMap::new(),
            sleeping: BTreeSet::new(),
            now_v: u64::MAX - 1_000_000_000, // virtual time wraps during the tests
            time_ns: 0,
            timer_ns: TICK_NS,
        }
    }

    /// A group of this weight with tasks at these homes.
    pub(crate) fn group(&mut self, weight: u64, homes: &[usize], work: Work) -> usize {
        let group = self.groups.len();
        self.groups.push(Group {
            vtime: self.now_v,
            front: self.now_v,
            share: ONE,
            ..Group::default()
        });
        self.caps.push(Cap::default());
        self.parents.push(None);
        self.weights.push(weight);
        self.own_now.push(0);
        for &home in homes {
            self.task(group, home, 1 << home, Cpus::ALL, work);
        }
        group
    }

    pub(crate) fn task(
        &mut self,
        group: usize,
        home: usize,
        affine: u64,
        allowed: impl Into<Cpus>,
        work: Work,
    ) -> usize {
        let allowed = allowed.into() & Cpus::first(self.cpus.len());
        let cpus = (0..self.cpus.len()).filter(|&cpu| allowed.contains(cpu));
        let allowed_nodes = cpus.fold(0, |nodes, cpu| nodes | 1 << self.node_of(cpu));
        let last_cpu = allowed.lowest().expect("a CPU that the task may use");
        self.tasks.push(Task {
            group,
            home,
            affine,
            allowed,
            allowed_nodes,
            weight: 100,
            work,
            used_ns: 0,
            by_node_ns: vec![0; self.distances.len()],
            longest_wait_ns: 0,
            last_cpu,
            grant: Grant::default(),
            own: self.own_now[group],
            place: 0,
            since_ns: 0,
            woken_ns: 0,
            queued_ns: 0,
            moved_ns: 0,
            left_ns: if let Work::Naps(burn, _) = work { burn } else { u64::MAX },
            ran_ns: 0,
            runs_ns: self.params.slice_ns,
            has_slept: false,
            leads: false,
            waits: false,
        });
        self.tasks.len() - 1
    }

    pub(crate) fn cap(&mut self, group: usize, quota_ns: u64, period_ns: u64) {
        let (start_ns, budget_ns) = (self.time_ns, quota_ns as i64);
        self.caps[group] = Cap { quota_ns, period_ns, burst_ns: 0, start_ns, budget_ns };
    }

    /// CPU time of the group's own tasks.
    pub(crate) fn used_ns(&self, group: usize) -> u64 {
        self.tasks.iter().filter(|task| task.group == group).map(|task| task.used_ns).sum()
    }

    /// CPU time of the group and of all groups nested in it.
    pub(crate) fn used_below_ns(&self, group: usize) -> u64 {
        let within = |&other: &usize| self.path(other).any(|above| above == group);
        (0..self.groups.len()).filter(within).map(|group| self.used_ns(group)).sum()
    }

    /// The time for which a task waits by now.
    pub(crate) fn waits_ns(&self, task: &Task) -> u64 {
        if task.waits { self.time_ns - task.queued_ns } else { 0 }
    }

    /// The longest wait of any task, also of one that still waits.
    pub(crate) fn longest_wait_ns(&self) -> u64 {
        let waits = self.tasks.iter().map(|task| task.longest_wait_ns.max(self.waits_ns(task)));
        waits.max().unwrap_or(0)
    }

    /// Runs the machine. Tasks that were added since come in one after the other.
    pub(crate) fn run(&mut self, span_ns: u64) {
        let end_ns = self.time_ns + span_ns;
        for task in 0..self.tasks.len() {
            let known = self.cpus.iter().any(|cpu| cpu.task == Some(task))
                || self.queued(task)
                || self.sleeping.iter().any(|&(_, other)| other == task);
            if !known {
                self.sleeping.insert((self.time_ns, task));
            }
        }
        loop {
            let wake = self.sleeping.first().map_or(u64::MAX, |&(at, _)| at);
            let timer =
                if self.throttled.is_empty() { u64::MAX } else { self.timer_ns.max(self.time_ns) };
            let (cpu, stop) = (0..self.cpus.len())
                .filter(|&cpu| self.cpus[cpu].task.is_some())
                .map(|cpu| (cpu, self.cpus[cpu].until_ns))
                .min_by_key(|&(_, at)| at)
                .unwrap_or((0, u64::MAX));
            let next = wake.min(stop).min(timer);
            let to = next.min(end_ns);
            self.wasted_ns += (to - self.time_ns) * u64::from((self.idle() & self.wanted()).len());
            self.time_ns = to;
            if next >= end_ns {
                break;
            }
            if timer <= wake.min(stop) {
                self.timer();
            } else if wake <= stop {
                let (_, task) = self.sleeping.pop_first().expect("a sleeping task");
                self.wake(task);
            } else {
                self.dispatch(cpu);
            }
        }
    }

    /// Whether the task is in a queue, or waits for a cap.
    fn queued(&self, task: usize) -> bool {
        let throttled = self.throttled.values().flatten();
        self.queues.iter().flatten().chain(throttled).any(|&other| other == task)
    }

    fn idle(&self) -> Cpus {
        (0..self.cpus.len()).filter(|&cpu| self.is_idle(cpu)).collect()
    }

    fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].task.is_none() && !self.cpus[cpu].switches
    }

    /// The CPUs that some waiting task may use.
    fn wanted(&self) -> Cpus {
        let waiting = self.queues.iter().flatten();
        waiting.fold(Cpus::NONE, |set, &task| set.union(self.tasks[task].allowed))
    }

    pub(crate) fn queue_of(&self, cpu: usize) -> usize {
        cpu / self.cpus_a_cache
    }

    pub(crate) fn node_of(&self, cpu: usize) -> usize {
        self.queue_of(cpu) / self.caches_a_node
    }

    /// The CPUs of a core, of a queue.
    fn core(&self, cpu: usize) -> Range<usize> {
        let core = cpu / self.threads_a_core;
        core * self.threads_a_core..(core + 1) * self.threads_a_core
    }

    fn members(&self, queue: usize) -> Range<usize> {
        queue * self.cpus_a_cache..(queue + 1) * self.cpus_a_cache
    }

    /// All queues from one: itself, those of its node, then by distance. As the loader has it
    /// (`machine.rs`).
    fn nearest(&self, from: usize) -> Vec<usize> {
        let (nodes, here) = (self.distances.len(), from / self.caches_a_node);
        let mut all: Vec<usize> = (0..self.queues.len()).collect();
        all.sort_by_key(|&to| {
            let there = to / self.caches_a_node;
            (to != from, there != here, self.distances[here][there], (there + nodes - here) % nodes)
        });
        all
    }

    fn may_use(&self, task: usize, cpu: usize) -> bool {
        self.tasks[task].allowed.contains(cpu)
    }
}

/// Evenness of shares: 1 if all are equal, 1/n if one has all.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}
