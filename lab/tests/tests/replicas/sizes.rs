//! Large files and many small ones.

use super::helper::{Python, Replicator, add, pages_of, plugin, status, write_on_all_nodes};
use nearside_lab::{await_that, json, run, stderr};
use std::{fs, time::Instant};

/// As an index or a model has it.
const DATA_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 100_000;

#[test]
fn a_large_data_file_is_local_to_its_readers_on_four_nodes() {
    let path = plugin("weights");
    // One node could not hold it and a copy, and its reader would be local without a copy.
    write_on_all_nodes(&path, DATA_BYTES);
    let replicator = Replicator::start("--budget 300M");
    add("", std::slice::from_ref(&path), "replicated");
    let pages = DATA_BYTES / 4096;
    let mut readers: Vec<_> =
        (0..4).map(|node| Python::at_home(&format!("data{node}"), node)).collect();
    for reader in &mut readers {
        reader.exec(&format!(
            "import mmap\nwith open('{path}', 'rb') as it: \
             mapped = mmap.mmap(it.fileno(), 0, prot=mmap.PROT_READ)"
        ));
        // One byte of each page.
        reader.ask("sum(mapped[::4096])");
    }
    for (reader, node) in readers.iter_mut().zip(0..) {
        assert_eq!(reader.answer(), (7 * pages).to_string());
        let found = pages_of(reader.child.id(), &path);
        let (all, local) = (found.values().sum::<u64>(), found.get(&node).copied().unwrap_or(0));
        assert_eq!(all, pages, "node {node}: {found:?}");
        assert!(local * 100 >= all * 95, "node {node}: {found:?}");
    }
    let status = status(&path).unwrap();
    assert_eq!(status["copies"].as_object().unwrap().len(), 4, "{status}");
    replicator.stop();
    fs::remove_file(&path).unwrap();
}

/// Memory of a node in files of a tmpfs, in bytes.
fn shmem_bytes(node: u64) -> u64 {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.split_once("Shmem:")).unwrap().1;
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// A tmpfs with huge pages for every file would take 2 MiB for each of them.
pub(crate) fn small_libraries_take_their_own_size(count: u64) {
    let folder = "/tmp/small-libraries";
    fs::create_dir(folder).unwrap();
    let files: Vec<_> = (0..count).map(|number| format!("{folder}/lib{number}.so")).collect();
    let content = vec![7; FILE_BYTES as usize];
    files.iter().for_each(|file| fs::write(file, &content).unwrap());
    let replicator = Replicator::start("--budget 300M");
    let before: Vec<_> = (0..4).map(shmem_bytes).collect();
    let began = Instant::now();
    let output = run(["replicate", "add"].map(str::to_owned).into_iter().chain(files.clone()));
    assert!(output.status.success(), "{}", stderr(&output));
    let mut report = Vec::new();
    await_that("each has four copies", || {
        report = json("replicate status")["files"].as_array().unwrap().clone();
        let is_whole = |it: &serde_json::Value| it["copies"].as_object().unwrap().len() == 4;
        report.len() as u64 == count && report.iter().all(is_whole)
    });
    println!("{count} files on four nodes after {:?}", began.elapsed());
    let most = count * FILE_BYTES * 11 / 10;
    for node in 0..4 {
        let bytes = |it: &serde_json::Value| it["copies"][node.to_string()]["bytes"].as_u64();
        let told: u64 = report.iter().map(|it| bytes(it).unwrap()).sum();
        let taken = shmem_bytes(node).saturating_sub(before[node as usize]);
        println!("node {node}: {told} bytes as status tells, {taken} as the kernel does");
        assert!(told <= most && taken <= most, "node {node}: {told}, {taken} of {most}");
        assert!(told >= count * FILE_BYTES, "node {node}: {told}");
    }
    replicator.stop();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn two_hundred_small_libraries_take_their_own_size_on_each_node() {
    small_libraries_take_their_own_size(200);
}
