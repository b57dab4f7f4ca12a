//! The process that stops others to exchange what they map.
//!
//! A tracer that is killed during a stop leaves its process with the registers of an injected call.
//! The helper may be killed at any time. So a child does this: it blocks the signals that end
//! services, finishes the exchange it is at, and ends once the helper has gone.

mod child;
mod hold;
mod messages;
mod pool;

pub use child::serve;
pub(crate) use messages::Exchanged;

use crate::{
    census::Census,
    error::{Error, IoContext},
    remap::{Exchange, Operation},
};
use child::Found;
use messages::{Request, Task, read_line, write_line};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io::{self, BufReader},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Where the helper finds the program that calls [`serve`]: in itself, even once a package upgrade
/// has replaced its file.
const PROGRAM: &str = "/proc/self/exe";

/// The hidden subcommand of the program that calls [`serve`].
pub const COMMAND: &str = "replicator-exchange";

/// Looks for users of files. A domain whose processes come and go all the time is not looked at
/// without end, since a writer waits.
const MAX_LOOKS: usize = 16;

/// The time that a writer has to get a CPU, before the threads that exchange take all of them: they
/// are urgent, since processes stand still. No event tells that it runs.
const HEAD_START: Duration = Duration::from_micros(200);

/// Processes, and what is to be exchanged in them.
pub(crate) type ToDetach = (Vec<u32>, Vec<Exchange>);

/// A search for processes.
pub(crate) trait Look {
    /// The processes of a census, each group with what is to be exchanged in it.
    fn look(&mut self, census: &Census) -> Vec<ToDetach>;

    /// Work that the last look has left for the time while its processes are stopped. Another look
    /// follows. Returns processes that may have begun to use a copy since they were looked at.
    fn meanwhile(&mut self, _: &Census) -> BTreeSet<u32> {
        BTreeSet::new()
    }
}

impl<F: FnMut(&Census) -> Vec<ToDetach>> Look for F {
    fn look(&mut self, census: &Census) -> Vec<ToDetach> {
        self(census)
    }
}

/// The child, as the helper holds it.
#[derive(Debug)]
pub(crate) struct Exchanger {
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    child: Child,
}

impl Exchanger {
    /// Starts the child.
    ///
    /// # Errors
    /// If there is no memory for another process.
    pub(crate) fn start() -> Result<Self, Error> {
        let running = Running::start().doing(|| "starting the exchanger".into())?;
        Ok(Self { running: Mutex::new(Some(running)) })
    }

    /// Brings processes from originals to copies. Returns each with its outcome.
    pub(crate) fn attach(
        &self,
        processes: Vec<u32>,
        exchanges: Vec<Exchange>,
        attempts: u32,
    ) -> Vec<(u32, Exchanged)> {
        let operation = Operation::Attach;
        self.exchange(Task { processes, operation, exchanges, attempts, holds: false }, || {})
    }

    /// Returns processes from copies to originals. `look` names the processes of a census, with
    /// what is to be exchanged in them.
    pub(crate) fn detach(&self, mut look: impl Look) -> Detached {
        self.detach_all(&mut look)
    }

    fn detach_all(&self, look: &mut impl Look) -> Detached {
        let mut looks = Looks { census: Census::default(), look };
        let exchange = |processes, exchanges| {
            self.exchange(Task::to_detach(processes, exchanges, false), || {})
        };
        detach_in_looks(|| looks.next(), exchange)
    }

    /// The same, where a writer may wait: `let_go` is called once all of them stand still, but for
    /// those that are left alone, so that none reads a copy any more. They go on a little later.
    pub(crate) fn detach_and_let_go(&self, mut look: impl Look, let_go: impl FnOnce()) -> Detached {
        let mut held = BTreeMap::new();
        let mut children = BTreeSet::new();
        let looks = RefCell::new(Looks { census: Census::default(), look: &mut look });
        let next = || looks.borrow_mut().next();
        let mut done = detach_in_looks(next, |processes, exchanges| {
            let task = Task::to_detach(processes, exchanges.clone(), true);
            let mut again = BTreeSet::new();
            let outcomes = self.exchange(task, || again = looks.borrow_mut().meanwhile());
            let outcomes = without_those_in_doubt(outcomes, &again);
            for (process, _) in outcomes.iter().filter(|(_, it)| *it == Exchanged::Held) {
                held.insert(*process, exchanges.clone());
                children.insert(self.child());
            }
            outcomes
        });
        // The kernel lets them run once the child that holds them has ended.
        let are_held = children.iter().all(|child| child.is_some() && *child == self.child());
        if are_held {
            let_go();
            if !held.is_empty() {
                thread::sleep(HEAD_START);
            }
            done.add_all(self.finish(held));
        } else {
            done.add_all(self.finish(held));
            // It finds those again that were left alone.
            let Detached { still, settled } = self.detach_all(&mut look);
            done.still = still;
            done.settled.extend(settled);
            let_go();
        }
        done
    }

