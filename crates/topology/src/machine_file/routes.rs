//! The links of a machine file, and the route of cache lines between each two nodes.

use super::costs::{Link, Point};
use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};
use toml::Value;

/// Two points, the lower one first.
type Pair = (Point, Point);

/// All links, and the route between each two nodes.
pub(super) struct Routes {
    nodes: usize,
    switches: Vec<String>,
    /// In the file's order.
    links: Vec<Link>,
    /// Index of the link that joins two points.
    joined: BTreeMap<Pair, usize>,
    /// From the lower node to the higher one, both included.
    routes: BTreeMap<Pair, Vec<Point>>,
    /// Pairs of nodes whose route the file states.
    stated: BTreeSet<Pair>,
}

impl Routes {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            switches: Vec::new(),
            links: Vec::new(),
            joined: BTreeMap::new(),
            routes: BTreeMap::new(),
            stated: BTreeSet::new(),
        }
    }

    /// All links, in the file's order.
    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    /// The routes between all pairs of nodes, from the lower node to the higher one.
    pub(super) fn all(&self) -> impl Iterator<Item = &Vec<Point>> {
        self.routes.values()
    }

    /// Points as a file names them. Links may name new switches; routes may not.
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
    pub(super) fn join(
        &mut self,
        ends: &[Point],
        latency_ns: f64,
        bandwidth_mb_per_s: f64,
    ) -> Result<(), String> {
        let pair = pair_of(ends).ok_or("two different ends are expected")?;
        if self.joined.insert(pair, self.links.len()).is_some() {
            return Err("there is a link between these two already".into());
        }
        self.links.push(Link { between: [ends[0], ends[1]], latency_ns, bandwidth_mb_per_s });
        Ok(())
    }

    /// Finds the route between each two nodes: the one of least latency. Among equals, fewer links
    /// win, then the points that the file names first.
    pub(super) fn find(&mut self) -> Result<(), String> {
        let mut neighbours: BTreeMap<Point, Vec<(Point, f64)>> = BTreeMap::new();
        for &Link { between: [one, other], latency_ns, .. } in &self.links {
            neighbours.entry(one).or_default().push((other, latency_ns));
            neighbours.entry(other).or_default().push((one, latency_ns));
        }
        for from in 0..if self.links.is_empty() { 0 } else { self.nodes } {
            let shortest = shortest_routes(&neighbours, from);
            for to in from + 1..self.nodes {
                let route = shortest
                    .get(&to)
                    .ok_or_else(|| format!("no link leads from node {from} to node {to}"))?;
                self.routes.insert((from, to), route.clone());
            }
        }
        Ok(())
    }

    /// The two nodes that a stated route joins. A file may state the route of a pair once.
    pub(super) fn free_pair(&mut self, ends: &[Point]) -> Result<(Point, Point), String> {
        let pair = pair_of(ends)
            .filter(|pair| pair.1 < self.nodes)
            .ok_or("two different nodes are expected")?;
        match self.stated.insert(pair) {
            true => Ok((ends[0], ends[1])),
            false => Err("there is a route between these two already".into()),
        }
    }

    /// Routes lines between the two nodes over these points, in both directions.
    pub(super) fn lead(&mut self, (from, to): (Point, Point), via: &[Point]) -> Result<(), String> {
        let mut route: Vec<Point> = [&[from], via, &[to]].concat();
        let mut seen = BTreeSet::new();
        if let Some(&again) = route.iter().find(|&&point| !seen.insert(point)) {
            return Err(format!("the route passes {} twice", self.name(again)));
        }
        if let Some(gap) = route
            .windows(2)
            .find(|step| pair_of(step).is_none_or(|pair| !self.joined.contains_key(&pair)))
        {
            return Err(format!(
                "there is no link between {} and {}",
                self.name(gap[0]),
                self.name(gap[1])
            ));
        }
        if from > to {
            route.reverse();
        }
        self.routes.insert((from.min(to), from.max(to)), route);
        Ok(())
    }

    fn links_between(&self, from: Point, to: Point) -> impl Iterator<Item = &Link> {
        let route = self.routes.get(&(from.min(to), from.max(to))).map_or(&[][..], Vec::as_slice);
        route.windows(2).filter_map(|step| self.links.get(*self.joined.get(&pair_of(step)?)?))
    }

    /// Latency that the links on the route add to that of the memory, in ns.
    pub(super) fn latency_ns(&self, from: Point, to: Point) -> f64 {
        self.links_between(from, to).map(|link| link.latency_ns).sum()
    }

    /// Bandwidth of each link on the route in MB/s; 0: unlimited.
    pub(super) fn bandwidths_mb_per_s(&self, from: Point, to: Point) -> impl Iterator<Item = f64> {
        self.links_between(from, to).map(|link| link.bandwidth_mb_per_s)
    }
}

/// The pair that two different points make.
fn pair_of(points: &[Point]) -> Option<Pair> {
    match *points {
        [one, other] if one != other => Some((one.min(other), one.max(other))),
        _ => None,
    }
}

/// A route to the last of its points. Routes compare by latency, then links, then their points.
struct Candidate {
    latency_ns: f64,
    points: Vec<Point>,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_latency = self.latency_ns.total_cmp(&other.latency_ns);
        by_latency
            .then(self.points.len().cmp(&other.points.len()))
            .then_with(|| self.points.cmp(&other.points))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// The shortest route to each point that `from` reaches (E. W. Dijkstra, A note on two problems in
/// connexion with graphs, 1959).
fn shortest_routes(
    neighbours: &BTreeMap<Point, Vec<(Point, f64)>>,
    from: Point,
) -> BTreeMap<Point, Vec<Point>> {
    let mut best = BTreeMap::new();
    let start = Candidate { latency_ns: 0.0, points: vec![from] };
    let mut open = BinaryHeap::from([Reverse(start)]);
    while let Some(Reverse(route)) = open.pop() {
        let Some(&last) = route.points.last() else { continue };
        if best.contains_key(&last) {
            continue;
        }
        for &(next, latency_ns) in neighbours.get(&last).into_iter().flatten() {
            if !best.contains_key(&next) {
                let points = [&route.points[..], &[next]].concat();
                let latency_ns = route.latency_ns + latency_ns;
                open.push(Reverse(Candidate { latency_ns, points }));
            }
        }
        best.insert(last, route.points);
    }
    best
}
