//! Claims: no memory is claimed twice, however many starts run at a time.

use nearside_lab::{
    Domain, Levelling, Look, MIB, Own, Signal, assert_refused, assert_the_kernel_covers_all_claims,
    available_bytes, await_that, domains, end, go_on, huge_pages, json, killed_for_memory,
    nearside, parallel_starts, read, run, send, stderr, toucher, words,
};
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

#[test]
fn of_twenty_parallel_starts_the_eight_that_fit_run() {
    parallel_starts_of_which_eight_fit(4);
}

#[test]
#[ignore = "twenty rounds take ten minutes: lab/test four_nodes -- --ignored"]
fn of_twenty_parallel_starts_the_eight_that_fit_run_twenty_times_over() {
    parallel_starts_of_which_eight_fit(20);
}

fn parallel_starts_of_which_eight_fit(rounds: u32) {
    let mut levelling = Levelling::default();
    for round in 0..rounds {
        let bytes = levelling.size_of_two_a_node();
        let (running, refused) =
            parallel_starts(20, "", bytes, &["sh", "-c", "echo ready; read line"]);
        let look = Look::take();
        assert_eq!(
            (running.len(), refused.len()),
            (8, 12),
            "round {round}, {bytes} bytes each: {look:?}"
        );
        look.assert_nothing_is_promised_twice();
        let starts: Vec<_> =
            look.names().into_iter().filter(|name| name.starts_with('p')).collect();
        let claimed = |name: &&str| look.claim(name).values().sum::<u64>();
        assert_eq!(
            starts.iter().map(claimed).collect::<Vec<_>>(),
            [bytes; 8],
            "round {round}: {look:?}"
        );
        let claims = running.iter().map(|child| (child.id(), bytes));
        assert_the_kernel_covers_all_claims(claims.chain(levelling.claims()));
        assert_refused(refused);
        end(running);
    }
    drop(levelling);
    Look::take().assert_nothing_is_promised();
}

#[test]
fn claimed_memory_is_there_when_it_is_touched() {
    let mut levelling = Levelling::default();
    let bytes = levelling.size_of_two_a_node();
    let mib = bytes / MIB - 8;
    // They fill it after all twenty were decided on: memory that is touched between two reads of a
    // start counts as used twice.
    let command = [
        "sh",
        "-c",
        "echo ready; read line; exec \"$@\"",
        "sh",
        &toucher(),
        "--mib",
        &mib.to_string(),
    ];
    let (mut running, refused) = parallel_starts(20, "", bytes, &command);
    assert_eq!((running.len(), refused.len()), (8, 12), "{:?}", Look::take());
    assert_refused(refused);
    go_on(&mut running);
    let claims = running.iter().map(|child| (child.id(), bytes));
    assert_the_kernel_covers_all_claims(claims.chain(levelling.claims()));
    let look = Look::take();
    look.assert_nothing_is_promised_twice();
    for name in look.names().into_iter().filter(|name| name.starts_with('p')) {
        let resident: u64 = look.domain(name, "resident_bytes").values().sum();
        assert!(resident + LAG_BYTES >= mib * MIB, "{name}: {look:?}");
    }
    end(running);
}

#[test]
fn parallel_starts_get_all_memory_at_home_though_each_touches_it_at_once() {
    let (mut levelling, killed_before) = (Levelling::default(), killed_for_memory());
    let bytes = levelling.size_of_two_a_node();
    let mib = bytes / MIB - 8;
    let (running, refused) =
        parallel_starts(20, "", bytes, &[&toucher(), "--mib", &mib.to_string()]);
    let look = Look::take();
    // Fewer than the eight that fit may run: memory that is touched between two reads of a start
    // counts as used twice.
    assert!(
        (1..=8).contains(&running.len()),
        "{} run, {bytes} bytes each: {look:?}",
        running.len()
    );
    // None of the others has run and been killed.
    assert_refused(refused);
    assert_eq!(killed_for_memory(), killed_before);
    look.assert_nothing_is_promised_twice();
    let claims = running.iter().map(|child| (child.id(), bytes));
    assert_the_kernel_covers_all_claims(claims.chain(levelling.claims()));
    for child in &running {
        let own = Own::of([child.id()]);
        assert!(own.bytes.len() == 1 && own.total() >= mib * MIB, "{mib} MiB: {own:?}");
    }
    println!("{} of the 8 that fit run", running.len());
    end(running);
}

