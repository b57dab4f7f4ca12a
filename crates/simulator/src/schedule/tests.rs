use super::*;
use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, Topology};

/// Nodes of 2 CPUs in a row; latency grows with the distance in the row.
fn row(nodes: u32) -> Hardware {
    let ids: Vec<_> = (0..nodes).map(NodeId).collect();
    let distances: Vec<u8> = ids
        .iter()
        .flat_map(|from| ids.iter().map(|to| 10 + 5 * from.0.abs_diff(to.0) as u8))
        .collect();
    let topology = Topology {
        nodes: ids
            .iter()
            .map(|&id| Node { id, memory_bytes: 1 << 30, ..Node::default() })
            .collect(),
        cpus: (0..2 * nodes).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
        distances: Distances::new(&ids, &distances).unwrap(),
        ..Topology::default()
    };
    Hardware::new(&topology, false).unwrap()
}

fn at_home(homes: &[&'static [usize]]) -> Vec<Runnable<'static>> {
    homes.iter().map(|home| Runnable { last: None, woke: false, home }).collect()
}

/// Threads by node.
fn count(nodes: &[usize], of: usize) -> Vec<usize> {
    (0..of).map(|node| nodes.iter().filter(|on| **on == node).count()).collect()
}

#[test]
fn home_comes_first_then_the_nearest_idle_cpu_then_equal_waiting() {
    let cases: [(&[&'static [usize]], &[usize]); 6] = [
        // Enough CPUs at home.
        (&[&[1], &[1], &[3]], &[0, 2, 0, 1]),
        // Four threads for the two CPUs of node 1: two run on its first neighbour.
        (&[&[1], &[1], &[1], &[1]], &[2, 2, 0, 0]),
        // Six: the next two run on its other neighbour.
        (&[&[1], &[1], &[1], &[1], &[1], &[1]], &[2, 2, 2, 0]),
        // The nodes of a home of two are used equally.
        (&[&[0, 1], &[0, 1], &[0, 1], &[0, 1]], &[2, 2, 0, 0]),
        // No CPU is idle: 12 threads of node 0 are distributed.
        (&[&[0_usize] as &[usize]; 12], &[3, 3, 3, 3]),
        // Threads of other homes wait equally long.
        (&[&[0], &[0], &[0], &[0], &[0], &[0], &[1], &[1], &[2], &[2], &[3], &[3]], &[3, 3, 3, 3]),
    ];
    for (homes, expected) in cases {
        for tick in 0..3 {
            let nodes = home_first(&row(4), &at_home(homes), tick);
            assert_eq!(count(&nodes, 4), expected, "{homes:?}");
        }
    }
}

/// Schedules so many ticks, each from the result of the one before.
fn ticks(hardware: &Hardware, mut threads: Vec<Runnable<'_>>, ticks: u64) -> Vec<Vec<usize>> {
    let mut next = |tick| {
        let nodes = home_first(hardware, &threads, tick);
        threads.iter_mut().zip(&nodes).for_each(|(thread, &node)| thread.last = Some(node));
        nodes
    };
    (0..ticks).map(&mut next).collect()
}

#[test]
fn surplus_threads_change() {
    // Three threads for the two CPUs of node 0, and three for those of node 1; node 2 has two more
    // CPUs.
    let runs = ticks(&row(3), at_home(&[&[0], &[0], &[0], &[1], &[1], &[1]]), 30);
    for thread in 0..6 {
        let away = runs.iter().filter(|nodes| nodes[thread] == 2).count();
        assert_eq!(away, 10, "{thread}: {runs:?}");
    }
    // Three threads for two CPUs: all spend about the same time at home.
    let runs = ticks(&row(4), at_home(&[&[0_usize] as &[usize]; 12]), 120);
    for thread in 0..12 {
        let at_home = runs.iter().filter(|nodes| nodes[thread] == 0).count();
        assert!((25..=35).contains(&at_home), "{thread}: {at_home}");
    }
}

#[test]
fn threads_stay_on_the_node_of_their_home_on_which_they_ran() {
    let homes: [&[&'static [usize]]; 4] = [
        // Alone, with idle CPUs; one thread per CPU; two per CPU; beside a domain on one of these
        // nodes.
        &[&[0, 1], &[0, 1]],
        &[&[0, 1], &[0, 1], &[0, 1], &[0, 1]],
        &[&[0, 1, 2, 3_usize] as &[usize]; 16],
        &[&[0, 1], &[0], &[0, 1]],
    ];
    for homes in homes {
        let runs = ticks(&row(4), at_home(homes), 20);
        assert!(runs.iter().all(|nodes| *nodes == runs[0]), "{runs:?}");
    }
    // Threads with a choice make room for those without; none is away from home.
    let runs = ticks(&row(2), at_home(&[&[0, 1], &[0, 1], &[1], &[1]]), 20);
    assert!(runs[1..].iter().all(|nodes| *nodes == [0, 0, 1, 1]), "{runs:?}");
    // Of more than a fair number, some leave.
    let crowded: Vec<_> =
        (0..4).map(|_| Runnable { last: Some(1), woke: false, home: &[0, 1] }).collect();
    assert_eq!(count(&home_first(&row(2), &crowded, 0), 2), [2, 2]);
}

#[test]
fn pins_hold_while_cpus_idle() {
    assert_eq!(pinned(&row(3), &at_home(&[&[1], &[1], &[1], &[0]])), [1, 1, 1, 0]);
}

#[test]
fn nodes_without_cpus_get_no_threads() {
    let mut hardware = row(3);
    hardware.nodes[0].cpus = 0;
    let threads = at_home(&[&[0], &[0, 2], &[1]]);
    for nodes in [pinned(&hardware, &threads), home_first(&hardware, &threads, 0)] {
        assert_eq!(nodes, [1, 2, 1]);
    }
    assert!(Anywhere::new(7).schedule(&hardware, &threads, 0.0).iter().all(|&node| node > 0));
}

#[test]
fn linux_fills_idle_cpus_and_leaves_threads_where_they_run() {
    let hardware = row(4);
    let thread = |last, woke| Runnable { last, woke, home: &[0, 1, 2, 3] };
    // New threads are spread.
    assert_eq!(
        count(&Anywhere::new(1).schedule(&hardware, &[thread(None, false); 12], 0.0), 4),
        [3, 3, 3, 3]
    );
    // Of five threads on node 0 three wait, and six CPUs are idle.
    let nodes = Anywhere::new(1).schedule(&hardware, &[thread(Some(0), false); 5], 0.0);
    assert_eq!(count(&nodes, 4)[0], 2, "{nodes:?}");
    // Between two balancing periods, waiting threads stay if no CPU is idle.
    let full: Vec<_> = (0..16).map(|at| thread(Some(at % 4), at % 3 == 0)).collect();
    let mut linux = Anywhere::new(1);
    linux.schedule(&hardware, &full, 0.0);
    let stays: Vec<_> = (0..16).map(|at| at % 4).collect();
    assert_eq!(linux.schedule(&hardware, &full, 1e6), stays);
    assert_ne!(linux.schedule(&hardware, &full, 128e6), stays);
}

#[test]
fn waking_thread_takes_any_idle_cpu() {
    let hardware = row(4);
    let mut linux = Anywhere::new(1);
    let thread = Runnable { last: Some(0), woke: true, home: &[0, 1, 2, 3] };
    let taken: Vec<usize> =
        (0..64).map(|tick| linux.schedule(&hardware, &[thread], tick as f64 * 1e6)[0]).collect();
    assert!(count(&taken, 4).iter().all(|&times| times > 4), "{taken:?}");
}
