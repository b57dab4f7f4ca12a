//! What readers of files in TOML share: a file is read up to a bound, and what is wrong in it is told by file, line and key.
//!
//! A format has structures for what may be written, in which a value that has to be checked is a `Spanned<Value>`: its reader says
//! itself what it expected there. [`Reader::written`] fills them, [`Reader::whole`] and [`Reader::number`] take numbers out of values,
//! and [`Reader::error`] is for everything else that a file can have wrong.

use serde::de::DeserializeOwned;
use std::{
    fmt::Display,
    fs::File,
    io::{self, Read},
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
};
use toml::{Spanned, Value};

/// Far more than any of these files needs; keeps a path such as `/dev/zero` from filling memory.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read the {expected} {}: {source}", path.display())]
    Io {
        /// What it should be.
        expected: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is larger than any such file.
    #[error("{} is larger than {} MiB, expected a {expected}", path.display(), MAX_BYTES >> 20)]
    TooLarge {
        /// What it should be.
        expected: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Something in it is wrong.
    #[error("{file}:{line}: {what}")]
    Invalid {
        /// The file, as it was named.
        file: String,
        /// The line, from 1 on.
        line: usize,
        /// The key, what was read and what was expected.
        what: String,
    },
}

/// The text of the file at `path`. Messages say what is `expected` there, "machine file" for example.
///
/// # Errors
///
/// [`Error::Io`] where the file cannot be read or is no UTF-8, [`Error::TooLarge`] above 1 MiB.
pub fn read(path: &Path, expected: &'static str) -> Result<String, Error> {
    let failed = |source| Error::Io { expected, path: path.to_path_buf(), source };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge { expected, path: path.to_path_buf() });
    }
    String::from_utf8(bytes)
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// A file's text, to say where in it something is wrong. Every error that it makes is an [`Error::Invalid`].
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Reader<'a> {
    /// For the `text` of `file`, which is only a name here.
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text }
    }

    /// The text as `T` has it.
    ///
    /// # Errors
    ///
    /// The text is no TOML, or its keys and their types are not those of `T`.
    pub fn written<T: DeserializeOwned>(&self) -> Result<T, Error> {
        toml::from_str(self.text).map_err(|error| self.refused(&error))
    }

    /// The error that says `what`, on one line, of the place `at`.
    pub fn error(&self, at: Range<usize>, what: &str) -> Error {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        // What is wrong may be a text of several lines.
        Error::Invalid {
            file: self.file.to_owned(),
            line,
            what: what.replace(char::is_control, " "),
        }
    }

    /// The whole number that `value`, of `key`, is; messages give the `unit` after the `allowed` ones.
    ///
    /// # Errors
    ///
    /// It is none, or none of those allowed.
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

    /// Like [`Reader::whole`], for a number that need not be whole.
    ///
    /// # Errors
    ///
    /// As there.
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

    /// What TOML itself refused, or what has not the keys that it should have.
    fn refused(&self, error: &toml::de::Error) -> Error {
        let end = self.text.trim_end().len();
        let at = error.span().unwrap_or(end..end);
        let line = self.line_from_its_start(at.start);
        // What no value can be is a number of more than 64 bits.
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
        // A key that the whole file lacks is missed at its beginning, and has nothing to do with the key there.
        let key = key_of(line).filter(|key| at.start > 0 && !message.contains(&format!("`{key}`")));
        let key = key.map_or_else(String::new, |key| format!("{key}: "));
        self.error(at, &format!("{key}{message}"))
    }

    /// The line in which `at` is.
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

/// The table or key of the whole file that this line begins with. Where a sequence is expected there, it is one of tables.
fn table_of(line: &str) -> Option<&str> {
    let name = line.trim_start_matches(['[', ' ', '\t', '"', '\'']);
    name.split(|char| !is_bare(char)).next().filter(|name| !name.is_empty())
}

/// Whether a key needs no quotes for it.
fn is_bare(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '-'
}

/// The number that `value` is, if it is one.
pub(crate) fn number_in(value: &Value) -> Option<f64> {
    match *value {
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
