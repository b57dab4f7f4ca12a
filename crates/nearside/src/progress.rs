//! Progress of long operations: a bar on a terminal, now and then a line elsewhere.

use crate::{
    output,
    report::units::{percent, size},
};
use indicatif::{ProgressBar, ProgressStyle};
use nearside_policy::Progress;
use nearside_simulator::Progress as Simulated;
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

/// Time between two lines if standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows progress on standard error.
#[derive(Debug)]
pub(crate) enum Meter {
    Bar(ProgressBar),
    Lines { told: Instant },
}

impl Meter {
    /// A bar or lines, as standard error is a terminal or not.
    pub(crate) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { told: Instant::now() };
        }
        let bar = ProgressBar::new(0);
        let template = "moving [{wide_bar}] {binary_bytes} of {binary_total_bytes}, \
                        {binary_bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self::Bar(bar)
    }

    /// Shows the progress made so far.
    pub(crate) fn show(&mut self, so_far: Progress) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(so_far.total_bytes);
                bar.set_position(so_far.done_bytes);
            }
            Self::Lines { told } if told.elapsed() >= LINE_EVERY => {
                *told = Instant::now();
                output::tell(&format!("nearside: {}", line(so_far)));
            }
            Self::Lines { .. } => {}
        }
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Operations shorter than this show no bar.
const MOMENT: Duration = Duration::from_secs(1);
/// Time between two updates of a bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// A bar on standard error, if that is a terminal, for a simulation that takes a while.
#[derive(Debug)]
pub(crate) struct Simulating {
    bar: ProgressBar,
    next: Instant,
}

impl Simulating {
    /// For a simulation of at most so many seconds of simulated time.
    pub(crate) fn new(max_seconds: u64) -> Self {
        let bar = ProgressBar::new(max_seconds);
        if let Ok(style) =
            ProgressStyle::with_template("simulating {msg} [{wide_bar}] {pos} s of {len} s at most")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, next: Instant::now() + MOMENT }
    }

    /// Shows the progress made so far.
    pub(crate) fn show(&mut self, so_far: Simulated) {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + BAR_EVERY;
            self.bar.set_message(so_far.contender.name());
            self.bar.set_position(so_far.now_ns / 1_000_000_000);
        }
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar of things that are done one after another; nothing where standard error is no terminal.
pub(crate) struct Counter(Option<ProgressBar>);

impl Counter {
    /// `doing` says what happens to so many things.
    pub(crate) fn new(doing: &str, things: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(things as u64));
        if let Some(bar) = &bar
            && let Ok(style) =
                ProgressStyle::with_template(&format!("{doing} [{{wide_bar}}] {{pos}} of {{len}}"))
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    /// Shows how many are done.
    pub(crate) fn show(&self, done: usize) {
        if let Some(bar) = &self.0 {
            bar.set_position(done as u64);
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn line(so_far: Progress) -> String {
    let share = percent(so_far.done_bytes, so_far.total_bytes)
        .map_or_else(String::new, |share| format!(" ({share} %)"));
    format!("moving: {} of {}{share}", size(so_far.done_bytes), size(so_far.total_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_moved_and_total_bytes() {
        let so_far = Progress { done_bytes: 3 << 29, total_bytes: 6 << 30 };
        assert_eq!(line(so_far), "moving: 1.5 GiB of 6 GiB (25 %)");
        assert_eq!(line(Progress::default()), "moving: 0 bytes of 0 bytes");
    }
}
