//! Pure decisions for NUMA hosts: homes for domains, claims on memory, and the changes that carry
//! them out.
//!
//! Observe, decide, act: a machine gives an [`Observation`]; [`place()`] turns it and a [`Request`]
//! into a [`Decision`] with its reasons in numbers, and a [`Controller`] turns it into transactions
//! once an interval. Nothing here reads a clock, a file or a random number, so a decision can be
//! tested, shown before it is carried out, recorded and replayed.

#![forbid(unsafe_code)]

mod action;
mod adoption;
mod advice;
mod allocatable;
mod available;
mod bytes;
mod cell_affinity;
mod cells;
mod claim;
mod controllers;
mod cost;
mod cost_model;
mod decision;
mod guest;
mod index;
mod layout;
mod locality;
mod observation;
mod offered;
mod outcome;
mod part;
mod payback;
mod place;
mod plan;
mod ranking;
mod rehome;
pub mod replication;
mod request;
mod search;
mod start;
mod subject;
pub mod text;
mod transaction;
mod view;

pub use action::{Action, Batch, CpuReason, PageMove, Reason, Step};
pub use adoption::{Described, Newcomer, Unowned, adoptions, awaiting, may_adopt};
pub use advice::{Advice, PUT_OFF_FOR_S, RESERVED_FOR_S, advise, usable_nodes};
pub use allocatable::{Allocatable, allocatable};
pub use available::Available;
pub use bytes::{Bytes, Count};
pub use cell_affinity::cell_affinity;
pub use cells::{
    Alone, CellRequest, CellsDecision, CellsMethod, CellsRefusal, CellsRequest, MAX_CELLS,
    PlacedCell, Spill, place_cells, place_cells_with, place_cells_within,
};
pub use claim::{ByNode, Claim, outstanding, total};
pub use controllers::{
    ControlObservation, ControlPlan, Controller, DebtBlocker, History, HomeBlocker, Homes, Keeper,
    LastMove, MoveReport, NodeHistory, NodeLoad, Owner, PartHistory, PartLoad, Place, Planner,
    Plans, Status, Stuck, Tuning, plan_all, take_back_all,
};
pub use cost_model::CostModel;
pub use decision::{Candidate, Decision, Parts, Refusal, SlowDown};
pub use guest::{Cell, Guest, guest};
pub use locality::{debt_bytes, local_share};
pub use observation::{CgroupId, Home, Observation, Origin, PartState, Reservation};
pub use offered::{LeftOut, NoCpus, NotAllowed};
pub use outcome::{Outcome, Progress, Stayed, StayedWhy};
pub use part::{CellId, PartId};
pub use payback::{MilliVcpus, Payback};
pub use place::{EXHAUSTIVE_NODES, Method, place, place_with};
pub use plan::{Machine, Plan};
pub use rehome::{
    DEFAULT_RATE_BYTES_PER_S, Rehome, RehomeRefusal, home_after, later_policy_nodes, may_be_home,
    may_go_on, rehome,
};
pub use request::{Affinity, Limits, MemoryPolicy, PageSize, Request, UnknownPolicy};
pub use start::{
    CellsPlan, MAX_NAME_LENGTH, Start, StartCells, StartRefusal, WholePlan, is_domain_name, start,
    start_cells, start_whole,
};
pub use subject::{Purpose, Subject, Until};
pub use transaction::{Needs, Observed, Transaction, Unmet};
