//! The consequence of each fact of a host.

use super::finding::Finding;
use crate::{
    commands::replicate::wide::{Seen, Trouble},
    printable::printable,
    report::{
        replicate::first_of,
        units::{count, size},
    },
};
use nearside_linux::{
    facts::{BlockingFile, Capability, Cgroups, Facts, Privileges},
    store::Blocks,
};
use nearside_policy::{LeftOut, MemoryPolicy, text::WIDE};
use nearside_topology::{CpuSet, MemoryTier, MemoryTiers};

/// All findings, in the order for reading.
pub(super) fn findings(facts: &Facts, copies: &Seen) -> Vec<Finding> {
    vec![
        kernel(facts),
        nodes(facts),
        tiers(&facts.memory_tiers),
        policies(facts),
        numa_maps(facts),
        cgroup_layout(&facts.cgroups),
        owner(facts),
        records(facts),
        privileges(facts.privileges),
        sched_ext(facts),
        isolated(facts),
        balancing(facts),
        huge_pages(facts),
        transparent_huge_pages(facts),
        text(facts, copies),
        partitions(&facts.cgroups),
        offered(facts),
        swap(facts),
        zone_reclaim(facts),
        counters(facts),
        pressure(facts),
        lockdown(facts),
    ]
}

fn kernel(facts: &Facts) -> Finding {
    const TOPIC: &str = "kernel";
    match (&facts.kernel_release, facts.kernel_version()) {
        (Some(release), Some(version)) if version < (5, 17) => Finding::limited(TOPIC, release)
            .so("older than 5.17: no set_mempolicy_home_node, and huge pages are not counted by \
                 node for a cgroup")
            .advice("use a newer kernel"),
        (Some(release), Some(_)) => Finding::ok(TOPIC, release),
        (release, _) => {
            Finding::limited(TOPIC, release.clone().unwrap_or_else(|| "unknown".into()))
                .so("its version and features are unknown")
        }
    }
}

fn nodes(facts: &Facts) -> Finding {
    const TOPIC: &str = "NUMA nodes";
    let nodes = &facts.nodes;
    let found = format!("{} ({nodes})", count(nodes.len(), "node"));
    let off = facts.boot_options.iter().find(|option| *option == "numa=off");
    match (nodes.len(), off) {
        (0, _) => Finding::missing(TOPIC, "none found: /sys or /proc cannot be read")
            .so("the machine is unknown, so nothing can be placed")
            .advice("mount /sys and /proc")
            .stops_run(),
        (1, Some(_)) => Finding::limited(TOPIC, format!("{found}, numa=off"))
            .so("the kernel hides the machine's nodes, if it has several")
            .advice("boot without numa=off"),
        (1, None) => Finding::ok(TOPIC, found)
            .so("all memory is local: Nearside keeps claims, and binds and moves nothing"),
        _ if facts.memory_nodes != *nodes => {
            Finding::ok(TOPIC, format!("{found}, with memory: {}", facts.memory_nodes))
        }
        _ => Finding::ok(TOPIC, found),
    }
}

fn tiers(MemoryTiers { tiers, demotion_enabled }: &MemoryTiers) -> Finding {
    const TOPIC: &str = "memory tiers";
    let each = |tier: &MemoryTier| format!("{} ({})", tier.number, tier.nodes.named());
    let listed = tiers.iter().map(each).collect::<Vec<_>>().join(", ");
    match (tiers.len(), demotion_enabled) {
        (0, _) => Finding::ok(TOPIC, "unknown: not in this kernel"),
        (1, _) => Finding::ok(TOPIC, "one: all memory is alike"),
        (_, Some(true)) => Finding::limited(TOPIC, format!("{listed}; demotion is on"))
            .so("the kernel moves cold pages of domains to lower tiers, off their homes")
            .advice("echo false > /sys/kernel/mm/numa/demotion_enabled to keep memory at home"),
        (_, demotion) => {
            let demotion = demotion.map_or("demotion is unknown", |_| "demotion is off");
            Finding::ok(TOPIC, format!("{listed}; {demotion}"))
                .so("placement of one home uses tiers below those of all CPUs last")
        }
    }
}

