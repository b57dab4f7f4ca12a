//! Memory by kind and node, and the mappings of a process (`numa_maps`).

use crate::cgroup::Cgroup;
use nearside_policy::{ByNode, Claim, PageSize, total};
use nearside_topology::{MAX_NODES, NodeId};
use serde::{Serialize, Serializer};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Bytes by node, by the size of a page in bytes.
pub type HugePages = BTreeMap<u64, ByNode>;

/// A domain's memory by kind and node, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct MemoryByKind {
    /// Private memory without a file behind it.
    pub anonymous: ByNode,
    /// Shared memory: tmpfs, `MAP_SHARED | MAP_ANONYMOUS`, System V.
    pub shared: ByNode,
    /// Explicit huge pages. The JSON form is one sum over all sizes.
    #[serde(serialize_with = "all_sizes")]
    pub huge: HugePages,
    /// Page cache and mapped files, which other domains may use, too.
    pub file: ByNode,
    /// Memory that the kernel keeps for the domain: page tables, stacks, slabs.
    pub kernel: ByNode,
    /// Shared memory that no process maps, for certain.
    #[serde(skip)]
    pub unmapped: ByNode,
}

impl MemoryByKind {
    /// The domain's own memory: all but files and the kernel's.
    pub fn own(&self) -> ByNode {
        sum([&self.anonymous, &self.shared].into_iter().chain(self.huge.values()))
    }

    /// All of it.
    pub fn all(&self) -> ByNode {
        sum([&self.own(), &self.file, &self.kernel])
    }

    /// Explicit huge pages of all sizes.
    pub fn all_huge(&self) -> ByNode {
        sum(self.huge.values())
    }

    /// The memory that counts towards a claim in pages of this size: neither free nor reclaimable.
    /// Each size of huge pages has its own pools, so pages of one size do not count towards a claim
    /// in another.
    pub fn resident(&self, page_size: PageSize) -> ByNode {
        match page_size {
            PageSize::Base => sum([&self.anonymous, &self.shared, &self.kernel]),
            PageSize::Huge(page_bytes) => self.huge.get(&page_bytes).cloned().unwrap_or_default(),
        }
    }

    /// The memory to compare with the claim; without a claim, all memory that would move with the
    /// domain.
    pub fn compared_to(&self, claim: Option<&Claim>) -> ByNode {
        match claim {
            Some(claim) => self.resident(claim.page_size),
            None => sum([&self.resident(PageSize::Base), &self.all_huge()]),
        }
    }

    /// The kernel's part of [`compared_to`](Self::compared_to): no process maps it, and no call
    /// moves it.
    pub fn kept_by_kernel(&self, claim: Option<&Claim>) -> ByNode {
        match claim.map_or(PageSize::Base, |claim| claim.page_size) {
            PageSize::Base => self.kernel.clone(),
            PageSize::Huge(_) => ByNode::new(),
        }
    }

    /// The part of [`compared_to`](Self::compared_to) that no process maps, for certain.
    pub fn unmapped_by_any(&self, claim: Option<&Claim>) -> ByNode {
        match claim.map_or(PageSize::Base, |claim| claim.page_size) {
            PageSize::Base => self.unmapped.clone(),
            PageSize::Huge(_) => ByNode::new(),
        }
    }

    /// The part of [`compared_to`](Self::compared_to) that cannot move: the kernel's memory, and
    /// memory that no process maps, for certain.
    pub fn staying(&self, claim: &Claim) -> ByNode {
        sum([&self.kept_by_kernel(Some(claim)), &self.unmapped_by_any(Some(claim))])
    }
}

fn all_sizes<S: Serializer>(huge: &HugePages, serializer: S) -> Result<S::Ok, S::Error> {
    sum(huge.values()).serialize(serializer)
}

/// The sum of quantities by node.
pub fn sum<'a>(parts: impl IntoIterator<Item = &'a ByNode>) -> ByNode {
    let mut parts = parts.into_iter();
    let mut all = parts.next().cloned().unwrap_or_default();
    for part in parts {
        // The kernel's figures name the same nodes each time. Then no node needs to be looked up.
        if all.keys().eq(part.keys()) {
            all.values_mut().zip(part.values()).for_each(|(all, &more)| add_to(all, more));
            continue;
        }
        for (&node, &amount) in part {
            add_to(all.entry(node).or_default(), amount);
        }
    }
    all
}

fn add_to(amount: &mut u64, more: u64) {
    *amount = amount.saturating_add(more);
}

/// Reads lines such as `anon N0=4096 N1=0` or `total=8192 N0=8192`: bytes by node, of these names.
pub fn numa_stat<'n>(text: &str, names: &[&'n str]) -> BTreeMap<&'n str, ByNode> {
    let line = |line: &str| {
        let end = line.find([' ', '=']).unwrap_or(line.len());
        let name = names.iter().find(|&&name| name == &line[..end])?;
        Some((*name, line.split_ascii_whitespace().skip(1).filter_map(node_amount).collect()))
    };
    text.lines().filter_map(line).collect()
}

