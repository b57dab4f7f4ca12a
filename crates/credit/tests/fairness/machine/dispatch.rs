//! A CPU needs a task, as in `dispatch.h`.

use super::{Cpu, LOOKED_AT, Machine, Task};
use nearside_credit::{self as credit, Place};

impl Machine {
    /// The first of the sampled tasks of a queue that this CPU may run.
    fn head(&self, queue: usize, cpu: usize) -> Option<usize> {
        self.queues[queue].iter().copied().take(LOOKED_AT).find(|&task| self.may_use(task, cpu))
    }

    /// Whether the task's group is entitled to one CPU at most and has another one than this CPU.
    fn runs_beside(&self, task: usize, cpu: usize) -> bool {
        let group = self.tasks[task].group;
        let runs_it =
            |other: &Cpu| other.task.is_some_and(|running| self.tasks[running].group == group);
        !credit::spreads(&self.params, self.groups[group].share)
            && self.cpus.iter().enumerate().any(|(at, other)| at != cpu && runs_it(other))
    }

    /// The first one of the CPU's own queue, or one that may pass.
    fn serve(&mut self, cpu: usize) -> Option<usize> {
        let queue = self.queue_of(cpu);
        let Some(first) = self.head(queue, cpu) else { return self.take_from(queue, cpu) };
        let (first_tag, woken) =
            (self.tasks[first].place, self.tasks[first].woken_ns == self.tasks[first].queued_ns);
        let beside = self.runs_beside(first, cpu);
        let is_for_first = self.cpus[cpu].tag == first_tag;
        let may_pass = |task: usize| {
            let Task { last_cpu, grant, place, .. } = self.tasks[task];
            let passes = if task == first {
                last_cpu == cpu
            } else {
                (last_cpu == cpu || beside)
                    && !is_for_first
                    && credit::lets_pass(&self.params, &grant, first_tag, place, woken, beside)
            };
            self.may_use(task, cpu) && !self.runs_beside(task, cpu) && passes
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

    pub(super) fn steals(&self, task: usize, own: u64, distance: u32) -> bool {
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

    /// The task that is most behind in the other queues, if it is behind by enough.
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

    /// Lets the CPUs of that queue whose slices end at the same tick go first. Their previous tasks
    /// are queued too late for `cpu`, which is called back. Returns whether the task is still
    /// there.
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

    pub(super) fn dispatch(&mut self, cpu: usize) {
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
            && self.grant(task, false, false).is_ok()
        {
            return self.run_on(cpu, task, false, true);
        }
        let next = self.take_any(cpu);
        self.switch(cpu, previous, returning, next);
    }

    /// A waiting task, nearest first.
    fn take_any(&mut self, cpu: usize) -> Option<usize> {
        let others = self.nearest(self.queue_of(cpu)).into_iter().skip(1);
        self.serve(cpu).or_else(|| others.into_iter().find_map(|queue| self.take_from(queue, cpu)))
    }

    /// The previous task queues anew before the next one starts. A CPU that goes idle searches once
    /// more for tasks that were queued meanwhile.
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
