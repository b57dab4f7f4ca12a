//! One round of the homes controller: the input, and the decisions made so far.

use super::{
    amounts::on,
    evaluation::Evaluation,
    learning::Learned,
    mobility,
    model::{HostModel, PartModel},
    steps,
    tuning::Tuning,
};
use crate::{
    Action, Affinity, Claim, ControlObservation, ControlPlan, History, Home, HomeBlocker,
    MemoryPolicy, NodeHistory, Origin, Owner, PageMove, PartHistory, PartLoad, PartState, Reason,
    Step, Transaction,
    index::{IndexVec, NodeIndex, PartIndex},
};
use nearside_topology::{NodeId, NodeSet};
use std::collections::{BTreeMap, BTreeSet};

/// A round of the controller.
#[derive(Debug)]
pub(super) struct Round<'a> {
    tuning: &'a Tuning,
    seen: &'a ControlObservation,
    nodes: BTreeMap<NodeId, NodeHistory>,
    known: IndexVec<PartIndex, PartHistory>,
    /// The load of each part that has one in this interval.
    loads: IndexVec<PartIndex, Option<&'a PartLoad>>,
    /// Invariant: counts each part at the home that was decided last for it.
    host: HostModel,
    transactions: Vec<Transaction>,
    moves: Vec<Step<PageMove>>,
    /// Invariant: only parts with a load and a name of their own; only these are decided about.
    is_sampled: IndexVec<PartIndex, bool>,
    /// Invariant: the parts whose home changes in this round. Each changes at most once.
    is_moving: IndexVec<PartIndex, bool>,
}

impl<'a> Round<'a> {
    pub(super) fn new(tuning: &'a Tuning, seen: &'a ControlObservation, learned: Learned) -> Self {
        let host = HostModel::new(tuning, seen, &learned);
        let parts = &seen.machine.parts;
        let loads: IndexVec<_, _> = parts.iter().map(|part| seen.loads.get(&part.id)).collect();
        // If two parts have one name, figures cannot be assigned to either: nothing is decided
        // about the second.
        let mut ids = BTreeSet::new();
        let is_sampled = parts.iter().zip(loads.iter());
        let is_sampled =
            is_sampled.map(|(part, load)| ids.insert(&part.id) && load.is_some()).collect();
        Self {
            tuning,
            seen,
            nodes: learned.nodes,
            known: learned.parts,
            loads,
            host,
            transactions: Vec::new(),
            moves: Vec::new(),
            is_sampled,
            is_moving: IndexVec::filled(false, parts.len()),
        }
    }

    /// The plan, and the history for the next round.
    pub(super) fn finish(self) -> (ControlPlan, History) {
        let (transactions, moves) = (self.transactions, self.moves);
        let plan = ControlPlan { interval: self.seen.interval, transactions, moves };
        let learned = Learned { parts: self.known, nodes: self.nodes };
        (plan, learned.into_history(&self.seen.machine.parts))
    }

