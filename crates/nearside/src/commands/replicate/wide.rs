//! Processes with threads on several nodes, among those that map files with copies.

use nearside_linux::threads::nodes_of_process;
use nearside_replicas::{
    Client, Error,
    original::Place,
    protocol::{FileStatus, SOCKET},
};
use nearside_topology::{CpuId, NodeId, Topology};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, ErrorKind},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Processes that map a file or a copy of it, with threads on several nodes. Each uses one copy, or
/// the original, for all its threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Wide {
    /// One of them.
    pub(crate) process: u32,
    /// The nodes of its threads, rising.
    pub(crate) nodes: Vec<NodeId>,
    /// The number of other such processes.
    pub(crate) others: u32,
}

/// The longest wait for an answer of the replicator, which may just be busy with a writer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A folder by device and inode.
type FolderId = (u64, u64);

/// The copies on a host, as far as this user may see them.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Its wide processes, by file.
    pub(crate) wide: BTreeMap<Place, Wide>,
    /// A trouble with its replicator.
    pub(crate) trouble: Option<Trouble>,
}

/// Why copies may not follow their files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// None runs.
    Absent,
    /// The last replicator left its socket behind. One that ends in order does not.
    Killed,
    /// The replicator does not answer.
    Silent,
}

impl Seen {
    pub(crate) fn on_host(topology: &Topology) -> Self {
        let client = Client::connect(Path::new(SOCKET), PATIENCE);
        let told = client.and_then(|client| told(&client, topology, |_| true));
        let trouble = match &told {
            Err(Error::NoHelper { source, .. })
                if source.kind() == ErrorKind::ConnectionRefused =>
            {
                Some(Trouble::Killed)
            }
            Err(Error::NoHelper { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Some(Trouble::Absent)
            }
            Err(Error::NoAnswer { .. }) => Some(Trouble::Silent),
            _ => None,
        };
        Self { wide: told.unwrap_or_default(), trouble }
    }
}

/// Those among the processes asked for, by file. Empty, too, if there is no replicator, or if it
/// does not answer this user in time.
pub(crate) fn on_host(
    topology: &Topology,
    is_asked_for: impl Fn(u32) -> bool,
) -> BTreeMap<Place, Wide> {
    let client = Client::connect(Path::new(SOCKET), PATIENCE);
    client.and_then(|client| told(&client, topology, is_asked_for)).unwrap_or_default()
}

fn told(
    client: &Client,
    topology: &Topology,
    is_asked_for: impl Fn(u32) -> bool,
) -> Result<BTreeMap<Place, Wide>, Error> {
    Ok(among(&client.status()?.files, client.helper()?, topology, is_asked_for))
}

/// Those of these files, by file.
pub(crate) fn of(
    files: &[FileStatus],
    replicator: i32,
    topology: &Topology,
) -> BTreeMap<Place, Wide> {
    among(files, replicator, topology, |_| true)
}

fn among(
    files: &[FileStatus],
    replicator: i32,
    topology: &Topology,
    is_asked_for: impl Fn(u32) -> bool,
) -> BTreeMap<Place, Wide> {
    let counts = |process| i64::from(process) != i64::from(replicator) && is_asked_for(process);
    wide(files, Path::new("/proc"), counts, |cpu| topology.cpu(cpu)?.node)
}

/// The wide processes by file, among those that count. A process maps a file if its maps have the
/// path, and its root is the one in which the file was added: copies have the paths of their
/// originals. Files without copies do not count, nor do processes that end meanwhile or may not be
/// looked at.
fn wide(
    files: &[FileStatus],
    proc: &Path,
    counts: impl Fn(u32) -> bool,
    node_of: impl Fn(CpuId) -> Option<NodeId>,
) -> BTreeMap<Place, Wide> {
    let mut found: BTreeMap<Place, Wide> = BTreeMap::new();
    let with_copies = files.iter().filter(|file| !file.copies.is_empty());
    let of_host = with_copies.map(|file| &file.place).filter_map(|place| {
        let root = place.image.as_deref().unwrap_or(Path::new("/"));
        Some(((folder_id(root).ok()?, place.path.clone()), place))
    });
    let places: BTreeMap<(FolderId, PathBuf), &Place> = of_host.collect();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    for process in entries.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok()) {
        if !counts(process) {
            continue;
        }
        let folder = proc.join(process.to_string());
        let Ok(root) = folder_id(&folder.join("root/")) else { continue };
        let mapped = mapped(&fs::read(folder.join("maps")).unwrap_or_default());
        let its = mapped.into_iter().filter_map(|path| places.get(&(root, path)));
        let its: Vec<_> = its.collect();
        if its.is_empty() {
            continue;
        }
        let nodes = nodes_of_process(&folder, &node_of);
        if nodes.len() < 2 {
            continue;
        }
        for place in its {
            let first = || Wide { process, nodes: nodes.iter().collect(), others: 0 };
            let others = |wide: &mut Wide| wide.others += 1;
            found.entry((*place).clone()).and_modify(others).or_insert_with(first);
        }
    }
    found
}

