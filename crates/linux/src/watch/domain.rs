//! One domain: its files, and its last sample.

use super::{
    cells::{self, Parts, part_of_thread},
    cpu::{self, ThreadUse},
    depth::{self, Depth},
    kept::{Buffer, Kept},
};
use crate::{
    actuator::owner,
    cgroup::Cgroup,
    confine::cpus_of_others,
    guest::GuestCell,
    huge::{self, HugePages},
    memory::{self, MemoryByKind},
    oom::{self, OomKills},
    store::Record,
    sys,
    threads::{self, CpuUse, Threads},
    usage::{Account, Usage},
    vm::cells_of,
};
use nearside_policy::{ByNode, CgroupId, Claim, Home, Owner, PartId, PartLoad, PartState, total};
use nearside_topology::{NodeId, NodeSet, Topology};
use std::{collections::BTreeMap, path::Path};

/// The files of a domain that stay open.
pub(super) const FILES: u64 = 5;

/// A domain that uses less of a CPU than this, in thousandths, is idle; its threads are then not
/// read.
const BUSY_MILLI: u64 = 10;

/// The common input of the samples of all domains.
#[derive(Debug)]
pub(super) struct Look<'a> {
    pub(super) now_ns: u64,
    pub(super) interval: u64,
    pub(super) proc: &'a Path,
    /// The machine as offered to domains.
    pub(super) offered: &'a Topology,
    pub(super) has_huge_pages: bool,
    pub(super) systemd: bool,
    /// CPU time that a scheduler counted, by the inode of the domain's cgroup.
    pub(super) scheduler: Option<&'a BTreeMap<u64, ByNode>>,
    /// Threads that may still be read in this interval.
    pub(super) threads_left: usize,
    /// True if the threads of some domain exceeded that number.
    pub(super) is_short: bool,
}

/// A domain that is watched.
#[derive(Debug)]
pub(super) struct Watched {
    group: Cgroup,
    inode: u64,
    stays_open: bool,
    events: Kept,
    cpu_stat: Kept,
    memory_current: Kept,
    numa_stat: Kept,
    memory_events: Kept,
    looks: u64,
    /// True if anything has changed about it since its last thorough sample, or may have.
    has_stirred: bool,
    /// The time and the interval of the last sample.
    looked_ns: u64,
    looked_in: u64,
    usage_ns: Option<u64>,
    by_scheduler: Option<ByNode>,
    threads: Threads,
    threads_ns: Option<u64>,
    /// CPU time over the interval of the last read of its threads; none after idle ones.
    used_ns: Option<u64>,
    /// Its home at that read.
    home_then: Option<Home>,
    /// The nodes its threads ran on at that read.
    ran_on: ByNode,
    /// The time that its threads had waited by then, and over which interval.
    waited: Waited,
    /// True if something other than Nearside has set CPUs of its cpuset.
    has_cpuset: bool,
    /// True if it is a guest with several cells.
    has_cells: bool,
    /// The cells of that guest; none until it was looked at.
    cells: Vec<GuestCell>,
    /// Its parts at the last read of its threads.
    by_part: Vec<PartThreads>,
    /// The nodes that something other than Nearside confines its memory to.
    others_memory_nodes: Option<NodeSet>,
    huge: HugePages,
    mapped: MemoryByKind,
    memory: MemoryByKind,
    memory_seen: Account,
    oom_kills: Option<OomKills>,
    /// Its charge when its memory was read by node.
    charged_bytes: Option<u64>,
    processes: usize,
    /// CPU time by node over the interval of the last sample.
    time_ns: ByNode,
    resident_bytes: ByNode,
    reserved_bytes: u64,
    /// The loads of its parts that no observation has passed on yet.
    loads: BTreeMap<PartId, PartLoad>,
}

impl Watched {
    pub(super) fn new(group: Cgroup, inode: u64, stays_open: bool) -> Self {
        Self {
            group,
            inode,
            stays_open,
            events: Kept::of_one_record("cgroup.events"),
            cpu_stat: Kept::of_one_record("cpu.stat"),
            memory_current: Kept::of_one_record("memory.current"),
            numa_stat: Kept::of_one_record("memory.numa_stat"),
            memory_events: Kept::of_one_record(oom::FILE),
            looks: 0,
            has_stirred: true,
            looked_ns: 0,
            looked_in: 0,
            usage_ns: None,
            by_scheduler: None,
            threads: Threads::new(),
            threads_ns: None,
            used_ns: None,
            home_then: None,
            ran_on: ByNode::new(),
            waited: Waited::default(),
            has_cpuset: false,
            has_cells: false,
            cells: Vec::new(),
            by_part: vec![PartThreads::default()],
            others_memory_nodes: None,
            huge: HugePages::new(),
            mapped: MemoryByKind::default(),
            memory: MemoryByKind::default(),
            memory_seen: Account::default(),
            oom_kills: None,
            charged_bytes: None,
            processes: 0,
            time_ns: ByNode::new(),
            resident_bytes: ByNode::new(),
            reserved_bytes: 0,
            loads: BTreeMap::new(),
        }
    }