fn policies(facts: &Facts) -> Finding {
    const TOPIC: &str = "memory policies";
    let Some(known) = &facts.policies else { return Finding::ok(TOPIC, "not tested") };
    // The policy restrictive needs only cpuset.mems, no task policy.
    let all = MemoryPolicy::ALL.into_iter().filter(|&policy| policy != MemoryPolicy::Restrictive);
    let lacking: Vec<MemoryPolicy> = all.filter(|policy| !known.contains(policy)).collect();
    if lacking.is_empty() {
        return Finding::ok(TOPIC, "all are supported");
    }
    const SO: &str = "memory can stay at home only through cpuset.mems (--policy restrictive); \
    other \
                      policies are refused";
    match known.is_empty() {
        true if facts.nodes.len() <= 1 => {
            return Finding::ok(TOPIC, "none, and one node needs none");
        }
        _ if facts.policies_forbidden => {
            return Finding::missing(
                TOPIC,
                "a system call filter (seccomp) forbids them",
            )
            .so(SO)
            .advice(
                "in a container: allow set_mempolicy in its seccomp profile, or add CAP_SYS_NICE",
            );
        }
        true => {
            return Finding::missing(TOPIC, "the kernel has none")
                .so(SO)
                .advice("use a kernel with CONFIG_NUMA=y");
        }
        false => {}
    }
    let since = |policy: &MemoryPolicy| match policy {
        MemoryPolicy::PreferredMany => format!("{policy} (Linux 5.15)"),
        MemoryPolicy::WeightedInterleave => format!("{policy} (Linux 6.9)"),
        _ => policy.to_string(),
    };
    let lacking = lacking.iter().map(since).collect::<Vec<_>>().join(", ");
    Finding::limited(TOPIC, format!("unsupported: {lacking}"))
        .so("--policy refuses these; the default is preferred in place of preferred-many")
        .advice("use a newer kernel")
}

fn numa_maps(facts: &Facts) -> Finding {
    const TOPIC: &str = "numa_maps";
    match facts.has_numa_maps {
        true => Finding::ok(TOPIC, "there"),
        false => Finding::limited(TOPIC, "missing: a kernel without CONFIG_NUMA")
            .so("memory is known by cgroup at most, not by mapping"),
    }
}

fn cgroup_layout(cgroups: &Cgroups) -> Finding {
    const TOPIC: &str = "cgroup layout";
    const NEEDED: [(&str, &str); 4] = [
        (
            "cpuset",
            "domains stay at home only by the affinity and policy of their processes, which these \
             may change; no --policy restrictive on several nodes",
        ),
        ("cpu", "no --cpu-limit"),
        ("memory", "no --memory-limit; resident memory is counted from numa_maps (slower)"),
        ("hugetlb", "huge pages are counted from numa_maps"),
    ];
    const UNIFY: &str = "boot with systemd.unified_cgroup_hierarchy=1 or cgroup_no_v1=all, to have \
                         them in version 2";
    let Some(v2) = &cgroups.v2 else {
        return Finding::missing(TOPIC, "version 2 is not mounted")
            .so("a domain is a cgroup of version 2, so none can be started")
            .advice(
                "mount -t cgroup2 none /sys/fs/cgroup/unified, or boot with \
                 systemd.unified_cgroup_hierarchy=1",
            )
            .stops_run();
    };
    let lacks = |controller| cgroups.v2_blocked || !cgroups.has(controller);
    let lacking: Vec<_> = NEEDED.into_iter().filter(|(controller, _)| lacks(controller)).collect();
    let layout = if cgroups.v1_controllers.is_empty() { "unified" } else { "hybrid" };
    let found = format!("{layout}, version 2 at {}", v2.display());
    if lacking.is_empty() {
        return Finding::ok(TOPIC, found);
    }
    let names = lacking.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let follows = lacking.iter().map(|(_, follows)| *follows).collect::<Vec<_>>().join("; ");
    let taken = lacking.iter().any(|(name, _)| cgroups.v1_controllers.contains(*name));
    let without = if cgroups.v2_blocked {
        "its first group has processes and so cannot delegate"
    } else {
        "without"
    };
    Finding::limited(TOPIC, format!("{found}, {without} {names}")).so(follows).advice(
        match (cgroups.v2_blocked, taken) {
            (true, _) => {
                "in a container: move the processes of the tree's first group to a group below it"
            }
            (false, true) => UNIFY,
            (false, false) => {
                "see cgroup_disable= on the kernel command line, and the controllers that the host \
                 delegates to this container"
            }
        },
    )
}

