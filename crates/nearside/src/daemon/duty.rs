//! Duties: the daemon does them in an interval, once the decisions were applied.

use super::{clock::Clock, config::Config, site::Site};
use nearside_policy::{ControlObservation, History, PageMove};

/// Something that the daemon does in each interval whose observation succeeded, after the
/// decisions of its controllers were applied.
pub(super) trait Duty {
    /// Does it for one interval, and reports its failures itself.
    fn tend(&mut self, site: &mut Site, interval: &Interval<'_>);
}

/// The interval in which duties are done.
pub(super) struct Interval<'a> {
    /// Its observation, from before the decisions.
    pub(super) seen: &'a ControlObservation,
    /// The state of the homes controller after the decisions, without those taken back.
    pub(super) history: &'a History,
    /// The pages that are to move until the next interval.
    pub(super) moves: &'a [PageMove],
    pub(super) config: &'a Config,
    pub(super) clock: &'a Clock,
    /// Whether the next interval is due, or the daemon is to end.
    pub(super) is_over: &'a dyn Fn() -> bool,
}
