//! One domain: its files, and its last sample.

use super::{
    cpu,
    kept::{Buffer, Kept},
};
use crate::{
    actuator::owner,
    cgroup::Cgroup,
    confine::cpus_of_others,
    huge::{self, HugePages},
    memory::{self, MemoryByKind},
    store::Record,
    sys,
    threads::{self, CpuUse, Threads},
    usage::{Account, Usage},
    vm::cells_of,
};
use nearside_policy::{ByNode, CgroupId, Home, Owner, PartId, PartLoad, PartState, total};
use nearside_topology::{NodeSet, Topology};
use std::{collections::BTreeMap, path::Path};

/// The files of a domain that stay open.
pub(super) const FILES: u64 = 4;

/// A domain that uses less of a CPU than this, in thousandths, is idle; its threads are then not
/// read.
const BUSY_MILLI: u64 = 10;

/// Samples between two reads of slow counters. Two counters are slow: the threads of a busy domain
/// whose nodes are known otherwise (a scheduler counts CPU time by node, or the machine has one
/// node) and whose use is steady; and the nodes of memory whose amount is steady.
const CLOSE_LOOKS: u64 = 4;

/// Samples between two reads of everything: the threads of an idle domain, and all mappings.
const THOROUGH_LOOKS: u64 = 8;

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
    looks: u64,
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
    /// The nodes that something other than Nearside keeps it on.
    bound_to: Option<NodeSet>,
    /// True if something other than Nearside has set CPUs of its cpuset.
    has_cpuset: bool,
    /// True if it is a guest of libvirt with several cells.
    has_cells: bool,
    /// The nodes that something other than Nearside confines its memory to.
    others_memory_nodes: Option<NodeSet>,
    huge: HugePages,
    mapped: MemoryByKind,
    memory: MemoryByKind,
    memory_seen: Account,
    /// Its charge when its memory was read by node.
    charged_bytes: Option<u64>,
    processes: usize,
    /// CPU time by node over the interval of the last sample.
    time_ns: ByNode,
    resident_bytes: ByNode,
    reserved_bytes: u64,
    /// The load that no observation has passed on yet.
    load: Option<PartLoad>,
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
            looks: 0,
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
            bound_to: None,
            has_cpuset: false,
            has_cells: false,
            others_memory_nodes: None,
            huge: HugePages::new(),
            mapped: MemoryByKind::default(),
            memory: MemoryByKind::default(),
            memory_seen: Account::default(),
            charged_bytes: None,
            processes: 0,
            time_ns: ByNode::new(),
            resident_bytes: ByNode::new(),
            reserved_bytes: 0,
            load: None,
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

    /// All memory that it held in the last sample, by node, in bytes.
    pub(super) fn all_resident_bytes(&self) -> ByNode {
        self.memory.compared_to(None)
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

    /// Its last sample, with its record.
    pub(super) fn state(&self, name: &str, record: Option<&Record>) -> PartState {
        let claim = record.and_then(|record| record.part().claim.as_ref());
        PartState {
            id: PartId::of(name),
            cgroup: CgroupId(self.inode),
            home: record.map(|record| record.part().home.clone()),
            claim: claim.cloned(),
            memory_nodes: match record.and_then(|record| record.part().memory_nodes.clone()) {
                Some(own) => Some(own),
                None => self.others_memory_nodes.clone(),
            },
            resident_bytes: self.resident_bytes.clone(),
            kernel_bytes: self.memory.kept_by_kernel(claim),
            unmapped_bytes: self.memory.unmapped_by_any(claim),
            reserved_bytes: self.reserved_bytes,
        }
    }

    /// Its use in the last sample. Threads and the nodes of memory are at most as old as the last
    /// close sample; processes and idle threads are at most as old as the last thorough one.
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
        }
    }

    /// Takes its load since the last one that was taken. None if it was not sampled since, or for
    /// the first time.
    pub(super) fn take_load(&mut self) -> Option<PartLoad> {
        self.load.take()
    }

    /// Samples its load and memory. The first sample has no load, since there is no earlier one to
    /// compare with. `has_moved`: pages of it were moved since.
    pub(super) fn observe(
        &mut self,
        look: &mut Look<'_>,
        record: Option<&Record>,
        has_moved: bool,
        buffer: &mut Buffer,
    ) {
        let is_thorough = self.looks.is_multiple_of(THOROUGH_LOOKS);
        let is_close = is_thorough || self.is_close_look(look.interval);
        let owner = owner(self.group.path(), look.systemd);
        // libvirt puts a guest's process into the group before it becomes QEMU.
        if owner == Owner::Libvirt && is_close && !self.has_cells {
            self.has_cells = cells_of(&self.group.all_processes(), look.proc) > 1;
        }
        self.sample_memory(look, record, is_thorough || has_moved, is_close || has_moved, buffer);
        let over_ns = look.now_ns.saturating_sub(self.looked_ns);
        let (cpu_ns, waited_ns) =
            self.sample_cpu(look, record, over_ns, (is_close, is_thorough), buffer);
        self.time_ns.clone_from(&cpu_ns);
        let is_first = self.looks == 0;
        self.looks += 1;
        (self.looked_ns, self.looked_in) = (look.now_ns, look.interval);
        if is_first || over_ns == 0 {
            return;
        }
        let load = PartLoad {
            over_ns,
            cpu_ns,
            waited_ns,
            owner,
            has_cells: self.has_cells,
            bound_to: self.bound_to.clone(),
            has_cpuset: self.has_cpuset,
            cell_nodes: None,
            near: record
                .and_then(|record| record.part().decision.as_ref())
                .map(|decision| decision.request.near.clone())
                .unwrap_or_default(),
        };
        self.load = Some(match self.load.take() {
            Some(earlier) => load.following(earlier),
            None => load,
        });
    }

    /// The inode spreads the close samples of domains over intervals. The sample after a long pause
    /// is close.
    fn is_close_look(&self, interval: u64) -> bool {
        // 2^64 divided by the golden ratio.
        let phase = self.inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let is_turn = self.looks.wrapping_add(phase).is_multiple_of(CLOSE_LOOKS);
        self.looks < CLOSE_LOOKS || interval.saturating_sub(self.looked_in) > 1 || is_turn
    }

    fn sample_memory(
        &mut self,
        look: &Look<'_>,
        record: Option<&Record>,
        is_thorough: bool,
        is_close: bool,
        buffer: &mut Buffer,
    ) {
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
        let charged_bytes = self.memory_current.read(folder, self.stays_open, buffer);
        let charged_bytes = charged_bytes.and_then(|text| text.trim().parse().ok());
        let is_as_before = charged_bytes
            .zip(self.charged_bytes)
            .is_some_and(|(now, before)| is_about(now, before));
        if is_close || !is_as_before {
            self.charged_bytes = charged_bytes;
            (self.memory, self.memory_seen) =
                match self.numa_stat.read(folder, self.stays_open, buffer) {
                    Some(text) => (memory::charged_by(text, self.huge.clone()), Account::Charged),
                    None => {
                        if is_thorough {
                            self.mapped = memory::mapped_by(&self.group, look.proc);
                        }
                        (self.mapped.clone(), Account::Mapped)
                    }
                };
        }
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
        (is_close, is_thorough): (bool, bool),
        buffer: &mut Buffer,
    ) -> (ByNode, u64) {
        let text = self.cpu_stat.read(self.group.directory(), self.stays_open, buffer);
        let usage_ns = text.and_then(usage_ns);
        let used_ns = usage_ns.zip(self.usage_ns).map(|(now, before)| now.saturating_sub(before));
        self.usage_ns = usage_ns;
        let counted = look.scheduler.and_then(|counted| counted.get(&self.inode));
        let by_scheduler = counted.and_then(|now| cpu::since(self.by_scheduler.as_ref(), now));
        self.by_scheduler = counted.cloned();
        let used_ns = by_scheduler.as_ref().map(total).or(used_ns);

        let is_busy = used_ns.is_none_or(|used_ns| used_ns >= over_ns / 1000 * BUSY_MILLI);
        let home = record.map(|record| &record.part().home);
        let is_known_where =
            by_scheduler.is_some() || look.offered.nodes.len() == 1 && !self.ran_on.is_empty();
        let runs_as_before = is_known_where
            && used_ns.zip(self.used_ns).is_some_and(|(now, then)| is_steady(now, then))
            && home == self.home_then.as_ref();
        // A binding by others is read again in each sample, because confirmations are counted in
        // samples.
        let is_kept = self.bound_to.is_some() || self.has_cpuset;
        let is_due = is_close || is_kept || !runs_as_before;
        let mut by_threads_ns = ByNode::new();
        if is_busy && is_due || is_thorough {
            let seen = self.sample_threads(look, record);
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
        let own = record.and_then(|record| record.part().cpus.as_ref());
        let own_cpus: Vec<_> = own.iter().map(|binding| &binding.cpus).collect();
        self.has_cpuset = cpus_of_others(&self.group, &own_cpus).ok().flatten().is_some();
        self.bound_to = match own.is_some() && !self.has_cpuset {
            // The binding is Nearside's own, perhaps for an operator.
            true => None,
            false => cpu::kept_on(&used, look.offered, |thread| sys::cpu_affinity(thread).ok()),
        };
        self.others_memory_nodes =
            match record.is_some_and(|record| record.part().memory_nodes.is_some()) {
                true => None,
                false => self.memory_nodes_of_others(look.offered),
            };
        if self.bound_to.is_none() {
            // Nodes that memory is confined to make a home as well.
            self.bound_to.clone_from(&self.others_memory_nodes);
        }
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

    /// The nodes that its cpuset allows; none if these are all nodes with memory for domains.
    fn memory_nodes_of_others(&self, offered: &Topology) -> Option<NodeSet> {
        let text = self.group.read("cpuset.mems.effective").ok()??;
        let all = offered.memory_nodes();
        let allowed = text.parse::<NodeSet>().ok()?.intersection(&all);
        (!allowed.is_empty() && allowed != all).then_some(allowed)
    }
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
