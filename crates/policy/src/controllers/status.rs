//! The status of a part: its place, and the reasons why it is left as it is.

use super::observation::Owner;
use crate::{Bytes, MilliVcpus, Payback, SlowDown, StayedWhy};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The status of a part after an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Status {
    /// The place it runs at.
    pub place: Place,
    /// Its memory off its home, in bytes, without what is less than a page on its node and cannot
    /// move.
    pub debt_bytes: u64,
    /// The reason why its home is not changed.
    pub home_blocker: Option<HomeBlocker>,
    /// The reason why its debt is not moved.
    pub debt_blocker: Option<DebtBlocker>,
}

/// The place a part runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// It has no home.
    #[default]
    NoHome,
    /// It demands next to no CPU time.
    Idle,
    /// It runs at home.
    AtHome,
    /// It runs elsewhere, or waits, because its home's CPUs are contended.
    Contended {
        /// The count of contended intervals; an interval without contention takes two off it.
        intervals: u64,
        /// The share of its CPU time spent off its home, in millionths.
        off_home_ppm: u64,
    },
}

/// The reason why a home is not changed, or not given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum HomeBlocker {
    /// An operator chose it.
    Explicit,
    /// Another program binds it to some nodes.
    Bound,
    /// The owner of its cgroup would undo the change.
    OwnerForbids {
        /// The owner.
        owner: Owner,
    },
    /// Another program has set its CPUs, which Nearside does not replace.
    HasCpuset,
    /// Its guest has several cells, which one binding would put on the same CPUs.
    HasCells,
    /// Contention has not lasted as long as the threshold yet.
    BelowThreshold,
    /// It moved recently.
    Cooldown {
        /// The interval of that move.
        at: u64,
        /// The load on the home when it was chosen.
        load_then: MilliVcpus,
        /// The load on it now.
        load_now: MilliVcpus,
    },
    /// A step towards its first home was refused, and would be again.
    Refused {
        /// The interval of the next attempt.
        retry_at: u64,
    },
    /// A better home needs further confirmation, because measurements vary.
    Unconfirmed {
        /// How many times in a row a better home was found.
        found: u64,
        /// How many times it must be found.
        needed: u64,
        /// Cost and savings.
        payback: Payback,
    },
    /// No other home is faster by enough.
    NoneBetter {
        /// The predicted slow-down at home.
        here: SlowDown,
        /// The least one elsewhere.
        best: SlowDown,
    },
    /// Moving costs more than it saves within the horizon.
    DoesNotPay {
        /// Cost and savings.
        payback: Payback,
        /// The horizon in ms, or the age of the part if that is less.
        #[serde(default)]
        within_ms: u64,
    },
    /// No set of nodes has enough memory available.
    NoRoom,
    /// Others come first in this interval.
    Queued,
}

/// The reason why debt is not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum DebtBlocker {
    /// The pages are nearer to the part's CPUs than home is.
    RunsThere,
    /// No room at home.
    NoRoom,
    /// The budget between the nodes is spent, or reduced because a node is short of memory.
    NoBudget,
    /// A process moves it (`nearside set --move-memory`), at a rate of its own.
    HasMover {
        /// The process.
        pid: u32,
    },
    /// Another program seems to bind it elsewhere since recently.
    BoundElsewhere,
    /// It has no memory policy, so the kernel's NUMA balancing moves its pages to where it runs.
    Balancing,
    /// Another program confines its memory to other nodes.
    NotAllowed,
    /// It would not move.
    Stuck {
        /// The reason for most of it.
        why: StayedWhy,
        /// Bytes.
        bytes: u64,
        /// The interval of the next attempt.
        retry_at: u64,
    },
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::NoHome => write!(f, "no home")?,
            Place::Idle => write!(f, "idle")?,
            Place::AtHome => write!(f, "at home")?,
            Place::Contended { intervals, off_home_ppm } => {
                let s = if intervals == 1 { "" } else { "s" };
                write!(
                    f,
                    "contended at home for {intervals} interval{s} ({} % of CPU time elsewhere)",
                    off_home_ppm / 10_000
                )?
            }
        }
        self.home_blocker.as_ref().map_or(Ok(()), |blocker| write!(f, "; {blocker}"))?;
        match self.debt_bytes {
            0 => Ok(()),
            bytes => write!(f, "; {} off home", Bytes(bytes)),
        }?;
        self.debt_blocker.map_or(Ok(()), |blocker| write!(f, ": {blocker}"))
    }
}

impl fmt::Display for HomeBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Explicit => write!(f, "an operator chose the home"),
            Self::Bound => write!(f, "another program binds it to its nodes"),
            Self::OwnerForbids { owner: Owner::SystemdUnit } => {
                write!(
                    f,
                    "not bound to CPUs: systemd would keep the setting when the unit restarts"
                )
            }
            Self::HasCpuset => write!(f, "not bound to CPUs: another program has set its cpuset"),
            Self::HasCells => {
                write!(f, "its guest has several cells, and their nodes are unknown")
            }
            Self::OwnerForbids { owner } => {
                write!(f, "{owner} owns the cgroup and would undo a change")
            }
            Self::BelowThreshold => write!(f, "below the contention threshold"),
            Self::Cooldown { load_then, load_now, .. } => {
                write!(
                    f,
                    "moved recently; load of the home: {load_then} vCPUs then, {load_now} now"
                )
            }
            Self::Refused { .. } => {
                write!(f, "its first home was refused, and is tried again later")
            }
            Self::NoneBetter { here, best } => {
                write!(f, "no better home: predicted slow-down {here}, at best {best} elsewhere")
            }
            Self::Unconfirmed { found, needed, payback } => {
                write!(f, "a better home was found {found} of {needed} times in a row: {payback}")
            }
            Self::DoesNotPay { payback, within_ms } => {
                write!(f, "moving does not pay within {} s: {payback}", *within_ms as f64 / 1000.0)
            }
            Self::NoRoom => write!(f, "no other nodes have room"),
            Self::Queued => write!(f, "others come first"),
        }
    }
}

impl fmt::Display for DebtBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunsThere => write!(f, "nearer to where it runs than home is"),
            Self::NoRoom => write!(f, "no room at home"),
            Self::NoBudget => write!(f, "waits for its share of the budget"),
            Self::HasMover { pid } => write!(f, "`nearside set` moves it (process {pid})"),
            Self::BoundElsewhere => write!(f, "another program seems to bind it elsewhere"),
            Self::Balancing => {
                write!(f, "left to the kernel's NUMA balancing: it has no memory policy")
            }
            Self::NotAllowed => write!(f, "it may have no memory at home"),
            Self::Stuck { why, bytes, .. } => {
                write!(f, "{} stayed ({}), tried again later", Bytes(*bytes), why.words())
            }
        }
    }
}
