//! Memory of nodes: copies go when it gets tight, and return once there is room.

use super::{Replicator, file::Replicated};
use crate::{
    census::Census, file_id::FileId, mountinfo::mounts, namespace::Namespace, remains::Remains,
    store::Store, users::users, whole,
};
use nearside_linux::Host;
use nearside_policy::{
    PageSize, allocatable,
    replication::{CopyUse, Event, NodeMemory, RECOVERY, least_useful_first, refuge},
};
use nearside_topology::{Node, NodeId, NodeSet, sysfs};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

/// Nodes without copies are looked at so often.
const SLOW: Duration = Duration::from_secs(1);

impl Replicator {
    /// The time until memory is looked at again; none if there is nothing to watch.
    pub(super) fn until_next_look(&self) -> Option<Duration> {
        Some(self.watch.next?.saturating_duration_since(Instant::now()))
    }

    /// Looks at the memory of all nodes, if it is time.
    pub(super) fn look_at_memory(&mut self) {
        let now = Instant::now();
        let is_watched = self.files.values().any(|file| {
            let is_full = || file.life.refused().iter().any(|(_, why)| why.is_no_room());
            !file.copies.is_empty() || !file.jobs.is_empty() || is_full()
        });
        if !is_watched && self.remains.is_empty() {
            self.watch.next = None;
            return;
        }
        if self.watch.next.is_some_and(|next| next > now) {
            return;
        }
        self.remains.retain(Remains::is_held);
        let mut wait = SLOW;
        // A figure that cannot be read now is read in a second.
        if let Ok((topology, _)) = sysfs::read_changes(&self.topology, Path::new("/")) {
            self.topology = topology;
            let nodes: Vec<_> = self.topology.nodes.iter().map(|it| (it.id, memory(it))).collect();
            for (node, memory) in nodes {
                if self.has_memory_on(node) {
                    wait = wait.min(memory.next_look());
                }
                match memory.short_bytes() {
                    0 => self.return_copies(node, memory, now),
                    short_bytes => _ = self.free(node, short_bytes, now),
                }
            }
        }
        self.watch.next = Some(Instant::now() + wait);
    }

    /// A file system that is unmounted takes its files along without a word to those who watch
    /// them, and so does the root of a container. While a copy has the original open, the disk is
    /// in use.
    pub(super) fn forget_unmounted(&mut self) {
        let mountinfo = whole::read("/proc/1/mountinfo").unwrap_or_default();
        let mounted: BTreeSet<u64> = mounts(&mountinfo).iter().map(|mount| mount.device).collect();
        // Subvolumes have devices that no mount has.
        let in_doubt = self
            .files
            .iter()
            .filter(|(id, file)| file.wish.place.image.is_some() || !mounted.contains(&id.device));
        let is_gone = |(id, file): (&FileId, &Replicated)| {
            let there = self.visitor.file_on_host(&file.wish.place.on_host());
            there.is_ok_and(|there| there != Some(*id)).then_some(*id)
        };
        for id in in_doubt.filter_map(is_gone).collect::<Vec<_>>() {
            self.take(id, Event::Replaced);
        }
    }

    /// Takes copies away from nodes until so many bytes are free. Returns the bytes.
    pub(super) fn make_room(&mut self, nodes: &NodeSet, bytes: u64) -> u64 {
        let now = Instant::now();
        let mut freed_bytes = 0;
        for node in nodes.iter() {
            freed_bytes += self.free(node, bytes.saturating_sub(freed_bytes), now);
        }
        freed_bytes
    }

    fn has_memory_on(&self, node: NodeId) -> bool {
        let movable = |it: &Remains| it.node == node && it.is_movable();
        self.has_copies_on(node) || self.remains.iter().any(movable)
    }

    fn has_copies_on(&self, node: NodeId) -> bool {
        self.files.values().any(|file| file.has_memory_on(node))
    }

    /// The memory of former copies that processes keep on a node, in bytes.
    fn kept_bytes(&self, node: NodeId) -> u64 {
        self.remains.iter().filter(|it| it.node == node).map(|it| it.bytes).sum()
    }

    /// Frees memory on a node: moves what processes keep of former copies, and then takes copies
    /// away. Returns the bytes.
    fn free(&mut self, node: NodeId, bytes: u64, now: Instant) -> u64 {
        if bytes == 0 || !self.has_memory_on(node) {
            return 0;
        }
        self.watch.short.insert(node, now);
        let moved_bytes = self.move_remains(node);
        // To choose among copies takes a look at all processes.
        if moved_bytes >= bytes || !self.has_copies_on(node) {
            return moved_bytes;
        }
        let kept_before = self.kept_bytes(node);
        let copies_bytes = self.free_copies(node, bytes - moved_bytes);
        self.move_remains(node);
        let newly_kept_bytes = self.kept_bytes(node).saturating_sub(kept_before);
        moved_bytes + copies_bytes.saturating_sub(newly_kept_bytes)
    }

