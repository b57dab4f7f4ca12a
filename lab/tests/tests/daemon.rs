//! The daemon on four nodes of two CPUs: domains come home, the API answers, and nothing is lost
//! when it dies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{
    Domain, Signal, await_that,
    daemon::{AUDIT, CONFIG, Daemon, SOCKET, ask, ask_once, get},
    json, nearside, read, run, status, stderr, stdout, words,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

fn home(domain: &str) -> Value {
    get(&format!("/domains/{domain}"))["home"].clone()
}

#[test]
fn memory_comes_home_and_the_operators_choice_is_obeyed() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32",
    );
    // Its memory stays behind, and is brought home without anybody asking for that.
    let output = run(words("set db --nodes 3"));
    assert!(output.status.success(), "{}", stderr(&output));
    await_that("memory has come home", || domain.filled_mib() == BTreeMap::from([(3, 32)]));
    // Through the API, too.
    let (code, answer) = ask("PUT", "/domains/db/affinity", Some(&json!({"nodes": [2]}))).unwrap();
    assert_eq!(
        (code, &answer["nodes_before"], &answer["nodes"]),
        (200, &json!([3]), &json!([2])),
        "{answer}"
    );
    await_that("memory has come home", || domain.filled_mib() == BTreeMap::from([(2, 32)]));
    await_that("its CPUs are those of its home", || {
        status(domain.process(), "Cpus_allowed_list") == "4-5"
    });
    await_that("it is published", || {
        home("db")["origin"] == "explicit" && home("db")["nodes"] == json!([2])
    });
    assert_eq!(json("show db --interval 0")["home"]["nodes"], json!([2]));
    let (code, _) = ask("DELETE", "/domains/db/affinity", None).unwrap();
    assert_eq!(code, 200);
    await_that("the home is the loop's again", || home("db")["origin"] == "auto");
    domain.end();
    await_that("it is gone", || ask("GET", "/domains/db", None).unwrap().0 == 404);
    daemon.stop();
}

#[test]
fn strict_memory_comes_home_and_is_confined_there_again() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy strict --nodes 1",
        "--mib 32",
    );
    assert!(run(words("set db --nodes 3")).status.success());
    await_that("memory has come home", || domain.filled_mib() == BTreeMap::from([(3, 32)]));
    await_that("it may have none elsewhere", || {
        status(domain.process(), "Mems_allowed_list") == "3"
    });
    domain.end();
    daemon.stop();
}

/// Memory goes all ways at once, which takes some intervals of 20 s; nobody who wants something
/// waits for that.
#[test]
fn all_ways_are_used_at_once_and_the_end_comes_before_they_are_done() {
    let names = ["a", "b", "c", "d"];
    let flags = |i: usize| {
        format!("--quiet --name {} --cpus 1 --memory 48M --policy preferred --nodes {i}", names[i])
    };
    let domains: Vec<Domain> = (0..4).map(|i| Domain::start(&flags(i), "--mib 32")).collect();
    let to = |i: usize| (i as u32 + 1) % 4;
    for (i, name) in names.iter().enumerate() {
        let output = run(words(&format!("set {name} --nodes {} --no-daemon", to(i))));
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let mut daemon = Daemon::begin_every("20s", "", "scheduler = \"off\"\nrate = \"512K\"");
    let at_home = |i: usize| domains[i].filled_mib().get(&to(i)).copied().unwrap_or(0);
    await_that("memory goes all four ways", || (0..4).all(|i| at_home(i) > 0));
    assert!((0..4).all(|i| at_home(i) < 32), "one after the other: {}", daemon.said());
    // Somebody wants another home in the midst of that.
    let (code, answer) = ask("PUT", "/domains/a/affinity", Some(&json!({"nodes": [2]}))).unwrap();
    assert_eq!((code, &answer["nodes"]), (200, &json!([2])), "{answer}");
    assert!((1..4).any(|i| at_home(i) < 32), "the change waited for all pages");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0), "{}", daemon.said());
    assert!((1..4).any(|i| at_home(i) < 32), "the end waited for all pages");
    for domain in &domains {
        // Each node's part is rounded down.
        let mib_by_node = domain.filled_mib();
        assert!(
            mib_by_node.values().sum::<u64>() + mib_by_node.len() as u64 >= 32,
            "{mib_by_node:?}"
        );
    }
    let daemon = Daemon::start("scheduler = \"off\"");
    await_that("all are at home", || {
        domains[0].filled_mib() == BTreeMap::from([(2, 32)]) && (1..4).all(|i| at_home(i) == 32)
    });
    domains.into_iter().for_each(Domain::end);
    daemon.stop();
}

