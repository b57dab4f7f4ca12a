//! A file as domains execute it.

use crate::ByNode;
use nearside_topology::{NodeId, NodeSet};
use std::{collections::BTreeMap, fmt, ops::Range};

/// A file by its device and inode, as `/proc/PID/maps` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileId {
    /// The major number of the device.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
    /// The inode.
    pub inode: u64,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x} {}", self.major, self.minor, self.inode)
    }
}

/// Neighbouring pages of a file on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The offset of the first byte in the file.
    pub start: u64,
    /// The offset behind the last byte.
    pub end: u64,
    /// The node.
    pub node: NodeId,
}

impl Run {
    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// The executed text of one file: the pages of its executable mappings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextFile {
    /// The file.
    pub id: FileId,
    /// Its path, as a process of a domain sees it.
    pub path: String,
    /// A process of a domain that maps it.
    pub process: i32,
    /// The offsets in the file between which executable mappings lie.
    pub extent: Range<u64>,
    /// Its present pages within the extent, in the order of their offsets.
    pub runs: Vec<Run>,
    /// The domains that execute it, with their homes; none for a domain without a home.
    pub users: BTreeMap<String, Option<NodeSet>>,
    /// Whether a busy process outside of all domains executes it. It may run on any node.
    pub is_busy_outside: bool,
}

impl TextFile {
    /// Its bytes by node.
    pub fn bytes(&self) -> ByNode {
        let mut bytes = ByNode::new();
        for run in &self.runs {
            let of_node: &mut u64 = bytes.entry(run.node).or_default();
            *of_node = of_node.saturating_add(run.bytes());
        }
        bytes
    }
}
