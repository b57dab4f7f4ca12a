//! The search for a home on machines with too many sets of nodes to evaluate each.
//!
//! # Approach
//! 1. *Single nodes*: every node is evaluated alone. If one of them means no slow-down at all, the
//!    search ends.
//! 2. *Growing*: from a seed, the node that contributes most of the missing cores and pages for its
//!    distance joins, again and again, until there are idle cores for all vCPUs and room for all
//!    pages. Sets on the way are candidates too (large ones at growing intervals), because sharing
//!    cores or taking memory from outside may cost less than distance.
//! 3. *Climbing*: from the best sets grown, a node is added, dropped or replaced as long as that
//!    helps. Candidates are the members that contribute least for their distance, and the others
//!    that would contribute most.
//!
//! # Effort
//! Effort is counted in steps of about a nanosecond, not in time. So the answer depends on the
//! placement's machine, not on the computing one. Growing may use half of it. Seeds are visited
//! with a stride of the golden ratio: at any end of the effort, the visited seeds are spread evenly
//! over the machine.
//!
//! # Properties
//! - A request for which one node means no slow-down gets such a node.
//! - If all nodes reach each other and any set is a home, one is found: the last set grown from
//!   a seed holds every node that contributes anything.
//! - The distance from the best is measured in `tests/placement` and stated in
//!   docs/performance/decisions.md.

use crate::{
    SlowDown,
    cost::{Ask, Costing, Score},
    index::{Index, IndexVec, NodeIndex},
    ranking::Ranking,
    view::NodeView,
};

// Steps for any machine and for each of its nodes.
const EFFORT: u64 = 300_000;
const EFFORT_PER_NODE: u64 = 4_000;
// Divided by the number of nodes: on few nodes, many of the possible sets can be evaluated in the
// same time.
const EFFORT_OF_SMALL: u64 = 8_000_000;

// The value of a core shared with residents, relative to an idle one.
const SHARED: f64 = 0.02;

// The number of members, and of other nodes, that climbing tries to replace: all of them on a
// machine of 16 nodes.
const MAX_REPLACED: usize = 8;

/// Looks for homes and leaves the best in `ranking`.
pub(crate) fn search(costing: &mut Costing<'_>, ranking: &mut Ranking) {
    let n = costing.view.nodes.len();
    let effort = EFFORT + EFFORT_PER_NODE * n as u64 + EFFORT_OF_SMALL / (n as u64).max(1);
    let mut search = Search {
        costing,
        ranking,
        effort,
        latency_ppm: IndexVec::filled(0, n),
        is_member: IndexVec::filled(false, n),
    };
    let single = search
        .is_member
        .indices()
        .filter_map(|node| Some((search.evaluate(&[node])?, vec![node])))
        .min();
    if single.as_ref().is_some_and(|((slow_down, ..), _)| *slow_down <= SlowDown::NONE) {
        return;
    }
    let mut grown = search.grow_from_seeds();
    grown.extend(single);
    grown.sort_unstable();
    grown.dedup();
    for (score, set) in grown {
        if search.effort == 0 {
            break;
        }
        search.climb(score, set);
    }
}

struct Search<'s, 'a> {
    // Invariant: `latency_ppm` and `is_member` describe one set, which `start_set` and `add` build.
    costing: &'s mut Costing<'a>,
    ranking: &'s mut Ranking,
    effort: u64,
    // By node: the sum of the latencies from the members of the present set, and whether it is a
    // member.
    latency_ppm: IndexVec<NodeIndex, u64>,
    is_member: IndexVec<NodeIndex, bool>,
}

impl Search<'_, '_> {
    fn spend(&mut self, steps: usize) {
        self.effort = self.effort.saturating_sub(steps as u64);
    }

    fn evaluate(&mut self, set: &[NodeIndex]) -> Option<Score> {
        self.spend(200 + 50 * set.len());
        let seen = self.ranking.evaluate(self.costing, set)?;
        self.spend(set.len() * set.len());
        if seen.spilled_pages > 0 {
            self.spend(50 * set.len());
        }
        if !seen.has_idle_node {
            return Some(seen.score());
        }
        // A node that gets neither a vCPU nor a page is no part of a home.
        let of_use: Vec<NodeIndex> =
            set.iter().copied().filter(|&i| self.costing.layout().uses(i)).collect();
        self.evaluate(&of_use)
    }

    // The best set of each seed.
    fn grow_from_seeds(&mut self) -> Vec<(Score, Vec<NodeIndex>)> {
        let n = self.costing.view.nodes.len();
        let stride = golden_stride(n);
        let kept = self.effort / 2;
        let mut grown = Vec::new();
        for visited in 0..n {
            self.grow(Index::at(visited * stride % n), &mut grown);
            if self.effort <= kept {
                break;
            }
        }
        grown
    }

