//! A connected process and its rights.

use super::answer::Failed;
use crate::{
    daemon::access::{Caller, Rights},
    output,
    printable::printable,
};
use axum::http::{Method, StatusCode};
use std::sync::Arc;

/// A connected process and its rights.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) caller: Arc<Caller>,
    pub(super) rights: Rights,
}

impl Peer {
    /// A refusal, which is also a line of the journal. `group` is the key of the configuration that
    /// would allow it.
    pub(super) fn forbidden(&self, method: &Method, path: &str, group: &str) -> Failed {
        let caller = &self.caller;
        output::note([format!("refused: {caller}: {method} {}", printable(path))]);
        let message = format!(
            "{caller} may not do this: only root and members of api.{group}_group in the \
             configuration may"
        );
        Failed::new(StatusCode::FORBIDDEN, message)
    }
}
