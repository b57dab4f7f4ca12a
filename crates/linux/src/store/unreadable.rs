//! Records that cannot be read, and the changes that they block
//! (docs/adr/0025-unreadable-records.md).

use super::{
    format::{self, RESERVATION, SUFFIX},
    names::{file_of, unescaped},
    record::{Lifetime, Reservation, Subject},
};
use crate::error::Error;
use nearside_policy::{self as policy, ByNode, Claim, Purpose};
use serde::Serialize;
use std::borrow::Cow;

/// The changes that an unreadable file blocks, the fewest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blocks {
    /// Changes of its own subject. What that claims is known.
    ItsSubject,
    /// Also every claim: what it claims itself is not known.
    EveryClaim,
    /// Every change.
    EveryChange,
}

/// A record that cannot be read, for example one of another version. Its subject may live.
#[derive(Debug)]
pub struct Unreadable {
    /// The reason, with the file.
    pub error: Error,
    /// The file, which names the subject.
    file: String,
    /// None if it cannot be read.
    lifetime: Option<Lifetime>,
    /// The memory that it claims or reserves; none if that cannot be read.
    claimed: Option<Box<Reservation>>,
}

impl Unreadable {
    /// `text` is that of the file, if it could be had.
    pub(super) fn new(
        file: &str,
        error: Error,
        lifetime: Option<Lifetime>,
        text: Option<&[u8]>,
    ) -> Self {
        let claims = text.and_then(format::claims).and_then(sum);
        let claimed = lifetime.clone().zip(claims).map(|(lifetime, claim)| {
            let Claim { bytes, vcpus, page_size } = claim;
            let (name, purpose) = (name(file), Purpose::Unknown);
            Box::new(Reservation { name, purpose, lifetime, bytes, vcpus, page_size })
        });
        Self { error, file: file.into(), lifetime, claimed }
    }

    /// Whether this is the record of that subject. A domain that Nearside started has a name, and
    /// is found, as other groups are, by the path of its cgroup.
    pub(crate) fn is_of(&self, subject: policy::Subject<'_>) -> bool {
        let is_its_cgroup = match subject {
            policy::Subject::Part(part) => self.cgroup().as_deref() == Some(part.domain()),
            policy::Subject::Reservation(_) => false,
        };
        is_its_cgroup || self.file == file_of(subject)
    }

    /// None if it cannot be read.
    pub(crate) fn lifetime(&self) -> Option<&Lifetime> {
        self.lifetime.as_ref()
    }

    /// The path of the domain's cgroup: that of the lifetime; if that cannot be read, the name of a
    /// domain that was found. None if both are unknown, and for a reservation.
    pub(crate) fn cgroup(&self) -> Option<Cow<'_, str>> {
        match &self.lifetime {
            _ if self.is_reservation() => None,
            Some(Lifetime::Cgroup { path, .. }) => Some(path.into()),
            Some(Lifetime::Lease { .. } | Lifetime::Term { .. }) => None,
            None => {
                let name = unescaped(self.file.strip_suffix(SUFFIX)?)?;
                name.starts_with('/').then_some(name.into())
            }
        }
    }

    /// Whether its domain may be in any of the cgroups that Nearside made.
    pub(crate) fn may_be_in_any_own_cgroup(&self) -> bool {
        self.lifetime.is_none() && self.cgroup().is_none() && !self.is_reservation()
    }

    fn is_reservation(&self) -> bool {
        self.file.starts_with(RESERVATION)
    }

    /// The changes that it blocks.
    pub(crate) fn blocks(&self) -> Blocks {
        match self.claimed {
            Some(_) => Blocks::ItsSubject,
            None => Blocks::EveryClaim,
        }
    }

    /// The memory that it claims or reserves, as a reservation of its cgroup's or process's; none
    /// if that cannot be read.
    pub(crate) fn claimed(&self) -> Option<&Reservation> {
        self.claimed.as_deref()
    }

    /// The same as a subject to observe.
    pub(crate) fn observed(&self) -> Option<Subject> {
        self.claimed().cloned().map(Subject::from)
    }
}

/// The name of what an unreadable record claims: a reservation's own; of a domain the file, after
/// which no reservation is named.
fn name(file: &str) -> String {
    let name = file.strip_prefix(RESERVATION).and_then(|name| name.strip_suffix(SUFFIX));
    name.and_then(unescaped).unwrap_or_else(|| file.into())
}

