//! Copies that no operator has asked for (docs/adr/0020-automatic-copies.md). A thread asks the
//! replicator for them, so that the control loop never waits for it.

use crate::{output, printable::printable, report::units::size};
use nearside_linux::{cgroup::Tree, escape, text::TextDomain};
use nearside_policy::text::{
    Candidate, CopyHistory, CopyOrder, CopyTurn, DomainNamespace, FileId, Found, Held, plan_copies,
};
use nearside_replicas::{
    Client,
    original::Place,
    protocol::{Answer, Attached, FileStatus, Request, SOCKET},
};
use nearside_topology::{Distances, NodeId, NodeSet};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, major, minor, openat2};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// The longest wait for an answer. To attach a namespace takes some milliseconds a process.
const PATIENCE: Duration = Duration::from_secs(30);

/// Candidates of one look that are opened.
const MAX_CANDIDATES: usize = 256;

/// The files that have copies because the daemon asked for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiesReport {
    /// Their number.
    pub files: usize,
    /// The memory of their copies, in bytes.
    pub bytes: u64,
    /// Why there are none, if the replicator does not answer.
    pub why: Option<String>,
}

/// A look of the control loop at the text of domains.
#[derive(Debug)]
pub(super) struct TextLook {
    pub(super) number: u64,
    pub(super) candidates: Vec<Candidate>,
    pub(super) domains: Vec<TextDomain>,
    pub(super) distances: Distances,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Copies {
    looks: SyncSender<TextLook>,
    report: Arc<Mutex<CopiesReport>>,
    /// Whether it takes the copies away when it ends.
    clears: Arc<AtomicBool>,
}

impl Copies {
    pub(super) fn start(tree: &Tree, proc: &Path) -> io::Result<Self> {
        let (looks, received) = sync_channel(1);
        let report = Arc::<Mutex<CopiesReport>>::default();
        let clears = Arc::<AtomicBool>::default();
        let asker = Asker {
            tree: tree.clone(),
            proc: proc.to_owned(),
            history: CopyHistory::default(),
            helper: None,
            socket: SOCKET.into(),
            complaints: BTreeMap::new(),
        };
        let (told, clears_at_end) = (Arc::clone(&report), Arc::clone(&clears));
        thread::Builder::new()
            .name("nearside-copies".into())
            .spawn(move || asker.run(&received, &told, &clears_at_end))?;
        Ok(Self { looks, report, clears })
    }

    /// Hands a look over. While the thread is busy with an earlier one, this one is left out.
    pub(super) fn look(&self, look: TextLook) {
        let _ = self.looks.try_send(look);
    }

    pub(super) fn report(&self) -> CopiesReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the thread, which takes the copies away.
    pub(super) fn clear(self) {
        self.clears.store(true, Ordering::Release);
    }
}

/// The state of the thread.
struct Asker {
    tree: Tree,
    proc: PathBuf,
    history: CopyHistory,
    /// The process that answered last.
    helper: Option<i32>,
    /// The replicator's.
    socket: PathBuf,
    /// The last complaint of each namespace that could not be attached, by the namespace's number.
    complaints: BTreeMap<u64, String>,
}

impl Asker {
    fn run(
        mut self,
        looks: &Receiver<TextLook>,
        report: &Mutex<CopiesReport>,
        clears: &AtomicBool,
    ) {
        while let Ok(look) = looks.recv() {
            let told = match self.look(&look) {
                Ok(told) => told,
                Err(why) => CopiesReport { why: Some(why), ..CopiesReport::default() },
            };
            *report.lock().unwrap_or_else(PoisonError::into_inner) = told;
        }
        if clears.load(Ordering::Acquire) {
            // Without a replicator there are no copies.
            let _ = clear(&self.socket);
        }
    }

