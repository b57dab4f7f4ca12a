use super::*;
use crate::{
    id::CpuSet,
    model::{Access, Cpu, Device, DeviceKind},
};
use alloc::vec;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Nodes of these sizes, 21 apart, each with 2 cores of 2 threads; siblings are `cpu` and `cpu + 2
/// * nodes`.
fn machine(sizes_mib: &[u64]) -> Topology {
    let count = sizes_mib.len() as u32;
    let ids: Vec<NodeId> = (0..count).map(NodeId).collect();
    let node =
        |(&id, &size): (&NodeId, &u64)| Node { id, memory_bytes: size * MIB, ..Node::default() };
    let cpu = |number: u32| {
        let core = number % (2 * count);
        Cpu { core: CpuId(core), ..Cpu::new(CpuId(number), NodeId(core / 2)) }
    };
    let rows: Vec<u8> = ids
        .iter()
        .flat_map(|from| ids.iter().map(move |to| if from == to { 10 } else { 21 }))
        .collect();
    Topology {
        source: "test".into(),
        nodes: ids.iter().zip(sizes_mib).map(node).collect(),
        cpus: (0..4 * count).map(cpu).collect(),
        distances: Distances::new(&ids, &rows).unwrap(),
        ..Topology::default()
    }
}

fn cut_as(machine: &Topology, spec: &str) -> Topology {
    fake(machine, &spec.parse().unwrap()).unwrap()
}

fn sizes_mib(topology: &Topology) -> Vec<u64> {
    topology.nodes.iter().map(|node| node.memory_bytes / MIB).collect()
}

#[test]
fn specs_are_read_and_printed() {
    let table = [
        ("4", FakeSpec::Nodes(4), "4"),
        ("2U", FakeSpec::Uniform(2), "2U"),
        ("512M", FakeSpec::Size(512 * MIB), "512M"),
        ("2048m", FakeSpec::Size(2048 * MIB), "2G"),
        ("2G", FakeSpec::Size(2048 * MIB), "2G"),
    ];
    for (text, spec, printed) in table {
        assert_eq!(text.parse(), Ok(spec), "{text}");
        assert_eq!(spec.to_string(), printed);
    }
    let table = [
        (
            "",
            "fake=: expected a number of nodes (4), a size (512M, 2G) or nodes for each node \
             (2U)",
        ),
        (
            "+4",
            "fake=+4: expected a number of nodes (4), a size (512M, 2G) or nodes for each node \
             (2U)",
        ),
        (
            "G",
            "fake=G: expected a number of nodes (4), a size (512M, 2G) or nodes for each node \
             (2U)",
        ),
        ("0", "fake=0: expected 1 to 1024 nodes"),
        ("4096", "fake=4096: expected 1 to 1024 nodes"),
        ("0U", "fake=0U: expected 1 to 1024 nodes"),
        ("4x", "fake=4x: expected nothing, M, G or U after the number"),
        ("1M", "fake=1M: expected nodes of at least 32M"),
        ("99999999999G", "fake=99999999999G: expected a size below 2^64 bytes"),
    ];
    for (text, message) in table {
        assert_eq!(text.parse::<FakeSpec>().unwrap_err().to_string(), message);
    }
}

#[test]
fn n_nodes_share_one_node_and_its_remainder() {
    assert_eq!(sizes_mib(&cut_as(&machine(&[4096]), "4")), [1024; 4]);
    // 1000 / 3 = 333.3; rounded down to 32 MiB: 320. The 13.3 left over three times make one node a
    // step bigger, 352. After 352 and 320 there are 328 left, too little for another 320 beside the
    // third node: it takes them all.
    assert_eq!(sizes_mib(&cut_as(&machine(&[1000]), "3")), [352, 320, 328]);
}

