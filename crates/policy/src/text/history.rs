//! Memory of each file between two looks, so that text does not bounce between nodes.

use super::FileId;
use nearside_topology::NodeSet;
use std::collections::BTreeMap;

/// Looks in a row in which a text has to belong on the same nodes before it moves there.
const CONFIRMATIONS: u64 = 2;

/// The longest rest, and the looks after which a setback is forgotten.
const MAX_REST_LOOKS: u64 = 256;

/// Results of earlier looks, by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextHistory(BTreeMap<FileId, FileHistory>);

/// The outcome of an attempt to move pages, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placed {
    /// Bytes that were to move.
    pub tried_bytes: u64,
    /// Those that lie on their node now.
    pub moved_bytes: u64,
    /// All bytes of the file that lie where they belong now.
    pub there_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct FileHistory {
    /// The nodes that the text belonged on when it last belonged on any.
    belongs: NodeSet,
    /// Looks in a row in which it did.
    confirmed: u64,
    /// Bytes that lay there after the last attempt.
    placed_bytes: Option<u64>,
    setbacks: u32,
    rests_until: u64,
    seen_at: u64,
    moved_bytes: u64,
}

impl TextHistory {
    pub(super) fn of(&mut self, file: FileId) -> &mut FileHistory {
        self.0.entry(file).or_default()
    }

    /// Bytes of a file that have moved so far.
    pub fn moved_bytes(&self, file: FileId) -> u64 {
        self.0.get(&file).map_or(0, |known| known.moved_bytes)
    }

    /// Forgets files that no domain has executed for long.
    pub(super) fn forget_old(&mut self, look: u64) {
        let is_recent = |known: &FileHistory| {
            look <= known.seen_at.max(known.rests_until).saturating_add(MAX_REST_LOOKS)
        };
        self.0.retain(|_, known| is_recent(known));
    }

    /// Takes the outcome of an order in.
    pub fn settle(&mut self, look: u64, file: FileId, placed: Placed) {
        let known = self.of(file);
        known.moved_bytes = known.moved_bytes.saturating_add(placed.moved_bytes);
        known.placed_bytes = Some(placed.there_bytes);
        if placed.moved_bytes.saturating_mul(2) < placed.tried_bytes {
            known.set_back(look);
        }
    }
}

impl FileHistory {
    /// It has no one place in this look.
    pub(super) fn belongs_nowhere(&mut self, look: u64) {
        self.seen_at = look;
        self.confirmed = 0;
    }

    /// It belongs on these nodes in this look: so many bytes lie there, and so many elsewhere.
    pub(super) fn belongs_on(&mut self, nodes: &NodeSet, look: u64, there: u64, off: u64) {
        self.seen_at = look;
        if self.belongs != *nodes {
            self.belongs = nodes.clone();
            self.confirmed = 1;
            // It was moved to the former nodes.
            if self.placed_bytes.take().is_some() {
                self.set_back(look);
            }
            return;
        }
        self.confirmed = self.confirmed.saturating_add(1);
        // Someone else moves it, too: a user that cannot be seen, or the kernel with a `cpuset`.
        let came_back = |placed: &u64| there < placed / 2 && off > placed / 2;
        if self.placed_bytes.take_if(|placed| came_back(placed)).is_some() {
            self.set_back(look);
        }
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed >= CONFIRMATIONS
    }

    /// Looks until it may move again.
    pub(super) fn rest_looks(&self, look: u64) -> u64 {
        self.rests_until.saturating_sub(look)
    }

    /// Each setback doubles the rest.
    fn set_back(&mut self, look: u64) {
        if look > self.rests_until.saturating_add(MAX_REST_LOOKS) {
            self.setbacks = 0;
        }
        self.setbacks = self.setbacks.saturating_add(1);
        let rest = 1_u64.checked_shl(self.setbacks.saturating_add(1)).unwrap_or(MAX_REST_LOOKS);
        self.rests_until = look.saturating_add(rest.min(MAX_REST_LOOKS));
    }
}
