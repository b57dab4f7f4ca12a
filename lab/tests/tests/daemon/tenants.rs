//! Tenants that control their monitors, the names of their processes and groups, and what their
//! command lines say.

use nearside_lab::{
    Domain, MIB, Signal, await_that,
    daemon::{Daemon, get},
    json, run, send, words,
};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A QEMU with two cells that was stopped: its monitor takes connections and never answers. It runs
/// in a group with a name that is no text, below one that a pattern finds.
struct Tenant {
    qemu: Child,
    group: PathBuf,
}

/// With a name that lets Nearside ask the monitor.
fn socket(number: usize) -> String {
    format!("/tmp/nearside-tenant-{number}.qmp")
}

/// Waits until the daemon has asked each of these monitors in vain.
fn await_questions(daemon: &mut Daemon, tenants: &[Tenant]) {
    for number in 0..tenants.len() {
        let says = format!("{}: QEMU does not answer within 500 ms", socket(number));
        await_that("it has asked a monitor that never answers", || daemon.said().contains(&says));
    }
}

impl Tenant {
    fn start(number: usize) -> Self {
        let group = PathBuf::from(format!("/sys/fs/cgroup/tenants/t{number}"));
        let child = group.join(OsStr::from_bytes(b"\xff\\"));
        fs::create_dir_all(&child).unwrap();
        let socket = socket(number);
        // An earlier tenant's may be there.
        let _ = fs::remove_file(&socket);
        let line = format!(
            "qemu-system-x86_64 -accel tcg -machine q35 -nodefaults -display none -S -monitor none \
             -name )\n -smp 2 -m 64M -qmp unix:{socket},server=on,wait=off \
             -object memory-backend-ram,id=a,size=32M -numa node,cpus=0,memdev=a \
             -object memory-backend-ram,id=b,size=32M -numa node,cpus=1,memdev=b"
        );
        let mut arguments = line.split(' ');
        let mut command = Command::new(arguments.next().unwrap());
        let qemu = command.args(arguments).stdin(Stdio::null()).spawn().unwrap();
        // Its socket has a name before it listens. Only a monitor that has greeted does.
        await_that("the monitor listens", || {
            UnixStream::connect(&socket)
                .is_ok_and(|mut monitor| monitor.read(&mut [0]).is_ok_and(|bytes| bytes == 1))
        });
        send(qemu.id(), Signal::STOP);
        fs::write(child.join("cgroup.procs"), qemu.id().to_string()).unwrap();
        Self { qemu, group }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let child = self.group.join(OsStr::from_bytes(b"\xff\\"));
        await_that("its groups are empty", || {
            [&child, &self.group].iter().all(|it| !it.exists() || fs::remove_dir(it).is_ok())
        });
    }
}

const CONFIG: &str = "found = [\"tenants/*\"]\nscheduler = \"off\"";

fn intervals() -> u64 {
    let metrics = get("/metrics");
    let mut lines = metrics.as_str().unwrap().lines();
    let count = lines.find_map(|line| line.strip_prefix("nearside_intervals_total ")).unwrap();
    count.parse().unwrap()
}

#[test]
fn tenants_hide_nothing_hold_up_nobody_and_get_no_more_memory_promised() {
    let tenants: Vec<Tenant> = (0..4).map(Tenant::start).collect();
    let db = Domain::start("--quiet --name db --cpus 1 --memory 64M --nodes 1", "--mib 24");
    let mut daemon = Daemon::start(CONFIG);
    await_questions(&mut daemon, &tenants);
    let (before, moved) = (intervals(), run(words("set db --nodes 2")));
    assert!(moved.status.success());
    await_that("the daemon moves the memory of another domain", || {
        db.filled_mib() == [(2, 24)].into()
    });
    await_that("its intervals go on", || intervals() > before + 50);
    let all = json("list --all");
    for tenant in &tenants {
        let path = tenant.group.to_str().unwrap().strip_prefix("/sys/fs/cgroup").unwrap();
        let seen = [&all, &get("/domains")].map(|list| {
            let mut domains = list["domains"].as_array().unwrap().iter();
            let is_its = |it: &&Value| it["cgroup"].as_str().unwrap().starts_with(path);
            domains.find(is_its).unwrap_or_else(|| panic!("{list:#}"))["usage"]["processes"].clone()
        });
        assert_eq!(seen, [1, 1], "{path}");
    }
    // The claim of the domain.
    let stat = json("stat --interval 0");
    let nodes = stat["nodes"].as_array().unwrap().iter();
    let promised: u64 = nodes.map(|node| node["outstanding_bytes"].as_u64().unwrap()).sum();
    assert!(promised <= 64 * MIB, "{stat:#}");
    db.end();
    drop(tenants);
    daemon.stop();
}

#[test]
#[ignore = "a measurement: lab/test daemon -- --ignored --nocapture tenants"]
fn the_length_of_intervals_beside_monitors_that_never_answer() {
    let of_fifty = |beside: &str, tenants: &[Tenant]| {
        let mut daemon = Daemon::start(CONFIG);
        let (before, begin) = (intervals(), Instant::now());
        await_that("fifty intervals", || {
            std::thread::sleep(Duration::from_millis(100));
            intervals() >= before + 50
        });
        let took = begin.elapsed() / u32::try_from(intervals() - before).unwrap();
        // The first questions fall into the time that was measured.
        await_questions(&mut daemon, tenants);
        println!("{took:?} an interval of 100 ms {beside}");
        daemon.stop();
    };
    for _ in 0..3 {
        of_fifty("alone", &[]);
        let tenants: Vec<Tenant> = (0..4).map(Tenant::start).collect();
        of_fifty("beside four stopped monitors", &tenants);
        drop(tenants);
    }
}