    /// Moves what processes keep of former copies to a node with room. Returns the bytes.
    fn move_remains(&mut self, from: NodeId) -> u64 {
        if !self.remains.iter().any(|it| it.node == from) {
            return 0;
        }
        let mut nodes = self.unpromised();
        let mut freed_bytes = 0;
        self.remains.retain_mut(|remains| {
            if remains.node != from {
                return true;
            }
            if !remains.is_held() {
                freed_bytes += remains.bytes;
                return false;
            }
            let to = refuge(&nodes, from, remains.bytes).filter(|_| remains.is_movable());
            let Some(to) = to else { return true };
            let moved_bytes = remains.move_to(to).unwrap_or(0);
            freed_bytes += moved_bytes;
            for (_, memory) in nodes.iter_mut().filter(|(node, _)| *node == to) {
                memory.allocatable_bytes = memory.allocatable_bytes.saturating_sub(moved_bytes);
            }
            true
        });
        freed_bytes
    }

    /// The memory of each node that is promised to nobody.
    fn unpromised(&self) -> Vec<(NodeId, NodeMemory)> {
        let nodes = self.topology.nodes.iter().map(|node| (node.id, memory(node)));
        let mut nodes: Vec<_> = nodes.collect();
        // Without a lock: those who ask for room may hold it.
        let host = self.host.clone().and_then(|paths| Host::open(paths).ok());
        let seen = host.and_then(|mut host| host.observe_knowing(&self.topology).ok());
        if let Some(available) = seen.map(|seen| seen.available(PageSize::Base)) {
            for (node, memory) in &mut nodes {
                memory.allocatable_bytes = memory.allocatable_bytes.min(available.on(*node));
            }
        }
        nodes
    }

    /// Takes copies away, the least useful ones first.
    fn free_copies(&mut self, node: NodeId, bytes: u64) -> u64 {
        let users = self.users();
        let mut uses = Vec::new();
        for (id, file) in &self.files {
            uses.extend(file.copies.iter().map(|(node, copy)| CopyUse {
                copy: *id,
                node: *node,
                bytes: copy.bytes,
                users: users.get(&copy.id).copied().unwrap_or(0),
            }));
        }
        let mut freed_bytes = 0;
        for id in least_useful_first(&uses, node, bytes) {
            let copy = self.files.get(&id).and_then(|file| file.copies.get(&node));
            freed_bytes += copy.map_or(0, |copy| copy.bytes);
            self.take(id, Event::Short(node));
        }
        if freed_bytes < bytes {
            // Copies that are being made need more, and their memory comes back.
            let making = self.files.iter().filter(|(_, file)| file.jobs.contains_key(&node));
            let making: Vec<_> = making.map(|(id, _)| *id).collect();
            making.into_iter().for_each(|id| self.take(id, Event::Short(node)));
        }
        freed_bytes
    }

    /// The number of processes that use each copy. Those in the host's own mount namespace count
    /// for nothing: a look at all processes of a host would keep writers waiting, and those find no
    /// copies but by a descriptor that they were sent.
    pub(super) fn users(&self) -> BTreeMap<FileId, u32> {
        let devices = self.stores.iter().map(Store::device).collect();
        let others = [Some(self.visitor.home()), Namespace::of(1).ok().map(|host| host.id())];
        let census = Census::take().unwrap_or_default();
        let namespaces = census.namespaces().filter(|(it, _)| !others.contains(&Some(*it)));
        users(namespaces.flat_map(|(_, processes)| processes).copied(), &devices)
    }

    /// Makes copies again on a node that has recovered.
    fn return_copies(&mut self, node: NodeId, memory: NodeMemory, now: Instant) {
        let waiting = self.files.iter().filter(|(_, file)| {
            let refused = file.life.refused();
            refused.iter().any(|(refused, why)| *refused == node && why.is_no_room())
        });
        let waiting: Vec<(FileId, u64)> =
            waiting.map(|(id, file)| (*id, file.original.version.bytes)).collect();
        if waiting.is_empty() {
            return;
        }
        let since = *self.watch.short.entry(node).or_insert(now);
        if now.duration_since(since) < RECOVERY {
            return;
        }
        // The next try is as far away if this one fails.
        self.watch.short.insert(node, now);
        let mut bytes = 0_u64;
        for (id, needed_bytes) in waiting {
            let all_bytes = bytes.saturating_add(needed_bytes);
            let budget = self.store(node).map_or(0, Store::free_bytes);
            let has_room = memory.has_room_for(all_bytes) && all_bytes <= budget;
            if has_room && self.watch.may_try(id, node, now) {
                bytes = all_bytes;
                self.take(id, Event::Room(node));
            }
        }
    }
}

fn memory(node: &Node) -> NodeMemory {
    let allocatable_bytes = allocatable(node, PageSize::Base).allocatable_bytes;
    NodeMemory { total_bytes: node.memory_bytes, allocatable_bytes }
}
