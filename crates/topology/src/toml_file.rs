//! The part that readers of TOML files share: a bound on a file's size, and errors with file, line
//! and key.
//!
//! A format has structures for its keys, in which a value that has to be checked is a
//! `Spanned<Value>`, so that the format's reader can word its own expectation. [`Reader::written`]
//! fills them, [`Reader::whole`] and [`Reader::number`] take numbers out of values, and
//! [`Reader::error`] is for all other faults of a file.

use crate::{bounded_file, type_words::in_plain_words};
use serde::de::DeserializeOwned;
use std::{
    fmt::Display,
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
};
use toml::{Spanned, Value};

/// Reasons for which a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, is not a regular file of UTF-8, or is too large.
    #[error("cannot read the {expected} {}: {source}", path.display())]
    Read {
        /// The kind of file, "machine file" for example.
        expected: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: bounded_file::Error,
    },
    /// A line of the file is wrong.
    #[error("{file}:{line}: {what}")]
    Invalid {
        /// The file, as it was named.
        file: String,
        /// The line, from 1 on.
        line: usize,
        /// The key, the value that was read and the one expected.
        what: String,
    },
}

/// The text of the file at `path`: a regular file of at most [`bounded_file::MAX_TEXT_BYTES`].
/// Messages name the kind of file that is `expected` there, "machine file" for example.
///
/// # Errors
///
/// [`Error::Read`].
pub fn read(path: &Path, expected: &'static str) -> Result<String, Error> {
    bounded_file::read_text(path, bounded_file::MAX_TEXT_BYTES).map_err(|source| Error::Read {
        expected,
        path: path.to_path_buf(),
        source,
    })
}

/// A file's text, for errors with their line in it. Every error that it makes is an
/// [`Error::Invalid`].
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Reader<'a> {
    /// A reader of `text`; `file` is its name in messages.
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text }
    }

    /// The text as a `T`.
    ///
    /// # Errors
    ///
    /// The text is no TOML, or its keys and their types are not those of `T`.
    pub fn written<T: DeserializeOwned>(&self) -> Result<T, Error> {
        toml::from_str(self.text).map_err(|error| self.refused(&error))
    }

    /// An error with the text `what`, on one line, about the place `at`.
    pub fn error(&self, at: Range<usize>, what: &str) -> Error {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        // A value in the text may have several lines.
        Error::Invalid {
            file: self.file.to_owned(),
            line,
            what: what.replace(char::is_control, " "),
        }
    }

    /// The whole number in `value`, which `key` has; messages give the `unit` after the `allowed`
    /// range.
    ///
    /// # Errors
    ///
    /// The value is no whole number, or not in the range.
    pub fn whole(
        &self,
        key: &str,
        value: &Spanned<Value>,
        allowed: RangeInclusive<u64>,
        unit: &str,
    ) -> Result<u64, Error> {
        let found = value.get_ref().as_integer().and_then(|number| u64::try_from(number).ok());
        self.allowed(found, key, value, "a whole number", allowed, unit)
    }

    /// As [`Reader::whole`], for a number that need not be whole.
    ///
    /// # Errors
    ///
    /// The value is no number, or not in the range.
    pub fn number(
        &self,
        key: &str,
        value: &Spanned<Value>,
        allowed: RangeInclusive<f64>,
        unit: &str,
    ) -> Result<f64, Error> {
        self.allowed(number_in(value.get_ref()), key, value, "a number", allowed, unit)
    }

    fn allowed<T: PartialOrd + Display>(
        &self,
        found: Option<T>,
        key: &str,
        value: &Spanned<Value>,
        expected: &str,
        allowed: RangeInclusive<T>,
        unit: &str,
    ) -> Result<T, Error> {
        found.filter(|number| allowed.contains(number)).ok_or_else(|| {
            let (least, most) = (allowed.start(), allowed.end());
            let what = format!(
                "{key}: {expected} from {least} to {most} {unit} is expected, not {}",
                value.get_ref()
            );
            self.error(value.span(), &what)
        })
    }

    /// The error of text that is no TOML, or has other keys or types than expected.
    fn refused(&self, error: &toml::de::Error) -> Error {
        let end = self.text.trim_end().len();
        let at = error.span().unwrap_or(end..end);
        let line = self.line_from_its_start(at.start);
        // The parser words it like this for numbers of more than 64 bits.
        let message = error
            .message()
            .replace('\n', ", ")
            .replace("any valid TOML value", "a number of 64 bits at most");
        let message = match table_of(line) {
            Some(table) => {
                message.replace("expected a sequence", &format!("expected tables [[{table}]]"))
            }
            None => message,
        };
        let message = in_plain_words(&message, "a table");
        // A key that the whole file lacks is reported at its beginning, and is not the key on that
        // line.
        let key = key_of(line).filter(|key| at.start > 0 && !message.contains(&format!("`{key}`")));
        let key = key.map_or_else(String::new, |key| format!("{key}: "));
        self.error(at, &format!("{key}{message}"))
    }

    /// The line around `at`.
    fn line_from_its_start(&self, at: usize) -> &'a str {
        let before = self.text.get(..at).unwrap_or(self.text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        self.text[start..].lines().next().unwrap_or_default()
    }
}

/// The key on this line, if it has one.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split_once('=')?.0.trim();
    Some(key).filter(|key| !key.is_empty() && key.chars().all(is_bare))
}

/// The table or key that this line begins with. Where a sequence is expected there, it is one of
/// tables.
fn table_of(line: &str) -> Option<&str> {
    let name = line.trim_start_matches(['[', ' ', '\t', '"', '\'']);
    name.split(|char| !is_bare(char)).next().filter(|name| !name.is_empty())
}

/// Whether a key with this character needs no quotes.
fn is_bare(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '-'
}

/// The number in `value`, if it has one.
pub(crate) fn number_in(value: &Value) -> Option<f64> {
    match *value {
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
