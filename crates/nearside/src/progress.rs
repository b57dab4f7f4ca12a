//! How far a long action is: a bar on a terminal, now and then a line elsewhere.

use crate::{
    output,
    report::units::{percent, size},
};
use indicatif::{ProgressBar, ProgressStyle};
use nearside_policy::Progress;
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

fn line(so_far: Progress) -> String {
    let share =
        percent(so_far.done_bytes, so_far.total_bytes).map_or_else(String::new, |share| format!(" ({share} %)"));
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
