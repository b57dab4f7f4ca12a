//! Processes that are left alone, and why. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod common;

use common::{Stage, Victim, attach, is_root};
use nearside_replicas::{
    FileId,
    remap::{Exchange, Process, Refusal, RemapError, Report, detach},
};
use nix::{sys::ptrace, unistd};
use rustix::{
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

/// The reason of a refusal.
fn why(result: Result<Report, RemapError>) -> Refusal {
    match result {
        Err(RemapError::Refused { why, .. }) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// An exchange that no process is concerned by.
fn nothing() -> Exchange {
    let file = FileId { device: 0, inode: 1 };
    Exchange { path: "/nowhere".into(), from: file, to: file }
}

fn refused(pid: i32) -> Refusal {
    why(Process::open(pid).and_then(|process| attach(&process, &[nothing()])))
}

/// The maps of a process, which a refusal must not change.
fn maps(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()
}

fn child_of(pid: i32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn states_that_make_an_exchange_unsafe_are_refused() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    for state in ["seccomp", "vfork", "clone-vm", "personality"] {
        let victim = stage.start("odd", &[state]);
        let exchanges = victim.mount(&stage, &stage.files("odd"));
        let before = maps(victim.pid());
        let expected = match state {
            "seccomp" => Refusal::Seccomp,
            "vfork" => Refusal::Vfork { child: child_of(victim.pid()) },
            "clone-vm" => Refusal::SharesMemory { with: child_of(victim.pid()) },
            _ => Refusal::ReadImpliesExec,
        };
        assert_eq!(why(attach(&victim.process(), &exchanges)), expected);
        if state == "vfork" || state == "clone-vm" {
            let child = Process::open(child_of(victim.pid())).unwrap();
            let with = victim.pid();
            assert_eq!(why(attach(&child, &exchanges)), Refusal::SharesMemory { with });
        }
        assert_eq!(maps(victim.pid()), before);
        assert_eq!(victim.finish().0, Some(0));
    }
}

/// A process in some state that runs from replicas whose mounts have gone, and its way back.
fn started_from_replicas(stage: &Stage, state: &str) -> (Victim, Vec<Exchange>) {
    let files = stage.files("odd");
    let mut script = String::new();
    for file in &files {
        let replica = stage.replica(file);
        script += &format!("mount --bind {} {}; ", replica.display(), file.display());
    }
    script += &format!("exec {} {state}", files[0].display());
    let victim = Victim::start("sh", &["-c", &script]);
    let attached: Vec<Exchange> = files
        .iter()
        .map(|file| Exchange {
            path: file.clone(),
            from: FileId::at(file).unwrap(),
            to: FileId::at(&stage.replica(file)).unwrap(),
        })
        .collect();
    let exchanges = victim.unmount(&attached);
    (victim, exchanges)
}

#[test]
fn a_process_that_shares_its_memory_keeps_its_replica_and_goes_on() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    for state in ["vfork", "clone-vm"] {
        let (victim, exchanges) = started_from_replicas(&stage, state);
        let child = child_of(victim.pid());
        let before = maps(victim.pid());
        let expected = match state {
            "vfork" => Refusal::Vfork { child },
            _ => Refusal::SharesMemory { with: child },
        };
        assert_eq!(why(detach(&victim.process(), &exchanges)), expected);
        let with = victim.pid();
        let of_child = detach(&Process::open(child).unwrap(), &exchanges);
        assert_eq!(why(of_child), Refusal::SharesMemory { with });
        assert_eq!(maps(victim.pid()), before);
        assert_eq!(victim.finish().0, Some(0));
    }
}

#[test]
fn detaching_suspends_a_seccomp_filter_that_kills() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let (victim, exchanges) = started_from_replicas(&stage, "seccomp");
    assert_eq!(victim.status("Seccomp"), "2");
    let report = detach(&victim.process(), &exchanges).unwrap();
    assert!(report.changed.len() >= 6, "{report:?}");
    assert_eq!(victim.status("Seccomp"), "2", "the filter is in force again");
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn a_traced_process_is_left_to_its_tracer() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("odd", &["plain"]);
    let pid = unistd::Pid::from_raw(victim.pid());
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    let tracer = rustix::thread::gettid().as_raw_pid();
    assert_eq!(refused(victim.pid()), Refusal::AlreadyTraced { tracer });
    assert_eq!(victim.status("TracerPid"), tracer.to_string());
}

#[test]
fn numbers_of_threads_kernel_threads_and_ended_processes_are_refused() {
    if !is_root() {
        return;
    }
    assert_eq!(refused(0), Refusal::Gone);
    assert_eq!(refused(-1), Refusal::Gone);
    assert_eq!(refused(i32::MAX), Refusal::Gone);
    // kthreadd
    assert_eq!(refused(2), Refusal::KernelThread);
    assert_eq!(refused(std::process::id() as i32), Refusal::OwnProcess);
    let own_thread = rustix::thread::gettid().as_raw_pid();
    assert_eq!(refused(own_thread), Refusal::NotAProcess);

    let mut child = Command::new("true").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), ended).unwrap();
    assert_eq!(refused(pid.as_raw_pid()), Refusal::Ended);
    child.wait().unwrap();
}

