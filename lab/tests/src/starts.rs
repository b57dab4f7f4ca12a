//! Many domains started at once, of a size of which only a known number fits.

use crate::{
    command::{nearside, stderr, words},
    domain::Domain,
    files::{MIB, status, write},
    look::available_bytes,
    memory::{Own, node_memory},
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
};

/// Claims are rounded up to whole pages.
const PAGE_BYTES: u64 = 4096;

/// Domains with claims that level the nodes: each claims the excess of a larger node over the
/// smallest, so that all nodes have the same memory available. Otherwise the remainders of two
/// nodes could make a home for a ninth domain.
#[derive(Debug, Default)]
pub struct Levelling(Vec<(Domain, u64)>);

impl Levelling {
    /// A size of which exactly two fit each node, with as much tolerance as possible for memory
    /// that comes and goes meanwhile. The smallest node may lose a twentieth, and each node may
    /// gain that much, and still eight of the size fit, and no ninth. Nodes that have become uneven
    /// are levelled again.
    pub fn size_of_two_a_node(&mut self) -> u64 {
        self.size_of(2, 20)
    }

    /// A size of which exactly one fits each node. The tolerance is a tenth of the smallest node.
    pub fn size_of_one_a_node(&mut self) -> u64 {
        self.size_of(1, 10)
    }

    /// A size of which so many fit each node. The tolerance is this part of the smallest node.
    fn size_of(&mut self, a_node: u64, tolerance: u64) -> u64 {
        for _ in 0..5 {
            let free = available_bytes();
            let least = *free.iter().min().unwrap();
            let drift = least / tolerance;
            let size = (least - drift) / a_node / PAGE_BYTES * PAGE_BYTES;
            let left_over: u64 = free.iter().map(|free| free - a_node * size).sum();
            if left_over + free.len() as u64 * drift < size {
                return size;
            }
            self.level();
        }
        panic!("the nodes cannot be levelled: {:?} are available on them", available_bytes());
    }

    /// Its domains, by process, and their claims.
    pub fn claims(&self) -> impl Iterator<Item = (u32, u64)> {
        self.0.iter().map(|(domain, bytes)| (domain.process(), *bytes))
    }

    fn level(&mut self) {
        self.0.drain(..).for_each(|(domain, _)| domain.end());
        write("/proc/sys/vm/drop_caches", "3");
        let free = available_bytes();
        let least = *free.iter().min().unwrap();
        for (node, surplus) in
            free.iter().map(|free| free - least).enumerate().filter(|(_, surplus)| *surplus > MIB)
        {
            let flags = format!(
                "--quiet --name level{node} --policy strict --nodes {node} --memory {surplus}"
            );
            self.0.push((Domain::start(&flags, "--mib 1"), surplus));
        }
    }
}

/// Starts this many strict domains of a size (`p0` and on) at once, and returns the running ones
/// and the refused ones.
pub fn parallel_starts(
    count: u32,
    flags: &str,
    bytes: u64,
    command: &[&str],
) -> (Vec<Child>, Vec<Child>) {
    let start = |number: u32| {
        nearside()
            .args(["run", "--quiet", "--policy", "strict", "--name", &format!("p{number}")])
            .args(words(flags))
            .args(["--memory", &bytes.to_string(), "--"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..count).map(start).collect();
    let (mut running, mut refused) = (Vec::new(), Vec::new());
    for mut child in children {
        if is_ready(&mut child) { running.push(child) } else { refused.push(child) }
    }
    (running, refused)
}

/// Makes the children that wait for a line continue, all at once, and waits until each prints that
/// its memory is filled.
pub fn go_on(children: &mut [Child]) {
    for child in &mut *children {
        writeln!(child.stdin.as_mut().unwrap()).unwrap();
    }
    for child in children {
        assert!(is_ready(child), "{} ended instead of filling its memory", child.id());
    }
}

/// True once it prints "ready"; a refused or ended start closes its output without a word.
fn is_ready(child: &mut Child) -> bool {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.starts_with("ready")
}

/// Checks the claims against the kernel's figures: on each node, claimed memory and memory held by
/// others do not exceed the node's memory. Others hold all memory that is neither free, nor
/// resident in the claiming domains, nor in reclaimable caches.
///
/// `claims` are domains on one node each, by process, with their claims.
pub fn assert_the_kernel_covers_all_claims(claims: impl IntoIterator<Item = (u32, u64)>) {
    let (mut promised, mut taken) = ([0; 4], [0; 4]);
    for (process, bytes) in claims {
        // Strict domains are confined to the node of their claim.
        let nodes = status(process, "Mems_allowed_list");
        let node: usize =
            nodes.parse().unwrap_or_else(|_| panic!("{process} is on nodes {nodes}, not on one"));
        let own = Own::of([process]);
        assert!(own.bytes.keys().all(|home| *home as usize == node), "on node {node}: {own:?}");
        promised[node] += bytes;
        taken[node] += own.total();
    }
    assert_the_kernel_covers(promised, taken);
}

/// The same for bytes by node: claims, and memory that is resident in the claiming domains.
pub fn assert_the_kernel_covers(promised: [u64; 4], taken: [u64; 4]) {
    for node in 0..4 {
        let [total, free, cached] =
            [&["MemTotal"][..], &["MemFree"], &["Active(file)", "Inactive(file)", "SReclaimable"]]
                .map(|figures| figures.iter().map(|figure| node_memory(node, figure)).sum::<u64>());
        let others = total - free - cached - taken[node];
        let line =
            format!("node {node}: {} promised, {others} of {total} held by others", promised[node]);
        assert!(promised[node] + others <= total, "{line}, {taken:?} taken, {cached} in caches");
    }
}

/// Asserts that these starts were refused for lack of memory.
pub fn assert_refused(children: Vec<Child>) {
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).contains("too few"), "{}", stderr(&output));
    }
}

/// Kills them.
pub fn end(children: Vec<Child>) {
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
