//! A machine in software: nodes with CPUs, a scheduler that prefers homes, and memory that moves on
//! request.
//!
//! vCPUs run at home as long as there is room. The others run on the nearest nodes with idle CPUs,
//! or wait. If all demand exceeds the CPUs, a scheduler that knows node affinity makes all vCPUs
//! wait alike. Measured figures vary by some percent, and not quite all requested pages move.

use nearside_policy::{
    Action, Affinity, Batch, ByNode, Claim, ControlObservation, ControlPlan, Controller, History,
    Home, Homes, MemoryPolicy, MoveReport, NodeLoad, Observation, Origin, Owner, PageMove, PartId,
    PartLoad, PartState, Reason, Stayed, StayedWhy, Tuning, local_share,
};
use nearside_topology::{
    Cpu, CpuId, Distance, Distances, MemoryState, Node, NodeId, NodeSet, Topology, Zone,
};
use std::collections::BTreeMap;

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const INTERVAL_NS: u64 = 2_000_000_000;

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn factor(&mut self, around: f64) -> f64 {
        1.0 + around * (self.between(0, 2000) as f64 / 1000.0 - 1.0)
    }
}

/// The plan of the homes controller, and the history after it.
pub(crate) fn decide(
    tuning: &Tuning,
    seen: &ControlObservation,
    history: &History,
) -> (ControlPlan, History) {
    Homes { tuning: *tuning }.plan(seen, history)
}

/// A domain of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vm {
    pub(crate) state: PartState,
    /// The number of CPUs that it wants.
    pub(crate) wants: f64,
    /// Bytes that it allocates in each interval, on the nodes it runs on.
    pub(crate) grows_bytes: u64,
    /// Bytes that cannot move.
    pub(crate) pinned: ByNode,
    pub(crate) owner: Owner,
    pub(crate) bound_to: Option<NodeSet>,
    pub(crate) has_cpuset: bool,
    pub(crate) has_cells: bool,
    /// Activity since its last sample.
    untold: PartLoad,
    /// CPUs used in the last interval, by node.
    ran: BTreeMap<usize, f64>,
}

pub(crate) struct Machine {
    pub(crate) cpus: Vec<u64>,
    memory: Vec<u64>,
    distances: Distances,
    pub(crate) vms: Vec<Vm>,
    /// CPUs wanted on a node by others, which never leave it.
    pub(crate) hogs: Vec<f64>,
    /// Memory held by others.
    pub(crate) hoarded: Vec<u64>,
    pub(crate) stalls: Vec<u64>,
    pub(crate) soft_affinity: bool,
    pub(crate) numa_balancing: Option<u64>,
    /// Whether the oldest domains keep their home's CPUs. Otherwise all domains at home have equal
    /// shares.
    pub(crate) first_come: bool,
    /// Whether the needs of transactions no longer hold when they are to be applied.
    pub(crate) drops_transactions: bool,
    /// The intervals and parts of dropped transactions.
    pub(crate) dropped: Vec<(u64, String)>,
    /// Whether a step of each transaction is refused.
    pub(crate) refuses_steps: bool,
    /// The intervals and parts of refused transactions.
    pub(crate) refused: Vec<(u64, String)>,
    pub(crate) noise: f64,
    pub(crate) tuning: Tuning,
    pub(crate) history: History,
    pub(crate) interval: u64,
    pub(crate) random: Random,
    pub(crate) moved: Vec<MoveReport>,
    /// Changes of homes: interval, domain, reason.
    pub(crate) rehomed: Vec<(u64, String, Reason)>,
    pub(crate) moved_bytes: u64,
    pub(crate) samples: usize,
    pub(crate) last: ControlPlan,
}

pub(crate) fn set(nodes: &[u32]) -> NodeSet {
    nodes.iter().map(|&node| NodeId(node)).collect()
}

pub(crate) fn gib(by_node: &[u64]) -> ByNode {
    let some = by_node.iter().enumerate().filter(|(_, gib)| **gib > 0);
    some.map(|(node, gib)| (NodeId(node as u32), gib * GIB)).collect()
}

