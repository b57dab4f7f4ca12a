//! Placement as its definition reads (docs/adr/0002-placement-cost.md), as plainly as possible:
//! every set of nodes, every vCPU one at a time. It shares only data types and the rule of
//! allocatable memory with the crate.

use nearside_policy::{
    ByNode, CostModel, MemoryPolicy, Observation, PageSize, Request, allocatable, outstanding,
};
use nearside_topology::{NodeId, NodeSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;

pub(crate) const MILLION: u128 = 1_000_000;

/// A home in the terms of the definition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Home {
    pub(crate) slow_down: u64,
    pub(crate) vcpus_per_core_ppm: u64,
    pub(crate) free_after_bytes: u64,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) vcpus: ByNode,
    pub(crate) bytes: ByNode,
    pub(crate) spilled_bytes: u64,
}

/// The facts of a machine that the definition uses.
pub(crate) struct Naive<'a> {
    request: &'a Request,
    model: &'a CostModel,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) cores: BTreeMap<NodeId, u128>,
    pub(crate) threads: BTreeMap<NodeId, u128>,
    busy: BTreeMap<NodeId, u128>,
    memory: BTreeMap<NodeId, u64>,
    pub(crate) available: BTreeMap<NodeId, u64>,
    available_on_all: u64,
    bandwidth: BTreeMap<NodeId, u128>,
    demand: BTreeMap<NodeId, u128>,
    pub(crate) latency: BTreeMap<(NodeId, NodeId), Option<u128>>,
    pub(crate) page_bytes: u64,
    pub(crate) pages: u64,
    /// Whether all pages stay in the home, whatever the policy.
    pub(crate) stays_home: bool,
}

impl<'a> Naive<'a> {
    pub(crate) fn new(request: &'a Request, seen: &Observation, model: &'a CostModel) -> Self {
        let topology = &seen.topology;
        let page_bytes = match request.page_size {
            PageSize::Base => 4096,
            PageSize::Huge(bytes) => bytes,
        };
        let mut naive = Self {
            request,
            model,
            nodes: topology.nodes.iter().map(|node| node.id).collect(),
            cores: BTreeMap::new(),
            threads: BTreeMap::new(),
            busy: BTreeMap::new(),
            memory: BTreeMap::new(),
            available: BTreeMap::new(),
            available_on_all: 0,
            bandwidth: BTreeMap::new(),
            demand: BTreeMap::new(),
            latency: BTreeMap::new(),
            page_bytes,
            pages: request.memory_bytes.div_ceil(page_bytes),
            stays_home: request.policy.confines(),
        };
        let claims = seen.parts.iter().filter_map(|domain| Some((domain, domain.claim.as_ref()?)));
        let alike = claims.filter(|(_, claim)| claim.page_size == request.page_size);
        let owed: Vec<(u64, ByNode)> = alike
            .map(|(domain, claim)| {
                (
                    domain.reserved_bytes,
                    outstanding(claim, &domain.resident_bytes, &domain.staying_bytes()),
                )
            })
            .collect();
        for node in &topology.nodes {
            let id = node.id;
            naive.cores.insert(id, topology.cores_of(id) as u128);
            naive.threads.insert(id, topology.cpus_of(id).len() as u128);
            naive.busy.insert(id, seen.claimed_vcpus(id).into());
            naive.memory.insert(id, node.memory_bytes);
            let owed = owed.iter().map(|(_, owed)| owed.get(&id).copied().unwrap_or(0)).sum();
            let free = allocatable(node, request.page_size).allocatable_bytes;
            naive.available.insert(id, free.saturating_sub(owed) / page_bytes);
            let to_it = topology.performance.iter().filter(|p| p.target == id);
            if let Some(best) =
                to_it.filter_map(|p| p.read_bandwidth_mb_s.or(p.write_bandwidth_mb_s)).max()
            {
                naive.bandwidth.insert(id, u128::from(best) * 1000);
            }
            let mut demand = 0;
            for claim in seen.parts.iter().filter_map(|domain| domain.claim.as_ref()) {
                let (bytes, all) =
                    (claim.bytes.get(&id).copied().unwrap_or(0), claim.bytes.values().sum::<u64>());
                let vcpus = claim.vcpus.values().sum::<u64>();
                if bytes > 0 {
                    demand += (naive.use_of(vcpus.into()) * u128::from(bytes)).div_ceil(all.into());
                }
            }
            naive.demand.insert(id, demand);
        }
        // Huge pages that no claim covers may come from any node.
        let own: u64 =
            owed.iter().map(|(reserved, owed)| owed.values().sum::<u64>().min(*reserved)).sum();
        let reserved = match request.page_size {
            PageSize::Base => 0,
            PageSize::Huge(bytes) => {
                topology.reserved_huge_bytes(bytes).saturating_sub(own).div_ceil(page_bytes)
            }
        };
        naive.available_on_all = naive.available.values().sum::<u64>().saturating_sub(reserved);
        naive.available.values_mut().for_each(|pages| *pages = naive.available_on_all.min(*pages));
        for &from in &naive.nodes {
            for &to in &naive.nodes {
                naive.latency.insert((from, to), latency(seen, from, to));
            }
        }
        naive
    }

