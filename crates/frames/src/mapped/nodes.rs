//! The nodes of this system, from `/sys/devices/system/node` (Documentation/ABI/stable/
//! sysfs-devices-node of the kernel).

use crate::{
    ids::Node,
    mapped::{backing::Backing, error::MappedError},
    memory::MAX_NODES,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    format, fs,
    path::{Path, PathBuf},
    string::{String, ToString},
    vec,
    vec::Vec,
};

const NODES: &str = "/sys/devices/system/node";

/// A distance beyond all others, for nodes that are absent.
const FAR: u8 = 254;

/// The system's nodes.
#[derive(Debug)]
pub(super) struct SystemNodes {
    folder: PathBuf,
    nodes: BTreeSet<u32>,
}

impl SystemNodes {
    pub(super) fn read() -> Result<Self, MappedError> {
        Self::below(Path::new(NODES))
    }

    fn below(folder: &Path) -> Result<Self, MappedError> {
        let entries = fs::read_dir(folder).map_err(|error| system(folder, &error.to_string()))?;
        let number = |entry: fs::DirEntry| -> Option<u32> {
            entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()
        };
        let nodes = entries.filter_map(Result::ok).filter_map(number).collect();
        Ok(Self { folder: folder.to_owned(), nodes })
    }

    /// The nodes with memory, and how many bytes each has.
    pub(super) fn sizes(&self) -> Result<Vec<(Node, u64)>, MappedError> {
        let nodes = self.nodes.iter().filter_map(|node| usable(*node));
        let all = nodes.map(|node| (node, self.bytes(node)));
        let all = all.filter(|(node, bytes)| *bytes != Err(MappedError::NoNode(*node)));
        all.map(|(node, bytes)| Ok((node, bytes?))).collect()
    }

    /// Refuses what a node cannot have: `sizes` in all, by node.
    pub(super) fn check(&self, sizes: &[(Node, u64)], backing: Backing) -> Result<(), MappedError> {
        let page_bytes = backing.page_bytes();
        let mut by_node: BTreeMap<Node, u64> = BTreeMap::new();
        for &(node, bytes) in sizes {
            if bytes == 0 || !bytes.is_multiple_of(page_bytes) {
                return Err(MappedError::Size { node, bytes, page_bytes });
            }
            let all = by_node.entry(node).or_default();
            *all = all.saturating_add(bytes);
        }
        for (node, bytes) in by_node {
            let node_bytes = self.bytes(node)?;
            if bytes > node_bytes {
                return Err(MappedError::MoreThanNode { node, bytes, node_bytes });
            }
            if backing != Backing::Pages {
                self.check_pool(node, bytes / page_bytes, backing)?;
            }
        }
        Ok(())
    }

    fn of(&self, node: Node, file: &str) -> PathBuf {
        self.folder.join(format!("node{}", node.0)).join(file)
    }

    /// All memory of a node.
    fn bytes(&self, node: Node) -> Result<u64, MappedError> {
        if usable(node.0.into()).is_none() || !self.nodes.contains(&node.0.into()) {
            return Err(MappedError::NoNode(node));
        }
        let path = self.of(node, "meminfo");
        let text = read(&path)?;
        let total = text.lines().find_map(|line| line.split_once("MemTotal:"));
        let kib: Option<u64> =
            total.and_then(|(_, size)| size.trim().strip_suffix("kB")?.trim().parse().ok());
        match kib {
            Some(0) => Err(MappedError::NoNode(node)),
            Some(kib) => Ok(kib.saturating_mul(1024)),
            None => Err(system(&path, "it has no MemTotal in kB")),
        }
    }

    fn check_pool(&self, node: Node, pages: u64, backing: Backing) -> Result<(), MappedError> {
        let pool = self.of(node, &format!("hugepages/hugepages-{}kB", backing.page_bytes() >> 10));
        let free = pool.join("free_hugepages");
        let free_pages = match fs::read_to_string(&free) {
            Ok(text) => {
                text.trim().parse().map_err(|_| system(&free, "it is no number of pages"))?
            }
            Err(error) => {
                return Err(system(&pool, &format!("{error}: no huge pages of this size")));
            }
        };
        if pages <= free_pages {
            return Ok(());
        }
        let path = pool.join("nr_hugepages").display().to_string();
        Err(MappedError::HugePages { node, backing, needed_pages: pages, free_pages, path })
    }

    /// The distances between all nodes up to this one. Those of absent nodes are large. A row of
    /// the kernel's has all nodes of the system.
    pub(super) fn distances(&self, last: Node) -> Result<Vec<u8>, MappedError> {
        let count = usize::from(last.0) + 1;
        let mut distances = vec![FAR; count * count];
        for from in 0..count {
            distances[from * count + from] = 10;
        }
        let nodes = self.nodes.iter().filter_map(|node| usable(*node));
        for from in nodes.filter(|node| *node <= last) {
            let path = self.of(from, "distance");
            let text = read(&path)?;
            let row: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
            let row = row.map_err(|_| system(&path, "it is no list of numbers"))?;
            if row.len() != self.nodes.len() {
                return Err(system(&path, "its numbers are not as many as the nodes"));
            }
            for (to, distance) in self.nodes.iter().zip(row) {
                let Some(to) = usable(*to).filter(|to| *to <= last) else { continue };
                let place = usize::from(from.0) * count + usize::from(to.0);
                distances[place] = u8::try_from(distance).unwrap_or(FAR).min(FAR);
            }
        }
        Ok(distances)
    }
}

