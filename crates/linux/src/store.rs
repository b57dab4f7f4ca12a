//! The records of running domains, on disk, where parallel starts and later commands find them.
//!
//! One file a domain below `/run/nearside/domains`, replaced as a whole, and a lock that whoever changes anything
//! holds. A record counts while the cgroup it names lives: same boot, same inode, a process in it. So a domain keeps its
//! claim when whoever started it is gone, and a claim never outlives its domain; what is left of a dead one is swept
//! away by the next who holds the lock.

use crate::{
    cgroup::Tree,
    error::{Error, IoContext},
};
use nearside_policy::{Claim, CpuReason, Decision, Home, Limits};
use nearside_topology::{CpuSet, NodeSet};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// What is kept about a domain while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// The boot during which it was started (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// The path of its cgroup.
    pub cgroup: String,
    /// The inode of that cgroup.
    pub inode: u64,
    /// When it was started, in seconds since 1970.
    pub started_unix_s: u64,
    /// What was started.
    pub command: Vec<String>,
    /// Its home.
    pub home: Home,
    /// What is promised to it.
    pub claim: Claim,
    /// What it may use at most.
    pub limits: Limits,
    /// The placement behind its first home.
    pub decision: Decision,
    /// CPUs it is bound to, and on whose behalf.
    pub cpus: Option<CpuBinding>,
    /// Nodes its memory is confined to (`cpuset.mems`).
    pub memory_nodes: Option<NodeSet>,
    /// The nodes of its processes' memory policy, for those that are started later.
    pub policy_nodes: Option<NodeSet>,
    /// Where its memory was being moved to when that was broken off.
    pub moving_to: Option<NodeSet>,
}

/// CPUs a domain is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuBinding {
    /// Which.
    pub cpus: CpuSet,
    /// On whose behalf: Nearside lifts its own fallback when it can, an operator's never.
    pub on_behalf: CpuReason,
}

/// The folder of records.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
    boot_id: String,
}

/// The store while nobody else changes it; let go when dropped, or when the process ends or executes another program.
#[derive(Debug)]
pub struct Locked {
    store: Store,
    _lock: OwnedFd,
}

impl Store {
    /// The store in `directory`, as of the boot that `boot_id` names. It is made when something is first recorded.
    pub fn new(directory: &Path, boot_id: &str) -> Self {
        Self { directory: directory.into(), boot_id: boot_id.trim().into() }
    }

    /// Which boot this is.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The records of domains that live, by name, and what is wrong with records that cannot be read.
    pub fn records(&self, tree: &Tree) -> (Vec<Record>, Vec<Error>) {
        let (mut alive, mut broken) = (Vec::new(), Vec::new());
        for path in self.files() {
            match read(&path) {
                Ok(Some(record)) if self.lives(&record, tree) => alive.push(record),
                Ok(_) => {}
                Err(error) => broken.push(error),
            }
        }
        alive.sort_by(|a: &Record, b| a.name.cmp(&b.name));
        (alive, broken)
    }

    /// The record of one domain as it was written last, whether the domain lives or not.
    pub fn record(&self, name: &str) -> Result<Option<Record>, Error> {
        read(&self.file(name))
    }

    /// Waits until nobody else changes the store, and keeps others from it.
    pub fn lock(&self) -> Result<Locked, Error> {
        let domains = self.domains();
        let not_permitted = |error: io::Error, path: &Path| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Error::NotPermitted { what: format!("record claims in {}", path.display()), needs: "root" }
            }
            _ => Error::File { path: path.into(), source: error },
        };
        self.make_directories().map_err(|error| not_permitted(error, &domains))?;
        let file = self.directory.join("lock");
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&file, flags, Mode::from_raw_mode(0o600));
        let lock = lock.map_err(|error| not_permitted(error.into(), &file))?;
        while let Err(error) = rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
            if error != rustix::io::Errno::INTR {
                return Err(Error::File { path: file, source: error.into() });
            }
        }
        Ok(Locked { store: self.clone(), _lock: lock })
    }

    /// Makes the folders where they are not there, for everybody to read and nobody else to write, whatever the umask.
    fn make_directories(&self) -> io::Result<()> {
        for directory in [self.directory.clone(), self.domains()] {
            match fs::DirBuilder::new().mode(0o755).create(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            let (meta, own) = (fs::symlink_metadata(&directory)?, rustix::process::geteuid().as_raw());
            if !meta.is_dir() || meta.uid() != own {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            if meta.mode() & 0o022 != 0 {
                fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    fn domains(&self) -> PathBuf {
        self.directory.join("domains")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.domains().join(format!("{name}.json"))
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.domains()) else { return Vec::new() };
        let paths = entries.flatten().map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
    }

    fn lives(&self, record: &Record, tree: &Tree) -> bool {
        record.boot_id == self.boot_id
            && tree
                .group(&record.cgroup)
                .is_ok_and(|group| group.inode().is_ok_and(|inode| inode == record.inode) && group.populated())
    }
}

impl Locked {
    /// Writes a record, in place of an earlier one.
    pub fn put(&self, record: &Record) -> Result<(), Error> {
        let path = self.store.file(&record.name);
        let fresh = path.with_extension("new");
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::from).at(&path)?;
        // A file that a killed writer left, or that somebody planted, is not written through.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).at(&fresh),
            _ => {}
        }
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&fresh);
        file.and_then(|mut file| file.write_all(&text)).and_then(|()| fs::rename(&fresh, &path)).at(&path)
    }

    /// Removes a record; fine if it is gone already.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.store.file(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.at(&path),
        }
    }

    /// Removes what dead domains left: their records, and empty cgroups below `parent`.
    pub fn sweep(&self, tree: &Tree, parent: Option<&str>) -> Result<(), Error> {
        for path in self.store.files() {
            if let Ok(Some(record)) = read(&path)
                && !self.store.lives(&record, tree)
            {
                self.remove(&record.name)?;
            }
        }
        // Whoever makes a cgroup enters it before the lock is let go, so an empty one has no owner any more.
        let groups = parent.and_then(|parent| tree.group(parent).ok()).into_iter().flat_map(|parent| parent.children());
        for group in groups.filter(|group| !group.populated()) {
            for below in group.subtree().iter().rev() {
                // One that cannot be removed yet counts for nothing and is tried again by the next.
                let _ = below.remove();
            }
        }
        Ok(())
    }
}

/// None where the file is gone meanwhile.
fn read(path: &Path) -> Result<Option<Record>, Error> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.at(path)?,
    };
    let broken = |why| Error::Record { path: path.into(), why };
    let record: Record = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
    // It is written and removed by its name, which must not lead to another's file.
    if path.file_stem().is_none_or(|stem| stem != record.name.as_str()) {
        return Err(broken(format!("read the name {:?}, expected that of the file", record.name)));
    }
    Ok(Some(record))
}
