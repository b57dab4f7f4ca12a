//! Faults of a command line.

/// The reason why a command line is not read or not completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandLineError {
    /// An argument is at fault. The program is argument 0.
    #[error("argument {number} ({}): {why}", quoted(text))]
    Argument {
        /// Its number.
        number: usize,
        /// Its text.
        text: String,
        /// The fault.
        why: String,
    },
    /// The command line as a whole is at fault.
    #[error("{0}")]
    Whole(String),
}

/// The longest quotation of an argument, in characters.
const MAX_QUOTED: usize = 80;

// An argument on one line, cut if it is long.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((cut, _)) => format!("{:?}...", &text[..cut]),
        None => format!("{text:?}"),
    }
}

/// A fault of the argument `number` of `words`.
pub(crate) fn at(words: &[String], number: usize, why: impl Into<String>) -> CommandLineError {
    let text = words.get(number).cloned().unwrap_or_default();
    CommandLineError::Argument { number, text, why: why.into() }
}
