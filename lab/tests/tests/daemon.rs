//! The daemon on four nodes of two CPUs. All tests of this file share one guest (`daemon` in
//! `lab/test`), one after the other.
//!
//! A new test goes to the module of its concept: starts beside a daemon that gives domains other
//! homes, to `homes`; kills between the steps of a transaction, to `killing`; kills for lack of
//! memory, to `memory`; commands that move memory beside it, to `movers`; promises of several kinds
//! at once, to `promises`; hostile domains, to `tenants`; the place of program text, to `text`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "daemon/homes.rs"]
mod homes;
#[path = "daemon/killing.rs"]
mod killing;
#[path = "daemon/memory.rs"]
mod memory;
#[path = "daemon/movers.rs"]
mod movers;
#[path = "daemon/promises.rs"]
mod promises;
#[path = "daemon/requests.rs"]
mod requests;
#[path = "daemon/scheduler.rs"]
mod scheduler;
#[path = "daemon/shared.rs"]
mod shared;
#[path = "daemon/tenants.rs"]
mod tenants;
#[path = "daemon/text.rs"]
mod text;
