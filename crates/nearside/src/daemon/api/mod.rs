//! The API: HTTP with JSON over a unix socket (docs/api.md, docs/openapi.json), in one thread of
//! its own.
//!
//! All that a peer may take is bounded: connections, their age, the time in which a head and a body
//! have to arrive, and their sizes. So a slow or hostile peer delays neither the control loop nor
//! other users.

mod affinity;
mod answer;
mod change;
mod changes;
mod connection;
mod crowd;
mod latest;
mod limits;
mod peer;
mod read;
mod routes;
mod server;
mod state;
mod wire;

#[cfg(test)]
mod tests;

pub use self::{
    connection::serve,
    limits::Limits,
    server::Server,
    state::{Api, Groups},
};
