//! The search for a home on machines with too many sets of nodes to look at each.
//!
//! # Approach
//! 1. *Single nodes*: every node with CPUs is looked at alone.
//! 2. *Growing*: from a seed, the node that brings most of what is missing for its distance joins, again and again,
//!    until there are idle cores for all vCPUs and room for all pages. Every set on the way is a candidate (large ones
//!    at growing intervals), since sharing cores or taking memory from outside may cost less than distance does.
//! 3. *Climbing*: from the best sets grown, single nodes are added, dropped or exchanged while that helps: the members
//!    that bring least for their distance against the others that would bring most.
//!
//! # Effort
//! Effort is counted in steps of about a nanosecond, not in time, so that the answer depends on the machine that is
//! placed on and not on the one that computes. Growing may use half of it. Seeds are visited with a stride of the golden
//! ratio: wherever the effort ends, those visited lie evenly over the machine.
//!
//! # Properties
//! - A request for which one node is best gets that node.
//! - If any set of nodes is a home, one is found: the last set grown from a seed holds every node of use.
//! - The distance from the best is measured in `tests/placement` and stated in docs/performance.md.

use crate::{
    SlowDown,
    cost::{Ask, Costing, Prediction},
    ranking::Ranking,
    view::{NodeView, PPM},
};
use std::cmp::Reverse;

// Steps for each node of the machine. With 1,024 nodes about 20 ms.
const EFFORT_PER_NODE: u64 = 20_000;

// How many members and how many others a climbing step considers to exchange: all of them on small machines.
const EXCHANGED: usize = 8;

/// Looks for homes and leaves the best in `ranking`.
pub(crate) fn search(costing: &mut Costing<'_>, ranking: &mut Ranking) {
    let n = costing.view.nodes.len();
    let mut search = Search { ranking, effort: EFFORT_PER_NODE * n as u64, latency_ppm: vec![0; n], costing };
    for node in 0..n {
        search.look_at(&[node]);
    }
    let mut grown = search.grow_from_seeds();
    grown.sort_unstable();
    grown.dedup();
    for (standing, set) in grown {
        if search.effort == 0 {
            break;
        }
        search.climb(standing, set);
    }
}

/// How good a set is: least slow-down, then most free pages.
type Standing = (SlowDown, Reverse<u64>);

struct Search<'s, 'a> {
    costing: &'s mut Costing<'a>,
    ranking: &'s mut Ranking,
    effort: u64,
    // By node, the sum of the latencies from and to the members of the set at hand.
    latency_ppm: Vec<u64>,
}

impl Search<'_, '_> {
    fn spend(&mut self, steps: usize) {
        self.effort = self.effort.saturating_sub(steps as u64);
    }

    fn look_at(&mut self, set: &[usize]) -> Option<Standing> {
        self.spend(100 + self.costing.view.nodes.len() + set.len() * (set.len() + 20));
        let standing = |seen: &Prediction| (seen.slow_down, Reverse(seen.free_after_pages));
        let seen = self.ranking.look_at(self.costing, set)?;
        if !seen.has_idle_node {
            return Some(standing(&seen));
        }
        // What gets nothing is no part of a home.
        let layout = self.costing.layout();
        let of_use: Vec<usize> = set.iter().copied().filter(|&i| layout.vcpus[i] > 0 || layout.pages[i] > 0).collect();
        self.look_at(&of_use)
    }

    // The best set of each seed.
    fn grow_from_seeds(&mut self) -> Vec<(Standing, Vec<usize>)> {
        let n = self.costing.view.nodes.len();
        let stride = golden_stride(n);
        let kept = self.effort / 2;
        let mut grown = Vec::new();
        for visited in 0..n {
            grown.extend(self.grow(visited * stride % n));
            if self.effort <= kept {
                break;
            }
        }
        grown
    }

    fn grow(&mut self, seed: usize) -> Option<(Standing, Vec<usize>)> {
        let view = self.costing.view;
        let mut best: Option<(Standing, Vec<usize>)> = None;
        let mut set = Vec::new();
        let mut missing = Missing::all_of(self.costing.ask);
        let mut next = Some(seed);
        let mut look_at_size = 1;
        self.latency_ppm.fill(0);
        while let Some(node) = next {
            let at = set.partition_point(|&member| member < node);
            set.insert(at, node);
            self.add_latencies(node);
            missing.give(&view.nodes[node]);
            let is_member = |i: &usize| set.binary_search(i).is_ok();
            let others = (0..view.nodes.len()).filter(|i| !is_member(i));
            next = others.filter_map(|i| Some((self.price(i, &missing)?, i))).min().map(|(_, i)| i);
            if set.len() >= look_at_size || next.is_none() {
                look_at_size = set.len() + 1 + set.len() / 8;
                if let Some(standing) = self.look_at(&set)
                    && best.as_ref().is_none_or(|(best, _)| standing < *best)
                {
                    best = Some((standing, set.clone()));
                }
            }
        }
        best
    }