#[test]
fn whoever_holds_on_to_the_lock_is_named_and_the_loop_goes_on() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32",
    );
    await_that("it is seen", || ask("GET", "/domains/db", None).unwrap().0 == 200);
    let holder = ["--no-fork", "/run/nearside/lock", "sleep", "100000"];
    let mut holder = Command::new("flock").args(holder).spawn().unwrap();
    let put = || ask("PUT", "/domains/db/affinity", Some(&json!({"nodes": [3]}))).unwrap();
    let held = || {
        read("/proc/locks")
            .lines()
            .any(|line| line.contains("FLOCK") && line.contains(&holder.id().to_string()))
    };
    await_that("it holds the lock", held);
    let (code, answer) = put();
    let says = format!("process {} (sleep) holds /run/nearside/lock", holder.id());
    assert!(code == 409 && answer["error"].as_str().unwrap().contains(&says), "{code} {answer}");
    let before = interval();
    await_that("intervals pass", || interval() > before + 3);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(put().0, 200);
    await_that("memory has come home", || domain.filled_mib() == BTreeMap::from([(3, 32)]));
    domain.end();
    daemon.stop();
}

#[test]
fn killed_it_loses_nothing() {
    let mut daemon = Daemon::start("scheduler = \"off\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy strict --nodes 1",
        "--mib 32",
    );
    await_that("it is seen", || ask("GET", "/domains/db", None).unwrap().0 == 200);
    daemon.child.kill().unwrap();
    assert_eq!(daemon.child.wait().unwrap().signal(), Some(9));
    assert_eq!(json("list")["domains"][0]["name"], "db");
    let daemon = Daemon::start("scheduler = \"off\"");
    let db = get("/domains/db");
    assert_eq!(
        (&db["home"]["nodes"], &db["claim"]["bytes"]),
        (&json!([1]), &json!({"1": 64 << 20})),
        "{db}"
    );
    domain.end();
    daemon.stop();
}

#[test]
fn a_second_daemon_is_told_who_runs() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let second = run(["daemon", "--config", CONFIG]);
    assert_eq!(second.status.code(), Some(1));
    assert!(
        stderr(&second).contains(&format!("process {} holds", daemon.child.id())),
        "{}",
        stderr(&second)
    );
    get("/health");
    daemon.stop();
}

#[test]
fn a_bad_configuration_keeps_the_old_one_and_says_why() {
    let mut daemon = Daemon::start("scheduler = \"off\"");
    fs::write(CONFIG, "intervall = \"1s\"\n").unwrap();
    daemon.signal(Signal::HUP);
    await_that("it says why", || daemon.said().contains("stays as it was"));
    assert!(daemon.said().contains("intervall"), "{}", daemon.said());
    get("/domains");
    // Whoever rotates the audit log is served all the same; and so without any configuration.
    for config in ["intervall = \"1s\"\n", ""] {
        fs::write(CONFIG, config).unwrap();
        if config.is_empty() {
            fs::remove_file(CONFIG).unwrap();
        }
        fs::remove_file(AUDIT).unwrap();
        daemon.signal(Signal::HUP);
        await_that("the audit log is there", || Path::new(AUDIT).exists());
    }
    fs::write(CONFIG, "intervall = \"1s\"\n").unwrap();
    let bad = run(["daemon", "--config", CONFIG, "--check-config"]);
    assert_eq!(bad.status.code(), Some(1));
    daemon.stop();
}

