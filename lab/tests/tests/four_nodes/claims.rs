//! Claims: nothing is promised twice, whoever starts at the same time and whoever is killed when.

use nearside_lab::{Domain, MIB, domains, json, nearside, read, run, stderr, toucher, unclaimed_bytes, words, write};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

/// Domains that claim what the larger nodes have more than the smallest, so that all nodes have alike to promise. Two
/// nodes' left-overs could else make a home for a ninth domain.
fn level() -> Vec<Domain> {
    write("/proc/sys/vm/drop_caches", "3");
    let free = unclaimed_bytes();
    let least = *free.iter().min().unwrap();
    let surplus = free.into_iter().enumerate().filter(|(_, free)| free - least > MIB);
    let filler = |(node, free): (usize, u64)| {
        let surplus = free - least;
        let flags = format!("--quiet --name level{node} --policy strict --nodes {node} --memory {surplus}");
        Domain::start(&flags, "--mib 1")
    };
    surplus.map(filler).collect()
}

/// A size of which exactly two fit each node of a levelled machine, with room for page cache that comes and goes.
fn two_a_node() -> u64 {
    let free = unclaimed_bytes();
    let size = free.iter().min().unwrap() / 2 - 12 * MIB;
    let left_over: u64 = free.iter().map(|free| free - 2 * size).sum();
    assert!(left_over + 32 * MIB < size, "a ninth may fit what is left over: {free:?}");
    size
}

