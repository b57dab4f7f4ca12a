//! On a host that systemd runs, it owns the cgroup tree: domains are its scopes, and changes go
//! through it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "systemd/replicator.rs"]
mod replicator;

use nearside_lab::{
    Domain, Look, MIB, assert_refused, assert_the_kernel_covers_all_claims, available_bytes,
    await_that, daemon::get, domains, end, json, nearside, parallel_starts, read, run, status,
    stderr, stdout, words, write,
};
use nearside_linux::{Host, Paths};
use nearside_policy::{
    Action, Affinity, Home, MemoryPolicy, Observation, Origin, Reason, Step, Transaction,
};
use nearside_topology::{NodeId, NodeSet};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Instant,
};

const GROUP: &str = "/sys/fs/cgroup/nearside.slice/nearside-web.scope";

/// A program that calls systemd. Its default time limit of 25 s is too short if the emulator stands
/// still.
fn to_ask(program: &str) -> Command {
    let mut command = Command::new(program);
    // sd_bus_set_method_call_timeout(3)
    command.env("SYSTEMD_BUS_TIMEOUT", "300");
    command
}

fn property(name: &str) -> String {
    let unit = "nearside-web.scope";
    let output =
        to_ask("systemctl").args(["show", "--value", "--property", name, unit]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/proc/1/comm"), "systemd");
}

#[test]
fn a_domain_is_a_scope_with_its_limits_and_its_home() {
    let flags = "--quiet --name web --cpus 2 --memory 64M --policy strict --nodes 2 \
                 --cpu-limit 1.5 --memory-limit 96M";
    let domain = Domain::start(flags, "--mib 32 --threads 2");
    assert_eq!(property("ActiveState"), "active");
    assert_eq!(property("Slice"), "nearside.slice");
    assert_eq!(property("AllowedCPUs"), "4-5");
    assert_eq!(property("AllowedMemoryNodes"), "2");
    assert_eq!(read(&format!("{GROUP}/cpu.max")), "150000 100000");
    assert_eq!(read(&format!("{GROUP}/memory.max")), (96 * MIB).to_string());
    assert_eq!(read(&format!("{GROUP}/cpuset.mems")), "2");
    assert_eq!(domain.filled_mib(), BTreeMap::from([(2, 32)]));
    assert_eq!(domains(), ["web"]);

    // systemd knows the settings, so they survive when it writes everything anew.
    assert!(to_ask("systemctl").arg("daemon-reload").status().unwrap().success());
    assert_eq!(read(&format!("{GROUP}/cpuset.mems")), "2");
    domain.end();
    assert_eq!(domains(), [""; 0]);
}

#[test]
fn a_home_is_changed_through_systemd() {
    let domain = Domain::start(
        "--quiet --name web --cpus 2 --memory 64M --policy strict --nodes 1",
        "--mib 32",
    );
    let output = run(words("set web --nodes 3 --move-memory"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(domain.filled_mib(), BTreeMap::from([(3, 32)]));
    assert_eq!(property("AllowedMemoryNodes"), "3");
    assert_eq!(property("AllowedCPUs"), "6-7");
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "6-7");
    domain.end();
}

#[test]
fn nearsides_own_binding_is_lifted_and_restored_through_systemd() {
    for policy in ["preferred", "strict"] {
        let flags = format!("--quiet --name web --cpus 2 --memory 64M --policy {policy} --nodes 1");
        let domain = Domain::start(&flags, "--mib 8");
        let bound_to = || (property("AllowedCPUs"), status(domain.process(), "Cpus_allowed_list"));
        let both = |allowed: &str, in_force: &str| (allowed.to_owned(), in_force.to_owned());
        assert_eq!(bound_to(), both("2-3", "2-3"));
        let mut host = Host::open(Paths::default()).unwrap();
        assert!(host.begin().unwrap().unbind("web").unwrap());
        assert_eq!(bound_to(), both("", "0-7"), "{policy}");
        // The binding does not return when systemd writes everything anew.
        assert!(to_ask("systemctl").arg("daemon-reload").status().unwrap().success());
        assert_eq!(bound_to(), both("", "0-7"), "{policy}");
        assert!(host.begin().unwrap().bind_to_home("web").unwrap());
        assert_eq!(bound_to(), both("2-3", "2-3"), "{policy}");
        domain.end();
    }
}

#[test]
fn foreign_units_are_bound_through_systemd_too() {
    let scope = "other-1.scope";
    let command = ["--scope", "--unit", scope, "sleep", "infinity"];
    let mut other = to_ask("systemd-run").arg("--quiet").args(command).spawn().unwrap();
    let path = format!("/system.slice/{scope}");
    await_that("the scope runs", || {
        std::fs::read_to_string(format!("/sys/fs/cgroup{path}/cgroup.procs"))
            .is_ok_and(|list| !list.is_empty())
    });
    let mut host = Host::open(Paths::default()).unwrap();
    let home = Home {
        nodes: NodeSet::from([NodeId(2)]),
        origin: Origin::Auto,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::Local,
    };
    let action = Action::SetHome { part: path.as_str().into(), home };
    let steps = vec![Step { action, reason: Reason::Placed }];
    let mut session = host.begin().unwrap();
    session.found(&path, "system.slice/*");
    session.apply(&Transaction::new(steps, &Observation::default())).unwrap();
    drop(session);
    let process = read(&format!("/sys/fs/cgroup{path}/cgroup.procs")).parse().unwrap();
    assert!(host.begin().unwrap().bind_to_home(&path).unwrap());
    assert_eq!(status(process, "Cpus_allowed_list"), "4-5");
    assert_eq!(domains(), [path.as_str()]);
    assert!(host.begin().unwrap().unbind(&path).unwrap());
    assert_eq!(status(process, "Cpus_allowed_list"), "0-7");
    other.kill().unwrap();
    other.wait().unwrap();
    await_that("the scope has ended", || domains().is_empty());
}

#[test]
fn huge_pages_are_seen_although_systemd_gives_no_controller_for_them() {
    let pool = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    write(pool, "20");
    let flags = "--quiet --name web --memory 32M --page-size 2M --policy strict --nodes 1";
    let domain = Domain::start(flags, "--mib 32 --kind huge");
    let own = json("show web")["resident_bytes"]["1"].as_u64();
    assert_eq!(own, Some(32 * MIB));
    domain.end();
    write(pool, "0");
}

#[test]
fn a_command_that_is_not_found_leaves_no_scope() {
    assert_eq!(run(words("run --name web --memory 8M -- /nonexistent")).status.code(), Some(127));
    assert!(!Path::new(GROUP).exists());
    // This one is found, so its scope is there when it turns out that it cannot be executed.
    std::fs::write("/tmp/lost", "#!/no/such/shell\n").unwrap();
    assert!(Command::new("chmod").args(["755", "/tmp/lost"]).status().unwrap().success());
    assert_eq!(
        run(words("run --quiet --name web --memory 8M -- /tmp/lost")).status.code(),
        Some(127)
    );
    assert_eq!(domains(), [""; 0]);
}

#[test]
fn a_slices_limits_are_reported_and_not_taken_for_done() {
    let slice = |cpus: &str| {
        let set = ["set-property", "--runtime", "nearside.slice", &format!("AllowedCPUs={cpus}")]
            .map(str::to_owned);
        assert!(to_ask("systemctl").args(set).status().unwrap().success());
    };
    let shown = "grep Cpus_allowed_list /proc/self/status";
    let on_node_2 =
        &format!("run --name web --cpus 2 --memory 8M --nodes 2 --affinity hard -- {shown}");
    // An empty slice does not exist yet, and its limits are unknown.
    assert!(to_ask("systemctl").args(["stop", "nearside.slice"]).status().unwrap().success());
    slice("0-4");
    let surprised = run(words(on_node_2));
    assert_eq!(surprised.status.code(), Some(125));
    let said = stderr(&surprised);
    assert!(said.contains("cpuset.cpus 4-5") && said.contains("allow 4"), "{said}");
    // The rest of its home serves; an empty rest is reported.
    let _resident = Domain::start("--quiet --name resident --memory 8M --nodes 0", "--mib 1");
    let narrowed = run(words(on_node_2));
    slice("0-3");
    let refused = run(words(on_node_2));
    slice("0-7");
    let whole = run(words(on_node_2));
    assert_eq!(stdout(&narrowed), "Cpus_allowed_list:\t4\n", "{}", stderr(&narrowed));
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("nearside.slice does not allow"), "{}", stderr(&refused));
    assert_eq!(domains(), ["resident"]);
    assert_eq!(stdout(&whole), "Cpus_allowed_list:\t4-5\n", "{}", stderr(&whole));
}

#[test]
fn the_command_begins_at_home() {
    // systemd answers before it has written its cgroups; the command must not be faster.
    for _ in 0..40 {
        let files = "cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && \
                     cat cpuset.cpus.effective cpuset.mems.effective";
        let flags =
            "run -q --name web --cpus 2 --memory 8M --policy strict --nodes 3 -- sh -c".split(' ');
        let output = run(flags.chain([files]));
        assert_eq!(stdout(&output), "6-7\n3\n", "{}", stderr(&output));
    }
}

/// `nearside ARGUMENTS` as a service that may set no memory policy, as in container runtimes.
fn filtered(arguments: &str) -> Output {
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    let filter =
        "--wait --pipe --quiet -p SystemCallFilter=~set_mempolicy -p SystemCallErrorNumber=EPERM";
    to_ask("systemd-run").args(words(filter)).arg(binary).args(words(arguments)).output().unwrap()
}

#[test]
fn a_forbidden_policy_is_not_taken_for_an_unknown_one() {
    for policy in ["", "--policy strict", "--policy local"] {
        let refused = filtered(&format!("run --name web --memory 8M --nodes 1 {policy} -- true"));
        assert_eq!(refused.status.code(), Some(125), "{policy}: {}", stderr(&refused));
        let said = stderr(&refused);
        assert!(said.contains("seccomp") && said.contains("CAP_SYS_NICE"), "{policy}: {said}");
    }
    let without = filtered("run -q --name web --memory 8M --nodes 1 --policy restrictive -- true");
    assert!(without.status.success(), "{}", stderr(&without));
    assert!(stdout(&filtered("doctor")).contains("seccomp"));
}

/// The unit of the guide.
#[test]
fn a_service_is_placed_and_stopped_with_all_that_is_in_its_domain() {
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    let unit = format!(
        "[Service]\nType=exec\n\
         ExecStart={binary} run --name web --memory 8M --policy strict --nodes 1 -- \
         /bin/sh -c 'sleep 1000 & exec sleep 1000'\n\
         ExecStopPost=-/usr/bin/systemctl stop nearside-web.scope\n"
    );
    std::fs::write("/run/systemd/system/placed.service", unit).unwrap();
    let systemctl = |words: &[&str]| to_ask("systemctl").args(words).output().unwrap();
    assert!(systemctl(&["daemon-reload"]).status.success());
    assert!(systemctl(&["start", "placed.service"]).status.success());
    // With "exec" the unit has started when nearside runs, which has yet to execute its command.
    let main = || {
        stdout(&systemctl(&["show", "--value", "--property", "MainPID", "placed.service"]))
            .trim()
            .to_owned()
    };
    while std::fs::read_to_string(format!("/proc/{}/comm", main()))
        .is_ok_and(|name| name.trim() != "sleep")
    {
        std::thread::yield_now();
    }
    assert_eq!(read(&format!("/proc/{}/cgroup", main())), "0::/nearside.slice/nearside-web.scope");
    assert_eq!(domains(), ["web"]);
    assert!(systemctl(&["stop", "placed.service"]).status.success());
    assert_eq!(domains(), [""; 0]);
    assert!(!Path::new(GROUP).exists());
}

#[test]
fn two_domains_of_one_name_are_refused_here_too() {
    let domain = Domain::start("--quiet --name web --memory 8M", "--mib 1");
    let second = run(words("run --name web --memory 8M -- true"));
    assert_eq!(second.status.code(), Some(125));
    assert!(stderr(&second).contains("web is running"), "{}", stderr(&second));
    domain.end();
    let third = run(words("run --quiet --name web --memory 8M -- true"));
    assert!(third.status.success(), "{}", stderr(&third));
}

#[test]
fn of_ten_parallel_starts_the_four_that_fit_run() {
    // Four fit although the node loses a twentieth meanwhile, and no fifth fits although it gains
    // as much.
    let free = available_bytes()[2];
    let bytes = (free - free / 20) / 4 / 4096 * 4096;
    let command = ["sh", "-c", "echo ready; read line"];
    let (running, refused) = parallel_starts(10, "--nodes 2", bytes, &command);
    let look = Look::take();
    assert_eq!((running.len(), refused.len()), (4, 6), "{bytes} bytes each: {look:?}");
    look.assert_nothing_is_promised_twice();
    assert_the_kernel_covers_all_claims(running.iter().map(|child| (child.id(), bytes)));
    assert_refused(refused);
    end(running);
    Look::take().assert_nothing_is_promised();
}

#[test]
fn a_start_that_is_killed_at_any_moment_leaves_no_claim() {
    let start = || {
        let mut command = nearside();
        let command =
            command.args(words("run -q --name web --memory 64M --policy strict -- sleep 1000"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let kill = |mut doomed: Child| {
        doomed.kill().unwrap();
        let output = doomed.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "it was to be killed: {}", stderr(&output));
        Look::take().assert_nothing_is_promised();
    };
    let begin = Instant::now();
    let mut doomed = start();
    let runs = format!("/proc/{}/comm", doomed.id());
    await_that("the command runs, or has ended", || {
        read(&runs) == "sleep" || doomed.try_wait().unwrap().is_some()
    });
    if doomed.try_wait().unwrap().is_some() {
        panic!("it did not start: {}", stderr(&doomed.wait_with_output().unwrap()));
    }
    let whole = begin.elapsed();
    kill(doomed);
    for step in 1..5 {
        let doomed = start();
        thread::sleep(whole * step / 5);
        kill(doomed);
    }
    // The next finds neither its name nor its memory taken.
    let next = run(words("run -q --name web --memory 64M --policy strict -- true"));
    assert!(next.status.success(), "{}", stderr(&next));
}

/// The daemon as run by the shipped unit: the same file, with the binary under test in its place.
/// Dropping this ends it.
struct Unit;

impl Unit {
    fn start() -> Self {
        Self::start_with("")
    }

    fn start_with(lines: &str) -> Self {
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/nearside.service");
        let folder = Path::new("/run/systemd/system/nearside.service.d");
        fs::create_dir_all(folder).unwrap();
        fs::copy(unit, "/run/systemd/system/nearside.service").unwrap();
        // Not the watchdog's: on a busy host the emulator stands still for seconds.
        fs::write(folder.join("test.conf"), "[Service]\nRestartSec=100ms\n").unwrap();
        configure(lines);
        fs::write("/usr/bin/nearside", "").unwrap();
        let binary = nearside();
        let bind = Command::new("mount")
            .arg("--bind")
            .arg(binary.get_program())
            .arg("/usr/bin/nearside")
            .status();
        assert!(bind.unwrap().success());
        systemctl("daemon-reload");
        let unit = Self;
        systemctl("start nearside.service");
        unit
    }

    fn property(name: &str) -> String {
        let arguments = ["show", "--value", "--property", name, "nearside.service"];
        let output = to_ask("systemctl").args(arguments).output().unwrap();
        stdout(&output).trim().to_owned()
    }

    /// The output of `systemctl status`, with the end of the journal.
    fn status() -> String {
        stdout(
            &to_ask("systemctl")
                .args(words("status --full --no-pager nearside.service"))
                .output()
                .unwrap(),
        )
    }

    fn process() -> u32 {
        Self::property("MainPID").parse().unwrap()
    }
}

/// Gives the daemon short intervals and these lines of configuration.
fn configure(lines: &str) {
    fs::create_dir_all("/etc/nearside").unwrap();
    write("/etc/nearside/daemon.toml", &format!("interval = \"200ms\"\n{lines}\n"));
}

/// Returns before the daemon has read its configuration.
fn reload() {
    systemctl("reload nearside.service");
}

impl Drop for Unit {
    fn drop(&mut self) {
        systemctl("stop nearside.service");
        assert!(Command::new("umount").arg("/usr/bin/nearside").status().unwrap().success());
    }
}

fn systemctl(arguments: &str) {
    let output = to_ask("systemctl").args(words(arguments)).output().unwrap();
    let journal = || {
        let output = Command::new("journalctl")
            .args(["--no-pager", "-n", "30", "-u", "nearside.service"])
            .output();
        output.map(|output| stdout(&output)).unwrap_or_default()
    };
    assert!(output.status.success(), "systemctl {arguments}: {}{}", stderr(&output), journal());
}

#[test]
fn the_unit_that_is_shipped_gives_the_daemon_all_it_needs() {
    let scheduler = || read("/sys/kernel/sched_ext/state");
    let domain = Domain::start(
        "--quiet --name web --cpus 2 --memory 64M --policy strict --nodes 1",
        "--mib 32",
    );
    let unit = Unit::start();
    await_that("the scheduler is attached", || scheduler() == "enabled");
    await_that("the stand-in is lifted", || property("AllowedCPUs").is_empty());
    // Its audit log has only changes through the daemon, and a command acts without a daemon that
    // is not ready.
    get("/health");
    let status = read(&format!("/proc/{}/status", Unit::process()));
    // Those that copies of text need (linux/capability.h) are the replicator's alone.
    for (name, number) in [("CAP_SYS_ADMIN", 21), ("CAP_LEASE", 28)] {
        for set in ["CapBnd:\t", "CapPrm:\t"] {
            let held = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
            let held = u64::from_str_radix(held, 16).unwrap();
            assert_eq!(held >> number & 1, 0, "{name} in {set}{held:x}");
        }
    }
    let changed = run(words("set web --nodes 3"));
    assert!(changed.status.success(), "{}", stderr(&changed));
    await_that("memory has come home", || domain.filled_mib() == BTreeMap::from([(3, 32)]));
    await_that("it may have none elsewhere", || property("AllowedMemoryNodes") == "3");
    assert!(read("/var/log/nearside/audit.log").contains("\"domain\":\"web\""));

    // It is started again when it dies and when it hangs; the domain stays unchanged.
    for signal in ["KILL", "STOP"] {
        let process = Unit::process();
        systemctl(&format!("kill --signal={signal} --kill-who=main nearside.service"));
        await_that("another one runs", || {
            !["0", &process.to_string()].contains(&Unit::property("MainPID").as_str())
        });
        await_that("it is ready", || Unit::property("ActiveState") == "active");
        await_that("it knows the domain", || json("why web")["status"].is_object());
        await_that("it has attached the scheduler", || scheduler() == "enabled");
    }
    // A configuration with an error changes nothing, and `systemctl status` shows the reason.
    let process = Unit::process();
    write("/etc/nearside/daemon.toml", "interval = \"300ms\"\nscheduler = \"of\"\n");
    reload();
    await_that("it says why", || Unit::status().contains("line 2 (`scheduler = \"of\"`)"));
    assert!(Unit::status().contains("stays in force"), "{}", Unit::status());
    await_that("it has read it", || Unit::property("ActiveState") == "active");
    assert_eq!(scheduler(), "enabled");
    write("/etc/nearside/daemon.toml", "interval = \"300ms\"\nscheduler = \"off\"\n");
    reload();
    await_that("the scheduler is detached, as it is to be now", || scheduler() == "disabled");
    assert_eq!(Unit::process(), process);
    drop(unit);
    assert_eq!(property("AllowedCPUs"), "6-7");
    assert_eq!(domain.filled_mib(), BTreeMap::from([(3, 32)]));
    domain.end();
}

/// A foreign unit with one process; it ends when this is dropped.
struct Other {
    unit: &'static str,
}

impl Other {
    /// A service of a unit file, which may be started anew.
    fn service(unit: &'static str, lines: &str) -> Self {
        let text = format!("[Service]\nExecStart=/bin/sh -c 'while :; do :; done'\n{lines}\n");
        fs::write(format!("/run/systemd/system/{unit}"), text).unwrap();
        systemctl("daemon-reload");
        systemctl(&format!("start {unit}"));
        Self { unit }
    }

    fn scope(unit: &'static str) -> Self {
        let command = ["--scope", "--unit", unit, "sh", "-c", "while :; do :; done"];
        drop(to_ask("systemd-run").arg("--quiet").args(command).spawn().unwrap());
        let other = Self { unit };
        await_that("the scope runs", || !other.processes().is_empty());
        other
    }

    fn path(&self) -> String {
        format!("/system.slice/{}", self.unit)
    }

    fn processes(&self) -> Vec<u32> {
        let list = fs::read_to_string(format!("/sys/fs/cgroup{}/cgroup.procs", self.path()))
            .unwrap_or_default();
        list.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// The unit's settings in systemd, and its place.
    fn bound(&self) -> (String, String) {
        let arguments = ["show", "--value", "--property", "AllowedCPUs", self.unit];
        let told = to_ask("systemctl").args(arguments).output().unwrap();
        (stdout(&told).trim().to_owned(), status(self.processes()[0], "Cpus_allowed_list"))
    }

    fn home(&self) -> serde_json::Value {
        json(&format!("show {} --interval 0", self.path()))["home"].clone()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        systemctl(&format!("stop {}", self.unit));
    }
}

#[test]
fn no_binding_by_nearside_outlives_it_on_foreign_units() {
    let scheduler = || read("/sys/kernel/sched_ext/state");
    let unbound = || (String::new(), "0-7".to_owned());
    let theirs = || ("0 2 4 6".to_owned(), "0,2,4,6".to_owned());
    let service = Other::service("found-a.service", "");
    let kept = Other::service("found-b.service", "AllowedCPUs=0 2 4 6");
    let scope = Other::scope("found-c.scope");
    let all = [&service, &kept, &scope];
    let found = "found = [\"system.slice/found-*\"]";
    let unit = Unit::start_with(found);
    await_that("all have homes", || all.iter().all(|other| other.home().is_object()));
    await_that("the scheduler is attached", || scheduler() == "enabled");
    assert_eq!([service.bound(), kept.bound(), scope.bound()], [unbound(), theirs(), unbound()]);

    // Without the scheduler, only bindings that end with their unit are made.
    configure(&format!("{found}\nscheduler = \"off\""));
    reload();
    await_that("the scheduler is detached", || scheduler() == "disabled");
    // (Constant requests would keep systemd from answering the daemon.)
    await_that("its home's CPUs stand in at the scope", || {
        status(scope.processes()[0], "Cpus_allowed_list") != "0-7"
    });
    assert_eq!([service.bound(), kept.bound()], [unbound(), theirs()]);
    // The daemon reports an interval after its end.
    await_that("the log has the reason", || {
        let why = json(&format!("why {}", service.path()))["status"]["text"].to_string();
        why.contains("the unit restarts")
    });
    assert_eq!(json("list")["domains"].as_array().unwrap().len(), 3);

    systemctl("stop nearside.service");
    assert_eq!([service.bound(), kept.bound(), scope.bound()], [unbound(), theirs(), unbound()]);
    systemctl("restart found-a.service found-b.service");
    assert_eq!([service.bound(), kept.bound()], [unbound(), theirs()]);
    assert!(!Path::new("/run/systemd/system.control/found-a.service.d").exists());
    assert!(!Path::new("/run/systemd/system.control/found-b.service.d").exists());

    // The next daemon takes none of it for another program's setting.
    configure(found);
    systemctl("start nearside.service");
    await_that("it has a home again", || service.home()["origin"] == "auto");
    // Without its pattern, the unit is no domain any more.
    configure("");
    reload();
    await_that("they are forgotten", || domains().is_empty());
    assert_eq!(kept.bound(), theirs());
    drop(unit);
}

#[test]
fn the_home_of_a_foreign_unit_is_set_and_given_back() {
    let service = Other::service("found-d.service", "");
    let kept = Other::service("found-e.service", "AllowedCPUs=2-3");
    let set = |other: &Other, flags: &str| run(words(&format!("set {} {flags}", other.path())));
    let alone = set(&service, "--nodes 1");
    assert_eq!(alone.status.code(), Some(1));
    assert!(stderr(&alone).contains("no daemon"), "{}", stderr(&alone));
    let unit = Unit::start_with("found = [\"system.slice/found-*.service\"]");
    await_that("both have homes", || {
        [&service, &kept].iter().all(|other| other.home().is_object())
    });
    // A command reports that there is no daemon if that is not ready.
    let set = |other: &Other, flags: &str| {
        get("/health");
        set(other, flags)
    };
    let done = set(&service, "--nodes 1");
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(
        (&service.home()["nodes"], &service.home()["origin"]),
        (&serde_json::json!([1]), &"explicit".into())
    );
    let done = set(&service, "--auto");
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(service.home()["origin"], "auto");

    // It is bound to node 1, so that is its home, and no other is possible.
    assert_eq!(
        (&kept.home()["nodes"], &kept.home()["origin"]),
        (&serde_json::json!([1]), &"adopted".into())
    );
    for (flags, code, why) in [
        ("--nodes 2", 2, "the owner of its cgroup binds"),
        ("--auto", 1, "the owner of its cgroup binds"),
    ] {
        let refused = set(&kept, flags);
        assert_eq!(refused.status.code(), Some(code), "{flags}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(why), "{flags}: {}", stderr(&refused));
    }
    drop(unit);
}
