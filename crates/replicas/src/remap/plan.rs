//! The change of each segment, decided from the mappings of the stopped process.

use super::{
    maps::{Properties, Segment},
    pagemap::Parts,
    refusal::Operation,
};
use std::{fmt, ops::Range};

/// Addresses that get a new mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// The addresses.
    pub addresses: Range<u64>,
    /// The place in the file of the first byte.
    pub offset_bytes: u64,
    /// The segment that they are all or part of.
    pub segment: Segment,
    /// Its properties, which the new mapping keeps.
    pub properties: Properties,
}

/// A segment, or a part of one, that maps what it mapped before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The segment.
    pub segment: Segment,
    /// The bytes of it that stay.
    pub bytes: u64,
    /// The reason.
    pub why: Keep,
}

/// Why a segment stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The process has written to these pages, so they are its own.
    PrivatePages,
    /// It can be written, so its next page may differ from the file.
    Writable,
    /// It is a shared mapping, which shows the writes of others.
    Shared,
    /// Nothing may be read from it.
    NoAccess,
    /// A property forbids a new mapping; the text says which.
    Unchangeable(&'static str),
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PrivatePages => "the process has written to its pages",
            Self::Writable => "it is writable",
            Self::Shared => "it is shared",
            Self::NoAccess => "it allows no access",
            Self::Unchangeable(why) => why,
        })
    }
}

/// The reason to leave a segment alone that is clear without a look at its pages.
pub(crate) fn keep(
    segment: &Segment,
    properties: &Properties,
    operation: Operation,
) -> Option<Keep> {
    if let Some(why) = properties.unchangeable {
        return Some(Keep::Unchangeable(why));
    }
    if operation == Operation::Detach {
        // The replica is mounted read-only, so only a mapping of another mount could be both.
        return (segment.shared && segment.protection.write).then_some(Keep::Shared);
    }
    match segment.protection {
        _ if segment.shared => Some(Keep::Shared),
        protection if protection.write => Some(Keep::Writable),
        protection if !protection.read => Some(Keep::NoAccess),
        _ => None,
    }
}

/// The changes of a segment whose pages are known, and the part of it that stays.
pub(crate) fn changes(
    segment: &Segment,
    properties: &Properties,
    parts: &Parts,
    operation: Operation,
) -> (Vec<Change>, Option<Kept>) {
    let private_bytes = parts.private_bytes();
    let kept = |bytes| Kept { segment: segment.clone(), bytes, why: Keep::PrivatePages };
    if private_bytes > 0 && operation == Operation::Attach {
        return (Vec::new(), Some(kept(segment.bytes())));
    }
    let change = |addresses: &Range<u64>| Change {
        addresses: addresses.clone(),
        offset_bytes: segment.offset_bytes + (addresses.start - segment.addresses.start),
        segment: segment.clone(),
        properties: *properties,
    };
    let changes = parts.of_file.iter().map(change).collect();
    (changes, (private_bytes > 0).then(|| kept(private_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remap::{maps::maps, pagemap::parts};

    const FILE_PAGE: u64 = 1 << 63 | 1 << 61;
    const PRIVATE_PAGE: u64 = 1 << 63;

    fn segment(protection: &str) -> Segment {
        let line = format!("10000-13000 {protection} 00002000 fe:01 7 /usr/lib/x.so");
        maps(line.as_bytes()).remove(0)
    }

    #[test]
    fn attach_takes_text_and_read_only_data_and_detach_everything() {
        let plain = Properties::default();
        let sealed = Properties { unchangeable: Some("sealed"), ..plain };
        let table = [
            ("r-xp", plain, None, None),
            ("r--p", plain, None, None),
            ("rw-p", plain, Some(Keep::Writable), None),
            ("rwxp", plain, Some(Keep::Writable), None),
            ("---p", plain, Some(Keep::NoAccess), None),
            ("--xp", plain, Some(Keep::NoAccess), None),
            ("r--s", plain, Some(Keep::Shared), None),
            ("rw-s", plain, Some(Keep::Shared), Some(Keep::Shared)),
            (
                "r-xp",
                sealed,
                Some(Keep::Unchangeable("sealed")),
                Some(Keep::Unchangeable("sealed")),
            ),
        ];
        for (protection, properties, attach, detach) in table {
            let segment = segment(protection);
            let at = |operation| keep(&segment, &properties, operation);
            assert_eq!(at(Operation::Attach), attach, "{protection}");
            assert_eq!(at(Operation::Detach), detach, "{protection}");
        }
    }

    #[test]
    fn one_private_page_keeps_a_segment_at_attach_and_itself_at_detach() {
        let (segment, plain) = (segment("r-xp"), Properties::default());
        let parts = parts(0x10000, &[FILE_PAGE, PRIVATE_PAGE, 0]);
        let (none, kept) = changes(&segment, &plain, &parts, Operation::Attach);
        assert_eq!((none, kept.unwrap().bytes), (Vec::new(), 0x3000));
        let (some, kept) = changes(&segment, &plain, &parts, Operation::Detach);
        let places: Vec<_> =
            some.iter().map(|change| (change.addresses.clone(), change.offset_bytes)).collect();
        assert_eq!(places, [(0x10000..0x11000, 0x2000), (0x12000..0x13000, 0x4000)]);
        assert_eq!((kept.unwrap().bytes, some.len()), (0x1000, 2));
    }

    #[test]
    fn a_segment_without_private_pages_changes_as_a_whole() {
        let (segment, plain) = (segment("r-xp"), Properties::default());
        let parts = parts(0x10000, &[FILE_PAGE, 0, FILE_PAGE]);
        for operation in [Operation::Attach, Operation::Detach] {
            let (changes, kept) = changes(&segment, &plain, &parts, operation);
            assert_eq!(changes.len(), 1);
            assert_eq!(changes[0].addresses, segment.addresses);
            assert_eq!(kept, None);
        }
    }
}
