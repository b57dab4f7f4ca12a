//! First homes of found parts, and homes that follow external bindings.

use super::{
    amounts::{Amounts, split},
    binding::{Binding, agrees, follow},
    cooldown::{cooldown_after, is_cooling_down},
    evaluation::{Evaluation, Evaluator},
    learning::is_idle,
    model::{HostModel, PartModel, horizon_ns},
    order::{Turns, for_first_homes},
    round::Round,
    steps::adopted_claim,
    tuning::Tuning,
};
use crate::{
    Affinity, Claim, Home, HomeBlocker, LastMove, MemoryPolicy, MilliVcpus, Origin, PartState,
    Reason, SlowDown, Step,
    index::{NodeIndex, PartIndex},
    view::View,
};
use nearside_topology::NodeSet;
use std::collections::BTreeMap;

/// How a part without a home gets one.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// The nodes of its external binding become its home.
    Follow(NodeSet),
    /// The best home becomes its own.
    Choose,
}

/// How a part without a home gets one, or why it does not. `refused_until` is the interval before
/// which a step would be refused again.
fn start(
    refused_until: Option<u64>,
    bound_to: Option<NodeSet>,
    may_bind: Result<(), HomeBlocker>,
    soft_affinity: bool,
) -> Result<Start, HomeBlocker> {
    if let Some(retry_at) = refused_until {
        return Err(HomeBlocker::Refused { retry_at });
    }
    if let Some(nodes) = bound_to {
        return Ok(Start::Follow(nodes));
    }
    match may_bind {
        // Without the nodes of its cells, any home may put cells on one node.
        Err(blocker) if !soft_affinity || blocker == HomeBlocker::HasCells => Err(blocker),
        _ => Ok(Start::Choose),
    }
}

/// The steps of all cells of a guest, if all of its `count` cells have theirs: its record has all
/// cells, so they get their homes together or not at all.
fn together(cells: &[FirstHome], count: usize) -> Option<Vec<Step>> {
    let steps: Option<Vec<_>> = cells.iter().map(|(_, steps)| steps.clone()).collect();
    steps.filter(|_| cells.len() == count).map(|steps| steps.concat())
}

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
            let soft_affinity = self.seen().soft_affinity;
            let refused_until = refused_until(self.known(at).first_home, self.now());
            let bound_to = self.bound_to(at);
            match start(refused_until, bound_to, self.may_bind(at), soft_affinity) {
                Ok(Start::Follow(nodes)) => {
                    let steps = self.adopt(at, nodes);
                    self.transact_first(at, Some(steps), &mut guests);
                }
                Ok(Start::Choose) => homeless.push(at),
                Err(blocker) => self.known_mut(at).status.home_blocker = Some(blocker),
            }
        }
        let Turns { now: homeless, queued } = for_first_homes(homeless, |at| self.part(at));
        for at in queued {
            self.known_mut(at).status.home_blocker = Some(HomeBlocker::Queued);
        }
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

    // Adds the transaction of a guest.
    fn transact_guest(&mut self, cells: Vec<FirstHome>) {
        let domain = cells.first().map(|(at, _)| self.state(*at).id.domain());
        let siblings = self.parts().filter(|&at| Some(self.state(at).id.domain()) == domain);
        match together(&cells, siblings.count()) {
            Some(steps) => {
                self.transact(steps);
                cells.iter().for_each(|(at, _)| self.begin_attempt(*at));
            }
            None => cells.into_iter().for_each(|(at, _)| self.take_back(at)),
        }
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
        let (part, view) = (self.part(at), self.host().view());
        let Adoption { home, claim, at_nodes, load_milli } =
            adoption(self.state(at), part, view, &nodes);
        self.count_at(at, at_nodes, load_milli);
        self.bind(at, home, claim, &Reason::BoundByOther { nodes })
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
        let (tuning, soft_affinity) = (self.tuning(), self.seen().soft_affinity);
        let (part, barred) = (self.part(at).clone(), self.nodes_of_siblings(at));
        let best = best_home(self.host_mut(), part, &barred, tuning, soft_affinity);
        let (best, reason) = best.ok_or(HomeBlocker::NoRoom)?;
        Ok(self.rehome(at, &best, &reason))
    }
}

