//! Outcomes of changes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The progress of a page move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes done: moved, found in place or found immovable.
    pub done_bytes: u64,
    /// All bytes, as far as they are known.
    pub total_bytes: u64,
}

/// The outcome of a transaction or a page move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// All of it was done.
    Applied {
        /// Bytes of memory that moved.
        moved_bytes: u64,
    },
    /// Some of it was done.
    Partly {
        /// Bytes of memory that moved.
        moved_bytes: u64,
        /// The bytes that stayed, by reason.
        stayed: Stayed,
        /// The move was interrupted; the same call resumes it.
        interrupted: bool,
    },
    /// Nothing was done.
    Refused {
        /// The reason.
        why: String,
    },
}

/// Bytes that did not move, by reason.
pub type Stayed = BTreeMap<StayedWhy, u64>;

/// The reason why a page stayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StayedWhy {
    /// The kernel was using it (`EBUSY`).
    Busy,
    /// Other processes map it too, and moving their pages was not allowed (`EACCES`).
    MappedElsewhere,
    /// No free page on the target (`ENOMEM`).
    NoRoom,
    /// No free huge page in the target's pool (`ENOMEM` on a huge page).
    NoHugePage,
    /// Busy, and its process lets a device address its memory (VFIO).
    Device,
    /// Charged to the domain and mapped by none of its processes: files of tmpfs, unattached shared
    /// memory.
    NotMapped,
    /// Another error of the kernel.
    Other,
}

impl StayedWhy {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::MappedElsewhere => "mapped elsewhere",
            Self::NoRoom => "no room on the target",
            Self::NoHugePage => "no free huge page on the target",
            Self::Device => "held by a device (VFIO)",
            Self::NotMapped => "not mapped by its processes (tmpfs files, detached shared memory)",
            Self::Other => "the kernel refused",
        }
    }
}
