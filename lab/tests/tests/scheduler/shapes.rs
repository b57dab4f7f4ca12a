//! Machines of other shapes; `lab/test` has a guest for each.

use crate::{attached::Attached, cgroup::Cgroup};
use nearside_lab::read;

/// Two nodes of two cores of two threads.
#[test]
fn smt_whole_idle_cores_come_first() {
    assert_eq!(read("/sys/devices/system/cpu/cpu4/topology/thread_siblings_list"), "4-5");
    let group = Cgroup::new("pair");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    // Threads that never wait stay where they are; these wake often.
    scheduler.burn_until(&group, "--threads 2 --ms 5000 --nap-us 20000,2000", |burnt, _| {
        let cores =
            [4, 6].map(|first| (burnt.by_cpu_us[first] + burnt.by_cpu_us[first + 1]) as f64);
        cores[0].min(cores[1]) / burnt.total_us() as f64 > 0.3
    });
    // More of them than cores take the second threads, and no other node's CPUs.
    scheduler.burn_until(&group, "--threads 4 --ms 3000 --nap-us 20000,2000", |burnt, _| {
        burnt.by_cpu_us[4..].iter().all(|&used| used > 0) && burnt.share(1) > 0.8
    });
    scheduler.detach();
}

/// A node of two caches, of two CPUs each, and one of one.
#[test]
fn caches_of_a_node_have_queues_of_their_own_and_are_one_home() {
    let cache =
        |cpu: u32| read(&format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list"));
    assert_eq!([0, 2, 4].map(cache), ["0-1", "2-3", "4-5"]);
    let group = Cgroup::new("wide");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "0", 0);
    scheduler.burn_until(&group, "--threads 4 --ms 3000", |burnt, _| {
        burnt.by_cpu_us[..4].iter().all(|&used| used > 0) && burnt.share(0) > 0.8
    });
    // With more threads than it has CPUs, the other node's are used, too, and all threads progress.
    scheduler.burn_until(&group, "--threads 8 --ms 3000", |burnt, _| {
        burnt.by_cpu_us.iter().all(|&used| used > 0)
    });
    scheduler.burn_until(&group, "--threads 4 --ms 1500 --cpus 1,2,5", |burnt, _| {
        [1, 2, 5].iter().all(|&cpu| burnt.by_cpu_us[cpu] > 0)
    });
    scheduler.detach();
}
