//! The scheduler attaches, detaches, fails, and CPUs come and go meanwhile.

use crate::{
    attached::{Attached, STATE},
    cgroup::Cgroup,
};
use nearside_lab::{await_that, read, write};
use std::{thread, time::Duration};

#[test]
fn a_killed_loader_leaves_the_stock_scheduler_and_every_task_behind() {
    let group = Cgroup::new("killed");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "2", 2);
    let burner = group.burn("--threads 12 --ms 3000");
    scheduler.child.kill().unwrap();
    drop(scheduler);
    assert_eq!(read(STATE), "disabled");
    assert!(burner.end().total_us() > 0);
}

#[test]
fn a_second_scheduler_is_refused_by_name() {
    let scheduler = Attached::start("").unwrap();
    let refusal = Attached::start("").err().expect("a second one");
    assert!(
        refusal.starts_with("error: another sched_ext scheduler is attached: nearside"),
        "{refusal}"
    );
    scheduler.detach();
}

#[test]
fn it_attaches_and_detaches_twenty_times_under_load() {
    let group = Cgroup::new("often");
    let burner = group.burn("--threads 10 --ms 600000");
    for _ in 0..20 {
        Attached::start("").unwrap().detach();
    }
    burner.kill();
}

#[test]
fn cpus_go_and_come_while_it_runs() {
    let group = Cgroup::new("plug");
    let mut scheduler = Attached::start("").unwrap();
    scheduler.domain(&group, "1", 1);
    let burner = group.burn("--threads 4 --ms 600000");
    for state in ["0", "1"] {
        for cpu in [2, 3] {
            write(&format!("/sys/devices/system/cpu/cpu{cpu}/online"), state);
            assert_eq!(scheduler.ask("exited"), "no");
        }
    }
    burner.kill();
    // Home has CPUs again, and the domain finds them.
    scheduler.burn_until(&group, "--threads 4 --ms 4000", |burnt, _| {
        burnt.by_cpu_us[2] > 0 && burnt.by_cpu_us[3] > 0
    });
    scheduler.detach();
}

/// A CPU's last act is to wake the task that takes it down, when it can send itself no interrupt
/// any more. A kick from there stays pending, and detaching would wait for it forever.
#[test]
fn a_busy_machine_lets_its_cpus_go() {
    let group = Cgroup::new("busy");
    let scheduler = Attached::start("").unwrap();
    let burner = group.burn("--threads 16 --ms 600000");
    for cpu in [1, 2, 3, 4, 5, 6, 7] {
        for state in ["0", "1"] {
            write(&format!("/sys/devices/system/cpu/cpu{cpu}/online"), state);
        }
    }
    burner.kill();
    scheduler.detach();
}

#[test]
fn a_scheduler_that_stalls_is_ejected_and_says_so() {
    let group = Cgroup::new("stall");
    // The time until it stalls begins before it is attached: on a slow host it may be ejected by
    // then.
    let start = || match Attached::start("--stall-after-ms 5000 --watchdog-ms 10000") {
        Ok(scheduler) => Some(scheduler),
        Err(error) => {
            assert!(
                error.contains("the kernel ended the scheduler") && error.contains("stall"),
                "{error}"
            );
            await_that("the stock scheduler is back", || read(STATE) == "disabled");
            None
        }
    };
    let mut scheduler =
        (0..10).find_map(|_| start()).expect("one that is attached before it stalls");
    let burner = group.burn("--threads 12 --ms 60000");
    let mut exit = scheduler.ask("exited");
    while exit == "no" {
        thread::sleep(Duration::from_millis(100));
        exit = scheduler.ask("exited");
    }
    assert!(exit.contains("stall"), "{exit}");
    assert!(burner.end().total_us() > 0);
    drop(scheduler);
    Attached::start("").unwrap().detach();
}
