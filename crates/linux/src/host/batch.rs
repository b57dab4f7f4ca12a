//! Moving pages home in batches for the daemon, a bounded number of bytes an interval.
//!
//! Each pair of source and target node has a rate of its own, so all pairs move at the same time.
//! Each source node has one thread, which moves a chunk of one pair while the others rest. So an
//! interval's moves take at most one CPU a source node.

use super::{handle::Host, walks::Walks};
use crate::{
    error::Error,
    migrate::{Chunk, MAX_NAP, Moved, Moving, Part, Walk},
    store::{Record, Store},
};
use nearside_policy::{Batch, Outcome, PageMove, PartId, Progress};
use nearside_topology::{NodeId, NodeSet, Topology};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::ControlFlow,
    sync::Arc,
    thread,
    time::Instant,
};

/// Batches under way, which may rest between two calls of [`Host::move_batches`].
#[derive(Debug, Default)]
pub struct Batches {
    lanes: Vec<Lane>,
}

/// The pages that leave one node, moved by one thread.
#[derive(Debug)]
struct Lane {
    from: NodeId,
    walks: BTreeMap<PartId, Walk>,
    ways: Vec<Way>,
    ended: Vec<(PageMove, Moved)>,
}

/// From the lane's node to one target node, or to several.
#[derive(Debug)]
struct Way {
    to: NodeSet,
    /// The time from which the rate allows the next chunk.
    due: Instant,
    /// The moves in this direction, which take turns.
    queue: VecDeque<Task>,
}

#[derive(Debug)]
struct Task {
    action: PageMove,
    /// The record of the domain at the beginning of the batch.
    record: Record,
    moving: Moving,
}

impl Host {
    /// Prepares batches, each of a domain's pages to nodes of its recorded home. Returns the
    /// refused ones as well.
    ///
    /// Batches leave no record, so this needs no lock: pages that have not moved are still off
    /// their home. Another command that changes the domain meanwhile ends its batch.
    pub fn begin_batches(&mut self, batches: &[PageMove]) -> (Batches, Vec<(PageMove, Outcome)>) {
        let (mut begun, mut refused) = (Batches::default(), Vec::new());
        if batches.is_empty() {
            return (begun, refused);
        }
        let topology = self.topology().map(Arc::new);
        // Where an interval has time for one chunk alone, each batch gets its turn to be the first.
        self.batch_turns = self.batch_turns.wrapping_add(1);
        for action in in_turn(batches, self.batch_turns) {
            let task = match &topology {
                Ok(topology) => self.task(action, topology),
                Err(error) => Err(Error::Refused(error.to_string())),
            };
            match task {
                Ok((from, to, task)) => begun.add(from, to, task, &mut self.walks),
                Err(error) => {
                    refused.push((action.clone(), Outcome::Refused { why: error.to_string() }))
                }
            }
        }
        (begun, refused)
    }

    /// Moves pages until every page was tried, or `until` has passed, or `go_on` returns false.
    /// Several threads call it, before each rest and after each chunk, at least every 100 ms. So
    /// each call moves at least one chunk if the rate allows.
    pub fn move_batches(
        &mut self,
        batches: &mut Batches,
        until: Instant,
        go_on: &(dyn Fn() -> ControlFlow<()> + Sync),
    ) {
        let go_on = || if Instant::now() < until { go_on() } else { ControlFlow::Break(()) };
        let (store, go_on) = (&self.store, &go_on);
        let mut lanes = batches.lanes.iter_mut().filter(|lane| lane.is_busy());
        let mut said = Vec::new();
        thread::scope(|scope| {
            let own = lanes.next();
            for lane in lanes {
                let from = lane.from;
                let run = move || lane.run(store, &mut |_| go_on());
                if let Err(error) = thread::Builder::new()
                    .name(format!("nearside-from-{from}"))
                    .spawn_scoped(scope, run)
                {
                    said.push(format!(
                        "a thread that moves memory from node {from}: {error}; it is tried again"
                    ));
                }
            }
            if let Some(lane) = own {
                lane.run(store, &mut |_| go_on());
            }
        });
        said.iter().for_each(|said| self.notice(said));
    }

    /// The outcome of each batch.
    pub fn end_batches(&mut self, batches: Batches) -> Vec<(PageMove, Outcome)> {
        let mut ended = Vec::new();
        for mut lane in batches.lanes {
            let ways = std::mem::take(&mut lane.ways);
            ways.into_iter().flat_map(|way| way.queue).for_each(|task| lane.end(task));
            for (action, moved) in lane.ended {
                for why in &moved.unread {
                    self.notice(&format!(
                        "the memory of a process of {} was left alone: {why}",
                        action.part
                    ));
                }
                ended.push((action, moved.into_outcome()));
            }
            for (part, walk) in lane.walks {
                self.walks.put(part, lane.from, walk);
            }
        }
        ended
    }

    /// Moves a single batch to its end.
    pub(super) fn move_batch(
        &mut self,
        action: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let (mut begun, refused) = self.begin_batches(std::slice::from_ref(action));
        for lane in &mut begun.lanes {
            lane.run(&self.store, progress);
        }
        let outcome =
            self.end_batches(begun).into_iter().chain(refused).next().map(|(_, outcome)| outcome);
        outcome.ok_or_else(|| Error::Refused("there is nothing to move".into()))
    }

