//! Copies of a helper that was killed. Nobody holds their leases any more, so they go before
//! anything else happens.

use crate::{
    census::{Census, copies_seen_by},
    error::Error,
    exchanger::{Exchanger, MAX_LOOKS},
    file_id::FileId,
    namespace::{Namespace, Visitor},
    remap::{Exchange, Operation},
};
use std::collections::{BTreeMap, BTreeSet};

/// Detaches all copies in the namespaces of all processes but this one's, and returns the processes
/// there to the originals: a writer may have changed those meanwhile.
///
/// # Errors
/// If a namespace with copies cannot be entered.
pub(crate) fn clear(visitor: &Visitor, own: FileId, exchanger: &Exchanger) -> Result<(), Error> {
    let mut left = BTreeMap::new();
    let census = Census::take();
    for (id, processes) in census.namespaces().filter(|(id, _)| *id != own) {
        let copies = copies_seen_by(processes);
        // A namespace whose processes have all ended meanwhile has no mounts.
        let Some(namespace) = Namespace::with_any(processes, id) else { continue };
        let mut gone = Vec::new();
        for mount in copies {
            match visitor.unbind_at(&namespace, &mount.point, mount.device) {
                Ok(copy) => gone.extend(copy.map(|copy| (mount.point, copy))),
                Err(error) => eprintln!("nearside replicator: a copy stays mounted: {error}"),
            }
        }
        let mut exchanges = Vec::new();
        for (path, from) in gone {
            match visitor.file_at(&namespace, &path) {
                Ok(original) => exchanges.extend(original.map(|to| Exchange { path, from, to })),
                Err(error) => eprintln!("nearside replicator: users keep a copy: {error}"),
            }
        }
        if !exchanges.is_empty() {
            left.insert(id, exchanges);
        }
    }
    return_processes(&left, exchanger);
    Ok(())
}

/// `left` has the exchanges by namespace.
fn return_processes(left: &BTreeMap<FileId, Vec<Exchange>>, exchanger: &Exchanger) {
    // Processes that use no copy, or keep what they still map of one.
    let mut asked = BTreeSet::<u32>::new();
    for _ in 0..MAX_LOOKS {
        let census = Census::take();
        let mut found = false;
        for (namespace, exchanges) in left {
            let mut processes = census.processes(*namespace).to_vec();
            processes.retain(|pid| !asked.contains(pid));
            found |= !processes.is_empty();
            for (pid, done) in exchanger.exchange(processes, exchanges, Operation::Detach) {
                if done.is_final() {
                    asked.insert(pid);
                }
                if let Some(why) = done.still_uses() {
                    let what = "it keeps copies of an earlier replicator";
                    eprintln!("nearside replicator: {why}: {what}");
                }
            }
        }
        if !found {
            return;
        }
    }
}
