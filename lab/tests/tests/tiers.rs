//! Memory tiers: firmware's figures (HMAT) tell Linux that node 2, which is memory alone, is slow.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{Domain, MIB, json, read, run, stdout, words};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs};

/// The nodes of each tier by its number, as the kernel has them.
fn tiers() -> BTreeMap<u32, String> {
    let folder = fs::read_dir("/sys/devices/virtual/memory_tiering").unwrap();
    let tier = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("memory_tier")?.parse().ok()?;
        Some((number, read(entry.path().join("nodelist").to_str()?)))
    };
    folder.flatten().filter_map(tier).collect()
}

/// The number of the tier of nodes 0 and 1, and that of node 2.
fn fast_and_slow() -> [u32; 2] {
    let tiers: Vec<_> = tiers().into_iter().collect();
    let [(fast, first), (slow, second)] = &tiers[..] else { panic!("two tiers: {tiers:?}") };
    assert_eq!((first.as_str(), second.as_str()), ("0-1", "2"));
    [*fast, *slow]
}

fn text(line: &str) -> String {
    let output = run(words(line));
    assert!(output.status.success(), "{line}");
    // Columns and lines are laid out elsewhere.
    words(&stdout(&output)).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_machine_and_the_doctor_show_the_tiers() {
    let [fast, slow] = fast_and_slow();
    let topology = text("topology");
    let expected = format!("Memory tiers (less is faster) tier nodes {fast} 0-1 {slow} 2");
    assert!(topology.contains(&expected), "{topology}");
    let doctor = json("doctor");
    let findings = doctor["findings"].as_array().unwrap();
    let finding = findings.iter().find(|it| it["topic"] == "memory tiers").unwrap();
    assert_eq!(finding["state"], "ok", "{finding}");
    let found = format!("{fast} (nodes 0-1), {slow} (node 2); demotion is off");
    assert_eq!(finding["found"], found, "{finding}");
}

#[test]
fn memory_of_a_domain_is_shown_by_tier() {
    let [fast, slow] = fast_and_slow();
    let flags = "--quiet --name db --cpus 1 --memory 96M --policy interleave --nodes 1-2";
    let domain = Domain::start(flags, "--mib 64");
    assert_eq!(domain.filled_mib(), BTreeMap::from([(1, 32), (2, 32)]));
    let show = json("show db --interval 0");
    let of = |index: usize| -> (&Value, &Value, u64) {
        let tier = &show["memory_tiers"][index];
        (&tier["tier"], &tier["nodes"], tier["own_bytes"].as_u64().unwrap())
    };
    assert_eq!((of(0).0, of(0).1), (&json!(fast), &json!([0, 1])), "{show}");
    assert_eq!((of(1).0, of(1).1), (&json!(slow), &json!([2])), "{show}");
    // The memory controller's figures lag by up to 64 pages for each CPU.
    assert!([0, 1].iter().all(|&tier| of(tier).2 >= 31 * MIB), "{show}");
    let shown = text("show db --interval 0");
    for expected in
        [format!("on tier {fast} (nodes 0-1)"), format!("on tier {slow} (node 2); demotion off")]
    {
        assert!(shown.contains(&expected), "{shown}");
    }
    domain.end();
}

#[test]
fn placement_takes_the_slow_tier_last() {
    let home = |flags: &str| json(&format!("place --cpus 1 {flags}"))["chosen"]["nodes"].clone();
    // All that both fast nodes have does not suffice.
    assert_eq!(home("--memory 700M --policy strict"), json!([0, 1]));
    assert_eq!(home("--memory 1G --policy strict"), json!([0, 1, 2]));
}
