//! A host of plain files for tests: two nodes of two CPUs, 4 GiB each.

use nearside_linux::{Host, Paths};
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// A host below a folder.
pub(super) struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    /// With groups of one process each, at these paths.
    pub(super) fn with(groups: &[&str]) -> Self {
        let made = Self { folder: in_memory().or_else(|_| tempfile::tempdir()).unwrap() };
        let mount = format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", made.path("cg").display());
        made.file("proc/self/mountinfo", &mount);
        made.file("proc/sys/kernel/random/boot_id", "b\n");
        made.file("proc/zoneinfo", "");
        made.file("cg/cgroup.controllers", "cpuset memory\n");
        made.file("sys/devices/system/cpu/online", "0-3\n");
        for (node, cpus, distances) in [(0, "0-1", "10 20"), (1, "2-3", "20 10")] {
            let folder = format!("sys/devices/system/node/node{node}");
            made.file(&format!("{folder}/cpulist"), cpus);
            made.file(&format!("{folder}/distance"), distances);
            let kib = |name, kib| format!("Node {node} {name}: {kib} kB\n");
            let memory = [kib("MemTotal", 4 << 20), kib("MemFree", 3 << 20)].concat();
            made.file(&format!("{folder}/meminfo"), &memory);
        }
        groups.iter().for_each(|group| made.group(group));
        fs::create_dir(made.path("run")).unwrap();
        made
    }

    /// Makes a group of one process.
    pub(super) fn group(&self, path: &str) {
        self.file(&format!("cg{path}/cgroup.events"), "populated 1\nfrozen 0\n");
        self.file(&format!("cg{path}/cpu.stat"), "usage_usec 0\nuser_usec 0\n");
        self.file(&format!("cg{path}/memory.numa_stat"), "anon N0=4096 N1=0\nfile N0=0 N1=0\n");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            self.file(&format!("cg{path}/{file}"), "\n");
        }
        self.refuse_bindings(path, false);
        self.file(&format!("cg{path}/cpuset.mems.effective"), "0-1\n");
    }

    /// Lets a folder's last change lie far back, as if that much time had passed since. A second
    /// has hardly passed on this machine where the simulated one has.
    pub(super) fn settle(&self, folder: &str, now: Duration) {
        let Ok(folder) = fs::File::open(self.path(folder)) else { return };
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + now;
        let changed = folder.metadata().and_then(|it| it.modified()).unwrap();
        if changed > long_ago + Duration::from_secs(1_000_000) {
            folder.set_modified(long_ago).unwrap();
        }
    }

    /// A path below the folder.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Writes a file.
    pub(super) fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    /// Makes the CPUs in force in a group follow its setting, or ignore it.
    pub(super) fn refuse_bindings(&self, group: &str, refuses: bool) {
        let in_force = self.path(format!("cg{group}/cpuset.cpus.effective"));
        let _ = fs::remove_file(&in_force);
        match refuses {
            true => fs::write(in_force, "0-3\n").unwrap(),
            false => symlink("cpuset.cpus", in_force).unwrap(),
        }
    }

    /// Does something while a group without CPUs of its own has all CPUs in force, as the kernel
    /// has it. Otherwise such a group shows none.
    pub(super) fn with_cpus_from_above<T>(&self, group: &str, does: impl FnOnce() -> T) -> T {
        let setting = fs::read_to_string(self.path(format!("cg{group}/cpuset.cpus")));
        let obeys = self.path(format!("cg{group}/cpuset.cpus.effective")).is_symlink();
        if !obeys || !setting.is_ok_and(|cpus| cpus.trim().is_empty()) {
            return does();
        }
        self.refuse_bindings(group, true);
        let done = does();
        self.refuse_bindings(group, false);
        done
    }

    pub(super) fn host(&self) -> Host {
        let paths = Paths { root: self.folder.path().into(), state: self.path("run/nearside") };
        Host::open(paths).unwrap()
    }
}

/// A folder in memory, where files cost least.
fn in_memory() -> io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm")
}
