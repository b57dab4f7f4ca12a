//! A start on a host that refuses one write to the store or to a cgroup: each call that writes, or
//! makes a folder or a FIFO, fails once. Opening files does not: most of it is reading.

use nearside_lab::{domains, nearside, run, stderr, words};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
};

/// The calls by which a start changes a file system.
const CALLS: &str = "write,mkdir,mkdirat,mknodat,fchmod,renameat,unlinkat,rmdir";

const LOG: &str = "/tmp/start.strace";

/// Starts a domain under strace, which lets a call fail with these words.
fn start(fault: Option<&str>) -> Output {
    let mut command = Command::new("strace");
    command.args(["-o", LOG, "-e", &format!("trace=execve,{CALLS}")]);
    command.args(fault.map(|fault| format!("--inject={fault}")));
    command.arg(nearside().get_program());
    command.args(words("run --quiet --name faulty --memory 16M --policy strict --nodes 1 -- true"));
    command.output().unwrap()
}

/// The number of times that a start makes each call, until it becomes the command.
fn calls_of_a_start() -> BTreeMap<String, usize> {
    let output = start(None);
    assert!(output.status.success(), "{}", stderr(&output));
    let log = fs::read_to_string(LOG).unwrap();
    let calls = log.lines().map(|line| line.split('(').next().unwrap());
    let mut counts = BTreeMap::new();
    for call in calls.skip(1).take_while(|call| *call != "execve") {
        *counts.entry(call.to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn a_start_whose_write_fails_leaves_nothing_and_the_next_one_succeeds() {
    let counts = calls_of_a_start();
    let is_there = |call: &str| counts.get(call).is_some_and(|count| *count > 0);
    assert!(["mkdir", "write", "renameat"].into_iter().all(is_there), "{counts:?}");
    let mut refused = 0;
    for (errno, why) in [("ENOSPC", "No space left on device"), ("EIO", "Input/output error")] {
        for (call, number) in counts.iter().flat_map(|(call, n)| (1..=*n).map(move |n| (call, n))) {
            let fault = format!("{call}:error={errno}:when={number}");
            let output = start(Some(&fault));
            if !output.status.success() {
                refused += 1;
                assert_eq!(output.status.code(), Some(125), "{fault}: {}", stderr(&output));
                assert!(stderr(&output).contains(why), "{fault}: {}", stderr(&output));
            }
            let next = run(words("run --quiet --name next --memory 16M -- true"));
            assert!(next.status.success(), "{fault}: {}", stderr(&next));
            assert!(domains().is_empty(), "{fault}: {:?}", domains());
            for left in ["/run/nearside/journal.json", "/sys/fs/cgroup/nearside/faulty"] {
                assert!(!Path::new(left).exists(), "{fault} leaves {left}");
            }
        }
    }
    println!("{counts:?}: {refused} of two faults each have refused the start");
    assert!(refused > counts.len(), "{refused} of {counts:?}");
}