/// The interval in which a part that was refused its first home may get one again; none if it may
/// now.
fn refused_until(last: Option<LastMove>, now: u64) -> Option<u64> {
    let last = last.filter(|&last| is_cooling_down(last, now))?;
    Some(last.at.saturating_add(last.cooldown_intervals))
}

/// The nodes to which another program binds a part, as its home.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Adoption {
    home: Home,
    claim: Claim,
    at_nodes: Vec<NodeIndex>,
    /// Its demand, by the cores of the nodes.
    load_milli: Amounts,
}

/// The home and the claim of a part on the nodes to which another program binds it.
fn adoption(state: &PartState, part: &PartModel, view: &View, nodes: &NodeSet) -> Adoption {
    let at_nodes: Vec<NodeIndex> = nodes.iter().filter_map(|node| view.index_of(node)).collect();
    let cores: Amounts = at_nodes.iter().map(|&i| (i, view.nodes[i].cores)).collect();
    let home = Home {
        nodes: nodes.clone(),
        origin: Origin::Adopted,
        affinity: Affinity::Hard,
        policy: MemoryPolicy::Local,
    };
    let claim = adopted_claim(state, part, nodes, &cores, |i| view.nodes[i].id);
    Adoption { home, claim, at_nodes, load_milli: split(part.demand_milli, &cores) }
}

