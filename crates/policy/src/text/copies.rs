//! Copies that nobody has asked for: which files get them, which lose them, and which running
//! processes are told (docs/adr/0020-automatic-copies.md).

use super::Candidate;
use crate::{replication::gain_percent, total};
use nearside_topology::{Distances, NodeId, NodeSet};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// A copy pays if the text that each domain on its node executes, times the gain of a fetch, is at
/// least this fraction of the copy: 1/8.
const PAYS_DIVISOR: u64 = 8;

/// Looks in a row in which copies have to pay before they are made.
const CONFIRMATIONS: u32 = 2;

/// Looks in a row without a process that uses a copy, after which the copy goes.
const UNUSED_LOOKS: u32 = 32;

/// The first rest of a file whose copies went unused or were refused. Each further one is twice as
/// long.
const FIRST_REST_LOOKS: u64 = 64;

/// The longest rest.
const MAX_REST_LOOKS: u64 = 1 << 12;

/// New files of one look.
const MAX_NEW_FILES: usize = 16;

/// A candidate that the daemon has found at its path on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The candidate.
    pub candidate: Candidate,
    /// The length of the file: the memory of one copy.
    pub length_bytes: u64,
}

/// A file of the replicator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// Its path on the host.
    pub path: String,
    /// The nodes that shall use copies.
    pub nodes: NodeSet,
    /// By node that has a copy to use: the processes that map this copy.
    pub users: BTreeMap<NodeId, u32>,
    /// How often writers have collapsed its copies.
    pub collapses: u64,
    /// Whether the daemon has asked for it, and not an operator.
    pub is_automatic: bool,
}

/// A mount namespace of a domain at home on one node, other than the host's. Copies can be bound in
/// it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainNamespace {
    /// Its number.
    pub id: u64,
    /// A process in it.
    pub process: i32,
    /// The domain.
    pub domain: String,
    /// The domain's home.
    pub node: NodeId,
}

/// The input of a decision.
#[derive(Debug, Clone, Copy)]
pub struct CopyTurn<'a> {
    /// The number of the look.
    pub look: u64,
    /// The files that would pay copies, most bytes off their homes first.
    pub found: &'a [Found],
    /// The files of the replicator.
    pub held: &'a [Held],
    /// The namespaces that can use copies.
    pub namespaces: &'a [DomainNamespace],
    /// The distances between nodes.
    pub distances: &'a Distances,
}

/// A request to the replicator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyOrder {
    /// These nodes use copies of a file from now on.
    Copy {
        /// Its path on the host.
        path: String,
        /// The nodes.
        nodes: NodeSet,
    },
    /// A file has no copies any more.
    Remove {
        /// Its path on the host.
        path: String,
    },
    /// The running processes of a namespace use the copies of their node.
    Attach(DomainNamespace),
}

/// Memory between two looks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyHistory {
    /// Looks in a row in which copies of a file paid.
    paid: BTreeMap<String, u32>,
    /// The files that have copies because of these decisions.
    automatic: BTreeSet<String>,
    /// Looks in a row in which nobody used a copy.
    unused: BTreeMap<(String, NodeId), u32>,
    rests: BTreeMap<String, Rest>,
    /// The namespaces that were attached, with what they got.
    attached: BTreeMap<u64, Attached>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rest {
    until: u64,
    setbacks: u32,
}

/// The node of a namespace, and its copies by file and number of collapses: after a collapse,
/// running processes use the original until they are told of the next copy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attached {
    node: NodeId,
    copies: BTreeSet<(String, u64)>,
}

impl CopyHistory {
    /// Another replicator answers. It knows nothing of the files of the former one.
    pub fn forget_replicator(&mut self) {
        self.automatic.clear();
        self.unused.clear();
        self.attached.clear();
    }

    /// The replicator has refused a file: it rests.
    pub fn refused(&mut self, look: u64, path: &str) {
        self.automatic.remove(path);
        self.rest(look, path);
    }

    /// The replicator has not carried an order out, and has refused nothing. It comes again if it
    /// is still of use.
    pub fn not_done(&mut self, order: &CopyOrder) {
        match order {
            CopyOrder::Copy { path, .. } => _ = self.automatic.remove(path),
            CopyOrder::Remove { .. } => {}
            CopyOrder::Attach(namespace) => _ = self.attached.remove(&namespace.id),
        }
    }

    fn rest(&mut self, look: u64, path: &str) {
        let rest = self.rests.entry(path.to_owned()).or_default();
        let looks = FIRST_REST_LOOKS.checked_shl(rest.setbacks).unwrap_or(MAX_REST_LOOKS);
        rest.setbacks = rest.setbacks.saturating_add(1);
        rest.until = look.saturating_add(looks.min(MAX_REST_LOOKS));
    }

    fn rests(&self, look: u64, path: &str) -> bool {
        self.rests.get(path).is_some_and(|rest| look < rest.until)
    }
}

/// Decides what the replicator is asked for. Files that an operator has added stay as they are.
pub fn plan_copies(turn: &CopyTurn<'_>, history: &CopyHistory) -> (Vec<CopyOrder>, CopyHistory) {
    let mut history = history.clone();
    let held: BTreeMap<&str, &Held> = turn.held.iter().map(|it| (it.path.as_str(), it)).collect();
    // An operator has removed them: their word counts.
    let removed: Vec<String> = history
        .automatic
        .iter()
        .filter(|path| !held.contains_key(path.as_str()))
        .cloned()
        .collect();
    for path in removed {
        history.automatic.remove(&path);
        history.rests.insert(path, Rest { until: u64::MAX, setbacks: 0 });
    }
    let mut orders = copies(turn, &held, &mut history);
    let more = removals(turn, &orders, &mut history);
    orders.extend(more);
    orders.extend(attachments(turn, &mut history));
    (orders, history)
}

