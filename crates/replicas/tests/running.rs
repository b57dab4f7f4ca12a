//! Exchanges in running processes, which must notice nothing. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod common;

use common::{Line, Stage, Victim, attach, has, inode, is_root, lines, run};
use nearside_replicas::{
    FileId,
    remap::{Exchange, Keep, RemapError, Segment, detach},
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::{
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

/// The files that a process maps from the system, by their own paths.
fn mapped_files(pid: i32) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = lines(pid, Path::new("/"))
        .into_iter()
        .filter(|line| line.protection == "r-xp")
        .map(|line| line.name.into())
        .collect();
    files.sort();
    files.dedup();
    files
}

#[test]
fn a_busy_process_notices_nothing_of_200_exchanges() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("busy", &[]);
    // libc and the dynamic loader, too.
    let files = mapped_files(victim.pid());
    assert!(files.len() >= 4, "{files:?}");
    let before: Vec<_> = files.iter().map(|file| victim.lines(file)).collect();
    let process = victim.process();
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let exchanges = victim.mount(&stage, &files);
        let report = attach(&process, &exchanges).unwrap();
        assert_eq!(report.threads, 9);
        slowest = slowest.max(report.stopped);
        for exchange in &exchanges {
            let now = victim.lines(&exchange.path);
            assert!(now.iter().all(|line| line.name == exchange.path.to_str().unwrap()));
            let text: Vec<_> = now.iter().filter(|line| line.protection == "r-xp").collect();
            assert!(!text.is_empty());
            assert!(text.iter().all(|line| line.inode == exchange.to.inode), "{now:?}");
        }
        let exchanges = victim.unmount(&exchanges);
        let report = detach(&process, &exchanges).unwrap();
        slowest = slowest.max(report.stopped);
        assert_eq!(report.kept, []);
    }
    let after: Vec<_> = files.iter().map(|file| victim.lines(file)).collect();
    assert_eq!(after, before, "the same segments, addresses and names as at first");
    let (code, words) = victim.finish();
    println!("slowest stop {slowest:?}; {words}");
    assert_eq!(code, Some(0), "{words}");
}

#[test]
fn python_runs_on_with_its_extension_modules() {
    if !is_root() || !has("python3") {
        return;
    }
    let stage = Stage::new();
    let script = "
import ctypes, decimal, hashlib, json, sys, threading, zlib
def work():
    text = json.dumps(list(range(500))).encode()
    return (hashlib.sha256(zlib.compress(text)).hexdigest(), decimal.Decimal(2).sqrt(),
            ctypes.c_int(7).value)
first, wrong, stop = work(), [], threading.Event()
def loop():
    while not stop.is_set():
        if work() != first: wrong.append(work())
threads = [threading.Thread(target=loop) for _ in range(3)]
for thread in threads: thread.start()
print('ready', flush=True)
sys.stdin.read()
stop.set()
for thread in threads: thread.join()
print(len(wrong), 'wrong')
";
    // The real executable, since wrappers start another process.
    let python = run("python3", &["-c", "import sys; print(sys.executable)"]);
    let victim = Victim::start(python.trim(), &["-c", script]);
    let files = mapped_files(victim.pid());
    assert!(files.iter().any(|file| file.to_str().unwrap().contains("lib-dynload")), "{files:?}");
    for _ in 0..10 {
        let exchanges = victim.mount(&stage, &files);
        let report = attach(&victim.process(), &exchanges).unwrap();
        assert!(report.changed.len() >= files.len(), "{report:?}");
        let exchanges = victim.unmount(&exchanges);
        assert_eq!(detach(&victim.process(), &exchanges).unwrap().kept, []);
    }
    let (code, words) = victim.finish();
    assert_eq!((code, words.as_str()), (Some(0), "0 wrong\n"));
}

