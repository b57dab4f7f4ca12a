//! First homes of found parts, and homes that follow external bindings.

use super::{
    amounts::{Amounts, split},
    binding::{Binding, agrees, follow},
    cooldown::{cooldown_after, is_cooling_down},
    evaluation::Evaluator,
    learning::is_idle,
    model::PartModel,
    round::Round,
};
use crate::{
    Affinity, ByNode, Claim, Home, HomeBlocker, LastMove, MemoryPolicy, MilliVcpus, Origin, Reason,
    SlowDown, Step,
    index::{NodeIndex, PartIndex},
};
use nearside_topology::NodeSet;
use std::{cmp::Reverse, collections::BTreeMap};

// How many parts get their first home in a round: it bounds the time that a round takes.
const MAX_FIRST_HOMES: usize = 64;

// A cell of a guest, and the steps of its first home if it can have one.
type FirstHome = (PartIndex, Option<Vec<Step>>);

// The first homes of guests with cells, by domain.
#[derive(Debug, Default)]
struct Guests(BTreeMap<String, Vec<FirstHome>>);

impl<'a> Round<'a> {
    /// Gives each part without a home one: the nodes of its external binding, or the best. The
    /// largest choose first, as if those that choose later were not there yet.
    pub(super) fn first_homes(&mut self) {
        let mut homeless = Vec::new();
        let mut guests = Guests::default();
        for at in self.sampled() {
            if self.state(at).home.is_some() {
                continue;
            }
            if let Some(retry_at) = self.refused_until(at) {
                self.known_mut(at).status.home_blocker = Some(HomeBlocker::Refused { retry_at });
                continue;
            }
            if let Some(nodes) = self.bound_to(at) {
                let steps = self.adopt(at, nodes);
                self.transact_first(at, Some(steps), &mut guests);
                continue;
            }
            match self.may_bind(at) {
                // Without the nodes of its cells, any home may put cells on one node.
                Err(blocker) if !self.seen().soft_affinity || blocker == HomeBlocker::HasCells => {
                    self.known_mut(at).status.home_blocker = Some(blocker)
                }
                _ => homeless.push(at),
            }
        }
        homeless.sort_by_key(|&at| {
            (Reverse(self.part(at).demand_milli), Reverse(self.part(at).needed_bytes), at)
        });
        for &at in homeless.iter().skip(MAX_FIRST_HOMES) {
            self.known_mut(at).status.home_blocker = Some(HomeBlocker::Queued);
        }
        homeless.truncate(MAX_FIRST_HOMES);
        homeless.iter().for_each(|&at| self.count_at(at, Vec::new(), Amounts::new()));
        for at in homeless {
            let (steps, blocker) = match self.first_home(at) {
                Ok(steps) => (Some(steps), None),
                Err(blocker) => (None, Some(blocker)),
            };
            self.known_mut(at).status.home_blocker = blocker;
            self.transact_first(at, steps, &mut guests);
        }
        for (_, cells) in guests.0 {
            self.transact_guest(cells);
        }
    }

    // Adds the transaction of a first home. Cells of one guest wait for each other.
    fn transact_first(&mut self, at: PartIndex, steps: Option<Vec<Step>>, guests: &mut Guests) {
        let id = &self.state(at).id;
        match (id.cell(), steps) {
            (Some(_), steps) => {
                guests.0.entry(id.domain().to_owned()).or_default().push((at, steps));
            }
            (None, Some(steps)) => {
                self.transact(steps);
                self.begin_attempt(at);
            }
            (None, None) => {}
        }
    }

    // All cells of a guest get their homes in one transaction, or none does: the record of a guest
    // has all its cells.
    fn transact_guest(&mut self, cells: Vec<FirstHome>) {
        let domain = cells.first().map(|(at, _)| self.state(*at).id.domain());
        let siblings = self.parts().filter(|&at| Some(self.state(at).id.domain()) == domain);
        let is_whole = siblings.count() == cells.len();
        let steps: Option<Vec<_>> = cells.iter().map(|(_, steps)| steps.clone()).collect();
        match steps.filter(|_| is_whole) {
            Some(steps) => {
                self.transact(steps.concat());
                cells.iter().for_each(|(at, _)| self.begin_attempt(*at));
            }
            None => cells.into_iter().for_each(|(at, _)| self.take_back(at)),
        }
    }

    // The interval in which a part without a home may get one again; none if it may now.
    fn refused_until(&self, at: PartIndex) -> Option<u64> {
        let last = self.known(at).first_home.filter(|&last| is_cooling_down(last, self.now()))?;
        Some(last.at.saturating_add(last.cooldown_intervals))
    }

