//! How a domain stands, for people.

use super::Owner;
use crate::{Bytes, MilliVcpus, SlowDown, StayedWhy};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a domain stands after an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Standing {
    /// Where it is.
    pub place: Place,
    /// How much of its memory lies off its home, in bytes. What is less than a page on its node is not counted: nothing could
    /// move it.
    pub debt_bytes: u64,
    /// Why nothing more is done about its home.
    pub home_waits: Option<HomeWaits>,
    /// Why nothing more is done about its debt.
    pub debt_waits: Option<DebtWaits>,
}

/// Where a domain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// It has no home.
    #[default]
    NoHome,
    /// It does next to nothing.
    Idle,
    /// It runs at home.
    AtHome,
    /// It runs elsewhere, or waits, for want of room at home.
    PushedOff {
        /// For how many intervals, those without trouble counted back.
        intervals: u64,
        /// The part of its time that it runs elsewhere, in millionths.
        off_home_ppm: u64,
    },
}

/// Why a home is not changed, or not given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum HomeWaits {
    /// An operator chose it.
    Explicit,
    /// Somebody else keeps it on some nodes.
    Kept,
    /// Its owner would undo what is needed.
    OwnerKeeps {
        /// Who.
        owner: Owner,
    },
    /// Somebody else has set the CPUs it may run on, which are not replaced.
    HasCpuset,
    /// The trouble may be over soon.
    MayPass,
    /// It moved not long ago.
    MovedLately {
        /// In which interval.
        at: u64,
        /// The load that its home was chosen for.
        load_then: MilliVcpus,
        /// The load on it now.
        load_now: MilliVcpus,
    },
    /// A better home was found, and what is measured varies.
    MayVary {
        /// How often in a row it was found.
        found: u64,
        /// How often it has to be.
        needed: u64,
        /// In figures.
        payback: Payback,
    },
    /// No other home is faster by enough.
    NoneBetter {
        /// The predicted slow-down at home.
        here: SlowDown,
        /// The least one elsewhere.
        best: SlowDown,
    },
    /// Moving costs more than it saves for as long as is looked ahead.
    DoesNotPay {
        /// In figures.
        payback: Payback,
        /// How long that is: the horizon, or as long as the domain has lived.
        #[serde(default)]
        within_ms: u64,
    },
    /// No set of nodes can be promised to it.
    NoRoom,
    /// Others are more urgent in this interval.
    InTurn,
}

/// Why debt stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum DebtWaits {
    /// It is nearer to where the domain runs than its home is.
    RunsThere,
    /// No room at home.
    NoRoom,
    /// The budget between the nodes is spent, or held back because a node is short of memory.
    NoBudget,
    /// Somebody else seems to keep the domain elsewhere since lately.
    KeptElsewhere,
    /// It has no memory policy, so the kernel's NUMA balancing moves its pages to where it runs.
    Balancing,
    /// The domain may not have memory at home: somebody else confines it.
    NotAllowed,
    /// It would not move.
    Stuck {
        /// Why, for most of it.
        why: StayedWhy,
        /// How much, in bytes.
        bytes: u64,
        /// The interval in which it is tried again.
        retry_at: u64,
    },
}

/// What a change of home costs and saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payback {
    /// What wants to run.
    pub demand: MilliVcpus,
    /// The predicted slow-down at the present home.
    pub here: SlowDown,
    /// The predicted slow-down at the other.
    pub there: SlowDown,
    /// CPU time saved, in ns a second.
    pub saves_ns_per_s: u64,
    /// What has to move beyond what would have to come home anyway, in bytes.
    pub bytes_to_move: u64,
    /// What that costs, in ns of CPU time.
    pub costs_ns: u64,
}

impl Payback {
    /// After how many seconds it has saved what it cost; never if it saves nothing.
    pub fn seconds(&self) -> Option<u64> {
        match self.costs_ns {
            0 => Some(0),
            costs_ns => Some(costs_ns.div_ceil(Some(self.saves_ns_per_s).filter(|&ns| ns > 0)?)),
        }
    }
}

impl fmt::Display for Payback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { demand, here, there, saves_ns_per_s, bytes_to_move, costs_ns } = self;
        write!(
            f,
            "{demand} vCPUs, predicted slow-down {there} instead of {here}: saves {} ms of CPU time a second; {} to \
             move cost {} ms",
            saves_ns_per_s / 1_000_000,
            Bytes(*bytes_to_move),
            costs_ns / 1_000_000
        )?;
        self.seconds().map_or(Ok(()), |seconds| write!(f, ", paid back in {seconds} s"))
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::NoHome => write!(f, "no home")?,
            Place::Idle => write!(f, "idle")?,
            Place::AtHome => write!(f, "at home")?,
            Place::PushedOff { intervals, off_home_ppm } => {
                let s = if intervals == 1 { "" } else { "s" };
                write!(
                    f,
                    "short of room at home for {intervals} interval{s} ({} % elsewhere)",
                    off_home_ppm / 10_000
                )?
            }
        }
        self.home_waits.as_ref().map_or(Ok(()), |waits| write!(f, "; {waits}"))?;
        match self.debt_bytes {
            0 => Ok(()),
            bytes => write!(f, "; {} off home", Bytes(bytes)),
        }?;
        self.debt_waits.map_or(Ok(()), |waits| write!(f, ": {waits}"))
    }
}

impl fmt::Display for HomeWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Explicit => write!(f, "an operator chose the home"),
            Self::Kept => write!(f, "somebody else keeps it on its nodes"),
            Self::OwnerKeeps { owner: Owner::SystemdUnit } => {
                write!(
                    f,
                    "not bound to CPUs, for systemd would keep that when it starts the unit anew"
                )
            }
            Self::HasCpuset => write!(f, "not bound to CPUs, for somebody else has set its cpuset"),
            Self::OwnerKeeps { owner } => {
                write!(f, "{owner} owns the cgroup and would undo a change")
            }
            Self::MayPass => write!(f, "it may be over soon"),
            // In which interval tells nobody much who does not know the present one.
            Self::MovedLately { load_then, load_now, .. } => {
                write!(f, "moved lately to {load_then} vCPUs of load, which are {load_now} now")
            }
            Self::NoneBetter { here, best } => {
                write!(f, "no better home: predicted slow-down {here}, at best {best} elsewhere")
            }
            Self::MayVary { found, needed, payback } => {
                write!(f, "a better home was found {found} of {needed} times in a row: {payback}")
            }
            Self::DoesNotPay { payback, within_ms } => {
                write!(f, "moving does not pay within {} s: {payback}", *within_ms as f64 / 1000.0)
            }
            Self::NoRoom => write!(f, "no other nodes have room"),
            Self::InTurn => write!(f, "others come first"),
        }
    }
}

impl fmt::Display for DebtWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunsThere => write!(f, "nearer to where it runs than home is"),
            Self::NoRoom => write!(f, "no room at home"),
            Self::NoBudget => write!(f, "waits for its share of what may move"),
            Self::KeptElsewhere => write!(f, "somebody else seems to keep it elsewhere"),
            Self::Balancing => {
                write!(f, "left to the kernel's NUMA balancing, for it has no memory policy")
            }
            Self::NotAllowed => write!(f, "it may have no memory at home"),
            Self::Stuck { why, bytes, .. } => {
                write!(f, "{} stayed ({}), tried again later", Bytes(*bytes), why.words())
            }
        }
    }
}
