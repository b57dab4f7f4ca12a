//! The pages that move between two intervals.

use super::{
    duty::{Duty, Interval},
    settle::report,
    site::Site,
};
use nearside_linux::Batches;
use nearside_policy::{MoveReport, Outcome, PageMove};
use std::{ops::ControlFlow, time::Instant};

/// The page moves of an interval, and the reports on those before it.
#[derive(Debug, Default)]
pub(super) struct PageMoves {
    batches: Batches,
    /// Reports that no controller has learned from yet.
    pub(super) reports: Vec<MoveReport>,
}

impl Duty for PageMoves {
    fn tend(&mut self, site: &mut Site, interval: &Interval<'_>) {
        let (begun, refused) = site.host.begin_batches(interval.moves);
        self.batches = begun;
        for (pages, outcome) in refused {
            self.count(site, &pages, &outcome);
        }
    }
}

impl PageMoves {
    /// No page moves yet; `reports` are those of an earlier daemon.
    pub(super) fn after(reports: Vec<MoveReport>) -> Self {
        Self { reports, ..Self::default() }
    }

    /// Moves pages until `due`, or until `may_go_on` breaks.
    pub(super) fn go_on(
        &mut self,
        site: &mut Site,
        due: Instant,
        may_go_on: &(dyn Fn() -> ControlFlow<()> + Sync),
    ) {
        if self.batches.is_busy() {
            site.host.move_batches(&mut self.batches, due, may_go_on);
        }
    }

    /// Ends the page moves, and counts their outcomes.
    pub(super) fn end(&mut self, site: &mut Site) {
        let batches = std::mem::take(&mut self.batches);
        for (pages, outcome) in site.host.end_batches(batches) {
            self.count(site, &pages, &outcome);
        }
    }

    fn count(&mut self, site: &mut Site, pages: &PageMove, outcome: &Outcome) {
        let domain = pages.part.domain();
        site.totals.count(domain, outcome);
        if let Outcome::Refused { why } = outcome {
            site.reported.report_of(domain, &format!("cannot {pages}: {why}"));
        }
        self.reports.extend(report(pages, outcome));
    }
}
