//! Random machines with residents, and random requests. The same seed gives the same machine
//! everywhere.

use nearside_policy::{Claim, CostModel, MemoryPolicy, Observation, PageSize, PartState, Request};
use nearside_topology::{
    Access, Cpu, CpuId, Distance, Distances, HugePagePool, MemoryState, Node, NodeId, Performance,
    ReservedHugePages, Topology, Zone,
};

const MIB: u64 = 1 << 20;
const HUGE_BYTES: u64 = 2 * MIB;

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in so many of 100 cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() as u64 - 1) as usize]
    }
}

/// A machine of so many nodes with residents, a request that has a fair chance to fit it, and a
/// model.
pub(crate) fn case(random: &mut Random, nodes: u64) -> (Request, Observation, CostModel) {
    let topology = machine(random, nodes);
    let domains = (0..random.between(0, 2 * nodes)).map(|_| resident(random, &topology)).collect();
    let mut observation = Observation { topology, parts: domains, reservations: Vec::new() };
    reserve(&mut Random(!random.0), &mut observation);
    let request = request(random, &observation.topology);
    let mut model = CostModel::default();
    if random.percent(20) {
        let mut share = || random.between(0, 1000) as f64 / 1000.0;
        (model.smt_gain, model.crowding, model.memory_share, model.device_share) =
            (share(), share(), share(), share());
        model.vcpu_bandwidth_mb_s = random.between(0, 20_000) as f64;
    }
    (request, observation, model)
}

fn machine(random: &mut Random, count: u64) -> Topology {
    let mut topology = Topology::default();
    let sparse = random.percent(20);
    // Real machines have equal nodes; odd ones reveal odd mistakes.
    let alike = random.percent(40);
    let (usual_cores, usual_mib) = (random.between(1, 8), 64 * random.between(1, 64));
    let threads = random.one_of(&[1, 1, 2, 2, 4]);
    let known_state = random.percent(70);
    let mut number = 0;
    for _ in 0..count {
        number += if sparse { random.between(1, 9) as u32 } else { 1 };
        let id = NodeId(number - 1);
        let cores = if alike {
            usual_cores
        } else {
            random.between(0, 8).saturating_sub(random.between(0, 1))
        };
        let mib = if alike { usual_mib } else { 16 * random.between(0, 256).saturating_sub(40) };
        let mut node = Node {
            id,
            memory_bytes: mib * MIB + random.one_of(&[0, 0, 4096, 12_345]),
            ..Node::default()
        };
        if mib == 0 {
            node.memory_bytes = 0;
        }
        if known_state && mib > 0 {
            node.state = Some(MemoryState {
                free_bytes: random.between(0, mib) * MIB,
                active_file_bytes: random.between(0, mib / 4) * MIB,
                inactive_file_bytes: random.between(0, mib / 8) * MIB,
                slab_reclaimable_bytes: random.between(0, 3) * MIB,
            });
            node.zones = vec![Zone {
                low_watermark_bytes: random.between(0, 4) * MIB,
                high_watermark_bytes: random.between(4, 8) * MIB,
                ..Zone::default()
            }];
        }
        if random.percent(70) {
            let total_pages = random.between(0, 300);
            let free_pages = random.between(0, total_pages);
            node.huge_pages = vec![HugePagePool {
                page_bytes: HUGE_BYTES,
                total_pages,
                free_pages,
                surplus_pages: 0,
            }];
        }
        for _ in 0..cores {
            let core = CpuId(topology.cpus.len() as u32);
            for thread in 0..threads {
                let cpu = Cpu::new(CpuId(core.0 + thread), id);
                topology.cpus.push(Cpu { core, online: !random.percent(5), ..cpu });
            }
        }
        topology.nodes.push(node);
    }
    topology.distances = distances(random, &topology);
    topology.performance = performance(random, &topology);
    topology
}

/// Huge pages that were mapped and not touched yet, by residents and by others.
fn reserve(random: &mut Random, seen: &mut Observation) {
    if random.percent(40) {
        let free = seen
            .topology
            .nodes
            .iter()
            .flat_map(|node| &node.huge_pages)
            .map(|pool| pool.free_pages)
            .sum();
        let pages = random.between(0, free);
        seen.topology.reserved_huge_pages =
            vec![ReservedHugePages { page_bytes: HUGE_BYTES, pages }];
        for domain in &mut seen.parts {
            domain.reserved_bytes = random.between(0, 40) * HUGE_BYTES;
        }
    }
}