/// Lag of the memory controller: 64 pages for each of 8 CPUs (`mm/memcontrol.c`).
const LAG_BYTES: u64 = 8 * 64 * 4096;

#[test]
fn memory_that_was_freed_and_will_be_touched_again_stays_promised() {
    let mut domain = Domain::start(
        "--quiet --name sparse --policy strict --nodes 1 --memory 200M",
        "--mib 180 --free",
    );
    // In every state of the domain, resident and outstanding memory add up to the claim.
    let used = |when: &str| {
        let look = Look::take();
        let used: u64 = look.domain("sparse", "resident_bytes").values().sum();
        let owed = look.domain("sparse", "outstanding_bytes");
        assert!(owed.keys().eq([&1]), "{when}: {look:?}");
        assert_eq!(used + owed[&1], 200 * MIB, "{when}: {look:?}");
        used
    };
    assert!(used("touched") + LAG_BYTES >= 180 * MIB);
    assert_eq!(domain.ask("free"), "freed");
    assert!(used("freed") < 20 * MIB);
    assert!(
        domain.filled_mib().get(&1).is_none_or(|mib| *mib < 10),
        "it holds {:?}",
        domain.filled_mib()
    );
    // A second domain does not get the memory that the first one has freed for now. It asks for
    // half of that, so that the other half is room for memory that comes and goes meanwhile.
    let second = format!(
        "run -q --name second --policy strict --nodes 1 --memory {}",
        available_bytes()[1] + 90 * MIB
    );
    let start_second = || run(words(&second).chain(["--", "true"]));
    let refused = start_second();
    assert_eq!(refused.status.code(), Some(125), "{second}");
    assert!(stderr(&refused).contains("too few"), "{}", stderr(&refused));
    assert_eq!(domain.ask("touch"), "touched");
    assert!(used("touched again") + LAG_BYTES >= 180 * MIB);
    domain.end();
    Look::take().assert_nothing_is_promised();
    let started = start_second();
    assert!(started.status.success(), "{}", stderr(&started));
}

/// MiB of huge pages available on each node that has any, and MiB that processes without a claim
/// reserved.
fn huge_mib() -> (Vec<u64>, u64) {
    let stat = json("stat");
    let nodes = stat["nodes"].as_array().unwrap().iter();
    let pools = nodes.flat_map(|node| node["huge_pages"].as_array().unwrap());
    let on_each = pools.map(|pool| pool["available_bytes"].as_u64().unwrap() / MIB).collect();
    let reserved = stat["reserved_huge_pages"].as_array().unwrap().first();
    (on_each, reserved.map_or(0, |pool| pool["elsewhere_bytes"].as_u64().unwrap() / MIB))
}

#[test]
fn huge_pages_reserved_by_others_are_unavailable_and_a_domains_own_count_once() {
    huge_pages(1, 20);
    huge_pages(2, 20);
    let strict = |name: &str, node: u32, mib: u64, touch: u64| {
        let flags = format!(
            "--quiet --name {name} --page-size 2M --memory {mib}M --policy strict --nodes {node}"
        );
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

    // A process without a claim has mapped all free memory beyond it. It may come from any node.
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
    assert!(stderr(&refused).contains("10 MiB are available"), "{}", stderr(&refused));
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
    let look = Look::take();
    let used_or_owed =
        ["resident_bytes", "outstanding_bytes"].map(|figure| look.domain("orphan", figure));
    assert_eq!(
        used_or_owed.iter().flat_map(|by_node| by_node.values()).sum::<u64>(),
        64 * MIB,
        "{look:?}"
    );
    assert!(run(words("run --name orphan --memory 8M -- true")).status.code() == Some(125));
    send(process.parse().unwrap(), Signal::TERM);
    // Its parent, which would get its status, is not here.
    await_that("the orphan's domain ends", || domains().is_empty());
    assert!(run(words("run -q --name orphan --memory 8M -- true")).status.success());
}
