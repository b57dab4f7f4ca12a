//! The duties of the daemon, in their order.

use super::{
    adoption::Adoption, duty::Duty, oom::Kills, page_moves::PageMoves, records::Records,
    scheduling::Scheduling, text::Text,
};

/// The duties. After a failed observation the loop calls [`Scheduling::keep_homes`] alone.
#[derive(Debug)]
pub(super) struct Duties {
    /// The loop uses it out of turn, too: to observe, after a failed observation, at the end.
    pub(super) scheduling: Scheduling,
    adoption: Adoption,
    kills: Kills,
    records: Records,
    /// Pages move between two intervals.
    pub(super) page_moves: PageMoves,
    /// Snapshots have its report.
    pub(super) text: Text,
}

impl Duties {
    /// Nothing was done yet.
    pub(super) fn new(scheduling: Scheduling, page_moves: PageMoves) -> Self {
        Self {
            scheduling,
            adoption: Adoption::default(),
            kills: Kills::default(),
            records: Records,
            page_moves,
            text: Text::default(),
        }
    }

    /// In the order in which they are done. Page moves come after all that changes records, because
    /// a change of a domain's record ends its page moves.
    pub(super) fn list(&mut self) -> [&mut dyn Duty; 6] {
        let Self { scheduling, adoption, kills, records, page_moves, text } = self;
        [scheduling, adoption, kills, records, page_moves, text]
    }
}
