//! What the control loop remembers.
//!
//! All of it is whole numbers, so that it is the same after it was written and read again. It is bounded: one entry a
//! domain and one a node that there are now, each with at most a few numbers a node.

use super::{ControlObservation, DomainLoad, MoveReport, NodeLoad, Standing, Tuning};
use crate::{ByNode, Home, PartId, PartState, StayedWhy, debt_bytes, view::PPM};
use nearside_topology::{Node, NodeId, NodeSet, Topology};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// An amount of CPUs, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MilliVcpus(pub u64);

impl fmt::Display for MilliVcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:02}", self.0 / 1000, self.0 % 1000 / 10))
    }
}

// More than any machine runs; it bounds the products of costing.
pub(super) const MOST_MILLI_VCPUS: u64 = 1 << 24;

// Of how many intervals a look makes up at most.
const MOST_STEPS: u64 = 8;

// A node that comes out of pressure takes so many intervals to come back to the full rate.
const RECOVERY_INTERVALS: u64 = 16;

// Where the kernel reclaims all the time, as on a host that serves files, pages go at this part of the full rate.
const SLOWEST_PPM: u64 = PPM / 64;

// Pages that did not move are tried again after so many intervals, and after at most so many.
const FIRST_RETRY_INTERVALS: u64 = 2;
const LAST_RETRY_INTERVALS: u64 = 256;

/// What is remembered from one interval to the next.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct History {
    /// By name, the domains there are.
    pub domains: BTreeMap<PartId, DomainHistory>,
    /// By number, the nodes there are.
    pub nodes: BTreeMap<NodeId, NodeHistory>,
}

/// What is remembered of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHistory {
    /// What runs there that is no domain's, smoothed.
    pub others: MilliVcpus,
    /// At which part of the full rate pages may leave it or come: halved in each interval in which it is short of
    /// memory, raised by a sixteenth of the full rate in each of the others.
    pub pace_ppm: u64,
}

/// What is remembered of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DomainHistory {
    /// The interval in which it was first seen.
    #[serde(default)]
    pub since: Option<u64>,
    /// CPU time it used and waited for, smoothed.
    pub demand: MilliVcpus,
    /// Where it ran, smoothed; nothing before it first did.
    pub share_ppm: ByNode,
    /// The home that these figures are about.
    pub home: Option<Home>,
    /// For how many intervals it has been in trouble: off its home, or waiting. An interval without counts back two.
    pub trouble_intervals: u64,
    /// How often in a row another home was found better and not taken yet.
    pub wins: u64,
    /// At how many looks in a row somebody else kept it elsewhere than its home says.
    pub kept_elsewhere: u64,
    /// When it was last weighed against other homes.
    pub weighed_at: Option<u64>,
    /// Its last move, where it is not long ago.
    pub moved: Option<LastMove>,
    /// When it was last confined to its home again.
    pub confined_at: Option<u64>,
    /// By node, what did not move from there.
    pub stuck: BTreeMap<NodeId, Stuck>,
    /// By node, what of the budget it could not use for moving pages from there: always less than one page, or one at most.
    #[serde(default)]
    pub saved_bytes: ByNode,
    /// The interval in which it has to be looked at again.
    pub next_look: u64,
    /// How many intervals that is from the look before.
    pub look_intervals: u64,
    /// How it stands, for people.
    pub standing: Standing,
}

/// A change of home by placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastMove {
    /// The interval in which it was decided.
    pub at: u64,
    /// For how many intervals the domain stays whatever happens.
    pub stay_intervals: u64,
    /// What was to run on the new home, the domain included.
    pub load: MilliVcpus,
}

/// Pages that did not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// Why, for most of them.
    pub why: StayedWhy,
    /// How many bytes.
    pub bytes: u64,
    /// Whether some of them, if not most, found no room or no huge page.
    #[serde(default)]
    pub found_no_room: bool,
    /// The interval in which they are tried again.
    pub retry_at: u64,
    /// How long the wait is; twice as long each time nothing moves.
    pub wait_intervals: u64,
}