    /// The inode of its group.
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// The path of its group.
    pub(super) fn path(&self) -> &str {
        self.group.path()
    }

    /// Its record has changed, or the machine: its next thorough sample is not put off.
    pub(super) fn stir(&mut self) {
        self.has_stirred = true;
    }

    /// True if it is a guest of several cells.
    pub(super) fn has_cells(&self) -> bool {
        self.has_cells
    }

    /// The memory that it held in the last sample, as compared to this claim, by node, in bytes.
    pub(super) fn resident_for(&self, claim: Option<&Claim>) -> ByNode {
        self.memory.compared_to(claim)
    }

    /// True before its first sample.
    pub(super) fn is_new(&self) -> bool {
        self.looks == 0
    }

    /// True if its files stay open.
    pub(super) fn stays_open(&self) -> bool {
        self.stays_open
    }

    /// True if a process is in it. If that is unknown, the domain counts as living.
    pub(super) fn is_populated(&mut self, buffer: &mut Buffer) -> bool {
        match self.events.try_read(self.group.directory(), self.stays_open, buffer) {
            Ok(events) => {
                events.is_some_and(|events| events.lines().any(|line| line == "populated 1"))
            }
            Err(_) => true,
        }
    }

    /// Sets the cells of a guest as they were looked at.
    pub(super) fn set_cells(&mut self, mut cells: Vec<GuestCell>) {
        // In the order of the record's parts.
        cells.sort_by_key(|cell| cell.cell);
        self.cells = cells;
        self.stir();
    }

    /// Its cells as they were looked at last; none if it is no guest with several.
    pub(super) fn cells(&self) -> &[GuestCell] {
        &self.cells
    }

    /// True if its record has other parts than it has now: its cells became known, or another
    /// virtual machine runs in the group.
    pub(super) fn has_other_parts(&self, record: &Record) -> bool {
        let has_none = !self.is_new() && !self.has_cells && record.found_by.is_some();
        cells::is_outdated(&self.cells, record) || has_none && record.part().cell.is_some()
    }

    /// The names of its parts.
    pub(super) fn ids(&self, name: &str, record: Option<&Record>) -> Vec<PartId> {
        cells::ids(cells::parts(&self.cells, record), name, &self.cells, record)
    }

    /// The last sample of its parts, with its record.
    pub(super) fn states(&self, name: &str, record: Option<&Record>) -> Vec<PartState> {
        let recorded: Vec<_> = record.into_iter().flat_map(Record::parts).collect();
        let homes: Vec<_> = match recorded[..] {
            [] => vec![None; self.cells.len()],
            _ => recorded.iter().map(|part| Some(&part.home.nodes)).collect(),
        };
        let resident_bytes = match cells::parts(&self.cells, record) {
            Parts::Whole => vec![self.resident_bytes.clone()],
            Parts::Cells => cells::split_memory(&self.resident_bytes, &self.cells, &homes),
            Parts::Unknown => vec![ByNode::new(); recorded.len()],
        };
        let state = |(at, (id, resident_bytes)): (usize, (PartId, ByNode))| {
            let part = recorded.get(at);
            let claim = part.and_then(|part| part.claim.as_ref());
            // Other memory than that of cells counts for the first one.
            let of_first = |bytes: ByNode| match at {
                0 => at_most(bytes, &resident_bytes),
                _ => ByNode::new(),
            };
            PartState {
                id,
                cgroup: CgroupId(self.inode),
                home: part.map(|part| part.home.clone()),
                claim: claim.cloned(),
                memory_nodes: match part.and_then(|part| part.memory_nodes.clone()) {
                    Some(own) => Some(own),
                    None => self.others_memory_nodes.clone(),
                },
                kernel_bytes: of_first(self.memory.kept_by_kernel(claim)),
                unmapped_bytes: of_first(self.memory.unmapped_by_any(claim)),
                reserved_bytes: if at == 0 { self.reserved_bytes } else { 0 },
                resident_bytes,
                mover: part.and_then(|part| part.mover.as_ref()).map(|mover| mover.pid),
            }
        };
        self.ids(name, record).into_iter().zip(resident_bytes).enumerate().map(state).collect()
    }

