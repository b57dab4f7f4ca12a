//! One round of the loop: what is decided upon, and what has been decided so far.

use super::{
    ControlObservation, ControlPlan, DomainHistory, History, NodeHistory, Owner, Tuning,
    scene::Scene, weigh::Weighed,
};
use crate::{
    Action, Affinity, Claim, CpuReason, Home, MemoryPolicy, Origin, PageMove, PageSize, PartState,
    Reason, Step, Transaction,
    control::scene::{Party, page_bytes, split},
};
use nearside_topology::{NodeId, NodeSet};
use std::collections::BTreeMap;

/// A round of the loop.
#[derive(Debug)]
pub(super) struct Round<'a> {
    pub(super) tuning: &'a Tuning,
    pub(super) seen: &'a ControlObservation,
    pub(super) nodes: BTreeMap<NodeId, NodeHistory>,
    /// By domain: what is remembered of it.
    pub(super) known: Vec<DomainHistory>,
    pub(super) scene: Scene,
    pub(super) transactions: Vec<Transaction>,
    pub(super) moves: Vec<Step<PageMove>>,
    /// By domain: whether it was looked at, so that something may be decided about it.
    pub(super) looked_at: Vec<bool>,
    /// By domain: whether it got another home in this round.
    pub(super) is_moving: Vec<bool>,
}

impl<'a> Round<'a> {
    pub(super) fn new(
        tuning: &'a Tuning,
        seen: &'a ControlObservation,
        mut history: History,
    ) -> Self {
        let scene = Scene::new(tuning, seen, &history);
        let domains = &seen.machine.parts;
        // Of two of one name nobody knows which one a figure is about.
        let known: Vec<_> =
            domains.iter().map(|domain| history.domains.remove(&domain.id)).collect();
        let is_looked_at = |(domain, known): (&PartState, &Option<DomainHistory>)| {
            known.is_some() && seen.loads.contains_key(&domain.id)
        };
        let looked_at = domains.iter().zip(&known).map(is_looked_at).collect();
        let known = known.into_iter().map(Option::unwrap_or_default).collect();
        let is_moving = vec![false; domains.len()];
        Self {
            tuning,
            seen,
            nodes: history.nodes,
            known,
            scene,
            transactions: Vec::new(),
            moves: Vec::new(),
            looked_at,
            is_moving,
        }
    }

    /// What is to be done, and what is remembered.
    pub(super) fn finish(self) -> (ControlPlan, History) {
        let names = self.seen.machine.parts.iter().map(|domain| domain.id.clone());
        // Of two of one name the first was looked at, and stays.
        let domains = names.zip(self.known).rev().collect();
        (
            ControlPlan {
                interval: self.seen.interval,
                transactions: self.transactions,
                moves: self.moves,
            },
            History { domains, nodes: self.nodes },
        )
    }

    pub(super) fn now(&self) -> u64 {
        self.seen.interval
    }

    pub(super) fn domains(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.seen.machine.parts.len()
    }

