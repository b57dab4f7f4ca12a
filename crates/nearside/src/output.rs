//! The one place where anything is printed: what a command found to standard output, remarks to standard error.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write},
};

/// Writes a report to standard output, in colour where that is a terminal. A reader that has seen enough (`| head`) is
/// no failure.
pub(crate) fn print(report: &str) -> Outcome {
    let mut out = anstream::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::could_not(format_args!("standard output: {error}"))),
    }
}

/// Writes a line to standard error. What is being done does not depend on whether anybody reads it.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Writes remarks to standard error, one a line.
pub(crate) fn note(notes: impl IntoIterator<Item = impl Display>) {
    for note in notes {
        say(format_args!("nearside: note: {note}"));
    }
}

/// The forms of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Format {
    /// Tables to read
    #[default]
    Text,
    /// For programs; docs/formats.md describes it
    Json,
}

impl Format {
    /// Prints `data`: as `text` builds it, or as it is.
    pub(crate) fn print<T: Serialize>(self, data: &T, text: impl FnOnce(&T) -> String) -> Outcome {
        match self {
            Self::Text => print(&text(data)),
            Self::Json => {
                let json = serde_json::to_string_pretty(data);
                print(&(json.map_err(|error| Failure::could_not(format_args!("JSON: {error}")))? + "\n"))
            }
        }
    }
}