    fn look(&mut self, look: &TextLook) -> Result<CopiesReport, String> {
        let client = connect(&self.socket)?;
        let helper = client.helper().map_err(text)?;
        if self.helper.replace(helper).is_some_and(|before| before != helper) {
            self.history.forget_replicator();
        }
        let files = client.status().map_err(text)?.files;
        let held: Vec<_> = files.iter().map(held).collect();
        let (found, mut opened) = found(&look.candidates);
        let namespaces = self.namespaces(&look.domains);
        let turn = CopyTurn {
            look: look.number,
            found: &found,
            held: &held,
            namespaces: &namespaces,
            distances: &look.distances,
        };
        let (orders, history) = plan_copies(&turn, &self.history);
        self.history = history;
        self.complaints.retain(|id, _| namespaces.iter().any(|it| it.id == *id));
        let mut orders = orders.into_iter();
        while let Some(order) = orders.next() {
            if let Err(why) = self.carry_out(&client, look.number, &order, &mut opened) {
                // To attach may take longer than the wait. The replicator goes on with it, and this
                // connection's next answer would be to that.
                let is_attaching = matches!(order, CopyOrder::Attach(_));
                let undone = (!is_attaching).then_some(order).into_iter().chain(orders);
                undone.for_each(|order| self.history.not_done(&order));
                return Err(why);
            }
        }
        let mine = files.iter().filter(|file| file.automatic);
        let bytes = mine.clone().flat_map(|file| file.copies.values()).map(|copy| copy.bytes);
        Ok(CopiesReport {
            files: mine.clone().count(),
            bytes: bytes.fold(0, u64::saturating_add),
            why: None,
        })
    }

    /// Asks for what was decided, and tells of it.
    ///
    /// # Errors
    /// If the replicator does not answer. An answer that refuses is none of this.
    fn carry_out(
        &mut self,
        client: &Client,
        look: u64,
        order: &CopyOrder,
        opened: &mut BTreeMap<String, OwnedFd>,
    ) -> Result<(), String> {
        match order {
            CopyOrder::Copy { path, nodes } => {
                let done = match opened.remove(path).map_or_else(|| open(path), Ok) {
                    Ok(file) => copy(client, &file, path, nodes)?,
                    Err(error) => Err(text(error)),
                };
                let (nodes, name) = (nodes.named(), shown(path));
                match done {
                    Ok(()) => output::note([format!("text: copies of {name} on {nodes}")]),
                    Err(why) => {
                        self.history.refused(look, path);
                        output::note([format!("text: no copies of {name}: {why}")]);
                    }
                }
            }
            CopyOrder::Remove { path } => {
                let done = remove(client, path)?;
                let path = shown(path);
                output::note([match done {
                    Ok(()) => format!("text: no process uses the copies of {path}: gone"),
                    Err(why) => format!("text: copies of {path}: {why}"),
                }]);
            }
            CopyOrder::Attach(namespace) => match attach(client, namespace)? {
                Ok(()) => _ = self.complaints.remove(&namespace.id),
                Err(why) => {
                    // Its process may have ended, where others live on.
                    self.history.not_done(order);
                    let why = format!("text: {}: {why}", printable(&namespace.domain));
                    if self.complaints.get(&namespace.id) != Some(&why) {
                        output::note([&why]);
                        self.complaints.insert(namespace.id, why);
                    }
                }
            },
        }
        Ok(())
    }

    /// The mount namespaces of domains at home on one node. One that domains with different homes
    /// share can have the copies of none.
    fn namespaces(&self, domains: &[TextDomain]) -> Vec<DomainNamespace> {
        let host = self.namespace_of(1);
        let mut found = BTreeMap::<u64, DomainNamespace>::new();
        let mut shared = BTreeSet::new();
        for domain in domains {
            let home = domain.home.as_ref().filter(|home| home.len() == 1);
            let Some(node) = home.and_then(NodeSet::first) else { continue };
            let Ok(group) = self.tree.group(&domain.cgroup) else { continue };
            for process in group.all_processes() {
                let Some(id) = self.namespace_of(process).filter(|id| Some(*id) != host) else {
                    continue;
                };
                let namespace = DomainNamespace { id, process, domain: domain.name.clone(), node };
                let known = found.entry(id).or_insert(namespace);
                if known.node != node {
                    shared.insert(id);
                }
            }
        }
        found.into_values().filter(|namespace| !shared.contains(&namespace.id)).collect()
    }

