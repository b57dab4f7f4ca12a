//! `set` gives a running domain another home and takes its memory there.

use nearside_lab::{
    Domain, MIB, Signal, available_bytes, await_that, domains, huge_pages, json, nearside, read,
    run, send, status, stderr, stdout, toucher, words, write,
};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

const SIZE_MIB: u64 = 64;

fn all_on(node: u32) -> BTreeMap<u32, u64> {
    [(node, SIZE_MIB)].into()
}

fn start(flags: &str, kind: &str) -> Domain {
    let flags = format!("--quiet --name mover --cpus 2 --memory {SIZE_MIB}M {flags}");
    Domain::start(&flags, &format!("--mib {SIZE_MIB} --kind {kind} --threads 2"))
}

/// A move's report and its exit code.
fn set(flags: &str) -> (serde_json::Value, Output) {
    let output = run(words(&format!("set mover --format json {flags}")));
    (serde_json::from_slice(&output.stdout).unwrap_or_default(), output)
}

/// The recorded part of the domain.
fn record() -> serde_json::Value {
    let text = read("/run/nearside/domains/mover.json");
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["subject"]["domain"]["parts"][0].take()
}

#[test]
fn strict_memory_of_every_kind_moves_to_the_last_page_and_its_policy_with_it() {
    huge_pages(1, 40);
    huge_pages(2, 40);
    for kind in ["anon", "thp", "shm", "huge"] {
        let pages = if kind == "huge" { "--page-size 2M" } else { "" };
        let domain = start(&format!("--policy strict --nodes 1 {pages}"), kind);
        assert_eq!(domain.filled_mib(), all_on(1), "{kind}");
        let (report, output) = set("--nodes 2 --move-memory");
        assert_eq!(output.status.code(), Some(0), "{kind}: {}", stderr(&output));
        assert_eq!(domain.filled_mib(), all_on(2), "{kind}: {report}");
        assert!(report["moved_bytes"].as_u64().unwrap() >= SIZE_MIB * MIB, "{kind}: {report}");
        assert_eq!(domain.policy(), "bind:2", "{kind}");
        assert_eq!(status(domain.process(), "Mems_allowed_list"), "2", "{kind}");
        assert_eq!(status(domain.process(), "Cpus_allowed_list"), "4-5", "{kind}");
        assert_eq!(record()["home"]["origin"], "explicit");
        assert!(record()["moving_to"].is_null());
        // The remainder is the last huge page, not the memory controller's lag.
        let mover = &json("list")["domains"][0];
        assert!(mover["debt_bytes"].as_u64().unwrap() < 4 * MIB, "{kind}: {mover}");
        domain.end();
    }
    huge_pages(1, 0);
    huge_pages(2, 0);
}