/// All claims as one. None if their pages differ in size: one claim cannot tell that.
fn sum(claims: Vec<Claim>) -> Option<Claim> {
    let add = |all: &mut ByNode, more: ByNode| {
        for (node, amount) in more {
            let sum = all.entry(node).or_default();
            *sum = sum.saturating_add(amount);
        }
    };
    let mut claims = claims.into_iter();
    let Some(first) = claims.next() else { return Some(Claim::default()) };
    claims.try_fold(first, |mut all, Claim { bytes, vcpus, page_size }| {
        add(&mut all.bytes, bytes);
        add(&mut all.vcpus, vcpus);
        (all.page_size == page_size).then_some(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::PageSize;
    use nearside_topology::NodeId;
    use std::path::PathBuf;

    const LIFETIME: &str = r#"{"term": {"boot_id": "b", "expires_boottime_s": 160}}"#;

    /// A record of a later version with this subject, and more keys than today's.
    fn later(file: &str, subject: &str) -> Unreadable {
        let text =
            format!(r#"{{"version": 2, "x": 1, "lifetime": {LIFETIME}, "subject": {subject}}}"#);
        let parsed = format::parse(&PathBuf::from(file), text.as_bytes());
        let error = parsed.subject.unwrap_err();
        Unreadable::new(file, error, parsed.lifetime, Some(text.as_bytes()))
    }

    /// The bytes by node that a later version's record of a domain claims, if that is known.
    fn bytes(subject: &str) -> Option<Vec<(u32, u64)>> {
        let record = later("a.json", subject);
        let claimed = record.claimed()?;
        assert_eq!((&*claimed.name, &claimed.purpose), ("a.json", &Purpose::Unknown));
        Some(claimed.bytes.iter().map(|(node, bytes)| (node.0, *bytes)).collect())
    }

    #[test]
    fn claims_of_a_later_version_are_known_where_they_are_today() {
        let claim = |bytes: &str, pages: &str| {
            format!(r#"{{"bytes": {bytes}, "vcpus": {{"0": 2}}, "page_size": {pages}, "y": 2}}"#)
        };
        let part = |claim: &str| format!(r#"{{"home": "somewhere", "claim": {claim}}}"#);
        let domain = |parts: &[String]| {
            format!(r#"{{"domain": {{"name": "a", "z": 3, "parts": [{}]}}}}"#, parts.join(","))
        };
        let (base, huge) = (r#""base""#, r#"{"huge": 2097152}"#);
        let small = || part(&claim(r#"{"0": 1, "3": 5}"#, base));
        assert_eq!(bytes(&domain(&[small()])), Some(vec![(0, 1), (3, 5)]));
        assert_eq!(bytes(&domain(&[small(), small()])), Some(vec![(0, 2), (3, 10)]));
        assert_eq!(bytes(&domain(&[part("null"), small()])), Some(vec![(0, 1), (3, 5)]));
        let most = part(&claim(&format!(r#"{{"0": {}}}"#, u64::MAX), base));
        assert_eq!(bytes(&domain(&[most, small()])), Some(vec![(0, u64::MAX), (3, 5)]));
        assert_eq!(bytes(&domain(&[part("null")])), Some(vec![]), "a found domain claims nothing");
        let pages = part(&claim(r#"{"1": 4}"#, huge));
        assert_eq!(bytes(&domain(std::slice::from_ref(&pages))), Some(vec![(1, 4)]));
        assert_eq!(bytes(&domain(&[pages, small()])), None, "two sizes of pages");
        for unknown in [
            domain(&[r#"{"home": 1}"#.into()]),
            domain(&[part(r#"{"bytes": {"0": 1}}"#)]),
            domain(&[part(&claim(r#"{"0": -1}"#, base))]),
            domain(&[part(&claim(r#"{"0": 1}"#, r#""tiny""#))]),
            domain(&[]),
            r#"{"domain": {"name": "a"}}"#.into(),
            r#"{"pod": {"bytes": {}, "page_size": "base"}}"#.into(),
            "7".into(),
        ] {
            assert_eq!(bytes(&unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_record_is_of_the_subject_that_its_file_names() {
        let memory = r#"{"bytes": {"3": 4096}, "page_size": "base", "note": "x"}"#;
        let record = later("reservation+in%2Fb.json", &format!(r#"{{"reservation": {memory}}}"#));
        let claimed = record.claimed().unwrap();
        assert_eq!((&*claimed.name, claimed.page_size), ("in/b", PageSize::Base));
        assert_eq!(claimed.bytes, [(NodeId(3), 4096)].into());
        assert!(claimed.unowned().is_none(), "nobody can adopt it");
        assert!(record.is_of(policy::Subject::Reservation("in/b")));
        assert!(!record.is_of(policy::Subject::Reservation("b")));
        assert!(!record.is_of(policy::Subject::Part(&"in/b".into())));
        let record = later("%2Fa.json", "7");
        assert!(record.is_of(policy::Subject::Part(&"/a".into())) && record.claimed().is_none());
        for odd in ["reservation+%2.json", "reservation+%zz.json", "reservation+%FF.json"] {
            assert_eq!(name(odd), odd);
        }
    }

    #[test]
    fn nothing_is_known_without_the_text_or_the_lifetime() {
        let text = br#"{"version": 2, "subject": {"domain": {"parts": [{"claim": null}]}}}"#;
        let error = || Error::Refused("x".into());
        let lifetime: Lifetime = serde_json::from_str(LIFETIME).unwrap();
        let known = |lifetime, text| Unreadable::new("a.json", error(), lifetime, text);
        assert!(known(Some(lifetime.clone()), Some(&text[..])).claimed().is_some());
        assert!(known(Some(lifetime), None).claimed().is_none());
        assert!(known(None, Some(&text[..])).claimed().is_none());
    }
}
