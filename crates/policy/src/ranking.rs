//! The best sets seen so far.

use crate::{
    SlowDown,
    cost::{Costing, Prediction, Standing, Unfit},
};

/// The order of candidates: how good they are, then lowest numbers.
type Rank = (Standing, Vec<usize>);

/// The best sets that were looked at, best first.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    best: Vec<Rank>,
    looked_at: u64,
    most_pages: Option<u64>,
}

impl Ranking {
    /// How many others are kept beside the best.
    pub(crate) const RUNNERS_UP: usize = 3;

    /// Predicts what living on `set` (rising indices) would mean and keeps it if it is among the best.
    pub(crate) fn look_at(
        &mut self,
        costing: &mut Costing<'_>,
        set: &[usize],
    ) -> Option<Prediction> {
        self.looked_at += 1;
        // Once the list is full, only what may enter it is of interest.
        let worst = self
            .best
            .get(Self::RUNNERS_UP)
            .map_or(SlowDown(u64::MAX), |((slow_down, ..), _)| *slow_down);
        let prediction = match costing.predict(set, worst) {
            Ok(prediction) => prediction,
            Err(unfit) => {
                if let Unfit::TooSmall(room) = unfit {
                    self.most_pages = self.most_pages.max(Some(room.pages));
                }
                return None;
            }
        };
        if !prediction.has_idle_node {
            self.keep(&prediction, set);
        }
        Some(prediction)
    }

    fn keep(&mut self, prediction: &Prediction, set: &[usize]) {
        let standing = prediction.standing();
        let at = self
            .best
            .partition_point(|(other, nodes)| (*other, nodes.as_slice()) < (standing, set));
        let there = self.best.get(at).is_some_and(|(_, other)| other == set);
        // One more than the runners-up, since the operator's own choice is left out of them.
        if at <= Self::RUNNERS_UP && !there {
            self.best.truncate(Self::RUNNERS_UP);
            self.best.insert(at, (standing, set.to_vec()));
        }
    }

    /// The best sets, best first.
    pub(crate) fn best(&self) -> impl Iterator<Item = &[usize]> {
        self.best.iter().map(|(_, set)| set.as_slice())
    }

    /// How many sets were looked at.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// The most pages that any set that was too small would have had; None where no set had a CPU.
    pub(crate) fn most_pages(&self) -> Option<u64> {
        self.most_pages
    }
}
