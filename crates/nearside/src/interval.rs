//! `--interval SECONDS`

use std::time::Duration;

/// Parses an interval in seconds, at most an hour.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected 0 to 3600 seconds, such as 0.5".into())
}
