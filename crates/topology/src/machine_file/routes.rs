//! The links of a machine file, and which of them a line passes from node to node.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};
use toml::Value;

/// What joins two points, in both directions.
pub(super) struct Link {
    /// What a line takes longer over it.
    pub(super) latency_ns: f64,
    /// What it carries, each way; 0: unlimited.
    pub(super) bandwidth_mb_per_s: f64,
}

/// Where links end: nodes by their numbers, and behind those switches, in the order in which links name them.
type Point = usize;
/// The lower one first.
type Pair = (Point, Point);

/// All links, and the way between each two nodes.
pub(super) struct Routes {
    nodes: usize,
    switches: Vec<String>,
    links: BTreeMap<Pair, Link>,
    /// From the lower node to the higher one, both included.
    ways: BTreeMap<Pair, Vec<Point>>,
    given: BTreeSet<Pair>,
}

impl Routes {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            switches: Vec::new(),
            links: BTreeMap::new(),
            ways: BTreeMap::new(),
            given: BTreeSet::new(),
        }
    }

    /// How many links there are.
    pub(super) fn links(&self) -> usize {
        self.links.len()
    }

    /// Points as a file names them. Where links are read, a switch may be a new one.
    pub(super) fn points(
        &mut self,
        values: &[Value],
        may_be_new: bool,
    ) -> Result<Vec<Point>, String> {
        values.iter().map(|value| self.point(value, may_be_new)).collect()
    }

    fn point(&mut self, value: &Value, may_be_new: bool) -> Result<Point, String> {
        let node = value
            .as_integer()
            .and_then(|node| usize::try_from(node).ok())
            .filter(|&node| node < self.nodes);
        let known =
            |name| self.switches.iter().position(|switch| switch == name).map(|at| self.nodes + at);
        match (node, value.as_str()) {
            (Some(node), _) => Ok(node),
            (None, Some(name)) if may_be_new || known(name).is_some() => Ok(known(name)
                .unwrap_or_else(|| {
                    self.switches.push(name.to_owned());
                    self.nodes + self.switches.len() - 1
                })),
            _ => Err(format!(
                "a node from 0 to {} or the name of a switch is expected, not {value}",
                self.nodes - 1
            )),
        }
    }

    fn name(&self, point: Point) -> String {
        match point.checked_sub(self.nodes).and_then(|switch| self.switches.get(switch)) {
            Some(switch) => format!("switch {switch:?}"),
            None => format!("node {point}"),
        }
    }

    /// Adds a link between two points.
    pub(super) fn join(&mut self, ends: &[Point], link: Link) -> Result<(), String> {
        let pair = pair_of(ends).ok_or("two different ends are expected")?;
        match self.links.insert(pair, link) {
            Some(_) => Err("there is a link between these two already".into()),
            None => Ok(()),
        }
    }

    /// Finds the way between each two nodes: the one of least latency, of equals that over fewest links, then over the points that are
    /// named first.
    pub(super) fn find(&mut self) -> Result<(), String> {
        let mut neighbours: BTreeMap<Point, Vec<(Point, f64)>> = BTreeMap::new();
        for (&(low, high), link) in &self.links {
            neighbours.entry(low).or_default().push((high, link.latency_ns));
            neighbours.entry(high).or_default().push((low, link.latency_ns));
        }
        for from in 0..if self.links.is_empty() { 0 } else { self.nodes } {
            let ways = shortest_ways(&neighbours, from);
            for to in from + 1..self.nodes {
                let way = ways
                    .get(&to)
                    .ok_or_else(|| format!("no link leads from node {from} to node {to}"))?;
                self.ways.insert((from, to), way.clone());
            }
        }
        Ok(())
    }

    /// The nodes of a route, which has not been given before.
    pub(super) fn free_pair(&mut self, ends: &[Point]) -> Result<(Point, Point), String> {
        let pair = pair_of(ends)
            .filter(|pair| pair.1 < self.nodes)
            .ok_or("two different nodes are expected")?;
        match self.given.insert(pair) {
            true => Ok((ends[0], ends[1])),
            false => Err("there is a route between these two already".into()),
        }
    }

    /// Has lines between the two nodes pass these points, in both directions.
    pub(super) fn lead(&mut self, (from, to): (Point, Point), via: &[Point]) -> Result<(), String> {
        let mut way: Vec<Point> = [&[from], via, &[to]].concat();
        let mut seen = BTreeSet::new();
        if let Some(&again) = way.iter().find(|&&point| !seen.insert(point)) {
            return Err(format!("the way comes to {} twice", self.name(again)));
        }
        if let Some(gap) = way
            .windows(2)
            .find(|step| pair_of(step).is_none_or(|pair| !self.links.contains_key(&pair)))
        {
            return Err(format!(
                "there is no link between {} and {}",
                self.name(gap[0]),
                self.name(gap[1])
            ));
        }
        if from > to {
            way.reverse();
        }
        self.ways.insert((from.min(to), from.max(to)), way);
        Ok(())
    }

    fn on_the_way(&self, from: Point, to: Point) -> impl Iterator<Item = &Link> {
        let way = self.ways.get(&(from.min(to), from.max(to))).map_or(&[][..], Vec::as_slice);
        way.windows(2).filter_map(|step| self.links.get(&pair_of(step)?))
    }

    /// What a line takes longer from one node to another than from its memory.
    pub(super) fn latency_ns(&self, from: Point, to: Point) -> f64 {
        self.on_the_way(from, to).map(|link| link.latency_ns).sum()
    }

    /// What the links on the way carry; 0: unlimited.
    pub(super) fn bandwidths_mb_per_s(&self, from: Point, to: Point) -> impl Iterator<Item = f64> {
        self.on_the_way(from, to).map(|link| link.bandwidth_mb_per_s)
    }
}

/// Two different points.
fn pair_of(points: &[Point]) -> Option<Pair> {
    match *points {
        [one, other] if one != other => Some((one.min(other), one.max(other))),
        _ => None,
    }
}

/// How far it is to the last of these points: latency, then links, then their numbers.
struct Way {
    latency_ns: f64,
    points: Vec<Point>,
}

impl Ord for Way {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_latency = self.latency_ns.total_cmp(&other.latency_ns);
        by_latency
            .then(self.points.len().cmp(&other.points.len()))
            .then_with(|| self.points.cmp(&other.points))
    }
}

impl PartialOrd for Way {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Way {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Way {}

/// To each point that can be reached (E. W. Dijkstra, A note on two problems in connexion with graphs, 1959).
fn shortest_ways(
    neighbours: &BTreeMap<Point, Vec<(Point, f64)>>,
    from: Point,
) -> BTreeMap<Point, Vec<Point>> {
    let mut best = BTreeMap::new();
    let mut open = BinaryHeap::from([Reverse(Way { latency_ns: 0.0, points: vec![from] })]);
    while let Some(Reverse(way)) = open.pop() {
        let Some(&last) = way.points.last() else { continue };
        if best.contains_key(&last) {
            continue;
        }
        for &(next, latency_ns) in neighbours.get(&last).into_iter().flatten() {
            if !best.contains_key(&next) {
                let points = [&way.points[..], &[next]].concat();
                open.push(Reverse(Way { latency_ns: way.latency_ns + latency_ns, points }));
            }
        }
        best.insert(last, way.points);
    }
    best
}
