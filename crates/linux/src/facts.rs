//! Facts that decide whether and how well Nearside can work on a host: the kernel's features and
//! settings, the cgroup layout and its owner, and this process's privileges. Collecting them
//! changes nothing.

use crate::{
    cgroup::Tree,
    folder::Folder,
    host,
    store::{Blocks, Store},
    sys::{self, PolicySupport},
    systemd::Systemd,
};
use nearside_policy::{LeftOut, MemoryPolicy};
use nearside_topology::{HugePagePool, MemoryTiers, NodeId, NodeSet, sysfs};
use rustix::fs::{Access, access};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Facts about a host. An unknown fact is none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Facts {
    /// `/proc/sys/kernel/osrelease`
    pub kernel_release: Option<String>,
    /// Words of the kernel's command line that matter here (`isolcpus=`, `numa=`, ...).
    pub boot_options: Vec<String>,
    /// Nodes.
    pub nodes: NodeSet,
    /// Nodes that have memory.
    pub memory_nodes: NodeSet,
    /// The classes of memory by speed.
    pub memory_tiers: MemoryTiers,
    /// Memory policies that the kernel accepted for a thread of this process; none where none was
    /// tried.
    pub policies: Option<Vec<MemoryPolicy>>,
    /// A seccomp filter keeps this process from setting some or all of them.
    pub policies_forbidden: bool,
    /// `/proc/PID/numa_maps` exists (`CONFIG_NUMA`).
    pub has_numa_maps: bool,
    /// `/proc/sys/kernel/numa_balancing`: 0 off, 1 on, 2 memory tiering.
    pub numa_balancing: Option<u64>,
    /// `/proc/sys/vm/zone_reclaim_mode`: a bit mask.
    pub zone_reclaim_mode: Option<u64>,
    /// `/proc/sys/vm/numa_stat`: 0 where allocations are not counted.
    pub numa_stat: Option<u64>,
    /// The cgroup trees.
    pub cgroups: Cgroups,
    /// systemd runs the machine and owns the cgroup tree.
    pub systemd: bool,
    /// The system bus, over which systemd is asked, has its socket.
    pub system_bus: bool,
    /// A scheduler in BPF.
    pub sched_ext: SchedExt,
    /// CPUs that placement leaves out.
    pub left_out: LeftOut,
    /// `/sys/devices/system/cpu/isolated`, empty where none is.
    pub isolated_cpus: Option<String>,
    /// `/sys/devices/system/cpu/nohz_full`
    pub nohz_full_cpus: Option<String>,
    /// Pools of huge pages that have any, by node.
    pub huge_pages: Vec<(NodeId, HugePagePool)>,
    /// The chosen word of `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub transparent_huge_pages: Option<String>,
    /// `SwapTotal` of `/proc/meminfo` in bytes.
    pub swap_total_bytes: Option<u64>,
    /// Pressure stall information (`/proc/pressure`) can be read.
    pub has_pressure: bool,
    /// The chosen word of `/sys/kernel/security/lockdown`.
    pub lockdown: Option<String>,
    /// This process's privileges.
    pub privileges: Privileges,
    /// Records of domains can be written.
    pub state_writable: bool,
    /// The reason why records of domains are not believed, if there is one.
    pub state_refused: Option<String>,
    /// Files that block changes because they cannot be read.
    pub state_unreadable: Vec<BlockingFile>,
    /// Domains with a home of several nodes.
    pub wide_domains: Vec<String>,
}

/// A file with a record, or the journal, that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockingFile {
    /// The reason, with the file.
    pub why: String,
    /// The changes that it blocks.
    pub blocks: Blocks,
}

/// The cgroup trees of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Cgroups {
    /// The mount point of version 2.
    pub v2: Option<PathBuf>,
    /// The controllers that version 2 has.
    pub v2_controllers: BTreeSet<String>,
    /// True if this process may make groups at its root.
    pub v2_writable: bool,
    /// Processes in its first group, a container's, keep controllers from the groups below.
    pub v2_blocked: bool,
    /// The group of version 2 that this process is in.
    pub own_group: Option<String>,
    /// True if this process may make groups in that one.
    pub own_group_writable: bool,
    /// The controllers that version 1 has taken; they are missing in version 2.
    pub v1_controllers: BTreeSet<String>,
    /// Groups that take CPUs for themselves alone: path and `cpuset.cpus.partition`.
    pub partitions: Vec<(String, String)>,
}