/// New files, and nodes that are new for a file.
fn copies(
    turn: &CopyTurn<'_>,
    held: &BTreeMap<&str, &Held>,
    history: &mut CopyHistory,
) -> Vec<CopyOrder> {
    let mut wanted = BTreeMap::new();
    let mut new = Vec::new();
    let mut paid = BTreeMap::new();
    for found in turn.found {
        let path = found.candidate.path.as_str();
        let of_it = held.get(path);
        if history.rests(turn.look, path) || of_it.is_some_and(|held| !held.is_automatic) {
            continue;
        }
        let (nodes, worth_bytes) = worth(found, turn);
        if nodes.is_empty() {
            continue;
        }
        let looks = history.paid.get(path).copied().unwrap_or(0).saturating_add(1);
        paid.insert(path.to_owned(), looks);
        if looks < CONFIRMATIONS {
            continue;
        }
        match of_it {
            Some(_) => _ = wanted.insert(path, nodes),
            None => new.push((Reverse(worth_bytes), path, nodes)),
        }
    }
    history.paid = paid;
    new.sort_by_key(|(worth, path, _)| (*worth, *path));
    wanted.extend(new.into_iter().take(MAX_NEW_FILES).map(|(_, path, nodes)| (path, nodes)));
    // A domain has moved: its text goes with it.
    for namespace in turn.namespaces {
        let Some(before) = history.attached.get(&namespace.id) else { continue };
        for file in turn.held.iter().filter(|file| file.is_automatic) {
            if before.node != namespace.node && file.nodes.contains(before.node) {
                wanted.entry(file.path.as_str()).or_default().insert(namespace.node);
            }
        }
    }
    let mut orders = Vec::new();
    for (path, mut nodes) in wanted {
        let before = held.get(path).map(|held| held.nodes.clone()).unwrap_or_default();
        nodes = nodes.union(&before);
        if nodes != before {
            history.automatic.insert(path.to_owned());
            orders.push(CopyOrder::Copy { path: path.to_owned(), nodes });
        }
    }
    orders
}

/// The nodes on which a copy pays, and what it is worth: the bytes of text that domains there
/// execute, times the gain of a fetch.
fn worth(found: &Found, turn: &CopyTurn<'_>) -> (NodeSet, u128) {
    let bytes = &found.candidate.bytes;
    let mut worth = BTreeMap::<NodeId, u128>::new();
    for domain in &found.candidate.domains {
        let namespace = turn.namespaces.iter().find(|namespace| namespace.domain == *domain);
        let Some(node) = namespace.map(|namespace| namespace.node) else { continue };
        let gain = gain_percent(node, bytes, node, turn.distances).unwrap_or(0);
        *worth.entry(node).or_default() += u128::from(total(bytes)) * u128::from(gain) / 100;
    }
    worth.retain(|_, worth| *worth > 0 && *worth >= u128::from(found.length_bytes / PAYS_DIVISOR));
    (worth.keys().copied().collect(), worth.values().sum())
}

/// Copies that nobody has used for long go. `given` are the orders of this look.
fn removals(turn: &CopyTurn<'_>, given: &[CopyOrder], history: &mut CopyHistory) -> Vec<CopyOrder> {
    let is_given = |path: &str| {
        given.iter().any(|it| matches!(it, CopyOrder::Copy { path: given, .. } if given == path))
    };
    let (mut unused, mut orders) = (BTreeMap::new(), Vec::new());
    for file in turn.held.iter().filter(|file| file.is_automatic && !is_given(&file.path)) {
        history.automatic.insert(file.path.clone());
        let mut nodes = file.nodes.clone();
        for (node, _) in file.users.iter().filter(|(_, users)| **users == 0) {
            let key = (file.path.clone(), *node);
            let looks = history.unused.get(&key).copied().unwrap_or(0).saturating_add(1);
            if looks < UNUSED_LOOKS {
                unused.insert(key, looks);
            } else {
                nodes.remove(*node);
            }
        }
        if nodes == file.nodes {
            continue;
        }
        history.rest(turn.look, &file.path);
        let path = file.path.clone();
        if nodes.is_empty() {
            history.automatic.remove(&path);
            orders.push(CopyOrder::Remove { path });
        } else {
            orders.push(CopyOrder::Copy { path, nodes });
        }
    }
    history.unused = unused;
    orders
}

/// Namespaces on whose node copies have come, or come again, since they were attached.
fn attachments(turn: &CopyTurn<'_>, history: &mut CopyHistory) -> Vec<CopyOrder> {
    let (mut orders, mut attached) = (Vec::new(), BTreeMap::new());
    for namespace in turn.namespaces {
        let node = namespace.node;
        let there = turn.held.iter().filter(|file| file.users.contains_key(&node));
        let copies: BTreeSet<_> = there.map(|it| (it.path.clone(), it.collapses)).collect();
        let before = history.attached.get(&namespace.id);
        let is_known = before.is_some_and(|it| it.node == node && copies.is_subset(&it.copies));
        if !is_known && !copies.is_empty() {
            orders.push(CopyOrder::Attach(namespace.clone()));
        }
        match before {
            // It still has the copies of the node that it has left.
            Some(before) if copies.is_empty() => _ = attached.insert(namespace.id, before.clone()),
            None if copies.is_empty() => {}
            _ => _ = attached.insert(namespace.id, Attached { node, copies }),
        }
    }
    history.attached = attached;
    orders
}

#[cfg(test)]
mod tests;
