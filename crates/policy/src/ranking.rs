//! The best sets evaluated so far.

use crate::{
    SlowDown,
    cost::{Costing, Prediction, Score, Unfit},
    index::NodeIndex,
};

/// The order of candidates: how good they are, then lowest numbers.
type Rank = (Score, Vec<NodeIndex>);

/// The best sets that were evaluated, best first.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    best: Vec<Rank>,
    evaluated: u64,
    max_pages: Option<u64>,
    // Nodes that no set may have.
    barred: Vec<NodeIndex>,
}

impl Ranking {
    /// The number of sets kept besides the best.
    pub(crate) const RUNNERS_UP: usize = 3;

    /// An empty ranking of sets without these nodes.
    pub(crate) fn without(barred: &[NodeIndex]) -> Self {
        Self { barred: barred.to_vec(), ..Self::default() }
    }

    /// Whether no set may have a node.
    pub(crate) fn is_barred(&self, node: NodeIndex) -> bool {
        self.barred.contains(&node)
    }

    /// Predicts the consequences of `set` (rising) as a home, and keeps it if it is among the best.
    pub(crate) fn evaluate(
        &mut self,
        costing: &mut Costing<'_>,
        set: &[NodeIndex],
    ) -> Option<Prediction> {
        if set.iter().any(|&node| self.is_barred(node)) {
            return None;
        }
        self.evaluated += 1;
        // Once the list is full, only sets that may enter it matter.
        let worst = self
            .best
            .get(Self::RUNNERS_UP)
            .map_or(SlowDown(u64::MAX), |((slow_down, ..), _)| *slow_down);
        let prediction = match costing.predict(set, worst) {
            Ok(prediction) => prediction,
            Err(unfit) => {
                if let Unfit::TooSmall(room) = unfit {
                    self.max_pages = self.max_pages.max(Some(room.pages));
                }
                return None;
            }
        };
        if !prediction.has_idle_node {
            self.keep(&prediction, set);
        }
        Some(prediction)
    }

    fn keep(&mut self, prediction: &Prediction, set: &[NodeIndex]) {
        let score = prediction.score();
        let at =
            self.best.partition_point(|(other, nodes)| (*other, nodes.as_slice()) < (score, set));
        let there = self.best.get(at).is_some_and(|(_, other)| other == set);
        // One more than the runners-up, since the operator's own choice is left out of them.
        if at <= Self::RUNNERS_UP && !there {
            self.best.truncate(Self::RUNNERS_UP);
            self.best.insert(at, (score, set.to_vec()));
        }
    }

    /// The best sets, best first.
    pub(crate) fn best(&self) -> impl Iterator<Item = &[NodeIndex]> {
        self.best.iter().map(|(_, set)| set.as_slice())
    }

    /// How many sets were evaluated.
    pub(crate) fn evaluated(&self) -> u64 {
        self.evaluated
    }

    /// The most pages that a set that is too small would have had; None if no set had a CPU.
    pub(crate) fn max_pages(&self) -> Option<u64> {
        self.max_pages
    }
}
