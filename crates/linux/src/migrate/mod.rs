//! Moving a domain's pages to other nodes (docs/adr/0005-moving-pages.md).
//!
//! A move makes several passes over the group's processes. Each pass reads the mappings that still
//! have pages off the target (`areas`), and moves them in batches (`batch`) that keep to a rate
//! (`pace`). Each page goes to a target with room, as claimed (`target`). A daemon moves parts of
//! several domains at a time (`part`). Only the domain's own memory moves: anonymous, shared and
//! huge pages, and written pages of private file mappings. Memory that no process maps is reported
//! (`unmapped`). The memory needed for a move does not grow with the domain.

mod areas;
mod batch;
mod extent;
#[cfg(test)]
mod fake;
mod folios;
mod pace;
mod part;
mod target;
mod unmapped;

pub use extent::Extent;
pub(crate) use folios::FilePage;
pub(crate) use pace::MAX_NAP;
pub use part::{Chunk, Moving, Part, Walk};

use crate::{
    cgroup::Cgroup,
    memory::{self, Kind, Mapping},
    sys::{self, PageStatus},
    unmovable::Unmovable,
};
use areas::{Area, Wanted};
use batch::{Kernel, Page, Settled};
use nearside_policy::{Claim, Outcome, PageSize, Progress, Stayed, StayedWhy, debt_bytes};
use nearside_topology::{NodeId, NodeSet, Topology};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    io,
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
    thread,
    time::Instant,
};
use target::Targets;

/// The most passes over all processes. Without a bound, the move of a domain that allocates off the
/// target faster than pages move would never end.
const PASSES: usize = 6;

/// The number of passes that try a busy page.
const TRIES: usize = 3;

/// Addresses with pages off `nodes` and the size of these pages, from the text of a process's
/// `numa_maps` and `maps`: for the fuzzer.
#[doc(hidden)]
pub fn areas_off(numa_maps: &str, maps: &str, nodes: &NodeSet) -> Vec<(Range<u64>, u64)> {
    let areas = areas::parse(numa_maps, maps, &Wanted::Off(nodes.clone())).areas;
    areas.into_iter().map(|area| (area.start..area.end, area.page_bytes)).collect()
}

/// The outcome for a domain's pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// Bytes that moved.
    pub moved_bytes: u64,
    /// Bytes that stayed off the target, by reason. A shared object that several processes map
    /// counts once.
    pub stayed: Stayed,
    /// Bytes that were freed or swapped out, or whose process ended, before they could move. This
    /// is no failure.
    pub gone_bytes: u64,
    /// Bytes of mapped files off the target. They belong to the page cache and stay where they are,
    /// because other domains may use them.
    pub file_bytes: u64,
    /// Bytes of guest_memfd, wherever they are: no call moves them, and none tells their nodes.
    pub guest_memfd_bytes: u64,
    /// Processes whose mappings could not be read, and the reason.
    pub unread: Vec<String>,
    /// True if it was interrupted.
    pub interrupted: bool,
}

impl Moved {
    /// Notices for the user beyond the outcome. `is_narrowed_next` is true if the domain's
    /// `cpuset.mems` will be narrowed next.
    pub fn notices(&self, is_narrowed_next: bool) -> Vec<String> {
        let mib = |bytes: u64| bytes >> 20;
        let mut notices = Vec::new();
        if mib(self.file_bytes) > 0 {
            // cpuset_migrate_mm moves all mapped pages with MPOL_MF_MOVE_ALL
            // (kernel/cgroup/cpuset.c).
            let fate = if is_narrowed_next {
                "are taken along by the kernel"
            } else {
                "stay where they are"
            };
            let bytes = mib(self.file_bytes);
            notices.push(format!("{bytes} MiB of mapped files, which others may use, too, {fate}"));
        }
        if mib(self.guest_memfd_bytes) > 0 {
            let bytes = mib(self.guest_memfd_bytes);
            notices.push(format!(
                "{bytes} MiB of guest_memfd stay where they are: no call moves them"
            ));
        }
        if mib(self.gone_bytes) > 0 {
            notices.push(format!(
                "{} MiB were freed or swapped out before they could move",
                mib(self.gone_bytes)
            ));
        }
        let unread = |why: &String| format!("the memory of a process was left alone: {why}");
        notices.extend(self.unread.iter().map(unread));
        notices
    }

    /// As the outcome of an action.
    pub fn into_outcome(self) -> Outcome {
        let Self { moved_bytes, stayed, interrupted, .. } = self;
        match stayed.is_empty() && !interrupted {
            true => Outcome::Applied { moved_bytes },
            false => Outcome::Partly { moved_bytes, stayed, interrupted },
        }
    }
}

