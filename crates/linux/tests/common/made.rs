//! A made-up host: plain files stand for the kernel's.

use super::{Host, Paths};
use std::{fs, path::PathBuf};

/// A host below a folder. Each node has two CPUs.
pub(crate) struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    /// One whose cgroup tree has these controllers, and with this many nodes of this much memory.
    pub(crate) fn of(controllers: &str, nodes: u32, total_kib: u64, free_kib: u64) -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        let mount = format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", made.path("cg").display());
        made.file("proc/self/mountinfo", &mount);
        made.file("proc/sys/kernel/random/boot_id", "b\n");
        made.file("cg/cgroup.controllers", &format!("{controllers}\n"));
        made.file("sys/devices/system/cpu/online", &format!("0-{}\n", 2 * nodes - 1));
        fs::create_dir(made.path("run")).unwrap();
        for node in 0..nodes {
            let folder = format!("sys/devices/system/node/node{node}");
            made.file(&format!("{folder}/cpulist"), &format!("{}-{}", 2 * node, 2 * node + 1));
            let distances = (0..nodes).map(|other| if other == node { "10" } else { "20" });
            made.file(&format!("{folder}/distance"), &distances.collect::<Vec<_>>().join(" "));
            let memory = format!(
                "Node {node} MemTotal: {total_kib} kB\nNode {node} MemFree: {free_kib} kB\n"
            );
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
