//! A made-up host: plain files stand for the kernel's.

#![allow(dead_code, reason = "each test uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Memory of a node that can be claimed.
pub(crate) const FREE_MIB: u64 = 400;

/// A host below a folder, 100 s after its boot.
pub(crate) struct Made(tempfile::TempDir);

impl Made {
    pub(crate) fn new(nodes: u32) -> Self {
        let made = Self::on(tempfile::tempdir().unwrap());
        made.file("sys/devices/system/cpu/online", &format!("0-{}\n", 2 * nodes - 1));
        for node in 0..nodes {
            let folder = format!("sys/devices/system/node/node{node}");
            made.file(&format!("{folder}/cpulist"), &format!("{}-{}", 2 * node, 2 * node + 1));
            let distances = (0..nodes).map(|other| if other == node { "10" } else { "20" });
            made.file(&format!("{folder}/distance"), &distances.collect::<Vec<_>>().join(" "));
            let memory = format!(
                "Node {node} MemTotal: {} kB\nNode {node} MemFree: {} kB\n",
                4 * FREE_MIB * 1024,
                FREE_MIB * 1024
            );
            made.file(&format!("{folder}/meminfo"), &memory);
        }
        made
    }

    /// The rest of a host, around the nodes and CPUs that are below this folder.
    pub(crate) fn on(root: tempfile::TempDir) -> Self {
        let made = Self(root);
        let mount = format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", made.path("cg").display());
        made.file("proc/self/mountinfo", &mount);
        made.file("proc/sys/kernel/random/boot_id", "b\n");
        made.file("proc/uptime", "100.00 1.00\n");
        made.file("cg/cgroup.controllers", "cpuset memory\n");
        fs::create_dir(made.path("run")).unwrap();
        fs::create_dir(made.path("dev")).unwrap();
        made
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    /// The records of reservations, by name.
    pub(crate) fn reservations(&self) -> BTreeMap<String, Value> {
        let Ok(folder) = fs::read_dir(self.path("run/nearside/domains")) else {
            return BTreeMap::new();
        };
        let records = folder.filter_map(|entry| {
            let text = fs::read(entry.unwrap().path()).unwrap();
            let record: Value = serde_json::from_slice(&text).unwrap();
            let name = record["subject"]["reservation"]["name"].as_str()?.to_owned();
            Some((name, record))
        });
        records.collect()
    }
}
