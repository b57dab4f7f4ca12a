//! Observe and apply: the policy's view of the simulated machine, and its effects there.

use crate::{
    hardware::Hardware,
    world::{Domain, LINE_BYTES, World},
};
use nearside_policy::{
    Action, Batch, ControlObservation, History, Home, Machine, MoveReport, NodeLoad, Observation,
    Outcome, PageMove, PartId, PartState, Progress, Stayed, StayedWhy, Transaction, Tuning,
};
use nearside_topology::{MemoryState, NodeId, Topology, Zone};
use std::{convert::Infallible, mem, ops::ControlFlow};

/// Watermarks of a zone, in thousandths of its memory (`vm.watermark_scale_factor` of 10).
const LOW_PER_MILLE: u64 = 2;
const HIGH_PER_MILLE: u64 = 3;

impl World<'_> {
    fn topology(&self) -> Topology {
        let mut topology = self.hardware.topology.clone();
        for (at, node) in topology.nodes.iter_mut().enumerate() {
            let (memory_bytes, free_bytes) = (node.memory_bytes, self.free_bytes(at));
            node.state = Some(MemoryState { free_bytes, ..MemoryState::default() });
            node.zones = vec![Zone {
                name: "Normal".into(),
                managed_bytes: memory_bytes,
                free_bytes,
                low_watermark_bytes: memory_bytes / 1000 * LOW_PER_MILLE,
                high_watermark_bytes: memory_bytes / 1000 * HIGH_PER_MILLE,
                ..Zone::default()
            }];
        }
        topology
    }

    /// The present state of the machine and its domains.
    pub(crate) fn observation(&self) -> Observation {
        let running = |(_, domain): &(usize, &Domain<'_>)| domain.done_ns.is_none();
        let state = |(at, domain): (usize, &Domain<'_>)| PartState {
            id: PartId::of(&domain.plan.name),
            home: domain.home.clone(),
            claim: domain.claim.clone(),
            resident_bytes: self.resident_bytes(at),
            ..PartState::default()
        };
        let mut domains: Vec<_> =
            self.domains.iter().enumerate().filter(running).map(state).collect();
        domains.sort_by(|a, b| a.id.cmp(&b.id));
        Observation { parts: domains, ..Observation::of(self.topology()) }
    }

    /// As [`observation`](Self::observation), with the activity of the past interval.
    pub(crate) fn control_observation(
        &mut self,
        interval: u64,
        length_ns: u64,
        history: &History,
    ) -> ControlObservation {
        let machine = self.observation();
        let mut seen = ControlObservation {
            interval,
            length_ns,
            machine,
            soft_affinity: true,
            ..Default::default()
        };
        for domain in self.domains.iter_mut().filter(|domain| domain.done_ns.is_none()) {
            domain.untold.over_ns += length_ns;
            let part = PartId::of(&domain.plan.name);
            if history.next_sample(&part) <= interval {
                seen.loads.insert(part, mem::take(&mut domain.untold));
            }
        }
        for (node, busy_ns) in self.hardware.nodes.iter().zip(&mut self.busy_ns) {
            seen.nodes.insert(
                node.id,
                NodeLoad { busy_ns: mem::take(busy_ns) as u64, ..NodeLoad::default() },
            );
        }
        seen.moved = mem::take(&mut self.moved);
        seen
    }

    fn index_of(&self, part: &PartId) -> Result<usize, String> {
        let at = self.domains.iter().position(|domain| domain.plan.name == part.domain());
        at.ok_or_else(|| format!("there is no domain {part}"))
    }

    fn settle(&mut self, at: usize, home: &Home) {
        let nodes = home.nodes.iter().filter_map(|node| self.hardware.index_of(node)).collect();
        let domain = &mut self.domains[at];
        (domain.nodes, domain.home) = (nodes, Some(home.clone()));
        domain.counts.home_changes += 1;
    }

    fn move_batch(&mut self, domain: usize, batch: Batch, to: NodeId) -> Outcome {
        let index = |id| self.hardware.index_of(id);
        let (Some(from), Some(to)) = (index(batch.from), index(to)) else {
            return Outcome::Refused { why: "there is no such node".into() };
        };
        let held_bytes = self.resident_bytes(domain).get(&batch.from).copied().unwrap_or(0);
        let asked_bytes = batch.max_bytes.min(held_bytes);
        let moved_bytes = self.move_pages(domain, from, to, asked_bytes);
        self.moving_ns[to] += move_cost_ns(self.hardware, from, to, moved_bytes);
        match asked_bytes - moved_bytes {
            0 => Outcome::Applied { moved_bytes },
            left => {
                let stayed = Stayed::from([(StayedWhy::NoRoom, left)]);
                Outcome::Partly { moved_bytes, stayed, interrupted: false }
            }
        }
    }
}

/// CPU time of a move of so many bytes: the policy's estimate for near nodes, and the extra latency
/// of the lines between farther ones.
fn move_cost_ns(hardware: &Hardware, from: usize, to: usize, bytes: u64) -> f64 {
    let near_ns = Tuning::default().move_cost_ns_per_mib as f64 * bytes as f64 / (1 << 20) as f64;
    let farther_ns = hardware.latency_ns(to, from) - hardware.latency_ns(to, to);
    near_ns + farther_ns.max(0.0) * (bytes / LINE_BYTES) as f64
}

impl Machine for World<'_> {
    type Error = Infallible;

    fn observe(&mut self) -> Result<Observation, Infallible> {
        Ok(self.observation())
    }

    fn apply(&mut self, transaction: &Transaction) -> Outcome {
        if let Err(unmet) = transaction.check(&self.observation()) {
            return Outcome::Refused { why: unmet.to_string() };
        }
        // All steps are checked before the first is applied.
        let checked = transaction.steps.iter().map(|step| match &step.action {
            Action::Claim { part, .. } | Action::SetHome { part, .. } => self.index_of(part),
            other => Err(format!("the simulator cannot {other}")),
        });
        let changed: Vec<usize> = match checked.collect() {
            Ok(changed) => changed,
            Err(why) => return Outcome::Refused { why },
        };
        for (step, at) in transaction.steps.iter().zip(changed) {
            match &step.action {
                Action::Claim { claim, .. } => self.domains[at].claim = Some(claim.clone()),
                Action::SetHome { home, .. } => self.settle(at, home),
                _ => {}
            }
        }
        Outcome::Applied { moved_bytes: 0 }
    }

    fn move_pages(
        &mut self,
        pages: &PageMove,
        _: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Outcome {
        let outcome = match (self.index_of(&pages.part), pages.batch, pages.nodes.first()) {
            (Ok(at), Some(batch), Some(to)) => self.move_batch(at, batch, to),
            (Err(why), ..) => return Outcome::Refused { why },
            _ => return Outcome::Refused { why: format!("the simulator cannot {pages}") },
        };
        let from = pages.batch.map(|batch| batch.from);
        let report = from.and_then(|from| MoveReport::new(&pages.part, from, &outcome));
        self.moved.extend(report);
        outcome
    }
}
