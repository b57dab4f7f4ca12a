//! The one place where anything is printed: what a command found to standard output, remarks to
//! standard error.

use crate::{
    failure::{Failure, Outcome},
    printable::printable_lines,
};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write},
};

/// Writes a report to standard output, in colour where that is a terminal. A reader that has seen
/// enough (`| head`) is no failure.
pub(crate) fn print(report: &str) -> Outcome {
    let mut out = anstream::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => {
            written.map_err(|error| Failure::could_not(format_args!("standard output: {error}")))
        }
    }
}

/// Writes a line to standard error, in one piece: commands that run side by side do not tear each
/// other's apart.
pub(crate) fn tell(line: &str) {
    // There is nobody left to tell that this could not be written.
    let _ = anstream::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// Writes remarks to standard error, one a line. Names in them may be those of found cgroups.
pub(crate) fn note(notes: impl IntoIterator<Item = impl Display>) {
    for note in notes {
        tell(&format!("nearside: note: {}", printable_lines(&note.to_string())));
    }
}

/// Data for programs.
pub(crate) fn json(data: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(data)
        .map_err(|error| Failure::could_not(format_args!("JSON: {error}")))?;
    // JSON allows DEL in a string as it is, but `print` strips it with terminal sequences.
    Ok(json.replace('\x7f', "\\u007f") + "\n")
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
            Self::Json => print(&json(data)?),
        }
    }
}
