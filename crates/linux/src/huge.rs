//! The explicit huge pages of a group: their number, sizes and nodes.

pub use crate::mappings::HugePages;

use crate::{cgroup::Cgroup, mappings};
use nearside_policy::{ByNode, Claim, PageSize, outstanding};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The huge pages of a group and those below it, on a machine that [has any](host_has_any).
///
/// The `hugetlb` controller charges them, but systemd does not enable it. Without it they are
/// counted in the mappings of the processes.
pub(crate) fn of_group(group: &Cgroup, proc: &Path) -> HugePages {
    let mapped = || mappings::mapped_by(group, proc).huge;
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
        None => mapped(),
    }
}

/// Bytes of huge pages that a group has reserved within its claim and not touched yet. They are
/// part of the memory that its claim still reserves.
///
/// The kernel counts reserved pages for the whole machine only, and the controller's `rsvd` files
/// are missing under systemd. But a mapping reserves all of its pages when it is made, unless it is
/// made with `MAP_NORESERVE`.
pub fn reserved_bytes(group: &Cgroup, proc: &Path, claim: &Claim, resident: &ByNode) -> u64 {
    let PageSize::Huge(page_bytes) = claim.page_size else { return 0 };
    // The result never exceeds the outstanding claim, so for most domains no file is read.
    if outstanding(claim, resident, &ByNode::new()).values().all(|&bytes| bytes == 0) {
        return 0;
    }
    let mut untouched = Untouched::new();
    let processes: BTreeSet<_> = group.all_processes().into_iter().collect();
    for process in processes {
        // A process that hides its mappings counts as one without a claim.
        if let Ok(text) = crate::read::text(&proc.join(format!("{process}/smaps"))) {
            add_untouched(&text, page_bytes, &mut untouched);
        }
    }
    untouched.into_values().fold(0, u64::saturating_add)
}

/// Bytes without a page, by mapped object: device, inode and offset.
type Untouched = BTreeMap<String, u64>;

/// Adds the mappings in `/proc/PID/smaps` (proc_pid_smaps(5)) that have reserved pages of this
/// size. A page that several processes map is untouched if none has touched it. A child's copy of a
/// private mapping has reserved nothing.
fn add_untouched(smaps: &str, page_bytes: u64, untouched: &mut Untouched) {
    let (mut object, mut bytes, mut size) = (String::new(), 0, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        let mut kib = || words.next()?.parse::<u64>().ok()?.checked_mul(1024);
        match first {
            "KernelPageSize:" => size = kib().unwrap_or(0),
            "Shared_Hugetlb:" | "Private_Hugetlb:" => {
                bytes = u64::saturating_sub(bytes, kib().unwrap_or(0))
            }
            "VmFlags:" => {
                let flags: Vec<_> = words.collect();
                if flags.contains(&"ht") && !flags.contains(&"nr") && size == page_bytes {
                    let least = untouched.entry(std::mem::take(&mut object)).or_insert(bytes);
                    *least = bytes.min(*least);
                }
            }
            // 7f0616200000-7f060a200000 rw-p 00000000 00:10 1234   /anon_hugepage (deleted)
            range => {
                let parse = |text| u64::from_str_radix(text, 16).ok();
                let ends = range
                    .split_once('-')
                    .and_then(|(start, end)| Some((parse(start)?, parse(end)?)));
                if let Some((start, end)) = ends {
                    bytes = end.saturating_sub(start);
                    object = words.skip(1).take(3).collect::<Vec<_>>().join(" ");
                }
            }
        }
    }
}

/// The charge in pages of one size.
struct Pool {
    page_bytes: u64,
    bytes: u64,
    by_node: ByNode,
}

/// The sizes with a charge; none if the controller is missing.
fn charged(group: &Cgroup) -> Option<Vec<Pool>> {
    let entries = std::fs::read_dir(group.directory()).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let pool = |name: String| {
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(".current")?;
        let page_bytes = page_bytes(size)?;
        let bytes = group.read(&name).ok()??.trim().parse().ok()?;
        // Linux 5.17. The line "total" includes the groups below, the line "hugetlb" does not.
        let stat =
            group.read(&format!("hugetlb.{size}.numa_stat")).ok().flatten().unwrap_or_default();
        let by_node = mappings::numa_stat(&stat, &["total"]).remove("total").unwrap_or_default();
        Some(Pool { page_bytes, bytes, by_node })
    };
    let pools: Vec<_> = names.filter_map(pool).collect();
    (!pools.is_empty()).then(|| pools.into_iter().filter(|pool| pool.bytes > 0).collect())
}

/// Distributes the charged `bytes` over nodes. `witnesses` are figures by node, the most reliable
/// first; the result never exceeds the charge.
///
/// The controller's own figures by node are less reliable. A page that moved to another node still
/// counts on its old one (`hugetlb_cgroup_migrate` in `mm/hugetlb_cgroup.c`; seen on Linux 6.16,
/// not on 7.3). When it is freed, the new node's figure falls below 0, which reads as nearly
/// 2^64.
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

