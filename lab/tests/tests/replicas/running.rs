//! Running processes use copies on request, and return to the originals before those change.

use super::helper::{LOOP, PYTHON, Python, Replicator, add, plugin, status};
use nearside_lab::{await_that, nearside, run, stderr, stdout, words};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt},
    process::{Command, Output},
};

/// The inodes that a process maps under a path.
fn inodes(python: &Python, path: &str) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", python.child.id())).unwrap();
    let lines = maps.lines().filter(|line| line.ends_with(path));
    let mut found: Vec<_> =
        lines.map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap()).collect();
    found.dedup();
    found
}

#[test]
fn attached_processes_run_from_copies_until_someone_writes() {
    let path = plugin("running.so");
    let original = fs::metadata(&path).unwrap().ino();
    // Node 0 has read the file.
    Python::plain(0).load(&[], &path);
    let mut python = Python::in_namespace(3);
    python.load(&[], &path);
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    assert_eq!(inodes(&python, &path), [original]);
    let pid = python.child.id();
    let report = nearside_lab::json(&format!("replicate attach {pid} --node 3"));
    assert_eq!(report["processes"], 1, "{report}");
    assert_eq!(status(&path).unwrap()["copies"]["3"]["users"], 1);
    assert_ne!(inodes(&python, &path)[0], original);
    assert_eq!(python.eval(&format!("__import__('ctypes').CDLL('{path}').crc32(0, 0, 0)")), "0");
    let (pages, _) = python.text_of(&path);
    assert!(pages.keys().eq([&3]), "{pages:?}");
    // A writer in place: the text is the original's before the write goes on.
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"0", 4000).unwrap();
    assert!(inodes(&python, &path).contains(&original));
    assert_eq!(status(&path).unwrap()["collapses"], 1);
    replicator.stop();
    assert_eq!(inodes(&python, &path), [original]);
}

#[test]
fn a_process_that_cannot_be_stopped_for_now_gets_its_copies_later() {
    let path = plugin("later.so");
    let original = fs::metadata(&path).unwrap().ino();
    let mut python = Python::in_namespace(3);
    python.load(&[], &path);
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    // The child of posix_spawn(3) has its parent's memory, and the parent waits for it. The child
    // waits for a writer.
    let fifo = "/tmp/later.fifo";
    assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
    python.ask(&format!(
        "(lambda os: os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[\
         (os.POSIX_SPAWN_OPEN, 9, '{fifo}', os.O_RDONLY, 0)]))(__import__('os')) > 0"
    ));
    let pid = python.child.id();
    let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    await_that("it waits for its child", || !children().is_empty());
    let report = nearside_lab::json(&format!("replicate attach {pid} --node 3"));
    let left = report["left_alone"].as_array().unwrap();
    let its = left.iter().find(|it| it["process"] == pid).unwrap();
    assert!(its["why"].as_str().unwrap().contains("vfork"), "{report}");
    assert_eq!(its["again"], true, "{report}");
    assert_eq!(inodes(&python, &path), [original]);
    drop(OpenOptions::new().write(true).open(fifo).unwrap());
    assert_eq!(python.answer(), "True");
    await_that("it runs from the copy", || inodes(&python, &path)[0] != original);
    replicator.stop();
}

#[test]
fn a_namespace_that_a_domain_makes_returns_too() {
    let path = plugin("nested.so");
    let original = fs::metadata(&path).unwrap().ino();
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut nested = Python::at_home_in_namespace("nested", 2);
    nested.load(&[], &path);
    assert_ne!(inodes(&nested, &path), [original]);
    // Copies that come now are for those that ask for them, by the name of the domain.
    let second = plugin("nested-second.so");
    nested.load(&[], &second);
    add("", std::slice::from_ref(&second), "replicated");
    assert!(run(words("replicate attach nested")).status.success());
    let second_inode = fs::metadata(&second).unwrap().ino();
    await_that("it runs from the copy", || {
        inodes(&nested, &second).first().is_some_and(|it| *it != second_inode)
    });
    assert_ne!(inodes(&nested, &path), [original]);
    assert!(run(["replicate", "remove", &second]).status.success());
    assert!(run(["replicate", "remove", &path]).status.success());
    assert_eq!(inodes(&nested, &path), [original]);
    let inode = format!("__import__('os').stat('{path}').st_ino");
    assert_eq!(nested.eval(&inode), original.to_string());
    replicator.stop();
}

#[test]
fn a_domain_inside_another_one_has_the_copies_of_its_own_home() {
    let path = plugin("inner.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let nested = "run --quiet --name outer --nodes 1 --memory 40M --";
    let inner = "run --quiet --name inner --nodes 2 --memory 40M --";
    let command = &mut nearside();
    let command = command.args(words(nested)).arg(nearside().get_program()).args(words(inner));
    let mut python = Python::spawn(command.args([PYTHON, "-S", "-c", LOOP]));
    let mounts = python.eval("open('/proc/self/mountinfo').read()").replace("\\n", "\n");
    let its: Vec<_> = mounts.lines().filter(|line| line.contains(&path)).collect();
    assert!(its.len() == 1 && its[0].contains("mpol=prefer:2"), "{its:?}");
    assert!(run(["replicate", "remove", &path]).status.success());
    assert_eq!(python.eval(&format!("'{path}' in open('/proc/self/mountinfo').read()")), "False");
    replicator.stop();
}

#[test]
fn processes_that_cannot_use_copies_are_refused_with_the_reason() {
    let replicator = Replicator::start("");
    let attach = |what: String| -> Output { run(words(&format!("replicate attach {what}"))) };
    let host = Python::plain(1);
    let output = attach(format!("{} --node 1", host.child.id()));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the host's mount namespace"), "{}", stderr(&output));
    // Without --node, a process needs a home.
    let output = attach(host.child.id().to_string());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--node"), "{}", stderr(&output));
    let output = attach(format!("{} --node 1", replicator.child.id()));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is the replicator"), "{}", stderr(&output));
    let python = Python::in_namespace(1);
    let output = attach(format!("{} --node 9", python.child.id()));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there is no node 9"), "{}", stderr(&output));
    let output = attach(format!("{} --node 1", python.child.id()));
    assert!(
        stdout(&output).contains("no file has a copy in its mount namespace"),
        "{}",
        stdout(&output)
    );
    replicator.stop();
}
