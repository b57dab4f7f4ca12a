//! Domains that use little or no CPU time.

use super::{by_node, made, turn};
use nearside_policy::History;

/// Another process in each interval tells when the lists of processes are read.
#[test]
fn a_domain_that_does_not_run_is_read_in_full_now_and_then() {
    let made = made();
    let mut watcher = made.watcher(&["m/*"]);
    let mut look = |interval: u64, usage_us| {
        made.group("m/vm", usage_us, [4096, 0]);
        made.file("cg/m/vm/memory.current", "4096\n");
        made.file("cg/m/vm/cgroup.procs", &"9000001\n".repeat(interval as usize));
        watcher.observe(&History::default(), turn(interval)).unwrap();
        watcher.usage("/m/vm").unwrap().processes as u64
    };
    // Its 65th sample.
    let seen: Vec<_> = (1..=65).map(|interval| look(interval, 7)).collect();
    assert_eq!(seen, [[1; 64].as_slice(), &[65]].concat());
    // After it has run, its 73rd; then none for long.
    let seen: Vec<_> = (66..=82).map(|interval| look(interval, 8)).collect();
    assert_eq!(seen, [[65; 7].as_slice(), &[73; 10]].concat());
    // A change of its record is seen, too.
    made.put(made.record("/m/vm"));
    let seen: Vec<_> = (83..=90).map(|interval| look(interval, 8)).collect();
    assert_eq!(seen, [[73; 6].as_slice(), &[89; 2]].concat());
}

#[test]
fn files_that_are_missing_are_looked_for_once_a_domain_runs() {
    let made = made();
    let mut watcher = made.watcher(&["m/*"]);
    let mut kills = |interval: u64, usage_us| {
        made.group("m/vm", usage_us, [4096, 0]);
        if interval > 5 {
            made.file("cg/m/vm/memory.events", "oom 0\noom_kill 1\n");
        }
        watcher.observe(&History::default(), turn(interval)).unwrap();
        watcher.usage("/m/vm").unwrap().oom_kills.map(|kills| kills.killed)
    };
    let seen: Vec<_> = (1..=7).map(|interval| kills(interval, 7)).collect();
    assert_eq!(seen, [None; 7]);
    assert_eq!([kills(8, 8), kills(9, 8)], [Some(1); 2]);
}

/// Slow counters are read again when their sum has changed, and otherwise in every fourth sample.
#[test]
fn nodes_of_memory_are_read_again_when_its_sum_changes() {
    let made = made();
    let mut watcher = made.watcher(&["m/*"]);
    let mut look = |interval, charged: u64, bytes| {
        // It runs a little in each interval.
        made.group("m/vm", interval, bytes);
        made.file("cg/m/vm/memory.current", &format!("{charged}\n"));
        let seen = watcher.observe(&History::default(), turn(interval)).unwrap();
        seen.machine.parts[0].resident_bytes == by_node(bytes)
    };
    // A young domain has close samples.
    for interval in 1..=4 {
        assert!(look(interval, 6400, [4096 * interval, 4096]), "{interval}");
    }
    let followed: Vec<bool> =
        (5..=8).map(|interval| look(interval, 6400 + interval, [4096 * interval, 4096])).collect();
    assert_eq!(followed.iter().filter(|&&followed| followed).count(), 1, "{followed:?}");
    let followed: Vec<bool> = (10..=13)
        .map(|interval| look(interval, 6400 * interval, [4096 * interval, 4096]))
        .collect();
    assert_eq!(followed, [true; 4]);
}
