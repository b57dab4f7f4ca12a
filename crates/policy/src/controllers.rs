//! Controllers: the capabilities of the daemon that plan once an interval.
//!
//! The daemon's loop observes the host, asks each [`Controller`] for its plan ([`plan_all`]) and
//! carries it out. It decides nothing itself. [`Homes`] is one controller: it keeps parts at home.
//! A new capability is a new controller, with a state of its own ([`Keeper`]).

mod controller;
mod history;
mod homes;
mod observation;
mod planner;
mod status;

pub use controller::{ControlPlan, Controller};
pub use history::{History, LastMove, NodeHistory, PartHistory, Stuck};
pub use homes::{Homes, Tuning};
pub use observation::{ControlObservation, MoveReport, NodeLoad, Owner, PartLoad};
pub use planner::{Keeper, Planner, Plans, plan_all, take_back_all};
pub use status::{DebtBlocker, HomeBlocker, Place, Status};