    /// The nodes that its memory cannot leave, whoever bound it.
    pub(super) fn bound_memory_nodes(
        &self,
        name: &str,
        record: Option<&Record>,
    ) -> Option<NodeSet> {
        let states = self.states(name, record);
        let confined = states.into_iter().filter_map(|part| part.memory_nodes);
        let confined = confined.reduce(|all, nodes| all.union(&nodes));
        confined.or_else(|| record?.bound_memory_nodes())
    }

    /// The present count of its kills for lack of memory.
    pub(super) fn read_oom_kills(&mut self, buffer: &mut Buffer) -> Option<OomKills> {
        let folder = self.group.directory();
        self.memory_events.read(folder, self.stays_open, buffer).and_then(OomKills::parse)
    }

    /// Its use in the last sample. Threads and the nodes of memory are at most as old as the last
    /// close sample, or as the last change of its CPU time or of its charge; processes and idle
    /// threads are at most as old as the last thorough one.
    pub(super) fn usage(&self) -> Usage {
        let mut threads = ByNode::new();
        for thread in self.threads.values() {
            *threads.entry(thread.node).or_default() += 1;
        }
        Usage {
            processes: self.processes,
            cpu: CpuUse { threads, time_ns: self.time_ns.clone() },
            memory: self.memory.clone(),
            memory_seen: self.memory_seen,
            hidden_processes: if self.memory_seen == Account::Hidden { self.processes } else { 0 },
            oom_kills: self.oom_kills,
        }
    }

    /// Its kills for lack of memory, as of the last sample.
    pub(super) fn oom_kills(&self) -> Option<OomKills> {
        self.oom_kills
    }

    /// Takes the loads of its parts since the last ones that were taken. Empty if it was not
    /// sampled since, or for the first time.
    pub(super) fn take_loads(&mut self) -> BTreeMap<PartId, PartLoad> {
        std::mem::take(&mut self.loads)
    }

    /// Samples the loads of its parts, and its memory. The first sample has no load, since there is
    /// no earlier one to compare with; nor has one while nothing is known about each part.
    /// `has_moved`: pages of it were moved since.
    pub(super) fn observe(
        &mut self,
        look: &mut Look<'_>,
        (name, record): (&str, Option<&Record>),
        has_moved: bool,
        buffer: &mut Buffer,
    ) {
        let usage_ns = self.read_usage_ns(buffer);
        let has_run = usage_ns.is_none() || usage_ns != self.usage_ns;
        // Others who have bound it may bind it anew at any time, and homes follow bindings.
        self.has_stirred |= has_run || has_moved || self.is_kept();
        let depth = depth::of(&depth::Facts {
            looks: self.looks,
            inode: self.inode,
            has_paused: look.interval.saturating_sub(self.looked_in) > 1,
            has_stirred: self.has_stirred,
        });
        self.has_stirred &= depth != Depth::Thorough;
        let owner = owner(self.group.path(), look.systemd);
        // libvirt puts a guest's process into the group before it becomes QEMU. Other groups may
        // have many processes. The domain of a `run` has one part.
        let is_found = record.is_none_or(|record| record.found_by.is_some());
        let is_libvirts = owner == Owner::Libvirt;
        let is_due = match depth {
            Depth::Thorough => true,
            Depth::Close => depth::is_young(self.looks) || is_libvirts,
            Depth::Quick | Depth::Still => false,
        };
        if is_found && is_due {
            self.has_cells = cells_of(&self.group.all_processes(), look.proc, is_libvirts) > 1;
            if !self.has_cells {
                self.cells.clear();
            }
        }
        let of_memory = if has_moved { Depth::Thorough } else { depth };
        self.sample_memory(look, record, of_memory, buffer);
        let over_ns = look.now_ns.saturating_sub(self.looked_ns);
        let (cpu_ns, waited_ns) = self.sample_cpu(look, record, over_ns, depth, usage_ns);
        self.time_ns.clone_from(&cpu_ns);
        let is_first = self.looks == 0;
        self.looks += 1;
        (self.looked_ns, self.looked_in) = (look.now_ns, look.interval);
        let parts = cells::parts(&self.cells, record);
        if is_first || over_ns == 0 || parts == Parts::Unknown {
            return;
        }
        let ids = self.ids(name, record);
        let each = self.by_part.iter();
        let (cpu_ns, waited_ns) = match parts {
            Parts::Cells => {
                let ran_on: Vec<_> = each.clone().map(|part| part.ran_on.clone()).collect();
                let waits: Vec<_> = each.map(|part| part.waited_ns).collect();
                (cells::split_time(&cpu_ns, &ran_on), cells::shares(waited_ns, &waits))
            }
            Parts::Whole | Parts::Unknown => (vec![cpu_ns], vec![waited_ns]),
        };
        let load = |(at, (cpu_ns, waited_ns)): (usize, (ByNode, u64))| PartLoad {
            over_ns,
            cpu_ns,
            waited_ns,
            owner,
            has_cells: self.has_cells && parts == Parts::Whole,
            bound_to: self.by_part.get(at).and_then(|part| part.bound_to.clone()),
            has_cpuset: self.has_cpuset,
            near: record
                .and_then(|record| record.parts().nth(at)?.decision.as_ref())
                .map(|decision| decision.request.near.clone())
                .unwrap_or_default(),
        };
        let loads = cpu_ns.into_iter().zip(waited_ns).enumerate().map(load);
        // Those of former parts, before the cells were known, go.
        let mut earlier = std::mem::take(&mut self.loads);
        let following = |(id, load): (PartId, PartLoad)| match earlier.remove(&id) {
            Some(earlier) => (id, load.following(earlier)),
            None => (id, load),
        };
        self.loads = ids.into_iter().zip(loads).map(following).collect();
    }