    fn use_of(&self, vcpus: u128) -> u128 {
        vcpus * (self.model.vcpu_bandwidth_mb_s * 1000.0) as u128
    }

    /// Every set of nodes that may become a home, best first.
    pub(crate) fn homes(&self) -> Vec<Home> {
        let mut homes = Vec::new();
        for members in 1..1_u32 << self.nodes.len() {
            let set: Vec<NodeId> = (0..self.nodes.len())
                .filter(|i| members >> i & 1 == 1)
                .map(|i| self.nodes[i])
                .collect();
            let home = self.home(&set);
            homes.extend(home.filter(|home| {
                set.iter().all(|n| home.vcpus.contains_key(n) || home.bytes.contains_key(n))
            }));
        }
        homes.sort_by_key(|home| {
            (
                home.slow_down,
                home.vcpus_per_core_ppm,
                Reverse(home.free_after_bytes),
                home.nodes.clone(),
            )
        });
        homes
    }

    /// The consequences of `set` as a home, if it can be one.
    pub(crate) fn home(&self, set: &[NodeId]) -> Option<Home> {
        let with_cpus: Vec<NodeId> = set.iter().copied().filter(|n| self.cores[n] > 0).collect();
        if with_cpus.is_empty() {
            return None;
        }
        let mut vcpus = ByNode::new();
        for _ in 0..self.request.vcpus {
            let load = |n: &NodeId| {
                let running = self.busy[n] + u128::from(vcpus.get(n).copied().unwrap_or(0)) + 1;
                ((running * MILLION).div_ceil(self.cores[n]), *n)
            };
            let least = with_cpus.iter().copied().min_by_key(load)?;
            *vcpus.entry(least).or_insert(0) += 1;
        }
        let pages = self.lay_pages(set, &vcpus)?;
        let in_set: u64 = set.iter().filter_map(|n| pages.get(n)).sum();
        let available: u64 = set.iter().map(|n| self.available[n]).sum();
        Some(Home {
            slow_down: self.slow_down(&vcpus, &pages),
            vcpus_per_core_ppm: self.vcpus_per_core(&vcpus),
            free_after_bytes: (available - in_set).min(self.available_on_all - self.pages)
                * self.page_bytes,
            nodes: set.to_vec(),
            vcpus,
            spilled_bytes: (self.pages - in_set) * self.page_bytes,
            bytes: pages.into_iter().map(|(n, pages)| (n, pages * self.page_bytes)).collect(),
        })
    }

    fn reachable(&self, vcpus: &ByNode, to: NodeId) -> bool {
        vcpus.keys().all(|&from| self.latency[&(from, to)].is_some())
    }

    fn lay_pages(&self, set: &[NodeId], vcpus: &ByNode) -> Option<ByNode> {
        let policy = self.request.policy;
        let mut left: ByNode = self.available.clone();
        left.retain(|&n, _| self.reachable(vcpus, n));
        if self.stays_home {
            left.retain(|n, _| set.contains(n));
        }
        if left.values().sum::<u64>() < self.pages || self.available_on_all < self.pages {
            return None;
        }
        let memory: Vec<NodeId> = set
            .iter()
            .copied()
            .filter(|n| self.memory[n] > 0 && self.reachable(vcpus, *n))
            .collect();
        let most_vcpus = |nodes: &[NodeId]| {
            nodes.iter().copied().max_by_key(|n| (vcpus.get(n).copied().unwrap_or(0), Reverse(*n)))
        };
        let weights: Vec<(NodeId, u128)> = match policy {
            MemoryPolicy::Preferred => vec![(most_vcpus(&memory).or(most_vcpus(set))?, 1)],
            MemoryPolicy::WeightedInterleave
                if !memory.is_empty() && memory.iter().all(|n| self.bandwidth.contains_key(n)) =>
            {
                memory.iter().map(|n| (*n, self.bandwidth[n])).collect()
            }
            MemoryPolicy::Interleave | MemoryPolicy::WeightedInterleave if !memory.is_empty() => {
                memory.iter().map(|n| (*n, 1)).collect()
            }
            _ => vcpus.iter().map(|(n, vcpus)| (*n, u128::from(*vcpus))).collect(),
        };
        let all: u128 = weights.iter().map(|(_, weight)| weight).sum();
        let upto = |i: usize| {
            (u128::from(self.pages) * weights[..i].iter().map(|(_, weight)| weight).sum::<u128>()
                / all) as u64
        };
        let mut laid = ByNode::new();
        let mut lay = |n: NodeId, wanted: u64| {
            let Some(room) = left.get_mut(&n) else { return wanted };
            let taken = wanted.min(*room);
            *room -= taken;
            if taken > 0 {
                *laid.entry(n).or_insert(0) += taken;
            }
            wanted - taken
        };
        let mut missing = Vec::new();
        for (i, (n, _)) in weights.iter().enumerate() {
            missing.push((*n, lay(*n, upto(i + 1) - upto(i))));
        }
        for (from, mut missing) in missing {
            let mut nearest = self.nodes.clone();
            nearest.sort_by_key(|&to| {
                let later = policy == MemoryPolicy::PreferredMany && !set.contains(&to);
                (later, self.latency[&(from, to)].unwrap_or(u128::MAX), to)
            });
            for to in nearest {
                missing = lay(to, missing);
            }
            assert_eq!(missing, 0);
        }
        Some(laid)
    }

