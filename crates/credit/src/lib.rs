//! The credit scheduler's decisions, as the kernel runs them.
//!
//! They are C, in `credit.h`, because BPF compiles them too. This crate calls the same code from
//! Rust, for its tests and for the scheduler's loader. Each function is pure: it reads its
//! arguments and changes those that it takes by `&mut`.
//!
//! ```
//! use nearside_credit::{Group, ONE, Params, reserve, tag};
//!
//! // A group with a quarter of a machine of 8 CPUs: a slice of 3 ms costs 12 ms of virtual time.
//! let params = Params::new(8);
//! let mut group =
//!     Group { vtime: 100_000_000, share: ONE / 4, runnable: 1, ..Group::default() };
//! let place = tag(&params, &group, 100_000_000, false);
//! let grant = reserve(&mut group, place, params.slice_ns, params.slice_ns);
//! assert_eq!((grant.tag, group.vtime), (100_000_000, 112_000_000));
//! ```

mod ffi;
mod types;

pub use types::{Cap, DECISIONS, Grant, Group, ONE, Params, Place, Trial, WEIGHT};

pub use ffi::{
    before, candidate, charge, follows, from_afar, goes_on, is_seat, lets_pass, now, own_charge,
    own_lag, own_lead, own_now, own_rejoins, place, preempts, preempts_own, refill, reserve,
    resumes, returns, runs, settle, settle_cap, share, sleeps_soon, slice, spreads, stays, steals,
    tag, take, takes_over, talks, try_out, uses, waits,
};
