//! The text of records: JSON with a version. Every version of Nearside can read the lifetime from
//! it, and the claims as long as they are where [`claims`] looks for them.

use super::record::{Lifetime, Parts, Record, Reservation, Subject};
use crate::error::{Error, StateFile};
use nearside_policy::{ByNode, Claim, Limits, PageSize, Purpose};
use nearside_topology::type_words::in_plain_words;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The version of the format of records and the journal. Each version of Nearside accepts only its
/// own.
const VERSION: u64 = 1;

/// The writer's name, which a refusal repeats.
const WRITER: &str = concat!("nearside ", env!("CARGO_PKG_VERSION"));

/// The end of the name of a record's file.
pub(super) const SUFFIX: &str = ".json";

/// The start of the name of a reservation's file, which no domain's file has.
pub(super) const RESERVATION: &str = "reservation+";

/// The name of the journal's file.
pub(super) const JOURNAL: &str = "journal.json";

/// The longest record or journal, in bytes.
pub(super) const MAX_RECORD_BYTES: u64 = nearside_topology::bounded_file::MAX_TEXT_BYTES;

/// The characters of a writer's name that a message repeats.
const MAX_WRITER: usize = 64;

/// A versioned file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordFile {
    version: u64,
    written_by: String,
    lifetime: Lifetime,
    subject: Body,
}

/// The keys that every version has, each of any type.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    version: Option<Value>,
    written_by: Option<Value>,
    lifetime: Value,
    // The lifetime's keys in records without a version.
    boot_id: Value,
    cgroup: Value,
    inode: Value,
}