#[test]
fn a_page_that_the_process_wrote_stays_its_own() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("odd", &["written"]);
    let library = stage.path("libvictim.so");
    let exchanges = victim.mount(&stage, &stage.files("odd"));
    let report = attach(&victim.process(), &exchanges).unwrap();
    let of_library = |segment: &Segment| segment.name.as_deref() == Some(library.as_path());
    assert!(report.kept.iter().any(|kept| kept.why == Keep::PrivatePages
        && kept.segment.protection.execute
        && of_library(&kept.segment)));
    let original = inode(&library);
    let text = victim.lines(&library);
    let stays = |line: &&Line| line.protection == "r-xp" && line.inode == original;
    assert!(text.iter().any(|line| stays(&line)), "{text:?}");
    assert!(report.changed.iter().any(|segment| !of_library(segment)), "the program changes");
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn detaching_takes_all_but_the_written_pages_of_a_process_that_started_on_the_replica() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    // A shell in the namespace mounts, then becomes the program.
    let files = stage.files("odd");
    let mut script = String::new();
    for file in &files {
        let replica = stage.replica(file);
        script += &format!("mount --bind {} {}; ", replica.display(), file.display());
    }
    script += &format!("exec {} written", files[0].display());
    let victim = Victim::start("sh", &["-c", &script]);
    let attached: Vec<Exchange> = files
        .iter()
        .map(|file| Exchange {
            path: file.clone(),
            from: FileId::at(file).unwrap(),
            to: FileId::at(&stage.replica(file)).unwrap(),
        })
        .collect();
    let on_replica = |victim: &Victim| -> u64 {
        let replicas: Vec<u64> = attached.iter().map(|exchange| exchange.to.inode).collect();
        // Behind a lazy unmount only a part of the name is left.
        let all = lines(victim.pid(), Path::new("/"));
        let ours = all.iter().filter(|line| replicas.contains(&line.inode));
        ours.map(|line| {
            let (start, end) = line.addresses.split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
        })
        .sum()
    };
    let before = on_replica(&victim);
    let exchanges = victim.unmount(&attached);
    let report = detach(&victim.process(), &exchanges).unwrap();
    let kept: u64 = report.kept.iter().map(|kept| kept.bytes).sum();
    assert!(report.kept.iter().all(|kept| kept.why == Keep::PrivatePages), "{report:?}");
    assert!(kept > 0 && kept < before);
    assert_eq!(on_replica(&victim), kept, "only written pages are left");
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn descriptors_keep_number_offset_and_flags() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let library = stage.path("libvictim.so");
    let victim = stage.start("odd", &["plain"]);
    let exchanges = victim.mount(&stage, std::slice::from_ref(&library));
    let replica = stage.replica(&library);
    drop(victim);
    // It has the replica open by the replica's own path.
    let victim = stage.start("odd", &["open", replica.to_str().unwrap()]);
    let info = |number: u32| {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{number}", victim.pid())).unwrap();
        text.lines().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let open = |victim: &Victim| {
        let folder = fs::read_dir(format!("/proc/{}/fd", victim.pid())).unwrap();
        let mut numbers: Vec<_> = folder.map(|entry| entry.unwrap().file_name()).collect();
        numbers.sort();
        numbers
    };
    let open_before = open(&victim);
    let before = [info(21), info(22), info(23)];
    assert_eq!(before[1][0], "pos:\t1000");
    let back = Exchange { path: library.clone(), from: exchanges[0].to, to: exchanges[0].from };
    let report = detach(&victim.process(), &[back]).unwrap();
    assert_eq!(report.descriptors, [21, 22, 23]);
    assert_eq!([info(21), info(22), info(23)], before);
    for number in [21, 22, 23] {
        let link = fs::read_link(format!("/proc/{}/fd/{number}", victim.pid())).unwrap();
        assert_eq!(link, library);
    }
    // 21 and 22 still share an offset, which a process with both in hand can tell.
    let own = rustix::process::pidfd_open(
        Pid::from_raw(victim.pid()).unwrap(),
        rustix::process::PidfdFlags::empty(),
    )
    .unwrap();
    let take = |number: u32| {
        let flags = rustix::process::PidfdGetfdFlags::empty();
        rustix::process::pidfd_getfd(&own, number as i32, flags).unwrap()
    };
    let (first, second) = (take(21), take(22));
    rustix::fs::seek(&first, rustix::fs::SeekFrom::Start(77)).unwrap();
    assert_eq!(rustix::fs::tell(&second).unwrap(), 77);
    assert!(first.as_raw_fd() != second.as_raw_fd());
    assert_eq!(open(&victim), open_before, "none is left over");
    assert_eq!(victim.finish().0, Some(0));
}

#[test]
fn a_call_that_fails_half_way_leaves_everything_as_it_was() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("busy", &[]);
    let files = stage.files("busy");
    let all = |victim: &Victim| lines(victim.pid(), Path::new("/"));
    let before = all(&victim);
    let exchanges = victim.mount(&stage, &files);
    // The second file's text cannot be mapped, after the whole first file and read-only data.
    victim.remount(&files[1], "ro,noexec");
    for _ in 0..20 {
        let error = attach(&victim.process(), &exchanges).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, RemapError::Call { .. }), "{text}");
        assert!(text.contains("mmap") && text.contains("as before"), "{text}");
        assert_eq!(all(&victim), before);
    }
    victim.remount(&files[1], "ro,exec");
    assert_eq!(attach(&victim.process(), &exchanges).unwrap().threads, 9);
    let (code, words) = victim.finish();
    assert_eq!(code, Some(0), "{words}");
}