/// Moves the memory of all processes in `group` that lies off `nodes` to these nodes, so that each
/// gets its part of `claim`. Memory on one of them stays there. Of a cell, the memory of `extent`
/// moves.
///
/// `rate_bytes_per_s` bounds the rate, if given. `progress` is called before each batch, and at
/// least every 100 ms, and decides whether to go on.
pub fn move_group(
    (group, extent): (&Cgroup, &Extent),
    proc: &Path,
    topology: &Topology,
    nodes: &NodeSet,
    claim: &Claim,
    rate_bytes_per_s: Option<u64>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Moved {
    let held = memory::of_group(group, proc);
    // Of a cell it is an upper bound.
    let total_bytes = debt_bytes(&held.own(), nodes);
    let page_bytes = match claim.page_size {
        PageSize::Base => sys::page_bytes(),
        PageSize::Huge(bytes) => bytes,
    };
    let there = held.resident(claim.page_size);
    let targets = Targets::new(topology, nodes).promised(page_bytes, &claim.bytes, &there);
    let mut mover = Mover {
        proc,
        extent,
        wanted: Wanted::Off(nodes.clone()),
        targets,
        rate_bytes_per_s,
        progress,
        total_bytes,
        left_bytes: u64::MAX,
        batches_left: None,
        is_spent: false,
        moved: Moved::default(),
        pass: Pass::default(),
    };
    for number in 1..=PASSES {
        let before_bytes = mover.moved.moved_bytes;
        mover.pass = Pass::default();
        mover.targets.look_again();
        let processes: BTreeSet<_> = group.all_processes().into_iter().collect();
        mover.moved.interrupted =
            processes.into_iter().any(|process| mover.process(process).is_break());
        // Moved pages may have been replaced by new ones, also in new processes. A pass that finds
        // no page to move proves that none is left.
        let moved_some = mover.moved.moved_bytes > before_bytes;
        let busy = mover.pass.stayed().contains_key(&StayedWhy::Busy);
        if mover.moved.interrupted || !(moved_some || busy && number < TRIES) {
            break;
        }
    }
    let Mover { mut moved, pass, .. } = mover;
    moved.file_bytes =
        debt_bytes(&memory::mapped(pass.files.iter().map(Vec::as_slice)).file, nodes);
    moved.stayed = pass.stayed();
    moved.unread = pass.unread;
    moved.guest_memfd_bytes = Unmovable::of_all(&group.all_processes(), proc).guest_memfd_bytes;
    // The group's figures tell nothing about a cell.
    if !moved.interrupted && *extent == Extent::Group {
        let online_cpus = topology.cpus.iter().filter(|cpu| cpu.online).count();
        let unmapped_bytes = unmapped::bytes_off(group, proc, nodes, online_cpus);
        moved.stayed.extend((unmapped_bytes > 0).then_some((StayedWhy::NotMapped, unmapped_bytes)));
    }
    moved
}

/// Moves pages of a file that a process maps, whoever else maps them, to a node. Returns the
/// offsets of those that lie there afterwards.
pub(crate) fn file_to_node(
    process: i32,
    pages: &[FilePage],
    node: NodeId,
    page_bytes: u64,
) -> BTreeSet<u64> {
    folios::to_node(&mut OfProcess { process, all: true }, pages, node, page_bytes)
}

/// The remainders of one pass over all processes.
#[derive(Debug, Default)]
struct Pass {
    private: Stayed,
    /// By object: the remainder in the process with the largest one.
    shared: BTreeMap<String, Stayed>,
    /// The remainder of the present process by object; private memory has none.
    here: BTreeMap<Option<String>, Stayed>,
    /// The folder of that process.
    at: PathBuf,
    /// The mappings of files, by process.
    files: Vec<Vec<Mapping>>,
    unread: Vec<String>,
}

impl Pass {
    /// Begins or continues a process.
    fn enter(&mut self, process: &Path) {
        if self.at != process {
            self.leave();
            self.at = process.into();
        }
    }

    /// Closes the account of the present process.
    fn leave(&mut self) {
        let here = std::mem::take(&mut self.here);
        let is_busy = here.values().any(|stayed| stayed.contains_key(&StayedWhy::Busy));
        let by_device = is_busy && Unmovable::of(&self.at).vfio;
        for (object, mut stayed) in here {
            if by_device && let Some(bytes) = stayed.remove(&StayedWhy::Busy) {
                stayed.insert(StayedWhy::Device, bytes);
            }
            self.add(object, &stayed);
        }
    }

    fn add(&mut self, object: Option<String>, stayed: &Stayed) {
        let sum = |stayed: &Stayed| stayed.values().sum::<u64>();
        match object.map(|object| self.shared.entry(object).or_default()) {
            None => add(&mut self.private, stayed),
            Some(most) if sum(stayed) > sum(most) => *most = stayed.clone(),
            Some(_) => {}
        }
    }

    fn stayed(&self) -> Stayed {
        let mut all = self.private.clone();
        self.shared.values().for_each(|stayed| add(&mut all, stayed));
        all
    }
}

fn add(all: &mut Stayed, more: &Stayed) {
    for (&why, bytes) in more {
        *all.entry(why).or_default() += bytes;
    }
}

struct Mover<'a> {
    proc: &'a Path,
    extent: &'a Extent,
    wanted: Wanted,
    targets: Targets<'a>,
    rate_bytes_per_s: Option<u64>,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    total_bytes: u64,
    /// Bytes that may still be tried.
    left_bytes: u64,
    /// The batches until another domain's turn; the caller then also rests. Without a number, the
    /// move goes on to its end and rests itself.
    batches_left: Option<usize>,
    /// True if memory was left alone because no more may be tried.
    is_spent: bool,
    moved: Moved,
    pass: Pass,
}

