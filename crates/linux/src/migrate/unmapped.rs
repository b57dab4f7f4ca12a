//! Memory that is charged to a domain and that none of its processes maps: files of tmpfs,
//! unattached shared memory. No call moves it, because all of them take a process's addresses.

use super::areas;
use crate::{
    cgroup::Cgroup,
    memory::{self, Kind},
    sys,
};
use nearside_policy::debt_bytes;
use nearside_topology::NodeSet;
use std::{collections::BTreeSet, path::Path};

/// Number of readings. Allocations between two reads could look like unmapped memory, so only
/// memory found in all readings counts.
const LOOKS: usize = 3;

/// Pages by which the memory controller's figures may be off for each CPU. A CPU keeps up to 64 to
/// itself (`MEMCG_CHARGE_BATCH`), and as many of each wait for a reader
/// (`memcg_vmstats_needs_flush` in `mm/memcontrol.c`), or for two seconds.
const LAG_PAGES: u64 = 2 * 64;

/// Bytes by kind: anonymous, shared, huge.
type Kinds = [u64; 3];

/// Bytes off `nodes` that are certainly charged to the group and not mapped.
pub(super) fn bytes_off(group: &Cgroup, proc: &Path, nodes: &NodeSet, online_cpus: usize) -> u64 {
    let lag_bytes = online_cpus as u64 * LAG_PAGES * sys::page_bytes();
    let mut least = u64::MAX;
    for _ in 0..LOOKS {
        least = least.min(look(group, proc, nodes, lag_bytes).unwrap_or(0));
        if least <= lag_bytes {
            return 0;
        }
    }
    least
}

/// One reading. None if the figures are unknown, or too small to matter.
fn look(group: &Cgroup, proc: &Path, nodes: &NodeSet, lag_bytes: u64) -> Option<u64> {
    let charged = || -> Option<Kinds> {
        let memory = memory::charged(group, proc)?;
        Some(
            [&memory.anonymous, &memory.shared, &memory.all_huge()]
                .map(|bytes| debt_bytes(bytes, nodes)),
        )
    };
    let before = charged().filter(|kinds| kinds.iter().sum::<u64>() > lag_bytes)?;
    let mapped = mapped(group, proc, nodes)?;
    let after = charged()?;
    Some(
        (0..mapped.len())
            .map(|kind| before[kind].min(after[kind]).saturating_sub(mapped[kind]))
            .sum(),
    )
}

/// The bytes that all processes map off `nodes`; none if one of them hides its mappings. Shared
/// memory counts for each process that maps it, because each has touched a part of its own.
fn mapped(group: &Cgroup, proc: &Path, nodes: &NodeSet) -> Option<Kinds> {
    let mut all = Kinds::default();
    let processes: BTreeSet<_> = group.all_processes().into_iter().collect();
    for process in processes {
        let folder = proc.join(process.to_string());
        let text = |name| crate::read::text(&folder.join(name));
        match (text("numa_maps"), text("maps"), text("mountinfo")) {
            (Ok(numa_maps), Ok(maps), Ok(mountinfo)) => {
                let kinds = mapped_by(&numa_maps, &maps, &mountinfo, nodes);
                all.iter_mut().zip(kinds).for_each(|(all, bytes)| *all = all.saturating_add(bytes));
            }
            _ if folder.exists() => return None,
            // The process has ended, and its memory is no longer charged.
            _ => {}
        }
    }
    Some(all)
}

/// As [`mapped`], for one process, from the texts of three files below `/proc/PID`.
fn mapped_by(numa_maps: &str, maps: &str, mountinfo: &str, nodes: &NodeSet) -> Kinds {
    let (ranges, tmpfs) = (areas::ranges(maps), tmpfs_devices(mountinfo));
    let mut kinds = Kinds::default();
    for mapping in memory::numa_maps(numa_maps) {
        let device = ranges.get(&(mapping.start as u64)).map(areas::Range::device);
        let kind = match mapping.kind {
            Kind::Shared => 1,
            Kind::Huge => 2,
            // Its pages are charged as shared memory, wherever the tmpfs is mounted.
            Kind::File if device.is_some_and(|device| tmpfs.contains(device)) => 1,
            // Written pages of a file are anonymous; `numa_maps` does not name them.
            Kind::Anonymous | Kind::File => 0,
        };
        kinds[kind] = kinds[kind].saturating_add(debt_bytes(&mapping.bytes, nodes));
    }
    kinds
}

/// The devices of tmpfs mounts, as `maps` writes them (`00:1b`), from `mountinfo`
/// (proc_pid_mountinfo(5)).
fn tmpfs_devices(mountinfo: &str) -> BTreeSet<String> {
    // 25 30 0:22 / /run rw,nosuid - tmpfs tmpfs rw
    let device = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        file_system.starts_with("tmpfs ").then_some(())?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        Some(format!("{:02x}:{:02x}", major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    mountinfo.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Tree;
    use nearside_topology::NodeId;
    use std::fs;

    const NUMA_MAPS: &str = "\
1000 default anon=2 N0=1 N1=1 kernelpagesize_kB=4
8000 default file=/usr/lib/libc.so.6 anon=1 mapped=4 N1=5 kernelpagesize_kB=4
20000 default file=/memfd:x N1=7 kernelpagesize_kB=4
30000 default file=/run/vm/ram N1=9 kernelpagesize_kB=4
200000 default file=/hugepages/x huge N1=2 kernelpagesize_kB=2048
";
    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
8000-d000 rw-p 00000000 fe:00 77 /usr/lib/libc.so.6
20000-27000 rw-s 00000000 00:01 1027 /memfd:x (deleted)
30000-39000 rw-s 00000000 00:1a 12 /run/vm/ram
200000-600000 rw-s 00000000 00:10 99 /hugepages/x
";
    const MOUNTINFO: &str = "\
22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
25 22 0:26 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=1k
26 22 0:22 / /dev rw - devtmpfs udev rw
";

    #[test]
    fn each_mapping_counts_as_its_pages_are_charged() {
        let home = NodeSet::from([NodeId(0)]);
        assert_eq!(mapped_by(NUMA_MAPS, MAPS, MOUNTINFO, &home), [6 * 4096, 16 * 4096, 4 << 20]);
        assert_eq!(
            mapped_by(NUMA_MAPS, MAPS, MOUNTINFO, &NodeSet::from([NodeId(0), NodeId(1)])),
            [0; 3]
        );
    }

    #[test]
    fn charged_memory_beyond_mappings_and_lag_is_unmapped() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("cgroup.controllers", "memory");
        file("cgroup.procs", "10\n11\n");
        file("10/numa_maps", NUMA_MAPS);
        file("10/maps", MAPS);
        file("10/mountinfo", MOUNTINFO);
        let group = Tree::at(folder.path()).unwrap().group("/").unwrap();
        let told = |anonymous: u64, shared: u64| {
            let stat = format!(
                "anon N0=999999999 N1={anonymous}\nfile N0=0 N1={shared}\nshmem N0=0 N1={shared}\n"
            );
            file("memory.numa_stat", &stat);
            bytes_off(&group, folder.path(), &NodeSet::from([NodeId(0)]), 2)
        };
        let lag = 2 * LAG_PAGES * sys::page_bytes();
        // Process 11 has ended.
        assert_eq!(told(0, 16 * 4096 + lag + 1), lag + 1);
        assert_eq!(told(0, 16 * 4096 + lag), 0);
        assert_eq!(told(6 * 4096 + lag + 7, 0), lag + 7);
        // A process that hides its mappings may map all of it.
        file("11/status", "");
        assert_eq!(told(0, 1 << 30), 0);
    }
}