/// A subject inside another file, with its lifetime.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    lifetime: Lifetime,
    subject: Body,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Body {
    Domain(DomainBody),
    Reservation(ReservationBody),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainBody {
    name: String,
    started_unix_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    found_by: Option<String>,
    command: Vec<String>,
    limits: Limits,
    parts: Parts,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationBody {
    name: String,
    /// Earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    purpose: Option<Purpose>,
    bytes: ByNode,
    #[serde(default, skip_serializing_if = "ByNode::is_empty")]
    vcpus: ByNode,
    page_size: PageSize,
}

/// A record as far as it could be read.
pub(super) struct Parsed {
    /// None if not even the lifetime can be read.
    pub(super) lifetime: Option<Lifetime>,
    pub(super) subject: Result<Subject, Error>,
}

impl From<Subject> for Stored {
    fn from(subject: Subject) -> Self {
        let lifetime = subject.lifetime();
        let subject = match subject {
            Subject::Domain(record) => Body::Domain(DomainBody {
                name: record.name,
                started_unix_s: record.started_unix_s,
                found_by: record.found_by,
                command: record.command,
                limits: record.limits,
                parts: record.parts,
            }),
            Subject::Reservation(reservation) => {
                let Reservation { name, purpose, bytes, vcpus, page_size, .. } = reservation;
                let purpose = Some(purpose);
                Body::Reservation(ReservationBody { name, purpose, bytes, vcpus, page_size })
            }
        };
        Self { lifetime, subject }
    }
}

impl TryFrom<Stored> for Subject {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        match (stored.subject, stored.lifetime) {
            (Body::Domain(body), Lifetime::Cgroup { boot_id, path, inode }) => {
                let DomainBody { name, started_unix_s, found_by, command, limits, parts } = body;
                let cgroup = path;
                let record = Record {
                    name,
                    boot_id,
                    cgroup,
                    inode,
                    started_unix_s,
                    found_by,
                    command,
                    limits,
                    parts,
                };
                record.contradiction().map_or(Ok(Self::Domain(record)), Err)
            }
            (Body::Domain(_), Lifetime::Lease { .. } | Lifetime::Term { .. }) => {
                Err("the lifetime of a domain must be that of its cgroup")
            }
            (Body::Reservation(body), lifetime) => {
                let ReservationBody { name, purpose, bytes, vcpus, page_size } = body;
                let purpose = purpose.unwrap_or_else(|| purpose_of(&name, &lifetime));
                let reservation = Reservation { name, purpose, lifetime, bytes, vcpus, page_size };
                Ok(Self::Reservation(reservation))
            }
        }
    }
}

/// The purpose of a reservation of an earlier version, which its name and lifetime tell.
fn purpose_of(name: &str, lifetime: &Lifetime) -> Purpose {
    match (name.strip_prefix("incoming-"), lifetime) {
        (Some(guest), _) => Purpose::IncomingGuest(guest.into()),
        (None, Lifetime::Lease { .. }) => Purpose::Copies,
        (None, Lifetime::Term { .. } | Lifetime::Cgroup { .. }) => Purpose::StartingGuest,
    }
}

/// The text of a record.
pub(super) fn text(subject: &Subject) -> Result<Vec<u8>, serde_json::Error> {
    let Stored { lifetime, subject } = subject.clone().into();
    versioned(|version, written_by| RecordFile { version, written_by, lifetime, subject })
}

/// The text of a file that starts with the version and the writer.
pub(super) fn versioned<T: Serialize>(
    file: impl FnOnce(u64, String) -> T,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec_pretty(&file(VERSION, WRITER.into()))
}

/// Reads the record in the file at `path`.
pub(super) fn parse(path: &Path, text: &[u8]) -> Parsed {
    // The header is needed for other versions and for reasons only.
    if let Ok(RecordFile { version: VERSION, lifetime, subject, .. }) = serde_json::from_slice(text)
        && let Ok(subject) = (Stored { lifetime: lifetime.clone(), subject }).try_into()
    {
        return Parsed { lifetime: Some(lifetime), subject: Ok(subject) };
    }
    let header: Header = serde_json::from_slice(text).unwrap_or_default();
    let subject = check_version(&header, path).and_then(|()| {
        let broken = |why: String| broken(path, why, &header);
        let RecordFile { lifetime, subject, .. } =
            serde_json::from_slice(text).map_err(|error| broken(worded(&error)))?;
        Stored { lifetime, subject }.try_into().map_err(|why: &str| broken(why.into()))
    });
    Parsed { lifetime: lifetime(header), subject }
}

/// The memory that a record of any version claims or reserves; none if it cannot be read.
///
/// Every version that keeps these keys where they are gives them this meaning, and has no others
/// that claim memory beside them. One that claims memory otherwise moves the keys, so that an
/// earlier version knows that it does not know.
pub(super) fn claims(text: &[u8]) -> Option<Vec<Claim>> {
    #[derive(Deserialize)]
    struct AnyRecord {
        subject: AnySubject,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum AnySubject {
        Domain { parts: Vec<AnyPart> },
        Reservation(AnyClaim),
    }
    #[derive(Deserialize)]
    struct AnyPart {
        // With a function of its own the key must be there.
        #[serde(deserialize_with = "Option::deserialize")]
        claim: Option<AnyClaim>,
    }
    #[derive(Deserialize)]
    struct AnyClaim {
        bytes: ByNode,
        #[serde(default)]
        vcpus: ByNode,
        page_size: PageSize,
    }
    let claim = |AnyClaim { bytes, vcpus, page_size }| Claim { bytes, vcpus, page_size };
    Some(match serde_json::from_slice::<AnyRecord>(text).ok()?.subject {
        // Every domain has a part. The claims of one without are elsewhere.
        AnySubject::Domain { parts } if parts.is_empty() => return None,
        AnySubject::Domain { parts } => {
            parts.into_iter().filter_map(|part| part.claim).map(claim).collect()
        }
        AnySubject::Reservation(it) => vec![claim(it)],
    })
}

/// Reads another versioned file.
pub(super) fn parse_versioned<T: for<'t> Deserialize<'t>>(
    path: &Path,
    text: &[u8],
) -> Result<T, Error> {
    let header: Header = serde_json::from_slice(text).unwrap_or_default();
    check_version(&header, path)?;
    serde_json::from_slice(text).map_err(|error| broken(path, worded(&error), &header))
}

fn worded(error: &serde_json::Error) -> String {
    in_plain_words(&error.to_string(), "an object")
}

fn check_version(header: &Header, path: &Path) -> Result<(), Error> {
    match header.version.as_ref().map(Value::as_u64) {
        // Without a version, the full parse gives the reason.
        None if header.boot_id.is_null() => Ok(()),
        None => Err(broken(path, "it has no version".into(), header)),
        Some(Some(VERSION)) => Ok(()),
        Some(version) => {
            let version = version.map_or("an unknown version".into(), |it| format!("version {it}"));
            Err(broken(path, format!("its format is {version}, expected {VERSION}"), header))
        }
    }
}

fn broken(path: &Path, why: String, header: &Header) -> Error {
    let writer = header.written_by.as_ref().and_then(Value::as_str).map(|writer| {
        let name: String = writer.chars().take(MAX_WRITER).flat_map(char::escape_debug).collect();
        format!(" ({name} wrote it)")
    });
    unreadable(path, why + &writer.unwrap_or_default())
}

/// The error of a file that cannot be read for this reason.
pub(super) fn unreadable(path: &Path, why: String) -> Error {
    let kind = match path.file_name().and_then(|name| name.to_str()) {
        Some(JOURNAL) => StateFile::Journal,
        Some(name) if name.starts_with(RESERVATION) => StateFile::Reservation,
        _ => StateFile::Domain,
    };
    Error::Record { kind, path: path.into(), why }
}

fn lifetime(header: Header) -> Option<Lifetime> {
    if header.version.is_some() {
        return serde_json::from_value(header.lifetime).ok();
    }
    let (boot_id, path) = (header.boot_id.as_str()?.into(), header.cgroup.as_str()?.into());
    Some(Lifetime::Cgroup { boot_id, path, inode: header.inode.as_u64()? })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The text of a record with one key changed, as another version of Nearside may write it.
    pub(in crate::store) fn changed(subject: &Subject, key: &str, to: Value) -> Vec<u8> {
        let mut value: Value = serde_json::from_slice(&text(subject).unwrap()).unwrap();
        value[key] = to;
        value.to_string().into_bytes()
    }

    fn reservation() -> Subject {
        let lifetime = Lifetime::Lease {
            boot_id: "b".into(),
            pid: 7,
            start_time_ticks: 9,
            expires_unix_s: Some(11),
        };
        let bytes = [(nearside_topology::NodeId(3), 4096)].into();
        let (name, purpose, vcpus) = ("text".into(), Purpose::Copies, ByNode::new());
        Reservation { name, purpose, lifetime, bytes, vcpus, page_size: PageSize::Base }.into()
    }

    #[test]
    fn text_of_a_reservation_for_a_term_is_documented_json() {
        let Subject::Reservation(mut reserved) = reservation() else { unreachable!() };
        let (boot_id, made_boottime_s) = ("b".into(), None);
        reserved.lifetime = Lifetime::Term { boot_id, expires_boottime_s: 160, made_boottime_s };
        reserved.vcpus = [(nearside_topology::NodeId(3), 2)].into();
        reserved.name = "incoming-db".into();
        reserved.purpose = Purpose::IncomingGuest("db".into());
        let subject = Subject::from(reserved);
        let expected = serde_json::json!({
            "version": 1,
            "written_by": WRITER,
            "lifetime": { "term": { "boot_id": "b", "expires_boottime_s": 160 } },
            "subject": {
                "reservation": {
                    "name": "incoming-db", "purpose": { "incoming-guest": "db" },
                    "bytes": { "3": 4096 }, "vcpus": { "3": 2 }, "page_size": "base"
                }
            }
        });
        let written = text(&subject).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), expected);
        assert_eq!(parse(Path::new("x"), &written).subject.unwrap(), subject);
    }

    #[test]
    fn the_purpose_of_a_reservation_of_an_earlier_version_is_known() {
        let term = serde_json::json!({ "term": { "boot_id": "b", "expires_boottime_s": 160 } });
        let lease =
            serde_json::json!({ "lease": { "boot_id": "b", "pid": 7, "start_time_ticks": 9 } });
        let guest = Purpose::IncomingGuest("db".into());
        for (name, lifetime, expected) in [
            ("numad-1", &term, Purpose::StartingGuest),
            ("incoming-db", &term, guest),
            ("text", &lease, Purpose::Copies),
        ] {
            let record = serde_json::json!({
                "version": 1, "written_by": "nearside 0.1.0", "lifetime": lifetime,
                "subject": { "reservation": { "name": name, "bytes": {}, "page_size": "base" } }
            });
            let parsed = parse(Path::new("x"), record.to_string().as_bytes()).subject.unwrap();
            let Subject::Reservation(reservation) = parsed else { panic!("{parsed:?}") };
            assert_eq!((&reservation.name[..], reservation.purpose), (name, expected));
        }
    }

    #[test]
    fn text_of_a_reservation_is_documented_json() {
        let expected = serde_json::json!({
            "version": 1,
            "written_by": WRITER,
            "lifetime": {
                "lease": { "boot_id": "b", "pid": 7, "start_time_ticks": 9, "expires_unix_s": 11 }
            },
            "subject": {
                "reservation": {
                    "name": "text", "purpose": "copies", "bytes": { "3": 4096 }, "page_size": "base"
                }
            }
        });
        let written = text(&reservation()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), expected);
        let parsed = parse(Path::new("x"), &written);
        assert_eq!(parsed.subject.unwrap(), reservation());
    }

    #[test]
    fn a_broken_record_is_described_without_words_of_rust() {
        let domain: Value = serde_json::json!({
            "name": "a", "started_unix_s": 1, "command": [], "limits": {}, "parts": [],
        });
        let lifetime =
            serde_json::json!({ "cgroup": { "boot_id": "b", "path": "/a", "inode": 7 } });
        let whole = serde_json::json!({
            "version": 1, "written_by": "x", "lifetime": lifetime,
            "subject": { "domain": domain },
        });
        let mut texts: Vec<String> =
            ["[1]", "[]", "3", "null", "\"x\"", "[1, 2, 3, 4]"].map(str::to_owned).into();
        let places = [
            "/written_by",
            "/lifetime",
            "/lifetime/cgroup",
            "/lifetime/cgroup/inode",
            "/subject",
            "/subject/domain",
            "/subject/domain/name",
            "/subject/domain/started_unix_s",
            "/subject/domain/command",
            "/subject/domain/limits",
            "/subject/domain/parts",
        ];
        for place in places {
            for wrong in ["-1", "1.5", "[1]", "{\"x\": 1}", "true", "\"x\"", "null", "[[]]"] {
                let mut text = whole.clone();
                *text.pointer_mut(place).unwrap() = serde_json::from_str(wrong).unwrap();
                texts.push(text.to_string());
            }
        }
        let rust = ["struct ", "u64", "u32", "i64", "f64", "usize", "enum ", "tuple", "variant"];
        for text in texts {
            let Err(error) = parse(Path::new("x"), text.as_bytes()).subject else { continue };
            let said = error.to_string();
            assert!(!rust.iter().any(|word| said.contains(word)), "{text}: {said}");
        }
    }

    #[test]
    fn lifetime_is_read_from_any_version_and_the_writer_named() {
        let mut later: Value =
            serde_json::from_slice(&changed(&reservation(), "version", 2.into())).unwrap();
        later["written_by"] = "nearside 7.0\u{1b}".into();
        later["subject"] = "unknown".into();
        later["lifetime"]["lease"]["renewed"] = 1.into();
        let parsed = parse(Path::new("x"), later.to_string().as_bytes());
        assert_eq!(parsed.lifetime, Some(reservation().lifetime()));
        let error = parsed.subject.unwrap_err().to_string();
        let expected = "x: cannot read the record: its format is version 2, expected 1 \
                        (nearside 7.0\\u{1b} wrote it). Use";
        assert!(error.starts_with(expected), "{error}");
        let of_no_version = br#"{"boot_id":"b","cgroup":"/a","inode":7,"home":{}}"#;
        let parsed = parse(Path::new("x"), of_no_version);
        let (boot_id, path) = ("b".into(), "/a".into());
        assert_eq!(parsed.lifetime, Some(Lifetime::Cgroup { boot_id, path, inode: 7 }));
        assert!(parsed.subject.unwrap_err().to_string().contains("it has no version"));
        for unknown in ["[]", "{", r#"{"version":1}"#, r#"{"version":2,"lifetime":{"moon":{}}}"#] {
            let parsed = parse(Path::new("x"), unknown.as_bytes());
            assert!(parsed.lifetime.is_none() && parsed.subject.is_err(), "{unknown}");
        }
    }
}
