//! Errors of memory of this machine.

use crate::{error::Error, ids::Node, mapped::backing::Backing};
use rustix::io::Errno;
use std::string::String;

/// The reason why memory of this machine is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MappedError {
    /// A file about the system's nodes cannot be used.
    #[error("{path}: {why}")]
    System {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// The system has no such node with memory.
    #[error("{0} has no memory in this system")]
    NoNode(Node),
    /// A size is zero, or no multiple of the size of pages.
    #[error("{bytes} bytes of {node}: expected one or more pages of {page_bytes} bytes")]
    Size {
        /// The node.
        node: Node,
        /// The size that was asked for.
        bytes: u64,
        /// The size of a page.
        page_bytes: u64,
    },
    /// A node has less memory than was asked for.
    #[error("{bytes} bytes of {node}, which has {node_bytes}")]
    MoreThanNode {
        /// The node.
        node: Node,
        /// The size that was asked for, with what was asked for before.
        bytes: u64,
        /// All memory of the node.
        node_bytes: u64,
    },
    /// A node's pool has too few huge pages.
    #[error(
        "{needed_pages} huge pages of {} bytes of {node}, whose pool has {free_pages} free; \
         {path} sets their number",
        backing.page_bytes()
    )]
    HugePages {
        /// The node.
        node: Node,
        /// The size of the pages.
        backing: Backing,
        /// The pages that were asked for.
        needed_pages: u64,
        /// Those that are free.
        free_pages: u64,
        /// The file that sets their number.
        path: String,
    },
    /// The kernel refuses a step.
    #[error("memory of {node}: {step}: {errno}")]
    Kernel {
        /// The step.
        step: &'static str,
        /// The node.
        node: Node,
        /// Its reason.
        errno: Errno,
    },
    /// The kernel does not supply pages, or take them back.
    #[error("pages for {bytes} bytes: {errno}")]
    Pages {
        /// The size.
        bytes: u64,
        /// Its reason.
        errno: Errno,
    },
    /// The machine has its allocator.
    #[error("this memory has an allocator already")]
    HasMachine,
    /// The allocator refuses.
    #[error(transparent)]
    Frames(#[from] Error),
}
