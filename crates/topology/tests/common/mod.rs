//! Machines in one file each: a whole tree of `/sys` and `/proc` as text, unpacked into a folder
//! for a test.
//!
//! ```text
//! # a comment
//! sys/devices/system/node/online: 0-1              a file of one line
//! sys/devices/system/cpu/cpu{0-3,8}/online: 1      the same file for each number of a list
//! proc/meminfo:                                    a file of several lines, each after a tab
//! sys/class/net/eth0/device -> ../../../devices/pci0/1      a link
//! ```

use std::{fs, io, os::unix::fs::symlink, path::Path};

/// Machines with nodes that lack memory or CPUs, with sparse numbers, or with a single node.
#[allow(dead_code, reason = "a test that includes this file need not use all of it")]
pub(crate) const ODD: [&str; 13] = [
    "memoryless",
    "threadripper-2970wx",
    "power8",
    "power9",
    "grace-hopper",
    "gb200",
    "xeon-max",
    "cxl",
    "tiers",
    "many-core",
    "interleaved",
    "offline-node",
    "no-numa",
];

/// The text of the machine `name`.
pub(crate) fn machine(name: &str) -> io::Result<String> {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../topology/fixtures/{name}.machine"));
    fs::read_to_string(&file)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

/// A machine unpacked into a folder that goes with the value.
#[allow(dead_code, reason = "a test that includes this file need not use all of it")]
pub(crate) fn unpacked(name: &str) -> io::Result<tempfile::TempDir> {
    // Thousands of small files: in memory where the system has a folder for that.
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    unpack(&machine(name)?, root.path())?;
    Ok(root)
}

/// Makes the files of a machine below `root`.
pub(crate) fn unpack(text: &str, root: &Path) -> io::Result<()> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    while let Some(line) = lines.next() {
        if let Some((path, target)) = line.split_once(" -> ") {
            let path = root.join(path);
            make_folder(&path)?;
            symlink(target, path)?;
        } else if let Some(pattern) = line.strip_suffix(':') {
            let mut content = String::new();
            while let Some(more) = lines.next_if(|next| next.starts_with('\t')) {
                content.extend([more.trim_start_matches('\t'), "\n"]);
            }
            write_all(pattern, &content, root)?;
        } else if let Some((pattern, content)) = line.split_once(": ") {
            write_all(pattern, &format!("{content}\n"), root)?;
        } else if !line.is_empty() {
            return Err(io::Error::other(format!("read {line:?}, expected a file or a link")));
        }
    }
    Ok(())
}

fn write_all(pattern: &str, content: &str, root: &Path) -> io::Result<()> {
    for path in expand(pattern)? {
        let path = root.join(path);
        make_folder(&path)?;
        fs::write(path, content)?;
    }
    Ok(())
}

fn make_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// `cpu{0-1,8}/online` as `cpu0/online`, `cpu1/online`, `cpu8/online`.
fn expand(pattern: &str) -> io::Result<Vec<String>> {
    let Some((before, rest)) = pattern.split_once('{') else { return Ok(vec![pattern.into()]) };
    let Some((list, after)) = rest.split_once('}') else {
        return Err(io::Error::other(format!("{pattern}: no }}")));
    };
    let numbers: nearside_topology::CpuSet = list.parse().map_err(io::Error::other)?;
    Ok(numbers.iter().map(|number| format!("{before}{number}{after}")).collect())
}
