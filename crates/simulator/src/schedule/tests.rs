use super::*;
use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId, Topology};

/// Nodes in a row with 2 CPUs each: the farther, the slower.
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

/// How many threads are on each node.
fn count(nodes: &[usize], of: usize) -> Vec<usize> {
    (0..of).map(|node| nodes.iter().filter(|on| **on == node).count()).collect()
}

#[test]
fn home_comes_first_then_the_nearest_idle_cpu_then_equal_waiting() {
    let cases: [(&[&'static [usize]], &[usize]); 6] = [
        // There is room.
        (&[&[1], &[1], &[3]], &[0, 2, 0, 1]),
        // Four want the two CPUs of node 1: two go to the first of its neighbours, none waits.
        (&[&[1], &[1], &[1], &[1]], &[2, 2, 0, 0]),
        // Six: the next ones go on to the other one.
        (&[&[1], &[1], &[1], &[1], &[1], &[1]], &[2, 2, 2, 0]),
        // A home of two nodes is used alike.
        (&[&[0, 1], &[0, 1], &[0, 1], &[0, 1]], &[2, 2, 0, 0]),
        // Nobody has an idle CPU: 12 threads of node 0 are shared out.
        (&[&[0_usize] as &[usize]; 12], &[3, 3, 3, 3]),
        // Those at home elsewhere wait as long.
        (&[&[0], &[0], &[0], &[0], &[0], &[0], &[1], &[1], &[2], &[2], &[3], &[3]], &[3, 3, 3, 3]),
    ];
    for (homes, expected) in cases {
        for tick in 0..3 {
            let nodes = home_first(&row(4), &at_home(homes), tick);
            assert_eq!(count(&nodes, 4), expected, "{homes:?}");
        }
    }
}

/// Schedules for so many ticks, each on what the one before left.
fn ticks(hardware: &Hardware, mut threads: Vec<Runnable<'_>>, ticks: u64) -> Vec<Vec<usize>> {
    let mut next = |tick| {
        let nodes = home_first(hardware, &threads, tick);
        threads.iter_mut().zip(&nodes).for_each(|(thread, &node)| thread.last = Some(node));
        nodes
    };
    (0..ticks).map(&mut next).collect()
}

#[test]
fn who_is_away_from_home_changes() {
    // Three of node 0 want its two CPUs, and three of node 1; node 2 has two more.
    let runs = ticks(&row(3), at_home(&[&[0], &[0], &[0], &[1], &[1], &[1]]), 30);
    for thread in 0..6 {
        let away = runs.iter().filter(|nodes| nodes[thread] == 2).count();
        assert_eq!(away, 10, "{thread}: {runs:?}");
    }
    // Three to two CPUs: nobody is at home much more than others.
    let runs = ticks(&row(4), at_home(&[&[0_usize] as &[usize]; 12]), 120);
    for thread in 0..12 {
        let at_home = runs.iter().filter(|nodes| nodes[thread] == 0).count();
        assert!((25..=35).contains(&at_home), "{thread}: {at_home}");
    }
}

#[test]
fn threads_stay_on_the_node_of_their_home_on_which_they_ran() {
    let homes: [&[&'static [usize]]; 4] = [
        // Alone, with idle CPUs; all have one; two wait for each; beside one whose home is one of these nodes.
        &[&[0, 1], &[0, 1]],
        &[&[0, 1], &[0, 1], &[0, 1], &[0, 1]],
        &[&[0, 1, 2, 3_usize] as &[usize]; 16],
        &[&[0, 1], &[0], &[0, 1]],
    ];
    for homes in homes {
        let runs = ticks(&row(4), at_home(homes), 20);
        assert!(runs.iter().all(|nodes| *nodes == runs[0]), "{runs:?}");
    }
    // Whoever has the choice makes room for those who have none, and nobody is away.
    let runs = ticks(&row(2), at_home(&[&[0, 1], &[0, 1], &[1], &[1]]), 20);
    assert!(runs[1..].iter().all(|nodes| *nodes == [0, 0, 1, 1]), "{runs:?}");
    // Where more are than is fair, some go.
    let crowded: Vec<_> =
        (0..4).map(|_| Runnable { last: Some(1), woke: false, home: &[0, 1] }).collect();
    assert_eq!(count(&home_first(&row(2), &crowded, 0), 2), [2, 2]);
}

#[test]
fn pins_hold_while_cpus_idle() {
    assert_eq!(pinned(&row(3), &at_home(&[&[1], &[1], &[1], &[0]])), [1, 1, 1, 0]);
}

#[test]
fn nobody_is_put_where_nothing_can_run() {
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
    // New ones are spread.
    assert_eq!(
        count(&Anywhere::new(1).schedule(&hardware, &[thread(None, false); 12], 0.0), 4),
        [3, 3, 3, 3]
    );
    // Of five on node 0 three wait, and six CPUs are idle.
    let nodes = Anywhere::new(1).schedule(&hardware, &[thread(Some(0), false); 5], 0.0);
    assert_eq!(count(&nodes, 4)[0], 2, "{nodes:?}");
    // Between two balancing periods nobody moves who waits on a machine without idle CPUs.
    let full: Vec<_> = (0..16).map(|at| thread(Some(at % 4), at % 3 == 0)).collect();
    let mut linux = Anywhere::new(1);
    linux.schedule(&hardware, &full, 0.0);
    let stays: Vec<_> = (0..16).map(|at| at % 4).collect();
    assert_eq!(linux.schedule(&hardware, &full, 1e6), stays);
    assert_ne!(linux.schedule(&hardware, &full, 128e6), stays);
}

#[test]
fn a_thread_that_wakes_takes_any_idle_cpu() {
    let hardware = row(4);
    let mut linux = Anywhere::new(1);
    let thread = Runnable { last: Some(0), woke: true, home: &[0, 1, 2, 3] };
    let taken: Vec<usize> =
        (0..64).map(|tick| linux.schedule(&hardware, &[thread], tick as f64 * 1e6)[0]).collect();
    assert!(count(&taken, 4).iter().all(|&times| times > 4), "{taken:?}");
}
