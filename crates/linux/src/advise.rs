//! Advice on nodes for a virtual machine that another manager starts (docs/adr/0015-numad.md).

use crate::{Host, Refusal};
use nearside_policy::{Advice, CostModel, RESERVED_FOR_S, Reservation};
use nearside_topology::Topology;

/// Chooses nodes and reserves their memory, as one step under the lock. `known` is the machine as
/// read earlier, which shortens the time under the lock.
///
/// # Errors
/// If the lock is not free in time, or the host cannot be read. Then nothing is reserved.
pub fn advise(
    host: &mut Host,
    vcpus: u32,
    memory_bytes: u64,
    model: &CostModel,
    known: &Topology,
) -> Result<Advice, Refusal> {
    let mut session = host.begin()?;
    let seen = session.observe(Some(known))?;
    let name = free_name(&seen.reservations);
    let advice = nearside_policy::advise(&name, vcpus, memory_bytes, seen, model);
    if let Ok(reserved) = &advice.reserved {
        session.reserve(reserved, RESERVED_FOR_S)?;
    }
    Ok(advice)
}

/// The first of `numad-1`, `numad-2`, ... that no reservation has.
fn free_name(reservations: &[Reservation]) -> String {
    let is_free = |name: &String| reservations.iter().all(|taken| taken.name != *name);
    let mut names = (1_u64..).map(|number| format!("numad-{number}"));
    names.find(is_free).unwrap_or_default()
}

#[cfg(test)]
mod tests;
