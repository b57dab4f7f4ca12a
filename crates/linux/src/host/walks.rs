//! The progress of page moves: a batch continues where the one before it ended.

use crate::migrate::Walk;
use nearside_policy::PartId;
use nearside_topology::NodeId;
use std::collections::VecDeque;

/// The most walks that are kept, one per part and node; the oldest are dropped first.
const MAX_WALKS: usize = 256;

/// How far batches have come, by part and node, those used last at the end.
#[derive(Debug, Default)]
pub(super) struct Walks(VecDeque<((PartId, NodeId), Walk)>);

impl Walks {
    pub(super) fn take(&mut self, part: &PartId, from: NodeId) -> Walk {
        let at = self.0.iter().position(|((whose, node), _)| whose == part && *node == from);
        at.and_then(|at| self.0.remove(at)).map(|(_, walk)| walk).unwrap_or_default()
    }

    pub(super) fn put(&mut self, part: PartId, from: NodeId, walk: Walk) {
        if !walk.has_ended() {
            self.0.push_back(((part, from), walk));
            while self.0.len() > MAX_WALKS {
                self.0.pop_front();
            }
        }
    }

    /// Forgets domains that have ended.
    pub(super) fn keep_only(&mut self, lives: impl Fn(&str) -> bool) {
        self.0.retain(|((part, _), _)| lives(part.domain()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk() -> Walk {
        Walk::of(&[7])
    }

    #[test]
    fn the_oldest_of_too_many_walks_is_forgotten() {
        let mut walks = Walks::default();
        for n in 0..=MAX_WALKS {
            walks.put(PartId::of(n.to_string()), NodeId(0), walk());
        }
        assert_eq!(walks.0.len(), MAX_WALKS);
        assert!(walks.take(&PartId::of("0"), NodeId(0)).has_ended(), "it begins anew");
        assert!(
            walks.take(&PartId::of("256"), NodeId(1)).has_ended(),
            "of that node there is none"
        );
        assert!(!walks.take(&PartId::of("256"), NodeId(0)).has_ended());
        assert!(walks.take(&PartId::of("256"), NodeId(0)).has_ended(), "it was taken");
        walks.put("1".into(), NodeId(3), Walk::default());
        assert_eq!(walks.0.len(), MAX_WALKS - 1, "one that has ended is not kept");
    }
}