    pub(super) fn state(&self, at: usize) -> &'a PartState {
        &self.seen.machine.parts[at]
    }

    pub(super) fn party(&self, at: usize) -> &Party {
        &self.scene.parties[at]
    }

    pub(super) fn owner(&self, at: usize) -> Owner {
        self.seen.loads.get(&self.state(at).id).map_or(Owner::Foreign, |load| load.owner)
    }

    /// The nodes on which somebody else keeps a domain, where that is not the whole machine.
    pub(super) fn bound_to(&self, at: usize) -> Option<NodeSet> {
        let known = self.seen.machine.topology.node_set();
        let bound =
            self.seen.loads.get(&self.state(at).id)?.bound_to.as_ref()?.intersection(&known);
        Some(bound).filter(|bound| !bound.is_empty() && *bound != known)
    }

    pub(super) fn id(&self, i: usize) -> NodeId {
        self.scene.view.nodes[i].id
    }

    pub(super) fn transact(&mut self, steps: Vec<Step>) {
        self.transactions.push(Transaction::new(steps, &self.seen.machine));
    }

    /// Joins the last two transactions: both are applied, or neither.
    pub(super) fn join_last_two(&mut self) {
        let at = self.transactions.len().saturating_sub(2);
        let steps = self.transactions.drain(at..).flat_map(|one| one.steps).collect();
        self.transact(steps);
    }

    /// Gives a domain the home that was weighed: what is promised to it moves there, so that nothing later in this round
    /// counts on the same room.
    pub(super) fn settle(&mut self, at: usize, there: &Weighed, reason: &Reason) {
        let claim = self.claim(at, there);
        let mut party = self.scene.parties[at].clone();
        self.scene.take_out(&party);
        party.home.clone_from(&there.home);
        party.load_milli.clone_from(&there.load_milli);
        let held = |i: usize| {
            party.held_bytes.iter().find(|(held, _)| *held == i).map_or(0, |&(_, bytes)| bytes)
        };
        let due = |(&node, &bytes): (&NodeId, &u64)| {
            let i = self.scene.view.index_of(node)?;
            Some((i, bytes.saturating_sub(held(i))))
        };
        party.due_bytes = claim.bytes.iter().filter_map(due).collect();
        self.scene.add(&party);
        self.scene.parties[at] = party;
        self.is_moving[at] = true;

        let nodes: NodeSet = there.home.iter().map(|&i| self.id(i)).collect();
        let before = self.state(at).home.as_ref();
        let home = Home {
            nodes,
            origin: Origin::Auto,
            affinity: before.map_or(Affinity::Soft, |home| home.affinity),
            policy: before.map_or(MemoryPolicy::Local, |home| home.policy),
        };
        self.bind(at, home, claim, reason);

        let topology = &self.seen.machine.topology;
        let all: u64 = there.load_milli.iter().map(|&(_, milli)| milli).sum();
        let share = |&(i, milli): &(usize, u64)| {
            (topology.nodes[i].id, milli.saturating_mul(1_000_000) / all.max(1))
        };
        let share_ppm = there.load_milli.iter().map(share).collect();
        let known = &mut self.known[at];
        // Where it ran tells where it was pushed to, which is over.
        known.share_ppm = share_ppm;
        known.trouble_intervals = 0;
        known.wins = 0;
        known.stuck.clear();
    }

    /// The steps that make a home, in the order in which each may fail without harm.
    pub(super) fn bind(&mut self, at: usize, home: Home, claim: Claim, reason: &Reason) {
        let state = self.state(at);
        let part = || state.id.clone();
        let mut steps = Vec::new();
        let mut step =
            |action, reason: &Reason| steps.push(Step { action, reason: reason.clone() });
        let topology = &self.seen.machine.topology;
        let memory = home.nodes.intersection(&topology.memory_nodes());
        step(Action::Claim { part: part(), claim }, reason);
        if home.policy.confines() {
            let former = state.home.as_ref().map_or_else(NodeSet::new, |home| home.nodes.clone());
            let allowed = state.memory_nodes.as_ref().unwrap_or(&former);
            let nodes = allowed.union(&memory).intersection(&topology.memory_nodes());
            step(Action::ConfineMemory { part: part(), nodes }, &Reason::MovesNeedBoth);
        }
        let on_behalf = match home.affinity {
            Affinity::Hard => Some(CpuReason::Operator),
            Affinity::Soft if self.seen.soft_affinity => None,
            Affinity::Soft => Some(CpuReason::Fallback),
        };
        // What somebody else bound already is left as it is.
        if let Some(on_behalf) = on_behalf.filter(|_| home.origin == Origin::Auto) {
            let cpus = topology.cpus_of_nodes(&home.nodes);
            step(Action::BindCpus { part: part(), cpus, on_behalf }, reason);
        }
        step(Action::SetHome { part: part(), home: home.clone() }, reason);
        self.known[at].home = Some(home);
        self.transact(steps);
    }

    // What is promised to a domain at a home: as much as before, where its pages and vCPUs are expected.
    fn claim(&self, at: usize, there: &Weighed) -> Claim {
        let party = self.party(at);
        let before = self.state(at).claim.as_ref();
        let bytes = before.map_or(party.needed_bytes, Claim::total_bytes);
        let unit = match party.page_size {
            PageSize::Base => 1,
            huge @ PageSize::Huge(_) => page_bytes(huge),
        };
        let vcpus = before.map_or_else(
            || party.demand_milli.div_ceil(1000).max(1),
            |claim| claim.vcpus.values().copied().fold(0, u64::saturating_add),
        );
        let by_node = |amounts: Vec<(usize, u64)>, unit: u64| {
            amounts
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .map(|(i, n)| (self.id(i), n.saturating_mul(unit)))
                .collect()
        };
        Claim {
            bytes: by_node(split(bytes.div_ceil(unit), &there.pages), unit),
            vcpus: by_node(split(vcpus, &there.load_milli), 1),
            page_size: party.page_size,
        }
    }
}
