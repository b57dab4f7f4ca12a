//! The status of each sampled part after a round, and its next sample.

use super::{debt::debt_in_pages, learning::is_idle, round::Round, sampling::intervals_to_next};
use crate::{DebtBlocker, Place, debt_bytes, view::PPM};

impl Round<'_> {
    /// Writes the status of each sampled part, and schedules its next sample.
    pub(super) fn report(&mut self) {
        let (now, tuning) = (self.now(), self.tuning());
        let has_choice = self.host().view().nodes.len() > 1;
        for at in self.sampled() {
            let state = self.state(at);
            let known = self.known_mut(at);
            let is_idle = is_idle(tuning, known);
            let intervals = known.contention_intervals;
            known.status.place = Place::NoHome;
            if let Some(home) = &known.home {
                let off_home_ppm = debt_bytes(&known.share_ppm, &home.nodes).min(PPM);
                known.status.debt_bytes = debt_in_pages(state, &home.nodes);
                known.status.place = match intervals {
                    _ if is_idle => Place::Idle,
                    0 => Place::AtHome,
                    intervals => Place::Contended { intervals, off_home_ppm },
                };
            }
            let is_coming_home = known.status.debt_bytes > 0
                && matches!(known.status.debt_blocker, None | Some(DebtBlocker::NoBudget));
            let is_quiet = !has_choice || is_idle && !is_coming_home && intervals == 0;
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
