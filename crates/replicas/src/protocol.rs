//! The messages between the helper and its clients: one JSON value a packet over a Unix socket
//! (`SOCK_SEQPACKET`), a file as a descriptor beside it. Only root may connect.
//!
//! A path in a message says where to look, never what to use: the file is the descriptor's, and a
//! place that names another one is left alone.

use crate::{original::Place, path_text};
use nearside_policy::replication::{Bar, CopyRefusal, Ratio};
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// The socket of the helper.
pub const SOCKET: &str = "/run/nearside-replicas/socket";

/// The longest request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The longest answer, in bytes: packets are limited by the send buffer of the socket.
pub const MAX_ANSWER_BYTES: usize = 128 << 10;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Replicate the file of the descriptor.
    Add {
        /// Where it is found.
        place: Place,
        /// The nodes that shall use copies; none for all nodes with CPUs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nodes: Option<NodeSet>,
        /// One copy for so many nodes.
        #[serde(default)]
        ratio: Ratio,
        /// Whether the daemon wants them, and no operator has asked.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        automatic: bool,
    },
    /// Remove the copies of the file of the descriptor, or of the file that was added at a path
    /// if no descriptor is sent.
    Remove {
        /// Its path on the host as it was added.
        #[serde(with = "path_text")]
        path: PathBuf,
        /// Whether it is to stay if an operator has asked for its copies.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        automatic: bool,
    },
    /// Give the mount namespace of the asking process the copies of a node.
    Join {
        /// The node.
        node: NodeId,
    },
    /// Give the mount namespace of a process the copies of a node, and let the processes that run
    /// in it use them from now on.
    Attach {
        /// The process.
        process: u32,
        /// The node.
        node: NodeId,
        /// The folder that will be its root, if it is that of a container that starts.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "path_text::optional")]
        future_root: Option<PathBuf>,
    },
    /// Take copies away from nodes, least useful first, until so many bytes are free there.
    MakeRoom {
        /// The nodes.
        nodes: NodeSet,
        /// The bytes.
        bytes: u64,
    },
    /// Report files from a position of the list on.
    Status {
        /// The position.
        #[serde(default)]
        from: usize,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Done.
    Done,
    /// The file cannot have copies.
    Barred {
        /// Why.
        bar: Bar,
    },
    /// Not done, for the reason in the text.
    Refused {
        /// The reason.
        why: String,
    },
    /// The copies of a node are bound in the asker's namespace.
    Joined {
        /// Their number.
        copies: usize,
    },
    /// Copies have gone.
    Room {
        /// Their memory, in bytes.
        freed_bytes: u64,
    },
    /// Running processes use copies.
    Attached(Attached),
    /// Files, and the position to go on from if there are more.
    Status {
        /// The files, in the order of their paths.
        files: Vec<FileStatus>,
        /// Where the list goes on.
        next: Option<usize>,
        /// Memory of copies that have gone, which processes keep, in bytes by node.
        #[serde(default)]
        kept_bytes: BTreeMap<NodeId, u64>,
    },
}

/// All that a helper reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The files, in the order of their paths.
    pub files: Vec<FileStatus>,
    /// Memory of copies that have gone, in bytes by node. It is kept by processes that have written
    /// to a page of their mapping, were started from the copy, or could not be returned to the
    /// original.
    pub kept_bytes: BTreeMap<NodeId, u64>,
}

/// The outcome for the running processes of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The copies bound there.
    pub copies: usize,
    /// The processes that use other text than before.
    pub processes: usize,
    /// The addresses that map copies now, in bytes.
    pub bytes: u64,
    /// The longest stop of a process, in microseconds.
    pub stopped_us: u64,
    /// Processes that go on with the originals, the first [`MAX_LEFT_ALONE`] of them.
    pub left_alone: Vec<LeftAlone>,
    /// The number of further ones.
    #[serde(default)]
    pub others_left_alone: usize,
    /// The package managers that run there. Copies come once they have ended.
    #[serde(default)]
    pub managers: Vec<u32>,
}

/// An answer has room for the reasons of so many processes.
pub const MAX_LEFT_ALONE: usize = 100;

/// A process that was not changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// Its number.
    pub process: u32,
    /// The reason.
    pub why: String,
    /// Whether it is asked again later, since the reason passes.
    #[serde(default)]
    pub again: bool,
}

/// A file and its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Where it is found.
    #[serde(flatten)]
    pub place: Place,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its state: `candidate`, `copying`, `replicated`, `collapsing` or `barred`.
    pub state: String,
    /// Why it has no copies, if there is a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its copies by node.
    pub copies: BTreeMap<NodeId, CopyStatus>,
    /// The copy that each node uses.
    pub serving: BTreeMap<NodeId, NodeId>,
    /// By node that uses a copy: how much longer a fetch from memory would take from the original,
    /// in percent ([`gain_percent`](nearside_policy::replication::gain_percent)).
    #[serde(default)]
    pub gain_percent: BTreeMap<NodeId, u64>,
    /// The nodes whose copy was not made, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<NodeId, CopyRefusal>,
    /// How often writers have collapsed the copies.
    pub collapses: u64,
    /// Whether the daemon has asked for the copies, and no operator.
    #[serde(default)]
    pub automatic: bool,
}

/// A copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyStatus {
    /// Its memory, in bytes.
    pub bytes: u64,
    /// Processes that map it.
    pub users: u32,
    /// Mount namespaces in which it is bound.
    pub namespaces: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

    #[test]
    fn paths_in_messages_may_have_any_bytes() {
        for bytes in [&b"/usr/lib/\xff.so"[..], br"/usr/lib/\xff.so", b"/usr/lib/a\n\"b"] {
            let path: PathBuf = Path::new(OsStr::from_bytes(bytes)).into();
            let place = Place { image: Some(path.clone()), path: path.clone() };
            for request in [
                Request::Add { place, nodes: None, ratio: Ratio::default(), automatic: false },
                Request::Remove { path: path.clone(), automatic: true },
                Request::Attach { process: 1, node: NodeId(0), future_root: Some(path) },
            ] {
                let message = serde_json::to_string(&request).unwrap();
                assert_eq!(serde_json::from_str::<Request>(&message).unwrap(), request);
            }
        }
    }
}
