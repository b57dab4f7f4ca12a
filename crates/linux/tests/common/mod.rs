//! A made-up host.

use nearside_linux::{Host, Paths};
use nearside_policy::{Affinity, Home, MemoryPolicy, Origin};
use nearside_topology::NodeId;
use std::{fs, path::PathBuf};

/// A host of two nodes with two CPUs each, below a folder.
pub(crate) struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    /// One whose cgroup tree has these controllers.
    pub(crate) fn new(controllers: &str) -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        let tree = made.path("cg");
        made.file(
            "proc/self/mountinfo",
            &format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", tree.display()),
        );
        made.file("proc/sys/kernel/random/boot_id", "b\n");
        made.file("cg/cgroup.controllers", &format!("{controllers}\n"));
        made.file("sys/devices/system/cpu/online", "0-3\n");
        fs::create_dir(made.path("run")).unwrap();
        for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
            let folder = format!("sys/devices/system/node/node{node}");
            made.file(&format!("{folder}/cpulist"), cpus);
            made.file(&format!("{folder}/distance"), if node == 0 { "10 20" } else { "20 10" });
            let memory = format!("Node {node} MemTotal: 4096 kB\nNode {node} MemFree: 1024 kB\n");
            made.file(&format!("{folder}/meminfo"), &memory);
        }
        made
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    pub(crate) fn host(&self) -> Host {
        Host::open(Paths { root: self.folder.path().into(), state: self.path("run/nearside") })
            .unwrap()
    }
}

/// A home that placement chose.
pub(crate) fn home(on: &[u32]) -> Home {
    let nodes = on.iter().map(|&node| NodeId(node)).collect();
    Home { nodes, origin: Origin::Auto, affinity: Affinity::Soft, policy: MemoryPolicy::Local }
}