#[test]
fn another_file_at_the_path_is_not_mapped() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("odd", &["plain"]);
    let library = stage.path("libvictim.so");
    let (from, replica) = (FileId::at(&library).unwrap(), stage.replica(&library));
    let to = FileId::at(&replica).unwrap();
    // Nothing is mounted, so the path shows the original.
    let exchange = Exchange { path: library.clone(), from, to };
    let before = victim.lines(&library);
    match attach(&victim.process(), std::slice::from_ref(&exchange)).unwrap_err() {
        RemapError::OtherFile { expected, found, .. } => assert_eq!((expected, found), (to, from)),
        other => panic!("{other}"),
    }
    let missing = Exchange { path: stage.path("missing"), ..exchange.clone() };
    let error = attach(&victim.process(), &[missing]).unwrap_err();
    assert!(matches!(error, RemapError::Open { .. }), "{error}");
    for path in ["relative", "/zero\0byte"] {
        let exchange = Exchange { path: path.into(), ..exchange.clone() };
        let error = attach(&victim.process(), &[exchange]).unwrap_err();
        assert!(matches!(error, RemapError::BadPath { .. }), "{error}");
    }
    assert_eq!(victim.lines(&library), before);
    // A process that does not map the file is not stopped.
    let unknown = Exchange { from: FileId { device: 0, inode: 1 }, ..exchange };
    assert_eq!(attach(&victim.process(), &[unknown]).unwrap().threads, 0);
}

#[test]
fn a_stopped_process_stays_stopped_and_continues_afterwards() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("busy", &[]);
    let files = stage.files("busy");
    let pid = Pid::from_raw(victim.pid()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap().1;
    assert!(stopped.stopped());
    let mut attached = Vec::new();
    let tasks = |victim: &Victim| {
        let tasks = fs::read_dir(format!("/proc/{}/task", victim.pid())).unwrap();
        tasks.map(|task| task.unwrap().path()).collect::<Vec<_>>()
    };
    // Its threads stop, and after each exchange stop again, on their way out of the kernel.
    let await_stop = |victim: &Victim| {
        for task in tasks(victim) {
            let status = task.join("status");
            while !fs::read_to_string(&status).unwrap().contains("State:\tT (stopped)") {
                std::thread::yield_now();
            }
        }
    };
    // Stack pointer and program counter of each.
    let places = |victim: &Victim| {
        let mut places: Vec<_> = tasks(victim)
            .into_iter()
            .map(|task| (task.clone(), fs::read_to_string(task.join("syscall")).unwrap()))
            .collect();
        places.sort();
        places
    };
    await_stop(&victim);
    let before = places(&victim);
    for round in 0..6 {
        let exchanges = match round % 2 {
            0 => victim.mount(&stage, &files),
            _ => Vec::new(),
        };
        match round % 2 {
            0 => assert!(!attach(&victim.process(), &exchanges).unwrap().changed.is_empty()),
            _ => {
                let exchanges = victim.unmount(&attached);
                assert!(!detach(&victim.process(), &exchanges).unwrap().changed.is_empty());
            }
        }
        attached = exchanges;
        await_stop(&victim);
        assert_eq!(places(&victim), before, "no thread has run");
    }
    kill_process(pid, Signal::CONT).unwrap();
    let (code, words) = victim.finish();
    assert_eq!(code, Some(0), "{words}");
}

#[test]
fn stop_and_continue_signals_during_exchanges_are_not_lost() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("busy", &["bears-eintr"]);
    let pid = Pid::from_raw(victim.pid()).unwrap();
    let [there, back] = stage.there_and_back(&stage.files("busy"));
    let process = victim.process();
    // No `waitpid` here: it would take the tracer's reports, since both are one process.
    for round in 1..=20 {
        std::thread::scope(|scope| {
            let exchanging = scope.spawn(|| {
                for _ in 0..4 {
                    assert_eq!(attach(&process, &there).unwrap().threads, 9);
                    assert_eq!(detach(&process, &back).unwrap().threads, 9);
                }
            });
            let mut signals = [Signal::STOP, Signal::CONT].into_iter().cycle();
            while !exchanging.is_finished() {
                kill_process(pid, signals.next().unwrap()).unwrap();
                // The pace of the signals, another one each round.
                std::thread::sleep(Duration::from_micros(100 * round));
            }
        });
        kill_process(pid, Signal::STOP).unwrap();
        while victim.status("State") != "T (stopped)" {
            std::thread::yield_now();
        }
        kill_process(pid, Signal::CONT).unwrap();
    }
    let (code, words) = victim.finish();
    assert_eq!(code, Some(0), "{words}");
}

