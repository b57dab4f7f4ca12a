//! A machine in software that makes every decision with the scheduler's own code, and the glue's order of asking.

use nearside_credit::{self as credit, Grant, Group, ONE, Params, Place};
use std::collections::BTreeSet;

/// What a task does.
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
    pub(crate) weight: u32,
    pub(crate) work: Work,
    pub(crate) used_ns: u64,
    pub(crate) by_node_ns: Vec<u64>,
    pub(crate) longest_wait_ns: u64,
    grant: Grant,
    since_ns: u64,
    woken_ns: u64,
    left_ns: u64,
    waits: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    task: Option<usize>,
    tag: u64,
    until_ns: u64,
    balanced_ns: u64,
    moved_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) params: Params,
    pub(crate) tasks: Vec<Task>,
    pub(crate) groups: Vec<Group>,
    pub(crate) balanced: u64,
    /// CPU time that passed with a CPU idle and a task waiting.
    pub(crate) wasted_ns: u64,
    /// Slices end at multiples of this.
    pub(crate) tick_ns: u64,
    distances: Vec<Vec<u32>>,
    cpus_a_node: usize,
    weights: Vec<u64>,
    cpus: Vec<Cpu>,
    queues: Vec<Vec<usize>>,
    sleeping: BTreeSet<(u64, usize)>,
    now_v: u64,
    time_ns: u64,
}

impl Machine {
    pub(crate) fn new(distances: &[&[u32]], cpus_a_node: usize) -> Self {
        let cpus = distances.len() * cpus_a_node;
        Self {
            params: Params::new(cpus as u32),
            tasks: vec![],
            groups: vec![],
            balanced: 0,
            wasted_ns: 0,
            tick_ns: 1,
            distances: distances.iter().map(|row| row.to_vec()).collect(),
            cpus_a_node,
            weights: vec![],
            cpus: vec![Cpu::default(); cpus],
            queues: vec![vec![]; distances.len()],
            sleeping: BTreeSet::new(),
            now_v: u64::MAX - 1_000_000_000, // virtual time wraps during the tests
            time_ns: 0,
        }
    }

    /// A group of this weight with tasks at these homes.
    pub(crate) fn group(&mut self, weight: u64, homes: &[usize], work: Work) -> usize {
        let group = self.groups.len();
        self.groups.push(Group { vtime: self.now_v, share: ONE, runnable: 0, waiting: 0 });
        self.weights.push(weight);
        for &home in homes {
            self.tasks.push(Task {
                group,
                home,
                weight: 100,
                work,
                used_ns: 0,
                by_node_ns: vec![0; self.queues.len()],
                longest_wait_ns: 0,
                grant: Grant::default(),
                since_ns: 0,
                woken_ns: 0,
                left_ns: if let Work::Naps(burn, _) = work { burn } else { u64::MAX },
                waits: false,
            });
        }
        group
    }

    pub(crate) fn used_ns(&self, group: usize) -> u64 {
        self.tasks.iter().filter(|task| task.group == group).map(|task| task.used_ns).sum()
    }

    /// Runs the machine. Tasks that were added since come in one after the other.
    pub(crate) fn run(&mut self, span_ns: u64) {
        let end_ns = self.time_ns + span_ns;
        for task in 0..self.tasks.len() {
            let known = self.cpus.iter().any(|cpu| cpu.task == Some(task))
                || self.queues.iter().flatten().any(|&other| other == task)
                || self.sleeping.iter().any(|&(_, other)| other == task);
            if !known {
                self.sleeping.insert((self.time_ns, task));
            }
        }
        loop {
            let wake = self.sleeping.first().map_or(u64::MAX, |&(at, _)| at);
            let (cpu, stop) = (0..self.cpus.len())
                .filter(|&cpu| self.cpus[cpu].task.is_some())
                .map(|cpu| (cpu, self.cpus[cpu].until_ns))
                .min_by_key(|&(_, at)| at)
                .unwrap_or((0, u64::MAX));
            let next = wake.min(stop);
            let to = next.min(end_ns);
            if self.queues.iter().any(|queue| !queue.is_empty()) {
                self.wasted_ns +=
                    (to - self.time_ns) * self.cpus.iter().filter(|cpu| cpu.task.is_none()).count() as u64;
            }
            self.time_ns = to;
            if next >= end_ns {
                break;
            }
            if wake <= stop {
                let (_, task) = self.sleeping.pop_first().expect("somebody sleeps");
                self.wake(task);
            } else {
                self.dispatch(cpu);
            }
        }
    }

