//! The places a task may go to: nodes, idle CPUs, queues, as in `place.h`.

use super::{Machine, Task};
use nearside_credit::{self as credit, Place};

impl Machine {
    pub(super) fn find_domain(&mut self, task: usize) {
        if self.tasks[task].affine == 0 {
            self.tasks[task].home = self.node_of(self.tasks[task].last_cpu);
        }
    }

    pub(crate) fn place(&self, task: usize, node: usize) -> Place {
        let Task { affine, allowed_nodes, home, .. } = self.tasks[task];
        credit::place(affine, allowed_nodes, home as u32, node as u32)
    }

    fn home_queue(&self, task: usize) -> usize {
        let Task { last_cpu, home, .. } = self.tasks[task];
        if self.node_of(last_cpu) == home {
            self.queue_of(last_cpu)
        } else {
            home * self.caches_a_node
        }
    }

    pub(super) fn waiting_queue(&self, task: usize) -> usize {
        let home = self.home_queue(task);
        let first = |at_worst| {
            let mut all = self.nearest(home).into_iter();
            all.find(|&queue| self.place(task, queue / self.caches_a_node) <= at_worst)
        };
        first(Place::Affine).or_else(|| first(Place::Other)).unwrap_or(home)
    }

    /// An idle CPU in a queue's part of a node: one on a whole idle core, and the one the task was
    /// on, are preferred.
    fn idle_in_queue(&self, task: usize, queue: usize) -> Option<usize> {
        let last = self.tasks[task].last_cpu;
        let cpus = self.members(queue).filter(|&cpu| self.is_idle(cpu) && self.may_use(task, cpu));
        cpus.min_by_key(|&cpu| (!self.core(cpu).all(|sibling| self.is_idle(sibling)), cpu != last))
    }

    pub(super) fn idle_for(&self, task: usize, nearer_than: u32) -> Option<usize> {
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

    pub(super) fn has_room(&self, task: usize, node: usize) -> bool {
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
}