fn owner(facts: &Facts) -> Finding {
    const TOPIC: &str = "cgroup owner";
    let cgroups = &facts.cgroups;
    let root = facts.privileges.euid == Some(0);
    match (facts.systemd, facts.system_bus, cgroups.v2_writable) {
        (true, true, _) if root => {
            Finding::ok(TOPIC, "systemd: domains are scopes in nearside.slice")
        }
        (true, true, _) => Finding::missing(TOPIC, "systemd, which creates scopes only for root")
            .so("no domain can be started or changed")
            .advice("use sudo")
            .stops_run(),
        (true, false, _) => Finding::missing(TOPIC, "systemd, without a system bus")
            .so("systemd cannot create scopes")
            .advice("install and start dbus")
            .stops_run(),
        (false, _, true) => Finding::ok(TOPIC, "none: domains are cgroups below /nearside"),
        // The finding about the layout reports it.
        (false, _, false) if cgroups.v2.is_none() => Finding::missing(TOPIC, "no cgroup tree"),
        (false, _, false) => {
            let delegated = match (&cgroups.own_group, cgroups.own_group_writable) {
                (Some(group), true) => {
                    format!("; {group} is delegated to you, but domains are created below the root")
                }
                _ => String::new(),
            };
            let advice = match root {
                true => {
                    "mount the cgroup tree writable (in a container: --privileged or a delegated \
                     tree)"
                }
                false => "use sudo",
            };
            Finding::missing(TOPIC, format!("the tree's root is not writable{delegated}"))
                .so("no domain can be started or changed")
                .advice(advice)
                .stops_run()
        }
    }
}

fn unreadable(topic: &'static str, files: &[BlockingFile]) -> Finding {
    let why = files.iter().map(|file| file.why.as_str()).collect::<Vec<_>>().join("; ");
    let most = files.iter().map(|file| file.blocks).max();
    match most.unwrap_or(Blocks::ItsSubject) {
        Blocks::EveryChange => {
            Finding::missing(topic, why).so("no domain can be started or changed").stops_run()
        }
        Blocks::EveryClaim => Finding::missing(topic, why)
            .so("no memory can be claimed, so no domain can be started; the domains and \
                 reservations of these files cannot change")
            .stops_run(),
        Blocks::ItsSubject => Finding::limited(topic, why)
            .so("the domains and reservations of these files cannot change; all others can"),
    }
}

fn records(facts: &Facts) -> Finding {
    const TOPIC: &str = "records";
    const SO: &str = "no claim can be recorded, so no domain can be started";
    match (&facts.state_refused, facts.state_writable) {
        (Some(why), _) => Finding::missing(TOPIC, why).so(SO).stops_run(),
        _ if !facts.state_unreadable.is_empty() => unreadable(TOPIC, &facts.state_unreadable),
        (None, true) => Finding::ok(TOPIC, "/run/nearside is writable"),
        (None, false) => Finding::missing(TOPIC, "/run/nearside is not writable")
            .so(SO)
            .advice(if facts.privileges.euid == Some(0) {
                "make /run writable"
            } else {
                "use sudo"
            })
            .stops_run(),
    }
}

fn privileges(privileges: Privileges) -> Finding {
    const TOPIC: &str = "privileges";
    const WANTED: [(Capability, &str, &str); 3] = [
        (Capability::SysNice, "CAP_SYS_NICE", "other users' pages and shared ones cannot be moved"),
        (Capability::SysPtrace, "CAP_SYS_PTRACE", "other users' memory is not known by mapping"),
        (
            Capability::SysAdmin,
            "CAP_SYS_ADMIN (or CAP_BPF and CAP_PERFMON)",
            "no scheduler can be attached",
        ),
    ];
    let has = |capability| {
        let stands_in = || privileges.has(Capability::Bpf) && privileges.has(Capability::Perfmon);
        privileges.has(capability) || capability == Capability::SysAdmin && stands_in()
    };
    let user = match privileges.euid {
        Some(0) => "root".into(),
        Some(id) => format!("user {id}"),
        None => "unknown user".into(),
    };
    let lacking: Vec<_> = WANTED.into_iter().filter(|(capability, ..)| !has(*capability)).collect();
    if lacking.is_empty() {
        return Finding::ok(TOPIC, format!("{user}, with all needed capabilities"));
    }
    let names = lacking.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
    let follows = lacking.iter().map(|(.., follows)| *follows).collect::<Vec<_>>().join("; ");
    let advice = if privileges.euid == Some(0) { "grant them" } else { "use sudo" };
    Finding::limited(TOPIC, format!("{user}, without {names}")).so(follows).advice(advice)
}

