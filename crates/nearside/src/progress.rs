//! How far what takes long is: a bar on a terminal; of actions now and then a line elsewhere.

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

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows progress on standard error.
#[derive(Debug)]
pub(crate) enum Meter {
    Bar(ProgressBar),
    Lines { told: Instant },
}

impl Meter {
    /// What suits standard error.
    pub(crate) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { told: Instant::now() };
        }
        let bar = ProgressBar::new(0);
        let template = "moving [{wide_bar}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self::Bar(bar)
    }

    /// Shows how far it is now.
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

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// What takes no longer than this needs no bar.
const MOMENT: Duration = Duration::from_secs(1);
/// Between two looks of a bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Shows on standard error, where that is a terminal, how far a simulation is that takes longer than a moment.
#[derive(Debug)]
pub(crate) struct Simulating {
    bar: ProgressBar,
    next: Instant,
}

impl Simulating {
    /// At most so many seconds of the model.
    pub(crate) fn new(most_seconds: u64) -> Self {
        let bar = ProgressBar::new(most_seconds);
        if let Ok(style) =
            ProgressStyle::with_template("playing {msg} [{wide_bar}] {pos} s of {len} s at most")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, next: Instant::now() + MOMENT }
    }

    /// Shows how far it is now.
    pub(crate) fn show(&mut self, so_far: Simulated) {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + BAR_EVERY;
            self.bar.set_message(so_far.contender.name());
            self.bar.set_position(so_far.now_ns / 1_000_000_000);
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
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
    fn a_line_tells_how_much_of_how_much() {
        let so_far = Progress { done_bytes: 3 << 29, total_bytes: 6 << 30 };
        assert_eq!(line(so_far), "moving: 1.5 GiB of 6 GiB (25 %)");
        assert_eq!(line(Progress::default()), "moving: 0 bytes of 0 bytes");
    }
}
