//! The places of tasks: at home, nearby, and never outside their hard affinity.

use crate::{
    attached::Attached,
    cgroup::{Burner, Burnt, Cgroup},
};
use nearside_lab::{await_that, read};
use std::{process::Command, time::Duration};

#[test]
fn a_domain_with_room_stays_at_home() {
    let group = Cgroup::new("room");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    scheduler.burn_until(&group, "--threads 2 --ms 4000", |burnt, used| {
        // The emulator stops CPUs at any time, for longer than a task may have to wait: then
        // another node takes it. The scheduler's own account agrees with the threads'.
        burnt.share(1) >= 0.9 && used.on(1) as f64 >= 0.95 * burnt.by_node_us[1] as f64
    });
    scheduler.detach();
}

/// A task that never waits is never queued, but must still learn its home.
#[test]
fn setting_a_domain_moves_its_running_tasks() {
    let mut scheduler = Attached::start("").unwrap();
    for home in 0..4 {
        let group = Cgroup::new("late");
        let burner = group.burn("--threads 1 --ms 100000000");
        scheduler.domain(&group, &home.to_string(), home);
        await_that("its task is at home", || scheduler.share_of(&group, home as usize) >= 0.7);
        burner.kill();
    }
    scheduler.detach();
}

/// Two vCPUs whose cells are at home on different nodes, in the cgroup of one virtual machine.
#[test]
fn threads_of_a_domain_prefer_nodes_of_their_own() {
    let group = Cgroup::new("cells");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "0", 0);
    let burner = group.burn("--threads 2 --ms 100000000");
    await_that("both are at home", || scheduler.share_of(&group, 0) >= 0.7);
    for (thread, node) in burner.workers().into_iter().zip([2, 3]) {
        assert_eq!(scheduler.ask(&format!("thread {thread} {node} {node}")), "ok");
    }
    let is_apart = |scheduler: &mut Attached| {
        [2, 3].map(|node| scheduler.share_of(&group, node)).iter().all(|share| *share >= 0.4)
    };
    await_that("each is on its own node", || is_apart(&mut scheduler));
    // The domain's home is not that of its threads.
    scheduler.domain(&group, "1", 1);
    await_that("each is still on its own node", || is_apart(&mut scheduler));
    for thread in burner.workers() {
        assert_eq!(scheduler.ask(&format!("thread {thread}")), "ok");
    }
    await_that("both are at the domain's home", || scheduler.share_of(&group, 1) >= 0.7);
    assert_eq!(
        scheduler.ask(&format!("thread {} 7 7", burner.workers()[0])),
        "error: node 7 does not exist"
    );
    burner.kill();
    scheduler.detach();
}

/// Two processes of different domains that wake each other by turns through two pipes.
#[test]
fn a_task_that_asks_another_domain_is_where_it_is_answered() {
    let (asks, answers) = (Cgroup::new("asks"), Cgroup::new("answers"));
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&asks, "0", 0);
    scheduler.domain(&answers, "3", 3);
    let folder = tempfile::tempdir().unwrap();
    let [there, back] = ["there", "back"].map(|name| {
        let path = folder.path().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path.into_os_string().into_string().unwrap()
    });
    let answering = answers.burn(&format!("--ms 0 --talk {there},{back},300"));
    let asking = asks.burn(&format!("--ms 0 --talk {back},{there},0 --ask"));
    await_that("it asks at the other one's home", || scheduler.share_of(&asks, 3) >= 0.8);
    await_that("which is where it was", || scheduler.share_of(&answers, 3) >= 0.8);
    scheduler.domain(&answers, "2", 2);
    await_that("both are at the new home", || {
        scheduler.share_of(&answers, 2) >= 0.8 && scheduler.share_of(&asks, 2) >= 0.8
    });
    // Another task of the same domain uses far more CPU time.
    let beside = asks.burn("--threads 1 --ms 100000000");
    await_that("a task that asks no one is at home", || scheduler.share_of(&asks, 0) >= 0.7);
    for burner in [beside, asking, answering] {
        burner.kill();
    }
    scheduler.detach();
}

#[test]
fn overflow_goes_to_the_nearest_nodes() {
    let group = Cgroup::new("spill");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    let near = |burnt: &Burnt| burnt.share(0) + burnt.share(1);
    scheduler.burn_until(&group, "--threads 4 --ms 4000", |burnt, _| {
        near(burnt) >= 0.95 && burnt.share(0) >= 0.3
    });
    scheduler.burn_until(&group, "--threads 6 --ms 4000", |burnt, _| {
        (0.55..0.85).contains(&near(burnt))
    });
    scheduler.detach();
}

#[test]
fn hard_affinity_is_never_broken() {
    let group = Cgroup::new("hard");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    // Only far CPUs; then home and far ones, too many threads for home; then one CPU.
    for (threads, cpus) in [(2, "4,5"), (6, "2,3,4,5"), (3, "7")] {
        let is_allowed = |cpu: usize| cpus.split(',').any(|name| name == cpu.to_string());
        scheduler.burn_until(
            &group,
            &format!("--threads {threads} --ms 1500 --cpus {cpus}"),
            |burnt, _| {
                let mut by_cpu = burnt.by_cpu_us.iter().enumerate();
                assert!(
                    by_cpu.clone().all(|(cpu, &used)| used == 0 || is_allowed(cpu)),
                    "{cpus}: {burnt:?}"
                );
                by_cpu.all(|(cpu, &used)| used > 0 || !is_allowed(cpu))
            },
        );
    }
    // The same by cpuset, changed while it runs.
    let burner = group.burn("--threads 4 --ms 100000000");
    group.set("cpuset.cpus", "6-7");
    await_that("all of it is where it may be now", || scheduler.share_of(&group, 3) >= 1.0);
    burner.kill();
    scheduler.detach();
}

#[test]
fn a_task_whose_cpu_runs_a_real_time_task_goes_elsewhere() {
    let group = Cgroup::new("beside");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    let burner = group.burn("--threads 2 --ms 600000");
    let urgent = ["-f", "50", "taskset", "-c", "2", "sh", "-c", "while :; do :; done"];
    let urgent = Burner::spawn(Command::new("chrt").args(urgent));
    // Before 6.19 this helps only the tasks that were not running just then.
    let kernel = read("/proc/sys/kernel/osrelease");
    let mut version = kernel.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let helps_all = (version.next(), version.next()) >= (Some(6), Some(19));
    scheduler.used_until(&[&group], Duration::from_secs(4), |used| used[0] > 1.5 || !helps_all);
    urgent.kill();
    burner.kill();
    scheduler.detach();
}