fn sched_ext(facts: &Facts) -> Finding {
    const TOPIC: &str = "sched_ext";
    const FALLBACK: &str = "soft affinity stays CPU affinity to the home (fallback pinned)";
    let sched_ext = &facts.sched_ext;
    let Some(state) = &sched_ext.state else {
        return Finding::missing(TOPIC, "not in this kernel")
            .so(FALLBACK)
            .advice("use a kernel of 6.16 or later with CONFIG_SCHED_CLASS_EXT=y");
    };
    // The boot option would mislead: without its flag "domain" it does not matter here.
    if let Some(isolated) = facts.isolated_cpus.as_ref().filter(|cpus| !cpus.is_empty()) {
        return Finding::missing(
            TOPIC,
            format!("refuses to load: CPUs {isolated} are isolated (isolcpus=)"),
        )
        .so(FALLBACK)
        .advice("isolate CPUs by cpuset partitions instead of isolcpus=");
    }
    if let Some(loaded) = &sched_ext.loaded {
        return Finding::limited(TOPIC, format!("{state}: the scheduler {loaded} is loaded"))
            .so(format!("a host has one at a time; unless it is Nearside's, {FALLBACK}"));
    }
    if facts.kernel_version().is_some_and(|version| version < (6, 16)) {
        return Finding::limited(TOPIC, format!("{state}, but the kernel is older than 6.16"))
            .so(FALLBACK)
            .advice("use a kernel of 6.16 or later");
    }
    if !sched_ext.has_btf {
        return Finding::limited(
            TOPIC,
            format!("{state}, without a description of the kernel's types (BTF)"),
        )
        .so(FALLBACK)
        .advice("use a kernel with CONFIG_DEBUG_INFO_BTF=y");
    }
    if !sched_ext.has_wake_sync {
        return Finding::limited(TOPIC, format!("{state}, without the flag SCX_WAKE_SYNC"))
            .so("processes of a domain that wake each other do not take turns on one CPU");
    }
    Finding::ok(TOPIC, format!("supported, {state}"))
        .so(format!("{FALLBACK} until a scheduler is attached"))
}

fn isolated(facts: &Facts) -> Finding {
    const TOPIC: &str = "isolated CPUs";
    let listed = |cpus: &Option<String>| cpus.clone().filter(|cpus| !cpus.is_empty());
    match (listed(&facts.isolated_cpus), listed(&facts.nohz_full_cpus)) {
        (Some(isolated), _) => Finding::limited(TOPIC, format!("CPUs {isolated} are isolated"))
            .so("the kernel does not balance tasks over them, so placement leaves them out; a \
                 domain whose home has them must bind each thread itself")
            .advice(
                "isolate CPUs by cpuset partitions, or name their nodes with --nodes for a domain \
                 that binds its threads",
            ),
        (None, Some(ticks)) => {
            Finding::ok(TOPIC, format!("none; no ticks on CPUs {ticks} (nohz_full)"))
        }
        (None, None) => Finding::ok(TOPIC, "none"),
    }
}

fn balancing(facts: &Facts) -> Finding {
    const TOPIC: &str = "NUMA balancing";
    match facts.numa_balancing {
        None => Finding::ok(TOPIC, "not in this kernel"),
        Some(0) => Finding::ok(TOPIC, "off"),
        Some(2) => Finding::ok(TOPIC, "memory tiering only"),
        Some(_) if facts.nodes.len() <= 1 => Finding::ok(TOPIC, "on, and idle on one node"),
        Some(_) => Finding::limited(TOPIC, "on")
            .so("the kernel moves pages to their threads by itself, and its scanning slows guests \
                 down; memory of policy strict stays on its nodes")
            .advice("sysctl kernel.numa_balancing=0 if every important process is in a domain"),
    }
}

fn huge_pages(facts: &Facts) -> Finding {
    const TOPIC: &str = "huge pages";
    let pool = |(node, pool): &(nearside_topology::NodeId, nearside_topology::HugePagePool)| {
        format!(
            "node {node}: {} of {} free ({})",
            pool.free_pages,
            pool.total_pages,
            size(pool.page_bytes)
        )
    };
    match facts.huge_pages.is_empty() {
        true => Finding::ok(TOPIC, "no pool has any")
            .so("--page-size finds no pages until a pool has some"),
        false => {
            Finding::ok(TOPIC, facts.huge_pages.iter().map(pool).collect::<Vec<_>>().join(", "))
        }
    }
}

fn transparent_huge_pages(facts: &Facts) -> Finding {
    let mode = facts.transparent_huge_pages.as_deref().unwrap_or("not in this kernel");
    Finding::ok("THP", mode)
}

