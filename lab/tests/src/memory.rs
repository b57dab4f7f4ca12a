//! The nodes of processes' memory, from `/proc/PID/numa_maps` (numa(7)).

use crate::files::read;
use std::{collections::BTreeMap, fs};

/// One line of `numa_maps`.
#[derive(Debug)]
pub struct Mapping {
    pub address: u64,
    /// The memory policy that holds for it, in the kernel's words.
    pub policy: String,
    /// Its bytes by node.
    pub bytes: BTreeMap<u32, u64>,
    /// The bytes that are the process's own, and not those of a file.
    pub own_bytes: u64,
}

/// The mappings of a process; none if it is gone.
pub(crate) fn mappings(process: u32) -> Vec<Mapping> {
    let text = fs::read_to_string(format!("/proc/{process}/numa_maps")).unwrap_or_default();
    text.lines().map(mapping_of).collect()
}

fn mapping_of(line: &str) -> Mapping {
    let words: Vec<_> = line.split(' ').collect();
    let field = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
    let number = |name: &str| field(name).and_then(|number| number.parse::<u64>().ok());
    let page_bytes = number("kernelpagesize_kB=").unwrap_or(4) * 1024;
    let count = |word: &&str| {
        let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
        Some((node.parse().ok()?, pages.parse::<u64>().ok()? * page_bytes))
    };
    let bytes: BTreeMap<u32, u64> = words.iter().filter_map(count).collect();
    let all: u64 = bytes.values().sum();
    // Shared memory without a file of its own shows as a file of the kernel's internal tmpfs, or as
    // one of /dev/shm.
    let is_shared = |file: &str| {
        ["/dev/zero", "/SYSV", "/memfd:", "/dev/shm/"].iter().any(|prefix| file.starts_with(prefix))
    };
    let own_bytes = match field("file=") {
        Some(file) if is_shared(file) || words.contains(&"huge") => all,
        // The written pages of a private mapping of a file; without a file, all pages except the
        // kernel's own (the vDSO).
        _ => number("anon=").unwrap_or(0) * page_bytes,
    };
    // "prefer (many):2-3" and "weighted interleave:0-1" are two words.
    let is_policy = |word: &&&str| !word.contains('=') && !["huge", "heap", "stack"].contains(word);
    let policy: Vec<_> = words[1..].iter().take_while(is_policy).copied().collect();
    Mapping {
        address: u64::from_str_radix(words[0], 16).unwrap(),
        policy: policy.join(" "),
        bytes,
        own_bytes,
    }
}

/// The mapping of a process that begins at (or, where the kernel merged it with the one before,
/// holds) an address.
pub fn mapping(process: u32, address: u64) -> Mapping {
    let before = mappings(process).into_iter().filter(|mapping| mapping.address <= address);
    before.max_by_key(|mapping| mapping.address).expect("the mapping")
}

/// The mapping of a process that has this size, if there is one; there must not be another.
pub fn mapping_of_size(process: u32, bytes: u64) -> Option<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let range = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (number(from), number(to))
    };
    let starts: Vec<_> =
        maps.lines().map(range).filter(|(from, to)| to - from == bytes).map(|it| it.0).collect();
    assert!(starts.len() < 2, "{} mappings of {bytes} bytes", starts.len());
    let start = starts.first()?;
    mappings(process).into_iter().find(|mapping| mapping.address == *start)
}

/// Pages of the executable mappings of a file in a process, by node.
pub fn text_pages(process: u32, path: &str) -> BTreeMap<u32, u64> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let is_text = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words[1].contains('x') && words.get(5) == Some(&path)
    };
    let start = |line: &str| u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap();
    let starts: Vec<_> = maps.lines().filter(is_text).map(start).collect();
    let mut pages = BTreeMap::new();
    for mapping in mappings(process).into_iter().filter(|it| starts.contains(&it.address)) {
        for (node, bytes) in mapping.bytes {
            *pages.entry(node).or_default() += bytes / 4096;
        }
    }
    pages
}

/// The own memory of a domain in bytes, and the part of it that lies off a node. It consists of
/// anonymous, shared and huge pages of all its processes, without pages of mapped files. `tree` is
/// the mount point of the cgroup v2 tree.
pub fn own_memory(tree: &str, domain: &str, home: u32) -> (u64, u64) {
    let group = read(&format!("{tree}/nearside/{domain}/cgroup.procs"));
    let all: Vec<_> =
        group.lines().flat_map(|process| mappings(process.parse().unwrap())).collect();
    // A private mapping of a file may have pages of both kinds, and their nodes are not shown
    // apart: only pages beyond the file's own certainly belong to the process.
    let off_home = |mapping: &Mapping| {
        let (there, all) =
            (mapping.bytes.get(&home).unwrap_or(&0), mapping.bytes.values().sum::<u64>());
        (all - there).saturating_sub(all - mapping.own_bytes)
    };
    (all.iter().map(|mapping| mapping.own_bytes).sum(), all.iter().map(off_home).sum())
}

/// The own memory of processes (as of [`own_memory`]) by node.
#[derive(Debug, Default)]
pub struct Own {
    /// In bytes, of the mappings that have only own pages.
    pub bytes: BTreeMap<u32, u64>,
    /// Written pages of private file mappings that also have pages of the file: their nodes are
    /// unknown.
    pub unplaced_bytes: u64,
}

impl Own {
    /// Memory of processes. Shared memory counts once for each of them.
    pub fn of(processes: impl IntoIterator<Item = u32>) -> Self {
        let mut own = Self::default();
        for mapping in processes.into_iter().flat_map(mappings) {
            if mapping.own_bytes < mapping.bytes.values().sum() {
                own.unplaced_bytes += mapping.own_bytes;
                continue;
            }
            for (node, bytes) in mapping.bytes {
                *own.bytes.entry(node).or_default() += bytes;
            }
        }
        own
    }

    pub fn total(&self) -> u64 {
        self.bytes.values().sum::<u64>() + self.unplaced_bytes
    }
}

/// The bytes that the memory controller has charged a group for anonymous and shared memory, by
/// node; nodes without any are left out. It lags by up to 64 pages for each CPU, and is updated
/// every two seconds (`mm/memcontrol.c`).
pub fn charged(group: &str) -> BTreeMap<u32, u64> {
    let mut charged = BTreeMap::new();
    for line in read(&format!("{group}/memory.numa_stat")).lines() {
        let Some(by_node) = line.strip_prefix("anon ").or_else(|| line.strip_prefix("shmem "))
        else {
            continue;
        };
        for (node, bytes) in by_node.split(' ').map(|word| word[1..].split_once('=').unwrap()) {
            *charged.entry(node.parse().unwrap()).or_default() += bytes.parse::<u64>().unwrap();
        }
    }
    charged.retain(|_, bytes| *bytes > 0);
    charged
}

/// A figure of a node's `meminfo`, in bytes.
pub fn node_memory(node: usize, figure: &str) -> u64 {
    let text = read(&format!("/sys/devices/system/node/node{node}/meminfo"));
    let line = text.lines().find_map(|line| line.split_once(&format!(" {figure}:")));
    let (_, amount) = line.unwrap_or_else(|| panic!("{figure} of node {node}"));
    amount.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// How many processes the kernel has killed for want of memory.
pub fn killed_for_memory() -> u64 {
    let text = read("/proc/vmstat");
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
}
