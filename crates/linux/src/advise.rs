//! Advice on nodes for a virtual machine that another manager starts (docs/adr/0015-numad.md).

use crate::{Error, Host, Refusal};
use nearside_policy::{Advice, CostModel, RESERVED_FOR_S, Transaction, Until};
use nearside_topology::Topology;

/// The reason why nothing is reserved for a caller that has given up.
pub(crate) const NOT_AWAITED: &str = "nobody waits for the answer any more";

/// Chooses nodes and reserves their memory, as one step under the lock. `known` is the machine as
/// read earlier, which shortens the time under the lock. `is_awaited` is asked right before the
/// reservation is written: none is written for a caller that has given up.
///
/// # Errors
/// If the lock is not free in time, the host cannot be read, or the caller has given up. Then
/// nothing is reserved.
pub fn advise(
    host: &mut Host,
    vcpus: u32,
    memory_bytes: u64,
    model: &CostModel,
    known: &Topology,
    is_awaited: impl FnOnce() -> bool,
) -> Result<Advice, Refusal> {
    let mut session = host.begin()?;
    session.observe(Some(known))?;
    let name = free_name(|name| session.is_free(name));
    let seen = session.observe(Some(known))?;
    let advice = nearside_policy::advise(&name, vcpus, memory_bytes, seen, model);
    if let Ok(reserved) = &advice.reserved {
        if !is_awaited() {
            return Err(Error::Refused(NOT_AWAITED.into()).into());
        }
        let until = Until::Seconds(RESERVED_FOR_S);
        let transaction = Transaction::reserving(reserved.clone(), until, seen);
        session.apply(&transaction)?;
    }
    Ok(advice)
}

/// Ends the reservation of an answer that did not reach its caller; fine if it has ended, or if a
/// domain has adopted it.
///
/// # Errors
/// If the lock is not free in time, or the record cannot be removed.
pub fn take_back(host: &mut Host, name: &str) -> Result<(), Refusal> {
    host.begin()?.release(name).map(|_| ())
}

/// The first of `numad-1`, `numad-2`, ... that is free.
fn free_name(is_free: impl Fn(&str) -> bool) -> String {
    let mut names = (1_u64..).map(|number| format!("numad-{number}"));
    names.find(|name| is_free(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
