//! The subjects of changes: the parts of domains, and memory that is promised to something else.

use crate::PartId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The subject of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject<'a> {
    /// A part of a domain.
    Part(&'a PartId),
    /// A reservation, by its name.
    Reservation(&'a str),
}

/// The purpose of reserved memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// A virtual machine that is about to start. Its manager has asked for its nodes, and has not
    /// told its name.
    #[default]
    StartingGuest,
    /// The virtual machine of this name, which migrates to this host.
    IncomingGuest(String),
    /// Copies of files' text, while they are made.
    Copies,
    /// The claim in an unreadable record, for the subject of that record.
    Unknown,
}

/// The end of a reservation that nothing else ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// So many seconds after it was made; with the domain that adopts it before that.
    Seconds(u64),
    /// The end of the process that makes it.
    ProcessEnds,
}

impl<'a> Subject<'a> {
    /// The part; none if it is a reservation.
    pub fn part(self) -> Option<&'a PartId> {
        match self {
            Self::Part(part) => Some(part),
            Self::Reservation(_) => None,
        }
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(part) => part.fmt(f),
            Self::Reservation(name) => write!(f, "reservation {name}"),
        }
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seconds(seconds) => write!(f, "for {seconds} s"),
            Self::ProcessEnds => write!(f, "until this process ends"),
        }
    }
}
