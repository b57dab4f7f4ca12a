//! Copies of program text on the nodes that execute it (docs/adr/0019-replicas.md).
//!
//! [`Life`] is the life of one file and its copies: events in, effects out. [`serving()`] chooses
//! the nodes that get a copy, [`gain_percent`] tells what it is worth. [`least_useful_first`]
//! chooses the copies that go when memory is short, as [`NodeMemory`] tells.

mod bar;
mod gain;
mod life;
mod pressure;
mod room;
mod serving;

pub use bar::Bar;
pub use gain::gain_percent;
pub use life::{CopyRefusal, Effect, Event, Life, State};
pub use pressure::{NodeMemory, RECOVERY, refuge};
pub use room::{CopyUse, budget_bytes, least_useful_first};
pub use serving::{Ratio, serving};
