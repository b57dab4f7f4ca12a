//! Text is local on every node.

use super::helper::{
    Python, Replicator, add, bring_to_the_upper_layer, libraries_of, plugin, status,
};
use nearside_lab::{await_that, run, stderr, stdout, words};
use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
};

const MODULES: [&str; 4] = ["_json", "_ctypes", "_decimal", "_elementtree"];

#[test]
fn executable_libraries_plugin_and_extension_modules_are_local_on_every_node() {
    let plugin = plugin("plugin.so");
    let mut any = Python::plain(0);
    any.load(&MODULES, &plugin);
    bring_to_the_upper_layer(&libraries_of(&any));
    drop(any);
    // Node 0 reads everything first: the page cache lies there.
    let mut first = Python::plain(0);
    first.load(&MODULES, &plugin);
    let files = libraries_of(&first);
    for part in ["python3.11", "libc.so.6", "ld-linux", "plugin.so", "_decimal"] {
        assert!(files.iter().any(|file| file.contains(part)), "{part} in {files:?}");
    }
    let replicator = Replicator::start("--budget 200M");
    add("", &files, "replicated");
    for node in 0..4 {
        let mut python = Python::at_home(&format!("text{node}"), node);
        python.load(&MODULES, &plugin);
        let (pages, paths) = python.text();
        let all: u64 = pages.values().sum();
        let local = pages.get(&node).copied().unwrap_or(0);
        assert!(all > 300 && local * 100 >= all * 99, "node {node}: {pages:?} of {paths:?}");
        let mut found = libraries_of(&python);
        found.sort();
        assert_eq!(found, files, "original paths");
        let status = status(&plugin).unwrap();
        assert_eq!(status["copies"][node.to_string()]["users"], 1, "{status}");
        // The original lies on one node or another.
        let gain = status["gain_percent"].as_object().unwrap();
        assert!(gain.len() == 4 && gain.values().any(|it| it.as_u64() > Some(0)), "{status}");
    }
    // Without copies a process runs from where the originals lie: on the first reader's node, or
    // where an earlier test has moved them.
    let (originals, _) = first.text();
    let on = |node: u32| originals.get(&node).copied().unwrap_or(0);
    let farthest = (0..4).min_by_key(|node| on(*node)).unwrap();
    let mut far = Python::plain(farthest);
    far.load(&MODULES, &plugin);
    let (pages, _) = far.text();
    let all: u64 = pages.values().sum();
    assert!(pages.get(&farthest).copied().unwrap_or(0) * 2 < all, "{farthest}: {pages:?}");
    replicator.stop();
}

/// A thread on CPU 6 waits for ever.
const STAY_ON_NODE_3: &str = "import os, threading
there = threading.Barrier(2, timeout=60)
def stay():
    os.sched_setaffinity(0, [6])
    there.wait()
    threading.Event().wait()
threading.Thread(target=stay, daemon=True).start()
there.wait()";

