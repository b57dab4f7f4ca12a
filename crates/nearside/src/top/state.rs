//! The state of the view: the user's choices.

use super::rows::{Sort, rows};
use crate::{domains::Domain, sample::Sample};
use ratatui::layout::Size;
use std::time::Duration;

/// The pane in front.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Pane {
    /// The domains, with a selected line.
    #[default]
    Domains,
    /// The nodes, if they do not all fit.
    Nodes,
    /// The reasons for a domain's home; no text until they are known.
    Why { domain: String, text: Option<String> },
    /// The meaning of keys and columns.
    Help,
}

/// The user's choices, and the properties of the terminal.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) sort: Sort,
    /// Whether the order is reversed.
    pub(crate) reversed: bool,
    /// Text that shown names contain.
    pub(crate) filter: String,
    /// Whether other cgroups are shown.
    pub(crate) all: bool,
    /// The length of a sample.
    pub(crate) interval: Duration,
    /// The size of the terminal.
    pub(crate) size: Size,
    pub(crate) colours: bool,
    /// Whether a user may press keys.
    pub(crate) live: bool,
    /// Why the last sample failed, if it did.
    pub(crate) problem: Option<String>,
    pub(crate) paused: bool,
    /// Whether keys edit the filter.
    pub(crate) typing: bool,
    pub(crate) pane: Pane,
    /// The first line shown of a pane other than the domains.
    pub(crate) first: usize,
    /// The cgroup of the selected domain, and its line at that time. If the domain has ended, the
    /// line stays selected.
    pub(crate) selected: (String, usize),
}

impl State {
    /// The requested content of the next sample.
    pub(crate) fn wants(&self) -> Wants {
        Wants { all: self.all, paused: self.paused }
    }

    /// Stores a requested explanation; ignored if another pane is in front by now.
    pub(crate) fn explained(&mut self, domain: &str, explanation: String) {
        match &mut self.pane {
            Pane::Why { domain: asked, text } if asked == domain => *text = Some(explanation),
            _ => {}
        }
    }

    /// The shown domains, in order.
    pub(super) fn rows<'a>(&self, sample: &'a Sample) -> Vec<&'a Domain> {
        rows(&sample.stat.domains, self.all, &self.filter, self.sort, self.reversed)
    }

    /// The selected line, if there is any.
    pub(super) fn selected(&self, shown: &[&Domain]) -> Option<usize> {
        let (cgroup, line) = &self.selected;
        let found = shown.iter().position(|domain| domain.cgroup == *cgroup);
        found.or(shown.len().checked_sub(1).map(|last| last.min(*line)))
    }
}

/// The requested content of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Include other cgroups.
    pub(crate) all: bool,
    /// Take no samples until this changes.
    pub(crate) paused: bool,
}
