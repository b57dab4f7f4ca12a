//! What commands print: pure functions from what was read to text.

pub(crate) mod cores;
pub(crate) mod guest;
pub(crate) mod place_json;
pub(crate) mod place_libvirt;
pub(crate) mod place_numactl;
pub(crate) mod place_qemu;
pub(crate) mod place_text;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod topology_json;
pub(crate) mod topology_svg;
pub(crate) mod topology_text;
pub(crate) mod units;

use std::io::{self, Write};

/// Writes a report to standard output. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn written(report: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}