impl Mover<'_> {
    /// Moves the wanted pages of one process.
    fn process(&mut self, process: i32) -> ControlFlow<()> {
        let mut areas = self.areas_of(process);
        let flow = self.areas(process, &mut areas);
        self.pass.leave();
        flow
    }

    /// Reads the areas of one process with wanted pages.
    fn areas_of(&mut self, process: i32) -> VecDeque<Area> {
        let directory = self.proc.join(process.to_string());
        match areas::read(&directory, &self.wanted) {
            Ok(areas) => {
                self.pass.files.push(
                    areas
                        .mappings
                        .into_iter()
                        .filter(|mapping| mapping.kind == Kind::File)
                        .collect(),
                );
                let is_its = |area: &Area| self.extent.has(process, area.start);
                areas.areas.into_iter().filter(is_its).collect()
            }
            Err(error) => {
                self.unread(&directory, &error);
                VecDeque::new()
            }
        }
    }

    fn unread(&mut self, directory: &Path, error: &crate::Error) {
        // A process that ended has nothing left to move.
        if directory.exists() {
            self.pass.unread.push(error.to_string());
        }
    }

    /// Moves the pages in these areas of a process, and removes finished areas.
    fn areas(&mut self, process: i32, areas: &mut VecDeque<Area>) -> ControlFlow<()> {
        let directory = self.proc.join(process.to_string());
        let path = directory.join("pagemap");
        let pagemap = match File::open(&path) {
            Ok(pagemap) => pagemap,
            Err(source) => {
                areas.clear();
                self.unread(&directory, &crate::Error::File { path, source });
                return ControlFlow::Continue(());
            }
        };
        let mut kernel = OfProcess { process, all: true };
        self.pass.enter(&directory);
        while let Some(area) = areas.front_mut() {
            let mut stayed = self.pass.here.remove(&area.object).unwrap_or_default();
            let flow = self.area(area, &pagemap, &mut kernel, &mut stayed);
            self.pass.here.insert(area.object.clone(), stayed);
            flow?;
            areas.pop_front();
        }
        ControlFlow::Continue(())
    }

    /// Moves the pages of one mapping, and adds the remainder to `stayed`. The area becomes the
    /// rest of it.
    fn area(
        &mut self,
        area: &mut Area,
        pagemap: &File,
        kernel: &mut OfProcess,
        stayed: &mut Stayed,
    ) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        let (mut seen, mut reached) = (0, area.start);
        let behind = |address: usize| address as u64 + area.page_bytes;
        // An error means that the process or the mapping has gone.
        let _ = areas::each_batch(area, pagemap, sys::page_bytes(), &mut |addresses| {
            for addresses in addresses.chunks(pace::MAX_PAGES) {
                let pages = on_wanted(kernel, &self.wanted, addresses)?;
                let mut left = pages.as_slice();
                while let Some(last) = left.len().checked_sub(1) {
                    let most = pace::batch_pages(self.rate_bytes_per_s, area.page_bytes);
                    let affordable =
                        usize::try_from(self.left_bytes / area.page_bytes).unwrap_or(usize::MAX);
                    let (now, later) = left.split_at(most.min(affordable).min(last + 1));
                    self.is_spent = now.is_empty();
                    flow = match self.is_spent || self.batches_left == Some(0) {
                        true => ControlFlow::Break(()),
                        false => self.batch(area, now, kernel, stayed),
                    };
                    if flow.is_break() {
                        return Ok(flow);
                    }
                    seen += now.len() as u64;
                    reached = now.last().map_or(reached, |page| behind(page.address));
                    left = later;
                }
                reached = addresses.last().map_or(reached, |&address| behind(address));
                flow = self.tell(stayed);
                if flow.is_break() || area.wanted_pages.is_some_and(|pages| seen >= pages) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        });
        area.start = reached.min(area.end);
        area.wanted_pages = area.wanted_pages.map(|pages| pages.saturating_sub(seen));
        flow
    }

    /// Moves one batch and rests as long as the rate asks for.
    fn batch(
        &mut self,
        area: &Area,
        pages: &[Page],
        kernel: &mut OfProcess,
        stayed: &mut Stayed,
    ) -> ControlFlow<()> {
        self.tell(stayed)?;
        let started = Instant::now();
        self.left_bytes = self.left_bytes.saturating_sub(pages.len() as u64 * area.page_bytes);
        let settled = batch::settle(kernel, &mut self.targets, area.page_bytes, pages.to_vec());
        let took = started.elapsed();
        let moved_bytes = settled.moved * area.page_bytes;
        self.count(settled, area, stayed);
        if let Some(batches) = &mut self.batches_left {
            *batches = batches.saturating_sub(1);
            return ControlFlow::Continue(());
        }
        let rest = pace::rest(self.rate_bytes_per_s, moved_bytes, took);
        let rested = Instant::now();
        while let Some(left) = rest.checked_sub(rested.elapsed()).filter(|left| !left.is_zero()) {
            thread::sleep(left.min(pace::MAX_NAP));
            self.tell(stayed)?;
        }
        ControlFlow::Continue(())
    }

    fn count(&mut self, settled: Settled, area: &Area, stayed: &mut Stayed) {
        self.moved.moved_bytes += settled.moved * area.page_bytes;
        self.moved.gone_bytes += settled.gone * area.page_bytes;
        for (why, pages) in settled.stayed {
            let why =
                if area.huge && why == StayedWhy::NoRoom { StayedWhy::NoHugePage } else { why };
            *stayed.entry(why).or_default() += pages * area.page_bytes;
        }
    }

    fn tell(&mut self, stayed: &Stayed) -> ControlFlow<()> {
        let stayed_bytes: u64 = stayed.values().chain(self.pass.stayed().values()).sum();
        let done_bytes = self.moved.moved_bytes + self.moved.gone_bytes + stayed_bytes;
        // The kernel's figures lag, and the domain keeps allocating.
        self.total_bytes = self.total_bytes.max(done_bytes);
        (self.progress)(Progress { done_bytes, total_bytes: self.total_bytes })
    }
}

