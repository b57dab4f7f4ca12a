//! Program text comes to the home that alone executes it, without a copy.

use crate::shared::interval;
use nearside_lab::{
    MIB, await_that,
    daemon::{Daemon, get},
    nearside, node_memory, run, stdout, text_pages, words,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

const PYTHON: &str = "/usr/bin/python3.11";

/// Maps a file as text, executes (reads) every page of it, starts a thread, and stays.
const RUN: &str = "import mmap, os, sys, threading
file = os.open(sys.argv[1], os.O_RDONLY)
text = mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
print('ready', sum(text[at] for at in range(0, len(text), 4096)), flush=True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.stdin.read()";

const TEXT_MIB: u64 = 8;
const TEXT_PAGES: u64 = TEXT_MIB * MIB / 4096;

/// A library that node 0 has read first.
fn library(name: &str) -> String {
    let path = format!("/var/tmp/{name}");
    on_node_0(
        "dd",
        &["if=/dev/zero", &format!("of={path}"), "bs=1M", &format!("count={TEXT_MIB}")],
    );
    path
}

/// A program of its own that node 0 has read first.
fn program(name: &str) -> String {
    let path = format!("/usr/local/bin/{name}");
    on_node_0("cp", &[PYTHON, &path]);
    path
}

fn on_node_0(program: &str, arguments: &[&str]) {
    let mut command = Command::new("taskset");
    let done = command.args(["-c", "0-1", program]).args(arguments).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// A domain that executes a library. It ends when this is dropped.
struct User(Child);

impl User {
    fn at_home(name: &str, nodes: &str, program: &str, library: &str) -> Self {
        let flags = format!("run --quiet --name {name} --nodes {nodes} --cpus 2 --memory 40M");
        let mut command = nearside();
        command.args(words(&flags)).args(["--policy", "preferred-many", "--", program, "-S", "-c"]);
        command.args([RUN, library]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready 0\n");
        Self(child)
    }

    fn pages(&self, path: &str) -> BTreeMap<u32, u64> {
        text_pages(self.0.id(), path)
    }

    /// The share of a text on a node, in percent; 0 while all its pages move.
    fn percent_on(&self, path: &str, node: u32) -> u64 {
        let pages = self.pages(path);
        let all = pages.values().sum::<u64>();
        pages.get(&node).copied().unwrap_or(0) * 100 / all.max(1)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pages of a file in memory (`fincore(1)`), whoever has read or mapped it.
fn cached_pages(path: &str) -> u64 {
    let mut command = Command::new("fincore");
    let done = command.args(["--noheadings", "--output", "PAGES", path]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    stdout(&done).trim().parse().unwrap()
}

/// Memory of all nodes, in bytes: of file systems such as tmpfs, where a copy would lie.
fn tmpfs_memory() -> u64 {
    (0..4).map(|node| node_memory(node, "Shmem")).sum()
}

/// The daemon's report of a file in one of its lists.
fn told(list: &str, path: &str) -> Option<Value> {
    get("/text")[list].as_array().unwrap().iter().find(|it| it["path"] == path).cloned()
}

#[test]
fn text_of_one_home_moves_there_and_text_of_two_stays_as_a_candidate_for_copies() {
    let (program, library) = (program("far-python"), library("far.so"));
    let near = User::at_home("near", "2", &program, &library);
    assert_eq!(near.pages(&library), [(0, TEXT_PAGES)].into());
    assert!(near.percent_on(&program, 0) >= 99, "{:?}", near.pages(&program));
    let program_pages = fs::metadata(&program).unwrap().len().div_ceil(4096);
    let cached = || [&library, &program].map(|path| cached_pages(path));
    assert_eq!(cached(), [TEXT_PAGES, program_pages]);
    let before = tmpfs_memory();
    let daemon = Daemon::start("scheduler = \"off\"");
    await_that("the program has moved", || near.percent_on(&program, 2) >= 99);
    // All of it: pages that move at this moment do not show.
    await_that("the library has moved", || near.pages(&library) == [(2, TEXT_PAGES)].into());
    assert_eq!(cached(), [TEXT_PAGES, program_pages], "moved text costs 0 bytes more");
    let more = tmpfs_memory().saturating_sub(before);
    assert!(more < MIB, "{more} bytes more on tmpfs: a copy has {TEXT_MIB} MiB");
    await_that("it is told", || {
        told("files", &library).is_some_and(|it| it["state"] == "in-place")
    });
    let file = told("files", &library).unwrap();
    assert_eq!(
        (&file["moved_bytes"], &file["nodes"], &file["domains"]),
        (&json!(TEXT_MIB * MIB), &json!([2]), &json!(["near"])),
        "{file}"
    );

    let other = User::at_home("other", "3", PYTHON, &library);
    await_that("copies would pay", || told("candidates", &library).is_some());
    let candidate = told("candidates", &library).unwrap();
    assert_eq!(
        (&candidate["nodes"], &candidate["domains"], &candidate["off_home_bytes"]),
        (&json!([2, 3]), &json!(["near", "other"]), &json!(TEXT_MIB * MIB)),
        "{candidate}"
    );
    let since = interval();
    await_that("intervals pass", || interval() > since + 20);
    assert_eq!(near.pages(&library), [(2, TEXT_PAGES)].into());
    assert_eq!(told("files", &library).unwrap()["moved_bytes"], file["moved_bytes"]);

    drop(near);
    await_that("it has moved to the one that is left", || other.percent_on(&library, 3) >= 99);
    drop(other);
    daemon.stop();
    fs::remove_file(library).unwrap();
    fs::remove_file(program).unwrap();
}

#[test]
fn text_of_a_wide_domain_is_spread_over_its_home() {
    let library = library("wide.so");
    let wide = User::at_home("wide", "1,3", PYTHON, &library);
    assert_eq!(wide.pages(&library), [(0, TEXT_PAGES)].into());
    let daemon = Daemon::start("scheduler = \"off\"");
    let half = TEXT_PAGES / 2;
    await_that("its text is spread", || wide.pages(&library) == [(1, half), (3, half)].into());
    await_that("it is told", || get("/text")["wide"] == json!({"wide": 1}));
    let sentence = "one address space has one page for each address";
    assert!(get("/text")["wide_text"].as_str().unwrap().contains(sentence));
    for command in ["why wide", "doctor"] {
        let said = stdout(&run(words(command)));
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(sentence), "{command}: {said}");
    }
    drop(wide);
    daemon.stop();
    fs::remove_file(library).unwrap();
}
