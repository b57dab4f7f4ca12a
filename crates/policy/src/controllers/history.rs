//! The memory of the homes controller: values that can be written, read and replayed.
//!
//! All numbers are whole, so a history that was written and read again is the same. It is bounded:
//! one entry for each part and each node of the last observation, each with a few numbers a node at
//! most.

use super::status::Status;
use crate::{ByNode, Home, MilliVcpus, PartId, StayedWhy};
use nearside_topology::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One million: a node moves pages at the full rate.
const FULL_RATE_PPM: u64 = 1_000_000;

/// Values carried from one interval to the next.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct History {
    /// The parts of the last observation.
    pub parts: BTreeMap<PartId, PartHistory>,
    /// The nodes of the last observation.
    pub nodes: BTreeMap<NodeId, NodeHistory>,
}

/// The history of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHistory {
    /// CPUs used there outside all domains, smoothed.
    pub others: MilliVcpus,
    /// The fraction of the full rate at which pages may leave or enter it: halved in each interval
    /// of memory pressure, raised by a sixteenth of the full rate in each other interval.
    pub rate_ppm: u64,
}

impl Default for NodeHistory {
    fn default() -> Self {
        Self { others: MilliVcpus::default(), rate_ppm: FULL_RATE_PPM }
    }
}

/// The history of a part.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartHistory {
    /// The interval in which it was first seen.
    #[serde(default)]
    pub since: Option<u64>,
    /// CPU time that it used and waited for, smoothed.
    pub demand: MilliVcpus,
    /// The share of its CPU time by node, smoothed; empty before it first ran.
    pub share_ppm: ByNode,
    /// The home that these figures are about.
    pub home: Option<Home>,
    /// The count of contended intervals: off its home, or waiting. An interval without contention
    /// takes two off it.
    pub contention_intervals: u64,
    /// How many times in a row a better home was found and not taken yet.
    pub confirmations: u64,
    /// How many samples in a row another program bound it elsewhere than its home says.
    pub bound_elsewhere: u64,
    /// The interval in which other homes were last evaluated for it.
    pub evaluated_at: Option<u64>,
    /// Its last move.
    pub moved: Option<LastMove>,
    /// The last attempt to give it a first home, while it has none.
    #[serde(default)]
    pub first_home: Option<LastMove>,
    /// The interval of the last attempt to confine it to its home again.
    pub confined_at: Option<u64>,
    /// By node, pages that did not move from there.
    pub stuck: BTreeMap<NodeId, Stuck>,
    /// By node, budget for page moves from there that is carried over, in bytes: one page at most.
    #[serde(default)]
    pub carried_bytes: ByNode,
    /// The interval of the next sample.
    pub next_sample: u64,
    /// The number of intervals from the last sample to the next.
    pub sample_intervals: u64,
    /// Its status after the last interval.
    pub status: Status,
}

/// A change of home by the homes controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastMove {
    /// The interval in which it was decided.
    pub at: u64,
    /// The cooldown: for so many intervals the part stays in any case.
    pub cooldown_intervals: u64,
    /// The load on the new home by this decision, the part included.
    pub load: MilliVcpus,
}

/// Pages that did not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The reason for most of them.
    pub why: StayedWhy,
    /// Their bytes.
    pub bytes: u64,
    /// Whether any of them found no room or no huge page.
    #[serde(default)]
    pub found_no_room: bool,
    /// The interval of the next attempt.
    pub retry_at: u64,
    /// The wait before it; it doubles with each attempt that moves nothing.
    pub backoff_intervals: u64,
}

impl History {
    /// The interval in which a part must be sampled; 0 (at once) without a history.
    pub fn next_sample(&self, part: &PartId) -> u64 {
        self.parts.get(part).map_or(0, |known| known.next_sample)
    }

    /// Takes the decision about a part back, because its transaction was dropped. The next interval
    /// decides anew. `learned` is the history without any decision.
    pub(super) fn take_back(&mut self, part: &PartId, learned: &Self) {
        if let (Some(known), Some(learned)) = (self.parts.get_mut(part), learned.parts.get(part)) {
            // It is due at once, and its first sample is over.
            let sample_intervals = learned.sample_intervals.max(1);
            *known = PartHistory { sample_intervals, ..learned.clone() };
        }
    }
}

impl PartHistory {
    /// How many intervals ago it was first seen.
    pub(super) fn age_intervals(&self, now: u64) -> u64 {
        self.since.map_or(0, |since| now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_without_history_is_sampled_at_once() {
        let mut history = History::default();
        let known = PartHistory { next_sample: 9, ..PartHistory::default() };
        history.parts.insert("db".into(), known);
        assert_eq!(["db", "new"].map(|name| history.next_sample(&name.into())), [9, 0]);
    }

    #[test]
    fn a_dropped_decision_leaves_no_cooldown() {
        let load = MilliVcpus(2000);
        let history = |at, contention_intervals, next_sample| {
            let moved = Some(LastMove { at, cooldown_intervals: 5, load });
            let known = PartHistory {
                moved,
                contention_intervals,
                confirmations: contention_intervals,
                next_sample,
                ..PartHistory::default()
            };
            History { parts: [("db".into(), known)].into(), ..History::default() }
        };
        // Contended for 6 intervals, it moves in interval 900, and the transaction is dropped.
        let (learned, mut after) = (history(100, 6, 900), history(900, 0, 903));
        after.take_back(&"db".into(), &learned);
        after.take_back(&"unknown".into(), &learned);
        let known = &after.parts[&PartId::of("db")];
        assert_eq!(known.moved, learned.parts[&PartId::of("db")].moved);
        assert_eq!((known.contention_intervals, known.confirmations), (6, 6));
        assert_eq!(after.next_sample(&"db".into()), 900, "it is due in the next interval");
    }

    #[test]
    fn age_counts_from_the_first_observation() {
        let known = PartHistory { since: Some(7), ..PartHistory::default() };
        // An interval number that went back (a new daemon) makes it young, not old.
        assert_eq!([7, 10, 3].map(|now| known.age_intervals(now)), [0, 3, 0]);
        assert_eq!(PartHistory::default().age_intervals(100), 0);
    }
}
