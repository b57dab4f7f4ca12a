//! Kills for lack of memory on a home, while other nodes have some.

use nearside_lab::{
    Domain, MIB, await_that,
    daemon::{Daemon, get},
    json, killed_for_memory, nearside, node_memory, run, stdout, toucher, words,
};
use std::{os::unix::process::ExitStatusExt, process::Stdio};

#[test]
fn a_kill_on_a_full_home_is_told_with_the_memory_of_other_nodes() {
    let mut daemon = Daemon::start("scheduler = \"off\"");
    // The one that stays, so that the domain does not end with the kill.
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy strict --nodes 1",
        "--mib 8",
    );
    let before = killed_for_memory();
    let more_than_all = (node_memory(1, "MemTotal") / MIB).to_string();
    let mut greedy = nearside();
    greedy.args(["exec", "db", "--"]).arg(toucher()).args(["--mib", &more_than_all]);
    let ended = greedy.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    assert_eq!((ended.signal(), killed_for_memory() - before), (Some(9), 1), "{ended}");
    assert!(node_memory(2, "MemFree") > 200 * MIB);

    let told = "1 process was killed for lack of memory on its home, node 1 (free now: ";
    await_that("the daemon says so", || daemon.said().contains(&format!("db: {told}")));
    assert_eq!(json("show db --interval 0")["oom_kills"], 1);
    let text = stdout(&run(words("show db --interval 0")));
    let shown = words(&text).collect::<Vec<_>>().join(" ");
    assert!(shown.contains(&format!("OOM kills {told}")), "{text}");
    assert!(shown.contains("; other nodes: "), "{text}");
    assert!(shown.contains("give it more nodes or the policy preferred"), "{text}");
    let metrics = get("/metrics");
    let count = "nearside_domain_oom_kills_total{domain=\"db\"} 1\n";
    assert!(metrics.as_str().unwrap().contains(count), "{metrics}");
    // Once, however many intervals have passed.
    assert_eq!(daemon.said().matches("was killed").count(), 1, "{}", daemon.said());
    domain.end();
    daemon.stop();
}
