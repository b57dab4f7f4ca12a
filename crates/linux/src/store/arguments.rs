//! The arguments of a domain's command. They may have secrets in them, so they lie beside the
//! record in a file for its owner and root alone, and the record has only the program's name.

use super::{
    format::{self, MAX_RECORD_BYTES, SUFFIX},
    record::{Lifetime, Record, Subject},
};
use crate::folder::Folder;
use serde::{Deserialize, Serialize};

/// The end of the name of a file of arguments, as long as that of a record.
const ARGUMENTS: &str = ".args";

/// A file of arguments.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArgumentsFile {
    version: u64,
    written_by: String,
    /// That of the record to which the arguments belong.
    lifetime: Lifetime,
    arguments: Vec<String>,
}

/// The file of the arguments beside the file of a record.
pub(super) fn file(record: &str) -> String {
    record.strip_suffix(SUFFIX).unwrap_or(record).to_owned() + ARGUMENTS
}

/// Whether this is the name of a file of arguments.
pub(super) fn is_file(name: &str) -> bool {
    name.ends_with(ARGUMENTS)
}

/// Whether a subject has arguments.
pub(super) fn are_in(subject: &Subject) -> bool {
    matches!(subject, Subject::Domain(record) if record.command.len() > 1)
}

/// The text of the file; none for a subject without arguments.
pub(super) fn text(subject: &Subject) -> Result<Option<Vec<u8>>, serde_json::Error> {
    let Subject::Domain(Record { command, .. }) = subject else { return Ok(None) };
    let Some((_, arguments @ [_, ..])) = command.split_first() else { return Ok(None) };
    let (lifetime, arguments) = (subject.lifetime(), arguments.to_vec());
    format::versioned(|version, written_by| ArgumentsFile {
        version,
        written_by,
        lifetime,
        arguments,
    })
    .map(Some)
}

/// The subject of the record in `file` as this process's user may see it: with all arguments, or
/// with the program's name alone.
pub(super) fn seen(subject: Subject, domains: &Folder, file: &str) -> Subject {
    if !domains.is_own() {
        return subject.for_all();
    }
    let lifetime = subject.lifetime();
    match subject {
        Subject::Domain(mut record) if record.command.len() == 1 => {
            record.command.extend(read(domains, &self::file(file), &lifetime).unwrap_or_default());
            Subject::Domain(record)
        }
        other => other,
    }
}

/// Whether a file has the arguments of another record, such as an earlier one of the same name. The
/// command of a record never changes: a file that cannot be read now may be its own.
pub(super) fn are_of_another(domains: &Folder, file: &str, lifetime: &Lifetime) -> bool {
    let Ok(Some(text)) = domains.read_within(file, MAX_RECORD_BYTES) else { return false };
    let read = format::parse_versioned::<ArgumentsFile>(&domains.path().join(file), &text);
    read.is_ok_and(|read| read.lifetime != *lifetime)
}

/// The arguments in a file. None if there is none, or if it belongs to another record: they are
/// only shown, so nothing else depends on them.
fn read(domains: &Folder, file: &str, lifetime: &Lifetime) -> Option<Vec<String>> {
    let text = domains.read_within(file, MAX_RECORD_BYTES).ok()??;
    let read: ArgumentsFile = format::parse_versioned(&domains.path().join(file), &text).ok()?;
    (read.lifetime == *lifetime).then_some(read.arguments)
}
