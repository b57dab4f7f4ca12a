//! CPU time by weights, caps and nice.

use crate::{
    attached::Attached,
    cgroup::{Burner, Cgroup},
};
use std::{thread, time::Duration};

#[test]
fn shares_follow_weights_and_caps_hold() {
    let (light, heavy) = (Cgroup::new("light"), Cgroup::new("heavy"));
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&light, "0-3", 0);
    scheduler.domain(&heavy, "0-3", 2);
    heavy.set("cpu.weight", "300");
    // The light one has three times the threads.
    let (a, b) = (light.burn("--threads 24 --ms 600000"), heavy.burn("--threads 8 --ms 600000"));
    scheduler.used_until(&[&light, &heavy], Duration::from_secs(5), |used| {
        used[1] > 2.0 * used[0] && used[0] > 0.15 * used[1]
    });
    a.kill();
    b.kill();
    light.set("cpu.max", "50000 100000");
    let burner = light.burn("--threads 2 --ms 600000");
    // Half a CPU, out of the two that the threads could have had.
    scheduler.used_until(&[&light], Duration::from_secs(4), |used| (0.3..=0.7).contains(&used[0]));
    light.set("cpu.max", "max");
    scheduler.used_until(&[&light], Duration::from_secs(2), |used| used[0] > 1.0);
    burner.kill();
    scheduler.detach();
}

/// A cap and a weight hold for the whole subtree, also if the group has no tasks of its own.
#[test]
fn shares_follow_weights_and_caps_of_the_groups_above() {
    let (small, large) = (Cgroup::new("small"), Cgroup::new("large"));
    large.set("cpu.weight", "300");
    let (inner, outer) = (small.below("inner"), large.below("outer"));
    inner.set("cpu.weight", "1000");
    let other = small.below("other");
    let mut scheduler = Attached::start("").unwrap();
    for group in [&inner, &other, &outer] {
        scheduler.domain(group, "0-3", 0);
    }
    let burners = [&inner, &other, &outer].map(|group| group.burn("--threads 8 --ms 600000"));
    scheduler.used_until(&[&inner, &other, &outer], Duration::from_secs(5), |used| {
        let small_used = used[0] + used[1];
        used[2] > 2.0 * small_used && small_used > 0.15 * used[2] && used[0] > 4.0 * used[1]
    });
    // Both together, whatever their weights.
    small.set("cpu.max", "100000 100000");
    scheduler.used_until(&[&inner, &other], Duration::from_secs(4), |used| {
        (0.6..=1.3).contains(&(used[0] + used[1]))
    });
    burners.into_iter().for_each(Burner::kill);
    scheduler.detach();
}

/// A queue holds tasks that only one CPU of the node may run, more than a CPU samples, and one that
/// the other CPU may run.
#[test]
fn tasks_bound_to_one_cpu_do_not_block_its_neighbour() {
    let (bound, full, free) = (Cgroup::new("bound"), Cgroup::new("full"), Cgroup::new("free"));
    let mut scheduler = Attached::start("").unwrap();
    for group in [&bound, &full, &free] {
        scheduler.domain(group, "1", 1);
    }
    let burners = [
        bound.burn("--threads 12 --ms 600000 --cpus 2"),
        full.burn("--threads 7 --ms 600000 --cpus 0,1,3,4,5,6,7"),
    ];
    let late = free.burn("--threads 1 --ms 600000");
    scheduler.used_until(&[&free], Duration::from_secs(4), |used| used[0] > 0.2);
    late.kill();
    burners.into_iter().for_each(Burner::kill);
    scheduler.detach();
}

/// A group that may use one CPU only never gets its share, but does not keep later tasks from that
/// CPU.
#[test]
fn a_group_bound_to_one_cpu_is_owed_a_bounded_time() {
    let (first, others, late) = (Cgroup::new("first"), Cgroup::new("others"), Cgroup::new("late"));
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&late, "1", 1);
    let burners = [
        first.burn("--threads 4 --ms 600000 --cpus 2"),
        others.burn("--threads 14 --ms 600000 --cpus 0,1,3,4,5,6,7"),
    ];
    thread::sleep(Duration::from_secs(30));
    let burner = late.burn("--threads 1 --ms 600000 --cpus 2");
    // Half of the CPU, once it has caught up with the first; before, 0.02 of it.
    scheduler.used_until(&[&late], Duration::from_secs(4), |used| used[0] > 0.08);
    burner.kill();
    burners.into_iter().for_each(Burner::kill);
    scheduler.detach();
}

/// Within a group, a task of nice 19 gets little beside one of nice 0.
#[test]
fn nice_counts_among_the_tasks_of_a_group() {
    let group = Cgroup::new("polite");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    // It runs before the other starts, and still after that has ended.
    let usual = group.burn("--threads 1 --ms 100000000 --cpus 2");
    let polite = || group.burn_nicely(19, "--threads 1 --ms 6000 --cpus 2").end().total_us();
    // Less than a fifth of these 6 s, unless the host pauses while it runs.
    let has_little = (0..5).any(|_| (1..1_200_000).contains(&polite()));
    usual.kill();
    assert!(has_little, "{}", scheduler.statistics());
    scheduler.detach();
}
