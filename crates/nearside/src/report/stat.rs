//! `nearside stat`: memory, CPUs, claims and allocator counters of each node, and the domains.

use super::{
    domain::{by_node, dash, local, memory_by_node, others, stands},
    heap::{self, ZoneHeap},
    table::{
        Side::{Left, Right},
        listing,
    },
    units::short,
};
use crate::domains::Domain;
use crate::printable::printable;
use nearside_linux::counters::Counters;
use nearside_policy::{Allocatable, Observation, PageSize, allocatable};
use nearside_topology::{Node, NodeId, ReservedHugePages};
use serde::Serialize;

/// The output of `nearside stat`.
#[derive(Debug, Serialize)]
pub(crate) struct Stat {
    /// The time over which CPU use and counters were sampled, in seconds.
    pub(crate) interval_s: f64,
    /// The nodes by number.
    pub(crate) nodes: Vec<NodeStat>,
    /// Huge pages that are reserved and not touched yet, if there are any.
    pub(crate) reserved_huge_pages: Vec<ReservedStat>,
    /// The domains by name, then other cgroups by path.
    pub(crate) domains: Vec<Domain>,
    /// Free blocks, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heap: Option<Vec<ZoneHeap>>,
}

/// One node.
#[derive(Debug, Serialize)]
pub(crate) struct NodeStat {
    pub(crate) node: NodeId,
    /// Online CPUs.
    pub(crate) cpus: usize,
    /// Claimed vCPUs.
    pub(crate) claimed_vcpus: u64,
    /// All of its memory in bytes; none if unknown, as are then the parts of the next figure.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) free_bytes: Option<u64>,
    pub(crate) reclaimable_bytes: Option<u64>,
    pub(crate) reserve_bytes: Option<u64>,
    /// Base pages that claims can use, in bytes: free + reclaimable - reserve.
    pub(crate) allocatable_bytes: u64,
    /// Claimed and not resident yet, in bytes.
    pub(crate) outstanding_bytes: u64,
    /// Available to new claims, in bytes: allocatable - outstanding.
    pub(crate) available_bytes: u64,
    /// Pools of huge pages with at least one page.
    pub(crate) huge_pages: Vec<PoolStat>,
    /// Allocator counters since boot; none if this kernel does not count.
    pub(crate) counters: Option<Counters>,
    /// The same during the interval.
    pub(crate) counters_in_interval: Option<Counters>,
}

/// A pool of huge pages of one size on one node.
#[derive(Debug, Serialize)]
pub(crate) struct PoolStat {
    pub(crate) page_bytes: u64,
    pub(crate) total_pages: u64,
    pub(crate) free_pages: u64,
    /// Claimed and not resident yet.
    pub(crate) outstanding_bytes: u64,
    /// Available to new claims.
    pub(crate) available_bytes: u64,
}

/// Huge pages of one size that are reserved and not touched yet: free, on nodes that the kernel has
/// not chosen.
#[derive(Debug, Serialize)]
pub(crate) struct ReservedStat {
    pub(crate) page_bytes: u64,
    pub(crate) reserved_bytes: u64,
    /// The part that no domain's claim covers; claims cannot use it.
    pub(crate) elsewhere_bytes: u64,
}

impl ReservedStat {
    pub(crate) fn all(observation: &Observation) -> Vec<Self> {
        let reserved = observation.topology.reserved_huge_pages.iter();
        let stat = |&ReservedHugePages { page_bytes, pages }: &ReservedHugePages| Self {
            page_bytes,
            reserved_bytes: pages.saturating_mul(page_bytes),
            elsewhere_bytes: observation.reserved_elsewhere_bytes(PageSize::Huge(page_bytes)),
        };
        reserved.map(stat).collect()
    }
}

impl NodeStat {
    /// One node of `observation`, with its counters at the begin and the end of the interval.
    pub(crate) fn new(
        observation: &Observation,
        node: &Node,
        counters: [Option<Counters>; 2],
    ) -> Self {
        let [before, after] = counters;
        let size_bytes = node.known_memory_bytes();
        let Allocatable { free_bytes, reclaimable_bytes, reserve_bytes, allocatable_bytes } =
            allocatable(node, PageSize::Base);
        let pool = |pool: &nearside_topology::HugePagePool| PoolStat {
            page_bytes: pool.page_bytes,
            total_pages: pool.total_pages,
            free_pages: pool.free_pages,
            outstanding_bytes: outstanding_on(
                observation,
                node.id,
                PageSize::Huge(pool.page_bytes),
            ),
            available_bytes: observation.available_bytes(node.id, PageSize::Huge(pool.page_bytes)),
        };
        Self {
            node: node.id,
            cpus: observation.topology.cpus_of(node.id).len(),
            claimed_vcpus: observation.claimed_vcpus(node.id),
            size_bytes,
            free_bytes: size_bytes.and(Some(free_bytes)),
            reclaimable_bytes: size_bytes.and(Some(reclaimable_bytes)),
            reserve_bytes: size_bytes.and(Some(reserve_bytes)),
            allocatable_bytes,
            outstanding_bytes: outstanding_on(observation, node.id, PageSize::Base),
            available_bytes: observation.available_bytes(node.id, PageSize::Base),
            huge_pages: node
                .huge_pages
                .iter()
                .filter(|pool| pool.total_pages > 0)
                .map(pool)
                .collect(),
            counters: after,
            counters_in_interval: after.zip(before).map(|(after, before)| after.since(&before)),
        }
    }
}

