//! QEMU's command line.

mod backend;
mod bind;
mod cells;
mod config_file;
mod devices;
mod line;
mod options;
mod smp;

pub(crate) use bind::bind;
pub(crate) use cells::{split, with_backends};
pub(crate) use line::{QemuLine, is_readconfig};
