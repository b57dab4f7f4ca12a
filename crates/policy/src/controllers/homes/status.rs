//! The status of each sampled part after a round, and its next sample.

use super::{debt::debt_in_pages, learning::is_idle, round::Round, sampling::intervals_to_next};
use crate::{DebtBlocker, Home, PartHistory, Place, Status, debt_bytes, view::PPM};

impl Round<'_> {
    /// Writes the status of each sampled part, and schedules its next sample.
    pub(super) fn report(&mut self) {
        let (now, tuning) = (self.now(), self.tuning());
        let has_choice = self.host().view().nodes.len() > 1;
        for at in self.sampled() {
            let state = self.state(at);
            let known = self.known_mut(at);
            let is_idle = is_idle(tuning, known);
            known.status.place = place(known, is_idle);
            if let Some(home) = &known.home {
                known.status.debt_bytes = debt_in_pages(state, &home.nodes);
            }
            let is_contended = known.contention_intervals > 0;
            let is_quiet =
                !has_choice || is_idle && !is_coming_home(&known.status) && !is_contended;
            known.sample_intervals = intervals_to_next(
                is_quiet,
                known.sample_intervals,
                tuning.idle_sample_intervals,
                now,
                state.id.domain(),
            );
            known.next_sample = now.saturating_add(known.sample_intervals);
        }
    }
}

/// Where a part runs, seen from its home.
fn place(known: &PartHistory, is_idle: bool) -> Place {
    let off_home_ppm = |home: &Home| debt_bytes(&known.share_ppm, &home.nodes).min(PPM);
    match (&known.home, known.contention_intervals) {
        (None, _) => Place::NoHome,
        (Some(_), _) if is_idle => Place::Idle,
        (Some(_), 0) => Place::AtHome,
        (Some(home), intervals) => Place::Contended { intervals, off_home_ppm: off_home_ppm(home) },
    }
}

/// Whether debt is on its way, or only waits for its budget: then even an idle part is watched.
fn is_coming_home(status: &Status) -> bool {
    status.debt_bytes > 0 && matches!(status.debt_blocker, None | Some(DebtBlocker::NoBudget))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::homes::fixture::seen;
    use nearside_topology::NodeId;

    #[test]
    fn a_place_is_told_from_home_idleness_and_contention() {
        let home = seen(1, 0, [0, 0]).machine.parts.remove(0).home;
        let of = |home: &Option<Home>, contention_intervals, is_idle| {
            let known = PartHistory {
                home: home.clone(),
                contention_intervals,
                share_ppm: [(NodeId(0), 600_000), (NodeId(1), 400_000)].into(),
                ..PartHistory::default()
            };
            place(&known, is_idle)
        };
        assert_eq!(of(&None, 3, false), Place::NoHome);
        assert_eq!(of(&home, 3, true), Place::Idle);
        assert_eq!(of(&home, 0, false), Place::AtHome);
        let contended = Place::Contended { intervals: 3, off_home_ppm: 400_000 };
        assert_eq!(of(&home, 3, false), contended, "its home is node 0");
    }

    #[test]
    fn debt_that_waits_for_its_budget_alone_is_coming_home() {
        let of = |debt_bytes, debt_blocker| {
            is_coming_home(&Status { debt_bytes, debt_blocker, ..Status::default() })
        };
        assert!(of(1, None) && of(1, Some(DebtBlocker::NoBudget)));
        assert!(!of(0, None) && !of(1, Some(DebtBlocker::NoRoom)));
    }
}