/// `N3=17`
fn node_amount(word: &str) -> Option<(NodeId, u64)> {
    let (node, amount) = word.strip_prefix('N')?.split_once('=')?;
    let node = node.parse().ok().filter(|&node| node < MAX_NODES)?;
    Some((NodeId(node), amount.parse().ok()?))
}

/// One mapping as `/proc/PID/numa_maps` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: usize,
    /// Its memory policy, in the kernel's words (`bind:1`, `default`).
    pub policy: String,
    /// Its file, if it has one.
    pub file: Option<String>,
    /// The kind of its memory.
    pub kind: Kind,
    /// True if its pages are the process's own even if they have a name: private huge pages all
    /// have the same one.
    pub private: bool,
    /// The size of its pages, in bytes.
    pub page_bytes: u64,
    /// Bytes present by node.
    pub bytes: ByNode,
}

/// The kinds of memory that a mapping can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Private memory without a file behind it, and written pages of a private file mapping.
    Anonymous,
    /// tmpfs, `MAP_SHARED | MAP_ANONYMOUS`, System V.
    Shared,
    /// Explicit huge pages.
    Huge,
    /// Of a file, or the kernel's own (the vDSO).
    File,
}

/// Reads `/proc/PID/numa_maps` (numa(7); `show_numa_map` in `fs/proc/task_mmu.c`). Invalid lines
/// are left out.
pub fn numa_maps(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split(' ');
    let start = usize::from_str_radix(words.next()?, 16).ok()?;
    let mut policy = words.next()?.to_owned();
    let (mut file, mut pages, mut page_bytes) = (None, ByNode::new(), 4096);
    let (mut huge, mut anonymous_pages) = (false, 0_u64);
    for word in words {
        if let Some((node, count)) = node_amount(word) {
            pages.insert(node, count);
        } else if let Some((name, value)) = word.split_once('=') {
            match name {
                "file" => file = Some(value.to_owned()),
                "anon" => anonymous_pages = value.parse().unwrap_or(0),
                "kernelpagesize_kB" => page_bytes = value.parse::<u64>().ok()?.saturating_mul(1024),
                _ => {}
            }
        } else if word == "huge" {
            huge = true;
        } else if word.starts_with("(many)") || word.starts_with("interleave:") {
            // Two policies have a name of two words: "prefer (many):2-3", "weighted
            // interleave:0-1".
            policy = format!("{policy} {word}");
        }
    }
    // The kernel writes shared memory without a file as files of its internal tmpfs.
    let is_shared = |file: &str| {
        ["/dev/zero", "/SYSV", "/memfd:", "/dev/shm/"].iter().any(|prefix| file.starts_with(prefix))
    };
    // All pages are the process's own: never mapped from a file, or written since.
    let all_anonymous = anonymous_pages > 0 && anonymous_pages >= total(&pages);
    let kind = match &file {
        _ if huge => Kind::Huge,
        // The kernel's own, which every process maps: the vDSO.
        None if anonymous_pages == 0 && !pages.is_empty() => Kind::File,
        None => Kind::Anonymous,
        Some(file) if is_shared(file) => Kind::Shared,
        Some(_) if all_anonymous => Kind::Anonymous,
        Some(_) => Kind::File,
    };
    let private = file.is_none() || kind == Kind::Anonymous || huge && all_anonymous;
    let bytes =
        pages.into_iter().map(|(node, count)| (node, count.saturating_mul(page_bytes))).collect();
    Some(Mapping { start, policy, file, kind, private, page_bytes, bytes })
}

/// The memory that some processes map, by kind and node. A shared object that several of them map
/// counts once, as in the process that maps most of it. The kernel's memory is not included.
pub fn mapped<'a>(processes: impl IntoIterator<Item = &'a [Mapping]>) -> MemoryByKind {
    let mut all = MemoryByKind::default();
    let mut shared: BTreeMap<(Kind, u64, String), BTreeMap<usize, ByNode>> = BTreeMap::new();
    for (process, mappings) in processes.into_iter().enumerate() {
        for mapping in mappings {
            match &mapping.file {
                Some(file) if !mapping.private => {
                    let object = (mapping.kind, mapping.page_bytes, file.clone());
                    let bytes = shared.entry(object).or_default().entry(process).or_default();
                    *bytes = sum([&*bytes, &mapping.bytes]);
                }
                _ => add(&mut all, mapping.kind, mapping.page_bytes, &mapping.bytes),
            }
        }
    }
    for ((kind, page_bytes, _), by_process) in shared {
        if let Some(bytes) = by_process.into_values().max_by_key(total) {
            add(&mut all, kind, page_bytes, &bytes);
        }
    }
    all
}

