//! The helper: one thread that answers clients, lease breaks and changes of files, one that copies,
//! and one that empties copies of files that were emptied.

mod absent;
mod connection;
mod effects;
mod events;
mod file;
mod late;
mod managers;
mod memory;
mod processes;
mod requests;
mod retry;
mod search;

use crate::{
    copier::Copier,
    error::{Error, IoContext},
    exchanger::Exchanger,
    file_id::FileId,
    leftovers,
    namespace::{Namespace, Visitor},
    package_managers::PackageManagers,
    remains::Remains,
    signals::Signals,
    store::Store,
    truncations::Truncations,
};
use file::{Absent, Guest, MemoryWatch, Replicated, Withdrawn};
use nearside_linux::{LockFile, Paths, folder::Folder, watch::raise_open_files};
use nearside_policy::replication::budget_bytes;
use nearside_topology::Topology;
use rustix::{
    fs::{Mode, inotify},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Where the helper keeps its things, and what it may use.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its folder: the socket, and the mount points of the stores.
    pub folder: PathBuf,
    /// The machine.
    pub topology: Topology,
    /// The most bytes of copies on a node; by default a share of its memory.
    pub budget_bytes: Option<u64>,
    /// The host whose claims copies respect; none where nothing is claimed.
    pub host: Option<Paths>,
}

/// The helper.
#[derive(Debug)]
pub struct Replicator {
    topology: Topology,
    host: Option<Paths>,
    stores: Arc<Vec<Store>>,
    visitor: Visitor,
    signals: Signals,
    changes: OwnedFd,
    /// The mounts of the host, to wait for changes.
    host_mounts: File,
    copier: Copier,
    truncations: Truncations,
    exchanger: Exchanger,
    listener: OwnedFd,
    folder: Folder,
    socket: PathBuf,
    files: BTreeMap<FileId, Replicated>,
    guests: BTreeMap<FileId, Guest>,
    /// Wishes for places without a file.
    absent: Vec<Absent>,
    /// The last look at the places of all files.
    places_seen: Instant,
    /// Copies that have gone, and whose memory processes keep.
    remains: Vec<Remains>,
    /// Copies that have gone, whose users are looked for once more.
    late: Vec<Withdrawn>,
    watch: MemoryWatch,
    /// Held while it lives: a second helper would take the first one's copies for leftovers.
    _lock: LockFile,
    /// None if the kernel lacks what they need.
    managers: Option<PackageManagers>,
    /// The number of the next copy, for its name.
    next_copy: u64,
}

impl Replicator {
    /// Clears leftovers, mounts the stores and listens. To be called before other threads exist.
    ///
    /// # Errors
    /// If another helper runs, without `CAP_SYS_ADMIN` or `CAP_SYS_PTRACE`, if the folder or the
    /// socket cannot be made, or where running processes cannot be returned to originals (other
    /// than on x86-64).
    pub fn open(options: Options) -> Result<Self, Error> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Refused("copies of program text are for x86-64 only".into()));
        }
        // One descriptor a file, and one for each of its mounts.
        raise_open_files();
        let signals = Signals::redirect()?;
        let folder = Folder::make(&options.folder)?;
        let lock = lock(&folder)?;
        let visitor = Visitor::new(Namespace::of(1)?)?;
        let exchanger = Exchanger::start()?;
        leftovers::clear(&visitor, Namespace::own()?.id(), &exchanger, &folder)?;
        let mount = |node: &nearside_topology::Node| {
            let budget = options.budget_bytes.unwrap_or_else(|| budget_bytes(node.memory_bytes));
            let place = folder.path().join(format!("node{}", node.id.0));
            Store::mount(node.id, &place, budget)
        };
        let with_memory = options.topology.nodes.iter().filter(|node| node.memory_bytes > 0);
        let stores = Arc::new(with_memory.map(mount).collect::<Result<Vec<_>, _>>()?);
        leftovers::note(&folder, &stores)?;
        let socket = folder.path().join("socket");
        let listener = listen_at(&socket)?;
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .doing(|| "watching files".into())?;
        let host_mounts =
            File::open("/proc/1/mountinfo").doing(|| "watching the host's mounts".into())?;
        let managers = PackageManagers::new();
        if let Err(error) = &managers {
            log!("package managers inside domains will find files busy: {error}");
        }
        let managers = managers.ok();
        let truncations = Truncations::start(Arc::clone(&stores))?;
        let copier = Copier::start(Arc::clone(&stores), options.host.clone())?;
        Ok(Self {
            topology: options.topology,
            host: options.host,
            stores,
            visitor,
            signals,
            changes,
            host_mounts,
            copier,
            truncations,
            exchanger,
            listener,
            folder,
            socket,
            files: BTreeMap::new(),
            guests: BTreeMap::new(),
            absent: Vec::new(),
            places_seen: Instant::now(),
            remains: Vec::new(),
            late: Vec::new(),
            watch: MemoryWatch::default(),
            _lock: lock,
            managers,
            next_copy: 0,
        })
    }
}

/// The lock of the only helper.
fn lock(folder: &Folder) -> Result<LockFile, Error> {
    let doing = || format!("locking {}", folder.path().join("lock").display());
    let lock = folder.lock_file("lock")?;
    match lock.try_lock() {
        Ok(true) => Ok(lock),
        Ok(false) => Err(Error::Refused(
            "another replicator runs: stop it (systemctl stop nearside-replicator)".into(),
        )),
        Err(error) => Err(error).doing(doing),
    }
}

/// A socket that root alone may connect to.
fn listen_at(path: &Path) -> Result<OwnedFd, Error> {
    let doing = || format!("listening at {}", path.display());
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).doing(doing)?,
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).doing(doing)?;
    let address = SocketAddrUnix::new(path).doing(doing)?;
    bind(&listener, &address).doing(doing)?;
    // No client connects before `listen`.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).doing(doing)?;
    listen(&listener, 64).doing(doing)?;
    Ok(listener)
}