    fn grow(&mut self, seed: NodeIndex, grown: &mut Vec<(Score, Vec<NodeIndex>)>) {
        let mut missing = Missing::all_of(self.costing.ask);
        let mut next = Some(seed);
        // Every single node has been evaluated.
        let mut evaluate_size = 2;
        let mut set = Vec::new();
        self.start_set(&[]);
        while let Some(node) = next {
            set.insert(set.partition_point(|&member| member < node), node);
            self.add(node);
            missing.give(&self.costing.view.nodes[node]);
            next = self.cheapest(&missing);
            if set.len() >= evaluate_size || next.is_none() {
                evaluate_size = set.len() + 1 + set.len() / 8;
                grown.extend(self.evaluate(&set).map(|score| (score, set.clone())));
            }
        }
    }

    // Adds, drops or replaces a node as long as that helps.
    fn climb(&mut self, mut score: Score, mut set: Vec<NodeIndex>) {
        while let Some((better, changed)) = self.first_better(score, &set) {
            (score, set) = (better, changed);
        }
    }

    fn first_better(&mut self, score: Score, set: &[NodeIndex]) -> Option<(Score, Vec<NodeIndex>)> {
        self.start_set(set);
        let all = Missing::all_of(self.costing.ask);
        let mut prices: Vec<(f64, NodeIndex)> =
            self.is_member.indices().map(|i| (self.price(i, &all), i)).collect();
        prices.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (members, others): (Vec<_>, Vec<_>) =
            prices.into_iter().map(|(_, i)| i).partition(|&i| self.is_member[i]);
        let none = || std::iter::once(None);
        for joined in none().chain(others.into_iter().take(MAX_REPLACED).map(Some)) {
            for dropped in none().chain(members.iter().rev().take(MAX_REPLACED).copied().map(Some))
            {
                if self.effort == 0 {
                    return None;
                }
                let kept = set.iter().copied().filter(|i| Some(*i) != dropped);
                let mut changed: Vec<NodeIndex> = kept.chain(joined).collect();
                changed.sort_unstable();
                if let Some(better) = self.evaluate(&changed).filter(|better| *better < score) {
                    return Some((better, changed));
                }
            }
        }
        None
    }

    fn start_set(&mut self, set: &[NodeIndex]) {
        self.latency_ppm.fill(0);
        self.is_member.fill(false);
        set.iter().for_each(|&member| self.add(member));
    }

    fn add(&mut self, node: NodeIndex) {
        self.is_member[node] = true;
        let latencies = self.costing.view.latencies_ppm(node);
        self.latency_ppm
            .iter_mut()
            .zip(latencies.iter())
            .for_each(|(sum, &more)| *sum += u64::from(more));
        self.spend(self.latency_ppm.len());
    }

    // The node with the lowest price for its share of the missing vCPUs and pages; none if nothing
    // is missing or available.
    fn cheapest(&mut self, missing: &Missing) -> Option<NodeIndex> {
        self.spend(4 * self.is_member.len());
        let others = self.is_member.indices().filter(|&i| !self.is_member[i]);
        let prices =
            others.map(|i| (self.price(i, missing), i)).filter(|(price, _)| price.is_finite());
        prices.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, i)| i)
    }

    // Latency from the members, divided by the node's share of the missing vCPUs and pages.
    fn price(&self, node: NodeIndex, missing: &Missing) -> f64 {
        if self.ranking.is_barred(node) {
            return f64::INFINITY;
        }
        self.latency_ppm[node] as f64 / missing.gain(&self.costing.view.nodes[node])
    }
}

/// The part of a request that the present set still lacks.
struct Missing {
    vcpus: u64,
    pages: u64,
    all_vcpus: f64,
    all_pages: f64,
}

impl Missing {
    fn all_of(ask: &Ask) -> Self {
        Self {
            vcpus: ask.vcpus,
            pages: ask.pages,
            all_vcpus: ask.vcpus as f64,
            all_pages: ask.pages as f64,
        }
    }

    fn give(&mut self, node: &NodeView) {
        self.vcpus = self.vcpus.saturating_sub(node.idle_cores());
        self.pages = self.pages.saturating_sub(node.available_pages);
    }

    // The part of the missing request that a node can take.
    fn gain(&self, node: &NodeView) -> f64 {
        let idle_cores = node.idle_cores().min(self.vcpus);
        let shared = SHARED
            * node.cores.saturating_sub(idle_cores).min(self.vcpus - idle_cores) as f64
            / self.all_vcpus;
        let pages = node.available_pages.min(self.pages);
        idle_cores as f64 / self.all_vcpus + shared + pages as f64 / self.all_pages
    }
}

// The least number from n / 1.618 on without a common divisor with n. Its multiples visit all of
// 0..n, evenly at any time.
pub(crate) fn golden_stride(n: usize) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (n * 618 / 1000 + 1..n).find(|&stride| divisor(stride, n) == 1).unwrap_or(1)
}
