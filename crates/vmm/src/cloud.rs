//! cloud-hypervisor's command line.

mod bind;
mod line;

pub(crate) use bind::bind;
pub(crate) use line::CloudLine;