    // Adds, drops or exchanges the node that helps most until none helps.
    fn climb(&mut self, mut standing: Standing, mut set: Vec<usize>) {
        while let Some((better, changed)) = self.best_change(&set)
            && better < standing
            && self.effort > 0
        {
            (standing, set) = (better, changed);
        }
    }

    fn best_change(&mut self, set: &[usize]) -> Option<(Standing, Vec<usize>)> {
        self.latency_ppm.fill(0);
        set.iter().for_each(|&member| self.add_latencies(member));
        let all = Missing::all_of(self.costing.ask);
        let mut prices: Vec<(u64, usize)> =
            (0..self.latency_ppm.len()).map(|i| (self.price(i, &all).unwrap_or(u64::MAX), i)).collect();
        prices.sort_unstable();
        let (members, others): (Vec<_>, Vec<_>) =
            prices.into_iter().map(|(_, i)| i).partition(|i| set.binary_search(i).is_ok());
        let dropped = || std::iter::once(None).chain(members.iter().rev().take(EXCHANGED).copied().map(Some));
        let mut best = None;
        for joined in std::iter::once(None).chain(others.iter().take(EXCHANGED).copied().map(Some)) {
            for dropped in dropped() {
                let mut changed: Vec<usize> =
                    set.iter().copied().filter(|i| Some(*i) != dropped).chain(joined).collect();
                changed.sort_unstable();
                if changed.is_empty() || changed == set || self.effort == 0 {
                    continue;
                }
                if let Some(standing) = self.look_at(&changed)
                    && best.as_ref().is_none_or(|(best, _)| standing < *best)
                {
                    best = Some((standing, changed));
                }
            }
        }
        best
    }

    // Counts `node` among the members to which latencies are summed.
    fn add_latencies(&mut self, node: usize) {
        let view = self.costing.view;
        self.spend(2 * view.nodes.len());
        for (i, sum) in self.latency_ppm.iter_mut().enumerate() {
            *sum += u64::from(view.latencies_ppm(node)[i]) + u64::from(view.latencies_ppm(i)[node]);
        }
    }

    // What a node costs for what it brings: latency to the members, divided by its part of what is missing. None where
    // it brings nothing.
    fn price(&self, node: usize, missing: &Missing) -> Option<u64> {
        let gain_ppm = missing.gain_ppm(&self.costing.view.nodes[node], self.costing.ask);
        (gain_ppm > 0).then(|| self.latency_ppm[node].saturating_mul(PPM) / gain_ppm)
    }
}

/// What a request still lacks on the set at hand.
struct Missing {
    vcpus: u64,
    pages: u64,
}

impl Missing {
    fn all_of(ask: &Ask) -> Self {
        Self { vcpus: ask.vcpus, pages: ask.pages }
    }

    fn give(&mut self, node: &NodeView) {
        self.vcpus = self.vcpus.saturating_sub(idle_cores(node));
        self.pages = self.pages.saturating_sub(node.unclaimed_pages);
    }

    // Which part of the request the node supplies of what is missing; a core that is shared counts for next to nothing.
    fn gain_ppm(&self, node: &NodeView, ask: &Ask) -> u64 {
        let part = |have: u64, missing: u64, whole: u64| {
            (u128::from(have.min(missing)) * u128::from(PPM)).div_ceil(u128::from(whole)) as u64
        };
        let shared_core = u64::from(self.vcpus > 0 && node.cores > 0);
        part(idle_cores(node), self.vcpus, ask.vcpus).max(shared_core)
            + part(node.unclaimed_pages, self.pages, ask.pages)
    }
}

fn idle_cores(node: &NodeView) -> u64 {
    node.cores.saturating_sub(node.busy)
}

// The number nearest to n / 1.618 that shares no divisor with n: its multiples visit all of 0..n, evenly all the time.
fn golden_stride(n: usize) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (n as f64 * 0.618) as usize;
    (golden.max(1)..=n.max(1)).find(|&stride| divisor(stride, n) == 1).unwrap_or(1)
}
