#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cloud;
mod command_line;
mod error;
mod grammar;
mod model;
mod placement;
mod qemu;
mod qmp;
mod shell;
mod split;

pub use command_line::{CommandLine, Completed, MAX_BYTES, Vmm, complete};
pub use error::CommandLineError;
pub use model::{Binding, Cell, ConfigFiles, DeviceMemory, PageSize, VcpuId, VcpuSet, Vm};
pub use placement::{CellPlacement, Placement, Policy};
pub use qmp::{QmpDialogue, QmpStep};
pub use shell::shell_lines;