fn add(all: &mut MemoryByKind, kind: Kind, page_bytes: u64, bytes: &ByNode) {
    let of_kind = match kind {
        Kind::Anonymous => &mut all.anonymous,
        Kind::Shared => &mut all.shared,
        Kind::Huge => all.huge.entry(page_bytes).or_default(),
        Kind::File => &mut all.file,
    };
    *of_kind = sum([&*of_kind, bytes]);
}

/// The memory that the processes of a group map. This reads the `numa_maps` of each process, which
/// takes its `mmap_lock`. So use it for one domain, not in every interval.
pub fn mapped_by(group: &Cgroup, proc: &Path) -> MemoryByKind {
    let processes: BTreeSet<_> = group.all_processes().into_iter().collect();
    let maps: Vec<_> = processes
        .into_iter()
        .filter_map(|process| {
            crate::read::text(&proc.join(process.to_string()).join("numa_maps")).ok()
        })
        .map(|text| numa_maps(&text))
        .collect();
    mapped(maps.iter().map(Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_node(amounts: &[u64]) -> ByNode {
        let numbered =
            amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount));
        numbered.filter(|(_, amount)| *amount > 0).collect()
    }

    #[test]
    fn numa_maps_counts_in_the_pages_of_each_mapping() {
        let text = "\
7f0000000000 prefer (many):1-2 anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7f0000200000 bind:1 file=/anon_hugepage\\040(deleted) huge anon=2 N0=1 N1=1 kernelpagesize_kB=2048
7f0001000000 default file=/usr/lib/libc.so.6 mapped=10 mapmax=30 N3=10 kernelpagesize_kB=4
7f0002000000 default file=/dev/zero\\040(deleted) dirty=5 N2=5 kernelpagesize_kB=4
7f0003000000 default stack anon=2 dirty=2 N0=2 kernelpagesize_kB=4
7ffd00000000 bind:1 mapped=1 mapmax=30 N3=1 kernelpagesize_kB=4
nonsense
ffff default
";
        let maps = numa_maps(text);
        let kinds: Vec<_> = maps.iter().map(|mapping| mapping.kind).collect();
        let policies: Vec<_> = maps.iter().map(|mapping| mapping.policy.as_str()).collect();
        assert_eq!(policies[..3], ["prefer (many):1-2", "bind:1", "default"]);
        use Kind::{Anonymous, File, Huge, Shared};
        assert_eq!(kinds, [Anonymous, Huge, File, Shared, Anonymous, File, Anonymous]);
        let all = mapped([maps.as_slice()]);
        assert_eq!(all.anonymous, by_node(&[8192, 12288]));
        assert_eq!(all.huge, [(2 << 20, by_node(&[2 << 20, 2 << 20]))].into());
        assert_eq!(all.shared, by_node(&[0, 0, 20480]));
        assert_eq!(all.file, by_node(&[0, 0, 0, 40960 + 4096]));
    }

    #[test]
    fn memory_that_processes_share_counts_once() {
        let one = numa_maps(
            "7f00 default file=/memfd:x N0=100 kernelpagesize_kB=4\n8000 default anon=1 N0=1",
        );
        let two = numa_maps(
            "6f00 default file=/memfd:x N0=40 kernelpagesize_kB=4\n8000 default anon=1 N1=1",
        );
        let all = mapped([one.as_slice(), two.as_slice()]);
        assert_eq!(all.shared, by_node(&[409_600]));
        assert_eq!(all.anonymous, by_node(&[4096, 4096]));
    }

    #[test]
    fn private_huge_pages_of_several_processes_all_count() {
        let line =
            "7f00 bind:1 file=/anon_hugepage\\040(deleted) huge anon=2 N1=2 kernelpagesize_kB=2048";
        let other =
            "7f00 bind:1 file=/anon_hugepage\\040(deleted) huge N1=1 kernelpagesize_kB=1048576";
        let (private, shared) = (numa_maps(line), numa_maps(other));
        let all = mapped([&private[..], &private, &shared, &shared]);
        assert_eq!(
            all.huge,
            [(2 << 20, by_node(&[0, 8 << 20])), (1 << 30, by_node(&[0, 1 << 30]))].into()
        );
    }

    #[test]
    fn huge_pages_of_one_size_are_no_part_of_a_claim_in_another() {
        let huge =
            HugePages::from([(2 << 20, by_node(&[4 << 20])), (1 << 30, by_node(&[3 << 30]))]);
        let memory = MemoryByKind { huge, ..MemoryByKind::default() };
        assert_eq!(memory.resident(PageSize::Huge(2 << 20)), by_node(&[4 << 20]));
        assert_eq!(memory.resident(PageSize::Huge(64 << 10)), ByNode::new());
        assert_eq!(
            (memory.resident(PageSize::Base), memory.own()),
            (ByNode::new(), memory.all_huge())
        );
        let json = serde_json::to_value(&memory).unwrap();
        assert_eq!(json["huge"], serde_json::json!({ "0": (3_u64 << 30) + (4 << 20) }));
    }
}
