//! Copies of a helper that was killed. Nobody holds their leases any more, so they go before
//! anything else happens.

use crate::{
    census::{Census, copies_seen_by},
    error::Error,
    exchanger::Exchanger,
    file_id::FileId,
    namespace::{Namespace, Visitor},
    remap::Exchange,
};
use std::collections::BTreeMap;

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
                Err(error) => log!("a copy stays mounted: {error}"),
            }
        }
        let mut exchanges = Vec::new();
        for (path, from) in gone {
            match visitor.file_at(&namespace, &path) {
                Ok(original) => exchanges.extend(original.map(|to| Exchange { path, from, to })),
                Err(error) => log!("users keep a copy: {error}"),
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
    let still = exchanger.detach(|census| {
        let of = |(namespace, exchanges): (&FileId, &Vec<Exchange>)| {
            (census.processes(*namespace).to_vec(), exchanges.clone())
        };
        left.iter().map(of).collect()
    });
    for why in still {
        log!("{why}: it keeps copies of an earlier replicator");
    }
}