/// The size in the name of a file of the controller: `64KB`, `2MB`, `1GB` (`mem_fmt` in
/// `mm/hugetlb_cgroup.c`).
fn page_bytes(size: &str) -> Option<u64> {
    let shift = [("KB", 10), ("MB", 20), ("GB", 30)];
    let (number, shift) =
        shift.iter().find_map(|(unit, shift)| Some((size.strip_suffix(unit)?, shift)))?;
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// True if huge pages of any size are in a pool or in use (`Hugetlb` in `/proc/meminfo`, Linux
/// 4.16; a kernel without huge pages has no such line).
pub(crate) fn host_has_any(proc: &Path) -> bool {
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
        let numbered =
            amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount));
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
                "7000 bind:1 file=/anon_hugepage huge anon=2 N1=2 kernelpagesize_kB=2048\n\
                 8000 default anon=1 N0=1\n",
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
            crate::memory::of_group(&group, self.0.path()).huge
        }
    }

    #[test]
    fn without_their_controller_they_are_found_in_the_mappings() {
        let made = Made::new();
        made.file("memory.numa_stat", "");
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
    fn mappings_locate_charged_pages_before_the_controller_does() {
        let made = Made::new();
        made.file("memory.numa_stat", "");
        made.file("meminfo", "Hugetlb: 8192 kB\n");
        let charge = |size: &str, current: u64, stat: &str| {
            made.file(&format!("hugetlb.{size}.current"), &format!("{current}\n"));
            made.file(&format!("hugetlb.{size}.rsvd.current"), "99\n");
            made.file(&format!("hugetlb.{size}.numa_stat"), stat);
        };
        charge("2MB", 0, "total=0 N0=0 N1=0\nhugetlb=0 N0=0 N1=0\n");
        assert_eq!(made.huge(), HugePages::new(), "mapped, but charged to another group");
        // A kernel that leaves moved pages on their old node, and a file without mappings.
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

    /// A mapping as smaps has it, shortened.
    fn mapping(range: &str, rest: &str, page_kib: u64, touched_kib: u64, flags: &str) -> String {
        format!(
            "{range} rw-p {rest}\nSize:   8 kB\nKernelPageSize:     {page_kib} kB\nRss:    0 kB\n\
             Shared_Hugetlb:  0 kB\nPrivate_Hugetlb:   {touched_kib} kB\nProtectionKey:  0\n\
             VmFlags: rd wr mr {flags}\n"
        )
    }

    #[test]
    fn mapped_and_untouched_pages_are_reserved() {
        let text = [
            // 8 MiB with one page touched and 4 MiB of another object. Not counted: pages of
            // another size, a mapping without a reservation, and ordinary pages.
            mapping(
                "200000-a00000",
                "00000000 00:10 7   /anon_hugepage (deleted)",
                2048,
                2048,
                "me ht",
            ),
            mapping("c00000-1000000", "00000000 00:10 8 /x", 2048, 0, "ht sd"),
            mapping("40000000-80000000", "00000000 00:10 9 /y", 1 << 20, 0, "ht"),
            mapping("80000000-80400000", "00000000 00:10 10 /z", 2048, 0, "nr ht"),
            mapping("90000000-90400000", "00000000 00:00 0", 4, 0, "nh"),
            "VmFlags: ht\n-\n7-x\nnonsense".into(),
        ]
        .concat();
        let reserved = |texts: &[&str]| {
            let mut untouched = Untouched::new();
            texts.iter().for_each(|text| add_untouched(text, 2 * MIB, &mut untouched));
            untouched.into_values().sum::<u64>() / MIB
        };
        assert_eq!(reserved(&[&text]), 6 + 4);
        // A child, or another process with the same file, has touched more of the second.
        let other = mapping("c00000-1000000", "00000000 00:10 8 /x", 2048, 2048, "ht");
        assert_eq!(reserved(&[&text, &other]), 6 + 2);
        assert_eq!(reserved(&[&other, &text]), 6 + 2);
    }

    #[test]
    fn mappings_are_read_only_for_outstanding_huge_pages() {
        let made = Made::new();
        made.file("10/smaps", &mapping("200000-a00000", "00000000 00:10 7", 2048, 2048, "ht"));
        let group = crate::cgroup::Tree::at(made.0.path()).unwrap().group("/").unwrap();
        let reserved = |page_size, claimed: u64, resident: u64| {
            let claim = Claim { bytes: by_node(&[claimed]), page_size, ..Claim::default() };
            reserved_bytes(&group, made.0.path(), &claim, &by_node(&[resident]))
        };
        assert_eq!(reserved(PageSize::Huge(2 * MIB), 8 * MIB, 2 * MIB), 6 * MIB);
        assert_eq!(reserved(PageSize::Huge(2 * MIB), 8 * MIB, 8 * MIB), 0);
        assert_eq!(reserved(PageSize::Huge(1 << 30), 1 << 30, 0), 0);
        assert_eq!(reserved(PageSize::Base, 8 * MIB, 0), 0);
    }

    #[test]
    fn pools_are_named_by_the_size_of_their_pages() {
        let sizes = ["64KB", "2MB", "16GB", "99999999999999999GB", "2MB.rsvd", ""].map(page_bytes);
        assert_eq!(sizes, [Some(64 << 10), Some(2 << 20), Some(16 << 30), None, None, None]);
    }
}