/// A domain with a home on some nodes that holds this many GiB by node, all of it claimed at home.
pub(crate) fn vm(name: &str, home: &[u32], origin: Origin, wants: f64, held_gib: &[u64]) -> Vm {
    let resident_bytes = gib(held_gib);
    let all: u64 = resident_bytes.values().sum();
    let nodes = home.len() as u64;
    let claim = Claim {
        bytes: home.iter().map(|&node| (NodeId(node), all / nodes)).collect(),
        vcpus: home
            .iter()
            .map(|&node| (NodeId(node), (wants.ceil() as u64).div_ceil(nodes)))
            .collect(),
        ..Claim::default()
    };
    let home = Home {
        nodes: set(home),
        origin,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::Preferred,
    };
    let state = PartState {
        id: name.into(),
        home: Some(home),
        claim: Some(claim),
        memory_nodes: None,
        resident_bytes,
        ..PartState::default()
    };
    Vm { state, wants, ..Vm::default() }
}

/// A domain that Nearside did not start.
pub(crate) fn found(name: &str, wants: f64, held_gib: &[u64]) -> Vm {
    let state =
        PartState { id: name.into(), resident_bytes: gib(held_gib), ..PartState::default() };
    Vm { state, wants, ..Vm::default() }
}

impl Machine {
    pub(crate) fn new(cpus: &[u64], memory_gib: u64, distances: &[Distance]) -> Self {
        let n = cpus.len();
        let ids: Vec<NodeId> = (0..n as u32).map(NodeId).collect();
        let table = if distances.is_empty() {
            Distances::uniform(&ids)
        } else {
            Distances::new(&ids, distances).unwrap()
        };
        Self {
            cpus: cpus.to_vec(),
            memory: vec![memory_gib * GIB; n],
            distances: table,
            vms: Vec::new(),
            hogs: vec![0.0; n],
            hoarded: vec![0; n],
            stalls: vec![0; n],
            soft_affinity: true,
            numa_balancing: None,
            first_come: false,
            drops_transactions: false,
            dropped: Vec::new(),
            refuses_steps: false,
            refused: Vec::new(),
            noise: 0.05,
            tuning: Tuning::default(),
            history: History::default(),
            interval: 0,
            random: Random(1),
            moved: Vec::new(),
            rehomed: Vec::new(),
            moved_bytes: 0,
            samples: 0,
            last: ControlPlan::default(),
        }
    }

    pub(crate) fn free_bytes(&self, node: usize) -> u64 {
        let held =
            |vm: &Vm| vm.state.resident_bytes.get(&NodeId(node as u32)).copied().unwrap_or(0);
        self.memory[node] - self.hoarded[node] - self.vms.iter().map(held).sum::<u64>()
    }

    pub(crate) fn high_watermark_bytes(&self, node: usize) -> u64 {
        self.memory[node] / 64
    }

    fn topology(&self) -> Topology {
        let node = |i: usize| Node {
            id: NodeId(i as u32),
            memory_bytes: self.memory[i],
            state: Some(MemoryState { free_bytes: self.free_bytes(i), ..MemoryState::default() }),
            zones: vec![Zone {
                free_bytes: self.free_bytes(i),
                low_watermark_bytes: self.memory[i] / 80,
                high_watermark_bytes: self.high_watermark_bytes(i),
                ..Zone::default()
            }],
            ..Node::default()
        };
        let mut cpus = Vec::new();
        for (i, &count) in self.cpus.iter().enumerate() {
            cpus.extend(
                (0..count)
                    .map(|cpu| Cpu::new(CpuId((i as u64 * 1000 + cpu) as u32), NodeId(i as u32))),
            );
        }
        Topology {
            nodes: (0..self.cpus.len()).map(node).collect(),
            cpus,
            distances: self.distances.clone(),
            ..Topology::default()
        }
    }