#[test]
fn moving_a_preferred_domain_reports_that_its_processes_keep_their_policy() {
    let domain = start("--policy preferred --nodes 1", "anon");
    let output = run(words("set mover --nodes 3 --move-memory"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("keep preferred on the old nodes"), "{}", stdout(&output));
    assert_eq!((domain.filled_mib(), domain.policy().as_str()), (all_on(3), "prefer:1"));
    let later =
        nearside().args(words("exec mover -- head -1 /proc/self/numa_maps")).output().unwrap();
    assert!(stdout(&later).contains("prefer:3"), "{}", stdout(&later));
}

#[test]
fn mapped_files_stay_with_their_other_users() {
    let domain = start("--policy preferred --nodes 1", "anon");
    let mut other = Command::new(toucher());
    let mut other =
        other.args(["--mib", "1"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let library = || {
        let maps = read(&format!("/proc/{}/numa_maps", other.id()));
        let pages = |(node, pages): (&str, &str)| (node.to_owned(), pages.parse::<u64>().unwrap());
        let nodes = |line: &str| {
            line.split(' ')
                .filter(|word| word.starts_with('N'))
                .filter_map(|word| word.split_once('='))
                .map(pages)
                .collect()
        };
        maps.lines()
            .filter(|line| line.contains("libc.so") && !line.contains("anon="))
            .map(nodes)
            .collect()
    };
    let before: Vec<BTreeMap<String, u64>> = library();
    assert_eq!(set("--nodes 3 --move-memory").1.status.code(), Some(0));
    let after = library();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(!before.is_empty());
    // It may have used more of it meanwhile.
    let has_stayed = |(after, before): (&BTreeMap<_, _>, &BTreeMap<_, _>)| {
        after.keys().eq(before.keys()) && before.iter().all(|(node, pages)| after[node] >= *pages)
    };
    assert!(
        after.len() == before.len() && after.iter().zip(&before).all(has_stayed),
        "{before:?} {after:?}"
    );
    assert_eq!(domain.filled_mib(), all_on(3));
}

#[test]
fn a_strict_domain_that_moves_without_its_memory_may_use_both_homes() {
    let domain = start("--policy strict --nodes 1", "anon");
    let (report, output) = set("--nodes 2");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(report["notes"].to_string().contains("--move-memory"), "{report}");
    assert_eq!(
        (domain.filled_mib(), status(domain.process(), "Mems_allowed_list").as_str()),
        (all_on(1), "1-2")
    );
    assert_eq!(set("--nodes 2 --move-memory").1.status.code(), Some(0));
    assert_eq!(
        (domain.filled_mib(), status(domain.process(), "Mems_allowed_list").as_str()),
        (all_on(2), "2")
    );
}

#[test]
fn in_a_larger_home_running_processes_stay_bound_to_one_node_with_a_notice() {
    let domain = start("--policy strict --nodes 1", "anon");
    let (report, output) = set("--nodes 2-3 --move-memory");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mib = domain.filled_mib();
    assert!(
        mib.keys().all(|node| [2, 3].contains(node)) && mib.values().sum::<u64>() >= SIZE_MIB - 1,
        "{mib:?}"
    );
    assert_eq!(
        (domain.policy().as_str(), status(domain.process(), "Mems_allowed_list").as_str()),
        ("bind:2", "2-3")
    );
    assert!(report["notes"].to_string().contains("as many nodes as before (1)"), "{report}");
}

#[test]
fn memory_goes_to_the_new_claim_and_memory_at_home_stays() {
    // Node 2 is nearest to node 3, and nodes 0 and 1 belong to the new home just as well.
    for (policy, from, stays_mib) in [("strict", "3", 0), ("interleave", "2-3", SIZE_MIB / 2)] {
        let domain = start(&format!("--policy {policy} --nodes {from}"), "anon");
        let (report, output) = set("--nodes 0-2 --move-memory");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let record = record();
        let mut owed: BTreeMap<u32, u64> =
            serde_json::from_value(record["claim"]["bytes"].clone()).unwrap();
        owed.values_mut().for_each(|bytes| *bytes /= MIB);
        if stays_mib > 0 {
            let others = (SIZE_MIB - stays_mib) / 2;
            owed = [(0, others), (1, others), (2, stays_mib)].into();
        }
        let filled = domain.filled_mib();
        assert_eq!(filled.keys().collect::<Vec<_>>(), owed.keys().collect::<Vec<_>>(), "{report}");
        // Pages that may be one huge page stay together, and the program has some pages besides the
        // filled ones.
        let is_near = |node: u32| filled[&node].abs_diff(owed[&node]) <= 6;
        assert!((0..=2).all(is_near), "{policy}: {filled:?} for {owed:?}");
        domain.end();
    }
}

#[test]
fn a_process_that_ends_during_the_move_is_no_failure() {
    let domain = start("--policy strict --nodes 1", "anon");
    let mut command = nearside();
    let command = command.args(["exec", "mover", "--", &toucher(), "--mib", "32"]);
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let mover = domain.slow_move("mover", 2, 8);
    other.kill().unwrap();
    other.wait().unwrap();
    let output = mover.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(domain.filled_mib(), all_on(2));
}

#[test]
fn an_interrupted_move_is_gone_on_with_by_the_same_command() {
    let domain = start("--policy strict --nodes 1", "anon");
    let mover = domain.slow_move("mover", 2, 1);
    send(mover.id(), Signal::INT);
    let output = mover.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("go on with: nearside set mover --nodes 2 --move-memory"),
        "{}",
        stderr(&output)
    );
    let bytes = domain.filled_mib();
    assert!(bytes[&1] > 0 && bytes[&2] > 0, "{bytes:?}");
    assert_eq!(status(domain.process(), "Mems_allowed_list"), "1-2");
    assert_eq!(record()["moving_to"], "2");

    let (report, output) = set("--nodes 2 --move-memory");
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!(domain.filled_mib(), all_on(2));
    assert_eq!(status(domain.process(), "Mems_allowed_list"), "2");
    assert!(record()["moving_to"].is_null());
}

#[test]
fn a_killed_move_leaves_a_domain_that_runs_and_can_be_moved() {
    let domain = start("--policy strict --nodes 1", "shm");
    let mut mover = domain.slow_move("mover", 2, 1);
    mover.kill().unwrap();
    mover.wait().unwrap();
    assert_eq!(status(domain.process(), "Mems_allowed_list"), "1-2");
    assert_eq!(set("--nodes 1 --move-memory").1.status.code(), Some(0), "and back");
    assert_eq!((domain.filled_mib(), domain.policy().as_str()), (all_on(1), "bind:1"));
}

#[test]
fn a_domain_that_ends_during_its_move_is_reported_as_ended() {
    let domain = start("--policy strict --nodes 1", "anon");
    let mover = domain.slow_move("mover", 2, 1);
    domain.end();
    let output = mover.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("the domain has ended"), "{}", stderr(&output));
    // The next start removes the record.
    await_that("the domain has ended", || domains().is_empty());
    let next = run(words("run -q --name sweeper --memory 1M -- true"));
    assert!(next.status.success(), "{}", stderr(&next));
    assert!(!std::path::Path::new("/run/nearside/domains/mover.json").exists());
}

#[test]
fn the_last_of_two_commands_decides() {
    let domain = start("--policy strict --nodes 1", "anon");
    let first = domain.slow_move("mover", 2, 1);
    assert_eq!(set("--nodes 3 --move-memory").1.status.code(), Some(0));
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("another command"), "{}", stderr(&output));
    assert_eq!(
        (domain.filled_mib(), status(domain.process(), "Mems_allowed_list").as_str()),
        (all_on(3), "3")
    );
}