    // The cooldown of a first home counts if a step of it is refused: then the part still has none.
    fn begin_attempt(&mut self, at: PartIndex) {
        let (now, tuning) = (self.now(), self.tuning());
        let load = MilliVcpus(self.host().load_milli(&self.part(at).home));
        let known = self.known_mut(at);
        let cooldown_intervals = cooldown_after(tuning, known.first_home, now);
        known.first_home = Some(LastMove { at: now, cooldown_intervals, load });
        known.status.home_blocker = None;
    }

    // Counts a part at other nodes in the model.
    fn count_at(&mut self, at: PartIndex, home: Vec<NodeIndex>, load_milli: Amounts) {
        let part = PartModel { home, load_milli, ..self.part(at).clone() };
        self.host_mut().replace(at, part);
    }

    // The steps that make the nodes of an external binding the home.
    fn adopt(&mut self, at: PartIndex, nodes: NodeSet) -> Vec<Step> {
        let held = self.state(at).resident_bytes.iter().filter(|(node, _)| nodes.contains(**node));
        let bytes: ByNode = held.map(|(&node, &bytes)| (node, bytes)).collect();
        let view = self.host().view();
        let home: Vec<NodeIndex> = nodes.iter().filter_map(|node| view.index_of(node)).collect();
        let cores: Amounts = home.iter().map(|&i| (i, view.nodes[i].cores)).collect();
        let demand_milli = self.part(at).demand_milli;
        self.count_at(at, home, split(demand_milli, &cores));
        let vcpus = split(demand_milli.div_ceil(1000).max(1), &cores).into_iter();
        let vcpus = vcpus.filter(|(_, vcpus)| *vcpus > 0).map(|(i, n)| (self.id(i), n)).collect();
        let claim = Claim { bytes, vcpus, page_size: self.part(at).page_size };
        let reason = Reason::BoundByOther { nodes: nodes.clone() };
        let home = Home {
            nodes,
            origin: Origin::Adopted,
            affinity: Affinity::Hard,
            policy: MemoryPolicy::Local,
        };
        self.bind(at, home, claim, &reason)
    }

    /// Lets homes of found parts follow their external bindings.
    pub(super) fn follow_bindings(&mut self) {
        for at in self.sampled() {
            let Some(home) = self.found_home(at).filter(|_| !self.is_moving(at)) else { continue };
            let known = self.known(at);
            let (is_idle, differed) = (is_idle(self.tuning(), known), known.bound_elsewhere);
            let bound_to = self.bound_to(at);
            let binding = follow(self.tuning(), home, bound_to, is_idle, differed);
            let known = self.known_mut(at);
            known.bound_elsewhere = match &binding {
                Binding::Differs(samples) => *samples,
                Binding::Agrees | Binding::Adopt(_) | Binding::Release => 0,
            };
            match binding {
                Binding::Agrees | Binding::Differs(_) => {}
                Binding::Adopt(nodes) => {
                    let steps = self.adopt(at, nodes);
                    self.transact(steps);
                }
                Binding::Release => {
                    let home =
                        Home { origin: Origin::Auto, affinity: Affinity::Soft, ..home.clone() };
                    let step = self.set_home(at, home, &Reason::LetGo);
                    self.transact(vec![step]);
                }
            }
        }
    }

    /// Whether a part's home agrees with its external binding. Nearside binds the parts that it
    /// started itself.
    pub(super) fn is_bound_at_home(&self, at: PartIndex) -> bool {
        let bound_to = self.bound_to(at);
        self.found_home(at).is_none_or(|home| agrees(home, bound_to.as_ref()))
    }

    fn found_home(&self, at: PartIndex) -> Option<&'a Home> {
        let state = self.state(at);
        state.home.as_ref().filter(|_| state.was_found())
    }

    fn first_home(&mut self, at: PartIndex) -> Result<Vec<Step>, HomeBlocker> {
        // Its run time before it was found is unknown.
        let horizon_ns = super::model::horizon_ns(self.tuning(), u64::MAX);
        let part = PartModel { horizon_ns, ..self.part(at).clone() };
        let (tuning, soft_affinity) = (self.tuning(), self.seen().soft_affinity);
        let barred = self.nodes_of_siblings(at);
        let host = self.host_mut();
        host.remove(&part);
        let evaluator = Evaluator::new(host, &part, tuning, soft_affinity);
        let best = evaluator.best(evaluator.candidates(&barred), SlowDown::NONE);
        host.add(&part);
        let best = best.ok_or(HomeBlocker::NoRoom)?;
        let demand = MilliVcpus(part.demand_milli);
        let (slow_down, bytes_to_move) = (best.slow_down, best.bytes_to_move);
        let reason = Reason::FirstHome { demand, slow_down, bytes_to_move };
        Ok(self.rehome(at, &best, &reason))
    }
}
