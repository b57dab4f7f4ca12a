//! The commands, one file each.

pub(crate) mod place;
pub(crate) mod topology;