#[test]
fn readers_may_read_and_others_are_refused_and_recorded() {
    let daemon = Daemon::start("scheduler = \"off\"\n[api]\nread_group = \"65534\"");
    let _ = fs::remove_file(AUDIT);
    daemon.signal(Signal::HUP);
    await_that("the audit log is there", || Path::new(AUDIT).exists());
    assert_eq!(fs::metadata(AUDIT).unwrap().permissions().mode() & 0o777, 0o600);
    let as_nobody = |script: &str| {
        let become_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c"];
        let output = Command::new("setpriv").args(become_nobody).arg(script).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let request = |method: &str, path: &str| {
        as_nobody(&format!(
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{SOCKET}')\n\
             s.sendall(b'{method} {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n\
             print(s.makefile().readline().split()[1])"
        ))
    };
    assert_eq!(request("GET", "/domains"), "200");
    assert_eq!(request("DELETE", "/domains/db/affinity"), "403");
    let log = fs::read_to_string(AUDIT).unwrap();
    let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!((&line["uid"], &line["status"]), (&json!(65534), &json!(403)), "{log}");
    daemon.stop();
}

#[test]
fn commands_ask_the_daemon_and_do_without_one_that_does_not_answer() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32",
    );
    // Until it has touched its memory it is no idle one.
    await_that("it rests", || {
        ask("GET", "/why/db", None).is_some_and(|(_, why)| why["standing"]["place"] == "idle")
    });
    let once = |arguments: &str| {
        let output = run(words(arguments));
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    // When the host stands still, the daemon seems not to answer or its loop to have died.
    let said = |arguments: &str| {
        let mut said = (String::new(), String::new());
        await_that("the daemon answers in time", || {
            said = once(arguments);
            !["no answer within", "has not ended an interval"]
                .iter()
                .any(|notice| said.1.contains(notice))
        });
        said
    };
    let (why, show) = (said("why db").0, said("show db --interval 0").0);
    assert!(why.contains("Now, says the daemon") && show.contains("daemon says"), "{why}{show}");
    for command in ["list", "stat --interval 0", "top --once --interval 0"] {
        let (told, notes) = said(command);
        assert!(
            told.contains("stands") && told.contains("idle") && notes.is_empty(),
            "{command}: {told}{notes}"
        );
        assert!(!said(&format!("{command} --no-daemon")).0.contains("stands"), "{command}");
    }
    await_that("a program is told, too", || {
        json("list")["domains"][0]["standing"]["place"] == "idle"
    });
    assert!(!said("why db --no-daemon").0.contains("daemon"));
    daemon.signal(Signal::STOP);
    for command in ["list", "stat --interval 0", "why db", "top --once --interval 0"] {
        let (told, notes) = once(command);
        assert!(
            told.contains("db") && notes.contains("no answer within"),
            "{command}: {told}{notes}"
        );
        assert!(once(&format!("{command} --no-daemon")).1.is_empty(), "{command}");
    }
    daemon.signal(Signal::CONT);
    domain.end();
    daemon.stop();
}

#[test]
fn members_of_the_admin_group_give_domains_another_home() {
    let daemon = Daemon::start("scheduler = \"off\"\n[api]\nadmin_group = \"65534\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32",
    );
    await_that("it is seen", || {
        ask("GET", "/domains/db", None).is_some_and(|(code, _)| code == 200)
    });
    let set_as = |group: u32, nodes: &str| {
        let group = format!("--regid={group}");
        let mut command = Command::new("setpriv");
        let become_nobody = ["--reuid=65534", &group, "--clear-groups", "--"];
        command
            .args(become_nobody)
            .arg(nearside().get_program())
            .args(["set", "db", "--nodes", nodes])
            .output()
            .unwrap()
    };
    // A command does without a daemon that is not ready, and this user cannot.
    get("/health");
    let others = set_as(65533, "3");
    assert_eq!(others.status.code(), Some(1), "{}", stderr(&others));
    let members = set_as(65534, "2");
    assert!(
        members.status.success() && stdout(&members).contains("home is node 2"),
        "{}",
        stderr(&members)
    );
    await_that("memory follows", || domain.filled_mib() == BTreeMap::from([(2, 32)]));
    let unknown = set_as(65534, "17");
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
    let log = fs::read_to_string(AUDIT).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |line: &&Value| {
        line["uid"] == 65534 && line["status"] == 200 && line["change"]["domain"] == "db"
    };
    assert_eq!(lines.iter().filter(told).count(), 1, "{log}");
    domain.end();
    daemon.stop();
}

#[test]
fn found_groups_get_a_home() {
    let group = Path::new("/sys/fs/cgroup/machine.slice/vm1");
    fs::create_dir_all(group).unwrap();
    // Whoever made the group would take a binding back, so it is the scheduler that keeps it at
    // home.
    let daemon = Daemon::start("found = [\"machine.slice/*\"]");
    let script = format!("echo 0 > {}/cgroup.procs; while :; do :; done", group.display());
    let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let name = "%2Fmachine.slice%2Fvm1";
    await_that("it has a home", || {
        ask("GET", &format!("/domains/{name}"), None)
            .is_some_and(|(code, body)| code == 200 && body["home"].is_object())
    });
    let shown = json("show /machine.slice/vm1 --interval 0");
    assert_eq!(shown["home"]["origin"], "auto", "{shown:#}");
    let (why, told) = (get(&format!("/why/{name}")), json("why /machine.slice/vm1"));
    assert_eq!(why["found_by"], "machine.slice/*", "{why:#}");
    for key in ["name", "home", "found_by", "allowed", "policies"] {
        assert!(why[key] == told[key] && !why[key].is_null(), "{key}: {why:#} {told:#}");
    }
    await_that("what the daemon makes of it is told", || {
        json("why /machine.slice/vm1")["standing"].is_object()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    daemon.stop();
    fs::remove_dir(group).unwrap();
}

#[test]
fn with_the_scheduler_a_home_is_preferred_and_the_stand_in_lifted() {
    let mut daemon = Daemon::start("");
    let allowed = |domain: &Domain| status(domain.process(), "Cpus_allowed_list");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32 --spin",
    );
    await_that("the scheduler is attached", || {
        assert_eq!(daemon.child.try_wait().unwrap(), None, "{}", daemon.said());
        fs::read_to_string("/sys/kernel/sched_ext/state").unwrap().trim() == "enabled"
    });
    await_that("the stand-in is lifted", || allowed(&domain) == "0-7");
    await_that("it is said", || daemon.said().contains("scheduler attached"));
    let scheduled_by = |who: &str| {
        let frame = stdout(&run(words("top --once --interval 0")));
        assert!(frame.contains(&format!("scheduled by {who} ")), "{frame}");
    };
    scheduled_by("nearside");
    daemon.stop();
    // On a slow host that takes longer than the daemon waits.
    await_that("the scheduler is detached", || scheduler_state() == "disabled");
    await_that("its home's CPUs stand in", || allowed(&domain) == "2-3");
    scheduled_by("Linux");
    domain.end();
}

const SPINNING: (&str, &str) = (
    "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
    "--mib 32 --threads 2 --spin",
);

fn scheduler_state() -> String {
    read("/sys/kernel/sched_ext/state")
}

#[test]
fn killed_with_the_scheduler_attached_it_leaves_the_stock_one_and_the_next_attaches_again() {
    let mut daemon = Daemon::start("");
    let domain = Domain::start(SPINNING.0, SPINNING.1);
    for _ in 0..3 {
        await_that("the stand-in is lifted", || {
            status(domain.process(), "Cpus_allowed_list") == "0-7"
        });
        assert_eq!(scheduler_state(), "enabled");
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        await_that("the stock scheduler is back", || scheduler_state() == "disabled");
        daemon = Daemon::start("");
        await_that("the next one attaches it", || scheduler_state() == "enabled");
    }
    assert_eq!(domain.filled_mib(), BTreeMap::from([(1, 32)]));
    daemon.stop();
    await_that("the scheduler is detached", || scheduler_state() == "disabled");
    await_that("its home's CPUs stand in", || {
        status(domain.process(), "Cpus_allowed_list") == "2-3"
    });
    domain.end();
}

#[test]
fn a_scheduler_that_stalls_is_tried_again_later_each_time_and_stood_in_for_meanwhile() {
    let mut daemon =
        Daemon::start_with("--stall-scheduler-after-ms 500 --scheduler-watchdog-ms 1000", "");
    let domain = Domain::start(SPINNING.0, SPINNING.1);
    for intervals in [1, 2, 4] {
        let said = format!("it is tried again in {intervals} intervals");
        await_that(&said, || daemon.said().contains(&said));
    }
    assert!(daemon.said().contains("stall"), "{}", daemon.said());
    await_that("its home's CPUs stand in", || {
        status(domain.process(), "Cpus_allowed_list") == "2-3"
    });
    domain.end();
    daemon.stop();
}

fn interval() -> u64 {
    get("/health")["interval"].as_u64().unwrap()
}

/// How often the loop has given a domain a home.
fn homes_given(domain: &str) -> f64 {
    let metrics = get("/metrics");
    let name = format!("nearside_domain_homes_total{{domain=\"{domain}\"}}");
    let line = metrics
        .as_str()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix(&name))
        .unwrap_or_else(|| panic!("{metrics}"));
    line.trim().parse().unwrap()
}

/// Lets 150 intervals pass, and says whether the host stood still meanwhile: then one of them took
/// more than ten times as long as they usually do.
fn let_150_intervals_pass() -> bool {
    let since = interval();
    let (mut seen, mut seen_at, mut lengths) = (since, Instant::now(), vec![]);
    // Each takes long on an emulated machine that is busy with six threads.
    for part in 1..=3 {
        await_that("50 intervals pass", || {
            let now = interval();
            if now > seen {
                lengths.push(seen_at.elapsed() / u32::try_from(now - seen).unwrap());
                (seen, seen_at) = (now, Instant::now());
            }
            now > since + 50 * part
        });
    }
    lengths.sort();
    lengths[lengths.len() - 1] > 10 * lengths[lengths.len() / 2]
}

/// Asserts that the loop gives a domain at most one more home in 150 intervals. That is promised
/// where the load is steady. When the host stands still, load seems to go and come; then the next
/// 150 count.
fn assert_at_most_one_more_home(domain: &str) {
    let more_homes = || {
        let before = homes_given(domain);
        let stood_still = let_150_intervals_pass();
        (homes_given(domain) - before, stood_still)
    };
    let (mut more, stood_still) = more_homes();
    if more > 1.0 && stood_still {
        println!("the host stood still, and {domain} got {more} homes");
        more = more_homes().0;
    }
    assert!(more <= 1.0, "{domain} was moved again and again: {more} times");
}

#[test]
fn memory_follows_a_domain_that_was_pushed_off_and_then_nothing_moves() {
    let daemon = Daemon::start("");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred",
        "--mib 32 --threads 2 --spin",
    );
    let first = domain.filled_mib();
    let home = *first.keys().next().unwrap();
    await_that("it is at home", || {
        ask("GET", "/domains/db", None)
            .is_some_and(|(_, body)| body["standing"]["place"] == "at-home")
    });
    // Twice as many threads as its home has CPUs come to stay there.
    let hog = format!("--quiet --name hog --cpus 2 --memory 16M --policy preferred --nodes {home}");
    let hog = Domain::start(&hog, "--mib 4 --threads 4 --spin");
    let since = interval();
    let mut taken = 0;
    await_that("its memory has followed", || {
        taken = interval() - since;
        !domain.filled_mib().contains_key(&home)
    });
    // Promised are 15, which the loop keeps where it sees exactly who waits (policy/tests/control).
    // Here an interval is a tenth of a second of an emulator that runs one CPU after the other, and
    // the domain may look as if it were at home in some of them.
    assert!(taken <= 60, "its memory followed after {taken} intervals only");
    assert_at_most_one_more_home("db");
    // It may go back when there is room again, but not to and fro.
    hog.end();
    assert_at_most_one_more_home("db");
    domain.end();
    daemon.stop();
}