fn text(facts: &Facts, copies: &Seen) -> Finding {
    let domains = &facts.wide_domains;
    let (mut found, mut follows) = match domains.is_empty() {
        true => ("every home is one node".to_owned(), None),
        false => (
            format!("at home on several nodes: {}", printable(&domains.join(", "))),
            Some(format!("{WIDE}; the daemon spreads it over the home")),
        ),
    };
    if let Some(processes) = first_of(&copies.wide) {
        found += &format!("; {processes}");
        follows = follows.or(Some(WIDE.into()));
    }
    const TOPIC: &str = "program text";
    match copies.trouble {
        Some(Trouble::Killed) => {
            return Finding::limited(TOPIC, found + "; the replicator was killed")
                .so("domains keep the copies they have, also of files that are written from now on")
                .advice(
                    "start it again (systemctl start nearside-replicator): first it removes \
                         them",
                );
        }
        Some(Trouble::Silent) => {
            return Finding::limited(TOPIC, found + "; the replicator does not answer")
                .so("who writes to a file with copies waits for up to fs.lease-break-time")
                .advice("look whether it is stopped (systemctl status nearside-replicator)");
        }
        Some(Trouble::Absent) if facts.memory_nodes.len() > 1 => {
            found += "; no replicator runs";
            follows = follows.or(Some(
                "text that several homes execute lies on one of them; with the replicator \
                 (systemctl start nearside-replicator) each can have a copy"
                    .into(),
            ));
        }
        Some(Trouble::Absent) | None => {}
    }
    let finding = Finding::ok(TOPIC, found);
    match follows {
        Some(follows) => finding.so(follows),
        None => finding,
    }
}

fn partitions(cgroups: &Cgroups) -> Finding {
    const TOPIC: &str = "cpuset partitions";
    let each = |(path, kind): &(String, String)| format!("{path} ({kind})");
    match cgroups.partitions.is_empty() {
        true => Finding::ok(TOPIC, "none"),
        false => Finding::limited(
            TOPIC,
            cgroups.partitions.iter().map(each).collect::<Vec<_>>().join(", "),
        )
        .so("their CPUs are reserved for these groups; placement leaves them out"),
    }
}

/// CPUs and memory that the cgroup above all domains withholds; isolated CPUs have a finding of
/// their own.
fn offered(facts: &Facts) -> Finding {
    const TOPIC: &str = "for domains";
    let withheld = LeftOut { isolated_cpus: CpuSet::new(), ..facts.left_out.clone() };
    let lines = withheld.lines();
    match lines.is_empty() {
        true => Finding::ok(TOPIC, "all CPUs and memory"),
        false => Finding::limited(TOPIC, format!("not {}", lines.join("; not ")))
            .so("placement leaves them out, and --nodes cannot name them")
            .advice(format!(
                "widen cpuset.cpus and cpuset.mems of {}, or end the partition that took them",
                withheld.withheld.by
            )),
    }
}

fn swap(facts: &Facts) -> Finding {
    const TOPIC: &str = "swap";
    match facts.swap_total_bytes {
        None | Some(0) => Finding::ok(TOPIC, "none"),
        Some(bytes) => Finding::ok(TOPIC, size(bytes))
            .so("swapped-out memory is not resident: its domain's claim keeps room for it"),
    }
}

fn zone_reclaim(facts: &Facts) -> Finding {
    const TOPIC: &str = "zone_reclaim_mode";
    match facts.zone_reclaim_mode {
        None => Finding::ok(TOPIC, "not in this kernel"),
        Some(0) => Finding::ok(TOPIC, "0"),
        Some(mode) => Finding::limited(TOPIC, mode.to_string())
            .so("a full node reclaims its page cache before it uses another: slower, but local")
            .advice("sysctl vm.zone_reclaim_mode=0"),
    }
}

fn counters(facts: &Facts) -> Finding {
    const TOPIC: &str = "numastat";
    match facts.numa_stat {
        Some(0) => Finding::limited(TOPIC, "off")
            .so("`nearside stat` shows hits and misses as 0")
            .advice("sysctl vm.numa_stat=1"),
        Some(_) => Finding::ok(TOPIC, "counting"),
        None => Finding::ok(TOPIC, "not in this kernel"),
    }
}

fn pressure(facts: &Facts) -> Finding {
    const TOPIC: &str = "pressure (PSI)";
    match facts.has_pressure {
        true => Finding::ok(TOPIC, "measured"),
        false => Finding::limited(TOPIC, "not measured")
            .so("waits of domains for memory or CPUs are unknown")
            .advice("boot with psi=1"),
    }
}

fn lockdown(facts: &Facts) -> Finding {
    const TOPIC: &str = "lockdown";
    match facts.lockdown.as_deref() {
        None => Finding::ok(TOPIC, "not in force"),
        Some("confidentiality") => Finding::limited(TOPIC, "confidentiality")
            .so("BPF programs may not read the kernel's memory, so no scheduler can attach"),
        Some(mode) => Finding::ok(TOPIC, mode),
    }
}