/// The node of this number, if a machine can have it.
fn usable(number: u32) -> Option<Node> {
    u8::try_from(number).ok().filter(|node| usize::from(*node) < MAX_NODES).map(Node)
}

fn read(path: &Path) -> Result<String, MappedError> {
    fs::read_to_string(path).map_err(|error| system(path, &error.to_string()))
}

fn system(path: &Path, why: &str) -> MappedError {
    MappedError::System { path: path.display().to_string(), why: why.to_string() }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]
mod tests {
    use super::*;
    use std::println;

    /// Files of nodes: their names, and what they have.
    fn nodes(files: &[(&str, &str)]) -> (tempfile::TempDir, SystemNodes) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let nodes = SystemNodes::below(folder.path()).unwrap();
        (folder, nodes)
    }

    const MEMINFO: &str = "Node 1 MemTotal:         2048 kB\nNode 1 MemFree:  12 kB\n";

    #[test]
    fn nodes_without_numbers_in_a_row_have_their_distances() {
        let (_folder, nodes) = nodes(&[
            ("node1/distance", "10 20 40 80\n"),
            ("node3/distance", "20 10 300 80\n"),
            ("node252/distance", "80 80 80 10\n"),
            ("node252/meminfo", "Node 252 MemTotal: 4096 kB\n"),
            ("node9/distance", "40 300 10 80\n"),
            ("node1/meminfo", MEMINFO),
            ("node3/meminfo", "Node 3 MemTotal: 0 kB\n"),
            ("node9/meminfo", "Node 9 MemTotal: 4 kB\n"),
            ("nodes/meminfo", MEMINFO),
            ("possible", "0-9"),
        ]);
        assert_eq!(nodes.sizes().unwrap(), [(Node(1), 2 << 20), (Node(9), 4096)]);
        let far = FAR;
        let expected = [10, far, far, far, far, 10, far, 20, far, far, 10, far, far, 20, far, 10];
        assert_eq!(nodes.distances(Node(3)).unwrap(), expected);
        let all = nodes.distances(Node(9)).unwrap();
        assert_eq!((all[10 + 9], all[30 + 9], all[90 + 1], all.len()), (40, far, 40, 100));
    }

    #[test]
    fn files_that_are_not_the_kernels_are_refused() {
        for (file, text) in [
            ("node1/distance", "10 x"),
            ("node1/distance", "10 20 30"),
            ("node1/distance", ""),
            ("node1/distance", "-1 10"),
            ("node1/meminfo", ""),
            ("node1/meminfo", "Node 1 MemTotal: much kB"),
            ("node1/meminfo", "Node 1 MemTotal: 12 MB"),
        ] {
            let (folder, nodes) = nodes(&[
                ("node0/distance", "10 20"),
                ("node1/distance", "20 10"),
                ("node0/meminfo", MEMINFO),
                ("node1/meminfo", MEMINFO),
                (file, text),
            ]);
            let refused = nodes.sizes().map(drop).and(nodes.distances(Node(1)).map(drop));
            let MappedError::System { path, why } = refused.unwrap_err() else { panic!("{text}") };
            println!("{why}");
            assert_eq!(Path::new(&path), folder.path().join(file), "{text}");
        }
    }

    #[test]
    fn what_is_asked_of_a_node_is_added_up() {
        let (_folder, nodes) = nodes(&[("node1/meminfo", MEMINFO)]);
        let check = |sizes: &[u64], backing| {
            let sizes: Vec<_> = sizes.iter().map(|bytes| (Node(1), *bytes)).collect();
            nodes.check(&sizes, backing)
        };
        assert_eq!(check(&[1 << 20, 1 << 20], Backing::Pages), Ok(()));
        let (node, bytes, node_bytes) = (Node(1), 3 << 20, 2 << 20);
        let refused = Err(MappedError::MoreThanNode { node, bytes, node_bytes });
        assert_eq!(check(&[1 << 20, 2 << 20], Backing::Pages), refused);
        let refused = check(&[u64::MAX >> 20 << 20, 1 << 20], Backing::Pages);
        assert!(matches!(refused, Err(MappedError::MoreThanNode { bytes: u64::MAX, .. })));
        // It has no pool of huge pages.
        let refused = check(&[2 << 20], Backing::Huge2M).unwrap_err().to_string();
        assert!(refused.ends_with("no huge pages of this size"), "{refused}");
        let pool = "node1/hugepages/hugepages-2048kB";
        fs::create_dir_all(nodes.folder.join(pool)).unwrap();
        let free = nodes.folder.join(pool).join("free_hugepages");
        fs::write(&free, "0\n").unwrap();
        let refused = check(&[2 << 20], Backing::Huge2M).unwrap_err().to_string();
        assert!(refused.contains("1 huge pages of 2097152 bytes"), "{refused}");
        fs::write(&free, "many\n").unwrap();
        let refused = check(&[2 << 20], Backing::Huge2M).unwrap_err();
        assert!(matches!(refused, MappedError::System { .. }), "{refused}");
        fs::write(&free, "1\n").unwrap();
        assert_eq!(check(&[2 << 20], Backing::Huge2M), Ok(()));
    }
}
