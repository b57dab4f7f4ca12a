//! Reasons against copies of a file.

use serde::{Deserialize, Serialize};

/// Why a file cannot have copies. Its original serves all nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Bar {
    /// Only regular files have text.
    #[error("it is {found}, and only regular files can have copies")]
    NotRegular {
        /// Its kind, with an article.
        found: String,
    },
    /// An empty file has no text.
    #[error("it is empty")]
    Empty,
    /// Its file system may change it behind the kernel's back.
    #[error(
        "its file system ({name}) can change it without a break of the lease: network and FUSE \
         file systems, and those of the kernel such as proc, have no leases that hold"
    )]
    ForeignFileSystem {
        /// The type of the file system.
        name: String,
    },
    /// A file without a mount, such as one in memory, has no path.
    #[error("no mount of the host shows it")]
    NotMounted,
    /// The host's mounts cannot be looked at.
    #[error("the host's mounts cannot be looked at: {error}")]
    NotSeen {
        /// The reason.
        error: String,
    },
    /// The kernel has no watch left for it. A watch tells of changes that break no lease.
    #[error("the kernel does not watch it (fs.inotify.max_user_watches): {error}")]
    NotWatched {
        /// The kernel's answer.
        error: String,
    },
    /// The file system refuses leases. They are opt-in since Linux 7.0.
    #[error("its file system ({name}) refuses leases (fcntl F_SETLEASE: {error})")]
    NoLease {
        /// The type of the file system.
        name: String,
        /// The kernel's answer.
        error: String,
    },
    /// A file of an overlay, in whose layers somebody could write to it unseen.
    #[error("the files below it in the layers of its overlay cannot be leased: {why}")]
    Layers {
        /// The reason.
        why: String,
    },
    /// Sealed by fs-verity: a copy would not be checked on each read.
    #[error("fs-verity protects it, and a copy would lose that protection")]
    Verity,
    /// The helper lacks a privilege.
    #[error("not permitted to take a lease on it: this needs CAP_LEASE")]
    NotPermitted,
    /// An attribute that a copy cannot have.
    #[error("a copy cannot have its attribute {name}: {error}")]
    Attribute {
        /// The attribute's name.
        name: String,
        /// The kernel's answer.
        error: String,
    },
}
