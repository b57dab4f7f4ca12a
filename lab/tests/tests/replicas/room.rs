//! Copies respect memory that others need. Each test removes its file, which takes memory, too.

use super::helper::{Python, Replicator, add, await_state, plugin, status, write_on_all_nodes};
use nearside_lab::{
    Domain, assert_refused, assert_the_kernel_covers_all_claims, await_that, daemon::Daemon, end,
    nearside, parallel_starts, run, stderr, toucher, words, write,
};
use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Command},
};

#[test]
fn the_budget_bounds_the_copies_of_a_node() {
    let path = plugin("large");
    fs::write(&path, vec![7; 8 << 20]).unwrap();
    let small = plugin("small");
    let replicator = Replicator::start("--budget 6M");
    let price = run(words("replicate add --dry-run --nodes 0-1").chain([&*path]));
    // It is below a twentieth of a node of this machine.
    assert_eq!((price.status.code(), &*stderr(&price)), (Some(0), ""));
    let refused = run(words("replicate add --nodes 0-1").chain([&*path]));
    assert_eq!(refused.status.code(), Some(1));
    let why = "it has 8 MiB, and the budget for copies is 6 MiB (--budget)";
    assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    // It has no copy anywhere, so its lease is given back.
    await_state(&path, "candidate");
    add("--nodes 0-1", std::slice::from_ref(&small), "replicated");
    let report = nearside_lab::stdout(&run(words("replicate status")));
    assert!(report.contains(why), "{report}");
    fs::write(&path, "nobody holds a lease").unwrap();
    // One that would have room but for others waits.
    let others = ["first", "second"].map(plugin);
    for other in &others {
        fs::write(other, vec![7; 4 << 20]).unwrap();
    }
    let added = run(words("replicate add --nodes 0").map(str::to_owned).chain(others.clone()));
    assert!(added.status.success(), "{}", stderr(&added));
    let spent = "no room: the budget for copies (--budget) is spent";
    assert!(stderr(&added).contains(spent), "{}", stderr(&added));
    replicator.stop();
    for file in others.iter().chain([&path]) {
        fs::remove_file(file).unwrap();
    }
}

fn available_mib(node: usize) -> u64 {
    let stat = nearside_lab::json("stat --interval 0");
    stat["nodes"][node]["available_bytes"].as_u64().unwrap() >> 20
}

fn oom_kills() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    value.unwrap().parse().unwrap()
}

/// The memory that the kernel has taken from a process.
fn swapped(hog: &Domain) -> String {
    nearside_lab::status(hog.process(), "VmSwap")
}

fn has_copy(path: &str, node: u32) -> bool {
    status(path).is_some_and(|it| it["copies"][node.to_string()].is_object())
}

/// The memory of former copies that processes keep, by node.
fn kept_bytes() -> BTreeMap<String, u64> {
    serde_json::from_value(nearside_lab::json("replicate status")["kept_bytes"].clone()).unwrap()
}

/// Swap, without which the kernel could take no page from a process. Dropping this ends it.
struct Swap;

const ZRAM: &str = "/sys/block/zram0";

impl Swap {
    fn on() -> Self {
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            assert!(output.status.success(), "{program}: {}", stderr(&output));
        };
        run("modprobe", &["zram"]);
        write(&format!("{ZRAM}/disksize"), "256M");
        run("mkswap", &["/dev/zram0"]);
        run("swapon", &["/dev/zram0"]);
        Self
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg("/dev/zram0").status();
        let _ = fs::write(format!("{ZRAM}/reset"), "1");
    }
}