/// The extensible scheduler class (`Documentation/scheduler/sched-ext.rst`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SchedExt {
    /// `/sys/kernel/sched_ext/state`; none on a kernel built without it.
    pub state: Option<String>,
    /// The scheduler that is loaded (`/sys/kernel/sched_ext/root/ops`).
    pub loaded: Option<String>,
    /// The kernel describes its own types (`/sys/kernel/btf/vmlinux`). Loading a scheduler needs
    /// that.
    pub has_btf: bool,
    /// These types have `SCX_WAKE_SYNC`, by which a waker promises to sleep.
    pub has_wake_sync: bool,
}

/// The kernel's description of its types.
const BTF: &str = "sys/kernel/btf/vmlinux";

/// Whether a description has this name. Its strings end with a zero
/// (`Documentation/bpf/btf.rst`).
fn names_type(types: &[u8], name: &[u8]) -> bool {
    types.split(|byte| *byte == 0).any(|string| string == name)
}

/// The privileges of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Privileges {
    /// Effective user.
    pub euid: Option<u32>,
    /// Effective capabilities as `/proc/PID/status` has them: bit n is capability n.
    pub capabilities: u64,
}

/// A capability by its number (`include/uapi/linux/capability.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Look into other users' processes.
    SysPtrace = 19,
    /// Most administration.
    SysAdmin = 21,
    /// Move other users' pages, and those that several processes map.
    SysNice = 23,
    /// See the kernel's state; BPF programs that trace.
    Perfmon = 38,
    /// Load BPF programs.
    Bpf = 39,
}

impl Privileges {
    /// True if a capability is in force.
    pub const fn has(self, capability: Capability) -> bool {
        self.capabilities & (1 << capability as u32) != 0
    }

