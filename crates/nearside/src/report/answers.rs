//! Answers of the daemon about a domain, as its clients read and show them.
//!
//! `report/control.rs` has the counterpart, which the daemon writes. A client keeps unknown keys,
//! so that `--format json` passes on all keys of a later daemon.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A domain in the control loop: its status, and the steps of the last interval that concern it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ControlAnswer {
    /// None for a virtual machine whose cells have a status each.
    pub(crate) status: Option<StatusAnswer>,
    /// By the number of the cell.
    pub(crate) status_of_cells: BTreeMap<u32, StatusAnswer>,
    pub(crate) steps: Vec<StepAnswer>,
}

/// A domain's status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StatusAnswer {
    /// Its place in one word.
    pub(crate) place: String,
    /// The whole status as a sentence.
    pub(crate) text: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepAnswer {
    pub(crate) text: String,
    pub(crate) because: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}
