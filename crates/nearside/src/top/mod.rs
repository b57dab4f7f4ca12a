//! The view of `nearside top`: pure functions from a [`Sample`] and a [`State`] to a frame, and
//! from a key to another state. `commands/top.rs` has the terminal.
//!
//! [`Sample`]: crate::sample::Sample

mod draw;
mod keys;
mod rows;
mod state;
mod table;

pub(crate) use draw::{draw, plain};
pub(crate) use keys::Action;
pub(crate) use rows::Sort;
pub(crate) use state::{State, Wants};

#[cfg(test)]
mod tests;