fn outstanding_on(observation: &Observation, node: NodeId, page_size: PageSize) -> u64 {
    let claims = observation
        .parts
        .iter()
        .filter(|part| part.claim.as_ref().is_some_and(|claim| claim.page_size == page_size));
    let open = claims.map(|part| part.outstanding_bytes().get(&node).copied().unwrap_or(0));
    let reserved = observation.reservations.iter().filter(|it| it.page_size == page_size);
    let reserved = reserved.map(|it| it.bytes.get(&node).copied().unwrap_or(0));
    open.chain(reserved).fold(0, u64::saturating_add)
}

/// The whole report.
pub(crate) fn text(stat: &Stat) -> String {
    let mut text = memory(stat) + &huge_pages(stat) + &counters(stat);
    if let Some(zones) = &stat.heap {
        text += &heap::text(zones);
    }
    text + &domains(stat) + &others(&stat.domains, true)
}

fn memory(stat: &Stat) -> String {
    let columns = [
        ("node", Right),
        ("size", Right),
        ("free", Right),
        ("+reclaimable", Right),
        ("-reserve", Right),
        ("-claimed", Right),
        ("=available", Right),
        ("vCPUs/CPUs", Right),
    ];
    let row = |node: &NodeStat| {
        vec![
            node.node.to_string(),
            dash(node.size_bytes.map(short)),
            dash(node.free_bytes.map(short)),
            dash(node.reclaimable_bytes.map(short)),
            dash(node.reserve_bytes.map(short)),
            short(node.outstanding_bytes),
            short(node.available_bytes),
            format!("{}/{}", node.claimed_vcpus, node.cpus),
        ]
    };
    format!(
        "Memory (claimed: not resident yet; vCPUs: claimed)\n{}",
        listing(&columns, &stat.nodes.iter().map(row).collect::<Vec<_>>())
    )
}

fn huge_pages(stat: &Stat) -> String {
    let columns = [
        ("node", Right),
        ("page", Right),
        ("total", Right),
        ("free", Right),
        ("claimed", Right),
        ("available", Right),
    ];
    let rows = stat.nodes.iter().flat_map(|node| {
        node.huge_pages.iter().map(|pool| {
            vec![
                node.node.to_string(),
                short(pool.page_bytes),
                pool.total_pages.to_string(),
                pool.free_pages.to_string(),
                short(pool.outstanding_bytes),
                short(pool.available_bytes),
            ]
        })
    });
    let elsewhere = stat.reserved_huge_pages.iter().filter(|pages| pages.elsewhere_bytes > 0);
    let elsewhere = elsewhere.map(|pages| {
        let (bytes, page) = (short(pages.elsewhere_bytes), short(pages.page_bytes));
        format!("  {bytes} in pages of {page} are reserved by others, on nodes not chosen yet\n")
    });
    titled("Huge pages", &columns, &rows.collect::<Vec<_>>()) + &elsewhere.collect::<String>()
}

fn counters(stat: &Stat) -> String {
    let columns = [
        ("node", Right),
        ("hit", Right),
        ("miss", Right),
        ("foreign", Right),
        ("hit/s", Right),
        ("miss/s", Right),
        ("foreign/s", Right),
    ];
    let rate = |pages: fn(&Counters) -> u64, node: &NodeStat| {
        let counted = node.counters_in_interval.as_ref().filter(|_| stat.interval_s > 0.0);
        dash(counted.map(|counters| (pages(counters) as f64 / stat.interval_s).round() as u64))
    };
    let row = |node: &NodeStat| {
        let counters = node.counters?;
        Some(vec![
            node.node.to_string(),
            counters.hit_pages.to_string(),
            counters.miss_pages.to_string(),
            counters.foreign_pages.to_string(),
            rate(|counters| counters.hit_pages, node),
            rate(|counters| counters.miss_pages, node),
            rate(|counters| counters.foreign_pages, node),
        ])
    };
    let title = format!(
        "Pages allocated since boot, and per second over the last {:.1} s",
        stat.interval_s
    );
    titled(&title, &columns, &stat.nodes.iter().filter_map(row).collect::<Vec<_>>())
}