fn folder_id(folder: &Path) -> io::Result<FolderId> {
    fs::metadata(folder).map(|it| (it.dev(), it.ino()))
}

/// The paths in `/proc/PID/maps`, each once.
fn mapped(maps: &[u8]) -> BTreeSet<PathBuf> {
    let path = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'/')?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(&line[at..])))
    };
    maps.split(|byte| *byte == b'\n').filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_replicas::protocol::CopyStatus;
    use std::os::unix::fs::symlink;

    fn status(image: Option<&Path>, path: &str) -> FileStatus {
        FileStatus {
            place: Place { image: image.map(Into::into), path: path.into() },
            bytes: 1,
            state: "replicated".into(),
            why: None,
            copies: [(NodeId(1), CopyStatus { bytes: 1, users: 1, namespaces: 1 })].into(),
            serving: [].into(),
            gain_percent: [].into(),
            refused: [].into(),
            collapses: 0,
            automatic: false,
        }
    }

    #[test]
    fn processes_are_found_by_path_root_and_the_cpus_of_their_threads() {
        let made = tempfile::tempdir().unwrap();
        let (proc, image) = (made.path().join("proc"), made.path().join("image"));
        fs::create_dir(&image).unwrap();
        // CPUs 0 and 1 are on node 0, and so on. The last of them are on no node.
        let process = |process: u32, root: &Path, path: &str, cpus: &[u32]| {
            let folder = proc.join(process.to_string());
            fs::create_dir_all(&folder).unwrap();
            symlink(root, folder.join("root")).unwrap();
            let maps = format!("7f00-7f01 r-xp 0000 08:01 12    {path}\n7f02-7f03 rw-p 0 0 0\n");
            fs::write(folder.join("maps"), maps).unwrap();
            for (thread, cpu) in cpus.iter().enumerate() {
                let task = folder.join(format!("task/{thread}"));
                fs::create_dir_all(&task).unwrap();
                let stat = format!("{thread} (a ) b) S {}{cpu} 0 0\n", "0 ".repeat(35));
                fs::write(task.join("stat"), stat).unwrap();
            }
        };
        let host = Path::new("/");
        process(10, host, "/lib/a b.so", &[0, 1]);
        process(11, host, "/lib/a b.so", &[0, 5, 5]);
        process(12, host, "/lib/a b.so", &[2, 4]);
        process(13, host, "/lib/other.so", &[2, 4]);
        process(14, &image, "/lib/a b.so", &[2, 7]);
        process(15, &image, "/lib/a b.so", &[0, 9]);
        // The replicator, and a file without copies.
        process(16, host, "/lib/a b.so", &[0, 4]);
        process(17, host, "/lib/barred.so", &[0, 4]);
        let node_of = |cpu: CpuId| (cpu.0 < 8).then_some(NodeId(cpu.0 / 2));
        let barred = FileStatus { copies: [].into(), ..status(None, "/lib/barred.so") };
        let files = [status(None, "/lib/a b.so"), status(Some(&image), "/lib/a b.so"), barred];
        let found = wide(&files, &proc, |process| process != 16, node_of);
        let of = |file: &FileStatus| {
            let Wide { process, nodes, others } = &found[&file.place];
            (*process, nodes.iter().map(|node| node.0).collect::<Vec<_>>(), *others)
        };
        // The order of /proc is not that of the numbers.
        let (process, nodes, others) = of(&files[0]);
        assert!([(11, vec![0, 2]), (12, vec![1, 2])].contains(&(process, nodes)), "{found:?}");
        assert_eq!((others, of(&files[1])), (1, (14, vec![1, 3], 0)));
        assert_eq!(found.len(), 2);
    }
}
