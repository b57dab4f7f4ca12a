//! Control groups, version 2 (`Documentation/admin-guide/cgroup-v2.rst`): finding the tree, making
//! and reading groups.

use crate::{
    error::{Error, IoContext},
    escape,
    fault::before_write,
    mountinfo, read,
};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Number of checks, and the pause between them, while the kernel still counts a process that no
/// list shows any more.
const SETTLE_TRIES: u32 = 1000;
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// A cgroup v2 tree.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
    /// The group at its root, as `/proc/PID/cgroup` writes it. It differs from `/` if only a part
    /// of the tree is mounted.
    begins: Vec<u8>,
    controllers: BTreeSet<String>,
}

/// One control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    directory: PathBuf,
    /// As text: see [`escape`].
    path: String,
}

impl Tree {
    /// Finds the tree in a `mountinfo` file (proc_pid_mountinfo(5)). On hybrid layouts it may have
    /// no controllers.
    pub fn find(mountinfo: &Path) -> Result<Self, Error> {
        let content = read::bytes(mountinfo).at(mountinfo)?;
        let mount = mountinfo::cgroup2(&content).ok_or(Error::NoCgroupTree)?;
        Ok(Self { begins: mount.begins, ..Self::at(&mount.point)? })
    }

    /// The tree whose root directory is `root`.
    pub fn at(root: &Path) -> Result<Self, Error> {
        let file = root.join("cgroup.controllers");
        let text = fs::read_to_string(&file).at(&file)?;
        let controllers = text.split_whitespace().map(str::to_owned).collect();
        Ok(Self { root: root.into(), begins: b"/".into(), controllers })
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The controllers that groups of this tree can have.
    pub fn controllers(&self) -> &BTreeSet<String> {
        &self.controllers
    }

    /// Whether there is such a controller.
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
    }

    /// The group at `path` from the tree's root (`/nearside/db`), which is text as
    /// [`Cgroup::path`] returns it. It need not exist.
    ///
    /// # Errors
    /// A path with `..` in it.
    pub fn group(&self, path: &str) -> Result<Cgroup, Error> {
        let relative = path.trim_matches('/');
        if relative.split('/').any(|part| part == "..") {
            return Err(Error::Refused(format!(
                "\"{path}\" is no path of a cgroup: it has \"..\" in it"
            )));
        }
        let relative = escape::path(relative);
        let path = format!("/{}", escape::text(&relative));
        let directory = match relative.as_os_str().is_empty() {
            true => self.root.clone(),
            false => self.root.join(relative),
        };
        Ok(Cgroup { directory, path })
    }

    /// The group of a process, as `/proc/PID/cgroup` tells.
    pub fn group_of(&self, proc_cgroup: &Path) -> Result<Cgroup, Error> {
        let content = read::bytes(proc_cgroup).at(proc_cgroup)?;
        let mut lines = content.split(|&byte| byte == b'\n');
        let path = lines.find_map(|line| line.strip_prefix(b"0::")).ok_or(Error::NoCgroupTree)?;
        let begins = self.begins.strip_suffix(b"/").unwrap_or(&self.begins);
        let below = path.strip_prefix(begins);
        let Some(below) = below.filter(|below| below.is_empty() || below.starts_with(b"/")) else {
            let text = |bytes| escape::text(OsStr::from_bytes(bytes));
            return Err(Error::Refused(format!(
                "the cgroup {} of this process is not in the tree that is mounted at {}, \
                 which begins with {}: in a \
                 container, leave /sys/fs/cgroup to the container runtime, or use the host's \
                 cgroup namespace \
                 (--cgroupns=host)",
                text(path),
                escape::text(&self.root),
                text(&self.begins)
            )));
        };
        self.group(&escape::text(OsStr::from_bytes(below)))
    }