fn domains(stat: &Stat) -> String {
    let columns = [
        ("domain", Left),
        ("home", Left),
        ("local", Right),
        ("debt", Right),
        ("threads at", Left),
        ("memory at", Left),
    ];
    let is_told = stat.domains.iter().any(|domain| domain.status.is_some());
    let columns = [&columns[..], if is_told { &[("status", Left)] } else { &[] }].concat();
    let row = |domain: &Domain| {
        let mut row = vec![
            printable(&domain.name),
            domain.home.as_ref()?.nodes.to_string(),
            local(domain.local_share),
            dash(domain.debt_bytes.map(short)),
            by_node(&domain.usage.cpu.threads),
            memory_by_node(domain),
        ];
        row.extend(is_told.then(|| stands(domain)));
        Some(row)
    };
    titled("Domains", &columns, &stat.domains.iter().filter_map(row).collect::<Vec<_>>())
}

fn titled(title: &str, columns: &[(&str, super::table::Side)], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { String::new() } else { format!("\n{title}\n{}", listing(columns, rows)) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::domain::examples::{self, MIB};
    use nearside_topology::{Cpu, CpuId, HugePagePool, MemoryState, Topology, Zone};

    fn node(id: u32, free_mib: u64) -> Node {
        Node {
            id: NodeId(id),
            memory_bytes: 2048 * MIB,
            state: Some(MemoryState {
                free_bytes: free_mib * MIB,
                active_file_bytes: 50 * MIB,
                inactive_file_bytes: 50 * MIB,
                slab_reclaimable_bytes: 4 * MIB,
            }),
            zones: vec![Zone {
                name: "Normal".into(),
                managed_bytes: 2000 * MIB,
                free_bytes: free_mib * MIB,
                low_watermark_bytes: 8 * MIB,
                high_watermark_bytes: 10 * MIB,
                reserved_bytes: 0,
                free_blocks: vec![100, 50, 7, 0, 0, 0, 0, 0, 0, 1, 321],
            }],
            huge_pages: vec![HugePagePool {
                page_bytes: 2 * MIB,
                total_pages: u64::from(id) * 16,
                free_pages: u64::from(id) * 10,
                surplus_pages: 0,
            }],
            ..Node::default()
        }
    }

    /// A machine of two nodes.
    pub(crate) fn topology() -> Topology {
        Topology {
            nodes: vec![node(0, 1800), node(1, 900)],
            cpus: (0..4).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            reserved_huge_pages: vec![ReservedHugePages { page_bytes: 2 * MIB, pages: 4 }],
            ..Topology::default()
        }
    }

    pub(crate) fn stat() -> Stat {
        let domains = examples::domains_told_of();
        let observation = Observation {
            topology: topology(),
            parts: domains.iter().map(Domain::state).collect(),
            reservations: Vec::new(),
        };
        let counters = |hit_pages| {
            Some(Counters { hit_pages, miss_pages: 5, foreign_pages: 3, ..Counters::default() })
        };
        let nodes = observation.topology.nodes.iter();
        Stat {
            interval_s: 0.5,
            nodes: nodes
                .map(|node| NodeStat::new(&observation, node, [counters(1000), counters(1600)]))
                .collect(),
            reserved_huge_pages: ReservedStat::all(&observation),
            heap: Some(heap::zones(&observation.topology)),
            domains,
        }
    }

    #[test]
    fn nodes_and_domains_have_tables() {
        insta::assert_snapshot!("stat", text(&stat()));
    }

    #[test]
    fn node_of_unknown_memory_has_nothing_available() {
        let node = Node { memory_is_unknown: true, ..Node::default() };
        let observation = Observation {
            topology: Topology { nodes: vec![node.clone()], ..Topology::default() },
            ..Observation::default()
        };
        let nodes = vec![NodeStat::new(&observation, &node, [None, None])];
        let json = serde_json::to_value(&nodes[0]).unwrap();
        for key in ["size_bytes", "free_bytes", "reclaimable_bytes", "reserve_bytes"] {
            assert_eq!(json[key], serde_json::Value::Null, "{key}");
        }
        assert_eq!((&json["allocatable_bytes"], &json["available_bytes"]), (&0.into(), &0.into()));
        let stat = Stat {
            interval_s: 0.0,
            nodes,
            reserved_huge_pages: Vec::new(),
            domains: Vec::new(),
            heap: None,
        };
        let row: Vec<String> =
            text(&stat).lines().nth(2).unwrap().split_whitespace().map(str::to_owned).collect();
        assert_eq!(row, ["0", "-", "-", "-", "-", "0", "0", "0/0"]);
    }

    #[test]
    fn available_is_allocatable_less_outstanding() {
        for node in stat().nodes {
            assert_eq!(node.allocatable_bytes - node.outstanding_bytes, node.available_bytes);
        }
    }

    #[test]
    fn json_has_exact_figures() {
        let json = serde_json::to_value(stat()).unwrap();
        assert_eq!(json["nodes"][1]["free_bytes"], 900 * MIB);
        assert_eq!(json["nodes"][1]["counters_in_interval"]["hit_pages"], 600);
        assert_eq!(json["domains"][0]["own_bytes"]["1"], 498 * MIB);
        assert_eq!(json["reserved_huge_pages"][0]["elsewhere_bytes"], 8 * MIB);
        assert_eq!(json["heap"][0]["free_blocks"][10], 321);
    }
}
