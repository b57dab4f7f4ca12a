//! The commands, one file each.

pub(crate) mod completions;
pub(crate) mod exec;
pub(crate) mod man;
pub(crate) mod run;
pub(crate) mod set;
pub(crate) mod topology;
