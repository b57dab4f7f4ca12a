//! Virtual machines among the domains: which libvirt domain a cgroup is, the role of each of its
//! threads, and the mapping of each cell's memory. Pure functions over names and texts, but for the
//! questions to QEMU's monitor.

mod backends;
mod command_line;
mod machine;
mod monitors;
mod qmp;
mod role;
mod shape;

pub(crate) use backends::backends;
pub(crate) use command_line::{cells_of, qemu_with_cells};
pub(crate) use machine::QemuMachine;
pub use monitors::QemuProcess;
pub(crate) use monitors::{Monitors, Told};
pub(crate) use role::{Role, role};
pub(crate) use shape::CellShape;
pub use shape::Shape;