    fn task(
        &self,
        action: &PageMove,
        topology: &Arc<Topology>,
    ) -> Result<(NodeId, NodeSet, Task), Error> {
        let PageMove { part: id, nodes, rate_bytes_per_s, batch: Some(Batch { from, max_bytes }) } =
            action
        else {
            return Err(Error::Refused("this is no batch of pages".into()));
        };
        let domain = id.domain();
        let Some(record) = self.store.living(domain, &self.tree)? else {
            return Err(Error::Refused(format!("{domain} has ended, or has no home")));
        };
        let recorded = record.part_of(id);
        let recorded = recorded.ok_or_else(|| Error::Refused(format!("{id} has no home")))?;
        if let Some(mover) = &recorded.mover {
            let why = format!("process {} moves the memory of {id}", mover.pid);
            return Err(Error::Refused(why));
        }
        let home = &recorded.home.nodes;
        if !nodes.is_subset(home) || home.contains(*from) {
            let home = home.named();
            return Err(Error::Refused(format!(
                "another command has changed the home of {id} to {home}"
            )));
        }
        let group = self.tree.group(&record.cgroup)?;
        let part = Part {
            extent: self.extent(id, &group, topology)?,
            group,
            proc: self.proc(),
            topology: Arc::clone(topology),
            to: nodes.clone(),
            from: *from,
            max_bytes: *max_bytes,
            rate_bytes_per_s: *rate_bytes_per_s,
            claim: recorded.claim.clone(),
        };
        Ok((
            *from,
            nodes.clone(),
            Task { action: action.clone(), record, moving: Moving::new(part) },
        ))
    }
}

impl Batches {
    /// True if pages are left to try.
    pub fn is_busy(&self) -> bool {
        self.lanes.iter().any(Lane::is_busy)
    }

    fn add(&mut self, from: NodeId, to: NodeSet, task: Task, walks: &mut Walks) {
        let at = self.lanes.iter().position(|lane| lane.from == from).unwrap_or(self.lanes.len());
        if at == self.lanes.len() {
            self.lanes.push(Lane {
                from,
                walks: BTreeMap::new(),
                ways: Vec::new(),
                ended: Vec::new(),
            });
        }
        let lane = &mut self.lanes[at];
        let part = task.action.part.clone();
        lane.walks.entry(part).or_insert_with_key(|part| walks.take(part, from));
        match lane.ways.iter_mut().find(|way| way.to == to) {
            Some(way) => way.queue.push_back(task),
            None => lane.ways.push(Way { to, due: Instant::now(), queue: [task].into() }),
        }
    }
}

impl Lane {
    fn is_busy(&self) -> bool {
        self.ways.iter().any(|way| !way.queue.is_empty())
    }

    /// Moves a chunk of the way that has rested longest, again and again.
    fn run(&mut self, store: &Store, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) {
        while let Some(way) =
            self.ways.iter_mut().filter(|way| !way.queue.is_empty()).min_by_key(|way| way.due)
        {
            let Some(mut task) = way.queue.pop_front() else { return };
            while let Some(rest) =
                way.due.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
            {
                if progress(task.moving.progress()).is_break() {
                    way.queue.push_front(task);
                    return;
                }
                thread::sleep(rest.min(MAX_NAP));
            }
            let chunk = match is_unchanged(store, &task.record) {
                true => chunk(&mut self.walks, &mut task, progress),
                false => Chunk::Last,
            };
            let so_far = task.moving.progress();
            match chunk {
                Chunk::More(rest) => {
                    way.due = Instant::now() + rest;
                    way.queue.push_back(task);
                }
                Chunk::Last => self.end(task),
            }
            if progress(so_far).is_break() {
                return;
            }
        }
    }

    fn end(&mut self, task: Task) {
        let moved = task.moving.end(self.walks.entry(task.action.part.clone()).or_default());
        self.ended.push((task.action, moved));
    }
}

/// All batches, of which another one is the first each turn.
fn in_turn<T>(batches: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let first = turn.checked_rem(batches.len()).unwrap_or(0);
    let (before, from_first) = batches.split_at(first);
    from_first.iter().chain(before)
}

/// A search for pages may take long and can be interrupted; a batch that was found is moved whole.
fn chunk(
    walks: &mut BTreeMap<PartId, Walk>,
    task: &mut Task,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Chunk {
    let walk = walks.entry(task.action.part.clone()).or_default();
    let began = Instant::now();
    task.moving.chunk(walk, &mut |so_far| match began.elapsed() < MAX_NAP {
        true => ControlFlow::Continue(()),
        false => progress(so_far),
    })
}

/// True if the record of a domain has not changed.
pub(super) fn is_unchanged(store: &Store, record: &Record) -> bool {
    store.record(&record.name).is_ok_and(|now| now.as_ref() == Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_batch_is_the_first_in_its_turn() {
        let turns = (0..4).map(|turn| in_turn(&[1, 2, 3], turn).copied().collect::<Vec<_>>());
        assert_eq!(turns.collect::<Vec<_>>(), [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
        assert_eq!(in_turn::<u8>(&[], 5).count(), 0);
    }
}
