//! The daemon asks for copies where they pay, and running processes get them.

use super::helper::{Python, Replicator, await_state, plugin, status};
use nearside_lab::{
    Signal, await_that,
    daemon::{CONFIG, Daemon, get},
    run, stderr, words,
};
use std::{fs, process::Command};

/// A plugin whose pages lie on node 0: on a tmpfs they are where they were written.
pub(crate) fn on_node_0(name: &str) -> String {
    let path = plugin(name);
    let again = format!("{path}.new");
    let copied = Command::new("taskset").args(["-c", "0-1", "cp", &path, &again]).status().unwrap();
    assert!(copied.success());
    fs::rename(again, &path).unwrap();
    path
}

/// Whether a process runs from the copies of a node alone, and the replicator says so. Pages of a
/// copy are mapped when they are used.
pub(crate) fn runs_from(python: &mut Python, path: &str, node: u32) -> bool {
    let users = status(path).map(|it| it["copies"][node.to_string()]["users"].clone());
    let is_user = users.is_some_and(|users| users.as_u64() > Some(0));
    python.load(&[], path);
    is_user && python.text_of(path).0.keys().eq([&node])
}

#[test]
fn text_of_two_homes_gets_copies_that_follow_a_moved_domain_and_a_new_replicator() {
    let path = on_node_0("automatic.so");
    let mut replicator = Replicator::start("");
    let (mut a, mut b) = (Python::at_home("auto-a", 1), Python::at_home("auto-b", 3));
    for python in [&mut a, &mut b] {
        python.load(&[], &path);
        assert!(python.text_of(&path).0.keys().eq([&0]), "{:?}", python.text_of(&path));
    }
    let config = "scheduler = \"off\"\nreplicate_text = true";
    let daemon = Daemon::start(config);
    await_that("both run from copies", || {
        runs_from(&mut a, &path, 1) && runs_from(&mut b, &path, 3)
    });
    let told = status(&path).unwrap();
    assert_eq!(told["automatic"], true, "{told}");
    await_that("the daemon tells", || get("/text")["copies"]["files"].as_u64() > Some(0));

    let output = run(words("set auto-b --nodes 2"));
    assert!(output.status.success(), "{}", stderr(&output));
    await_that("the copy follows its domain", || runs_from(&mut b, &path, 2));

    replicator.kill();
    replicator.succeed();
    await_that("the next replicator makes copies", || {
        runs_from(&mut a, &path, 1) && runs_from(&mut b, &path, 2)
    });

    // Without the key, they go.
    let text = fs::read_to_string(CONFIG).unwrap();
    fs::write(CONFIG, text.replace("replicate_text = true\n", "")).unwrap();
    daemon.signal(Signal::HUP);
    await_that("the copies have gone", || status(&path).is_none());
    daemon.stop();
    replicator.stop();
}

#[test]
fn an_operators_copies_and_a_host_without_a_replicator_are_respected() {
    let path = on_node_0("asked.so");
    let daemon = Daemon::start("scheduler = \"off\"\nreplicate_text = true");
    await_that("the daemon tells that no replicator runs", || {
        get("/text")["copies"]["why"].as_str().is_some_and(|why| why.contains("replicator"))
    });
    let replicator = Replicator::start("");
    super::helper::add("--nodes 1", std::slice::from_ref(&path), "replicated");
    let mut python = Python::at_home("asked", 3);
    python.load(&[], &path);
    await_that("the daemon sees the replicator", || get("/text")["copies"]["why"].is_null());
    let looks = || get("/health")["interval"].as_u64().unwrap();
    let since = looks();
    await_that("looks pass", || looks() > since + 50);
    let told = status(&path).unwrap();
    assert_eq!(
        (&told["automatic"], told["serving"].as_object().unwrap().len()),
        (&false.into(), 1)
    );
    await_state(&path, "replicated");
    daemon.stop();
    replicator.stop();
}
