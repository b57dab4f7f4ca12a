//! The parts of the daemon (docs/adr/0008-daemon.md).
//!
//! The loop and the API are two threads that meet in two places. The loop publishes its
//! observations and decisions ([`published::Published`]), and readers get their answers from those;
//! so no reader waits for the loop. Changes go the other way, through a channel of
//! [`snapshot::Event`]s that the loop empties. In outline:
//!
//! ```no_run
//! # use nearside::daemon::{access::Access, api::{Api, Groups, Limits, Server}, audit::AuditLog};
//! # use nearside::daemon::{config::Config, notify};
//! # use nearside_linux::{Host, Paths};
//! # use nearside::daemon::snapshot::{Answer, Event, Seen};
//! # use std::{path::Path, sync::mpsc::sync_channel};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::read(Path::new("/etc/nearside/daemon.toml"), false)?;
//! // The signal handler has a clone of the sender, for `Event::Reload` and `Event::Stop`.
//! let (sender, events) = sync_channel(16);
//! let host = Host::open(Paths::default())?;
//! let groups = Groups { tree: host.tree().clone(), proc: host.proc() };
//! let audit = AuditLog::new(&config.audit.log);
//! let api = Api::new(Access::new(&config.api)?, audit, sender, Limits::default(), groups);
//! let server = Server::start(api.clone(), &config.api.socket)?;
//! loop {
//!     // Observe, decide, apply.
//!     api.published.publish(Seen::default());
//!     notify::alive("3 domains");
//!     // Until the next interval is due.
//!     match events.recv_timeout(config.interval) {
//!         Ok(Event::Change(asked)) => {
//!             drop(asked.answer.send(Answer::Refused("not in this example".into())))
//!         }
//!         Ok(Event::Reload) => { /* Config::reloaded, then Api::reconfigure */ }
//!         Ok(Event::Stop) | Err(_) => break,
//!     }
//! }
//! server.stop();
//! # Ok(())
//! # }
//! ```

pub mod access;
mod adoption;
pub mod api;
pub mod attachment;
pub mod audit;
mod cells;
mod clock;
pub mod config;
pub(crate) mod control_loop;
mod controllers;
pub mod copies;
mod duties;
mod duty;
mod exposition;
mod failures;
mod fallback;
pub(crate) mod inbox;
mod interrupted;
#[cfg(test)]
mod made;
mod metrics;
pub mod notify;
mod oom;
mod page_moves;
pub mod persisted;
pub mod preflight;
pub mod published;
mod publisher;
mod records;
mod reported;
mod requests;
pub mod scheduler;
mod scheduling;
mod settle;
mod site;
pub mod snapshot;
mod socket;
pub mod text;
pub mod totals;