    /// Every group that has processes of its own, the root left out, in the order of their paths.
    pub fn populated_groups(&self) -> Vec<Cgroup> {
        let mut found = Vec::new();
        let mut left: Vec<_> =
            self.group("/").into_iter().flat_map(|root| root.children()).collect();
        while let Some(group) = left.pop() {
            left.extend(group.children());
            if group.processes().is_ok_and(|processes| !processes.is_empty()) {
                found.push(group);
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }
}

impl Cgroup {
    /// Its path in the tree, starting with `/`. Bytes that are no text are escaped, and no two
    /// groups share a path ([`escape`]).
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The inode of its directory, which no other group of this boot has.
    pub fn inode(&self) -> io::Result<u64> {
        fs::metadata(&self.directory).map(|meta| meta.ino())
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        self.directory.is_dir()
    }

    /// Groups right below it.
    pub fn children(&self) -> Vec<Self> {
        // The kernel needs ten times longer to list a group's folder, which is mostly files, than
        // to report in `cgroup.stat` that it has no children.
        if self.read("cgroup.stat").is_ok_and(|stat| stat.is_some_and(|stat| has_none_below(&stat)))
        {
            return Vec::new();
        }
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let directories =
            entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.map(|entry| self.child(&entry.file_name())).collect()
    }

    /// The group of that name right below it.
    pub(crate) fn child(&self, name: &OsStr) -> Self {
        Self {
            directory: self.directory.join(name),
            path: format!("{}/{}", self.path.trim_end_matches('/'), escape::text(name)),
        }
    }

    /// It and every group below it.
    pub fn subtree(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        let mut next = 0;
        while let Some(group) = all.get(next) {
            let children = group.children();
            all.extend(children);
            next += 1;
        }
        all
    }

    /// Creates it.
    ///
    /// # Errors
    /// Names the missing privilege if the kernel denies permission.
    pub fn create(&self) -> Result<(), Error> {
        let made = before_write().map_err(io::Error::from);
        let Err(error) = made.and_then(|()| fs::create_dir(&self.directory)) else {
            return Ok(());
        };
        let needs = match error.kind() {
            io::ErrorKind::PermissionDenied => "root",
            io::ErrorKind::ReadOnlyFilesystem => {
                "a cgroup tree that can be written (in a container: --privileged)"
            }
            _ => return Err(error).at(&self.directory),
        };
        Err(Error::NotPermitted {
            what: format!("make the cgroup {}", escape::text(&self.directory)),
            needs,
        })
    }

    /// Removes it; fine if it is gone already.
    pub fn remove(&self) -> io::Result<()> {
        before_write()?;
        match fs::remove_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// The content of one of its files; none if the file is missing because the controller is not
    /// enabled.
    pub fn read(&self, file: &str) -> Result<Option<String>, Error> {
        let path = self.directory.join(file);
        match read::text(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at(&path),
        }
    }

    /// Writes one of its files.
    pub fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        let path = self.directory.join(file);
        // No create: a missing file means a missing controller, and a plain file must never appear
        // here. The kernel ignores the truncation.
        let is_due = before_write().map_err(io::Error::from);
        let opened =
            is_due.and_then(|()| fs::OpenOptions::new().write(true).truncate(true).open(&path));
        opened
            .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .at_writing(&path, text)
    }

    /// Whether it has such a file.
    pub fn has(&self, file: &str) -> bool {
        self.directory.join(file).exists()
    }

    /// Whether it can give controllers to groups below it.
    ///
    /// The tree's root can. Any other group with processes of its own cannot, such as the first
    /// group of a container: the kernel would even enable cpu and cpuset in it, but then no group
    /// below could hold a process any more (`cgroup-v2.rst`, "Threads").
    pub fn can_enable(&self) -> bool {
        let is_root = !self.has("cgroup.type");
        is_root
            || self
                .read("cgroup.procs")
                .ok()
                .flatten()
                .is_none_or(|processes| processes.trim().is_empty())
    }

    /// Gives the groups below it these controllers, as far as it can.
    pub fn enable_below(&self, controllers: &[&str]) -> Result<(), Error> {
        if !self.can_enable() {
            return Ok(());
        }
        let available = self.read("cgroup.controllers")?.unwrap_or_default();
        let enabled = self.read("cgroup.subtree_control")?.unwrap_or_default();
        let lists = |list: &str, one: &str| list.split_whitespace().any(|word| word == one);
        for controller in
            controllers.iter().filter(|one| lists(&available, one) && !lists(&enabled, one))
        {
            self.write("cgroup.subtree_control", &format!("+{controller}"))?;
        }
        Ok(())
    }

    /// Whether a live process is in it or below it. True also if too few descriptors are free to
    /// find out.
    pub fn populated(&self) -> bool {
        self.populated_once_settled(|| thread::sleep(SETTLE_PAUSE))
    }

    /// A process that its parent has reaped is in no list, but may count in `cgroup.events` for a
    /// moment (seen on Linux 7.3, 12 times of 600). So this waits for that moment to pass. Empty
    /// lists alone prove nothing: they are read one after the other while processes may move
    /// between the groups.
    fn populated_once_settled(&self, mut pause: impl FnMut()) -> bool {
        for _ in 0..SETTLE_TRIES {
            let events = match self.read("cgroup.events") {
                Ok(events) => events.unwrap_or_default(),
                Err(Error::File { source, .. }) if is_gone(&source) => return false,
                Err(_) => return true,
            };
            if !events.lines().any(|line| line == "populated 1") {
                return false;
            }
            if self.lists_a_process() {
                return true;
            }
            pause();
        }
        true
    }

    /// Whether its list or one below it has a process. True also for a list that cannot be read.
    fn lists_a_process(&self) -> bool {
        let mut left = vec![self.clone()];
        while let Some(group) = left.pop() {
            let list = group.read("cgroup.procs");
            if !list.is_ok_and(|list| list.is_some_and(|list| list.is_empty())) {
                return true;
            }
            left.extend(group.children());
        }
        false
    }

    /// The processes in it (not below it).
    pub fn processes(&self) -> Result<Vec<i32>, Error> {
        Ok(numbers(&self.read("cgroup.procs")?.unwrap_or_default()))
    }

    /// The processes in it and below it.
    pub fn all_processes(&self) -> Vec<i32> {
        self.subtree().iter().flat_map(|group| group.processes().unwrap_or_default()).collect()
    }

    /// The threads in it and below it.
    pub fn all_threads(&self) -> Vec<i32> {
        let threads =
            |group: &Self| group.read("cgroup.threads").ok().flatten().map(|text| numbers(&text));
        self.subtree().iter().flat_map(|group| threads(group).unwrap_or_default()).collect()
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// Names the missing privilege if the kernel denies permission.
    pub fn enter(&self, process: u32) -> Result<(), Error> {
        match self.write("cgroup.procs", &process.to_string()) {
            Err(Error::Write { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Err(Error::NotPermitted {
                    what: format!("enter the cgroup {}", escape::text(&self.directory)),
                    needs: "root",
                })
            }
            entered => entered,
        }
    }
}

/// From `cgroup.stat`. Groups that are removed but still dying do not count.
fn has_none_below(stat: &str) -> bool {
    stat.lines().any(|line| line == "nr_descendants 0")
}

fn numbers(text: &str) -> Vec<i32> {
    // A process of another PID namespace shows as 0, which identifies no process.
    text.lines()
        .filter_map(|line| line.trim().parse().ok())
        .filter(|&process| process != 0)
        .collect()
}

/// True if the file is gone, false if it could not be read for another reason. A file that is open
/// while its group is removed answers ENODEV.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_found_wherever_it_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("a b");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("cgroup.controllers"), "cpuset cpu\n").unwrap();
        let escaped = root.to_str().unwrap().replace(' ', "\\040");
        let mountinfo = folder.path().join("mountinfo");
        let hybrid = format!(
            "30 23 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n31 23 0:26 / {escaped} rw - cgroup2 \
             none rw\n"
        );
        fs::write(&mountinfo, hybrid).unwrap();
        let tree = Tree::find(&mountinfo).unwrap();
        assert_eq!(tree.root(), root);
        assert!(tree.has("cpuset") && !tree.has("memory"));
    }

    #[test]
    fn a_process_is_in_the_same_group_by_every_mount() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        let (mountinfo, own) = (folder.path().join("mountinfo"), folder.path().join("own"));
        let group = |begins: &str, path: &str| {
            let line =
                format!("31 23 0:26 {begins} {} rw - cgroup2 none rw\n", folder.path().display());
            fs::write(&mountinfo, line).unwrap();
            fs::write(&own, format!("1:cpu:/x\n0::{path}\n")).unwrap();
            Tree::find(&mountinfo).unwrap().group_of(&own).map(|group| group.path().to_owned())
        };
        for (begins, path, expected) in [
            ("/", "/a/b", "/a/b"),
            ("/", "/", "/"),
            ("/docker/7", "/docker/7", "/"),
            ("/docker/7", "/docker/7/a", "/a"),
            ("/..", "/../sibling", "/sibling"),
        ] {
            assert_eq!(group(begins, path).unwrap(), expected, "{begins} {path}");
        }
        for (begins, path) in
            [("/docker/7", "/"), ("/docker/7", "/docker/77"), ("/../..", "/"), ("/", "/../a")]
        {
            assert!(group(begins, path).is_err(), "{begins} {path}");
        }
        let said = group("/../..", "/").unwrap_err().to_string();
        assert!(said.contains("begins with /../..") && said.contains("--cgroupns=host"), "{said}");
    }

    #[test]
    fn names_that_are_no_text_hide_no_process() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cg");
        let names = [&b"\xff"[..], br"\xff", b" \"'\\\t", b"\xc3\r", &[0xfe; 255]];
        for (name, process) in names.into_iter().zip(10..) {
            let group = root.join("db").join(OsStr::from_bytes(name));
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cgroup.procs"), format!("{process}\n")).unwrap();
            fs::write(group.join("cgroup.threads"), format!("{process}\n")).unwrap();
        }
        fs::write(root.join("cgroup.controllers"), "").unwrap();
        fs::write(root.join("db/cgroup.procs"), "9\n").unwrap();
        fs::write(root.join("db/cgroup.events"), "populated 1\n").unwrap();
        let tree = Tree::at(&root).unwrap();
        let db = tree.group("/db").unwrap();
        let mut processes = db.all_processes();
        processes.sort_unstable();
        assert_eq!(processes, [9, 10, 11, 12, 13, 14]);
        assert_eq!(db.all_threads().len(), 5);
        let found = tree.populated_groups();
        assert_eq!(found.len(), 6);
        for group in found {
            assert_eq!(tree.group(group.path()).unwrap(), group, "its path leads back to it");
            let own = folder.path().join("own");
            let path = group.directory().strip_prefix(&root).unwrap().as_os_str().as_bytes();
            fs::write(&own, [b"1:cpu:/\xff\n0::/", path, b"\n"].concat()).unwrap();
            assert_eq!(tree.group_of(&own).unwrap(), group);
        }
    }

