//! QEMU accepts completed command lines. Host node 0 alone is used, so any Linux host will do.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_topology::{Distances, NodeId};
use nearside_vmm::{CellPlacement, CommandLine, Placement, Policy, complete};
use std::{
    io::Write,
    process::{Command, Stdio},
};

const QEMU: &str = "qemu-system-x86_64";

/// Starts QEMU, stopped, and asks it about its memory backends; none if it is not installed.
fn backends(words: &[String]) -> Option<String> {
    let mut command = Command::new(QEMU);
    command.args(&words[1..]).args(["-S", "-display", "none", "-nodefaults", "-qmp", "stdio"]);
    let piped = || Stdio::piped();
    let child = command.stdin(piped()).stdout(piped()).stderr(piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{QEMU}: {error}"),
    };
    let requests = ["qmp_capabilities", "query-memdev", "quit"]
        .map(|request| format!("{{\"execute\":\"{request}\"}}\n"))
        .concat();
    // QEMU may have refused the command line by now.
    let _ = child.stdin.take().unwrap().write_all(requests.as_bytes());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    assert!(errors.is_empty(), "{words:?}: {errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn qemu_accepts_completed_command_lines() {
    let cell = |bytes| CellPlacement {
        bytes: [(NodeId(0), bytes)].into(),
        cpu_nodes: [NodeId(0)].into_iter().collect(),
    };
    let object = r#"{"qom-type":"memory-backend-ram","id":"r0","size":67108864,"prealloc":true}"#;
    for (words, cells) in [
        ("-smp 4 -m 128", 2),
        ("-smp 4 -m 128 -mem-prealloc", 2),
        ("-smp 5 -m 129", 2),
        ("-smp 4,sockets=2 -m 128 -machine q35 -name a", 2),
        ("-smp 2 -m 64", 1),
        (&format!("-m 64 -object {object} -machine pc,memory-backend=r0"), 0),
        (&format!("-m 64 -object {object} -numa node,memdev=r0"), 0),
        ("-m 64 -object memory-backend-memfd,id=a,size=64M,prealloc=on, -numa node,memdev=a", 0),
        ("-smp 2,sockets=2 -m 64 -numa node,cpus=0 -numa node,cpus=1", 0),
    ] {
        for policy in [Policy::Bind, Policy::Preferred, Policy::Interleave] {
            let words: Vec<_> = [QEMU].into_iter().chain(words.split_whitespace()).collect();
            let mut line = CommandLine::read(&words).unwrap();
            if cells > 0 {
                line = line.split(cells).unwrap();
            }
            let cells: Vec<_> = line.vm().cells.iter().map(|it| cell(it.bytes)).collect();
            let distances = Some(Distances::uniform(&[NodeId(0)]));
            let count = cells.len();
            let completed = complete(&line, &Placement { policy, cells, distances }).unwrap();
            let Some(answer) = backends(&completed.words) else {
                eprintln!("skipped: no {QEMU} (package qemu-system-x86)");
                return;
            };
            let bound = format!("\"policy\": \"{policy}\"");
            assert_eq!(answer.matches(&bound).count(), count, "{words:?}: {answer}");
            assert_eq!(answer.matches("\"host-nodes\": [0]").count(), count, "{answer}");
        }
    }
}