    fn node(&self, cpu: usize) -> usize {
        cpu / self.cpus_a_node
    }

    fn nearest(&self, from: usize) -> Vec<usize> {
        let nodes = self.queues.len();
        let mut all: Vec<usize> = (0..nodes).collect();
        all.sort_by_key(|&to| (self.distances[from][to], (to + nodes - from) % nodes));
        all
    }

    fn share(&mut self, group: usize) {
        let active = (0..self.groups.len()).filter(|&g| self.groups[g].runnable > 0).map(|g| self.weights[g]).sum();
        self.groups[group].share = credit::share(ONE, self.weights[group], active);
    }

    fn wake(&mut self, task: usize) {
        let group = self.tasks[task].group;
        self.groups[group].runnable += 1;
        self.tasks[task].woken_ns = self.time_ns;
        self.enqueue(task, true);
    }

    fn grant(&mut self, task: usize, woken: bool) {
        let group = self.tasks[task].group;
        self.share(group);
        let tag = credit::tag(&self.params, &self.groups[group], self.now_v, woken);
        let slice_ns = credit::slice(&self.params, self.tasks[task].weight);
        self.tasks[task].grant = credit::reserve(&mut self.groups[group], tag, slice_ns);
    }

    fn enqueue(&mut self, task: usize, woken: bool) {
        self.grant(task, woken);
        self.tasks[task].since_ns = self.time_ns;
        let home = self.tasks[task].home;
        for node in self.nearest(home) {
            let cpus = node * self.cpus_a_node..(node + 1) * self.cpus_a_node;
            if let Some(cpu) = cpus.clone().find(|&cpu| self.cpus[cpu].task.is_none()) {
                return self.start(cpu, task);
            }
        }
        self.queues[home].push(task);
        self.tasks[task].waits = true;
        self.groups[self.tasks[task].group].waiting += 1;
        if woken {
            let victims = home * self.cpus_a_node..(home + 1) * self.cpus_a_node;
            let latest = victims.reduce(|a, b| if credit::before(self.cpus[a].tag, self.cpus[b].tag) { b } else { a });
            let victim = latest.expect("a node has CPUs");
            if credit::preempts(&self.params, self.tasks[task].grant.tag, self.cpus[victim].tag) {
                self.dispatch(victim);
            }
        }
    }

    fn start(&mut self, cpu: usize, task: usize) {
        let waited = self.tasks[task].waits;
        if waited {
            self.tasks[task].waits = false;
            self.groups[self.tasks[task].group].waiting -= 1;
            let wait_ns = self.time_ns - self.tasks[task].since_ns;
            self.tasks[task].longest_wait_ns = self.tasks[task].longest_wait_ns.max(wait_ns);
        }
        self.run_on(cpu, task, waited, false);
    }

    fn run_on(&mut self, cpu: usize, task: usize, waited: bool, kept: bool) {
        let Task { grant, left_ns, .. } = self.tasks[task];
        self.now_v = credit::now(self.now_v, grant.tag, waited);
        self.tasks[task].since_ns = self.time_ns;
        self.cpus[cpu] = Cpu {
            task: Some(task),
            tag: grant.tag,
            until_ns: self
                .time_ns
                .saturating_add(left_ns)
                .min((self.time_ns + grant.slice_ns).next_multiple_of(self.tick_ns)),
            balanced_ns: self.cpus[cpu].balanced_ns,
            moved_ns: if kept { self.cpus[cpu].moved_ns } else { self.time_ns },
        };
    }

    /// Charges the task that runs; whether it still wants to.
    fn charge(&mut self, cpu: usize, task: usize) -> bool {
        let node = self.node(cpu);
        let state = &mut self.tasks[task];
        let used_ns = self.time_ns - state.since_ns;
        state.since_ns = self.time_ns;
        state.used_ns += used_ns;
        state.by_node_ns[node] += used_ns;
        credit::settle(&mut self.groups[state.group], &state.grant, used_ns);
        let Work::Naps(burn_ns, sleep_ns) = state.work else { return true };
        state.left_ns -= used_ns;
        if state.left_ns > 0 {
            return true;
        }
        state.left_ns = burn_ns;
        self.groups[state.group].runnable -= 1;
        self.sleeping.insert((self.time_ns + sleep_ns, task));
        false
    }

