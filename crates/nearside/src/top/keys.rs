//! Effects of keys on the [`State`].

use super::{
    draw::{self, Room},
    rows::Sort,
    state::{Pane, State},
};
use crate::sample::Sample;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The effect of a key outside of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Nothing,
    /// Take samples as [`State::wants`] says from now on.
    Sample,
    /// Find the reasons for this domain's home.
    Explain(String),
    /// Suspend: restore the terminal until SIGCONT.
    Suspend,
    /// End the view.
    Quit,
}

impl State {
    /// Applies a key.
    pub(crate) fn key(&mut self, key: KeyEvent, sample: Option<&Sample>) -> Action {
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
        if self.steps(key.code, sample) {
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
            Pane::Domains | Pane::Nodes => self.command(key.code, sample),
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

    fn command(&mut self, code: KeyCode, sample: Option<&Sample>) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Enter | KeyCode::Char('w') => {
                let shown = sample.map(|sample| self.rows(sample)).unwrap_or_default();
                let Some(domain) = self.selected(&shown).map(|line| shown[line].name.clone())
                else {
                    return Action::Nothing;
                };
                self.show(Pane::Why { domain: domain.clone(), text: None });
                return Action::Explain(domain);
            }
            KeyCode::Char('a') => {
                self.all = !self.all;
                // The last sample does not include them.
                self.paused = false;
                return Action::Sample;
            }
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Action::Sample;
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

    /// Selects or scrolls; false if the key is for something else.
    fn steps(&mut self, code: KeyCode, sample: Option<&Sample>) -> bool {
        let room = Room::new(self.size, self, sample);
        // All lines of the pane, and the lines visible at once.
        let (lines, seen) = match &self.pane {
            Pane::Domains => (sample.map_or(0, |sample| self.rows(sample).len()), room.domains),
            Pane::Nodes => (sample.map_or(0, |sample| sample.stat.nodes.len()), room.nodes),
            Pane::Why { .. } | Pane::Help => (draw::text(self, sample).len(), room.text),
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
        let shown = sample.map(|sample| self.rows(sample)).unwrap_or_default();
        let Some(line) = step(self.selected(&shown).unwrap_or(0)) else { return false };
        let line = line.min(shown.len().saturating_sub(1));
        if let Some(domain) = shown.get(line) {
            self.selected = (domain.cgroup.clone(), line);
        }
        true
    }
}
