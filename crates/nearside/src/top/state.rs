//! What the user chose to see.

use super::{
    draw::{self, Room},
    rows::{Sort, rows},
};
use crate::{domains::Domain, look::Look};
use ratatui::{
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::Size,
};
use std::time::Duration;

/// What is in front.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Pane {
    /// The domains, where a line is selected.
    #[default]
    Domains,
    /// The nodes, where there are more than fit.
    Nodes,
    /// Why a domain lives where it does; no text as long as it is looked for.
    Why { domain: String, text: Option<String> },
    /// What keys and columns mean.
    Help,
}

/// What is shown of a look, and how.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) sort: Sort,
    /// Whether the order is the other way round.
    pub(crate) reversed: bool,
    /// What a name must have in it.
    pub(crate) filter: String,
    /// Whether other cgroups are wanted.
    pub(crate) all: bool,
    /// How long a look takes.
    pub(crate) interval: Duration,
    /// The terminal's.
    pub(crate) size: Size,
    pub(crate) colours: bool,
    /// Whether somebody sits there and may press keys.
    pub(crate) live: bool,
    /// Why the last look failed, if it did.
    pub(crate) trouble: Option<String>,
    pub(crate) paused: bool,
    /// Whether keys go into the filter.
    pub(crate) typing: bool,
    pub(crate) pane: Pane,
    /// The first line shown of a pane other than the domains.
    pub(crate) first: usize,
    /// The selected domain's cgroup, and its line when it was selected: where it has ended, its line is.
    pub(crate) selected: (String, usize),
}

/// What a key asks for beyond another frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Nothing,
    /// Look from now on at what [`State::wants`] says.
    Look,
    /// Find out why this domain lives where it does.
    Explain(String),
    /// Give the terminal back until continued.
    Suspend,
    /// End.
    Quit,
}

impl State {
    /// Whether other cgroups shall be looked at, and whether there shall be another look at all.
    pub(crate) fn wants(&self) -> Wants {
        Wants { all: self.all, paused: self.paused }
    }

    /// The explanation that was asked for; it comes too late if something else is in front now.
    pub(crate) fn explained(&mut self, domain: &str, explanation: String) {
        match &mut self.pane {
            Pane::Why { domain: asked, text } if asked == domain => *text = Some(explanation),
            _ => {}
        }
    }

    /// What a key does.
    pub(crate) fn key(&mut self, key: KeyEvent, look: Option<&Look>) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('u') if self.typing => {
                    self.filter.clear();
                    Action::Nothing
                }
                _ => Action::Nothing,
            };
        }
        if self.typing {
            self.type_filter(key.code);
            return Action::Nothing;
        }
        if self.steps(key.code, look) {
            return Action::Nothing;
        }
        match self.pane {
            Pane::Why { .. } | Pane::Help => {
                if let KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | 'w' | '?' | 'h') =
                    key.code
                {
                    self.show(Pane::Domains);
                }
                Action::Nothing
            }
            Pane::Domains | Pane::Nodes => self.command(key.code, look),
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
    }

    fn command(&mut self, code: KeyCode, look: Option<&Look>) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Enter | KeyCode::Char('w') => {
                let shown = look.map(|look| self.rows(look)).unwrap_or_default();
                let Some(domain) = self.selected(&shown).map(|line| shown[line].name.clone())
                else {
                    return Action::Nothing;
                };
                self.show(Pane::Why { domain: domain.clone(), text: None });
                return Action::Explain(domain);
            }
            KeyCode::Char('a') => {
                self.all = !self.all;
                // What was not looked at cannot be shown.
                self.paused = false;
                return Action::Look;
            }
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Action::Look;
            }
            KeyCode::Char('s' | '>') => self.sort_by(self.sort.after(1)),
            KeyCode::Char('<') => self.sort_by(self.sort.before()),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') => self.show(Pane::Help),
            KeyCode::Tab if self.pane == Pane::Domains => self.show(Pane::Nodes),
            KeyCode::Tab => self.show(Pane::Domains),
            _ => {}
        }
        Action::Nothing
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.reversed = false;
    }

    fn show(&mut self, pane: Pane) {
        self.pane = pane;
        self.first = 0;
    }

    /// Selects or scrolls, if the key is for that.
    fn steps(&mut self, code: KeyCode, look: Option<&Look>) -> bool {
        let room = Room::new(self.size, self, look);
        // How many lines there are, and how many of them are seen at once.
        let (lines, seen) = match &self.pane {
            Pane::Domains => (look.map_or(0, |look| self.rows(look).len()), room.domains),
            Pane::Nodes => (look.map_or(0, |look| look.stat.nodes.len()), room.nodes),
            Pane::Why { .. } | Pane::Help => (draw::text(self, look).len(), room.text),
        };
        let page = seen.saturating_sub(1).max(1);
        let step = |from: usize| match code {
            KeyCode::Up | KeyCode::Char('k') => Some(from.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => Some(from + 1),
            KeyCode::PageUp => Some(from.saturating_sub(page)),
            KeyCode::PageDown => Some(from + page),
            KeyCode::Home | KeyCode::Char('g') => Some(0),
            KeyCode::End | KeyCode::Char('G') => Some(lines),
            _ => None,
        };
        if self.pane != Pane::Domains {
            let Some(first) = step(self.first) else { return false };
            self.first = first.min(lines.saturating_sub(seen));
            return true;
        }
        let shown = look.map(|look| self.rows(look)).unwrap_or_default();
        let Some(line) = step(self.selected(&shown).unwrap_or(0)) else { return false };
        let line = line.min(shown.len().saturating_sub(1));
        if let Some(domain) = shown.get(line) {
            self.selected = (domain.cgroup.clone(), line);
        }
        true
    }

    /// The domains that are shown, in order.
    pub(super) fn rows<'a>(&self, look: &'a Look) -> Vec<&'a Domain> {
        rows(&look.stat.domains, self.all, &self.filter, self.sort, self.reversed)
    }

    /// The line that is selected, if there is any.
    pub(super) fn selected(&self, shown: &[&Domain]) -> Option<usize> {
        let (cgroup, line) = &self.selected;
        let found = shown.iter().position(|domain| domain.cgroup == *cgroup);
        found.or(shown.len().checked_sub(1).map(|last| last.min(*line)))
    }
}

/// What shall be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Other cgroups, too.
    pub(crate) all: bool,
    /// Nothing, until this changes.
    pub(crate) paused: bool,
}
