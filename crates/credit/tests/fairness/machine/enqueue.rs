//! A task becomes runnable and starts, as in `enqueue.h` and the callback `running`.

use super::{ANYWHERE, Cpu, Machine, Task};
use nearside_credit::{self as credit, Place};

impl Machine {
    pub(super) fn wake(&mut self, task: usize) {
        let group = self.tasks[task].group;
        self.groups[group].runnable += 1;
        self.tasks[task].woken_ns = self.time_ns;
        self.enqueue(task, true, false);
    }

    pub(super) fn enqueue(&mut self, task: usize, woken: bool, returning: bool) {
        self.find_domain(task);
        self.tasks[task].queued_ns = self.time_ns;
        if let Err(level) = self.grant(task, woken, false) {
            return self.throttled.entry(level).or_default().push_back(task);
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

    /// Calls the CPU that came too late for a task of this queue, if it would fetch this one.
    fn call_back(&mut self, task: usize, queue: usize) {
        let Some(cpu) = self.wanted[queue].take() else { return };
        let distance = self.distances[self.node_of(cpu)][queue / self.caches_a_node];
        if !self.steals(task, self.cpus[cpu].tag, distance) {
            return;
        }
        self.called.insert(cpu);
        // A CPU between two tasks searches once more when it has begun the next.
        if self.cpus[cpu].task.is_some() {
            self.called.remove(&cpu);
            self.cpus[cpu].balanced_ns = 0;
            self.dispatch(cpu);
        }
    }

    /// To an idle CPU, or else into the queue that is returned.
    pub(super) fn send(&mut self, task: usize, nearer_than: u32, may_stay: bool) -> Option<usize> {
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

    /// Whether a CPU of the queue was found whose task makes way.
    fn preempt(&mut self, task: usize, queue: usize) -> bool {
        let Some(victim) = self.victim_of(task, queue) else { return false };
        self.cpus[victim].tag = self.tasks[task].place;
        self.dispatch(victim);
        true
    }

    /// One that runs a task from elsewhere, which the kernel finds in a set of CPUs by one
    /// operation. Else the farthest ahead of a few.
    fn victim_of(&mut self, task: usize, queue: usize) -> Option<usize> {
        let (place, members) = (self.tasks[task].place, self.members(queue));
        let running = |&cpu: &usize| self.cpus[cpu].task.is_some() && self.may_use(task, cpu);
        let foreign = members.clone().filter(running).find(|&cpu| self.cpus[cpu].foreign);
        if foreign.is_some() {
            return foreign;
        }
        let Task { last_cpu, queued_ns, .. } = self.tasks[task];
        if self.is_served(task, queue) {
            return Some(last_cpu).filter(|&cpu| self.passes_own(task, cpu));
        }
        let start = if members.contains(&last_cpu) {
            last_cpu - members.start
        } else {
            queued_ns as usize >> 10
        };
        let candidates: Vec<usize> = (0..)
            .map_while(|index| credit::candidate(start as u32, index, members.len() as u32))
            .map(|position| members.start + position as usize)
            .collect();
        let ahead = candidates
            .iter()
            .copied()
            .filter(running)
            .filter(|&cpu| credit::preempts(&self.params, place, self.cpus[cpu].tag))
            .reduce(|a, b| if credit::before(self.cpus[a].tag, self.cpus[b].tag) { b } else { a });
        let own = candidates
            .iter()
            .copied()
            .filter(running)
            .filter(|&cpu| self.runs_own(task, cpu))
            .reduce(|a, b| if credit::before(self.cpus[b].tag, self.cpus[a].tag) { a } else { b })
            .filter(|&cpu| self.passes_own(task, cpu));
        self.compared += candidates.len() as u64;
        self.max_compared = self.max_compared.max(candidates.len() as u64);
        ahead.or(own)
    }

    fn runs_own(&self, task: usize, cpu: usize) -> bool {
        let group = self.tasks[task].group;
        self.cpus[cpu].task.is_some_and(|other| self.tasks[other].group == group)
    }

    /// Whether a CPU runs a task of the same group that makes way for this one, which goes before
    /// the others of its group.
    fn passes_own(&self, task: usize, cpu: usize) -> bool {
        let Some(other) = self.cpus[cpu].task else { return false };
        let [woken, running] = [task, other].map(|task| &self.tasks[task]);
        woken.leads
            && running.group == woken.group
            && credit::preempts_own(
                &self.params,
                woken.own,
                running.own,
                woken.place,
                self.cpus[cpu].tag,
                self.time_ns - running.since_ns,
            )
    }

    /// Whether its group has the CPU on which it wakes, and wants no second one. The interrupt of
    /// a timer wakes it on its last CPU.
    fn is_served(&self, task: usize, queue: usize) -> bool {
        let Task { group, last_cpu, woken_ns, queued_ns, .. } = self.tasks[task];
        let of_group = |other: usize| self.tasks[other].group == group;
        woken_ns == queued_ns
            && self.queue_of(last_cpu) == queue
            && self.cpus[last_cpu].task.is_some_and(of_group)
            && !credit::spreads(&self.params, self.groups[group].share)
    }

    pub(super) fn start(&mut self, cpu: usize, task: usize) {
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

    pub(super) fn run_on(&mut self, cpu: usize, task: usize, waited: bool, stays: bool) {
        let Task { grant, place, left_ns, leads, .. } = self.tasks[task];
        let notes = !leads && self.time_ns - self.cpus[cpu].noted_ns >= self.params.note_ns;
        if notes {
            self.now_v = credit::now(self.now_v, grant.tag, waited);
        }
        let front = &mut self.groups[self.tasks[task].group].front;
        *front = credit::now(*front, place, true);
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
            noted_ns: if notes { self.time_ns } else { self.cpus[cpu].noted_ns },
        };
    }
}
