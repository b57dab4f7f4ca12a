//! Random operations on random machines, beside a model that looks at each frame.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_frames::{
    Cache, Error, Extent, Frame, Heap, Machine, Memory, Metadata, Node, Nodes, Order, Policy,
    Request, Zone, ZoneRule,
};
use proptest::prelude::*;
use shapes::{Shape, ZONES, shape};
use std::collections::BTreeMap;

mod shapes;

impl Shape {
    fn distance(&self, from: Node, to: Node) -> (bool, u8, Node) {
        let at = usize::from(from.0) * usize::from(self.nodes) + usize::from(to.0);
        (from != to, self.distances[at], to)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        cache: usize,
        order: u8,
        zone: usize,
        node_first: bool,
        policy: u8,
        nodes: u64,
    },
    /// Frees one of the extents, or its halves.
    Free {
        cache: usize,
        which: prop::sample::Index,
        in_halves: bool,
    },
    Flush {
        cache: usize,
    },
}

fn steps(caches: usize) -> impl Strategy<Value = Vec<Step>> {
    let allocate = (0..caches, 0..12_u8, 0..4_usize, any::<bool>(), 0..6_u8, 0..16_u64).prop_map(
        |(cache, order, zone, node_first, policy, nodes)| {
            // Small orders come more often.
            let order = if order > 4 && nodes % 3 > 0 { 0 } else { order };
            Step::Allocate { cache, order, zone, node_first, policy, nodes }
        },
    );
    let free = (0..caches, any::<prop::sample::Index>(), any::<bool>())
        .prop_map(|(cache, which, in_halves)| Step::Free { cache, which, in_halves });
    let flush = (0..caches).prop_map(|cache| Step::Flush { cache });
    prop::collection::vec(prop_oneof![6 => allocate, 4 => free, 1 => flush], 1..400)
}

/// Allocated extents, by first frame.
struct Model<'s> {
    shape: &'s Shape,
    taken: BTreeMap<u64, Extent>,
}

impl Model<'_> {
    fn is_free(&self, extent: Extent) -> bool {
        let (first, end) = (extent.first().0, extent.first().0 + extent.frames());
        let before = self.taken.range(..end).next_back();
        before.is_none_or(|(at, it)| at + it.frames() <= first)
    }

    fn has_room(&self, range: &Memory, order: Order) -> bool {
        let first = range.first.0.next_multiple_of(order.frames());
        let end = range.first.0 + range.frames;
        (first..end)
            .step_by(order.frames() as usize)
            .filter(|at| at + order.frames() <= end)
            .any(|at| self.is_free(Extent::new(Frame(at), order).unwrap()))
    }

    /// The node and zone that have to serve a request, by the words of the documentation.
    fn expected(&self, request: &Request<'_>, from: Node) -> Option<(Node, Zone)> {
        let all: Nodes = (0..self.shape.nodes).map(Node).collect();
        let (first, then, from) = match request.policy {
            Policy::Local => (all, Nodes::default(), from),
            Policy::Exact(node) => (Nodes::default().with(node), Nodes::default(), from),
            Policy::Strict(nodes) => (nodes, Nodes::default(), from),
            Policy::Preferred(node) => (all, Nodes::default(), node),
            Policy::PreferredMany(nodes) => (nodes, all, from),
            _ => return None,
        };
        let sorted = |nodes: Nodes| {
            let mut nodes: Vec<_> = nodes.iter().filter(|it| it.0 < self.shape.nodes).collect();
            nodes.sort_by_key(|node| self.shape.distance(from, *node));
            nodes
        };
        let nodes: Vec<_> = sorted(first).into_iter().chain(sorted(then)).collect();
        let zones = request.zone.and_fallbacks();
        let by_zone = zones.iter().flat_map(|zone| nodes.iter().map(move |node| (*node, *zone)));
        let by_node = nodes.iter().flat_map(|node| zones.iter().map(move |zone| (*node, *zone)));
        let pairs: Vec<_> = match request.rule {
            ZoneRule::ZoneFirst => by_zone.collect(),
            ZoneRule::NodeFirst => by_node.collect(),
        };
        pairs.into_iter().find(|(node, zone)| {
            let ranges = self.shape.memory.iter();
            let mut ranges = ranges.filter(|it| it.node == *node && it.zone == *zone);
            ranges.any(|range| self.has_room(range, request.order))
        })
    }
}

fn halves(extent: Extent) -> Vec<Extent> {
    let Some(order) = extent.order().exponent().checked_sub(1).and_then(Order::new) else {
        return vec![extent];
    };
    let second = Frame(extent.first().0 + order.frames());
    [extent.first(), second].map(|first| Extent::new(first, order).unwrap()).into()
}