    #[test]
    fn a_tree_may_be_mounted_where_the_path_is_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(OsStr::from_bytes(b"\xff"));
        fs::create_dir(&root).unwrap();
        fs::write(root.join("cgroup.controllers"), "").unwrap();
        let (mountinfo, own) = (folder.path().join("mountinfo"), folder.path().join("own"));
        let place = root.as_os_str().as_bytes();
        let line = [b"31 23 0:26 /c\xff ", place, b" rw - cgroup2 none rw\n"].concat();
        fs::write(&mountinfo, line).unwrap();
        fs::write(&own, b"0::/c\xff/a\n").unwrap();
        let tree = Tree::find(&mountinfo).unwrap();
        assert_eq!(tree.root(), root);
        assert_eq!(tree.group_of(&own).unwrap().path(), "/a");
        fs::write(&own, b"0::/c\xfe\n").unwrap();
        let said = tree.group_of(&own).unwrap_err().to_string();
        assert!(said.contains(r"the cgroup /c\xfe of") && said.contains(r"with /c\xff"), "{said}");
    }

    #[test]
    fn a_group_with_processes_of_its_own_gives_no_controllers_to_those_below() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        file("cgroup.controllers", "cpuset memory\n");
        file("cgroup.procs", "7\n");
        let group = Tree::at(folder.path()).unwrap().group("/").unwrap();
        let enabled = || {
            file("cgroup.subtree_control", "");
            group.enable_below(&["cpuset", "hugetlb"]).unwrap();
            fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap()
        };
        assert_eq!(enabled(), "+cpuset", "the root has processes always");
        file("cgroup.type", "domain\n");
        assert_eq!(enabled(), "");
        file("cgroup.procs", "");
        assert_eq!(enabled(), "+cpuset");
    }

    #[test]
    fn a_host_without_a_tree_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mountinfo = folder.path().join("mountinfo");
        fs::write(&mountinfo, "30 23 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n").unwrap();
        assert!(matches!(Tree::find(&mountinfo), Err(Error::NoCgroupTree)));
    }

    #[test]
    fn a_group_is_populated_until_its_last_process_is_reaped() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let group = Cgroup { directory: folder.path().into(), path: "/a".into() };
        let mut pauses = 0;
        assert!(!group.populated(), "there is no such group");
        file("cgroup.events", "populated 1\nfrozen 0\n");
        file("cgroup.procs", "10\n");
        assert!(group.populated_once_settled(|| pauses += 1));
        // A process of another PID namespace.
        file("cgroup.procs", "0\n");
        assert!(group.populated_once_settled(|| pauses += 1));
        assert_eq!(pauses, 0);

        file("cgroup.procs", "");
        fs::create_dir(folder.path().join("below")).unwrap();
        file("below/cgroup.procs", "11\n");
        assert!(group.populated_once_settled(|| pauses += 1));
        assert_eq!(pauses, 0, "it is below");

        file("below/cgroup.procs", "");
        let buried = || {
            pauses += 1;
            file("cgroup.events", "populated 0\nfrozen 0\n");
        };
        assert!(!group.populated_once_settled(buried));
        assert_eq!(pauses, 1);
        file("cgroup.events", "populated 1\nfrozen 0\n");
        assert!(group.populated_once_settled(|| {}), "the kernel says so to the end");
    }

    #[test]
    fn paths_cannot_leave_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        let tree = Tree::at(folder.path()).unwrap();
        assert!(tree.group("/nearside/../../etc").is_err());
        assert_eq!(tree.group(r"/\x5cx5c").unwrap(), tree.group(r"/\x5c").unwrap());
        assert_eq!(
            tree.group("machine.slice/vm.scope/").unwrap().path(),
            "/machine.slice/vm.scope"
        );
    }
}