/// The wanted pages among `addresses`. Missing pages and pages of no node (the zero page, device
/// memory) do not count.
fn on_wanted(
    kernel: &mut OfProcess,
    wanted: &Wanted,
    addresses: &[usize],
) -> io::Result<Vec<Page>> {
    let lie = kernel.nodes(addresses)?;
    let page = |(&address, lies): (&usize, PageStatus)| Some(Page { address, from: lies.ok()? });
    Ok(addresses.iter().zip(lie).filter_map(page).filter(|page| wanted.holds(page.from)).collect())
}

/// The pages of one process, by system calls.
struct OfProcess {
    process: i32,
    /// True if pages that other processes map may move; an attempt finds out.
    all: bool,
}

impl Kernel for OfProcess {
    fn nodes(&mut self, addresses: &[usize]) -> io::Result<Vec<PageStatus>> {
        sys::page_nodes(self.process, addresses)
    }

    fn move_to(&mut self, addresses: &[usize], node: NodeId) -> io::Result<Vec<PageStatus>> {
        let to = vec![node; addresses.len()];
        match sys::move_pages(self.process, addresses, &to, self.all) {
            Err(error) if self.all && error.raw_os_error() == Some(libc::EPERM) => {
                self.all = false;
                sys::move_pages(self.process, addresses, &to, false)
            }
            moved => moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_object_that_stays_counts_once() {
        let stayed = |bytes| Stayed::from([(StayedWhy::NoRoom, bytes)]);
        let mut pass = Pass::default();
        pass.add(None, &stayed(10));
        pass.add(None, &stayed(10));
        pass.add(Some("00:01 7".into()), &stayed(100));
        pass.add(Some("00:01 7".into()), &stayed(40));
        pass.add(Some("00:01 8".into()), &stayed(5));
        assert_eq!(pass.stayed(), stayed(125));
    }

    #[test]
    fn guest_memfd_is_named() {
        let moved = Moved { guest_memfd_bytes: 3 << 20, ..Moved::default() };
        assert_eq!(
            moved.notices(false),
            ["3 MiB of guest_memfd stay where they are: no call moves them"]
        );
    }

    #[test]
    fn memory_that_is_gone_was_not_left_behind() {
        let moved = Moved { moved_bytes: 5, gone_bytes: 7, file_bytes: 9, ..Moved::default() };
        assert_eq!(moved.into_outcome(), Outcome::Applied { moved_bytes: 5 });
    }
}