impl History {
    /// The interval in which a domain has to be looked at; at once where nothing is known of it.
    pub fn next_look(&self, part: &PartId) -> u64 {
        self.domains.get(part).map_or(0, |known| known.next_look)
    }

    /// What is remembered once `seen` is, before anything is decided.
    pub(super) fn after(&self, tuning: &Tuning, seen: &ControlObservation) -> Self {
        let topology = &seen.machine.topology;
        let mut by_domains = ByNode::new();
        let domain = |state: &PartState| {
            let mut known = self.domains.get(&state.id).cloned().unwrap_or_default();
            known.since.get_or_insert(seen.interval);
            known.forget_former_home(state);
            if let Some(load) = seen.loads.get(&state.id).filter(|load| load.over_ns > 0) {
                known.learn(tuning, topology, state, load);
                for (&node, &ns) in &load.cpu_ns {
                    *by_domains.entry(node).or_default() += milli(ns, load.over_ns);
                }
            }
            (state.id.clone(), known)
        };
        let mut domains: BTreeMap<_, _> = seen.machine.parts.iter().map(domain).collect();
        for report in &seen.moved {
            if let Some(known) = domains.get_mut(&report.part) {
                known.learn_of_move(report, seen.interval);
            }
        }
        let by_domains = |node: &Node| by_domains.get(&node.id).copied().unwrap_or(0);
        let node = |node: &Node| (node.id, self.node_after(tuning, seen, node, by_domains(node)));
        Self { domains, nodes: topology.nodes.iter().map(node).collect() }
    }

    fn node_after(
        &self,
        tuning: &Tuning,
        seen: &ControlObservation,
        node: &Node,
        by_domains: u64,
    ) -> NodeHistory {
        let load = seen.nodes.get(&node.id).copied().unwrap_or_default();
        let others = milli(load.busy_ns, seen.length_ns).saturating_sub(by_domains);
        let before = self.nodes.get(&node.id);
        let others = before.map_or(others, |before| smoothed(before.others.0, others));
        let pace_ppm = before.map_or(PPM, |before| before.pace_ppm);
        let pace_ppm =
            match is_short(node, &load) || seen.memory_stall_ppm > Some(tuning.memory_stall_ppm) {
                true => (pace_ppm / 2).max(SLOWEST_PPM),
                false => pace_ppm.saturating_add(PPM / RECOVERY_INTERVALS).min(PPM),
            };
        NodeHistory { others: MilliVcpus(others), pace_ppm }
    }
}

