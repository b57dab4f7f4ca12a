//! The checks of a domain.

mod backing;
mod cells;
mod checker;
mod devices;
mod host_cpus;
mod host_memory;
mod numatune;
mod pins;

use crate::{domain::Domain, finding::Finding};
use checker::Checker;
use nearside_topology::Topology;

/// The rules that `domain` breaks, in the order of the text. Rules that compare it with the host
/// need the host's topology.
pub fn lint(domain: &Domain, host: Option<&Topology>) -> Vec<Finding> {
    let mut checker = Checker::new(domain, host);
    numatune::check(&mut checker);
    backing::check(&mut checker);
    cells::check(&mut checker);
    devices::check(&mut checker);
    pins::check(&mut checker);
    if let Some(host) = host {
        host_memory::check(&mut checker, host);
        host_cpus::check(&mut checker, host);
    }
    checker.findings()
}
