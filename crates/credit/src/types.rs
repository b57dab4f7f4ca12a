//! The structs and constants of `credit.h` and `trial.h`.

/// The tunables. Spans are real time in nanoseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// The time that a task of nice 0 runs in one go.
    pub slice_ns: u64,
    /// No task runs shorter, or starts with less budget.
    pub slice_min_ns: u64,
    /// No task runs longer, regardless of its weight.
    pub slice_max_ns: u64,
    /// The most that a group is owed when it wakes.
    pub wake_bound_ns: u64,
    /// The most that any other group is owed.
    pub lag_bound_ns: u64,
    /// The furthest that a group gets ahead.
    pub ahead_bound_ns: u64,
    /// The distance by which a woken task must be behind a running one to take its CPU.
    pub preempt_ns: u64,
    /// A busy CPU takes a remote task that is behind by this, for each local distance.
    pub steal_ns: u64,
    /// The time between two searches for such a task.
    pub balance_ns: u64,
    /// A task away from home stays for at least this long.
    pub stay_ns: u64,
    /// A group that overran its cap waits no longer than this.
    pub debt_bound_ns: u64,
    /// A task that goes on for at most this after a wake-up sleeps soon.
    pub handover_ns: u64,
    /// CPUs that such tasks hand over let the tasks in their queue wait for so long.
    pub queue_waits_ns: u64,
    /// A wait so short is better than another node, or than an interrupted task.
    pub patience_ns: u64,
    /// The time between two notes of where tasks start, of each CPU.
    pub note_ns: u64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Or, instead of `steal_ns`, by so many of its own slices, if that is more.
    pub steal_slices: u32,
}

impl Params {
    /// The defaults on a machine of this many CPUs.
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
            handover_ns: MS / 100,
            queue_waits_ns: MS * 3 / 10,
            patience_ns: MS,
            note_ns: MS / 10,
            cpus: if cpus == 0 { 1 } else { cpus },
            steal_slices: 3,
        }
    }
}

/// A group: a cgroup's own tasks, as one party.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Group {
    /// Its virtual time, with the slices of tasks that run or wait.
    pub vtime: u64,
    /// Where its tasks begin to run, on average ([`now`](crate::now)).
    pub front: u64,
    /// Its share of the machine, of [`ONE`]: its weight, flattened.
    pub share: u64,
    /// Tasks that run or wait.
    pub runnable: u32,
    /// Not used; 0.
    pub reserved: u32,
}

/// Permission to run once.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant {
    /// The place in the queue: lower is earlier.
    pub tag: u64,
    /// Charged in advance, in virtual time.
    pub reserved: u64,
    /// The slice, in virtual time.
    pub slice: u64,
    /// The slice, in ns.
    pub slice_ns: u64,
}

/// A cap: CPU time in every period.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cap {
    /// CPU time in a period; 0 means no cap.
    pub quota_ns: u64,
    /// The period.
    pub period_ns: u64,
    /// The most that is saved up beyond one quota.
    pub burst_ns: u64,
    /// The begin of the period.
    pub start_ns: u64,
    /// Left in this period; below 0: overrun, to be paid back.
    pub budget_ns: i64,
}

/// A question for one of the decisions, and its answer: see `trial.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// The decision's number, below [`DECISIONS`].
    pub decision: u64,
    /// An argument.
    pub params: Params,
    /// An argument that the decision may change.
    pub group: Group,
    /// An argument that the decision may change.
    pub grant: Grant,
    /// An argument that the decision may change.
    pub cap: Cap,
    /// Its plain arguments.
    pub arguments: [u64; 5],
    /// The result.
    pub answer: u64,
}

/// The number of decisions that a [`Trial`] can ask.
pub const DECISIONS: u64 = 38;
/// The whole machine, as a share.
pub const ONE: u64 = 1 << 24;
/// The default of `cpu.weight`, and the weight of nice 0.
pub const WEIGHT: u64 = 100;

/// The rank of a node for a task.
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
