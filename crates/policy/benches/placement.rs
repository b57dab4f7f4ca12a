//! How long a placement decision takes. Figures and their reading: docs/performance/decisions.md.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use criterion::{Criterion, criterion_group, criterion_main};
use nearside_policy::{
    ByNode, CellRequest, CellsRequest, Claim, CostModel, MemoryPolicy, Observation, PageSize,
    PartState, Request, place, place_cells,
};
use nearside_topology::{Cpu, CpuId, Distance, Distances, Node, NodeId, Topology};

const GIB: u64 = 1 << 30;

/// Nodes of 8 cores with 2 threads and 64 GiB. Four nodes are a socket (12), four sockets a chassis
/// (20), chassis are 40 apart, and each step beyond the next chassis adds 1.
fn machine(nodes: u32) -> Topology {
    let ids: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    let distance = |from: u32, to: u32| -> Distance {
        match (from == to, from / 4 == to / 4, from / 16 == to / 16) {
            (true, ..) => 10,
            (_, true, _) => 12,
            (_, _, true) => 20,
            _ => (40 + (from / 16).abs_diff(to / 16)) as Distance,
        }
    };
    let rows: Vec<Distance> =
        (0..nodes).flat_map(|from| (0..nodes).map(move |to| distance(from, to))).collect();
    let cpu = |number: u32| Cpu {
        core: CpuId(number & !1),
        ..Cpu::new(CpuId(number), NodeId(number / 16))
    };
    Topology {
        nodes: ids
            .iter()
            .map(|&id| Node { id, memory_bytes: 64 * GIB, ..Node::default() })
            .collect(),
        cpus: (0..nodes * 16).map(cpu).collect(),
        distances: Distances::new(&ids, &rows).unwrap_or_default(),
        ..Topology::default()
    }
}

/// As many domains as asked for, uneven, most on one node and every fifth on three.
fn with_residents(topology: Topology, domains: u32) -> Observation {
    let nodes = topology.nodes.len() as u32;
    let resident = |number: u32| {
        let width = if number.is_multiple_of(5) { 3 } else { 1 };
        let on = |amount: u64| -> ByNode {
            (0..width).map(|i| (NodeId((number * 7 + i) % nodes), amount)).collect()
        };
        let vcpus = u64::from(1 + number % 4);
        let bytes = u64::from(1 + number % 13) * GIB;
        let claim = Claim { bytes: on(bytes), vcpus: on(vcpus), page_size: PageSize::Base };
        PartState { claim: Some(claim), resident_bytes: on(bytes / 2), ..PartState::default() }
    };
    Observation { topology, parts: (0..domains).map(resident).collect(), reservations: Vec::new() }
}

fn request(vcpus: u32, gib: u64, policy: MemoryPolicy) -> Request {
    Request {
        vcpus,
        memory_bytes: gib * GIB,
        page_size: PageSize::Base,
        policy,
        nodes: None,
        near: Vec::new(),
    }
}

fn placement(criterion: &mut Criterion) {
    let model = CostModel::default();
    let mut bench = |name: &str, observation: &Observation, request: &Request| {
        criterion
            .bench_function(name, |bencher| bencher.iter(|| place(request, observation, &model)));
    };
    for nodes in [8, 12, 64] {
        let seen = with_residents(machine(nodes), nodes);
        bench(&format!("{nodes} nodes, fits one"), &seen, &request(4, 16, MemoryPolicy::Strict));
        for policy in [MemoryPolicy::Strict, MemoryPolicy::PreferredMany] {
            let request = request(nodes * 3, u64::from(nodes) * 24, policy);
            bench(&format!("{nodes} nodes, {policy}, needs half"), &seen, &request);
        }
    }
    let seen = with_residents(machine(1024), 1000);
    for (name, vcpus, gib) in
        [("fits one", 4, 16), ("needs 20", 128, 1024), ("needs 300", 2048, 16 * 1024)]
    {
        for policy in [MemoryPolicy::Strict, MemoryPolicy::PreferredMany] {
            bench(
                &format!("1024 nodes, 1000 residents, {policy}, {name}"),
                &seen,
                &request(vcpus, gib, policy),
            );
        }
    }
}

/// A virtual machine of `cells` cells of so many vCPUs and GiB each. Cells 0 and 1 are near in the
/// guest, as are 2 and 3, and so on.
fn guest(cells: u32, vcpus: u32, gib: u64) -> CellsRequest {
    let cell =
        CellRequest { vcpus, memory_bytes: gib * GIB, page_size: PageSize::Base, near: Vec::new() };
    let distance = |from: u32, to: u32| match (from == to, from / 2 == to / 2) {
        (true, _) => 10,
        (_, true) => 12,
        _ => 20,
    };
    let row = |from| (0..cells).map(|to| distance(from, to)).collect();
    CellsRequest {
        cells: vec![cell; cells as usize],
        distances: Some((0..cells).map(row).collect()),
        policy: MemoryPolicy::Strict,
        nodes: None,
    }
}

fn cells(criterion: &mut Criterion) {
    let model = CostModel::default();
    let mut bench = |name: &str, observation: &Observation, request: &CellsRequest| {
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| place_cells(request, observation, &model))
        });
    };
    for nodes in [8, 64, 1024] {
        let seen = with_residents(machine(nodes), nodes);
        bench(&format!("{nodes} nodes, 4 cells, each fits one"), &seen, &guest(4, 4, 16));
        bench(&format!("{nodes} nodes, 4 cells, each needs two"), &seen, &guest(4, 12, 70));
    }
    let seen = with_residents(machine(64), 64);
    bench("64 nodes, 16 cells, each fits one", &seen, &guest(16, 4, 16));
    bench("8 nodes, 128 cells, shared", &with_residents(machine(8), 8), &guest(128, 1, 1));
}

criterion_group!(benches, placement, cells);
criterion_main!(benches);
