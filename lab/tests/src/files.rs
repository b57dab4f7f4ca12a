//! Reads and writes the kernel's files.

use std::fs;

pub const MIB: u64 = 1 << 20;

/// The value of `NAME:` in `/proc/PID/status`.
pub fn status(process: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} in status")).trim().to_owned()
}

/// A file of the kernel's.
pub fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

pub fn write(path: &str, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Sets aside huge pages of 2 MiB on a node.
pub fn huge_pages(node: u32, count: u64) {
    let pool =
        format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
    // Free memory in smaller pieces cannot become huge pages.
    write("/proc/sys/vm/compact_memory", "1");
    write(&pool, &count.to_string());
    assert_eq!(read(&pool), count.to_string(), "huge pages on node {node}");
}