fn run(shape: &Shape, steps: &[Step], caches: usize) -> Result<(), TestCaseError> {
    let metadata = Metadata::of(&shape.memory).unwrap();
    let machine = Machine::new(&shape.memory, &shape.distances, &metadata.slices()).unwrap();
    let all_free: Vec<_> = Heap::of(&machine).regions().collect();
    let cache_node = |at: usize| Node(at as u8 % shape.nodes);
    let mut all: Vec<Cache<'_>> =
        (0..caches).map(|at| Cache::new(&machine, cache_node(at)).unwrap()).collect();
    let mut model = Model { shape, taken: BTreeMap::new() };
    for step in steps {
        match *step {
            Step::Allocate { cache, order, zone, node_first, policy, nodes } => {
                let set: Nodes = (0..4).filter(|at| nodes >> at & 1 == 1).map(Node).collect();
                let one = Node((nodes % u64::from(shape.nodes)) as u8);
                let policy = match policy {
                    0 => Policy::Local,
                    1 => Policy::Exact(one),
                    2 => Policy::Strict(set),
                    3 => Policy::Preferred(one),
                    4 => Policy::PreferredMany(set),
                    _ => Policy::Interleave(set),
                };
                let rule = if node_first { ZoneRule::NodeFirst } else { ZoneRule::ZoneFirst };
                let (order, zone) = (Order::new(order).unwrap(), ZONES[zone]);
                let request = Request { order, zone, rule, policy };
                let expected = model.expected(&request, cache_node(cache));
                match all[cache].allocate_with(&request) {
                    Ok(extent) => {
                        let range = shape.memory.iter().find(|it| {
                            it.first <= extent.first()
                                && extent.first().0 + extent.frames() <= it.first.0 + it.frames
                        });
                        let range = range.expect("an extent lies in one range");
                        prop_assert!(zone.and_fallbacks().contains(&range.zone));
                        prop_assert!(model.is_free(extent), "{extent}");
                        // Frames in other caches are out of reach for this one.
                        if caches == 1 && !matches!(policy, Policy::Interleave(_)) {
                            prop_assert_eq!(Some((range.node, range.zone)), expected);
                        }
                        model.taken.insert(extent.first().0, extent);
                    }
                    Err(Error::OutOfMemory(_)) => {
                        if caches == 1 && !matches!(policy, Policy::Interleave(_)) {
                            prop_assert_eq!(expected, None);
                        }
                    }
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            Step::Free { cache, which, in_halves } => {
                if model.taken.is_empty() {
                    continue;
                }
                let at = *model.taken.keys().nth(which.index(model.taken.len())).unwrap();
                let extent = model.taken.remove(&at).unwrap();
                let parts = if in_halves { halves(extent) } else { vec![extent] };
                for part in parts {
                    prop_assert_eq!(all[cache].free(part), Ok(()));
                }
            }
            Step::Flush { cache } => prop_assert_eq!(all[cache].flush(), Ok(())),
        }
        let held: u64 = all.iter().map(Cache::free_frames).sum();
        let free: u64 = Heap::of(&machine).regions().map(|it| it.free_frames).sum();
        let taken: u64 = model.taken.values().map(|it| it.frames()).sum();
        let frames: u64 = shape.memory.iter().map(|it| it.frames).sum();
        prop_assert_eq!(held + free + taken, frames);
        let unclaimed: u64 =
            (0..shape.nodes).map(|it| Heap::of(&machine).unclaimed_frames(Node(it))).sum();
        prop_assert_eq!(unclaimed, free);
    }
    for extent in std::mem::take(&mut model.taken).into_values() {
        prop_assert_eq!(all[0].free(extent), Ok(()));
    }
    drop(all);
    prop_assert_eq!(machine.late_faults(), 0);
    // All blocks are whole again.
    prop_assert_eq!(Heap::of(&machine).regions().collect::<Vec<_>>(), all_free);
    Ok(())
}

proptest! {
    #[test]
    fn one_cache_serves_each_request_from_where_it_says(shape in shape(), steps in steps(1)) {
        run(&shape, &steps, 1)?;
    }

    #[test]
    fn several_caches_never_give_a_frame_twice_and_lose_none(
        shape in shape(),
        steps in steps(3),
    ) {
        run(&shape, &steps, 3)?;
    }

    /// However it is noticed, no double free goes unnoticed.
    #[test]
    fn every_double_free_is_reported(
        allocated in 1..700_usize,
        which: prop::sample::Index,
        others in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        by_another_cache: bool,
    ) {
        let memory = [Memory::new(Node(0), Zone::Normal, 512, 4096)];
        let metadata = Metadata::of(&memory).unwrap();
        let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
        let (mut one, mut other) =
            (Cache::new(&machine, Node(0)).unwrap(), Cache::new(&machine, Node(0)).unwrap());
        let mut extents: Vec<_> =
            (0..allocated).map(|_| one.allocate(Order::BASE).unwrap()).collect();
        let twice = extents.swap_remove(which.index(extents.len()));
        let mut faults = Vec::new();
        faults.extend(one.free(twice).err());
        for index in others {
            if !extents.is_empty() {
                let extent = extents.swap_remove(index.index(extents.len()));
                faults.extend(one.free(extent).err());
            }
        }
        let cache = if by_another_cache { &mut other } else { &mut one };
        faults.extend(cache.free(twice).err());
        faults.extend(one.flush().err());
        faults.extend(other.flush().err());
        prop_assert_eq!(faults, [Error::DoubleFree { frame: twice.first(), node: Node(0) }]);
    }
}