    fn nearest(&self, from: usize) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..self.cpus.len()).collect();
        nodes.sort_by_key(|&to| (self.distances.get(NodeId(from as u32), NodeId(to as u32)), to));
        nodes
    }

    /// The factor by which all work takes longer if the demand exceeds the CPUs.
    fn stretch(&self) -> f64 {
        let wanted =
            self.vms.iter().map(|vm| vm.wants).sum::<f64>() + self.hogs.iter().sum::<f64>();
        if self.soft_affinity {
            (wanted / self.cpus.iter().sum::<u64>() as f64).max(1.0)
        } else {
            1.0
        }
    }

    /// Runs every vCPU for an interval. Returns the CPU time of others by node.
    fn schedule(&mut self) -> Vec<f64> {
        let n = self.cpus.len();
        let stretch = self.stretch();
        let mut spare: Vec<f64> = self.cpus.iter().map(|&cpus| cpus as f64).collect();
        // The CPUs that each domain wants on each node of its home, after some variation.
        let mut asks: Vec<(usize, usize, f64)> = Vec::new();
        for (at, vm) in self.vms.iter_mut().enumerate() {
            vm.ran.clear();
            let all_wants = vm.wants * self.random.factor(self.noise);
            let wants = all_wants / stretch;
            vm.untold.waited_ns += ((all_wants - wants) * INTERVAL_NS as f64) as u64;
            let home: Vec<usize> =
                match vm.bound_to.as_ref().or(vm.state.home.as_ref().map(|home| &home.nodes)) {
                    Some(nodes) => nodes.iter().map(|node| node.0 as usize).collect(),
                    None => (0..n).collect(),
                };
            let all: u64 = home.iter().map(|&i| self.cpus[i]).sum();
            asks.extend(home.iter().map(|&i| (at, i, wants * self.cpus[i] as f64 / all as f64)));
        }
        let hogs: Vec<f64> =
            self.hogs.iter().map(|hog| hog * self.random.factor(self.noise)).collect();
        let mut others = vec![0.0; n];
        let mut over: Vec<(usize, usize, f64)> = Vec::new();
        for i in 0..n {
            let here: Vec<_> = asks.iter().filter(|(_, node, _)| *node == i).copied().collect();
            let all = here.iter().map(|(.., wants)| wants).sum::<f64>() + hogs[i];
            let fair = if all > spare[i] { spare[i] / all } else { 1.0 };
            others[i] = hogs[i] * fair;
            spare[i] -= others[i];
            for (at, _, wants) in here {
                let runs = if self.first_come { wants.min(spare[i]) } else { wants * fair };
                spare[i] = (spare[i] - runs).max(0.0);
                *self.vms[at].ran.entry(i).or_default() += runs;
                over.push((at, i, wants - runs));
            }
        }
        // The first domain to run elsewhere changes from interval to interval.
        let first = self.random.next() as usize % over.len().max(1);
        over.rotate_left(first);
        for (at, from, mut left) in over {
            let vm = &self.vms[at];
            let may_leave = vm
                .state
                .home
                .as_ref()
                .is_none_or(|home| self.soft_affinity && home.affinity == Affinity::Soft);
            let may_leave = may_leave && vm.bound_to.is_none();
            for to in self.nearest(from).into_iter().filter(|_| may_leave) {
                let taken = left.min(spare[to]);
                spare[to] -= taken;
                left -= taken;
                *self.vms[at].ran.entry(to).or_default() += taken;
            }
            self.vms[at].untold.waited_ns += (left.max(0.0) * INTERVAL_NS as f64) as u64;
        }
        others
    }

    fn observe(&mut self, others: &[f64]) -> ControlObservation {
        let ns = |cpus: f64| (cpus * INTERVAL_NS as f64) as u64;
        let mut nodes: BTreeMap<NodeId, NodeLoad> = BTreeMap::new();
        for (i, &cpus) in others.iter().enumerate() {
            let load = NodeLoad {
                busy_ns: ns(cpus),
                allocation_stalls: self.stalls[i],
                ..NodeLoad::default()
            };
            nodes.insert(NodeId(i as u32), load);
        }
        let mut loads = BTreeMap::new();
        for vm in &mut self.vms {
            for (&i, &cpus) in &vm.ran {
                *vm.untold.cpu_ns.entry(NodeId(i as u32)).or_default() += ns(cpus);
                nodes.entry(NodeId(i as u32)).or_default().busy_ns += ns(cpus);
            }
            vm.untold.over_ns += INTERVAL_NS;
            if self.history.next_sample(&vm.state.id) <= self.interval {
                let told = std::mem::take(&mut vm.untold);
                let (bound_to, has_cpuset) = (vm.bound_to.clone(), vm.has_cpuset);
                let (owner, has_cells) = (vm.owner, vm.has_cells);
                let load = PartLoad { owner, bound_to, has_cpuset, has_cells, ..told };
                loads.insert(vm.state.id.clone(), load);
            }
        }
        self.samples += loads.len();
        ControlObservation {
            interval: self.interval,
            length_ns: INTERVAL_NS,
            machine: Observation {
                topology: self.topology(),
                reservations: Vec::new(),
                parts: self.vms.iter().map(|vm| vm.state.clone()).collect(),
            },
            loads,
            nodes,
            memory_stall_ppm: None,
            soft_affinity: self.soft_affinity,
            numa_balancing: self.numa_balancing,
            moved: std::mem::take(&mut self.moved),
        }
    }

    /// An interval: run, observe, decide, act.
    pub(crate) fn step(&mut self) {
        self.interval += 1;
        let others = self.schedule();
        self.grow();
        let seen = self.observe(&others);
        let (mut plan, history) = decide(&self.tuning, &seen, &self.history);
        let before = std::mem::replace(&mut self.history, history);
        if self.drops_transactions {
            self.drop_transactions(&mut plan, &seen, &before);
        }
        if self.refuses_steps {
            self.refuse_transactions(&mut plan);
        }
        for step in plan.steps() {
            self.act(&step.action, &step.reason);
        }
        for step in &plan.moves {
            let PageMove { part, nodes, batch, .. } = &step.action;
            let at = self.vms.iter().position(|vm| vm.state.id == *part).unwrap();
            self.move_pages(at, batch.unwrap(), nodes.first().unwrap());
        }
        self.last = plan;
    }

    /// Does what the daemon does if the needs of no transaction hold.
    fn drop_transactions(
        &mut self,
        plan: &mut ControlPlan,
        seen: &ControlObservation,
        before: &History,
    ) {
        let learned = Homes { tuning: self.tuning }.learn(seen, before);
        let dropped = std::mem::take(&mut plan.transactions);
        for transaction in &dropped {
            let homes = Homes { tuning: self.tuning };
            homes.take_back(&mut self.history, &learned, transaction);
            for part in transaction.parts() {
                self.dropped.push((self.interval, part.to_string()));
                plan.moves.retain(|step| step.action.part != *part);
            }
        }
    }

    /// Does what the daemon does if a step of each transaction is refused.
    fn refuse_transactions(&mut self, plan: &mut ControlPlan) {
        let refused = std::mem::take(&mut plan.transactions);
        for part in refused.iter().flat_map(|transaction| transaction.parts()) {
            self.refused.push((self.interval, part.to_string()));
            plan.moves.retain(|step| step.action.part != *part);
        }
    }

    pub(crate) fn steps(&mut self, intervals: u64) {
        (0..intervals).for_each(|_| self.step());
    }

    fn grow(&mut self) {
        for at in 0..self.vms.len() {
            let Some((&node, _)) = self.vms[at].ran.iter().max_by(|a, b| a.1.total_cmp(b.1)) else {
                continue;
            };
            let bytes = self.vms[at].grows_bytes.min(self.free_bytes(node));
            *self.vms[at].state.resident_bytes.entry(NodeId(node as u32)).or_default() += bytes;
        }
    }

    fn act(&mut self, action: &Action, reason: &Reason) {
        let now = self.interval;
        let find =
            |vms: &[Vm], part: &PartId| vms.iter().position(|vm| vm.state.id == *part).unwrap();
        match action {
            Action::Claim { part, claim } => {
                let at = find(&self.vms, part);
                // A found domain has no claim.
                if let Some(now) = &mut self.vms[at].state.claim {
                    *now = claim.clone();
                }
            }
            Action::SetHome { part, home } => {
                let at = find(&self.vms, part);
                if matches!(reason, Reason::PaysBack { .. } | Reason::Exchange { .. }) {
                    self.rehomed.push((now, part.to_string(), reason.clone()));
                }
                self.vms[at].state.home = Some(home.clone());
            }
            Action::ConfineMemory { part, nodes } => {
                let at = find(&self.vms, part);
                self.vms[at].state.memory_nodes = Some(nodes.clone());
            }
            Action::BindCpus { .. } => assert!(!self.soft_affinity),
            other => panic!("{other}"),
        }
    }

    fn move_pages(&mut self, at: usize, batch: Batch, to: NodeId) {
        let Batch { from, max_bytes } = batch;
        let free = self.free_bytes(to.0 as usize);
        let pinned = self.vms[at].pinned.get(&from).copied().unwrap_or(0);
        let held = self.vms[at].state.resident_bytes.get(&from).copied().unwrap_or(0);
        let whole = (max_bytes as f64
            * (1.0 - self.noise * self.random.between(0, 1000) as f64 / 1000.0))
            as u64;
        let asked = if held <= max_bytes { held } else { whole };
        let moved_bytes = asked.min(held - pinned.min(held)).min(free);
        let mut stayed = Stayed::new();
        if moved_bytes < asked && pinned > 0 {
            stayed.insert(StayedWhy::Device, pinned);
        } else if moved_bytes < asked {
            stayed.insert(StayedWhy::NoRoom, asked - moved_bytes);
        }
        let resident = &mut self.vms[at].state.resident_bytes;
        *resident.entry(from).or_default() -= moved_bytes;
        *resident.entry(to).or_default() += moved_bytes;
        self.moved_bytes += moved_bytes;
        assert!(
            free - moved_bytes >= self.high_watermark_bytes(to.0 as usize),
            "node {to} below its high watermark"
        );
        let domain = self.vms[at].state.id.clone();
        self.moved.push(MoveReport { part: domain, from, moved_bytes, stayed });
    }

    pub(crate) fn vm(&mut self, name: &str) -> &mut Vm {
        self.vms.iter_mut().find(|vm| vm.state.id == name.into()).unwrap()
    }

    /// The local share of a domain in the last interval.
    pub(crate) fn share_of(&self, name: &str) -> f64 {
        let vm = self.vms.iter().find(|vm| vm.state.id == name.into()).unwrap();
        let time =
            vm.ran.iter().map(|(&i, &cpus)| (NodeId(i as u32), (cpus * 1e9) as u64)).collect();
        local_share(&time, &vm.state.resident_bytes).unwrap_or(1.0)
    }

    /// The local share of all domains together, weighted by CPU time.
    pub(crate) fn share(&self) -> f64 {
        let time = |vm: &Vm| vm.ran.values().sum::<f64>();
        let all: f64 = self.vms.iter().map(time).sum();
        self.vms.iter().map(|vm| self.share_of(vm.state.id.domain()) * time(vm)).sum::<f64>() / all
    }

    pub(crate) fn debt(&self) -> u64 {
        let debt = |vm: &Vm| {
            vm.state.home.as_ref().map_or(0, |home| {
                nearside_policy::debt_bytes(&vm.state.resident_bytes, &home.nodes)
            })
        };
        self.vms.iter().map(debt).sum()
    }

    pub(crate) fn moves_of(&self, name: &str) -> Vec<u64> {
        self.rehomed.iter().filter(|(_, domain, _)| domain == name).map(|(at, ..)| *at).collect()
    }

    /// The most moves of one domain in this many intervals.
    pub(crate) fn max_moves_in(&self, intervals: u64) -> usize {
        let of = |vm: &Vm| {
            let moves = self.moves_of(vm.state.id.domain());
            moves
                .iter()
                .map(|&first| {
                    moves.iter().filter(|&&at| at >= first && at < first + intervals).count()
                })
                .max()
        };
        self.vms.iter().filter_map(of).max().unwrap_or(0)
    }
}