/// The best home of a part that has none, off the barred nodes, and the reason for it; None where
/// it finds no room. The model is as before afterwards.
fn best_home(
    host: &mut HostModel,
    part: PartModel,
    barred: &[NodeIndex],
    tuning: &Tuning,
    soft_affinity: bool,
) -> Option<(Evaluation, Reason)> {
    // Its run time before it was found is unknown.
    let part = PartModel { horizon_ns: horizon_ns(tuning, u64::MAX), ..part };
    host.remove(&part);
    let evaluator = Evaluator::new(host, &part, tuning, soft_affinity);
    let best = evaluator.best(evaluator.candidates(barred), SlowDown::NONE);
    host.add(&part);
    let best = best?;
    let demand = MilliVcpus(part.demand_milli);
    let (slow_down, bytes_to_move) = (best.slow_down, best.bytes_to_move);
    Some((best, Reason::FirstHome { demand, slow_down, bytes_to_move }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Action, ControlObservation, Owner, PageSize,
        controllers::homes::fixture::{GIB, learned, part, seen},
        index::Index,
    };
    use nearside_topology::{MemoryState, NodeId};

    #[test]
    fn a_refusal_a_binding_and_the_owner_decide_in_this_order() {
        let nodes = || Some(NodeSet::from([NodeId(1)]));
        let forbidden = || Err(HomeBlocker::OwnerForbids { owner: Owner::Kubelet });
        let has_cells = || Err(HomeBlocker::HasCells);
        let refused = Err(HomeBlocker::Refused { retry_at: 9 });
        let follow = Ok(Start::Follow([NodeId(1)].into()));
        for (refused_until, bound_to, may_bind, soft_affinity, expected) in [
            (Some(9), nodes(), Ok(()), true, refused),
            (None, nodes(), forbidden(), false, follow),
            (None, None, Ok(()), false, Ok(Start::Choose)),
            (None, None, forbidden(), true, Ok(Start::Choose)),
            (None, None, forbidden(), false, forbidden().map(|()| Start::Choose)),
            (None, None, has_cells(), true, has_cells().map(|()| Start::Choose)),
        ] {
            let answer = start(refused_until, bound_to, may_bind, soft_affinity);
            assert_eq!(answer, expected);
        }
    }

    #[test]
    fn cells_of_a_guest_get_their_homes_together_or_not_at_all() {
        let steps = |nodes: &[u32]| {
            let step = |&node| {
                let nodes = NodeSet::from([NodeId(node)]);
                let action = Action::ConfineMemory { part: "vm".into(), nodes };
                Step { action, reason: Reason::Placed }
            };
            nodes.iter().map(step).collect::<Vec<_>>()
        };
        let cells = [(part(0), Some(steps(&[0, 1]))), (part(1), Some(steps(&[2])))];
        assert_eq!(together(&cells, 2), Some(steps(&[0, 1, 2])));
        assert_eq!(together(&cells, 3), None, "the third was not sampled");
        assert_eq!(together(&[cells[0].clone(), (part(1), None)], 2), None, "one has no home");
    }

    #[test]
    fn after_a_refusal_the_next_attempt_is_a_cooldown_later() {
        let load = MilliVcpus(1000);
        let last = Some(LastMove { at: 4, cooldown_intervals: 5, load });
        assert_eq!([8, 9].map(|now| refused_until(last, now)), [Some(9), None]);
        assert_eq!(refused_until(None, 8), None);
    }

    /// `db` of 2 vCPUs without a home, whose 4 GiB lie on node 0, beside this work by node in s.
    fn homeless(others: [u64; 2]) -> ControlObservation {
        let mut seen = seen(1, 0, others);
        let db = &mut seen.machine.parts[0];
        (db.home, db.claim) = (None, None);
        seen
    }

    /// The model of that host, in which `db` is nowhere.
    fn model(seen: &ControlObservation) -> (HostModel, PartModel) {
        let tuning = Tuning::default();
        let mut host = HostModel::new(&tuning, seen, &learned(&tuning, seen));
        let nowhere = PartModel { home: vec![], load_milli: vec![], ..host.part(part(0)).clone() };
        host.replace(part(0), nowhere.clone());
        (host, nowhere)
    }

    #[test]
    fn a_first_home_has_cpus_and_memory_and_is_off_the_barred_nodes() {
        let full = |mut seen: ControlObservation, node: usize| {
            seen.machine.topology.nodes[node].state = Some(MemoryState::default());
            seen
        };
        let [first, second] = [0, 1].map(NodeIndex::at);
        let quiet = || homeless([0, 0]);
        for (seen, barred, expected) in [
            (quiet(), vec![], Some(vec![first])),
            // 4 s of CPU time in 2 s: as many CPUs as node 0 has.
            (homeless([4, 0]), vec![], Some(vec![second])),
            // Its 4 GiB lie on node 0, and node 1 has none.
            (full(quiet(), 1), vec![first], None),
            (quiet(), vec![first], Some(vec![second])),
            (quiet(), vec![first, second], None),
            (full(full(quiet(), 0), 1), vec![second], Some(vec![first])),
        ] {
            let (mut host, db) = model(&seen);
            let rooms = |host: &HostModel| [first, second].map(|i| host.room(PageSize::Base, i));
            let before = rooms(&host);
            let best = best_home(&mut host, db, &barred, &Tuning::default(), true);
            assert_eq!(best.map(|(best, _)| best.home), expected);
            assert_eq!(rooms(&host), before, "the model is as before");
        }
    }

    #[test]
    fn an_adopted_home_is_hard_and_its_claim_is_what_lies_there() {
        let seen = homeless([0, 0]);
        let (host, db) = model(&seen);
        let state = &seen.machine.parts[0];
        for (nodes, bytes, vcpus) in [
            ("0", vec![(NodeId(0), 4 * GIB)], vec![(NodeId(0), 2)]),
            ("1", vec![], vec![(NodeId(1), 2)]),
            ("0-1", vec![(NodeId(0), 4 * GIB)], vec![(NodeId(0), 1), (NodeId(1), 1)]),
        ] {
            let nodes: NodeSet = nodes.parse().unwrap();
            let adoption = adoption(state, &db, host.view(), &nodes);
            assert_eq!(adoption.home.nodes, nodes);
            let kind = (adoption.home.origin, adoption.home.affinity);
            assert_eq!(kind, (Origin::Adopted, Affinity::Hard));
            assert_eq!(adoption.claim.bytes, bytes.into_iter().collect());
            assert_eq!(adoption.claim.vcpus, vcpus.into_iter().collect());
            assert_eq!(adoption.load_milli.iter().map(|(_, milli)| milli).sum::<u64>(), 2000);
        }
    }
}
