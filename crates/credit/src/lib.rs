//! The credit scheduler's decisions, as the kernel runs them.
//!
//! All of it is C, in `credit.h`, because BPF compiles it too; that file says what the decisions are and in which units
//! they count. This crate makes the very same code callable from Rust, for its tests and for the scheduler's loader. Each function is pure: what it needs it is given, and it changes only what it is given to change.

mod ffi;

/// What can be tuned. Spans are real time in nanoseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// How long a task of nice 0 runs in one go.
    pub slice_ns: u64,
    /// No task runs shorter, nor is one started on less budget.
    pub slice_min_ns: u64,
    /// No task runs longer, whatever its weight.
    pub slice_max_ns: u64,
    /// What a group that had nothing to run may be owed when it wakes.
    pub wake_bound_ns: u64,
    /// What any other group may be owed.
    pub lag_bound_ns: u64,
    /// How far ahead a group can get at most.
    pub ahead_bound_ns: u64,
    /// By how much a woken task must be behind a running one to take its CPU.
    pub preempt_ns: u64,
    /// A busy CPU takes a remote task that is behind by this, for each local distance.
    pub steal_ns: u64,
    /// It looks for such a one once in this time.
    pub balance_ns: u64,
    /// A task away from home stays for at least this long.
    pub stay_ns: u64,
    /// A group that overran its cap waits no longer than this.
    pub debt_bound_ns: u64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Or, instead of `steal_ns`, by so many of its own slices, if that is more.
    pub steal_slices: u32,
}

impl Params {
    /// What the scheduler uses on a machine of this many CPUs unless told otherwise.
    pub const fn new(cpus: u32) -> Self {
        const MS: u64 = 1_000_000;
        Self {
            slice_ns: 3 * MS,
            slice_min_ns: MS,
            slice_max_ns: 20 * MS,
            wake_bound_ns: 5 * MS,
            lag_bound_ns: 200 * MS,
            ahead_bound_ns: 1000 * MS,
            preempt_ns: MS,
            steal_ns: 5 * MS,
            balance_ns: MS,
            stay_ns: 3 * MS,
            debt_bound_ns: 5000 * MS,
            cpus: if cpus == 0 { 1 } else { cpus },
            steal_slices: 3,
        }
    }
}

/// What is known of a group: a cgroup's own tasks, as one party.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// What its tasks, running and waiting ones included, have cost, in virtual time.
    pub vtime: u64,
    /// Its share of the machine, of [`ONE`]: its weight, flattened.
    pub share: u64,
    /// Tasks that run or wait.
    pub runnable: u32,
    /// Not used; 0.
    pub reserved: u32,
}

/// Leave to run once.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant {
    /// The place in the queue: lower is earlier.
    pub tag: u64,
    /// Charged in advance.
    pub reserved: u64,
    /// How long.
    pub slice_ns: u64,
}

/// A cap: so much CPU time in every period.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cap {
    /// CPU time in a period; 0 means no cap.
    pub quota_ns: u64,
    /// The period.
    pub period_ns: u64,
    /// What may be saved up beyond one quota.
    pub burst_ns: u64,
    /// When the period began.
    pub start_ns: u64,
    /// Left in this period; below 0: overrun, to be paid back.
    pub budget_ns: i64,
}

/// A question for one of the decisions, and its answer: see `trial.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// Which; below [`DECISIONS`].
    pub decision: u64,
    /// As the decision takes it.
    pub params: Params,
    /// As the decision takes and leaves it.
    pub group: Group,
    /// As the decision takes and leaves it.
    pub grant: Grant,
    /// As the decision takes and leaves it.
    pub cap: Cap,
    /// Its plain arguments.
    pub arguments: [u64; 4],
    /// What it returns.
    pub answer: u64,
}

/// How many decisions a [`Trial`] can ask about.
pub const DECISIONS: u64 = 24;
/// The whole machine, as a share.
pub const ONE: u64 = 1 << 24;
/// The default of `cpu.weight`, and the weight of nice 0.
pub const WEIGHT: u64 = 100;

/// How welcome a task is on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Its home.
    Home,
    /// A node it prefers.
    Affine,
    /// A node it may use while nothing better is idle.
    Other,
    /// A node it may not use.
    Never,
}

pub use ffi::{
    before, candidate, charge, from_afar, lets_pass, now, own_charge, own_lag, own_rejoins, place,
    preempts, refill, reserve, resumes, returns, settle, settle_cap, share, slice, stays, steals,
    tag, take, try_out,
};