fn parallel_starts(round: u32, bytes: u64, command: &[&str]) -> (Vec<Child>, Vec<Child>) {
    let start = |number: u32| {
        nearside()
            .args(["run", "--quiet", "--policy", "strict", "--name", &format!("p{round}-{number}")])
            .args(["--memory", &bytes.to_string(), "--"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<_> = (0..20).map(start).collect();
    // A domain says "ready"; a refused one closes its output without a word.
    let mut ready = |child: &mut Child| {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.starts_with("ready")
    };
    let flags: Vec<_> = children.iter_mut().map(&mut ready).collect();
    let (mut running, mut refused) = (Vec::new(), Vec::new());
    for (child, is_ready) in children.into_iter().zip(flags) {
        if is_ready { running.push(child) } else { refused.push(child) }
    }
    (running, refused)
}

fn end(children: Vec<Child>) {
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Claims by node of the domains whose names begin so, from what `list` shows.
fn claimed(prefix: &str) -> Vec<u64> {
    let list = json("list");
    let mut by_node = vec![0; 4];
    let of_round = |domain: &&serde_json::Value| domain["name"].as_str().unwrap().starts_with(prefix);
    for domain in list["domains"].as_array().unwrap().iter().filter(of_round) {
        for (node, bytes) in domain["claim"]["bytes"].as_object().unwrap() {
            by_node[node.parse::<usize>().unwrap()] += bytes.as_u64().unwrap();
        }
    }
    by_node
}

#[test]
fn of_twenty_parallel_starts_the_eight_that_fit_run_twenty_times_over() {
    let levelling = level();
    for round in 0..20 {
        let bytes = two_a_node();
        let before = unclaimed_bytes();
        let (running, refused) = parallel_starts(round, bytes, &["sh", "-c", "echo ready; read line"]);
        let seen = || format!("round {round}, {bytes} bytes each, {before:?} before: {:#}", json("list"));
        assert_eq!((running.len(), refused.len()), (8, 12), "{}", seen());
        let claimed = claimed(&format!("p{round}-"));
        assert!(claimed.iter().zip(&before).all(|(claimed, free)| claimed <= free), "{claimed:?} of {before:?}");
        for child in refused {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(125));
            assert!(stderr(&output).contains("too few"), "{}", stderr(&output));
        }
        end(running);
    }
    drop(levelling);
    assert_eq!(domains(), [""; 0]);
}

#[test]
fn what_was_promised_is_there_when_it_is_touched() {
    let _levelling = level();
    let bytes = two_a_node();
    let mib = (bytes / MIB - 8).to_string();
    let (running, refused) = parallel_starts(99, bytes, &[&toucher(), "--mib", &mib]);
    assert_eq!((running.len(), refused.len()), (8, 12));
    end(running);
}

#[test]
fn memory_that_was_freed_and_will_be_touched_again_stays_promised() {
    let before = unclaimed_bytes()[1];
    let mut domain = Domain::start("--quiet --name sparse --policy strict --nodes 1 --memory 200M", "--mib 180 --free");
    let is_promised = |when: &str| {
        let now = unclaimed_bytes()[1];
        // Promised once, be it touched or not: neither 0 nor twice 200 MiB.
        let gone = before.saturating_sub(now) / MIB;
        assert!((150..260).contains(&gone), "{when}: {gone} MiB less can be promised");
    };
    is_promised("touched");
    assert_eq!(domain.ask("free"), "freed");
    assert!(domain.filled_mib().get(&1).is_none_or(|mib| *mib < 10), "it holds {:?}", domain.filled_mib());
    is_promised("freed");
    assert_eq!(domain.ask("touch"), "touched");
    is_promised("touched again");
    domain.end();
    let after = unclaimed_bytes()[1];
    assert!(after + 50 * MIB > before, "{before} before, {after} after");
}

/// Sets `count` huge pages aside on a node.
fn huge_pages(node: u32, count: u32) {
    write(&format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"), &count.to_string());
}

/// MiB that can be promised in huge pages on each node that has any, and MiB that processes without a claim reserved.
fn huge_mib() -> (Vec<u64>, u64) {
    let stat = json("stat");
    let nodes = stat["nodes"].as_array().unwrap().iter();
    let pools = nodes.flat_map(|node| node["huge_pages"].as_array().unwrap());
    let on_each = pools.map(|pool| pool["unclaimed_bytes"].as_u64().unwrap() / MIB).collect();
    let reserved = stat["reserved_huge_pages"].as_array().unwrap().first();
    (on_each, reserved.map_or(0, |pool| pool["elsewhere_bytes"].as_u64().unwrap() / MIB))
}

#[test]
fn huge_pages_that_others_reserved_are_not_promised_and_a_domains_own_not_taken_off_twice() {
    huge_pages(1, 20);
    huge_pages(2, 20);
    let strict = |name: &str, node: u32, mib: u64, touch: u64| {
        let flags = format!("--quiet --name {name} --page-size 2M --memory {mib}M --policy strict --nodes {node}");
        let arguments = format!("--mib {mib} --kind huge --touch {touch}");
        (flags, arguments)
    };
    let start = |(flags, arguments): (String, String)| Domain::start(&flags, &arguments);

    // A domain that has mapped all of its claim and touched half of it.
    let own = start(strict("own", 1, 40, 20));
    assert_eq!(read("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages"), "10");
    assert_eq!(huge_mib(), (vec![0, 40], 0));
    let full = start(strict("full", 2, 40, 0));
    assert_eq!(huge_mib(), (vec![0, 0], 0));
    full.end();

    // Somebody without a claim has mapped as much as is free beyond it. It may come from any node.
    let mut other = std::process::Command::new(toucher())
        .args(words("--mib 30 --kind huge --touch 0"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    assert_eq!(huge_mib(), (vec![0, 10], 30));
    let refused = run(words("run --name more --page-size 2M --memory 12M -- true"));
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("10 MiB can be promised"), "{}", stderr(&refused));
    let fits = start(strict("fits", 2, 10, 10));
    assert_eq!(huge_mib(), (vec![0, 0], 30));
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(huge_mib(), (vec![0, 30], 0));
    fits.end();
    own.end();
    huge_pages(1, 0);
    huge_pages(2, 0);
}

#[test]
fn a_claim_lives_as_long_as_the_domain_not_as_its_launcher() {
    // The command leaves a grandchild behind and ends; the domain is the grandchild now.
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!";
    let output = nearside()
        .args(["run", "-q", "--name", "orphan", "--memory", "64M", "--", "sh", "-c", script])
        .output()
        .unwrap();
    let process = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(domains(), ["orphan"]);
    assert!(run(words("run --name orphan --memory 8M -- true")).status.code() == Some(125));
    std::process::Command::new("kill").arg(&process).status().unwrap();
    // The group's population changes when the kernel has buried the process.
    while Path::new(&format!("/proc/{process}/cgroup")).exists() && !domains().is_empty() {
        std::thread::yield_now();
    }
    assert!(run(words("run -q --name orphan --memory 8M -- true")).status.success());
}

#[test]
fn a_kill_at_any_point_leaves_no_claim() {
    let before = unclaimed_bytes();
    for step in 0..60 {
        let mut child = nearside()
            .args(["run", "-q", "--name", "doomed", "--memory", "100M", "--policy", "strict", "--", "sleep", "1000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Different points of its life, from before it has read its arguments until after it became the command.
        std::thread::sleep(Duration::from_millis(step * 5));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(domains(), [""; 0], "after {} ms", step * 5);
    }
    assert!(run(words("run -q --name doomed --memory 100M --policy strict -- true")).status.success());
    let after = unclaimed_bytes();
    assert!(before.iter().zip(&after).all(|(b, a)| b.abs_diff(*a) < 64 * MIB), "{before:?} {after:?}");
    // Whoever took the lock last swept up what the killed ones left, and `true` itself is swept by the next.
    assert!(run(words("run -q --name sweeper --memory 1M -- true")).status.success());
    assert!(!Path::new("/sys/fs/cgroup/nearside/doomed").exists());
}
