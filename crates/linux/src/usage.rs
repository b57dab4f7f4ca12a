//! The use of a domain: processes, the nodes its threads run on, the nodes its memory lies on, and
//! how well the two agree.
//!
//! This works for any cgroup.

use crate::{
    cgroup::Cgroup,
    memory::{self, MemoryByKind},
    oom::OomKills,
    threads::{self, CpuUse},
};
use nearside_policy::{ByNode, debt_bytes, local_share};
use nearside_topology::{NodeSet, Topology};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::Duration,
};

/// The use of a cgroup and those below it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    /// Live processes.
    pub processes: usize,
    /// The nodes of its threads, and their CPU time.
    pub cpu: CpuUse,
    /// Its memory.
    pub memory: MemoryByKind,
    /// The account that supplies the figures of its memory.
    pub memory_seen: Account,
    /// Processes whose memory is unknown, if it is not charged.
    pub hidden_processes: usize,
    /// Its processes that the kernel killed for lack of memory; none without the memory controller.
    #[serde(skip)]
    pub oom_kills: Option<OomKills>,
}

/// The accounts of a domain's memory, which need not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Account {
    /// As the memory controller charges it: to the group that touched a page first, page cache and
    /// kernel memory included.
    Charged,
    /// As its processes map it (`numa_maps`): a shared page counts for each group that maps it.
    Mapped,
    /// Unknown: no controller charges it, and none of its processes' `numa_maps` can be read.
    #[default]
    Hidden,
}

impl Usage {
    /// The local share of the domain's own memory (without files and the kernel's memory); none if
    /// unknown.
    pub fn local_share(&self) -> Option<f64> {
        local_share(self.cpu.weight(), &self.memory.own())
    }

    /// Bytes of the domain's own memory that lie off `home`.
    pub fn debt_bytes(&self, home: &NodeSet) -> u64 {
        debt_bytes(&self.memory.own(), home)
    }
}

/// The use of each group, in the order of the groups, with CPU time over `interval`. Memory is read
/// afterwards: as the kernel charges it or, without that, as processes map it.
pub fn usage(
    groups: &[Cgroup],
    proc: &Path,
    topology: &Topology,
    interval: Duration,
) -> Vec<Usage> {
    let watched = threads::watch(groups, proc, topology, interval);
    let with_memory = |(group, cpu): (&Cgroup, CpuUse)| {
        let processes = distinct_processes(group).len();
        let oom_kills = OomKills::of(group);
        if let Some(memory) = memory::charged(group, proc) {
            return Usage {
                processes,
                cpu,
                memory,
                memory_seen: Account::Charged,
                hidden_processes: 0,
                oom_kills,
            };
        }
        let Mapped { memory, processes: seen, .. } = mapped(group, proc);
        let memory_seen =
            if seen == 0 && processes > 0 { Account::Hidden } else { Account::Mapped };
        Usage {
            processes,
            cpu,
            memory,
            memory_seen,
            hidden_processes: processes.saturating_sub(seen),
            oom_kills,
        }
    };
    groups.iter().zip(watched).map(with_memory).collect()
}

/// The memory that the processes of a group map, and its memory policies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Mapped {
    /// By kind and node.
    pub memory: MemoryByKind,
    /// Bytes by memory policy as the kernel words it (`bind:1`, `default`), files left out.
    pub policies: BTreeMap<String, ByNode>,
    /// Processes whose mappings were read.
    pub processes: usize,
    /// Processes whose mappings may not be read (other users' need `CAP_SYS_PTRACE`).
    pub hidden_processes: usize,
}

/// Reads the `numa_maps` of each process, which takes its `mmap_lock`. So use it for one domain,
/// not in every interval.
pub fn mapped(group: &Cgroup, proc: &Path) -> Mapped {
    let mut mapped = Mapped::default();
    let mut maps = Vec::new();
    for process in distinct_processes(group) {
        match crate::read::text(&proc.join(format!("{process}/numa_maps"))) {
            Ok(text) => maps.push(memory::numa_maps(&text)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                mapped.hidden_processes += 1
            }
            // The process has ended, or the kernel has no CONFIG_NUMA.
            Err(_) => {}
        }
    }
    mapped.processes = maps.len();
    mapped.memory = memory::mapped(maps.iter().map(Vec::as_slice));
    for mapping in maps.iter().flatten().filter(|mapping| mapping.kind != memory::Kind::File) {
        let bytes = mapped.policies.entry(mapping.policy.clone()).or_default();
        *bytes = memory::sum([&*bytes, &mapping.bytes]);
    }
    mapped.policies.retain(|_, bytes| !bytes.is_empty());
    mapped
}

