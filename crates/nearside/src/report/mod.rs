//! The output of commands: pure functions from data to text.

#[cfg(test)]
mod formats;

pub(crate) mod answers;
pub(crate) mod cell_stat;
pub(crate) mod control;
pub(crate) mod cores;
pub(crate) mod doctor;
pub(crate) mod domain;
pub(crate) mod guest;
pub(crate) mod guest_cells;
pub(crate) mod heap;
pub(crate) mod json;
pub(crate) mod list;
pub(crate) mod oom;
pub(crate) mod place_cells_json;
pub(crate) mod place_cells_text;
pub(crate) mod place_libvirt;
pub(crate) mod place_numactl;
pub(crate) mod place_qemu;
pub(crate) mod place_text;
pub(crate) mod plan;
pub(crate) mod replicate;
pub(crate) mod reserved;
pub(crate) mod set;
pub(crate) mod show;
pub(crate) mod simulate;
pub(crate) mod stat;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod topology_json;
pub(crate) mod topology_svg;
pub(crate) mod topology_text;
pub(crate) mod units;
pub(crate) mod why;