    /// Its CPU time since its group was made.
    fn read_usage_ns(&mut self, buffer: &mut Buffer) -> Option<u64> {
        let text = self.cpu_stat.read(self.group.directory(), self.stays_open, buffer);
        text.and_then(usage_ns)
    }

    /// True if something other than Nearside kept it on CPUs or nodes when its threads were read.
    fn is_kept(&self) -> bool {
        self.by_part.iter().any(|part| part.bound_to.is_some()) || self.has_cpuset
    }

    fn sample_memory(
        &mut self,
        look: &Look<'_>,
        record: Option<&Record>,
        depth: Depth,
        buffer: &mut Buffer,
    ) {
        let is_thorough = depth == Depth::Thorough;
        // Nothing has changed, so a file that was missing is taken for missing still.
        let again = depth != Depth::Still;
        let claim = record.and_then(|record| record.part().claim.as_ref());
        if !look.has_huge_pages {
            self.huge.clear();
        } else if is_thorough {
            self.huge = huge::of_group(&self.group, look.proc);
        }
        if is_thorough {
            self.processes = self.group.all_processes().len();
        }
        let folder = self.group.directory();
        let stays_open = self.stays_open;
        let charged_bytes = self.memory_current.read_known(folder, stays_open, again, buffer);
        let charged_bytes = charged_bytes.and_then(|text| text.trim().parse().ok());
        let is_as_before = charged_bytes
            .zip(self.charged_bytes)
            .is_some_and(|(now, before)| is_about(now, before));
        if depth >= Depth::Close || !is_as_before {
            self.charged_bytes = charged_bytes;
            (self.memory, self.memory_seen) =
                match self.numa_stat.read_known(folder, stays_open, again, buffer) {
                    Some(text) => (memory::charged_by(text, self.huge.clone()), Account::Charged),
                    None => {
                        if is_thorough {
                            self.mapped = memory::mapped_by(&self.group, look.proc);
                        }
                        (self.mapped.clone(), Account::Mapped)
                    }
                };
        }
        let events = self.memory_events.read_known(folder, stays_open, again, buffer);
        self.oom_kills = events.and_then(OomKills::parse);
        self.resident_bytes = self.memory.compared_to(claim);
        if is_thorough {
            let reserved =
                |claim| huge::reserved_bytes(&self.group, look.proc, claim, &self.resident_bytes);
            self.reserved_bytes = claim.map_or(0, reserved);
        }
    }

