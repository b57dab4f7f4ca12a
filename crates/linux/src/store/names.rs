//! The names of the files of records, which tell the subject.

use super::{
    format::{RESERVATION, SUFFIX},
    record::Subject,
};
use nearside_policy as policy;

/// The longest name of a record's file: `NAME_MAX` (255 bytes) less the suffix that it has while it
/// is written.
pub(super) const MAX_FILE_NAME: usize = 255 - ".new".len();

/// The file of a subject.
pub(super) fn file(subject: &Subject) -> String {
    match subject {
        Subject::Domain(record) => domain_file(&record.name),
        Subject::Reservation(reservation) => reservation_file(&reservation.name),
    }
}

/// The file of a subject of a transaction.
pub(super) fn file_of(subject: policy::Subject<'_>) -> String {
    match subject {
        policy::Subject::Part(part) => domain_file(part.domain()),
        policy::Subject::Reservation(name) => reservation_file(name),
    }
}

pub(super) fn domain_file(name: &str) -> String {
    escaped(name) + SUFFIX
}

pub(super) fn reservation_file(name: &str) -> String {
    format!("{RESERVATION}{}{SUFFIX}", escaped(name))
}

/// A name as part of a file's name. Bytes other than letters, digits and the like are written as
/// `%` and two digits, so no name leads out of the folder and no two names share a file.
fn escaped(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@\\".contains(&byte);
    let letter = |byte: u8| {
        if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    name.bytes().map(letter).collect()
}

/// The name that was [`escaped`] so; none if it is no such text.
pub(super) fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}