#[test]
fn copies_go_before_a_hog_loses_a_page_and_return_after_it() {
    let _swap = Swap::on();
    let path = plugin("yielding");
    fs::write(&path, vec![7; 100 << 20]).unwrap();
    let replicator = Replicator::start("--budget 200M");
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", replicator.child.id()));
    assert_eq!(score.unwrap(), "-900\n", "the kernel kills others first");
    add("--nodes 2-3", std::slice::from_ref(&path), "replicated");
    // A page that the domain has written keeps its copy of the file in memory.
    let mut domain = Python::at_home("writing", 2);
    domain.exec(&format!(
        "import mmap\nfile = open('{path}', 'rb')\n\
         text = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)\ntext[0] = 1\nfile.close()"
    ));
    assert_eq!(domain.eval("text[:2]"), r"b'\x01\x07'");
    // Their memory is free, and promised.
    let mut claimers = Vec::new();
    for node in 0..2 {
        let (name, mib) = (format!("promised{node}"), available_mib(node) - 40);
        let flags = format!("run --quiet --name {name} --nodes {node} --policy strict");
        let flags = format!("{flags} --memory {mib}M -- sleep 1000000");
        claimers.push(nearside().args(words(&flags)).spawn().unwrap());
        await_that("it claims", || nearside_lab::domains().contains(&name));
    }
    let kills = oom_kills();
    // More than fits beside the copy, and bound to its node: the kernel could only kill.
    let mib = available_mib(2) + 60;
    let command = &mut Command::new("numactl");
    let hog = Domain::wrapped(command.args(["--membind", "2"]), &format!("--mib {mib}"));
    assert!(!has_copy(&path, 2) && has_copy(&path, 3), "{:?}", status(&path));
    assert_eq!((oom_kills(), swapped(&hog)), (kills, "0 kB".into()));
    assert_eq!(domain.eval("text[:2]"), r"b'\x01\x07'");
    let kept = kept_bytes();
    assert!(kept.keys().eq(["3"]) && kept["3"] >= 100 << 20, "{kept:?}");
    end(claimers);
    drop(domain);
    await_that("nobody keeps the copy", || kept_bytes().is_empty());
    drop(hog);
    await_that("the copy returns", || has_copy(&path, 2));
    replicator.stop();
    fs::remove_file(&path).unwrap();
}

/// The hog is bound to its node, so the kernel could only kill it or the copier.
#[test]
fn a_hog_that_comes_while_a_copy_is_made_gets_the_memory() {
    let path = plugin("overtaken");
    write_on_all_nodes(&path, 200 << 20);
    let replicator = Replicator::start("--budget 300M");
    let _swap = Swap::on();
    let kills = oom_kills();
    let mut is_amid_a_copy = false;
    for round in 0..5 {
        let mib = available_mib(2) - 40;
        let output = run(["replicate", "add", "--no-wait", "--nodes", "2-3", &path]);
        assert!(output.status.success(), "{}", stderr(&output));
        is_amid_a_copy = status(&path).unwrap()["state"] == "copying" && !has_copy(&path, 2);
        let command = &mut Command::new("numactl");
        let hog = Domain::wrapped(command.args(["--membind", "2"]), &format!("--mib {mib}"));
        assert!(!has_copy(&path, 2), "round {round}: {:?}", status(&path));
        assert_eq!((oom_kills(), swapped(&hog)), (kills, "0 kB".into()), "{round}");
        await_that("the other node has its copy", || has_copy(&path, 3));
        drop(hog);
        assert!(run(["replicate", "remove", &path]).status.success());
        await_that("the file is free", || status(&path).is_none());
        if is_amid_a_copy {
            break;
        }
    }
    assert!(is_amid_a_copy, "each copy was complete before its hog came");
    replicator.stop();
    fs::remove_file(&path).unwrap();
}

/// A virtual machine whose guest does not run.
const QEMU: &str = "qemu-system-x86_64 -accel tcg -machine q35 -nodefaults -display none -S \
    -monitor none -smp 1";