    fn parse(status: &str) -> Self {
        let value =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Self {
            euid: value("Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()),
            capabilities: value("CapEff")
                .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .unwrap_or(0),
        }
    }
}

impl Facts {
    /// Collects the facts of the host whose files lie below `root`, with records in `state`. With
    /// `try_policies`, a short-lived thread asks the running kernel for each memory policy.
    pub fn collect(root: &Path, state: &Path, try_policies: bool) -> Self {
        let read = |file: &str| {
            crate::read::text(&root.join(file)).ok().map(|text| text.trim().to_owned())
        };
        let number = |file: &str| read(file)?.parse().ok();
        let topology = sysfs::read(root).map(|(topology, _)| topology).unwrap_or_default();
        let memory_nodes = topology.memory_nodes();
        let pools = topology.nodes.iter().flat_map(|node| {
            let used = node.huge_pages.iter().filter(|pool| pool.total_pages > 0);
            used.map(|pool| (node.id, *pool))
        });
        let tree = Tree::find(&root.join("proc/self/mountinfo"));
        let allowed = tree.as_ref().ok().and_then(|tree| host::allowed(tree, Systemd::runs(root)));
        let store = Store::new(state, &read("proc/sys/kernel/random/boot_id").unwrap_or_default());
        let records = tree.as_ref().map(|tree| store.records(tree).0).unwrap_or_default();
        let blocking = tree.as_ref().map(|tree| store.blocking(tree)).unwrap_or_default();
        let blocking = blocking
            .into_iter()
            .map(|(blocks, error)| BlockingFile { why: error.to_string(), blocks });
        let wide = records.into_iter().filter(|record| record.home_nodes().len() > 1);
        let support = if try_policies { policies(&memory_nodes) } else { Vec::new() };
        let that_are = |wanted| {
            let found = support.iter().filter(move |(_, support)| *support == wanted);
            found.map(|(policy, _)| *policy).collect::<Vec<_>>()
        };
        Self {
            kernel_release: read("proc/sys/kernel/osrelease"),
            boot_options: read("proc/cmdline").map(|text| boot_options(&text)).unwrap_or_default(),
            nodes: topology.node_set(),
            policies: try_policies.then(|| that_are(PolicySupport::Known)),
            policies_forbidden: !that_are(PolicySupport::Forbidden).is_empty(),
            memory_nodes,
            memory_tiers: topology.memory_tiers.clone(),
            has_numa_maps: root.join("proc/self/numa_maps").exists(),
            numa_balancing: number("proc/sys/kernel/numa_balancing"),
            zone_reclaim_mode: number("proc/sys/vm/zone_reclaim_mode"),
            numa_stat: number("proc/sys/vm/numa_stat"),
            cgroups: Cgroups::collect(root),
            systemd: Systemd::runs(root),
            system_bus: root.join("run/dbus/system_bus_socket").exists(),
            sched_ext: SchedExt {
                state: read("sys/kernel/sched_ext/state"),
                loaded: read("sys/kernel/sched_ext/root/ops"),
                has_btf: root.join(BTF).exists(),
                has_wake_sync: std::fs::read(root.join(BTF))
                    .is_ok_and(|types| names_type(&types, b"SCX_WAKE_SYNC")),
            },
            left_out: LeftOut::of(&topology.clone().offered(allowed.as_ref()), None),
            isolated_cpus: read("sys/devices/system/cpu/isolated"),
            nohz_full_cpus: read("sys/devices/system/cpu/nohz_full")
                .filter(|cpus| cpus != "(null)"),
            huge_pages: pools.collect(),
            transparent_huge_pages: read("sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| chosen(&text)),
            swap_total_bytes: read("proc/meminfo").and_then(|text| swap_total_bytes(&text)),
            // The kernel has the file even with `psi=0`, but then fails to open it.
            has_pressure: read("proc/pressure/memory").is_some(),
            lockdown: read("sys/kernel/security/lockdown").and_then(|text| chosen(&text)),
            privileges: read("proc/self/status")
                .map(|text| Privileges::parse(&text))
                .unwrap_or_default(),
            state_writable: can_be_made(state),
            state_refused: Folder::open(state).err().map(|refused| refused.to_string()),
            state_unreadable: blocking.collect(),
            wide_domains: wide.map(|record| record.name).collect(),
        }
    }

    /// The kernel's version, from its release.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel_release.as_ref()?.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl Cgroups {
    fn collect(root: &Path) -> Self {
        let mountinfo = root.join("proc/self/mountinfo");
        let v1 =
            crate::read::text(&mountinfo).map(|text| v1_controllers(&text)).unwrap_or_default();
        let Ok(tree) = Tree::find(&mountinfo) else {
            return Self { v1_controllers: v1, ..Self::default() };
        };
        let own = tree.group_of(&root.join("proc/self/cgroup")).ok();
        let subtree = tree.group("/").map(|root| root.subtree()).unwrap_or_default();
        let partition = |group: &crate::cgroup::Cgroup| {
            let kind = group.read("cpuset.cpus.partition").ok()??.trim().to_owned();
            (kind != "member").then(|| (group.path().to_owned(), kind))
        };
        Self {
            v2: Some(tree.root().to_owned()),
            v2_controllers: tree.controllers().clone(),
            v2_blocked: tree.group("/").is_ok_and(|first| !first.can_enable()),
            v2_writable: access(tree.root(), Access::WRITE_OK).is_ok(),
            own_group_writable: own
                .as_ref()
                .is_some_and(|own| access(own.directory(), Access::WRITE_OK).is_ok()),
            own_group: own.map(|own| own.path().to_owned()),
            v1_controllers: v1,
            partitions: subtree.iter().filter_map(partition).collect(),
        }
    }

    /// True if version 2 has a controller.
    pub fn has(&self, controller: &str) -> bool {
        self.v2_controllers.contains(controller)
    }
}

/// `33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct`: the options of a version 1
/// mount besides `rw` and the like, without named hierarchies.
fn v1_controllers(mountinfo: &str) -> BTreeSet<String> {
    const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "cpuacct", "memory", "hugetlb"];
    let options = mountinfo.lines().filter_map(|line| {
        let mut words = line.split_once(" - ")?.1.split(' ');
        (words.next() == Some("cgroup")).then(|| words.next_back()).flatten()
    });
    let words = options.flat_map(|options| options.split(','));
    words.filter(|word| CONTROLLERS.contains(word)).map(str::to_owned).collect()
}

/// The options of the kernel's command line that matter to Nearside.
fn boot_options(command_line: &str) -> Vec<String> {
    const NAMES: [&str; 8] = [
        "isolcpus",
        "nohz_full",
        "numa",
        "numa_balancing",
        "cgroup_disable",
        "cgroup_no_v1",
        "systemd.unified_cgroup_hierarchy",
        "psi",
    ];
    let known = |word: &&str| NAMES.contains(&word.split('=').next().unwrap_or_default());
    command_line.split_whitespace().filter(known).map(str::to_owned).collect()
}

/// Asks the kernel for every policy of a task.
fn policies(memory_nodes: &NodeSet) -> Vec<(MemoryPolicy, PolicySupport)> {
    let own = MemoryPolicy::ALL.into_iter().filter(|&policy| policy != MemoryPolicy::Restrictive);
    own.map(|policy| (policy, sys::memory_policy_support(policy, memory_nodes))).collect()
}

/// `always [madvise] never`: the word in brackets.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn swap_total_bytes(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// True if a folder can be written to or created.
fn can_be_made(folder: &Path) -> bool {
    let there = folder.ancestors().find(|folder| folder.exists());
    there.is_some_and(|folder| access(folder, Access::WRITE_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_name_of_the_types_is_a_whole_string() {
        let types = b"\x9f\xeb\x01\0\0SCX_WAKE_SYNC\0SCX_WAKE_FORKED\0";
        assert!(names_type(types, b"SCX_WAKE_SYNC"));
        assert!(!names_type(types, b"SCX_WAKE"));
        assert!(!names_type(b"", b"SCX_WAKE"));
    }

    #[test]
    fn facts_of_a_made_up_host_match_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let file = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let tree = root.join("cg2");
        let mountinfo = format!(
            "33 31 0:30 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             40 31 0:37 / /cg/s rw - cgroup cgroup \
             rw,name=systemd\n41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n",
            tree.display()
        );
        file("proc/self/mountinfo", &mountinfo);
        file("proc/self/cgroup", "1:cpu:/x\n0::/mine\n");
        file(
            "proc/self/status",
            "Name:\tx\nUid:\t1000\t1001\t1000\t1000\nCapEff:\t0000000000880000\n",
        );
        file("proc/sys/kernel/osrelease", "6.12.3-rc1+deb13\n");
        file("proc/sys/kernel/numa_balancing", "1\n");
        file("proc/cmdline", "quiet isolcpus=2-3 numa=off numactl=x\n");
        file("proc/meminfo", "MemTotal: 2048 kB\nMemFree: 1024 kB\nSwapTotal:  512 kB\n");
        file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        file("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
        file("sys/devices/system/cpu/nohz_full", "(null)\n");
        file("cg2/cgroup.controllers", "io memory\n");
        file("cg2/mine/cpuset.cpus.partition", "member\n");
        file("cg2/vip/cpuset.cpus.partition", "isolated\n");
        let facts = Facts::collect(root, &root.join("run/nearside"), false);
        assert_eq!(facts.kernel_version(), Some((6, 12)));
        assert_eq!(facts.boot_options, ["isolcpus=2-3", "numa=off"]);
        assert_eq!((facts.numa_balancing, facts.zone_reclaim_mode), (Some(1), None));
        assert_eq!(facts.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(facts.lockdown.as_deref(), Some("integrity"));
        assert_eq!((facts.nohz_full_cpus, facts.swap_total_bytes), (None, Some(512 << 10)));
        assert_eq!(facts.privileges.euid, Some(1001));
        assert!(
            facts.privileges.has(Capability::SysNice)
                && facts.privileges.has(Capability::SysPtrace)
        );
        assert!(!facts.privileges.has(Capability::SysAdmin));
        assert!(facts.state_writable && !facts.systemd && facts.policies.is_none());
        let cgroups = facts.cgroups;
        assert!(
            cgroups.has("memory")
                && !cgroups.has("cpuset")
                && cgroups.v2_writable
                && cgroups.own_group_writable
        );
        assert!(!cgroups.v2_blocked);
        assert_eq!(cgroups.own_group.as_deref(), Some("/mine"));
        assert_eq!(cgroups.v1_controllers, ["cpu", "cpuacct"].map(str::to_owned).into());
        assert_eq!(cgroups.partitions, [("/vip".to_owned(), "isolated".to_owned())]);
    }

    #[test]
    fn an_empty_root_has_no_facts_and_no_errors() {
        let folder = tempfile::tempdir().unwrap();
        let facts = Facts::collect(folder.path(), folder.path(), false);
        assert_eq!(facts, Facts { state_writable: true, ..Facts::default() });
    }
}