#[test]
fn n_nodes_take_turns_over_the_physical_ones() {
    let cut = cut_as(&machine(&[2048, 2048]), "4");
    assert_eq!(sizes_mib(&cut), [1024; 4]);
    // Nodes 0 and 2 lie on physical node 0, nodes 1 and 3 on physical node 1.
    assert_eq!(cut.distances.row(NodeId(0)).collect::<Vec<_>>(), [10, 21, 10, 21]);
    assert_eq!(cut.distances.row(NodeId(3)).collect::<Vec<_>>(), [21, 10, 21, 10]);
}

#[test]
fn unequal_nodes_may_yield_fewer_than_asked() {
    // A quarter is 1024. Node 0 has room for one with 512 left, too little for another; node 1 for
    // two with 512 left.
    assert_eq!(sizes_mib(&cut_as(&machine(&[1536, 2560]), "4")), [1536, 1024, 1536]);
}

#[test]
fn fewer_than_the_physical_nodes_are_made_of_several() {
    // Half is 1536, no node has it: nodes 0, 1, 2 go to the emulated nodes 0, 1, 0, and distances
    // are those of the first.
    let cut = cut_as(&machine(&[1024, 1024, 1024]), "2");
    assert_eq!(sizes_mib(&cut), [2048, 1024]);
    assert_eq!(cut.distances.get(NodeId(0), NodeId(1)), 21);
    // No emulated node stands for physical node 2; its CPUs go to the nearest, the lower of two as
    // far.
    assert_eq!(cut.cpus_of(NodeId(0)).to_string(), "0-1,4-7,10-11");
}

#[test]
fn nodes_of_a_size_fill_each_physical_node() {
    assert_eq!(sizes_mib(&cut_as(&machine(&[1800]), "512M")), [512, 512, 776]);
    assert_eq!(sizes_mib(&cut_as(&machine(&[1024, 2048]), "1G")), [1024, 1024, 1024]);
    // 100 MiB is no multiple of 32.
    assert_eq!(sizes_mib(&cut_as(&machine(&[200]), "100M")), [96, 104]);
    assert_eq!(sizes_mib(&cut_as(&machine(&[300]), "1G")), [300]);
}

#[test]
fn uniform_nodes_split_each_physical_node() {
    // 1000 / 3 = 333.3, rounded up to 352; the last gets what is left.
    let cut = cut_as(&machine(&[1000, 512]), "3U");
    assert_eq!(sizes_mib(&cut), [352, 352, 296, 192, 192, 128]);
    assert_eq!(cut.distances.row(NodeId(1)).collect::<Vec<_>>(), [10, 10, 10, 21, 21, 21]);
}

#[test]
fn cores_are_dealt_out_with_their_siblings() {
    // Physical node 0: cores 0+4 and 1+5; node 1: cores 2+6 and 3+7.
    let cut = cut_as(&machine(&[2048, 2048]), "2U");
    let cpus: Vec<_> = cut.nodes.iter().map(|node| cut.cpus_of(node.id).to_string()).collect();
    assert_eq!(cpus, ["0,4", "1,5", "2,6", "3,7"]);
    let starved = cut_as(&machine(&[4096]), "4");
    assert_eq!(starved.cpus_of(NodeId(2)), CpuSet::new());
}

#[test]
fn impossible_cuts_are_refused() {
    let refused = |sizes: &[u64], spec: &str| {
        fake(&machine(sizes), &spec.parse().unwrap()).unwrap_err().to_string()
    };
    assert_eq!(refused(&[0], "4"), "fake=4: test has no node with memory");
    assert_eq!(
        refused(&[100], "4"),
        "fake=4: nodes of 26214400 bytes, expected at least 33554432 (32 MiB) each"
    );
    assert_eq!(refused(&[1 << 20], "32M"), "fake=32M: 32768 nodes, expected at most 1024");
    assert_eq!(refused(&[1 << 20; 2], "1024U"), "fake=1024U: 2048 nodes, expected at most 1024");
    // 1000 / 30 = 33.3, rounded up to 64: 16 nodes.
    let few =
        "fake=30U: node 0 of 1048576000 bytes yields only 16 nodes when cut in steps of 32 MiB";
    assert_eq!(refused(&[1000], "30U"), few);
}

