//! The memory of one machine.

use crate::{
    account::Account,
    error::{Error, OutOfMemory},
    ids::{Extent, Frame, Node, Zone},
    memory::{MAX_NODES, MAX_REGIONS, Memory, metadata_words},
    policy::{Policy, Request, ZoneRule, turn},
    region::Region,
    sync::AtomicU64,
    withheld::Withheld,
};
use core::sync::atomic::Ordering::Relaxed;

/// The memory of one machine, by node and zone, and the distances between its nodes.
///
/// Any number of threads may use it, each through a [`Cache`](crate::Cache) of its own.
#[derive(Debug)]
pub struct Machine<'m> {
    /// By first frame.
    regions: [Option<Region<'m>>; MAX_REGIONS],
    count: usize,
    nodes: usize,
    /// For each node all nodes, the nearest first.
    near: [[u8; MAX_NODES]; MAX_NODES],
    accounts: [Account; MAX_NODES],
    withheld: Withheld<'m>,
    late_faults: AtomicU64,
}

/// The nodes that may serve a request, in order.
#[derive(Debug)]
pub(crate) struct NodeOrder {
    nodes: [u8; MAX_NODES],
    len: usize,
}

impl NodeOrder {
    fn push(&mut self, node: u8) {
        if !self.nodes[..self.len].contains(&node) && self.len < MAX_NODES {
            self.nodes[self.len] = node;
            self.len += 1;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Node> {
        self.nodes[..self.len].iter().copied().map(Node)
    }
}

impl<'m> Machine<'m> {
    /// The machine with this memory, all of it free. `distances` has a row for each node, from
    /// which it is seen, as in ACPI's SLIT: 10 is a node's distance to itself. `metadata` has for
    /// each range of memory at least [`metadata_words`] words, which are overwritten.
    ///
    /// # Errors
    /// If ranges are empty or overlap, a node has no distances, or metadata are too small.
    pub fn new(
        memory: &[Memory],
        distances: &[u8],
        metadata: &[&'m [AtomicU64]],
    ) -> Result<Self, Error> {
        let nodes = (0..=MAX_NODES).find(|nodes| nodes * nodes == distances.len());
        let nodes = nodes
            .filter(|nodes| *nodes > 0)
            .ok_or(Error::Distances { entries: distances.len(), max_nodes: MAX_NODES })?;
        if memory.len() > MAX_REGIONS {
            let ranges = memory.len();
            return Err(Error::TooManyRanges { ranges, max_ranges: MAX_REGIONS });
        }
        for (range, it) in memory.iter().enumerate() {
            it.check()?;
            if usize::from(it.node.0) >= nodes {
                return Err(Error::UnknownNode(it.node));
            }
            let (needed_words, words) =
                (metadata_words(it), metadata.get(range).map_or(0, |words| words.len()));
            if words < needed_words {
                return Err(Error::Metadata { range, needed_words, words });
            }
            let is_in = |frame: Frame| frame.0 >= it.first.0 && frame.0 - it.first.0 < it.frames;
            if let Some(other) = memory[..range].iter().find(|other| {
                is_in(other.first)
                    || other.first < it.first && { it.first.0 - other.first.0 < other.frames }
            }) {
                return Err(Error::Overlap(other.first.max(it.first)));
            }
        }
        let mut regions = [const { None }; MAX_REGIONS];
        let mut places = [0; MAX_REGIONS];
        let places = &mut places[..memory.len()];
        places.iter_mut().enumerate().for_each(|(at, place)| *place = at);
        places.sort_unstable_by_key(|&at| memory[at].first);
        for (region, &at) in regions.iter_mut().zip(places.iter()) {
            *region = Some(Region::new(&memory[at], metadata[at]));
        }
        let mut near = [[0; MAX_NODES]; MAX_NODES];
        for (from, row) in near.iter_mut().enumerate().take(nodes) {
            let row = &mut row[..nodes];
            (0..).zip(row.iter_mut()).for_each(|(node, place)| *place = node);
            let distance = |to: u8| distances[from * nodes + usize::from(to)];
            // A node is nearest to itself, whatever a table says.
            row.sort_unstable_by_key(|&to| (usize::from(to) != from, distance(to), to));
        }
        let accounts = core::array::from_fn(|_| Account::new());
        memory.iter().for_each(|it| accounts[usize::from(it.node.0)].add(it.frames));
        let late_faults = AtomicU64::new(0);
        let withheld = Withheld::new(&[]);
        Ok(Self { regions, count: memory.len(), nodes, near, accounts, withheld, late_faults })
    }

    /// The same machine with a table for frames that a [`Keeper`](crate::Keeper) takes out of use,
    /// a word for each. The table is overwritten. Each free looks through it while a poisoned frame
    /// is in use, so it should be small.
    #[must_use]
    pub fn with_withheld(mut self, table: &'m [AtomicU64]) -> Self {
        self.withheld = Withheld::new(table);
        self
    }

    /// Whether it has this node.
    pub fn has_node(&self, node: Node) -> bool {
        usize::from(node.0) < self.nodes
    }

    /// The node of an extent, if it lies in this machine.
    pub fn node_of(&self, extent: Extent) -> Option<Node> {
        Some(self.regions().get(self.region_of(extent)?)?.as_ref()?.node)
    }

    /// Double frees that were found when a cache or a guest was dropped. A
    /// [`flush`](crate::Cache::flush) finds them before, with the frame.
    pub fn late_faults(&self) -> u64 {
        self.late_faults.load(Relaxed)
    }

    pub(crate) fn add_late_fault(&self) {
        self.late_faults.fetch_add(1, Relaxed);
    }

    pub(crate) fn regions(&self) -> &[Option<Region<'m>>] {
        &self.regions[..self.count]
    }

    pub(crate) fn region(&self, at: usize) -> Option<&Region<'m>> {
        self.regions().get(at)?.as_ref()
    }

    #[inline]
    pub(crate) fn withheld(&self) -> &Withheld<'m> {
        &self.withheld
    }

    /// The account of a node that the machine has.
    pub(crate) fn account(&self, node: Node) -> &Account {
        &self.accounts[usize::from(node.0)]
    }

    /// Frames that are free in a node's regions.
    pub(crate) fn free_frames(&self, node: Node) -> u64 {
        let regions = self.regions().iter().flatten();
        regions.filter(|it| it.node == node).map(Region::free_frames).sum()
    }

    /// The region that has all of an extent.
    pub(crate) fn region_of(&self, extent: Extent) -> Option<usize> {
        let first = extent.first().0;
        let is_before =
            |region: &Option<Region<'_>>| region.as_ref().is_some_and(|it| it.first <= first);
        let at = self.regions().partition_point(is_before).checked_sub(1)?;
        self.region(at)?.contains(extent).then_some(at)
    }

    /// The nodes that may serve a request of a cache on `node`, in order.
    pub(crate) fn order(&self, node: Node, policy: &Policy<'_>, turns: u64) -> NodeOrder {
        let mut order = NodeOrder { nodes: [0; MAX_NODES], len: 0 };
        let near = |from: Node| {
            let row = self.near.get(usize::from(from.0)).filter(|_| self.has_node(from));
            row.map_or(&[][..], |row| &row[..self.nodes]).iter().copied()
        };
        match policy {
            Policy::Local => near(node).for_each(|it| order.push(it)),
            Policy::Exact(only) => near(*only).take(1).for_each(|it| order.push(it)),
            Policy::Preferred(first) => near(*first).for_each(|it| order.push(it)),
            Policy::Strict(nodes) => {
                near(node).filter(|it| nodes.contains(Node(*it))).for_each(|it| order.push(it));
            }
            Policy::PreferredMany(nodes) | Policy::Interleave(nodes) => {
                turn(policy, turns).into_iter().for_each(|it| order.push(it.0));
                near(node).filter(|it| nodes.contains(Node(*it))).for_each(|it| order.push(it));
                near(node).for_each(|it| order.push(it));
            }
            Policy::WeightedInterleave(weights) => {
                turn(policy, turns).into_iter().for_each(|it| order.push(it.0));
                let is_in = |it: &u8| weights.iter().any(|(node, _)| node.0 == *it);
                near(node).filter(is_in).for_each(|it| order.push(it));
                near(node).for_each(|it| order.push(it));
            }
        }
        order
    }

    /// The first answer of `ask` for the regions that may serve a request, in order.
    pub(crate) fn first<T>(
        &self,
        order: &NodeOrder,
        request: &Request<'_>,
        mut ask: impl FnMut(usize, &Region<'m>) -> Option<T>,
    ) -> Option<T> {
        let mut in_zone = |node: Node, zone: Zone| {
            let regions = self.regions().iter().enumerate();
            let mut regions = regions.filter_map(|(at, it)| Some((at, it.as_ref()?)));
            regions.find_map(|(at, it)| {
                (it.node == node && it.zone == zone).then(|| ask(at, it)).flatten()
            })
        };
        let zones = request.zone.and_fallbacks();
        match request.rule {
            ZoneRule::ZoneFirst => {
                zones.iter().find_map(|zone| order.iter().find_map(|node| in_zone(node, *zone)))
            }
            ZoneRule::NodeFirst => {
                order.iter().find_map(|node| zones.iter().find_map(|zone| in_zone(node, *zone)))
            }
        }
    }

    pub(crate) fn out_of_memory(&self, order: &NodeOrder, request: &Request<'_>) -> OutOfMemory {
        let zones = request.zone.and_fallbacks();
        let free = |node: Node| -> u64 {
            let regions = self.regions().iter().flatten();
            let permitted = regions.filter(|it| it.node == node && zones.contains(&it.zone));
            permitted.map(Region::free_frames).sum()
        };
        let mut answer = OutOfMemory {
            order: request.order,
            zone: request.zone,
            nodes: 0,
            free_frames: 0,
            claimed_frames: 0,
            most: order.iter().next().unwrap_or_default(),
            most_frames: 0,
        };
        for node in order.iter() {
            let free_frames = free(node);
            answer.nodes += 1;
            answer.free_frames += free_frames;
            answer.claimed_frames += self.account(node).claimed();
            if free_frames > answer.most_frames {
                (answer.most, answer.most_frames) = (node, free_frames);
            }
        }
        answer
    }
}
