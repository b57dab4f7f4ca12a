//! The commands, one file each.

pub(crate) mod exec;
pub(crate) mod run;
pub(crate) mod topology;
