//! Virtual machines among the domains: which libvirt domain a cgroup is, the role of each of its
//! threads, and the mapping of each cell's memory. Pure functions over names and texts.

mod backends;
mod machine;
mod role;

pub(crate) use backends::backends;
pub(crate) use machine::QemuMachine;
pub(crate) use role::{Role, role};
