//! The explicit huge pages of a group: how many, of which sizes, and where they lie.

use crate::{cgroup::Cgroup, memory};
use nearside_policy::ByNode;
use std::{collections::BTreeMap, path::Path};

/// Bytes by node, by the size of a page in bytes.
pub type HugePages = BTreeMap<u64, ByNode>;

/// The huge pages of a group and those below it.
///
/// A controller of their own charges them (`hugetlb.*`), which systemd does not enable: without it they are looked up
/// in the processes' mappings, if the machine has any.
pub(crate) fn of_group(group: &Cgroup, proc: &Path) -> HugePages {
    let mapped = || memory::mapped_by(group, proc).huge;
    match charged(group) {
        Some(pools) if pools.is_empty() => HugePages::new(),
        Some(pools) => {
            let mapped = mapped();
            let nowhere = ByNode::new();
            let placed = |pool: Pool| {
                let mapped = mapped.get(&pool.page_bytes).unwrap_or(&nowhere);
                (pool.page_bytes, place(pool.bytes, [mapped, &pool.by_node]))
            };
            pools.into_iter().map(placed).collect()
        }
        None if host_has_any(proc) => mapped(),
        None => HugePages::new(),
    }
}

/// What is charged in pages of one size.
struct Pool {
    page_bytes: u64,
    bytes: u64,
    by_node: ByNode,
}

/// The sizes of which anything is charged; none where the controller is not there.
fn charged(group: &Cgroup) -> Option<Vec<Pool>> {
    let entries = std::fs::read_dir(group.directory()).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let pool = |name: String| {
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(".current")?;
        let page_bytes = page_bytes(size)?;
        let bytes = group.read(&name).ok()??.trim().parse().ok()?;
        // Linux 5.17. "total" takes the groups below into account, "hugetlb..." does not.
        let stat = group.read(&format!("hugetlb.{size}.numa_stat")).ok().flatten().unwrap_or_default();
        let by_node = memory::numa_stat(&stat).remove("total").unwrap_or_default();
        Some(Pool { page_bytes, bytes, by_node })
    };
    let pools: Vec<_> = names.filter_map(pool).collect();
    (!pools.is_empty()).then(|| pools.into_iter().filter(|pool| pool.bytes > 0).collect())
}

/// Where `bytes` that are charged lie, by witnesses from the best to the worst; no more of them than are charged.
///
/// The controller's figures by node are the worse witness: a page that moved to another node stays on its old one there
/// (`hugetlb_cgroup_migrate` in `mm/hugetlb_cgroup.c`; seen on Linux 6.16, no longer on 7.3), and when it is freed the
/// new one's figure falls below 0, which reads as nearly 2^64.
fn place(bytes: u64, witnesses: [&ByNode; 2]) -> ByNode {
    let mut placed = ByNode::new();
    let mut left = bytes;
    for (&node, &seen) in witnesses.into_iter().flatten() {
        let there = placed.entry(node).or_default();
        let more = seen.saturating_sub(*there).min(left);
        *there += more;
        left -= more;
    }
    placed.retain(|_, bytes| *bytes > 0);
    placed
}

/// The size in the name of a file of the controller: `64KB`, `2MB`, `1GB` (`mem_fmt` in `mm/hugetlb_cgroup.c`).
fn page_bytes(size: &str) -> Option<u64> {
    let shift = [("KB", 10), ("MB", 20), ("GB", 30)];
    let (number, shift) = shift.iter().find_map(|(unit, shift)| Some((size.strip_suffix(unit)?, shift)))?;
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Whether any are set aside or in use, of whatever size (`Hugetlb` in `/proc/meminfo`, Linux 4.16; a kernel without
/// huge pages has no such line).
fn host_has_any(proc: &Path) -> bool {
    let text = std::fs::read_to_string(proc.join("meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Hugetlb:"));
    line.is_some_and(|amount| amount.split_whitespace().next() != Some("0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;

    const MIB: u64 = 1 << 20;

    fn by_node(amounts: &[u64]) -> ByNode {
        let numbered = amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount));
        numbered.filter(|(_, amount)| *amount > 0).collect()
    }

    /// A group with files, a process 10 in it, and that process's mappings.
    struct Made(tempfile::TempDir);

    impl Made {
        fn new() -> Self {
            let made = Self(tempfile::tempdir().unwrap());
            made.file("cgroup.controllers", "memory");
            made.file("cgroup.procs", "10\n");
            made.file(
                "10/numa_maps",
                "7000 bind:1 file=/anon_hugepage huge anon=2 N1=2 kernelpagesize_kB=2048\n8000 default anon=1 N0=1\n",
            );
            made
        }

        fn file(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn huge(&self) -> HugePages {
            let group = crate::cgroup::Tree::at(self.0.path()).unwrap().group("/").unwrap();
            of_group(&group, self.0.path())
        }
    }

    #[test]
    fn without_their_controller_they_are_found_in_the_mappings() {
        let made = Made::new();
        for (meminfo, expected) in [
            ("Hugetlb: 8192 kB\n", HugePages::from([(2 * MIB, by_node(&[0, 4 * MIB]))])),
            ("Hugetlb: 0 kB\n", HugePages::new()),
            ("MemTotal: 1 kB\n", HugePages::new()),
        ] {
            made.file("meminfo", meminfo);
            assert_eq!(made.huge(), expected, "{meminfo}");
        }
    }

    #[test]
    fn what_is_charged_lies_where_it_is_mapped_and_else_where_the_controller_says() {
        let made = Made::new();
        let charge = |size: &str, current: u64, stat: &str| {
            made.file(&format!("hugetlb.{size}.current"), &format!("{current}\n"));
            made.file(&format!("hugetlb.{size}.rsvd.current"), "99\n");
            made.file(&format!("hugetlb.{size}.numa_stat"), stat);
        };
        charge("2MB", 0, "total=0 N0=0 N1=0\nhugetlb=0 N0=0 N1=0\n");
        assert_eq!(made.huge(), HugePages::new(), "mapped, but charged to somebody else");
        // A kernel that leaves moved pages where they were, and a file that nobody maps.
        charge("2MB", 6 * MIB, "total=6291456 N0=6291456 N1=0\nhugetlb=0 N0=0 N1=0\n");
        charge("1GB", 1 << 30, "total=1073741824 N0=0 N1=1073741824\n");
        let expected = [(2 * MIB, by_node(&[2 * MIB, 4 * MIB])), (1 << 30, by_node(&[0, 1 << 30]))];
        assert_eq!(made.huge(), expected.into());
    }

    #[test]
    fn no_more_is_placed_than_is_charged() {
        let (mapped, below_0) = (by_node(&[0, 4]), by_node(&[5, u64::MAX - 1]));
        assert_eq!(place(4, [&mapped, &below_0]), mapped);
        assert_eq!(place(3, [&mapped, &below_0]), by_node(&[0, 3]));
        assert_eq!(place(7, [&mapped, &below_0]), by_node(&[3, 4]));
        assert_eq!(place(7, [&ByNode::new(), &below_0]), by_node(&[5, 2]));
        assert_eq!(place(9, [&mapped, &ByNode::new()]), mapped);
    }

    #[test]
    fn pools_are_named_by_the_size_of_their_pages() {
        let sizes = ["64KB", "2MB", "16GB", "99999999999999999GB", "2MB.rsvd", ""].map(page_bytes);
        assert_eq!(sizes, [Some(64 << 10), Some(2 << 20), Some(16 << 30), None, None, None]);
    }
}
