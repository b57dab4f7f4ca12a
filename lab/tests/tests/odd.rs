//! The outputs of `nearside place`, used on an odd machine by the tools that they are for.
//!
//! Node 0 has two CPUs and 768 MiB, node 1 two CPUs alone, nodes 3 and 4 memory alone (512 MiB),
//! and there is no node 2. All facts are read from `/proc`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "odd/libvirt.rs"]
mod libvirt;
#[path = "odd/numactl.rs"]
mod numactl;
#[path = "odd/qemu.rs"]
mod qemu;
#[path = "odd/run_vm.rs"]
mod run_vm;

use nearside_lab::{
    Domain, MIB, Signal, available_bytes, await_that, json, mapping_of_size, nearside, read, run,
    send, status, stderr, stdout, words,
};
use std::{
    io::{BufRead, BufReader},
    process::{Output, Stdio},
};

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    let node = |file: &str| read(&format!("/sys/devices/system/node/{file}"));
    assert_eq!(node("online"), "0-1,3-4");
    assert_eq!((node("has_cpu"), node("has_memory")), ("0-1".into(), "0,3-4".into()));
    assert_eq!((node("node0/cpulist"), node("node1/cpulist")), ("0-1".into(), "2-3".into()));
    assert_eq!(node("node1/distance"), "15 10 21 40");
}

#[test]
fn nodes_that_lack_what_was_asked_for_are_refused_with_the_reason() {
    for (flags, code, why) in [
        ("--nodes 1 --policy strict", 1, "0 bytes are available on node 1"),
        ("--nodes 1 --policy restrictive", 1, "0 bytes are available on node 1"),
        ("--nodes 3 --policy strict", 1, "no CPU is online on node 3"),
        ("--nodes 3-4 --policy preferred", 1, "no CPU is online on nodes 3-4"),
        ("--nodes 2", 2, "there is no node 2: this machine has nodes 0-1,3-4"),
    ] {
        let output = place(&format!("--cpus 1 --memory 64M {flags}"));
        assert_eq!(output.status.code(), Some(code), "{flags}");
        assert!(stderr(&output).contains(why), "{flags}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{flags}");
    }
}

#[test]
fn copies_of_text_are_refused_where_none_of_the_nodes_has_memory() {
    let mut replicator = nearside().arg("replicator").stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(replicator.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("answers"), "{said:?}");
    let text = "/tmp/text";
    std::fs::write(text, "text").unwrap();
    let output = run(words(&format!("replicate add --nodes 1 {text}")));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no node has memory for a copy"), "{}", stderr(&output));
    let output = run(words(&format!("replicate add --nodes 0-1 {text}")));
    assert!(output.status.success(), "{}", stderr(&output));
    await_that("node 1 uses the copy of node 0", || {
        let file = &json("replicate status")["files"][0];
        file["state"] == "replicated" && file["serving"]["1"] == 0
    });
    send(replicator.id(), Signal::TERM);
    assert_eq!(replicator.wait().unwrap().code(), Some(0));
}

fn place(flags: &str) -> Output {
    run(words(&format!("place {flags}")))
}

/// The output of `nearside place` for a request that fits.
fn placed(flags: &str) -> String {
    let output = place(flags);
    assert!(output.status.success(), "{flags}: {}", stderr(&output));
    stdout(&output)
}

/// A domain that has been promised all of node 0 but so much, so that what needs more takes a
/// second node.
fn promised_all_of_node_0_but(mib: u64) -> Domain {
    let mib = available_bytes()[0] / MIB - mib;
    let flags = format!("--quiet --name promised --memory {mib}M --policy strict --nodes 0");
    Domain::start(&flags, "--mib 1")
}

/// A process's threads whose names begin so, by the rest of the name: the CPUs that each may use.
fn allowed(process: u32, prefix: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_thread = |task: std::fs::DirEntry| {
        let thread = task.file_name().to_str()?.parse().ok()?;
        let name = read(&format!("/proc/{process}/task/{thread}/comm"));
        let rest = name.strip_prefix(prefix)?.to_owned();
        Some((rest, status(thread, "Cpus_allowed_list")))
    };
    let mut allowed: Vec<_> = tasks.flatten().filter_map(of_thread).collect();
    allowed.sort();
    allowed
}

/// Waits until all of a backend's memory is there, which is told by its size, and returns its
/// policy in the kernel's words, and its nodes.
fn await_filled(process: u32, bytes: u64) -> (String, Vec<u32>) {
    let mut found = None;
    await_that("the backend is filled", || {
        found = mapping_of_size(process, bytes);
        found.as_ref().is_some_and(|it| it.bytes.values().sum::<u64>() == bytes)
    });
    let found = found.unwrap();
    (found.policy, found.bytes.into_keys().collect())
}