#[test]
fn memory_huge_pages_and_devices_are_shared_out() {
    let mut whole = machine(&[3072, 0]);
    whole.nodes[0].state = Some(MemoryState { free_bytes: 1000, ..MemoryState::default() });
    whole.nodes[0].huge_pages =
        vec![HugePagePool { page_bytes: 2 * MIB, total_pages: 10, ..HugePagePool::default() }];
    let range = |start, length| MemoryRange {
        start: start * MIB,
        length_bytes: length * MIB,
        hot_pluggable: false,
        non_volatile: false,
    };
    // A hole below 4 GiB, as every PC has.
    whole.nodes[0].ranges = vec![range(0, 2048), range(4096, 1024)];
    whole.performance = vec![Performance {
        access: Access::Access1,
        initiator: NodeId(0),
        target: NodeId(0),
        read_latency_ns: Some(80),
        write_latency_ns: None,
        read_bandwidth_mb_s: None,
        write_bandwidth_mb_s: None,
    }];
    let device =
        |name: &str, node| Device { kind: DeviceKind::Pci, name: name.into(), node, class: None };
    whole.devices = vec![device("on memoryless", Some(NodeId(1))), device("anywhere", None)];

    let cut = cut_as(&whole, "2");
    assert_eq!(sizes_mib(&cut), [1536, 1536]);
    let free: u64 = cut.nodes.iter().map(|node| node.state.unwrap().free_bytes).sum();
    assert_eq!(free, 1000);
    assert_eq!(
        cut.nodes.iter().map(|node| node.huge_pages[0].total_pages).collect::<Vec<_>>(),
        [5, 5]
    );
    assert_eq!(cut.nodes[0].ranges, [range(0, 1536)]);
    assert_eq!(cut.nodes[1].ranges, [range(1536, 512), range(4096, 1024)]);
    assert_eq!(cut.performance.len(), 4);
    assert_eq!(cut.devices[0].node, Some(NodeId(0)));
    assert_eq!(cut.devices[1].node, None);
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_counted_twice(
        sizes in proptest::collection::vec(0u64..20_000, 1..6), nodes in 1u32..40, kind in 0..3,
    ) {
        let mut whole = machine(&sizes);
        for node in &mut whole.nodes {
            let free_bytes = node.memory_bytes / 3;
            node.state = Some(MemoryState { free_bytes, ..MemoryState::default() });
        }
        let spec = match kind {
            0 => FakeSpec::Nodes(nodes),
            1 => FakeSpec::Size(u64::from(nodes) * 32 * MIB),
            _ => FakeSpec::Uniform(nodes),
        };
        let Ok(cut) = fake(&whole, &spec) else { return Ok(()) };
        prop_assert_eq!(cut.memory_bytes(), whole.memory_bytes());
        let free = |topology: &Topology| -> u64 {
            let with_memory = topology.nodes.iter().filter(|node| node.memory_bytes > 0);
            with_memory.filter_map(|node| node.state).map(|state| state.free_bytes).sum()
        };
        prop_assert_eq!(free(&cut), free(&whole));
        let on_nodes: usize = cut.nodes.iter().map(|node| cut.cpus_of(node.id).len()).sum();
        prop_assert_eq!(on_nodes, whole.cpus.len());
        prop_assert!(cut.nodes.len() <= MAX_NODES as usize);
        for node in &cut.nodes {
            prop_assert_eq!(cut.distances.get(node.id, node.id), 10);
        }
    }

    #[test]
    fn no_text_and_no_size_breaks_it(
        text in "[0-9]{0,21}[MGUmgux]?|\\PC{0,8}",
        bytes: u64,
        others: u64,
    ) {
        if let Ok(spec) = text.parse() {
            let mut whole = machine(&[1, 1]);
            whole.nodes[0].memory_bytes = bytes;
            whole.nodes[1].memory_bytes = others;
            _ = fake(&whole, &spec);
        }
    }
}