#[test]
fn a_process_that_only_computes_goes_on() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let mut victim = stage.start("odd", &["spinning"]);
    for _ in 0..100 {
        let exchanges = victim.mount(&stage, &stage.files("odd"));
        attach(&victim.process(), &exchanges).unwrap();
        let exchanges = victim.unmount(&exchanges);
        detach(&victim.process(), &exchanges).unwrap();
    }
    kill_process(Pid::from_raw(victim.pid()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(victim.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_handler_of_sigtrap_survives() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("odd", &["sigtrap"]);
    let signals = ["SigBlk", "SigCgt", "SigPnd", "ShdPnd"];
    let before = signals.map(|name| victim.status(name));
    let exchanges = victim.mount(&stage, &stage.files("odd"));
    assert!(!attach(&victim.process(), &exchanges).unwrap().changed.is_empty());
    assert_eq!(signals.map(|name| victim.status(name)), before);
    assert_eq!(victim.finish().0, Some(0), "its handler ran");
}

#[test]
fn locked_and_advised_segments_keep_both() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let flags = |victim: &Victim| -> Vec<(String, bool, bool)> {
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", victim.pid())).unwrap();
        let mut name = String::new();
        let mut all = Vec::new();
        for line in smaps.lines() {
            if line.contains("libvictim") {
                name = line.split(' ').take(2).collect::<Vec<_>>().join(" ");
            } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                let has = |flag: &str| flags.split(' ').any(|it| it == flag);
                all.push((std::mem::take(&mut name), has("lo"), has("dd")));
            }
        }
        all.retain(|(name, ..)| !name.is_empty());
        all
    };
    for (state, locked, advised) in [("locked", true, false), ("advised", false, true)] {
        let victim = stage.start("odd", &[state]);
        let before = flags(&victim);
        let count = before.iter().filter(|(_, lo, dd)| (*lo, *dd) == (locked, advised)).count();
        assert!(count > 0, "{before:?}");
        let exchanges = victim.mount(&stage, &stage.files("odd"));
        assert!(!attach(&victim.process(), &exchanges).unwrap().changed.is_empty());
        assert_eq!(flags(&victim), before);
        let exchanges = victim.unmount(&exchanges);
        detach(&victim.process(), &exchanges).unwrap();
        assert_eq!(flags(&victim), before);
        assert_eq!(victim.finish().0, Some(0));
    }
}

#[test]
fn a_process_killed_meanwhile_ends_the_exchange_with_an_error() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    for round in 0..40 {
        let victim = stage.start("busy", &[]);
        let [there, back] = stage.there_and_back(&stage.files("busy"));
        let process = victim.process();
        let pid = Pid::from_raw(victim.pid()).unwrap();
        std::thread::scope(|scope| {
            let exchanging = scope.spawn(|| {
                loop {
                    let done = attach(&process, &there).and_then(|_| detach(&process, &back));
                    match done {
                        Ok(report) => assert_eq!(report.threads, 9),
                        Err(error) => break error.to_string(),
                    }
                }
            });
            // A busy wait of another length each round, so that the kill strikes elsewhere.
            (0..round * 20_000).for_each(|it| {
                std::hint::black_box(it);
            });
            kill_process(pid, Signal::KILL).unwrap();
            println!("{}", exchanging.join().unwrap());
        });
    }
}

#[test]
fn gdb_and_perf_still_name_its_functions() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let victim = stage.start("odd", &["spinning"]);
    let exchanges = victim.mount(&stage, &stage.files("odd"));
    assert!(!attach(&victim.process(), &exchanges).unwrap().changed.is_empty());
    let pid = victim.pid().to_string();
    if has("gdb") {
        let text =
            run("gdb", &["-batch", "-nx", "-p", &pid, "-ex", "bt", "-ex", "info symbol mix"]);
        assert!(text.contains("mix in section .text"), "{text}");
        assert!(text.contains("main ("), "{text}");
    }
    if has("perf") {
        let data = stage.path("perf.data");
        let data = data.to_str().unwrap();
        run("perf", &["record", "-e", "cpu-clock", "-o", data, "-p", &pid, "--", "sleep", "0.5"]);
        let text = run("perf", &["report", "--stdio", "-i", data, "--sort", "dso,symbol"]);
        let named = text.lines().any(|line| line.contains("libvictim.so") && line.contains("mix"));
        assert!(named, "{text}");
    }
}
