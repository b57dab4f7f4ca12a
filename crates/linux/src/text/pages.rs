//! The present pages of a file's text, by node, and moving them.

use super::maps::Segment;
use crate::{
    migrate::{self, FilePage},
    sys,
};
use nearside_policy::text::{Order, Placed, Run};
use nearside_topology::NodeId;
use std::{collections::BTreeMap, fs::File, ops::Range, os::unix::fs::FileExt, path::Path};

/// An executable mapping of a file in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) process: i32,
    address: u64,
    /// The offsets in the file.
    extent: Range<u64>,
}

/// `PM_PRESENT` and `PM_FILE` (`Documentation/admin-guide/mm/pagemap.rst`). A page that the process
/// has written is its own, and no page of the file.
const PRESENT_OF_FILE: u64 = 1 << 63 | 1 << 61;

/// Entries of `/proc/PID/pagemap` read at once: 256 KiB for 128 MiB of addresses.
const ENTRIES: u64 = 1 << 15;

impl Place {
    pub(super) fn new(process: i32, segment: &Segment) -> Self {
        Self { process, address: segment.addresses.start, extent: segment.extent() }
    }

    /// Its present pages at offsets that are `wanted`. None if the process has gone, or another
    /// program runs in it.
    fn present(&self, proc: &Path, page_bytes: u64, wanted: impl Fn(u64) -> bool) -> Vec<FilePage> {
        let Ok(pagemap) = File::open(proc.join(format!("{}/pagemap", self.process))) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let pages = (self.extent.end - self.extent.start) / page_bytes;
        let mut bytes = vec![0; usize::try_from(pages.min(ENTRIES) * 8).unwrap_or(0)];
        for first in (0..pages).step_by(ENTRIES as usize) {
            let count = usize::try_from((pages - first).min(ENTRIES)).unwrap_or(0);
            let at = (self.address / page_bytes + first) * 8;
            let Ok(read) = pagemap.read_at(&mut bytes[..count * 8], at) else { break };
            let entries = bytes[..read].chunks_exact(8);
            let entries = entries.map(|it| it.try_into().map_or(0, u64::from_ne_bytes));
            let present = entries
                .zip(first..)
                .filter(|(entry, _)| entry & PRESENT_OF_FILE == PRESENT_OF_FILE);
            found.extend(present.filter_map(|(_, page)| {
                let offset = self.extent.start + page * page_bytes;
                let address = usize::try_from(self.address + page * page_bytes).ok()?;
                wanted(offset).then_some(FilePage { offset, address })
            }));
        }
        found
    }

    /// The nodes of pages, by their offsets.
    fn nodes(&self, pages: &[FilePage]) -> Vec<(u64, NodeId)> {
        let addresses: Vec<_> = pages.iter().map(|page| page.address).collect();
        let nodes = sys::page_nodes(self.process, &addresses).unwrap_or_default();
        let known = pages.iter().zip(nodes);
        known.filter_map(|(page, node)| Some((page.offset, node.ok()?))).collect()
    }
}

/// The present pages in these places.
pub(super) fn runs(proc: &Path, places: &[Place], page_bytes: u64) -> Vec<Run> {
    let mut by_offset = BTreeMap::<u64, NodeId>::new();
    for place in places {
        let unknown = place.present(proc, page_bytes, |offset| !by_offset.contains_key(&offset));
        by_offset.extend(place.nodes(&unknown));
    }
    joined(&by_offset, page_bytes)
}

/// Neighbouring pages of one node as one run.
fn joined(by_offset: &BTreeMap<u64, NodeId>, page_bytes: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (&start, &node) in by_offset {
        let end = start.saturating_add(page_bytes);
        match runs.last_mut().filter(|last| last.end == start && last.node == node) {
            Some(last) => last.end = end,
            None => runs.push(Run { start, end, node }),
        }
    }
    runs
}

/// A page that is to move, and whether any process still maps it.
#[derive(Debug, Clone, Copy)]
struct Pending {
    to: NodeId,
    is_mapped: bool,
}

/// Moves the pages of an order through the processes that map them, and asks where they are then.
pub(super) fn carry_out(
    proc: &Path,
    places: &[Place],
    order: &Order,
    page_bytes: u64,
    alive: &dyn Fn(),
) -> Placed {
    let pages = order.pages.iter().flat_map(|(run, to)| {
        let offsets = (run.start..run.end).step_by(usize::try_from(page_bytes).unwrap_or(4096));
        offsets.map(|offset| (offset, Pending { to: *to, is_mapped: false }))
    });
    let mut pending: BTreeMap<u64, Pending> = pages.collect();
    let mut moved_pages = 0;
    for place in places {
        let mut by_target = BTreeMap::<NodeId, Vec<FilePage>>::new();
        for page in place.present(proc, page_bytes, |offset| pending.contains_key(&offset)) {
            if let Some(it) = pending.get_mut(&page.offset) {
                it.is_mapped = true;
                by_target.entry(it.to).or_default().push(page);
            }
        }
        for (to, pages) in by_target {
            alive();
            for offset in migrate::file_to_node(place.process, &pages, to, page_bytes) {
                moved_pages += u64::from(pending.remove(&offset).is_some());
            }
        }
    }
    let left_pages = pending.values().filter(|it| it.is_mapped).count() as u64;
    let moved_bytes = moved_pages * page_bytes;
    Placed {
        tried_bytes: moved_bytes + left_pages * page_bytes,
        moved_bytes,
        there_bytes: order.there_bytes.saturating_add(moved_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::maps;

    #[test]
    fn neighbours_on_one_node_are_a_run() {
        let pages = [(0, 1), (4096, 1), (8192, 2), (16384, 2), (20480, 2)];
        let by_offset = pages.map(|(offset, node)| (offset, NodeId(node))).into();
        let run = |start, end, node| Run { start, end, node: NodeId(node) };
        assert_eq!(
            joined(&by_offset, 4096),
            [run(0, 8192, 1), run(8192, 12288, 2), run(16384, 24576, 2)]
        );
    }

    /// This process executes its own text, so pages of it are present, on some node.
    #[test]
    fn the_text_of_this_process_is_found() {
        let proc = Path::new("/proc");
        let maps = crate::read::bytes(&proc.join("self/maps")).unwrap();
        let mine = i32::try_from(std::process::id()).unwrap();
        let own = std::env::current_exe().unwrap();
        let segments = maps::executable(&maps);
        let segment = segments.iter().find(|it| Path::new(&it.path) == own).unwrap();
        let runs = runs(proc, &[Place::new(mine, segment)], sys::page_bytes());
        let extent = segment.extent();
        assert!(!runs.is_empty());
        assert!(runs.iter().all(|run| extent.start <= run.start && run.end <= extent.end));
    }
}
