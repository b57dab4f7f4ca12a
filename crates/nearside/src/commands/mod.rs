//! The commands, one file each.

pub(crate) mod completions;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod export;
pub(crate) mod libvirt_hook;
pub(crate) mod lint;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod numad;
pub(crate) mod place;
pub(crate) mod replicate;
pub(crate) mod replicator;
pub(crate) mod run;
pub(crate) mod set;
pub(crate) mod show;
pub(crate) mod simulate;
pub(crate) mod stat;
pub(crate) mod top;
pub(crate) mod topology;
pub(crate) mod why;
