//! The commands, one file each.

pub(crate) mod list;
pub(crate) mod show;
pub(crate) mod stat;
pub(crate) mod topology;
pub(crate) mod why;
