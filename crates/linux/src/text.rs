//! The executed text of domains: who maps it, where its pages lie, and moving them
//! (docs/adr/0018-move-text.md).
//!
//! A look reads `/proc/PID/maps` of the domains' processes (`maps`), and asks for the nodes of the
//! pages in their executable mappings of files (`pages`). Of all other processes it reads the CPU
//! time, and the mappings of those that are busy (`outside`). `numa_maps` is left alone: it walks
//! all page tables of a process, and a virtual machine's are large.

mod maps;
mod outside;
mod pages;

pub use maps::COPIES_SOURCE;

use crate::{cgroup::Tree, sys, threads};
use maps::{FileSystems, Segment};
use nearside_policy::text::{FileId, Order, Placed, TextFile};
use nearside_topology::NodeSet;
use outside::Outside;
use pages::Place;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The most processes whose pages of one file are looked at. Processes that execute a file map much
/// the same of it.
const MAX_PROCESSES: usize = 16;

/// A domain whose text is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextDomain {
    /// Its name.
    pub name: String,
    /// Its cgroup's path.
    pub cgroup: String,
    /// Its home; none before it has one.
    pub home: Option<NodeSet>,
}

/// Looks at text again and again.
#[derive(Debug, Default)]
pub struct TextWatch {
    outside: Outside,
}

/// The text of domains as it was seen.
#[derive(Debug, Default)]
pub struct Look {
    /// The files that domains execute.
    pub files: Vec<TextFile>,
    /// Processes with several threads, by domain with a home of several nodes.
    pub wide: BTreeMap<String, usize>,
    places: BTreeMap<FileId, Vec<Place>>,
}

impl TextWatch {
    /// Looks at the text of `domains`. `now_ns` is the monotonic time; `alive` is called again and
    /// again.
    pub fn look(
        &mut self,
        tree: &Tree,
        proc: &Path,
        domains: &[TextDomain],
        now_ns: u64,
        alive: &dyn Fn(),
    ) -> Look {
        let mut look = Look::default();
        let (mut files, mut systems) =
            (BTreeMap::<FileId, TextFile>::new(), FileSystems::default());
        let mut in_domains = BTreeSet::new();
        for domain in domains {
            let Ok(group) = tree.group(&domain.cgroup) else { continue };
            let is_wide = domain.home.as_ref().is_some_and(|home| home.len() > 1);
            for process in group.all_processes() {
                alive();
                if !in_domains.insert(process) {
                    continue;
                }
                let folder = proc.join(process.to_string());
                let segments = movable(&folder, &mut systems);
                if is_wide && has_several_threads(&folder) {
                    *look.wide.entry(domain.name.clone()).or_default() += 1;
                }
                for segment in segments {
                    let file = files.entry(segment.id).or_insert_with(|| TextFile {
                        id: segment.id,
                        path: segment.path.clone(),
                        process,
                        extent: segment.extent(),
                        ..TextFile::default()
                    });
                    file.users.insert(domain.name.clone(), domain.home.clone());
                    let extent = segment.extent();
                    file.extent.start = file.extent.start.min(extent.start);
                    file.extent.end = file.extent.end.max(extent.end);
                    let places = look.places.entry(segment.id).or_default();
                    let processes = places.chunk_by(|a, b| a.process == b.process).count();
                    let is_known = places.last().is_some_and(|last| last.process == process);
                    if is_known || processes < MAX_PROCESSES {
                        places.push(Place::new(process, &segment));
                    }
                }
            }
        }
        for process in self.outside.busy(proc, &in_domains, now_ns) {
            let maps = crate::read::bytes(&proc.join(format!("{process}/maps")));
            for segment in maps::executable(&maps.unwrap_or_default()) {
                if let Some(file) = files.get_mut(&segment.id) {
                    file.is_busy_outside = true;
                }
            }
        }
        for file in files.values_mut() {
            alive();
            let places = look.places.get(&file.id).map(Vec::as_slice).unwrap_or_default();
            file.runs = pages::runs(proc, places, sys::page_bytes());
        }
        look.files = files.into_values().collect();
        look
    }
}

impl Look {
    /// Moves the pages of an order, whoever maps them.
    pub fn carry_out(&self, proc: &Path, order: &Order, alive: &dyn Fn()) -> Placed {
        let places = self.places.get(&order.file).map(Vec::as_slice).unwrap_or_default();
        pages::carry_out(proc, places, order, sys::page_bytes(), alive)
    }
}

/// The executable segments of a process whose pages may move.
fn movable(folder: &Path, systems: &mut FileSystems) -> Vec<Segment> {
    // A process that ended maps nothing.
    let maps = crate::read::bytes(&folder.join("maps")).unwrap_or_default();
    let segments = maps::executable(&maps);
    if segments.iter().any(|it| systems.is_unknown(it.id)) {
        systems.learn(&crate::read::text(&folder.join("mountinfo")).unwrap_or_default());
    }
    segments.into_iter().filter(|it| systems.may_move(it.id)).collect()
}

fn has_several_threads(folder: &Path) -> bool {
    threads::of_process(folder).is_some_and(|stat| stat.threads > 1)
}
