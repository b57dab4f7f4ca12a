//! Observe and apply: what the policy sees of the machine in software, and what it does there.

use crate::{
    hardware::Hardware,
    world::{Domain, LINE_BYTES, World},
};
use nearside_policy::{
    Action, Batch, ControlObservation, DomainState, History, Machine, MoveReport, NodeLoad,
    Observation, Outcome, Progress, Stayed, StayedWhy, Tuning,
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

    /// What the machine and its domains are now.
    pub(crate) fn observation(&self) -> Observation {
        let running = |(_, domain): &(usize, &Domain<'_>)| domain.done_ns.is_none();
        let state = |(at, domain): (usize, &Domain<'_>)| DomainState {
            name: domain.plan.name.clone(),
            home: domain.home.clone(),
            claim: domain.claim.clone(),
            resident_bytes: self.resident_bytes(at),
            ..DomainState::default()
        };
        let mut domains: Vec<_> =
            self.domains.iter().enumerate().filter(running).map(state).collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        Observation { topology: self.topology(), domains }
    }

    /// The same, and what both did in the interval that has passed.
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
            if history.next_look(&domain.plan.name) <= interval {
                seen.loads.insert(domain.plan.name.clone(), mem::take(&mut domain.untold));
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

    fn move_batch(&mut self, domain: usize, batch: Batch, to: NodeId) -> Outcome {
        let index = |id| self.hardware.index_of(id);
        let (Some(from), Some(to)) = (index(batch.from), index(to)) else {
            return Outcome::Refused { why: "there is no such node".into() };
        };
        let held_bytes = self.resident_bytes(domain).get(&batch.from).copied().unwrap_or(0);
        let asked_bytes = batch.most_bytes.min(held_bytes);
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

/// CPU time that moving so many bytes takes: what the policy reckons with between near nodes, and the lines of both nodes that are
/// farther than that.
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

    fn apply(
        &mut self,
        action: &Action,
        _: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Outcome {
        let name = action.domain();
        let Some(at) = self.domains.iter().position(|domain| domain.plan.name == name) else {
            return Outcome::Refused { why: format!("there is no domain {name}") };
        };
        match action {
            Action::Claim { claim, .. } => self.domains[at].claim = Some(claim.clone()),
            Action::SetHome { home, .. } => {
                let nodes =
                    home.nodes.iter().filter_map(|node| self.hardware.index_of(node)).collect();
                let domain = &mut self.domains[at];
                (domain.nodes, domain.home) = (nodes, Some(home.clone()));
                domain.counts.home_changes += 1;
            }
            Action::MovePages { nodes, batch: Some(batch), .. } if let Some(to) = nodes.first() => {
                let outcome = self.move_batch(at, *batch, to);
                self.moved.extend(MoveReport::new(name, batch.from, &outcome));
                return outcome;
            }
            other => return Outcome::Refused { why: format!("the simulator cannot {other}") },
        }
        Outcome::Applied { moved_bytes: 0 }
    }
}
