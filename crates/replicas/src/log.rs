//! The helper's log: its standard error.

use std::{
    fmt::Arguments,
    io::{self, Write as _},
};

/// Writes a line to the log, with arguments as `format!` has them.
macro_rules! log {
    ($($text:tt)*) => { $crate::log::line(format_args!($($text)*)) };
}

/// A terminal or a reader that has gone is no reason to end amid a collapse, as `eprintln!` would.
pub(crate) fn line(text: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "nearside replicator: {text}");
}