#[test]
fn claims_of_all_kinds_get_the_memory_of_copies() {
    let path = plugin("making-room");
    fs::write(&path, vec![7; 100 << 20]).unwrap();
    let replicator = Replicator::start("--budget 200M");
    let with_copy = |claim: &dyn Fn()| {
        add("--nodes 1", std::slice::from_ref(&path), "replicated");
        claim();
        assert!(!has_copy(&path, 1), "{:?}", status(&path));
        assert!(run(["replicate", "remove", &path]).status.success());
        await_that("the file is free", || status(&path).is_none());
    };
    let succeeds = |flags: &str| {
        let output = run(words(flags));
        assert!(output.status.success(), "{flags}: {}", stderr(&output));
    };
    let is_there = |name: &str| nearside_lab::domains().contains(&name.to_owned());
    let start = |flags: &str, name: &str| {
        let child = nearside().args(words(flags)).spawn().unwrap();
        await_that(name, || is_there(name));
        child
    };
    let end = |mut child: Child, name: &str| {
        child.kill().unwrap();
        child.wait().unwrap();
        await_that("its end", || !is_there(name));
    };
    let too_much = || available_mib(1) + 60;

    with_copy(&|| {
        let mib = too_much();
        succeeds(&format!(
            "run --quiet --name roomy --nodes 1 --policy strict --memory {mib}M -- true"
        ));
    });
    with_copy(&|| {
        let mib = too_much();
        let vm = start(&format!("run --quiet --vm --name vm --nodes 1 -- {QEMU} -m {mib}M"), "vm");
        end(vm, "vm");
    });
    with_copy(&|| {
        let run = "run --quiet --name mover --nodes 0,2-3 --policy strict";
        let mover = start(&format!("{run} --memory {}M -- sleep 1000000", too_much()), "mover");
        assert!(has_copy(&path, 1));
        succeeds("set mover --nodes 1 --no-daemon");
        end(mover, "mover");
    });
    with_copy(&|| {
        let daemon = Daemon::start("scheduler = \"off\"");
        let run = "run --quiet --name moved --nodes 0,2-3 --policy strict";
        let moved = start(&format!("{run} --memory {}M -- sleep 1000000", too_much()), "moved");
        assert!(has_copy(&path, 1));
        succeeds("set moved --nodes 1");
        end(moved, "moved");
        daemon.stop();
    });
    with_copy(&|| {
        let mib = (0..4).map(available_mib).sum::<u64>() + 60;
        // An answer that cannot be printed is taken back: the memory is free for the next test.
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut numad = nearside();
        numad.args(words(&format!("numad --refuse --within 600 -w 1:{mib}"))).stdout(full);
        let said = stderr(&numad.output().unwrap());
        assert!(said.contains("the answer reached nobody"), "{said}");
    });
    replicator.stop();
    fs::remove_file(&path).unwrap();
}

#[test]
fn copies_and_claims_never_promise_the_same_memory() {
    let path = plugin("claimed");
    fs::write(&path, vec![7; 64 << 20]).unwrap();
    let replicator = Replicator::start("--budget 200M");
    // A claim that leaves less than the copy needs.
    let available = nearside_lab::json("stat --interval 0")["nodes"][2]["available_bytes"].as_u64();
    let claim_mib = (available.unwrap() >> 20) - 40;
    let mut claimer = nearside_lab::nearside();
    let flags =
        format!("run --quiet --name big --nodes 2 --policy strict --memory {claim_mib}M --");
    let mut claimer = claimer.args(words(&flags)).args(["sleep", "1000000"]).spawn().unwrap();
    nearside_lab::await_that("it claims", || nearside_lab::domains().contains(&"big".to_owned()));
    add("--nodes 2-3", std::slice::from_ref(&path), "replicated");
    let it = status(&path).unwrap();
    assert!(it["copies"]["2"].is_null() && it["copies"]["3"].is_object(), "{it}");
    let why = it["refused"]["2"].to_string();
    assert!(why.contains("node 2"), "{it}");
    claimer.kill().unwrap();
    claimer.wait().unwrap();
    // The operator asks again once there is room.
    let output = run(["replicate", "add", "--nodes", "2-3", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    nearside_lab::await_that("both have one", || {
        status(&path).is_some_and(|it| it["copies"]["2"].is_object())
    });
    replicator.stop();
    fs::remove_file(&path).unwrap();
}

/// Three of the claims fit beside no copy, two beside all of them.
#[test]
fn claims_and_copies_that_come_at_once_never_promise_the_same_memory() {
    let files: Vec<_> = (0..4).map(|number| plugin(&format!("racing{number}"))).collect();
    files.iter().for_each(|file| write_on_all_nodes(file, 40 << 20));
    let replicator = Replicator::start("--budget 300M");
    let kills = oom_kills();
    let mib = available_mib(1) / 3;
    let add = |file: &String| {
        let flags = ["replicate", "add", "--no-wait", "--nodes", "1-2", file];
        nearside().args(flags).spawn().unwrap()
    };
    let adds: Vec<_> = files.iter().map(add).collect();
    let command = [&toucher(), "--mib", &mib.to_string()];
    let (running, refused) = parallel_starts(4, "--nodes 1", mib << 20, &command);
    let check = || {
        assert_the_kernel_covers_all_claims(running.iter().map(|it| (it.id(), mib << 20)));
        assert_eq!(oom_kills(), kills);
    };
    check();
    assert!((2..=3).contains(&running.len()), "{}", running.len());
    assert_refused(refused);
    for mut add in adds {
        assert!(add.wait().unwrap().success());
    }
    await_that("no copy is being made", || {
        files.iter().all(|it| status(it).is_some_and(|it| it["state"] != "copying"))
    });
    check();
    end(running);
    replicator.stop();
    files.iter().for_each(|file| fs::remove_file(file).unwrap());
}
