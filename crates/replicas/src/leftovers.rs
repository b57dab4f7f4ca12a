//! Copies of a helper that was killed. Nobody holds their leases any more, so they go before
//! anything else happens.

use crate::{
    attributes::noted_original,
    census::Census,
    error::{Error, IoContext},
    exchanger::Exchanger,
    file_id::{FileId, Identity},
    mountinfo::Mount,
    namespace::{Namespace, Visitor},
    remap::Exchange,
    store::Store,
    users::used_at,
};
use nearside_linux::folder::Folder;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The file with the devices of the stores, while a helper runs.
const STORES: &str = "stores";

/// Far more than the devices of 1,024 nodes take.
const MAX_STORES_BYTES: u64 = 64 << 10;

/// Notes the devices of the stores. If this helper is killed, the next one looks for their files.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn note(folder: &Folder, stores: &[Store]) -> Result<(), Error> {
    let devices: Vec<_> = stores.iter().map(Store::device).collect();
    let text = serde_json::to_vec(&devices).map_err(std::io::Error::other);
    folder.replace(STORES, &text.doing(|| "noting the devices of copies".into())?)?;
    Ok(())
}

/// To be called when no copy is in use any more.
pub(crate) fn forget(folder: &Folder) {
    // If the file stays, the next helper looks for copies and finds none.
    let _ = folder.remove(STORES);
}

/// Detaches all copies in the namespaces of all processes but this one's, and returns the processes
/// there to the originals: a writer may have changed those meanwhile.
///
/// # Errors
/// If the processes of the host cannot be told, or if a helper with another folder runs.
pub(crate) fn clear(
    visitor: &Visitor,
    own: FileId,
    exchanger: &Exchanger,
    folder: &Folder,
) -> Result<(), Error> {
    let census = Census::take().doing(|| "looking for processes with copies".into())?;
    let others = || census.namespaces().filter(|(id, _)| *id != own);
    let mut mounted = Vec::new();
    for (id, processes) in others() {
        // A namespace whose processes have all ended meanwhile has no mounts.
        let Some(namespace) = Namespace::with_any(processes, id) else { continue };
        let copies = visitor.copies_in(&namespace);
        if let Some(other) = folder_of_another(&copies, folder.path()) {
            return Err(Error::Refused(format!(
                "another replicator runs, with the folder {}: stop it",
                other.display()
            )));
        }
        mounted.push((id, namespace, copies));
    }
    let mut gone = BTreeMap::<FileId, BTreeSet<(PathBuf, FileId)>>::new();
    for (id, namespace, copies) in mounted {
        for mount in copies {
            match visitor.unbind_at(&namespace, &mount.point, mount.device) {
                Ok(Some(copy)) => _ = gone.entry(id).or_default().insert((mount.point, copy)),
                Ok(None) => {}
                Err(error) => log!("a copy stays mounted: {error}"),
            }
        }
    }
    let devices = noted(folder);
    if !devices.is_empty() {
        for (id, processes) in others() {
            let Some(namespace) = Namespace::with_any(processes, id) else { continue };
            for (original, path, copy) in in_use(processes, &devices) {
                // The text of a file that was replaced lives on.
                let is_there = visitor.identity_at(&namespace, &path) == Some(original);
                if is_there && original.made_ns.is_some() {
                    gone.entry(id).or_default().insert((path, copy));
                }
            }
        }
    }
    let mut left = BTreeMap::new();
    for (id, copies) in gone.into_iter().filter(|(_, copies)| !copies.is_empty()) {
        let Some(namespace) = Namespace::with_any(census.processes(id), id) else { continue };
        let mut exchanges = Vec::new();
        for (path, from) in copies {
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

/// The folder of another helper, if these are the mounts of its namespace: it alone has whole
/// stores there, and each domain only files of them. The child of a helper that was killed may not
/// have ended yet; its stores are in the folder that this helper has locked.
fn folder_of_another<'m>(mounts: &'m [Mount], own: &Path) -> Option<&'m Path> {
    let stores = mounts.iter().filter(|mount| mount.root == Path::new("/"));
    stores.filter_map(|mount| mount.point.parent()).find(|folder| *folder != own)
}

/// The devices that a helper which was killed has noted.
fn noted(folder: &Folder) -> BTreeSet<u64> {
    let text = folder.read_within(STORES, MAX_STORES_BYTES).ok().flatten().unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// The copies that processes use, each with its original and path. Some have no mount any more: the
/// helper was killed amid a collapse, or while a package manager ran in their namespace.
fn in_use(processes: &[u32], devices: &BTreeSet<u64>) -> BTreeSet<(Identity, PathBuf, FileId)> {
    let used = processes.iter().flat_map(|process| used_at(*process, devices));
    let noted = |(copy, link): (FileId, PathBuf)| {
        noted_original(&link).map(|(original, path)| (original, path, copy))
    };
    used.filter_map(noted).collect()
}

/// `left` has the exchanges by namespace.
fn return_processes(left: &BTreeMap<FileId, Vec<Exchange>>, exchanger: &Exchanger) {
    let done = exchanger.detach(|census: &Census| {
        let of = |(namespace, exchanges): (&FileId, &Vec<Exchange>)| {
            (census.processes(*namespace).to_vec(), exchanges.clone())
        };
        left.iter().map(of).collect()
    });
    for why in done.still {
        log!("{why}: it keeps copies of an earlier replicator");
    }
}
