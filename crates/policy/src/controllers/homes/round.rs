//! One round of the homes controller: the input, and the decisions made so far.

use super::{
    amounts::{Amounts, on, page_bytes, split, sum},
    evaluation::Evaluation,
    model::{HostModel, PartModel},
    tuning::Tuning,
};
use crate::{
    Action, Affinity, Claim, ControlObservation, ControlPlan, CpuReason, History, Home,
    HomeBlocker, MemoryPolicy, NodeHistory, Origin, Owner, PageMove, PageSize, PartHistory,
    PartLoad, PartState, Reason, Step, Transaction,
    index::{IndexVec, NodeIndex, PartIndex},
};
use nearside_topology::{NodeId, NodeSet};
use std::collections::BTreeMap;

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
    /// Invariant: only parts with a load and a history of their own; only these are decided about.
    is_sampled: IndexVec<PartIndex, bool>,
    /// Invariant: the parts whose home changes in this round. Each changes at most once.
    is_moving: IndexVec<PartIndex, bool>,
}

impl<'a> Round<'a> {
    pub(super) fn new(
        tuning: &'a Tuning,
        seen: &'a ControlObservation,
        mut history: History,
    ) -> Self {
        let host = HostModel::new(tuning, seen, &history);
        let parts = &seen.machine.parts;
        // If two parts have one name, figures cannot be assigned to either: the second has no
        // history.
        let known: Vec<_> = parts.iter().map(|part| history.parts.remove(&part.id)).collect();
        let loads: Vec<_> = parts.iter().map(|part| seen.loads.get(&part.id)).collect();
        let is_sampled =
            loads.iter().zip(&known).map(|(load, known)| load.is_some() && known.is_some());
        let is_sampled = is_sampled.collect();
        let known = known.into_iter().map(Option::unwrap_or_default).collect();
        Self {
            tuning,
            seen,
            nodes: history.nodes,
            known,
            loads: loads.into(),
            host,
            transactions: Vec::new(),
            moves: Vec::new(),
            is_sampled,
            is_moving: IndexVec::filled(false, parts.len()),
        }
    }

    /// The plan, and the history for the next round.
    pub(super) fn finish(self) -> (ControlPlan, History) {
        let ids = self.seen.machine.parts.iter().map(|part| part.id.clone());
        // Of two parts with one name the first was sampled, and its history stays.
        let parts = ids.collect::<Vec<_>>().into_iter().zip(self.known).rev().collect();
        let (transactions, moves) = (self.transactions, self.moves);
        let plan = ControlPlan { interval: self.seen.interval, transactions, moves };
        (plan, History { parts, nodes: self.nodes })
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
        self.loads[at].map_or(Owner::Foreign, |load| load.owner)
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
        let owner = self.owner(at);
        let lets_bind = match self.state(at).id.cell() {
            Some(_) => owner.lets_bind_cells(),
            None => owner.lets_bind(),
        };
        match self.loads[at] {
            _ if !lets_bind => Err(HomeBlocker::OwnerForbids { owner }),
            Some(load) if load.has_cells => Err(HomeBlocker::HasCells),
            Some(load) if load.has_cpuset => Err(HomeBlocker::HasCpuset),
            _ => Ok(()),
        }
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
        let claim = self.claim_at(at, there);
        let mut part = self.part(at).clone();
        part.home.clone_from(&there.home);
        part.load_milli.clone_from(&there.load_milli);
        let due = |(&node, &bytes): (&NodeId, &u64)| {
            let i = self.host.view().index_of(node)?;
            Some((i, bytes.saturating_sub(on(&part.held_bytes, i))))
        };
        part.due_bytes = claim.bytes.iter().filter_map(due).collect();
        self.host.replace(at, part);

        let before = self.state(at).home.as_ref();
        let home = Home {
            nodes: there.home.iter().map(|&i| self.id(i)).collect(),
            origin: Origin::Auto,
            affinity: before.map_or(Affinity::Soft, |home| home.affinity),
            policy: before.map_or(MemoryPolicy::Local, |home| home.policy),
        };
        let steps = self.bind(at, home, claim, reason);

        // Its former load by node shows only the nodes that it was pushed to; that is over.
        let all = sum(&there.load_milli);
        let share = |&(i, milli): &(NodeIndex, u64)| {
            (self.id(i), milli.saturating_mul(1_000_000) / all.max(1))
        };
        let share_ppm = there.load_milli.iter().map(share).collect();
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
        let state = self.state(at);
        let part = || state.id.clone();
        let topology = &self.seen.machine.topology;
        let step = |action, reason: &Reason| Step { action, reason: reason.clone() };
        let mut steps = vec![step(Action::Claim { part: part(), claim }, reason)];
        if home.policy.confines() {
            let former = state.home.as_ref().map_or_else(NodeSet::new, |home| home.nodes.clone());
            let allowed = state.memory_nodes.as_ref().unwrap_or(&former);
            let nodes = allowed.union(&home.nodes).intersection(&topology.memory_nodes());
            steps.push(step(Action::ConfineMemory { part: part(), nodes }, &Reason::MovesNeedBoth));
        }
        let on_behalf = match home.affinity {
            Affinity::Hard => Some(CpuReason::Operator),
            Affinity::Soft if self.seen.soft_affinity => None,
            Affinity::Soft => Some(CpuReason::Fallback),
        };
        // A binding of another program stays as it is.
        if let Some(on_behalf) = on_behalf.filter(|_| home.origin == Origin::Auto) {
            let cpus = topology.cpus_of_nodes(&home.nodes);
            steps.push(step(Action::BindCpus { part: part(), cpus, on_behalf }, reason));
        }
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

    // The claim of a part at a home: as much as before, on the nodes where its pages and vCPUs are
    // expected.
    fn claim_at(&self, at: PartIndex, there: &Evaluation) -> Claim {
        let part = self.part(at);
        let before = self.state(at).claim.as_ref();
        let bytes = before.map_or(part.needed_bytes, Claim::total_bytes);
        let unit = match part.page_size {
            PageSize::Base => 1,
            huge @ PageSize::Huge(_) => page_bytes(huge),
        };
        let vcpus = before.map_or_else(
            || part.demand_milli.div_ceil(1000).max(1),
            |claim| claim.vcpus.values().copied().fold(0, u64::saturating_add),
        );
        let by_node = |amounts: Amounts, unit: u64| {
            amounts
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .map(|(i, n)| (self.id(i), n.saturating_mul(unit)))
                .collect()
        };
        Claim {
            bytes: by_node(split(bytes.div_ceil(unit), &there.pages), unit),
            vcpus: by_node(split(vcpus, &there.load_milli), 1),
            page_size: part.page_size,
        }
    }
}
