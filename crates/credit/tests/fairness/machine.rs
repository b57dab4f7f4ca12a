//! A machine in software that makes every decision with the scheduler's own code, and the glue's order of asking.

use nearside_credit::{self as credit, Cap, Grant, Group, ONE, Params, Place, WEIGHT};
use std::{collections::BTreeSet, ops::Range};

/// As in `state.h` and `dispatch.h`.
const TICK_NS: u64 = 10_000_000;
const THROTTLED_LONGEST_NS: u64 = 8_000_000_000;
const LOOKED_AT: usize = 8;
const ANYWHERE: u32 = 256;

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
    /// The set of nodes it prefers; none means that it is at home where it is.
    pub(crate) affine: u64,
    /// The set of CPUs it may use.
    pub(crate) allowed: u64,
    pub(crate) weight: u32,
    pub(crate) work: Work,
    pub(crate) used_ns: u64,
    pub(crate) by_node_ns: Vec<u64>,
    pub(crate) longest_wait_ns: u64,
    pub(crate) last_cpu: usize,
    grant: Grant,
    /// What its time has cost it among the tasks of its group.
    own: u64,
    /// In a queue, of this grant.
    place: u64,
    since_ns: u64,
    woken_ns: u64,
    queued_ns: u64,
    moved_ns: u64,
    left_ns: u64,
    waits: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    task: Option<usize>,
    /// Between two tasks: not idle, and nobody's to take.
    switches: bool,
    foreign: bool,
    tag: u64,
    until_ns: u64,
    balanced_ns: u64,
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
    /// How often a task came to a CPU, and how often not to the one it was on last.
    pub(crate) starts: u64,
    pub(crate) changes: u64,
    /// CPU time that passed with a CPU idle and a task waiting that may use it.
    pub(crate) wasted_ns: u64,
    /// Slices end at multiples of this.
    pub(crate) tick_ns: u64,
    distances: Vec<Vec<u32>>,
    caches_a_node: usize,
    cpus_a_cache: usize,
    threads_a_core: usize,
    weights: Vec<u64>,
    /// Where the tasks of each group are among themselves.
    own_now: Vec<u64>,
    cpus: Vec<Cpu>,
    /// One for each cache, in the order in which tasks are taken.
    queues: Vec<Vec<usize>>,
    /// The CPU that was too late for a queue's task, and is called when the next one comes.
    wanted: Vec<Option<usize>>,
    called: BTreeSet<usize>,
    throttled: Vec<usize>,
    sleeping: BTreeSet<(u64, usize)>,
    now_v: u64,
    time_ns: u64,
    timer_ns: u64,
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
        assert!(cpus <= 64, "sets of CPUs are 64 bits here");
        Self {
            params: Params::new(cpus as u32),
            tasks: vec![],
            groups: vec![],
            caps: vec![],
            parents: vec![],
            balanced: 0,
            starts: 0,
            changes: 0,
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
            throttled: vec![],
            sleeping: BTreeSet::new(),
            now_v: u64::MAX - 1_000_000_000, // virtual time wraps during the tests
            time_ns: 0,
            timer_ns: TICK_NS,
        }
    }

    /// A group of this weight with tasks at these homes.
    pub(crate) fn group(&mut self, weight: u64, homes: &[usize], work: Work) -> usize {
        let group = self.groups.len();
        self.groups.push(Group { vtime: self.now_v, share: ONE, runnable: 0, reserved: 0 });
        self.caps.push(Cap::default());
        self.parents.push(None);
        self.weights.push(weight);
        self.own_now.push(0);
        for &home in homes {
            self.task(group, home, 1 << home, u64::MAX, work);
        }
        group
    }

    pub(crate) fn task(
        &mut self,
        group: usize,
        home: usize,
        affine: u64,
        allowed: u64,
        work: Work,
    ) -> usize {
        let allowed = allowed & (u64::MAX >> (64 - self.cpus.len()));
        assert_ne!(allowed, 0, "a task that may run nowhere");
        self.tasks.push(Task {
            group,
            home,
            affine,
            allowed,
            weight: 100,
            work,
            used_ns: 0,
            by_node_ns: vec![0; self.distances.len()],
            longest_wait_ns: 0,
            last_cpu: allowed.trailing_zeros() as usize,
            grant: Grant::default(),
            own: self.own_now[group],
            place: 0,
            since_ns: 0,
            woken_ns: 0,
            queued_ns: 0,
            moved_ns: 0,
            left_ns: if let Work::Naps(burn, _) = work { burn } else { u64::MAX },
            waits: false,
        });
        self.tasks.len() - 1
    }

    pub(crate) fn cap(&mut self, group: usize, quota_ns: u64, period_ns: u64) {
        let (start_ns, budget_ns) = (self.time_ns, quota_ns as i64);
        self.caps[group] = Cap { quota_ns, period_ns, burst_ns: 0, start_ns, budget_ns };
    }

    /// What the group's own tasks used.
    pub(crate) fn used_ns(&self, group: usize) -> u64 {
        self.tasks.iter().filter(|task| task.group == group).map(|task| task.used_ns).sum()
    }

    /// What the group used with all that is nested in it.
    pub(crate) fn used_below_ns(&self, group: usize) -> u64 {
        let within = |&other: &usize| self.path(other).any(|above| above == group);
        (0..self.groups.len()).filter(within).map(|group| self.used_ns(group)).sum()
    }

    /// What the task that has waited for longest has waited, whether or not it has got a CPU since.
    pub(crate) fn longest_wait_ns(&self) -> u64 {
        let waiting =
            self.tasks.iter().filter(|task| task.waits).map(|task| self.time_ns - task.queued_ns);
        waiting.chain(self.tasks.iter().map(|task| task.longest_wait_ns)).max().unwrap_or(0)
    }

    /// Runs the machine. Tasks that were added since come in one after the other.
    pub(crate) fn run(&mut self, span_ns: u64) {
        let end_ns = self.time_ns + span_ns;
        for task in 0..self.tasks.len() {
            let known = self.cpus.iter().any(|cpu| cpu.task == Some(task))
                || self.queues.iter().flatten().chain(&self.throttled).any(|&other| other == task)
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
            self.wasted_ns +=
                (to - self.time_ns) * u64::from((self.idle() & self.wanted()).count_ones());
            self.time_ns = to;
            if next >= end_ns {
                break;
            }
            if timer <= wake.min(stop) {
                self.timer();
            } else if wake <= stop {
                let (_, task) = self.sleeping.pop_first().expect("somebody sleeps");
                self.wake(task);
            } else {
                self.dispatch(cpu);
            }
        }
    }

    fn idle(&self) -> u64 {
        (0..self.cpus.len()).filter(|&cpu| self.is_idle(cpu)).fold(0, |set, cpu| set | 1 << cpu)
    }

    fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].task.is_none() && !self.cpus[cpu].switches
    }

    /// The CPUs that some waiting task may use.
    fn wanted(&self) -> u64 {
        self.queues.iter().flatten().fold(0, |set, &task| set | self.tasks[task].allowed)
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

    /// All queues from one: itself, those of its node, then by distance. As the loader has it (`machine.rs`).
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
        self.tasks[task].allowed & 1 << cpu != 0
    }

    // -- groups (groups.h) ------------------------------------------------------------------------------------------

    /// A group and those it is nested in, inner ones first.
    fn path(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.parents[group])
    }

    /// The weights of a group's active children and of its own tasks; of the outermost groups without one.
    fn weights(&self, group: Option<usize>) -> u64 {
        let own =
            if group.is_some_and(|group| self.groups[group].runnable > 0) { WEIGHT } else { 0 };
        let children = (0..self.groups.len()).filter(|&child| self.parents[child] == group);
        own + children
            .filter(|&child| self.weights(Some(child)) > 0)
            .map(|child| self.weights[child])
            .sum::<u64>()
    }

    fn share(&mut self, group: usize) {
        let mut share = credit::share(ONE, WEIGHT, self.weights(Some(group)));
        for level in self.path(group) {
            share = credit::share(share, self.weights[level], self.weights(self.parents[level]));
        }
        self.groups[group].share = share;
    }

    fn take_caps(&mut self, group: usize, mut slice_ns: u64, force: bool) -> Option<u64> {
        let path: Vec<usize> = self.path(group).collect();
        for &level in &path {
            credit::refill(&self.params, &mut self.caps[level], self.time_ns);
            let mut left = self.caps[level];
            slice_ns = match credit::take(&self.params, &mut left, slice_ns) {
                0 if !force => return None,
                0 => self.params.slice_min_ns,
                got => got,
            };
        }
        for level in path {
            credit::settle_cap(&mut self.caps[level], 0, slice_ns);
        }
        Some(slice_ns)
    }

    /// Grants the task a slice, unless a group above it has none left.
    fn grant(&mut self, task: usize, woken: bool, force: bool) -> bool {
        let group = self.tasks[task].group;
        self.share(group);
        let slice_ns = credit::slice(&self.params, self.tasks[task].weight);
        let Some(slice_ns) = self.take_caps(group, slice_ns, force) else { return false };
        let tag = credit::tag(&self.params, &self.groups[group], self.now_v, woken);
        let grant = credit::reserve(&mut self.groups[group], tag, slice_ns);
        let own_now = self.own_now[group];
        let own = credit::own_rejoins(&self.params, own_now, self.tasks[task].own);
        self.tasks[task].grant = grant;
        self.tasks[task].own = own;
        self.tasks[task].place =
            grant.tag.wrapping_add(credit::own_lag(&self.params, own_now, own));
        self.own_now[group] =
            if self.groups[group].runnable > 1 { credit::now(own_now, own, true) } else { own };
        true
    }

    /// Charges the task that runs; whether it still wants to.
    fn charge(&mut self, cpu: usize, task: usize) -> bool {
        let node = self.node_of(cpu);
        let state = &mut self.tasks[task];
        let used_ns = self.time_ns - state.since_ns;
        state.since_ns = self.time_ns;
        state.used_ns += used_ns;
        state.by_node_ns[node] += used_ns;
        state.own += credit::own_charge(used_ns, state.weight);
        let (group, taken_ns) = (state.group, state.grant.slice_ns);
        credit::settle(&mut self.groups[group], &state.grant, used_ns);
        for level in self.path(group).collect::<Vec<_>>() {
            credit::settle_cap(&mut self.caps[level], taken_ns, used_ns);
        }
        let state = &mut self.tasks[task];
        let Work::Naps(burn_ns, sleep_ns) = state.work else { return true };
        state.left_ns -= used_ns;
        if state.left_ns > 0 {
            return true;
        }
        state.left_ns = burn_ns;
        self.groups[group].runnable -= 1;
        self.sleeping.insert((self.time_ns + sleep_ns, task));
        false
    }

    /// Tasks whose groups have a budget again go on.
    fn timer(&mut self) {
        let mut next_ns = self.time_ns + TICK_NS;
        for task in std::mem::take(&mut self.throttled) {
            let too_long = self.time_ns - self.tasks[task].queued_ns > THROTTLED_LONGEST_NS;
            if self.grant(task, false, too_long) {
                self.tasks[task].queued_ns = self.time_ns;
                self.send(task, ANYWHERE, false);
                continue;
            }
            self.throttled.push(task);
            let ends = self
                .path(self.tasks[task].group)
                .map(|level| self.caps[level])
                .filter(|cap| cap.quota_ns > 0);
            let ends = ends
                .map(|cap| cap.start_ns + cap.period_ns)
                .filter(|&end_ns| end_ns > self.time_ns);
            next_ns = ends.fold(next_ns, u64::min);
        }
        self.timer_ns = next_ns;
    }

    // -- place (place.h) --------------------------------------------------------------------------------------------

    fn find_domain(&mut self, task: usize) {
        if self.tasks[task].affine == 0 {
            self.tasks[task].home = self.node_of(self.tasks[task].last_cpu);
        }
    }

    pub(crate) fn place(&self, task: usize, node: usize) -> Place {
        let Task { affine, allowed, home, .. } = self.tasks[task];
        let cpus = (0..self.cpus.len()).filter(|&cpu| allowed & 1 << cpu != 0);
        let nodes = cpus.fold(0, |nodes, cpu| nodes | 1 << self.node_of(cpu));
        credit::place(affine, nodes, home as u32, node as u32)
    }

    fn home_queue(&self, task: usize) -> usize {
        let Task { last_cpu, home, .. } = self.tasks[task];
        if self.node_of(last_cpu) == home {
            self.queue_of(last_cpu)
        } else {
            home * self.caches_a_node
        }
    }

    fn waiting_queue(&self, task: usize) -> usize {
        let home = self.home_queue(task);
        let first = |at_worst| {
            let mut all = self.nearest(home).into_iter();
            all.find(|&queue| self.place(task, queue / self.caches_a_node) <= at_worst)
        };
        first(Place::Affine).or_else(|| first(Place::Other)).unwrap_or(home)
    }

    /// An idle CPU in a queue's part of a node: one on a whole idle core, and the one the task was on, are preferred.
    fn idle_in_queue(&self, task: usize, queue: usize) -> Option<usize> {
        let last = self.tasks[task].last_cpu;
        let cpus = self.members(queue).filter(|&cpu| self.is_idle(cpu) && self.may_use(task, cpu));
        cpus.min_by_key(|&cpu| (!self.core(cpu).all(|sibling| self.is_idle(sibling)), cpu != last))
    }

    fn idle_for(&self, task: usize, nearer_than: u32) -> Option<usize> {
        let order = self.nearest(self.home_queue(task));
        let node = |queue: usize| queue / self.caches_a_node;
        let mut affine =
            order.iter().filter(|&&queue| self.place(task, node(queue)) <= Place::Affine);
        let mut others = order
            .iter()
            .take_while(|&&queue| self.distances[self.tasks[task].home][node(queue)] < nearer_than)
            .filter(|&&queue| self.place(task, node(queue)) == Place::Other);
        let affine = affine.find_map(|&queue| self.idle_in_queue(task, queue));
        affine.or_else(|| others.find_map(|&queue| self.idle_in_queue(task, queue)))
    }

    fn has_room(&self, task: usize, node: usize) -> bool {
        let from_home = &self.distances[self.tasks[task].home];
        (0..self.cpus.len()).filter(|&cpu| self.may_use(task, cpu)).any(|cpu| {
            let (other, idle) = (self.node_of(cpu), self.is_idle(cpu));
            match self.place(task, other) {
                Place::Home | Place::Affine => idle || self.cpus[cpu].foreign,
                Place::Other => idle && from_home[other] < from_home[node],
                Place::Never => false,
            }
        })
    }

    // -- tasks come, wait and go (enqueue.h, dispatch.h, main.bpf.c) ------------------------------------------------

    fn wake(&mut self, task: usize) {
        let group = self.tasks[task].group;
        self.groups[group].runnable += 1;
        self.tasks[task].woken_ns = self.time_ns;
        self.enqueue(task, true, false);
    }

    fn enqueue(&mut self, task: usize, woken: bool, returning: bool) {
        self.find_domain(task);
        self.tasks[task].queued_ns = self.time_ns;
        if !self.grant(task, woken, false) {
            return self.throttled.push(task);
        }
        let Task { home, last_cpu, .. } = self.tasks[task];
        let nearer_than =
            if returning { self.distances[home][self.node_of(last_cpu)] } else { ANYWHERE };
        let preempts = woken || returning;
        if let Some(queue) = self.send(task, nearer_than, !preempts)
            && !(preempts && self.preempt(task, queue))
        {
            self.call_back(task, queue);
        }
    }

    /// Has the CPU that was too late for a task of this queue look for this one.
    fn call_back(&mut self, task: usize, queue: usize) {
        let Some(cpu) = self.wanted[queue].take() else { return };
        let distance = self.distances[self.node_of(cpu)][queue / self.caches_a_node];
        if !self.steals(task, self.cpus[cpu].tag, distance) {
            return;
        }
        self.called.insert(cpu);
        // One that is between two tasks looks once more when it has begun the next.
        if self.cpus[cpu].task.is_some() {
            self.called.remove(&cpu);
            self.cpus[cpu].balanced_ns = 0;
            self.dispatch(cpu);
        }
    }

    /// To an idle CPU, or else into the queue that is returned.
    fn send(&mut self, task: usize, nearer_than: u32, may_stay: bool) -> Option<usize> {
        if let Some(cpu) = self.idle_for(task, nearer_than) {
            self.start(cpu, task);
            return None;
        }
        let here = self.queue_of(self.tasks[task].last_cpu);
        let is_away = self.place(task, here / self.caches_a_node) == Place::Other;
        let home = self.waiting_queue(task);
        let crowd =
            |queue: usize| (self.queues[queue].len() as u32, self.members(queue).count() as u32);
        let ((at_home, home_cpus), (waiting, cpus)) = (crowd(home), crowd(here));
        let queue = if may_stay && is_away && credit::stays(at_home, home_cpus, waiting, cpus) {
            here
        } else {
            home
        };
        let tag = self.tasks[task].place;
        let after = |&other: &usize| !credit::before(tag, self.tasks[other].place);
        let at = self.queues[queue].partition_point(after);
        self.queues[queue].insert(at, task);
        self.tasks[task].waits = true;
        Some(queue)
    }

    fn preempt(&mut self, task: usize, queue: usize) -> bool {
        let tag = self.tasks[task].place;
        let running = |&cpu: &usize| self.cpus[cpu].task.is_some() && self.may_use(task, cpu);
        let foreign = self.members(queue).filter(running).find(|&cpu| self.cpus[cpu].foreign);
        let ahead = self
            .members(queue)
            .filter(running)
            .filter(|&cpu| credit::preempts(&self.params, tag, self.cpus[cpu].tag))
            .reduce(|a, b| if credit::before(self.cpus[a].tag, self.cpus[b].tag) { b } else { a });
        let Some(victim) = foreign.or(ahead) else { return false };
        self.cpus[victim].tag = tag;
        self.dispatch(victim);
        true
    }

    fn start(&mut self, cpu: usize, task: usize) {
        assert!(self.may_use(task, cpu), "hard affinity is broken");
        assert_eq!(self.cpus[cpu].task, None);
        self.starts += 1;
        self.changes += u64::from(self.tasks[task].last_cpu != cpu);
        let waited = self.tasks[task].waits;
        if waited {
            self.tasks[task].waits = false;
            let wait_ns = self.time_ns - self.tasks[task].queued_ns;
            self.tasks[task].longest_wait_ns = self.tasks[task].longest_wait_ns.max(wait_ns);
        }
        let stays = self.node_of(self.tasks[task].last_cpu) == self.node_of(cpu)
            && self.tasks[task].used_ns > 0;
        self.run_on(cpu, task, waited, stays);
    }

    fn run_on(&mut self, cpu: usize, task: usize, waited: bool, stays: bool) {
        let Task { grant, place, left_ns, .. } = self.tasks[task];
        self.now_v = credit::now(self.now_v, grant.tag, waited);
        self.tasks[task].since_ns = self.time_ns;
        self.tasks[task].last_cpu = cpu;
        if !stays {
            self.tasks[task].moved_ns = self.time_ns;
        }
        self.cpus[cpu] = Cpu {
            task: Some(task),
            switches: false,
            foreign: self.place(task, self.node_of(cpu)) == Place::Other,
            tag: place,
            until_ns: self
                .time_ns
                .saturating_add(left_ns)
                .min((self.time_ns + grant.slice_ns).next_multiple_of(self.tick_ns)),
            balanced_ns: self.cpus[cpu].balanced_ns,
        };
    }

    /// The first task of a queue that this CPU may run, as far as is looked.
    fn head(&self, queue: usize, cpu: usize) -> Option<usize> {
        self.queues[queue].iter().copied().take(LOOKED_AT).find(|&task| self.may_use(task, cpu))
    }

    /// The first one of the CPU's own queue, or one that was on that CPU last, if it may pass.
    fn serve(&mut self, cpu: usize) -> Option<usize> {
        let queue = self.queue_of(cpu);
        let Some(first) = self.head(queue, cpu) else { return self.take_from(queue, cpu) };
        let (first_tag, woken) =
            (self.tasks[first].place, self.tasks[first].woken_ns == self.tasks[first].queued_ns);
        let is_for_first = self.cpus[cpu].tag == first_tag;
        let may_pass = |task: usize| {
            let Task { last_cpu, grant, place, .. } = self.tasks[task];
            let passes = task == first
                || !is_for_first
                    && credit::lets_pass(&self.params, &grant, first_tag, place, woken);
            self.may_use(task, cpu) && last_cpu == cpu && passes
        };
        let next = self.queues[queue]
            .iter()
            .copied()
            .take(LOOKED_AT)
            .find(|&task| may_pass(task))
            .unwrap_or(first);
        self.queues[queue].retain(|&task| task != next);
        Some(next)
    }

    /// The first one, however far behind.
    fn take_from(&mut self, queue: usize, cpu: usize) -> Option<usize> {
        let at = self.queues[queue].iter().position(|&task| self.may_use(task, cpu))?;
        Some(self.queues[queue].remove(at))
    }

    fn steals(&self, task: usize, own: u64, distance: u32) -> bool {
        let Task { grant, place, woken_ns, .. } = self.tasks[task];
        credit::steals(&self.params, &grant, own, place, distance, self.time_ns - woken_ns)
    }

    /// The first task of another queue that this CPU may run, if it is behind `own` by enough.
    fn due(&self, queue: usize, cpu: usize, own: u64) -> Option<usize> {
        let distance = self.distances[self.node_of(cpu)][queue / self.caches_a_node];
        let mut behind = self.queues[queue]
            .iter()
            .copied()
            .take(LOOKED_AT)
            .take_while(|&task| self.steals(task, own, distance));
        behind.find(|&task| self.may_use(task, cpu))
    }

    /// The task that is most behind in the other queues, if there is one that is by enough.
    fn balance(&self, cpu: usize, own: u64) -> Option<(usize, usize)> {
        let (mut best, mut found) = (own, None);
        for queue in self.nearest(self.queue_of(cpu)).into_iter().skip(1) {
            if let Some(task) = self.due(queue, cpu, best) {
                let distance = self.distances[self.node_of(cpu)][queue / self.caches_a_node];
                best = credit::from_afar(
                    &self.params,
                    &self.tasks[task].grant,
                    self.tasks[task].place,
                    distance,
                );
                found = Some((queue, task));
            }
        }
        found
    }

    /// Lets the CPUs of that queue whose slices end at the same tick go first: they look only there. What they ran until then is
    /// queued too late for `cpu`, which is called back. Whether the task is still there.
    fn wins_race(&mut self, cpu: usize, queue: usize, task: usize) -> bool {
        self.wanted[queue] = Some(cpu);
        for rival in self.members(queue) {
            if self.cpus[rival].task.is_some() && self.cpus[rival].until_ns == self.time_ns {
                self.dispatch(rival);
            }
        }
        let is_there = self.queues[queue].contains(&task);
        if is_there {
            self.wanted[queue] = None;
        }
        is_there
    }

    fn dispatch(&mut self, cpu: usize) {
        self.dispatch_once(cpu);
        while self.called.remove(&cpu) && self.cpus[cpu].task.is_some() {
            self.cpus[cpu].balanced_ns = 0;
            self.dispatch_once(cpu);
        }
    }

    /// The same questions in the same order as the callback `dispatch`.
    fn dispatch_once(&mut self, cpu: usize) {
        let (queue, node) = (self.queue_of(cpu), self.node_of(cpu));
        let previous = self.cpus[cpu].task.take().filter(|&task| self.charge(cpu, task));
        self.cpus[cpu] = Cpu { foreign: false, switches: true, ..self.cpus[cpu] };
        if let Some(task) = previous {
            self.find_domain(task);
        }
        let away = previous.is_some_and(|task| self.place(task, node) == Place::Other);
        let mut own = previous.map(|task| {
            let Task { group, own, .. } = self.tasks[task];
            credit::tag(&self.params, &self.groups[group], self.now_v, false)
                .wrapping_add(credit::own_lag(&self.params, self.own_now[group], own))
        });
        let head = self.head(queue, cpu).map(|task| self.tasks[task].place);
        let serves = head.filter(|&tag| match (own, previous) {
            (Some(own), Some(task)) if away => {
                let distance = self.distances[node][self.tasks[task].home];
                !credit::steals(&self.params, &self.tasks[task].grant, tag, own, distance, u64::MAX)
            }
            (Some(own), _) => credit::before(tag, own),
            _ => true,
        });
        own = serves.or(own);
        let returning = previous.is_some_and(|task| {
            let stayed_ns = self.time_ns - self.tasks[task].moved_ns;
            away && credit::returns(&self.params, stayed_ns, self.has_room(task, node))
        });

        if let Some(own) =
            own.filter(|_| self.time_ns - self.cpus[cpu].balanced_ns >= self.params.balance_ns)
        {
            self.cpus[cpu].balanced_ns = self.time_ns;
            let found = self.balance(cpu, own);
            if let Some((from, task)) = found
                && self.wins_race(cpu, from, task)
            {
                self.balanced += 1;
                self.queues[from].retain(|&other| other != task);
                return self.switch(cpu, previous, returning, Some(task));
            }
        }
        if serves.is_some() {
            let task = self.serve(cpu);
            return self.switch(cpu, previous, returning, task);
        }
        if let Some(task) = previous.filter(|_| !returning)
            && self.grant(task, false, false)
        {
            return self.run_on(cpu, task, false, true);
        }
        let next = self.take_any(cpu);
        self.switch(cpu, previous, returning, next);
    }

    /// What waits, nearest first.
    fn take_any(&mut self, cpu: usize) -> Option<usize> {
        let others = self.nearest(self.queue_of(cpu)).into_iter().skip(1);
        self.serve(cpu).or_else(|| others.into_iter().find_map(|queue| self.take_from(queue, cpu)))
    }

    /// The task that ran queues anew before the next one starts. A CPU that goes idle looks once more for tasks that were
    /// queued meanwhile.
    fn switch(
        &mut self,
        cpu: usize,
        previous: Option<usize>,
        returning: bool,
        next: Option<usize>,
    ) {
        if let Some(task) = previous {
            self.enqueue(task, false, returning);
        }
        self.cpus[cpu].switches = false;
        if let Some(task) = next.or_else(|| self.take_any(cpu)) {
            self.start(cpu, task);
        }
    }
}

/// How even shares are: 1 if all are equal, 1/n if one has all.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}