fn distinct_processes(group: &Cgroup) -> BTreeSet<i32> {
    group.all_processes().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Tree;
    use nearside_topology::{Cpu, CpuId, Node, NodeId};
    use std::{fs, path::PathBuf};

    /// A made-up host of two nodes with a CPU each, and one group.
    struct Made {
        folder: tempfile::TempDir,
    }

    impl Made {
        fn new() -> Self {
            let made = Self { folder: tempfile::tempdir().unwrap() };
            made.file("cgroup/cgroup.controllers", "");
            made.file("cgroup/a/cgroup.procs", "10\n11\n");
            made.file("cgroup/a/cgroup.threads", "10\n12\n11\n");
            made.file("cgroup/a/below/cgroup.procs", "20\n");
            made.file("cgroup/a/below/cgroup.threads", "20\n");
            for (thread, cpu) in [(10, 0), (12, 1), (11, 1), (20, 1)] {
                let before =
                    "S 1 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 5 1 1 1 1 1 0 0 0 0 0 0 0 0 0 0 17";
                made.file(
                    &format!("proc/{thread}/task/{thread}/stat"),
                    &format!("{thread} (x y) {before} {cpu} 0 0"),
                );
                made.file(&format!("proc/{thread}/task/{thread}/schedstat"), "700 1 1");
            }
            made
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn proc(&self) -> PathBuf {
            self.folder.path().join("proc")
        }

        fn group(&self) -> Cgroup {
            Tree::at(&self.folder.path().join("cgroup")).unwrap().group("/a").unwrap()
        }

        fn usage(&self) -> Usage {
            let node = |id| Node { id: NodeId(id), memory_bytes: 1 << 30, ..Node::default() };
            let cpus = vec![Cpu::new(CpuId(0), NodeId(0)), Cpu::new(CpuId(1), NodeId(1))];
            let topology = Topology { nodes: vec![node(0), node(1)], cpus, ..Topology::default() };
            usage(&[self.group()], &self.proc(), &topology, Duration::ZERO).remove(0)
        }
    }

    fn by_node(amounts: &[u64]) -> ByNode {
        amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount)).collect()
    }

    #[test]
    fn a_group_of_any_maker_is_seen_with_those_below_it() {
        let made = Made::new();
        made.file("proc/10/numa_maps", "7000 bind:0 anon=3 N0=3 kernelpagesize_kB=4\n");
        made.file("proc/20/numa_maps", "8000 default anon=1 N1=1\n9000 default file=/lib N1=50\n");
        let usage = made.usage();
        assert_eq!((usage.processes, usage.memory_seen), (3, Account::Mapped));
        assert_eq!(usage.cpu.threads, by_node(&[1, 3]));
        assert_eq!(usage.memory.own(), by_node(&[3 * 4096, 4096]));
        // No thread ran: 1/4 of the threads with 3/4 of the memory, 3/4 with 1/4.
        assert_eq!(usage.local_share(), Some(0.375));
        assert_eq!(usage.debt_bytes(&NodeSet::from([NodeId(0)])), 4096);
    }

    #[test]
    fn charged_memory_needs_no_mappings() {
        let made = Made::new();
        made.file("cgroup/a/memory.numa_stat", "anon N0=100 N1=0\nfile N0=5 N1=9\n");
        let usage = made.usage();
        assert_eq!(usage.memory_seen, Account::Charged);
        assert_eq!(usage.memory.own(), by_node(&[100, 0]));
        assert_eq!(usage.memory.file, by_node(&[5, 9]));
    }

    #[test]
    fn hidden_memory_is_not_counted_as_zero() {
        let usage = Made::new().usage();
        assert_eq!((usage.memory_seen, usage.local_share()), (Account::Hidden, None));
    }

    #[test]
    fn policies_have_the_kernels_names() {
        let made = Made::new();
        made.file(
            "proc/10/numa_maps",
            "7000 bind:0 anon=3 N0=3\n8000 bind:0 anon=1 N0=1\n9000 prefer:1 stack\n",
        );
        made.file(
            "proc/11/numa_maps",
            "7000 default file=/lib N0=9\n8000 default heap anon=1 N1=1\n",
        );
        let mapped = mapped(&made.group(), &made.proc());
        let expected =
            [("bind:0", by_node(&[4 * 4096])), ("default", ByNode::from([(NodeId(1), 4096)]))];
        assert_eq!(
            mapped.policies,
            expected.map(|(policy, bytes)| (policy.to_owned(), bytes)).into()
        );
        assert_eq!((mapped.processes, mapped.hidden_processes), (2, 0));
    }
}