fn distances(random: &mut Random, topology: &Topology) -> Distances {
    let mut ids: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
    if random.percent(5) {
        ids.pop();
    }
    let n = ids.len();
    let mut rows: Vec<Distance> = vec![10; n * n];
    match random.between(0, 3) {
        0 => return Distances::uniform(&ids),
        // Pairs of nodes in pairs of sockets.
        1 => {
            let (near, far) =
                (random.between(11, 16) as Distance, random.between(20, 40) as Distance);
            for at in (0..n * n).filter(|at| at / n != at % n) {
                rows[at] = if (at / n) / 2 == (at % n) / 2 { near } else { far };
            }
        }
        kind => {
            let unreachable = random.percent(25);
            for from in 0..n {
                for to in (0..n).filter(|&to| to != from) {
                    rows[from * n + to] = random.between(11, 60) as Distance;
                    if kind == 2 && to < from {
                        rows[from * n + to] = rows[to * n + from];
                    } else if unreachable && random.percent(15) {
                        rows[from * n + to] = 255;
                    }
                }
            }
        }
    }
    Distances::new(&ids, &rows).unwrap()
}

fn performance(random: &mut Random, topology: &Topology) -> Vec<Performance> {
    let mut records = Vec::new();
    // Of 100 pairs, this many are known: none, those that Linux would publish, all.
    let remote = random.one_of(&[None, None, Some(10), Some(100)]);
    let Some(remote) = remote else { return records };
    for initiator in &topology.nodes {
        for target in &topology.nodes {
            let local = initiator.id == target.id;
            for access in [Access::Access0, Access::Access1] {
                if random.percent(if local { 80 } else { remote }) {
                    let ns = if local { random.between(70, 110) } else { random.between(100, 400) };
                    records.push(Performance {
                        access,
                        initiator: initiator.id,
                        target: target.id,
                        read_latency_ns: Some(ns).filter(|_| !random.percent(20)),
                        write_latency_ns: Some(ns + 10).filter(|_| random.percent(50)),
                        read_bandwidth_mb_s: Some(random.between(4_000, 60_000))
                            .filter(|_| random.percent(70)),
                        write_bandwidth_mb_s: Some(random.between(2_000, 30_000))
                            .filter(|_| random.percent(30)),
                    });
                }
            }
        }
    }
    records
}

fn resident(random: &mut Random, topology: &Topology) -> PartState {
    let mut domain = PartState::default();
    if random.percent(10) {
        return domain;
    }
    let mut claim = Claim {
        page_size: random.one_of(&[PageSize::Base, PageSize::Base, PageSize::Huge(HUGE_BYTES)]),
        ..Claim::default()
    };
    for _ in 0..random.between(1, 2) {
        let at = random.between(0, topology.nodes.len() as u64 - 1) as usize;
        let node = &topology.nodes[at];
        claim.vcpus.insert(node.id, random.between(0, 4));
        claim.bytes.insert(node.id, random.between(0, node.memory_bytes / MIB / 4) * MIB);
        domain.resident_bytes.insert(node.id, random.between(0, node.memory_bytes / MIB / 4) * MIB);
    }
    // A domain that has left its node, and a node that has gone.
    if random.percent(5) {
        claim.bytes.insert(NodeId(5000), MIB);
        claim.vcpus.insert(NodeId(5000), 1);
    }
    domain.claim = Some(claim);
    domain
}

fn request(random: &mut Random, topology: &Topology) -> Request {
    let page_size = random.one_of(&[
        PageSize::Base,
        PageSize::Base,
        PageSize::Base,
        PageSize::Huge(HUGE_BYTES),
    ]);
    let machine_bytes = match page_size {
        PageSize::Base => topology.memory_bytes(),
        PageSize::Huge(bytes) => topology
            .nodes
            .iter()
            .flat_map(|node| &node.huge_pages)
            .map(|pool| pool.total_pages * bytes)
            .sum(),
    };
    let cpus = topology.cpus.len() as u64;
    let some_of = |random: &mut Random, whole: u64| {
        let most = random.one_of(&[8, 4, 2, 1]);
        random.between(1, (whole / most).max(1))
    };
    let node = |random: &mut Random| {
        topology.nodes[random.between(0, topology.nodes.len() as u64 - 1) as usize].id
    };
    let nodes =
        random.percent(15).then(|| (0..random.between(1, 3)).map(|_| node(random)).collect());
    let near = if random.percent(25) {
        (0..random.between(1, 3)).map(|_| node(random)).collect()
    } else {
        Vec::new()
    };
    let vcpus = some_of(random, cpus + 2) as u32;
    let memory_bytes = some_of(random, machine_bytes);
    Request {
        vcpus,
        memory_bytes,
        page_size,
        policy: random.one_of(&MemoryPolicy::ALL),
        nodes,
        near,
    }
}