    /// The number of the child, if it has not ended.
    fn child(&self) -> Option<u32> {
        let mut running = self.running();
        let child = &mut running.as_mut()?.child;
        matches!(child.try_wait(), Ok(None)).then(|| child.id())
    }

    /// Lets processes that are held be exchanged. Returns each with its outcome.
    fn finish(&self, held: BTreeMap<u32, Vec<Exchange>>) -> Vec<(u32, Exchanged)> {
        if held.is_empty() {
            return Vec::new();
        }
        let finished = match self.running().as_mut() {
            Some(running) => running.ask(&Request::Finish, || {}),
            None => Ok(Vec::new()),
        };
        outcomes_of(held, finished.unwrap_or_default(), |process, exchanges| {
            self.exchange(Task::to_detach(vec![process], exchanges, false), || {})
        })
    }

    /// Exchanges files in processes. A child that has ended is replaced by another one, which gets
    /// the same task: what is exchanged already is not found again. `meanwhile` is called while a
    /// child works.
    fn exchange(&self, task: Task, meanwhile: impl FnOnce()) -> Vec<(u32, Exchanged)> {
        if task.processes.is_empty() {
            return Vec::new();
        }
        let files = task.files();
        let request = Request::Exchange(task);
        let mut running = self.running();
        let mut meanwhile = Some(meanwhile);
        let mut ask = || {
            let mut it = running.take().map_or_else(Running::start, Ok)?;
            let answer = it.ask(&request, || {
                if let Some(meanwhile) = meanwhile.take() {
                    meanwhile();
                }
            });
            match answer {
                Ok(_) => *running = Some(it),
                Err(_) => it.end(),
            }
            answer
        };
        let has_ended = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe)
        };
        let answer = ask().or_else(|error| {
            if !has_ended(&error) {
                return Err(error);
            }
            log!("the exchanger: {error}; another one takes its task");
            ask()
        });
        let Request::Exchange(task) = request else { return Vec::new() };
        answer.unwrap_or_else(|error| {
            let why = |process| format!("process {process}: the exchanger: {error}");
            let outcome = |process| match Found::of(process, &task, &files) {
                Ok(_) => Exchanged::LeftAlone { why: why(process), again: true },
                Err(outcome) => outcome,
            };
            task.processes.iter().map(|process| (*process, outcome(*process))).collect()
        })
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcomes of processes that were held. Those whose child has ended run, and have to be
/// stopped by another one.
fn outcomes_of(
    held: BTreeMap<u32, Vec<Exchange>>,
    finished: Vec<(u32, Exchanged)>,
    exchange: impl Fn(u32, Vec<Exchange>) -> Vec<(u32, Exchanged)>,
) -> Vec<(u32, Exchanged)> {
    let mut finished: BTreeMap<_, _> = finished.into_iter().collect();
    let outcome = |(process, exchanges)| match finished.remove(&process) {
        Some(outcome) => vec![(process, outcome)],
        None => exchange(process, exchanges),
    };
    held.into_iter().flat_map(outcome).collect()
}

/// Outcomes without those of processes that may use a copy again. They are asked again.
fn without_those_in_doubt(
    mut outcomes: Vec<(u32, Exchanged)>,
    again: &BTreeSet<u32>,
) -> Vec<(u32, Exchanged)> {
    let stands =
        |outcome: &Exchanged| !matches!(outcome, Exchanged::Unconcerned | Exchanged::Done { .. });
    outcomes.retain(|(process, outcome)| !again.contains(process) || stands(outcome));
    outcomes
}

/// Looks at all processes. Each but the first asks about new ones alone.
struct Looks<'a, L> {
    census: Census,
    look: &'a mut L,
}

impl<L: Look> Looks<'_, L> {
    fn next(&mut self) -> io::Result<Vec<ToDetach>> {
        self.census = self.census.again()?;
        Ok(self.look.look(&self.census))
    }

    fn meanwhile(&mut self) -> BTreeSet<u32> {
        self.look.meanwhile(&self.census)
    }
}

/// The outcome of a detachment.
#[derive(Debug, Default)]
pub(crate) struct Detached {
    /// Why some processes still use a copy.
    pub(crate) still: Vec<String>,
    /// The processes that have used a copy, and go on with the original or keep what they map.
    pub(crate) settled: BTreeSet<u32>,
}

impl Detached {
    fn add(&mut self, process: u32, outcome: Exchanged) {
        if outcome.is_settled() {
            self.settled.insert(process);
        }
        self.still.extend(outcome.still_uses());
    }

