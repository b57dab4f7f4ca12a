//! All output of commands: reports on standard output, notes and errors on standard error.

use crate::{
    failure::{Failure, Outcome},
    printable::printable_lines,
};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

/// Writes a report to standard output, in colour if that is a terminal. A reader that closes the
/// pipe early (`| head`) is no failure.
pub(crate) fn print(report: &str) -> Outcome {
    let mut out = anstream::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => {
            written.map_err(|error| Failure::could_not(format_args!("standard output: {error}")))
        }
    }
}

/// Writes text of others to standard output, byte for byte. Only a terminal gets it without control
/// sequences.
pub(crate) fn print_verbatim(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        drop(out);
        return print(text);
    }
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => {
            written.map_err(|error| Failure::could_not(format_args!("standard output: {error}")))
        }
    }
}

/// Writes a line to standard error in one call, so that lines of parallel commands do not mix.
pub(crate) fn tell(line: &str) {
    if cfg!(test) {
        // This goes to the harness, which shows it if the test fails.
        return eprintln!("{line}");
    }
    // Without standard error there is no place to report a failure to write to it.
    let _ = anstream::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// Writes the message of `failure` to standard error and returns its exit code.
pub(crate) fn fail(failure: &Failure) -> ExitCode {
    let style = anstyle::AnsiColor::Red.on_default().bold();
    let message = printable_lines(failure.message().trim_end());
    tell(&format!("{style}nearside:{style:#} {message}"));
    ExitCode::from(failure.code())
}

/// Writes notes to standard error, one a line. Names in them may be those of found cgroups.
pub(crate) fn note(notes: impl IntoIterator<Item = impl Display>) {
    for note in notes {
        tell(&format!("nearside: note: {}", printable_lines(&note.to_string())));
    }
}

/// `data` as JSON.
pub(crate) fn json(data: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(data)
        .map_err(|error| Failure::could_not(format_args!("JSON: {error}")))?;
    // JSON allows DEL in a string as it is, but `print` strips it with terminal sequences.
    Ok(json.replace('\x7f', "\\u007f") + "\n")
}

/// The output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    #[default]
    Text,
    /// JSON for programs (docs/formats.md)
    Json,
}

impl Format {
    /// Prints `data` as JSON, or the text that `text` makes of it.
    pub(crate) fn print<T: Serialize>(self, data: &T, text: impl FnOnce(&T) -> String) -> Outcome {
        match self {
            Self::Text => print(&text(data)),
            Self::Json => print(&json(data)?),
        }
    }
}