    /// CPU time by node and waiting since the sample before.
    fn sample_cpu(
        &mut self,
        look: &mut Look<'_>,
        record: Option<&Record>,
        over_ns: u64,
        depth: Depth,
        usage_ns: Option<u64>,
    ) -> (ByNode, u64) {
        let used_ns = usage_ns.zip(self.usage_ns).map(|(now, before)| now.saturating_sub(before));
        self.usage_ns = usage_ns;
        let counted = look.scheduler.and_then(|counted| counted.get(&self.inode));
        let by_scheduler = counted.and_then(|now| cpu::since(self.by_scheduler.as_ref(), now));
        self.by_scheduler = counted.cloned();
        let used_ns = by_scheduler.as_ref().map(total).or(used_ns);

        let is_busy = used_ns.is_none_or(|used_ns| used_ns >= over_ns / 1000 * BUSY_MILLI);
        // The homes of cells change one by one.
        let home = record.map(|record| &record.part().home).filter(|_| self.cells.is_empty());
        let is_known_where =
            by_scheduler.is_some() || look.offered.nodes.len() == 1 && !self.ran_on.is_empty();
        let runs_as_before = is_known_where
            && used_ns.zip(self.used_ns).is_some_and(|(now, then)| is_steady(now, then))
            && home == self.home_then.as_ref();
        // A binding by others is read again in each sample, because confirmations are counted in
        // samples.
        // A scheduler counts the time of a guest, not that of each cell.
        let is_due =
            depth >= Depth::Close || self.is_kept() || !runs_as_before || !self.cells.is_empty();
        let mut by_threads_ns = ByNode::new();
        if is_busy && is_due || depth == Depth::Thorough {
            let seen = self.sample_threads(look, record);
            self.has_stirred |= seen.is_none();
            self.used_ns = used_ns.filter(|_| seen.is_some());
            self.home_then = home.cloned();
            (by_threads_ns, self.waited) = seen.unwrap_or_default();
        } else if !is_busy {
            (self.used_ns, self.waited) = (None, Waited::default());
        }
        let Waited { waited_ns, since_ns } = self.waited;
        let cpu_ns = match (by_scheduler, used_ns) {
            (Some(counted), _) => counted,
            (None, Some(used_ns)) => cpu::split(used_ns, &self.ran_on),
            (None, None) => {
                cpu::split(over_part(total(&by_threads_ns), over_ns, since_ns), &by_threads_ns)
            }
        };
        (cpu_ns, over_part(waited_ns, over_ns, since_ns))
    }

    /// CPU time by node since the last read of threads, and the time they waited. None if this
    /// interval's bound of threads is reached; the nodes of the last read then remain.
    fn sample_threads(
        &mut self,
        look: &mut Look<'_>,
        record: Option<&Record>,
    ) -> Option<(ByNode, Waited)> {
        let listed = cpu::sample(self.group.all_threads());
        let Some(threads_left) = look.threads_left.checked_sub(listed.len()) else {
            look.is_short = true;
            return None;
        };
        look.threads_left = threads_left;
        let threads: Threads = listed
            .into_iter()
            .filter_map(|thread| Some((thread, threads::see(thread, look.proc, look.offered)?)))
            .collect();
        // The first read has no earlier one to compare with.
        let since_ns = self.threads_ns.map_or(0, |before| look.now_ns.saturating_sub(before));
        let before = if self.threads_ns.is_none() { &threads } else { &self.threads };
        let used = cpu::between(before, &threads, since_ns);
        self.ran_on = cpu::weights(&used);
        self.sample_bindings(look, record, &used);
        self.threads = threads;
        self.threads_ns = Some(look.now_ns);
        let mut by_node = ByNode::new();
        for (_, thread) in &used {
            let of_node: &mut u64 = by_node.entry(thread.seen.node).or_default();
            *of_node = of_node.saturating_add(thread.used_ns);
        }
        let waited_ns =
            used.iter().fold(0_u64, |sum, (_, thread)| sum.saturating_add(thread.waited_ns));
        Some((by_node, Waited { waited_ns, since_ns }))
    }