/// An executable of 32 bits: ELF's header, one program header, and `pause` in a loop.
fn executable_of_32_bits() -> Vec<u8> {
    const BASE: u32 = 0x0804_8000;
    let code = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7]; // mov eax, 29; int 0x80; jmp
    let mut file = b"\x7fELF\x01\x01\x01".to_vec();
    file.resize(16, 0);
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    half(&mut file, 2); // ET_EXEC
    half(&mut file, 3); // EM_386
    let length = 52 + 32 + code.len() as u32;
    [1, BASE + 84, 52, 0, 0].into_iter().for_each(|value| word(&mut file, value));
    [52, 32, 1, 0, 0, 0].into_iter().for_each(|value| half(&mut file, value));
    let segment = [1, 0, BASE, BASE, length, length, 5, 0x1000];
    segment.into_iter().for_each(|value| word(&mut file, value));
    file.extend(code);
    file
}

#[test]
fn a_32_bit_process_is_refused() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pause");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&executable_of_32_bits()).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o755)).unwrap();
    drop(file);
    let Ok(mut child) = Command::new(&path).spawn() else {
        eprintln!("skipped: this kernel runs no 32-bit programs");
        return;
    };
    // Until its execve has ended, its kind is not known.
    let auxv = format!("/proc/{}/auxv", child.id());
    while fs::read(&auxv).unwrap().starts_with(&[0; 8]) {
        std::thread::yield_now();
    }
    assert_eq!(refused(child.id() as i32), Refusal::ThirtyTwoBit);
    assert!(child.try_wait().unwrap().is_none(), "it runs on");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_caller_without_the_capability_learns_its_name() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("odd", &["plain"]);
    let exchanges = victim.mount(&stage, &stage.files("odd"));
    let process = victim.process();
    let before = maps(victim.pid());
    // Capabilities belong to a thread.
    let error = std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            attach(&process, &exchanges).unwrap_err().to_string()
        });
        unprivileged.join().unwrap()
    });
    assert!(error.contains("CAP_SYS_PTRACE"), "{error}");
    assert_eq!(maps(victim.pid()), before);
}

#[test]
fn a_later_process_with_the_same_number_is_not_touched() {
    if !is_root() {
        return;
    }
    let next_number = Path::new("/proc/sys/kernel/ns_last_pid");
    if !next_number.exists() {
        eprintln!("skipped: this kernel lacks ns_last_pid (CONFIG_CHECKPOINT_RESTORE)");
        return;
    }
    let stage = Stage::new();
    let first = stage.start("odd", &["plain"]);
    let (pid, process) = (first.pid(), first.process());
    drop(first);
    // Other processes may take the number first, so this tries again.
    let second = (0..200).find_map(|_| {
        fs::write(next_number, (pid - 1).to_string()).unwrap();
        let mut child = Command::new(stage.path("odd"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        if child.id() as i32 == pid {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        None
    });
    let Some(mut second) = second else {
        eprintln!("skipped: other processes took the number each time");
        return;
    };
    // It maps the file, so a mix-up would change it.
    let file = stage.path("libvictim.so");
    let from = FileId::at(&file).unwrap();
    let exchange = Exchange { path: file, from, to: from };
    assert!(!process.is_alive());
    assert_eq!(why(attach(&process, std::slice::from_ref(&exchange))), Refusal::Gone);
    assert_eq!(why(detach(&process, &[exchange])), Refusal::Gone);
    kill_process(Pid::from_child(&second), Signal::KILL).unwrap();
    second.wait().unwrap();
}