#[test]
fn a_process_with_threads_on_two_nodes_is_told() {
    let plugin = plugin("wide.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&plugin), "replicated");
    assert!(status(&plugin).unwrap()["wide"].is_null());
    let mut wide = Python::in_namespace(0);
    wide.load(&[], &plugin);
    wide.exec(STAY_ON_NODE_3);
    let told = status(&plugin).unwrap()["wide"].clone();
    assert_eq!(told["process"], wide.child.id(), "{told}");
    assert_eq!((&told["nodes"], &told["others"]), (&serde_json::json!([0, 3]), &0.into()));
    let text = nearside_lab::stdout(&run(words("replicate status")));
    let expected = format!("process {} on nodes 0,3: threads on several nodes", wide.child.id());
    assert!(text.contains(&expected), "{text}");
    let doctor = nearside_lab::json("doctor");
    let findings = doctor["findings"].as_array().unwrap();
    let found = findings.iter().find(|it| it["topic"] == "program text").unwrap();
    let named = format!("{plugin}: process {} on nodes 0,3", wide.child.id());
    assert!(found["found"].as_str().unwrap().contains(&named), "{found}");
    let mut domain = Python::at_home("wide", 0);
    // Without the scheduler its CPUs are those of its home alone.
    fs::write("/sys/fs/cgroup/nearside/wide/cpuset.cpus", "0-7").unwrap();
    domain.load(&[], &plugin);
    domain.exec(STAY_ON_NODE_3);
    let why = nearside_lab::stdout(&run(words("why wide")));
    let expected = format!("process {} on nodes 0,3: threads on several", domain.child.id());
    assert!(why.contains(&expected), "{why}");
    replicator.stop();
}

#[test]
fn a_ratio_makes_pairs_of_nodes_share_a_copy() {
    let plugin = plugin("shared.so");
    let replicator = Replicator::start("");
    add("--ratio 1:2", std::slice::from_ref(&plugin), "replicated");
    let status = status(&plugin).unwrap();
    // Nodes 0 and 1 are neighbours, and so are 2 and 3.
    assert_eq!(status["serving"], serde_json::json!({"0": 0, "1": 0, "2": 2, "3": 2}));
    let mut python = Python::at_home("pair", 3);
    python.load(&[], &plugin);
    let mut nested = Python::at_home("nested", 3);
    for user in [&mut python, &mut nested] {
        user.exec("import mmap");
        user.exec(&format!("file = open('{plugin}', 'rb')"));
        user.exec("text = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)");
    }
    let text = nearside_lab::stdout(&run(words("replicate status")));
    assert!(text.contains("that of 2"), "{text}");
    // With a copy for each node, the domain gets its own one.
    let device = format!("__import__('os').stat('{plugin}').st_dev");
    let shared = python.eval(&device);
    add("--ratio 1:1", std::slice::from_ref(&plugin), "replicated");
    await_that("the domain uses the copy of its node", || {
        let now = python.eval(&device);
        now != shared && now != fs::metadata(&plugin).unwrap().dev().to_string()
    });
    // It executes that one, too, under its name. Pages that it has written stay as they are.
    let maps = fs::read_to_string(format!("/proc/{}/maps", python.child.id())).unwrap();
    let is_text = |line: &&str| line.contains(" r-xp ") && line.contains('/');
    let text: Vec<_> = maps.lines().filter(is_text).collect();
    assert!(text.iter().any(|line| line.ends_with(&plugin)), "{maps}");
    assert!(!text.iter().any(|line| line.ends_with(" /")), "{maps}");
    assert_eq!(python.eval("__import__('os').fstat(file.fileno()).st_dev"), python.eval(&device));
    // A domain's home names the nodes as well.
    let serving = || super::helper::status(&plugin).unwrap()["serving"].clone();
    // One that has unshared its namespace since sees the copy of its node, too.
    let unshared = "__import__('ctypes').CDLL(None).unshare(0x20000)";
    assert_eq!(nested.eval(unshared), "0");
    add("--domain pair", std::slice::from_ref(&plugin), "replicated");
    assert_eq!(serving(), serde_json::json!({"3": 3}));
    // The copy that it has mapped all the time is gone, so it has got that of its node.
    for user in [&mut python, &mut nested] {
        assert_eq!(user.eval("__import__('os').fstat(file.fileno()).st_dev"), user.eval(&device));
    }
    add("--nodes all", std::slice::from_ref(&plugin), "replicated");
    assert_eq!(serving(), serde_json::json!({"0": 0, "1": 1, "2": 2, "3": 3}));
    let writer = fs::OpenOptions::new().write(true).open(&plugin).unwrap();
    writer.write_all_at(b"new", 0).unwrap();
    assert_eq!(python.eval("text[:3]"), "b'new'");
    assert_eq!(nested.eval("text[:3]"), "b'new'");
    assert_eq!(replicator.said(), "");
    replicator.stop();
}

#[test]
fn a_dry_run_prints_the_price_and_makes_no_copy() {
    let library = plugin("priced.so");
    let replicator = Replicator::start("");
    let output = run(["replicate", "add", "--dry-run", &library]);
    assert!(output.status.success(), "{}", stderr(&output));
    let price = stdout(&output);
    let prices: Vec<Vec<_>> =
        price.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(prices.len(), 4, "{price}");
    for (node, price) in prices.iter().enumerate() {
        let node = node.to_string();
        assert_eq!(price[..4], [node.as_str(), "1", "120", "KiB"], "{price:?}");
    }
    assert!(status(&library).is_none());
    replicator.stop();
}

#[test]
fn files_that_cannot_have_copies_are_refused_with_the_reason() {
    let replicator = Replicator::start("");
    let refused = |file: &str| {
        let output = run(["replicate", "add", file]);
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    assert!(refused("/dev/null").contains("a device"));
    assert!(refused("/tmp").contains("a folder"));
    assert!(refused("/nowhere").contains("No such file"));
    // statfs(2) tells the type of the 9p server's own file system.
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mut shared = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let folder = shared.rfind(|it| it[2] == "9p" && it[3].starts_with("rw")).unwrap()[1];
    let foreign = format!("{folder}/foreign");
    fs::write(&foreign, "text").unwrap();
    let why = refused(&foreign);
    assert!(why.contains("9p") && why.contains("lease"), "{why}");
    assert!(status(&foreign).is_none());
    replicator.stop();
}
