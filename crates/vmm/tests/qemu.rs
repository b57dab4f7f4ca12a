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
const HOTPLUG: &str = "-m 64,slots=2,maxmem=1G";
const DIMM: &str = r#"{"driver":"pc-dimm","memdev":"d"}"#;
const VIRTIO_MEM: &str = "virtio-mem-pci,memdev=r0,requested-size=32M";

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

/// The options that QEMU prints with `-help`.
fn options() -> Option<Vec<String>> {
    let output = Command::new(QEMU).arg("-help").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = |line: &str| {
        let word = line.strip_prefix('-')?.split([' ', '\t']).next()?;
        let is_option = word.starts_with(|c: char| c.is_ascii_alphanumeric());
        // -fda/-fdb
        is_option.then(|| word.split('/').next().unwrap_or(word).to_owned())
    };
    Some(text.lines().filter_map(name).collect())
}

#[test]
fn options_take_values_as_those_of_qemu_do() {
    let Some(options) = options() else {
        eprintln!("skipped: no {QEMU} (package qemu-system-x86)");
        return;
    };
    assert!(options.len() > 90, "{options:?}");
    for option in options {
        let option = format!("-{option}");
        // -pidfile takes a value, so one of the last two words is left over, and refused.
        let words = [&option, "-pidfile", "-left1", "-left2"];
        let output = Command::new(QEMU).args(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let takes = match (errors.contains("-left1:"), errors.contains("-left2:")) {
            (true, false) => true,
            (false, true) => false,
            _ => panic!("{option}: {errors}"),
        };
        // A value that is at fault was taken, too.
        let read = CommandLine::read(&[QEMU, &option, "-smp", "3"]);
        assert_eq!(read.map_or(1, |line| line.vm().vcpus), if takes { 1 } else { 3 }, "{option}");
    }
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
        ("-smp 2 -m 0", 1),
        (&format!("-m 64 -object {object} -machine pc,memory-backend=r0"), 0),
        (&format!("-m 64 -object {object} -numa node,memdev=r0"), 0),
        ("-m 64 -object memory-backend-memfd,id=a,size=64M,prealloc=on, -numa node,memdev=a", 0),
        ("-smp 2,sockets=2 -m 64 -numa node,cpus=0 -numa node,cpus=1", 0),
        (&format!("{HOTPLUG} -object memory-backend-ram,id=d,size=64M -device {DIMM}"), 0),
        (&format!("{HOTPLUG} -object {object} -device {VIRTIO_MEM}"), 0),
        ("-M pc,smp.cpus=4,memory.size=128M", 2),
    ] {
        for policy in [Policy::Bind, Policy::Preferred, Policy::Interleave] {
            let words: Vec<_> = [QEMU].into_iter().chain(words.split_whitespace()).collect();
            let mut line = CommandLine::read(&words).unwrap();
            if cells > 0 {
                line = line.split(cells).unwrap();
            }
            let cells: Vec<_> = line.vm().cells.iter().map(|it| cell(it.bytes)).collect();
            let distances = Some(Distances::uniform(&[NodeId(0)]));
            let devices = line.vm().cells.iter().map(|cell| cell.devices.len()).sum::<usize>();
            let count = cells.len() + devices;
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
