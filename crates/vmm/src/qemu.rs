//! QEMU's command line.

mod bind;
mod cells;
mod line;
mod smp;

pub(crate) use bind::bind;
pub(crate) use cells::{split, with_backends};
pub(crate) use line::QemuLine;
