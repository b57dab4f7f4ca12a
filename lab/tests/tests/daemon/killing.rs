//! SIGKILL of the daemon: no domain loses its home, its claim or its memory.

use crate::shared::scheduler_state;
use nearside_lab::{
    Domain, await_that,
    daemon::{Daemon, ask, ask_once, get},
    json, run, stderr, words,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap, os::unix::process::ExitStatusExt, process::Command, thread,
    time::Duration,
};

#[test]
fn a_killed_daemon_loses_nothing() {
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
#[ignore = "fifty starts take long: lab/test daemon -- --ignored"]
fn fifty_kills_while_the_daemon_starts_lose_nothing() {
    kill_under_load(50, false);
}

#[test]
#[ignore = "fifty starts take long: lab/test daemon -- --ignored"]
fn fifty_kills_with_the_scheduler_attached_lose_nothing() {
    kill_under_load(50, true);
}

/// A task of some tenths of a second.
const COUNT: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";

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
        // Tasks that have to finish under either scheduler.
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