    fn head(&self, node: usize) -> Option<usize> {
        self.queues[node]
            .iter()
            .copied()
            .reduce(|a, b| if credit::before(self.tasks[b].grant.tag, self.tasks[a].grant.tag) { b } else { a })
    }

    fn take(&mut self, node: usize, task: usize) {
        self.queues[node].retain(|&other| other != task);
    }

    /// The same questions in the same order as the callback of that name.
    fn dispatch(&mut self, cpu: usize) {
        let node = self.node(cpu);
        let previous = self.cpus[cpu].task.take().filter(|&task| self.charge(cpu, task));
        let all = u64::MAX >> (64 - self.queues.len());
        let away = previous.is_some_and(|task| {
            let home = self.tasks[task].home;
            credit::place(1 << home, all, home as u32, node as u32) == Place::Other
        });
        let mut own =
            previous.map(|task| credit::tag(&self.params, &self.groups[self.tasks[task].group], self.now_v, false));
        let head = self.head(node).map(|task| (task, self.tasks[task].grant.tag));
        let serves = head.filter(|&(_, tag)| match (own, previous) {
            (Some(own), Some(task)) if away => {
                let distance = self.distances[node][self.tasks[task].home];
                !credit::steals(&self.params, tag, own, distance, u64::MAX)
            }
            (Some(own), _) => credit::before(tag, own),
            _ => true,
        });
        own = serves.map(|(_, tag)| tag).or(own);

        if let Some(mut best) = own.filter(|_| self.time_ns - self.cpus[cpu].balanced_ns >= 1_000_000) {
            self.cpus[cpu].balanced_ns = self.time_ns;
            let mut found = None;
            for other in self.nearest(node).into_iter().skip(1) {
                let Some(task) = self.head(other) else { continue };
                let awake_ns = self.time_ns - self.tasks[task].woken_ns;
                let (tag, distance) = (self.tasks[task].grant.tag, self.distances[node][other]);
                if credit::steals(&self.params, best, tag, distance, awake_ns) {
                    best = credit::from_afar(&self.params, tag, distance);
                    found = Some((other, task));
                }
            }
            if let Some((other, task)) = found {
                self.balanced += 1;
                return self.replace(cpu, other, task, previous);
            }
        }
        if let Some((task, _)) = serves {
            return self.replace(cpu, node, task, previous);
        }
        if let Some(task) = previous {
            let stayed_ns = self.time_ns - self.cpus[cpu].moved_ns;
            if away && credit::returns(&self.params, stayed_ns, self.has_room(self.tasks[task].home)) {
                return self.go_home(task);
            }
            self.grant(task, false);
            return self.run_on(cpu, task, false, true);
        }
        for other in self.nearest(node) {
            if let Some(task) = self.head(other) {
                return self.replace(cpu, other, task, None);
            }
        }
    }

    fn is_foreign(&self, cpu: usize) -> bool {
        self.cpus[cpu].task.is_some_and(|task| self.tasks[task].home != self.node(cpu))
    }

    fn has_room(&self, home: usize) -> bool {
        let mut cpus = home * self.cpus_a_node..(home + 1) * self.cpus_a_node;
        cpus.any(|cpu| self.cpus[cpu].task.is_none() || self.is_foreign(cpu))
    }

    /// Its CPU is idle now; it waits at home, where a task from elsewhere makes room.
    fn go_home(&mut self, task: usize) {
        let home = self.tasks[task].home;
        let cpus = home * self.cpus_a_node..(home + 1) * self.cpus_a_node;
        if cpus.clone().any(|cpu| self.cpus[cpu].task.is_none()) {
            return self.enqueue(task, false);
        }
        let foreign = cpus.clone().find(|&cpu| self.is_foreign(cpu)).expect("there was room");
        self.grant(task, false);
        self.tasks[task].since_ns = self.time_ns;
        self.tasks[task].waits = true;
        self.groups[self.tasks[task].group].waiting += 1;
        self.queues[home].push(task);
        self.dispatch(foreign);
    }

    fn replace(&mut self, cpu: usize, queue: usize, task: usize, previous: Option<usize>) {
        self.take(queue, task);
        self.start(cpu, task);
        if let Some(previous) = previous {
            self.enqueue(previous, false);
        }
    }
}

/// How even shares are: 1 if all are equal, 1/n if one has all.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}