    /// The number of a process's mount namespace; none if it has ended.
    fn namespace_of(&self, process: i32) -> Option<u64> {
        let link = fs::read_link(self.proc.join(format!("{process}/ns/mnt"))).ok()?;
        link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
    }
}

fn connect(socket: &Path) -> Result<Client, String> {
    Client::connect(socket, PATIENCE).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn shown(path: &str) -> String {
    printable(path).to_string()
}

/// A file of the replicator, for the decision.
fn held(file: &FileStatus) -> Held {
    let users = file
        .serving
        .iter()
        .filter_map(|(node, copy): (&NodeId, &NodeId)| Some((*node, file.copies.get(copy)?.users)));
    Held {
        path: escape::text(file.place.on_host()),
        nodes: file.serving.keys().copied().collect(),
        users: users.collect(),
        collapses: file.collapses,
        is_automatic: file.automatic,
    }
}

/// The candidates that the host has at the same path, each with its file. Those of a container's
/// image have another file there, or none.
fn found(candidates: &[Candidate]) -> (Vec<Found>, BTreeMap<String, OwnedFd>) {
    let (mut found, mut opened) = (Vec::new(), BTreeMap::new());
    for candidate in candidates.iter().take(MAX_CANDIDATES) {
        let Ok(file) = open(&candidate.path) else { continue };
        let Ok(stat) = fstat(&file) else { continue };
        let id =
            FileId { major: major(stat.st_dev), minor: minor(stat.st_dev), inode: stat.st_ino };
        if id == candidate.file {
            let length_bytes = u64::try_from(stat.st_size).unwrap_or(0);
            found.push(Found { candidate: candidate.clone(), length_bytes });
            opened.insert(candidate.path.clone(), file);
        }
    }
    (found, opened)
}

/// The file at a path, as a name only.
fn open(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(CWD, escape::path(path), flags, Mode::empty(), resolve)?)
}

/// An answer of the replicator: it has done as it was asked, or says why not.
type Answered = Result<(), String>;

fn copy(client: &Client, file: &OwnedFd, path: &str, nodes: &NodeSet) -> Result<Answered, String> {
    let request = Request::Add {
        place: Place { image: None, path: escape::path(path) },
        nodes: Some(nodes.clone()),
        ratio: Default::default(),
        automatic: true,
    };
    Ok(done(client.ask(&request, Some(file.as_fd())).map_err(text)?))
}

fn remove(client: &Client, path: &str) -> Result<Answered, String> {
    let request = Request::Remove { path: escape::path(path), automatic: true };
    Ok(done(client.ask(&request, None).map_err(text)?))
}

fn done(answer: Answer) -> Answered {
    match answer {
        Answer::Done => Ok(()),
        Answer::Barred { bar } => Err(bar.to_string()),
        Answer::Refused { why } => Err(why),
        other => Err(format!("the replicator's answer does not fit: {other:?}")),
    }
}

fn attach(client: &Client, namespace: &DomainNamespace) -> Result<Answered, String> {
    let Ok(process) = u32::try_from(namespace.process) else { return Ok(Ok(())) };
    let request = Request::Attach { process, node: namespace.node, future_root: None };
    let attached = match client.ask(&request, None).map_err(text)? {
        Answer::Attached(attached) => attached,
        other => return Ok(done(other)),
    };
    let domain = printable(&namespace.domain);
    let Attached { processes, bytes, left_alone, .. } = attached;
    if processes > 0 {
        let (bytes, node) = (size(bytes), namespace.node);
        output::note([format!("text: {bytes} of {domain} on copies of node {node}")]);
    }
    // The replicator asks the others again by itself.
    if let Some(first) = left_alone.iter().find(|left| !left.again) {
        let why = &first.why;
        output::note([format!("text: {domain} keeps originals, too: {why}")]);
    }
    Ok(Ok(()))
}

/// Takes all copies away that the daemon has asked for.
fn clear(socket: &Path) -> Result<(), String> {
    let client = connect(socket)?;
    for file in client.status().map_err(text)?.files.iter().filter(|file| file.automatic) {
        // One that is refused, since no file is there, leaves the others.
        let _ = remove(&client, &escape::text(file.place.on_host()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_replicas::protocol::{CopyStatus, MAX_REQUEST_BYTES};
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, listen,
        recv, send, socket,
        sockopt::{Timeout, set_socket_timeout},
    };
    use std::os::unix::fs::symlink;

    /// A host with one domain, at home on node 1. It executes a file on node 0, unless the
    /// replicator has files.
    struct Host {
        folder: tempfile::TempDir,
        asker: Asker,
        looks: u64,
        /// The files of the replicator.
        held: Vec<FileStatus>,
    }

    impl Host {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::create_dir_all(at("cgroup/db")).unwrap();
            fs::write(at("cgroup/cgroup.controllers"), "").unwrap();
            fs::write(at("cgroup/db/cgroup.procs"), "70\n").unwrap();
            for (process, namespace) in [(1, 4), (70, 5)] {
                let links = at(&format!("proc/{process}/ns"));
                fs::create_dir_all(&links).unwrap();
                symlink(format!("mnt:[{namespace}]"), links.join("mnt")).unwrap();
            }
            fs::write(at("lib.so"), "text").unwrap();
            let asker = Asker {
                tree: Tree::at(&at("cgroup")).unwrap(),
                proc: at("proc"),
                history: CopyHistory::default(),
                helper: None,
                socket: at("socket"),
                complaints: BTreeMap::new(),
            };
            Self { folder, asker, looks: 0, held: Vec::new() }
        }

        /// Returns the outcome of the look and all requests but those for the status. The
        /// replicator gives these answers in turn, and then ends.
        fn look(&mut self, answers: Vec<Answer>) -> (Result<CopiesReport, String>, Vec<Request>) {
            self.looks += 1;
            let path = self.folder.path().join("lib.so");
            let stat = rustix::fs::stat(&path).unwrap();
            let id =
                FileId { major: major(stat.st_dev), minor: minor(stat.st_dev), inode: stat.st_ino };
            let candidate = Candidate {
                domains: vec!["db".into()],
                bytes: [(NodeId(0), 4)].into(),
                ..candidate(&path, id)
            };
            let look = TextLook {
                number: self.looks,
                candidates: self.held.is_empty().then_some(candidate).into_iter().collect(),
                domains: vec![TextDomain {
                    name: "db".into(),
                    cgroup: "/db".into(),
                    home: Some("1".parse().unwrap()),
                }],
                distances: Distances::new(&[0, 1].map(NodeId), &[10, 20, 20, 10]).unwrap(),
            };
            let _ = fs::remove_file(&self.asker.socket);
            let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            bind(&listener, &SocketAddrUnix::new(&self.asker.socket).unwrap()).unwrap();
            listen(&listener, 1).unwrap();
            set_socket_timeout(&listener, Timeout::Recv, Some(PATIENCE)).unwrap();
            let held = self.held.clone();
            thread::scope(|scope| {
                let asked = scope.spawn(move || replicator(&listener, held, answers));
                let told = self.asker.look(&look);
                (told, asked.join().unwrap())
            })
        }
    }

    /// Serves one client.
    fn replicator(listener: &OwnedFd, held: Vec<FileStatus>, answers: Vec<Answer>) -> Vec<Request> {
        let client = accept(listener).unwrap();
        let (mut answers, mut asked) = (answers.into_iter(), Vec::new());
        loop {
            let mut packet = vec![0; MAX_REQUEST_BYTES];
            let (bytes, _) = recv(&client, &mut packet[..], RecvFlags::empty()).unwrap();
            if bytes == 0 {
                return asked;
            }
            let request = serde_json::from_slice(&packet[..bytes]).unwrap();
            let status =
                Answer::Status { files: held.clone(), next: None, kept_bytes: BTreeMap::new() };
            let answer = match request {
                Request::Status { .. } => Some(status),
                other => {
                    asked.push(other);
                    answers.next()
                }
            };
            let Some(answer) = answer else { return asked };
            send(&client, &serde_json::to_vec(&answer).unwrap(), SendFlags::NOSIGNAL).unwrap();
        }
    }

    #[test]
    fn a_replicator_that_ends_amid_a_request_has_refused_no_file() {
        let mut host = Host::new();
        let (told, asked) = host.look(vec![]);
        assert_eq!((told.unwrap().why, asked), (None, vec![]), "copies have to pay in two looks");
        let (told, asked) = host.look(vec![]);
        assert!(told.unwrap_err().contains("ended without an answer"));
        assert!(matches!(&asked[..], [Request::Add { automatic: true, .. }]), "{asked:?}");
        let (told, again) = host.look(vec![Answer::Done]);
        assert_eq!((told.unwrap().why, again), (None, asked.clone()));
        // Its files have gone from the list: an operator has removed it.
        assert_eq!(host.look(vec![]).1, []);
    }

    #[test]
    fn a_namespace_is_attached_until_that_succeeds() {
        let mut host = Host::new();
        host.held = vec![file_status("/usr/bin/db", &[(1, 1)])];
        let refused = || vec![Answer::Refused { why: "process 70 has ended".into() }];
        for _ in 0..2 {
            let (told, asked) = host.look(refused());
            assert_eq!(told.unwrap().why, None);
            assert!(matches!(&asked[..], [Request::Attach { process: 70, .. }]), "{asked:?}");
            assert_eq!(host.asker.complaints.len(), 1);
        }
        let (_, asked) = host.look(vec![Answer::Attached(Attached::default())]);
        assert_eq!((asked.len(), host.asker.complaints.len()), (1, 0));
        host.held[0].collapses += 1;
        // A replicator that does not answer in time goes on with it.
        assert_eq!(host.look(vec![]).1.len(), 1);
        assert_eq!(host.look(vec![]).1, []);
    }

    #[test]
    fn a_file_that_was_refused_is_not_asked_for_in_the_next_look() {
        let mut host = Host::new();
        host.look(vec![]).0.unwrap();
        let refused = vec![Answer::Refused { why: "it is a copy".into() }];
        assert_eq!(host.look(refused).1.len(), 1);
        assert_eq!(host.look(vec![]).1, []);
    }

    fn candidate(path: &Path, file: FileId) -> Candidate {
        Candidate {
            file,
            path: path.to_str().unwrap().into(),
            process: 1,
            nodes: NodeSet::new(),
            domains: Vec::new(),
            bytes: [].into(),
            off_home_bytes: 1,
        }
    }

    #[test]
    fn only_the_very_file_at_its_path_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.so");
        fs::write(&path, "text").unwrap();
        let link = folder.path().join("link.so");
        symlink(&path, &link).unwrap();
        let stat = rustix::fs::stat(&path).unwrap();
        let id =
            FileId { major: major(stat.st_dev), minor: minor(stat.st_dev), inode: stat.st_ino };
        let other = FileId { inode: id.inode + 1, ..id };
        let deleted = folder.path().join("lib.so (deleted)");
        let all = [
            candidate(&path, other),
            candidate(&link, id),
            candidate(&deleted, id),
            candidate(&path, id),
        ];
        let (found, opened) = found(&all);
        assert_eq!(found, [Found { candidate: all[3].clone(), length_bytes: 4 }]);
        assert_eq!(opened.keys().collect::<Vec<_>>(), [path.to_str().unwrap()]);
    }

    /// A file that has copies on nodes, by the nodes that use them.
    fn file_status(path: &str, serving: &[(u32, u32)]) -> FileStatus {
        let copy = || CopyStatus { bytes: 4096, users: 3, namespaces: 1 };
        FileStatus {
            place: Place { image: None, path: path.into() },
            bytes: 4000,
            state: "replicated".into(),
            why: None,
            copies: serving.iter().map(|(_, copy_on)| (NodeId(*copy_on), copy())).collect(),
            serving: serving.iter().map(|(node, copy)| (NodeId(*node), NodeId(*copy))).collect(),
            gain_percent: [].into(),
            refused: [].into(),
            collapses: 2,
            automatic: true,
        }
    }

    #[test]
    fn a_file_of_the_replicator_has_users_by_the_node_that_reads_a_copy() {
        let file = FileStatus {
            copies: [(NodeId(0), CopyStatus { bytes: 4096, users: 3, namespaces: 1 })].into(),
            ..file_status("/usr/bin/db", &[(0, 0), (1, 0), (2, 2)])
        };
        let expected = Held {
            path: "/usr/bin/db".into(),
            nodes: [0, 1, 2].map(NodeId).into_iter().collect(),
            users: [(NodeId(0), 3), (NodeId(1), 3)].into(),
            collapses: 2,
            is_automatic: true,
        };
        assert_eq!(held(&file), expected);
    }
}