#[test]
fn pages_without_room_on_the_target_stay_and_the_reason_is_named() {
    write("/proc/sys/vm/drop_caches", "3");
    let full = available_bytes()[3] / MIB - 250;
    let filler = format!("--quiet --name filler --policy strict --nodes 3 --memory {}M", full + 4);
    let _filler = Domain::start(&filler, &format!("--mib {full}"));
    let memory = read("/sys/devices/system/node/node3/meminfo");
    let figure = |name: &str| {
        let line = memory.lines().find(|line| line.contains(name)).unwrap();
        line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
    };
    // More memory than would be free if the kernel gave its last page and all reclaimable memory,
    // in whole huge pages. Pages on each CPU's own free list are free as well, and in none of these
    // figures.
    let most_kib: u64 = ["MemFree:", "FilePages:", "SReclaimable:"].map(figure).iter().sum();
    let size = (most_kib / 1024 + 128) / 2 * 2;
    huge_pages(1, size / 2);
    for (kind, flags, why) in
        [("huge", "--nodes 1 --page-size 2M", "no-huge-page"), ("anon", "--nodes 0-1", "no-room")]
    {
        let flags =
            format!("--quiet --name mover --memory {size}M --policy preferred-many {flags}");
        let domain = Domain::start(&flags, &format!("--mib {size} --kind {kind}"));
        let (report, output) = set("--nodes 3 --move-memory --rate unlimited");
        let bytes = domain.filled_mib();
        assert_eq!(output.status.code(), Some(3), "{kind}: {bytes:?} {report}");
        let stayed =
            report["stayed_bytes"][why].as_u64().unwrap_or_else(|| panic!("{kind}: {report}"))
                / MIB;
        let off_target: u64 =
            bytes.iter().filter(|(node, _)| **node != 3).map(|(_, mib)| mib).sum();
        assert!(stayed >= off_target && off_target > 0, "{kind}: {bytes:?} {report}");
        domain.end();
        huge_pages(1, 0);
        huge_pages(3, 0);
    }
}

#[test]
fn pinned_pages_are_busy_and_stay_to_the_last_one() {
    let domain = Domain::start(
        "--quiet --name mover --memory 64M --policy preferred --nodes 1",
        "--mib 32 --pin 8",
    );
    let (report, output) = set("--nodes 3 --move-memory");
    assert_eq!(output.status.code(), Some(3), "{report}");
    assert_eq!(report["stayed_bytes"], serde_json::json!({ "busy": 8 * MIB }), "{report}");
    assert_eq!(domain.filled_mib(), BTreeMap::from([(1, 8), (3, 24)]), "{report}");
    domain.end();
}