    fn add_all(&mut self, outcomes: Vec<(u32, Exchanged)>) {
        outcomes.into_iter().for_each(|(process, outcome)| self.add(process, outcome));
    }
}

/// A process may fork before it is stopped or ends, so each look is at those that the ones before
/// have not found.
fn detach_in_looks(
    mut look: impl FnMut() -> io::Result<Vec<ToDetach>>,
    mut exchange: impl FnMut(Vec<u32>, Vec<Exchange>) -> Vec<(u32, Exchanged)>,
) -> Detached {
    // Processes that use no copy, or keep what they still map of one.
    let mut asked = BTreeSet::new();
    // One that has ended and not been waited for has no memory at the next look either.
    let mut gone = BTreeSet::new();
    let mut done = Detached::default();
    for _ in 0..MAX_LOOKS {
        let mut found = false;
        let looked = look();
        if let Err(error) = &looked {
            done.still.push(format!("perhaps a process (none can be listed: {error})"));
        }
        for (mut processes, exchanges) in looked.unwrap_or_default() {
            processes.retain(|process| !asked.contains(process));
            found |= !processes.is_empty();
            for (process, outcome) in exchange(processes, exchanges) {
                if outcome.is_final() || outcome == Exchanged::Gone && !gone.insert(process) {
                    asked.insert(process);
                }
                done.add(process, outcome);
            }
        }
        if !found {
            break;
        }
    }
    done
}

impl Running {
    fn start() -> io::Result<Self> {
        let mut program = Command::new(PROGRAM);
        program.arg0("nearside").arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A group of its own: the terminal's Ctrl-C ends the helper alone.
        let mut child = program.process_group(0).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(Self { requests, answers: BufReader::new(answers), child })
            }
            _ => Err(io::Error::other("it was started without pipes")),
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        meanwhile: impl FnOnce(),
    ) -> io::Result<Vec<(u32, Exchanged)>> {
        write_line(&mut self.requests, request)?;
        meanwhile();
        read_line(&mut self.answers)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"))
    }

    /// Lets it end, and waits for that.
    fn end(self) {
        let Self { requests, answers, mut child } = self;
        drop((requests, answers));
        let _ = child.wait();
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.take() {
            running.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_that_have_ended_are_looked_for_again() {
        let mut asked = BTreeMap::<u32, usize>::new();
        let exchange = |processes: Vec<u32>, _: Vec<Exchange>| {
            let mut outcome = |process: u32| {
                *asked.entry(process).or_default() += 1;
                match process {
                    1 | 5 => Exchanged::Gone,
                    6 => Exchanged::LeftAlone { why: "it is of 32 bits".into(), again: false },
                    2 => Exchanged::LeftAlone { why: "it is traced".into(), again: true },
                    _ => Exchanged::Unconcerned,
                }
            };
            processes.into_iter().map(|process| (process, outcome(process))).collect()
        };
        // The second look finds the child of process 1, and the third one nobody else. Process 5
        // has ended, and nobody waits for it.
        let mut looks = [vec![1, 2, 3, 5], vec![2, 3, 4, 5, 6], vec![2, 3, 4, 5, 6]].into_iter();
        let done = detach_in_looks(|| Ok(vec![(looks.next().unwrap(), vec![])]), exchange);
        assert_eq!(done.still, ["it is traced", "it is of 32 bits"]);
        assert_eq!(done.settled, [6].into());
        assert_eq!(asked, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 1)].into());
    }

    #[test]
    fn processes_that_cannot_be_listed_are_no_proof_that_none_uses_a_copy() {
        let look = || Err(io::Error::from_raw_os_error(libc::EMFILE));
        let done = detach_in_looks(look, |_, _| vec![]);
        let [why] = &done.still[..] else { panic!("{done:?}") };
        assert!(why.starts_with("perhaps a process (none can be listed: Too many open"), "{why}");
    }

    #[test]
    fn processes_that_may_have_begun_to_use_a_copy_are_asked_again_unless_they_are_held() {
        let outcomes = [7, 8, 9].map(|process| (process, Exchanged::Unconcerned));
        let outcomes = outcomes.into_iter().chain([(10, Exchanged::Held)]).collect();
        let left = without_those_in_doubt(outcomes, &[8, 9, 10].into());
        assert_eq!(left, [(7, Exchanged::Unconcerned), (10, Exchanged::Held)]);
    }

    #[test]
    fn processes_of_a_child_that_has_ended_are_exchanged_by_another_one() {
        let held = [7, 8].map(|process| (process, vec![])).into();
        let exchange = |process, _| vec![(process, Exchanged::Unconcerned)];
        let outcomes = outcomes_of(held, vec![(8, Exchanged::Gone)], exchange);
        assert_eq!(outcomes, [(7, Exchanged::Unconcerned), (8, Exchanged::Gone)]);
    }
}