    fn vcpus_per_core(&self, vcpus: &ByNode) -> u64 {
        let load = |n: &NodeId, vcpus: u64| {
            ((self.busy[n] + u128::from(vcpus)) * MILLION).div_ceil(self.cores[n])
        };
        let all: u128 = vcpus.iter().map(|(n, &vcpus)| u128::from(vcpus) * load(n, vcpus)).sum();
        all.div_ceil(self.request.vcpus.into()) as u64
    }

    fn slow_down(&self, vcpus: &ByNode, pages: &ByNode) -> u64 {
        let millionths = |share: f64| (share * 1e6).round() as u128;
        let asked = u128::from(self.request.vcpus);

        let (mut alone, mut gained, mut waiting) = (0, 0, 0);
        for (n, &vcpus) in vcpus {
            let throughput = |running: u128| {
                let siblings = running.min(self.threads[n]).saturating_sub(self.cores[n]);
                running.min(self.cores[n]) * MILLION + siblings * millionths(self.model.smt_gain)
            };
            let (vcpus, busy) = (u128::from(vcpus), self.busy[n]);
            alone += throughput(vcpus);
            gained += throughput(busy + vcpus) - throughput(busy);
            waiting +=
                vcpus * ((busy + vcpus) * MILLION * MILLION).div_ceil(throughput(busy + vcpus));
        }
        let own = (asked * MILLION * MILLION).div_ceil(alone);
        let taken = ((alone - gained) * MILLION).div_ceil(alone);
        let crowded = ((waiting.div_ceil(asked) - MILLION) * millionths(self.model.crowding))
            .div_ceil(MILLION);
        let lost = (taken * (MILLION + crowded)).div_ceil(MILLION);
        let cpu = (own * (MILLION + lost)).div_ceil(MILLION);

        let mut memory = 0;
        for (to, &pages) in pages {
            let mut waits = 0;
            for (from, &vcpus) in vcpus {
                waits += u128::from(vcpus) * self.latency[&(*from, *to)].unwrap();
            }
            if let Some(&bandwidth) = self.bandwidth.get(to) {
                let own = (self.use_of(asked) * u128::from(pages)).div_ceil(self.pages.into());
                let load = ((self.demand[to] + own) * MILLION).div_ceil(bandwidth).max(MILLION);
                waits = (waits * load).div_ceil(MILLION);
            }
            memory += u128::from(pages) * waits;
        }
        let latency = memory.div_ceil(asked * u128::from(self.pages));
        let share = millionths(self.model.memory_share);
        let memory = MILLION - share + (share * latency).div_ceil(MILLION);

        let mut devices = MILLION;
        let near = &self.request.near;
        if !near.is_empty() {
            let mut latency = 0;
            for (from, &vcpus) in vcpus {
                for to in near {
                    latency +=
                        u128::from(vcpus) * self.latency[&(*from, *to)].unwrap_or(25_500_000);
                }
            }
            let mean = latency.div_ceil(asked * near.len() as u128);
            devices += (millionths(self.model.device_share) * (mean - MILLION)).div_ceil(MILLION);
        }
        (cpu * memory * devices).div_ceil(MILLION * MILLION) as u64
    }
}

fn latency(seen: &Observation, from: NodeId, to: NodeId) -> Option<u128> {
    let topology = &seen.topology;
    let slit = |from, to| u128::from(topology.distances.get(from, to).max(10));
    let ns = |from, to| {
        let of_pair = topology.performance.iter().filter(|p| p.initiator == from && p.target == to);
        let with_latency =
            of_pair.filter_map(|p| Some((p.access, p.read_latency_ns.or(p.write_latency_ns)?)));
        with_latency.max().map(|(_, ns)| u128::from(ns))
    };
    let ids: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
    if slit(from, to) == 255 {
        return None;
    }
    let best_local = ids.iter().filter_map(|&n| ns(n, n)).min();
    let nearest =
        ids.iter().copied().filter(|&n| ns(n, to).is_some()).min_by_key(|&n| (slit(n, to), n));
    let ppm = match (best_local, ns(from, to), nearest) {
        (Some(local), Some(ns), _) => (ns * MILLION).div_ceil(local),
        (Some(local), None, Some(near)) => {
            let near_ns = ns(near, to)?;
            (near_ns * MILLION * slit(from, to)).div_ceil(local * slit(near, to))
        }
        _ => slit(from, to) * MILLION / 10,
    };
    Some(ppm.max(MILLION))
}

/// The nodes in the crate's own type.
pub(crate) fn node_set(nodes: &[NodeId]) -> NodeSet {
    nodes.iter().copied().collect()
}