    /// Sorts the threads by part, and finds the bindings of each that are not Nearside's.
    fn sample_bindings(
        &mut self,
        look: &Look<'_>,
        record: Option<&Record>,
        used: &[(i32, ThreadUse)],
    ) {
        let recorded: Vec<_> = record.into_iter().flat_map(Record::parts).collect();
        let own = recorded.iter().filter_map(|part| part.cpus.as_ref());
        let own_cpus: Vec<_> = own.map(|binding| &binding.cpus).collect();
        self.has_cpuset = cpus_of_others(&self.group, &own_cpus).ok().flatten().is_some();
        self.others_memory_nodes = match recorded.iter().any(|part| part.memory_nodes.is_some()) {
            true => None,
            false => self.memory_nodes_of_others(look.offered),
        };
        let cells: &[GuestCell] = match cells::parts(&self.cells, record) {
            Parts::Cells => &self.cells,
            Parts::Whole | Parts::Unknown => &[],
        };
        let mut used_by = vec![Vec::new(); cells.len().max(1)];
        for (thread, its) in used {
            if let Some(used) = used_by.get_mut(part_of_thread(cells, *thread)) {
                used.push((*thread, its.clone()));
            }
        }
        let part = |(at, used): (usize, Vec<(i32, ThreadUse)>)| {
            let is_own = recorded.get(at).is_some_and(|part| part.cpus.is_some());
            let bound_to = match is_own && !self.has_cpuset {
                // The binding is Nearside's own, perhaps for an operator.
                true => None,
                false => cpu::kept_on(&used, look.offered, |thread| sys::cpu_affinity(thread).ok()),
            };
            // Nodes that memory is bound or confined to make a home as well.
            let memory = || cells.get(at).and_then(|cell| cell.bound_nodes.clone());
            let waits = used.iter().map(|(_, thread)| thread.waited_ns);
            PartThreads {
                ran_on: cpu::weights(&used),
                waited_ns: waits.fold(0, u64::saturating_add),
                bound_to: bound_to.or_else(memory).or_else(|| self.others_memory_nodes.clone()),
            }
        };
        self.by_part = used_by.into_iter().enumerate().map(part).collect();
    }

    /// The nodes that its cpuset allows; none if these are all nodes with memory for domains.
    fn memory_nodes_of_others(&self, offered: &Topology) -> Option<NodeSet> {
        let text = self.group.read("cpuset.mems.effective").ok()??;
        let all = offered.memory_nodes();
        let allowed = text.parse::<NodeSet>().ok()?.intersection(&all);
        (!allowed.is_empty() && allowed != all).then_some(allowed)
    }
}

/// The threads of a part at their last read.
#[derive(Debug, Clone, Default)]
struct PartThreads {
    /// The nodes they ran on since the read before, by CPU time.
    ran_on: ByNode,
    /// The time they waited since then.
    waited_ns: u64,
    /// The nodes that something other than Nearside keeps the part on.
    bound_to: Option<NodeSet>,
}

/// At most `limit` on each node.
fn at_most(bytes: ByNode, limit: &ByNode) -> ByNode {
    let within = |node: NodeId| limit.get(&node).copied().unwrap_or(0);
    let bytes = bytes.into_iter().map(|(node, bytes)| (node, bytes.min(within(node))));
    bytes.filter(|(_, bytes)| *bytes > 0).collect()
}

/// The time for which threads were runnable and did not run, and the interval it was counted in.
#[derive(Debug, Clone, Copy, Default)]
struct Waited {
    waited_ns: u64,
    since_ns: u64,
}

/// True for a difference of at most a quarter: shares of a full machine vary between intervals.
fn is_steady(now: u64, before: u64) -> bool {
    now.abs_diff(before) <= before / 4
}

/// True for a difference of at most a 64th.
fn is_about(now: u64, before: u64) -> bool {
    now.abs_diff(before) <= before / 64
}

/// The share of `amount`, counted over `since_ns`, that falls on the last `over_ns`.
fn over_part(amount: u64, over_ns: u64, since_ns: u64) -> u64 {
    match over_ns < since_ns {
        true => (u128::from(amount) * u128::from(over_ns) / u128::from(since_ns)) as u64,
        false => amount,
    }
}

/// From `cpu.stat`, which every group has.
fn usage_ns(text: &str) -> Option<u64> {
    let us: u64 =
        text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    Some(us.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_long_wait_falls_on_the_last_interval() {
        assert_eq!(over_part(800, 2, 16), 100);
        assert_eq!(over_part(800, 16, 16), 800);
        assert_eq!(over_part(800, 2, 0), 800);
        assert_eq!(over_part(u64::MAX, 1, 2), u64::MAX / 2);
    }

    #[test]
    fn cpu_stat_counts_in_microseconds() {
        assert_eq!(usage_ns("usage_usec 12\nuser_usec 7\nsystem_usec 5\n"), Some(12_000));
        assert_eq!(usage_ns("user_usec 7\n"), None);
        assert_eq!(usage_ns("usage_usec x\n"), None);
    }
}