    pub(super) fn tuning(&self) -> &'a Tuning {
        self.tuning
    }

    pub(super) fn seen(&self) -> &'a ControlObservation {
        self.seen
    }

    pub(super) fn now(&self) -> u64 {
        self.seen.interval
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = PartIndex> + use<> {
        self.known.indices()
    }

    /// The parts that were sampled: only about these anything is decided.
    pub(super) fn sampled(&self) -> Vec<PartIndex> {
        self.parts().filter(|&at| self.is_sampled[at]).collect()
    }

    pub(super) fn is_sampled(&self, at: PartIndex) -> bool {
        self.is_sampled[at]
    }

    pub(super) fn is_moving(&self, at: PartIndex) -> bool {
        self.is_moving[at]
    }

    pub(super) fn state(&self, at: PartIndex) -> &'a PartState {
        use crate::index::Index;
        &self.seen.machine.parts[at.position()]
    }

    pub(super) fn known(&self, at: PartIndex) -> &PartHistory {
        &self.known[at]
    }

    pub(super) fn known_mut(&mut self, at: PartIndex) -> &mut PartHistory {
        &mut self.known[at]
    }

    pub(super) fn node_history(&self, node: NodeId) -> NodeHistory {
        self.nodes.get(&node).copied().unwrap_or_default()
    }

    pub(super) fn host(&self) -> &HostModel {
        &self.host
    }

    pub(super) fn host_mut(&mut self) -> &mut HostModel {
        &mut self.host
    }

    pub(super) fn part(&self, at: PartIndex) -> &PartModel {
        self.host.part(at)
    }

    /// The nodes of the other cells of a cell's virtual machine, as decided last. Two cells on one
    /// node set would be one cell, and the guest would take them for two.
    pub(super) fn nodes_of_siblings(&self, at: PartIndex) -> Vec<NodeIndex> {
        let id = &self.state(at).id;
        if id.cell().is_none() {
            return Vec::new();
        }
        let is_sibling = |other: &PartIndex| {
            let other_id = &self.state(*other).id;
            *other != at && other_id.cell().is_some() && other_id.domain() == id.domain()
        };
        let siblings = self.parts().filter(is_sibling);
        siblings.flat_map(|other| self.part(other).home.iter().copied()).collect()
    }

    pub(super) fn id(&self, node: NodeIndex) -> NodeId {
        self.host.view().nodes[node].id
    }

    pub(super) fn owner(&self, at: PartIndex) -> Owner {
        mobility::owner_of(self.loads[at])
    }

    /// The nodes to which another program binds a part, where these are not the whole machine.
    pub(super) fn bound_to(&self, at: PartIndex) -> Option<NodeSet> {
        let bound = self.loads[at]?.bound_to.as_ref()?;
        let known = self.seen.machine.topology.node_set();
        let bound = bound.intersection(&known);
        Some(bound).filter(|bound| !bound.is_empty() && *bound != known)
    }

    /// Whether a part's CPUs may be bound.
    pub(super) fn may_bind(&self, at: PartIndex) -> Result<(), HomeBlocker> {
        mobility::may_bind(self.loads[at], self.state(at).id.cell().is_some())
    }

    /// Adds a transaction of these steps, which needs what was observed of its parts.
    pub(super) fn transact(&mut self, steps: Vec<Step>) {
        self.transactions.push(Transaction::new(steps, &self.seen.machine));
    }

    pub(super) fn move_pages(&mut self, action: PageMove, reason: Reason) {
        self.moves.push(Step { action, reason });
    }

    /// The steps that give a part the home that was evaluated. Its claim moves there in the model,
    /// so that no later decision of this round counts on the same memory.
    pub(super) fn rehome(
        &mut self,
        at: PartIndex,
        there: &Evaluation,
        reason: &Reason,
    ) -> Vec<Step> {
        let state = self.state(at);
        let claim = steps::claim_at(state.claim.as_ref(), self.part(at), there, |i| self.id(i));
        let mut part = self.part(at).clone();
        part.home.clone_from(&there.home);
        part.load_milli.clone_from(&there.load_milli);
        let due = |(&node, &bytes): (&NodeId, &u64)| {
            let i = self.host.view().index_of(node)?;
            Some((i, bytes.saturating_sub(on(&part.held_bytes, i))))
        };
        part.due_bytes = claim.bytes.iter().filter_map(due).collect();
        self.host.replace(at, part);

        let before = state.home.as_ref();
        let home = Home {
            nodes: there.home.iter().map(|&i| self.id(i)).collect(),
            origin: Origin::Auto,
            affinity: before.map_or(Affinity::Soft, |home| home.affinity),
            policy: before.map_or(MemoryPolicy::Local, |home| home.policy),
        };
        let steps = self.bind(at, home, claim, reason);

        // Its former load by node shows only the nodes that it was pushed to; that is over.
        let share_ppm = steps::share_ppm(&there.load_milli, |i| self.id(i));
        let known = &mut self.known[at];
        known.share_ppm = share_ppm;
        known.contention_intervals = 0;
        known.confirmations = 0;
        known.stuck.clear();
        steps
    }

    /// The steps that give a part a home: claim, confinement, CPUs, home.
    pub(super) fn bind(
        &mut self,
        at: PartIndex,
        home: Home,
        claim: Claim,
        reason: &Reason,
    ) -> Vec<Step> {
        let topology = &self.seen.machine.topology;
        let soft_affinity = self.seen.soft_affinity;
        let mut steps =
            steps::before_home(self.state(at), &home, claim, topology, soft_affinity, reason);
        steps.push(self.set_home(at, home, reason));
        steps
    }

    /// The step that makes a home known, and nothing else.
    pub(super) fn set_home(&mut self, at: PartIndex, home: Home, reason: &Reason) -> Step {
        self.known[at].home = Some(home.clone());
        self.is_moving[at] = true;
        let action = Action::SetHome { part: self.state(at).id.clone(), home };
        Step { action, reason: reason.clone() }
    }

    /// Takes the first home of a cell back, because another cell of its guest can have none.
    pub(super) fn take_back(&mut self, at: PartIndex) {
        self.known[at].home = None;
        self.is_moving[at] = false;
        self.known[at].status.home_blocker.get_or_insert(HomeBlocker::NoRoom);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CellId, PageSize, PartId,
        controllers::homes::{
            evaluation::Evaluator,
            fixture::{GIB, learned, part, seen},
        },
        index::Index,
    };

    fn with_parts(ids: &[PartId]) -> ControlObservation {
        let mut seen = seen(1, 0, [0, 0]);
        let (db, load) = (seen.machine.parts.remove(0), seen.loads.remove(&"db".into()).unwrap());
        for id in ids {
            seen.machine.parts.push(PartState { id: id.clone(), ..db.clone() });
            seen.loads.insert(id.clone(), load.clone());
        }
        seen
    }

    fn with_round<T>(seen: &ControlObservation, then: impl FnOnce(Round<'_>) -> T) -> T {
        let tuning = Tuning::default();
        then(Round::new(&tuning, seen, learned(&tuning, seen)))
    }

    #[test]
    fn only_parts_with_a_load_and_a_name_of_their_own_are_sampled() {
        let mut seen = with_parts(&["a".into(), "b".into(), "a".into(), "c".into()]);
        seen.loads.remove(&"b".into());
        with_round(&seen, |round| {
            assert_eq!(round.sampled(), [part(0), part(3)]);
            assert!(!round.is_sampled(part(1)) && !round.is_sampled(part(2)));
        });
    }

    #[test]
    fn cells_keep_off_the_nodes_of_other_cells_of_their_guest_alone() {
        let cell = |domain: &str, number| PartId::cell_of(domain, CellId(number));
        let seen = with_parts(&[cell("vm", 0), cell("vm", 1), cell("other", 0), "db".into()]);
        with_round(&seen, |round| {
            let of = |at| round.nodes_of_siblings(part(at));
            // All homes are on node 0.
            let first = NodeIndex::at(0);
            assert_eq!([of(0), of(1), of(2), of(3)], [vec![first], vec![first], vec![], vec![]]);
        });
    }

    #[test]
    fn a_binding_to_the_whole_machine_or_to_nodes_that_are_gone_binds_to_nothing() {
        for (bound, expected) in
            [(None, None), (Some("0-1"), None), (Some("7"), None), (Some("1,7"), Some("1"))]
        {
            let mut seen = seen(1, 0, [0, 0]);
            let nodes = |list: &str| list.parse::<NodeSet>().unwrap();
            seen.loads.get_mut(&"db".into()).unwrap().bound_to = bound.map(nodes);
            let found = with_round(&seen, |round| round.bound_to(part(0)));
            assert_eq!(found, expected.map(nodes), "{bound:?}");
        }
    }

    #[test]
    fn memory_of_a_new_home_is_taken_for_later_decisions_of_the_round() {
        let seen = seen(1, 0, [0, 0]);
        with_round(&seen, |mut round| {
            let free = |round: &Round<'_>| {
                [0, 1].map(|i| round.host().room(PageSize::Base, NodeIndex::at(i)).available / GIB)
            };
            assert_eq!(free(&round), [16, 16], "its memory is in use, beside what is available");
            let db = round.part(part(0)).clone();
            let tuning = round.tuning();
            let evaluator = Evaluator::new(round.host_mut(), &db, tuning, true);
            let there = evaluator.evaluate(&[NodeIndex::at(1)]).unwrap();
            let steps = round.rehome(part(0), &there, &Reason::Placed);
            assert_eq!(free(&round), [16, 12], "4 GiB are still to come");
            assert!(round.is_moving(part(0)));
            round.transact(steps);
            let (plan, history) = round.finish();
            let [transaction] = &plan.transactions[..] else { panic!("{plan:?}") };
            assert_eq!(transaction.check(&seen.machine), Ok(()));
            let home = history.parts[&"db".into()].home.as_ref().unwrap();
            assert_eq!(home.nodes, NodeSet::from([NodeId(1)]));
        });
    }
}
