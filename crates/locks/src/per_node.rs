//! Data of which each node has its own.

use crate::platform::Platform;
use core::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// One value for each of `NODES` nodes. Two of them are in no common cache line, nor in a pair of
/// lines that a processor fetches together.
///
/// ```
/// use nearside_locks::{FairSpinLock, Linux, PerNode};
///
/// // A free list for each node.
/// let free = PerNode::<FairSpinLock<Linux, Vec<u64>>, 8>::new(|_| FairSpinLock::new(vec![]));
/// free.here::<Linux>().lock().push(42);
/// assert_eq!(free.iter().map(|list| list.lock().len()).sum::<usize>(), 1);
/// ```
#[derive(Debug)]
pub struct PerNode<T, const NODES: usize> {
    pub(crate) values: [Padded<T>; NODES],
}

/// Two lines of 64 bytes.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T, const NODES: usize> PerNode<T, NODES> {
    /// With the value of each node. There must be one: `NODES` of 0 does not compile.
    pub fn new(mut value: impl FnMut(u32) -> T) -> Self {
        const { assert!(NODES > 0 && NODES <= u32::MAX as usize) };
        Self { values: array::from_fn(|node| Padded(value(node as u32))) }
    }

    /// The value of the caller's node. A node beyond the last one shares that of another node.
    pub fn here<P: Platform>(&self) -> &T {
        &self.values[P::node() as usize % NODES].0
    }

    /// The value of a node, if there is one.
    pub fn get(&self, node: u32) -> Option<&T> {
        self.values.get(node as usize).map(|value| &value.0)
    }

    /// The values of all nodes, from node 0 on.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.values.iter().map(|value| &value.0)
    }
}

/// A counter that many threads add to, and few read: each node adds to a line of its own.
///
/// ```
/// use nearside_locks::{Linux, NodeCounter};
///
/// static REQUESTS: NodeCounter<8> = NodeCounter::new();
///
/// REQUESTS.add::<Linux>(3);
/// REQUESTS.add::<Linux>(1);
/// assert_eq!(REQUESTS.sum(), 4);
/// ```
#[derive(Debug)]
pub struct NodeCounter<const NODES: usize> {
    nodes: PerNode<AtomicU64, NODES>,
}

impl<const NODES: usize> NodeCounter<NODES> {
    /// One at 0.
    pub const fn new() -> Self {
        const { assert!(NODES > 0 && NODES <= u32::MAX as usize) };
        Self { nodes: PerNode { values: [const { Padded(AtomicU64::new(0)) }; NODES] } }
    }

    /// Adds on the caller's node. Beyond 2^64 it begins at 0 again.
    pub fn add<P: Platform>(&self, count: u64) {
        self.nodes.here::<P>().fetch_add(count, Relaxed);
    }

    /// The sum of all nodes. What is added meanwhile may be in it or not.
    pub fn sum(&self) -> u64 {
        self.nodes.iter().fold(0, |sum, node| sum.wrapping_add(node.load(Relaxed)))
    }
}

impl<const NODES: usize> Default for NodeCounter<NODES> {
    fn default() -> Self {
        Self::new()
    }
}
