//! Waiting for the lock: the flag that several commands share, and the message while they wait.

use crate::output;
use nearside_linux::{Waiting, store::LockWait};
use std::time::Duration;

/// How long a command waits for other commands.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// Wait at most this many seconds for another command that holds the lock [default: until the
    /// lock is free]
    #[arg(
        long = "wait",
        value_name = "SECONDS",
        value_parser = parse_seconds,
        allow_hyphen_values = true,
        help_heading = None
    )]
    seconds: Option<f64>,
}

impl WaitArgs {
    /// The longest wait; none without a bound.
    pub(crate) fn at_most(&self) -> Option<Duration> {
        self.seconds.map(Duration::from_secs_f64)
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0 to 86400, such as 2.5".into()),
    }
}

/// Waits with a message: after two seconds it names the process that holds the lock.
pub(crate) fn waiting(at_most: Option<Duration>) -> Waiting {
    Waiting { at_most, notify, meanwhile: || {} }
}

/// Waits without a message.
pub(crate) fn waiting_quietly(at_most: Option<Duration>) -> Waiting {
    Waiting { at_most, ..Waiting::default() }
}

fn notify(wait: &LockWait) {
    output::tell(&format!("nearside: waiting: {wait}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_bounded_by_seconds() {
        assert_eq!(parse_seconds("2.5"), Ok(2.5));
        assert_eq!(parse_seconds("0"), Ok(0.0));
        for text in ["", "-1", "nan", "inf", "1e9", "2s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