impl DomainHistory {
    /// For how many intervals it has been there.
    pub(super) fn age_intervals(&self, now: u64) -> u64 {
        self.since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Whether the domain wants so little that it need not be looked at often.
    pub(super) fn is_idle(&self, tuning: &Tuning) -> bool {
        self.demand.0 < tuning.idle_milli_vcpus
    }

    // An operator gave it another home, or what was decided was not done: where it ran before tells nothing any more.
    fn forget_former_home(&mut self, state: &PartState) {
        if self.home != state.home {
            self.home.clone_from(&state.home);
            self.trouble_intervals = 0;
            self.wins = 0;
            self.kept_elsewhere = 0;
            self.stuck.clear();
        }
    }

    fn learn(
        &mut self,
        tuning: &Tuning,
        topology: &Topology,
        state: &PartState,
        load: &DomainLoad,
    ) {
        let is_known = |node: &NodeId| topology.node(*node).is_some();
        let cpu_ns: ByNode = load
            .cpu_ns
            .iter()
            .filter(|(node, _)| is_known(node))
            .map(|(&n, &ns)| (n, ns))
            .collect();
        let ran_ns = cpu_ns.values().copied().fold(0, u64::saturating_add);
        let wanted_ns = ran_ns.saturating_add(load.waited_ns);
        let steps = load.over_ns.checked_div(tuning.interval_ns).unwrap_or(1).clamp(1, MOST_STEPS);
        let demand = milli(wanted_ns, load.over_ns);
        let was_seen = self.look_intervals > 0;
        let share_ppm = |ns: u64| part_ppm(ns, ran_ns);
        for _ in 0..steps {
            self.demand.0 = if was_seen { smoothed(self.demand.0, demand) } else { demand };
            if ran_ns == 0 {
                continue;
            }
            let was_running = !self.share_ppm.is_empty();
            let nodes: NodeSet = self
                .share_ppm
                .keys()
                .chain(cpu_ns.keys())
                .copied()
                .filter(|n| is_known(n))
                .collect();
            let on = |by_node: &ByNode, node| by_node.get(&node).copied().unwrap_or(0);
            let share = |node| {
                let now = share_ppm(on(&cpu_ns, node));
                (node, if was_running { smoothed(on(&self.share_ppm, node), now) } else { now })
            };
            self.share_ppm = nodes.iter().map(share).filter(|(_, ppm)| *ppm > 0).collect();
        }
        let Some(home) = &state.home else { return };
        let off_ppm = part_ppm(debt_bytes(&cpu_ns, &home.nodes), ran_ns);
        let waits_ppm = part_ppm(load.waited_ns, wanted_ns);
        let in_trouble = off_ppm >= tuning.trouble_ppm || waits_ppm >= tuning.trouble_ppm;
        // What is over soon is not worth a move: trouble that comes and goes must prevail to count.
        self.trouble_intervals = match in_trouble && !self.is_idle(tuning) {
            true => self.trouble_intervals.saturating_add(steps),
            false => self.trouble_intervals.saturating_sub(2 * steps),
        };
    }

    fn learn_of_move(&mut self, report: &MoveReport, now: u64) {
        let MoveReport { from, moved_bytes, ref stayed, .. } = *report;
        let bytes = stayed.values().copied().fold(0, u64::saturating_add);
        let most = stayed.iter().max_by_key(|(_, bytes)| **bytes).filter(|(_, bytes)| **bytes > 0);
        let Some((&why, _)) = most else {
            self.stuck.remove(&from);
            return;
        };
        let before =
            self.stuck.get(&from).map(|stuck| stuck.wait_intervals).filter(|_| moved_bytes == 0);
        let wait_intervals = before
            .map_or(FIRST_RETRY_INTERVALS, |wait| wait.saturating_mul(2).min(LAST_RETRY_INTERVALS));
        let retry_at = now.saturating_add(wait_intervals);
        let found_no_room =
            [StayedWhy::NoRoom, StayedWhy::NoHugePage].iter().any(|why| stayed.contains_key(why));
        self.stuck.insert(from, Stuck { why, bytes, found_no_room, retry_at, wait_intervals });
    }

    /// How much of it cannot move from a node now.
    pub(super) fn stuck_bytes(&self, from: NodeId, now: u64) -> u64 {
        self.stuck.get(&from).filter(|stuck| now < stuck.retry_at).map_or(0, |stuck| stuck.bytes)
    }
}

/// Whether a node is short of memory: somebody had to wait for it or reclaim it, or the kernel does in the background.
fn is_short(node: &Node, load: &NodeLoad) -> bool {
    let below_low = node.fill_ppm(|zone| zone.low_watermark_bytes).is_some_and(|ppm| ppm < PPM);
    let reclaims = load.direct_reclaim_pages > 0 || load.background_reclaim_pages > 0;
    below_low || load.allocation_stalls > 0 || reclaims
}

/// A new figure counts for a quarter: after five intervals of another load it is three quarters of the way there.
fn smoothed(before: u64, now: u64) -> u64 {
    // The mean of two numbers of 64 bits has 64 bits.
    ((u128::from(before) * 3 + u128::from(now)) / 4) as u64
}

fn milli(ns: u64, over_ns: u64) -> u64 {
    let milli = (u128::from(ns) * 1000).checked_div(u128::from(over_ns)).unwrap_or(0);
    milli.min(u128::from(MOST_MILLI_VCPUS)) as u64
}

fn part_ppm(part: u64, whole: u64) -> u64 {
    (u128::from(part) * u128::from(PPM))
        .checked_div(u128::from(whole))
        .unwrap_or(0)
        .min(u128::from(PPM)) as u64
}
