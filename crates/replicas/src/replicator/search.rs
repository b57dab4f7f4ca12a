//! The search for processes that may use copies that go.

use super::{
    Replicator,
    file::{Whose, Withdrawn},
};
use crate::{
    census::Census,
    exchanger::{Look, ToDetach},
    file_id::FileId,
    mountinfo::Mount,
    namespace::Namespace,
    remap::Exchange,
    store::Copy,
};
use nearside_linux::escape;
use nearside_topology::NodeId;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The search, in several looks.
pub(super) struct Search<'a> {
    replicator: &'a Replicator,
    gone: &'a mut Withdrawn,
    whose: Whose,
    /// The copies of the file that stay.
    present: Vec<&'a Copy>,
    /// Namespaces that have none of the copies that go, each with the copy that it has instead.
    /// A later look reads the mounts of others alone.
    others: BTreeMap<FileId, Option<FileId>>,
    /// Whether the first look may leave mounts for the time while processes are stopped.
    mounts_may_wait: bool,
    /// Whether it has left them.
    mounts_wait: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        replicator: &'a Replicator,
        gone: &'a mut Withdrawn,
        whose: Whose,
        a_writer_waits: bool,
    ) -> Self {
        let file = replicator.files.get(&gone.original);
        let present: Vec<_> = file.map_or_else(Vec::new, |file| file.copies.values().collect());
        // Without another copy it is known what the path shows.
        let mounts_may_wait = a_writer_waits && present.is_empty() && whose != Whose::All;
        let (others, mounts_wait) = (BTreeMap::new(), false);
        Self { replicator, gone, whose, present, others, mounts_may_wait, mounts_wait }
    }

    /// The copy that a namespace shows at the path in place of those that go, if it shows one.
    /// Those that go leave it.
    fn shown(&mut self, namespace: FileId, processes: &[u32]) -> Option<FileId> {
        if let Some(shown) = self.others.get(&namespace) {
            return *shown;
        }
        // In a domain, too: it may have bound its folders elsewhere.
        let mounts = self.copies_in(namespace, processes);
        let shown = mounts.iter().find_map(|mount| {
            let copy = self.present.iter().find(|copy| is_mount_of(mount, copy))?;
            Some(copy.id)
        });
        match self.clear_stray(namespace, processes, &mounts) {
            true => _ = self.gone.strays.insert(namespace),
            false => _ = self.others.insert(namespace, shown),
        }
        shown
    }

    /// The processes of those namespaces that are concerned, by the file that they get.
    fn concerned(
        &mut self,
        census: &Census,
        shown: impl Fn(&mut Self, FileId, &[u32]) -> Option<FileId>,
    ) -> Vec<ToDetach> {
        let mut concerned = BTreeMap::<(FileId, PathBuf), Vec<u32>>::new();
        let home = self.replicator.visitor.home();
        // This helper has copies open itself.
        for (namespace, processes) in census.namespaces().filter(|(it, _)| *it != home) {
            let shown = shown(self, namespace, processes);
            let is_concerned = self.whose == Whose::All
                || self.replicator.guests.contains_key(&namespace)
                || self.gone.strays.contains(&namespace)
                || shown.is_some();
            if is_concerned && !self.gone.is_replaced {
                let processes = processes.iter().filter(|it| !self.gone.settled.contains(it));
                let to = shown.unwrap_or(self.gone.original);
                let path = self.gone.path_in(namespace).to_owned();
                concerned.entry((to, path)).or_default().extend(processes);
            }
        }
        concerned.retain(|_, processes| !processes.is_empty());
        let exchanges = |((to, path), processes): ((FileId, PathBuf), Vec<u32>)| {
            (processes, self.exchanges(to, &path))
        };
        concerned.into_iter().map(exchanges).collect()
    }

    fn exchanges(&self, to: FileId, path: &Path) -> Vec<Exchange> {
        let exchange =
            |(_, copy): &(NodeId, Copy)| Exchange { path: path.into(), from: copy.id, to };
        self.gone.copies.iter().map(exchange).collect()
    }

    /// The copies mounted in a namespace with these processes.
    fn copies_in(&self, namespace: FileId, processes: &[u32]) -> Vec<Mount> {
        let namespace = Namespace::with_any(processes, namespace);
        namespace.map_or_else(Vec::new, |namespace| self.replicator.visitor.copies_in(&namespace))
    }

    /// Takes copies out of a namespace that has them by itself, such as one that was made from a
    /// guest's (unshare(1), a sandbox). Says whether it had any.
    fn clear_stray(&mut self, id: FileId, processes: &[u32], mounts: &[Mount]) -> bool {
        let is_going =
            |mount: &&Mount| self.gone.copies.iter().any(|(_, copy)| is_mount_of(mount, copy));
        let mounts: Vec<_> = mounts.iter().filter(is_going).collect();
        let Some(first) = mounts.first() else { return false };
        if let Some(moved) = &mut self.gone.moved {
            moved.entry(id).or_insert_with(|| first.point.clone());
        }
        if let Some(namespace) = Namespace::with_any(processes, id) {
            for mount in mounts {
                if let Err(error) =
                    self.replicator.visitor.unbind_at(&namespace, &mount.point, mount.device)
                {
                    log!("{}: {error}", escape::text(&mount.point));
                }
            }
        }
        true
    }
}

impl Look for Search<'_> {
    fn look(&mut self, census: &Census) -> Vec<ToDetach> {
        if std::mem::take(&mut self.mounts_may_wait) {
            let concerned = self.concerned(census, |_, _, _| None);
            // Another look follows if there is a process, and reads the mounts of all.
            if !concerned.is_empty() {
                self.mounts_wait = true;
                return concerned;
            }
        }
        self.concerned(census, Self::shown)
    }

    fn meanwhile(&mut self, census: &Census) -> BTreeSet<u32> {
        if !std::mem::take(&mut self.mounts_wait) {
            return BTreeSet::new();
        }
        self.concerned(census, Self::shown);
        // They had a copy within reach until now.
        let strays = self.gone.strays.iter();
        strays.flat_map(|namespace| census.processes(*namespace)).copied().collect()
    }
}

fn is_mount_of(mount: &Mount, copy: &Copy) -> bool {
    copy.id.device == mount.device && mount.root.strip_prefix("/") == Ok(Path::new(&copy.name))
}