#[test]
#[ignore = "fifty starts take long: lab/test daemon -- --ignored"]
fn killed_at_fifty_instants_while_it_starts_it_loses_nothing() {
    kill_under_load(50, false);
}

#[test]
#[ignore = "fifty starts take long: lab/test daemon -- --ignored"]
fn killed_at_fifty_instants_with_the_scheduler_attached_it_loses_nothing() {
    kill_under_load(50, true);
}

/// So often, at random instants of 4 s that begin with the daemon or when its scheduler is
/// attached.
fn kill_under_load(rounds: u64, attached: bool) {
    let (db, hog) = (
        "--cpus 2 --memory 64M --policy strict --nodes 1",
        "--cpus 2 --memory 16M --policy preferred --nodes 1",
    );
    let db = Domain::start(&format!("--quiet --name db {db}"), "--mib 32 --threads 2 --spin");
    let hog = Domain::start(&format!("--quiet --name hog {hog}"), "--mib 4 --threads 4 --spin");
    // This one is sent to and fro, so that homes are changed and pages are under way when the end
    // comes.
    let mover = Domain::start(
        "--quiet --name mover --cpus 1 --memory 64M --policy preferred --nodes 2",
        "--mib 32",
    );
    let homes = || -> BTreeMap<String, [Value; 2]> {
        let listed = json("list --no-daemon --interval 0");
        let of = |domain: &Value| {
            (domain["name"].to_string(), ["home", "claim"].map(|key| domain[key].clone()))
        };
        listed["domains"].as_array().unwrap().iter().map(of).collect()
    };
    // On whichever node.
    let claimed = |record: &[Value; 2]| -> u64 {
        record[1]["bytes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
    };
    let mut random = 1 + u64::from(attached);
    for round in 0..rounds {
        // Tasks that are to finish, whoever schedules them.
        let (from, to) = (2 + round % 2, 3 - round % 2);
        let set = run(words(&format!("set mover --nodes {from} --no-daemon")));
        assert!(set.status.success(), "round {round}: {}", stderr(&set));
        let before = homes();
        let mut tasks: Vec<_> =
            (0..4).map(|_| Command::new("sh").args(["-c", COUNT]).spawn().unwrap()).collect();
        let mut daemon = Daemon::begin_with("", "");
        if attached {
            await_that("the scheduler is attached", || scheduler_state() == "enabled");
        }
        let change = json!({"nodes": [to]});
        let change = thread::spawn(move || {
            ask_once("PUT", "/domains/mover/affinity", Some(&change)).map(|(code, _)| code)
        });
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_millis((random >> 33) % 4000));
        daemon.child.kill().unwrap();
        assert_eq!(
            daemon.child.wait().unwrap().signal(),
            Some(9),
            "round {round}: {}",
            daemon.said()
        );
        await_that("the stock scheduler is back", || scheduler_state() == "disabled");
        assert!(tasks.iter_mut().all(|task| task.wait().unwrap().success()), "round {round}");
        let (answer, mut after) = (change.join().unwrap(), homes());
        let mover_now = after.insert("\"mover\"".into(), before["\"mover\""].clone()).unwrap();
        assert_eq!(after, before, "round {round}");
        // It has one home or the other, and the new one if that was said to be so.
        let nodes = mover_now[0]["nodes"].clone();
        assert!(
            nodes == json!([to]) || answer != Some(200) && nodes == json!([from]),
            "round {round}: {answer:?} {mover_now:?}"
        );
        assert_eq!(
            claimed(&mover_now),
            claimed(&before["\"mover\""]),
            "round {round}: {mover_now:?}"
        );
        let mib_by_node = mover.filled_mib();
        assert!(
            mib_by_node.values().sum::<u64>() + mib_by_node.len() as u64 >= 32,
            "round {round}: {mib_by_node:?}"
        );
    }
    let before = homes();
    let daemon = Daemon::start("");
    await_that("all are found again", || {
        let known = |name: &str, record: &[Value; 2]| {
            let (_, domain) = ask("GET", &format!("/domains/{name}"), None)?;
            Some([domain["home"].clone(), domain["claim"].clone()] == *record)
        };
        before.iter().all(|(name, record)| known(name.trim_matches('"'), record) == Some(true))
    });
    assert_eq!(db.filled_mib(), BTreeMap::from([(1, 32)]));
    await_that("all memory has come home", || mover.filled_mib().len() == 1);
    db.end();
    hog.end();
    mover.end();
    daemon.stop();
}

/// A task of some tenths of a second.
const COUNT: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
