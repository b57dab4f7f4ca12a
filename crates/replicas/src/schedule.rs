//! The order in which threads exchange files in processes, if possible where these ran last.
//!
//! An exchange is a dialogue of the exchanging thread and one of the process, of which one runs at
//! a time. On one CPU a change of turns takes 4 us. On two it takes 20 us, and 1 ms if another
//! thread has the process's CPU (Linux 6.18 in a virtual machine).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The number of a CPU, as `/proc/PID/stat` tells it.
pub(crate) type Cpu = usize;

/// The next thing to do for a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// Look whether files have to be exchanged in this process, and tell with [`Schedule::found`]
    /// if so.
    Look(u32),
    /// Exchange them in this one.
    Exchange(T),
    /// Stop this one, and exchange them later.
    Hold(T),
    /// Go to this CPU, and ask again.
    GoTo(Cpu),
}

/// The processes that are left.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    /// Those that no thread has looked at.
    unknown: VecDeque<u32>,
    /// Those to exchange in, by the CPU where they ran last.
    found: BTreeMap<Option<Cpu>, VecDeque<T>>,
    /// The CPUs that have a thread.
    taken: BTreeSet<Cpu>,
    /// So many at the end are held.
    may_be_held: usize,
}

impl<T> Schedule<T> {
    /// At most `may_be_held` of those to exchange in are held, the last ones.
    pub(crate) fn of(processes: &[u32], may_be_held: usize) -> Self {
        let unknown = processes.iter().copied().collect();
        Self { unknown, found: BTreeMap::new(), taken: BTreeSet::new(), may_be_held }
    }

    /// A process is to be exchanged. It ran last on this CPU, as far as that is known.
    pub(crate) fn found(&mut self, process: T, cpu: Option<Cpu>) {
        self.found.entry(cpu).or_default().push_back(process);
    }

    /// The processes that no thread has begun with.
    fn left(&self) -> usize {
        self.unknown.len() + self.found.values().map(VecDeque::len).sum::<usize>()
    }

    /// The next step of a thread on `own`, or on any CPU. None if nothing is left for it.
    pub(crate) fn next(&mut self, own: Option<Cpu>) -> Option<Step<T>> {
        if self.left() <= self.may_be_held {
            if let Some(process) = self.take_any() {
                return Some(Step::Hold(process));
            }
        } else if let Some(process) = own.and_then(|_| self.take(own)) {
            return Some(Step::Exchange(process));
        }
        if let Some(process) = self.unknown.pop_front() {
            return Some(Step::Look(process));
        }
        let waiting = self.found.iter().filter(|(_, processes)| !processes.is_empty());
        let free = waiting.filter_map(|(cpu, _)| *cpu).find(|it| !self.taken.contains(it));
        if let Some(free) = free {
            own.map(|own| self.taken.remove(&own));
            self.taken.insert(free);
            return Some(Step::GoTo(free));
        }
        self.take_any().map(Step::Exchange)
    }

    fn take_any(&mut self) -> Option<T> {
        self.found.values_mut().find_map(VecDeque::pop_front)
    }

    fn take(&mut self, cpu: Option<Cpu>) -> Option<T> {
        self.found.get_mut(&cpu)?.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn threads_go_where_processes_are_and_help_each_other_at_the_end() {
        let mut schedule = Schedule::of(&[1, 2, 3, 4, 5], 0);
        for (process, cpu) in [(1, Some(7)), (2, Some(9)), (3, Some(7)), (4, Some(7)), (5, None)] {
            assert_eq!(schedule.next(None), Some(Step::Look(process)));
            schedule.found(process, cpu);
        }
        assert_eq!(schedule.next(None), Some(Step::GoTo(7)));
        assert_eq!(schedule.next(None), Some(Step::GoTo(9)));
        assert_eq!(schedule.left(), 5);
        assert_eq!(schedule.next(Some(7)), Some(Step::Exchange(1)));
        assert_eq!(schedule.next(Some(9)), Some(Step::Exchange(2)));
        assert_eq!(schedule.next(Some(9)), Some(Step::Exchange(5)), "one without a CPU");
        assert_eq!(schedule.next(Some(9)), Some(Step::Exchange(3)), "one of another thread");
        assert_eq!(schedule.next(Some(7)), Some(Step::Exchange(4)));
        assert_eq!(schedule.left(), 0);
        assert_eq!((schedule.next(Some(7)), schedule.next(Some(9))), (None, None));
    }

    #[test]
    fn the_last_ones_are_held() {
        let mut schedule = Schedule::of(&[1, 2, 3, 4], 2);
        for (process, cpu) in [(1, Some(7)), (2, Some(9)), (3, Some(7))] {
            assert_eq!(schedule.next(None), Some(Step::Look(process)));
            schedule.found(process, cpu);
        }
        assert_eq!(schedule.next(None), Some(Step::Look(4)));
        assert_eq!(schedule.next(None), Some(Step::GoTo(7)));
        assert_eq!(schedule.next(Some(7)), Some(Step::Exchange(1)));
        assert_eq!(schedule.next(Some(7)), Some(Step::Hold(3)));
        assert_eq!(schedule.next(None), Some(Step::Hold(2)));
        assert_eq!(schedule.next(None), None);
    }

    proptest! {
        #[test]
        fn each_process_is_looked_at_once_and_exchanged_once_if_it_is_concerned(
            processes in prop::collection::vec(
                prop::option::of(prop::option::of(0_usize..4)), 0..30
            ),
            threads in prop::collection::vec(0_usize..5, 1..200),
            may_be_held in 0_usize..6,
        ) {
            let numbers: Vec<u32> = (0..).take(processes.len()).collect();
            let mut schedule = Schedule::of(&numbers, may_be_held);
            let mut own = [None; 5];
            let (mut looks, mut exchanges, mut held) = (Vec::new(), Vec::new(), 0);
            // Threads come in any order. The last one is left alone in the end.
            for thread in threads.into_iter().chain(std::iter::repeat_n(0, 100)) {
                match schedule.next(own[thread]) {
                    Some(Step::Look(process)) => {
                        looks.push(process);
                        if let Some(cpu) = processes[process as usize] {
                            schedule.found(process, cpu);
                        }
                    }
                    Some(Step::Exchange(process)) => {
                        prop_assert_eq!(held, 0);
                        exchanges.push(process);
                    }
                    Some(Step::Hold(process)) => {
                        held += 1;
                        exchanges.push(process);
                    }
                    Some(Step::GoTo(cpu)) => {
                        prop_assert!(!own.contains(&Some(cpu)));
                        own[thread] = Some(cpu);
                    }
                    None => {}
                }
            }
            prop_assert!(held <= may_be_held);
            exchanges.sort_unstable();
            let concerned = numbers.iter().filter(|it| processes[**it as usize].is_some());
            prop_assert_eq!(exchanges, concerned.copied().collect::<Vec<_>>());
            prop_assert_eq!(looks, numbers);
        }
    }
}
