//! What `nearside top` shows, and how keys change it: pure, from a [`Look`] and a [`State`] to a frame. The terminal is
//! in `commands/top.rs`.
//!
//! [`Look`]: crate::look::Look

mod draw;
mod rows;
mod state;
mod table;

pub(crate) use draw::{draw, plain};
pub(crate) use rows::Sort;
pub(crate) use state::{Action, State, Wants};

#[cfg(test)]
mod tests;