#[test]
fn memory_that_no_process_maps_stays_and_is_named() {
    let script = "dd if=/dev/zero of=/dev/shm/left bs=1M count=16 2>&1 && echo ready && read line";
    let mut child = nearside()
        .args(words("run --quiet --name mover --memory 64M --policy preferred --nodes 1 -- sh -c"))
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ready =
        BufReader::new(child.stdout.take().unwrap()).lines().any(|line| line.unwrap() == "ready");
    assert!(ready, "16 MiB of tmpfs could not be written");
    let (report, output) = set("--nodes 3 --move-memory");
    assert_eq!(output.status.code(), Some(3), "{report}");
    // The memory controller lags by up to 4 MiB on 8 CPUs.
    let stayed =
        report["stayed_bytes"]["not-mapped"].as_u64().unwrap_or_else(|| panic!("{report}"));
    assert!(stayed.abs_diff(16 * MIB) < 4 * MIB, "{report}");
    assert!(
        stderr(&output).contains("memory that no process maps cannot be moved"),
        "{}",
        stderr(&output)
    );
    std::fs::remove_file("/dev/shm/left").unwrap();
    let (report, output) = set("--nodes 3 --move-memory");
    assert_eq!(output.status.code(), Some(0), "{report}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn senseless_requests_are_refused_and_change_nothing() {
    let domain = start("--policy strict --nodes 1", "anon");
    std::fs::create_dir("/sys/fs/cgroup/foreign").unwrap();
    let cases = [
        ("mover --nodes 9", 2, "9"),
        ("mover --nodes all,^0-3", 2, "all,^0-3"),
        ("mover --nodes 1-0", 2, "1-0"),
        ("mover --nodes 1 --move-memory --rate fast", 2, "fast"),
        ("nobody --nodes 1", 1, "no domain named \"nobody\""),
        ("/foreign --nodes 1", 1, "not started by `nearside run`"),
        ("mover", 2, "--nodes"),
    ];
    for (arguments, code, said) in cases {
        let output = run(words(&format!("set {arguments}")));
        assert_eq!(output.status.code(), Some(code), "{arguments}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(said),
            "{arguments}: expected \"{said}\" in: {}",
            stderr(&output)
        );
    }
    std::fs::remove_dir("/sys/fs/cgroup/foreign").unwrap();
    let plan = run(words("set mover --nodes 2 --move-memory --dry-run"));
    assert!(stdout(&plan).contains("move pages to node 2, at most 1 GiB/s"), "{}", stdout(&plan));
    assert_eq!(
        (domain.filled_mib(), status(domain.process(), "Mems_allowed_list").as_str()),
        (all_on(1), "1")
    );
    assert_eq!(record()["home"]["nodes"], "1");
}

/// Output of a move on a terminal, with these redirections.
fn shown_on_a_terminal(to: u32, redirections: &str) -> String {
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    let script = format!(
        "stty cols 100; \
         {binary} set mover --nodes {to} --move-memory --rate 64M {redirections}; echo code $?"
    );
    let mut command = Command::new("script");
    let output = command
        .env("TERM", "xterm")
        .args(["-qec", &script, "/dev/null"])
        .stdin(Stdio::null())
        .output();
    let shown = stdout(&output.unwrap());
    assert!(shown.contains("code 0"), "{shown}");
    shown
}

#[test]
fn only_a_terminal_shows_the_progress_of_a_move_as_a_bar() {
    const BAR: &str = "moving [";
    let domain = start("--policy strict --nodes 1", "anon");
    let shown = shown_on_a_terminal(2, ">/tmp/report");
    assert!(shown.contains(BAR) && shown.contains("of 64"), "{shown:?}");
    assert_eq!(domain.filled_mib(), all_on(2));
    // The report goes to the file.
    let report = read("/tmp/report");
    assert!(
        report.contains("mover") && !report.contains(BAR) && !report.contains('\r'),
        "{report:?}"
    );

    let shown = shown_on_a_terminal(1, "2>/tmp/errors");
    assert!(!shown.contains(BAR), "{shown:?}");
    // A move of some seconds prints whole lines; a shorter one prints none.
    let errors = read("/tmp/errors");
    assert!(!errors.contains(BAR) && !errors.contains('\r'), "{errors:?}");
    assert_eq!(errors.lines().find(|line| !line.starts_with("nearside: moving: ")), None);
    assert_eq!(domain.filled_mib(), all_on(1));
}
