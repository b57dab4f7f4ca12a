//! A daemon without a host: an API with a made-up snapshot, clients, and a control loop that
//! decides by rote.

use crate::daemon::{
    access::{Access, Caller},
    api::{Api, Groups, Limits, serve},
    audit::AuditLog,
    snapshot::{Answer, Asked, Change, Event, examples},
};
use nearside_linux::cgroup::Tree;
use nearside_policy::{Affinity, Home, MemoryPolicy, Origin};
use nearside_topology::{NodeId, NodeSet};
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread::{self, JoinHandle},
};
use tempfile::TempDir;
use tokio::net::UnixStream;

impl Groups {
    /// A tree without cgroups.
    pub(crate) fn none() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        Self { tree: Tree::at(folder.path()).unwrap(), proc: folder.path().into() }
    }
}

/// An API with a snapshot, and the receiver of its changes.
pub(super) struct Daemon {
    pub(super) folder: TempDir,
    pub(super) api: Arc<Api>,
    pub(super) events: Receiver<Event>,
}

/// Members of this group may read.
const READERS: u32 = 4_000_000;
/// Members of this group may change.
const ADMINS: u32 = 4_000_010;

impl Daemon {
    pub(super) fn new(limits: Limits) -> Self {
        Self::with_room_for(4, limits)
    }

    pub(super) fn with_room_for(changes: usize, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (sender, events) = sync_channel(changes);
        let own_uid = rustix::process::geteuid().as_raw();
        let access = Access { own_uid, read_gid: Some(READERS), admin_gid: Some(ADMINS) };
        for file in [
            ("cgroup.controllers", "cpuset"),
            ("cpuset.cpus.effective", "0-3\n"),
            ("cpuset.mems.effective", "0-1\n"),
            (&format!("{UNPLACED_GROUP}/cgroup.procs"), "77\n"),
            (&format!("{UNPLACED_GROUP}/cpuset.mems"), "\n"),
            (&format!("{UNPLACED_GROUP}/cpu.max"), "50000 100000\n"),
            ("proc/77/numa_maps", "7000 bind:1 anon=3 N1=2 N0=1\n8000 default file=/lib N0=9\n"),
        ] {
            let path = folder.path().join(file.0.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file.1).unwrap();
        }
        let groups =
            Groups { tree: Tree::at(folder.path()).unwrap(), proc: folder.path().join("proc") };
        let api = Api::new(
            access,
            AuditLog::new(&folder.path().join("audit.log")),
            sender,
            limits,
            groups,
        );
        api.published.publish(examples::seen());
        Self { folder, api, events }
    }

    pub(super) fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("audit.log")).unwrap();
        // A line that is being written may be there in part: a file is read page by page.
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// A connection of a caller; it is served by a thread that ends with it.
    pub(super) fn connect(&self, caller: Caller) -> Client {
        self.connect_saying("", caller)
    }

    /// As [`connect`](Self::connect), with a request that is sent before the connection's time
    /// begins.
    pub(super) fn connect_saying(&self, request: &str, caller: Caller) -> Client {
        let (mut near, far) = StdUnixStream::pair().unwrap();
        near.write_all(request.as_bytes()).unwrap();
        far.set_nonblocking(true).unwrap();
        let api = Arc::clone(&self.api);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build()
                .unwrap();
            runtime
                .block_on(async { serve(api, caller, UnixStream::from_std(far).unwrap()).await });
        });
        Client { stream: near, thread: Some(thread) }
    }

    pub(super) fn ask(&self, request: &str) -> Reply {
        self.connect(root()).ask(request)
    }
}

pub(super) struct Client {
    pub(super) stream: StdUnixStream,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Client {
    pub(super) fn ask(&mut self, request: &str) -> Reply {
        self.send(request);
        self.receive()
    }

    pub(super) fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).unwrap();
    }

    /// One reply; the connection stays open.
    pub(super) fn receive(&mut self) -> Reply {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            assert_eq!(
                self.stream.read(&mut byte).unwrap(),
                1,
                "it ended after {:?}",
                String::from_utf8_lossy(&head)
            );
            head.extend(byte);
        }
        let head = String::from_utf8(head).unwrap();
        let header = |name: &str| {
            let line =
                head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}: ")));
            line.map(|line| line[name.len() + 2..].to_owned())
        };
        let mut body = vec![0; header("content-length").unwrap().parse().unwrap()];
        self.stream.read_exact(&mut body).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply {
            status,
            content_type: header("content-type"),
            body: String::from_utf8(body).unwrap(),
        }
    }

    /// All bytes until the other end closes the connection.
    pub(super) fn receive_all(mut self) -> String {
        let mut all = String::new();
        self.stream.read_to_string(&mut all).unwrap();
        // The server waits for this before it closes.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.thread.take().map(JoinHandle::join);
        all
    }
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: Option<String>,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(super) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

pub(super) fn root() -> Caller {
    Caller { uid: 0, gid: 0, groups: Vec::new(), pid: Some(1) }
}

pub(super) fn reader() -> Caller {
    Caller { uid: 4_000_001, gid: 5, groups: vec![READERS], pid: Some(2) }
}

pub(super) fn admin() -> Caller {
    Caller { uid: 4_000_003, gid: ADMINS, groups: Vec::new(), pid: Some(3) }
}

pub(super) fn stranger() -> Caller {
    Caller { uid: 4_000_002, gid: 6, groups: vec![7], pid: None }
}

pub(super) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: nearside\r\n\r\n")
}

pub(super) fn put(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "PUT {path} HTTP/1.1\r\nHost: nearside\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

pub(super) fn delete(path: &str) -> String {
    format!("DELETE {path} HTTP/1.1\r\nHost: nearside\r\n\r\n")
}

pub(super) fn home(nodes: &NodeSet, origin: Origin) -> Home {
    Home { nodes: nodes.clone(), origin, affinity: Affinity::Soft, policy: MemoryPolicy::Strict }
}

/// The control loop: node 0 is full, web-frontend ends before it is released, and a domain without
/// a home is never answered.
fn decide(change: &Change) -> Option<Answer> {
    let before = NodeSet::from([NodeId(1)]);
    let done =
        |home| Answer::Done { nodes_before: before.clone(), home, notes: vec!["noted".into()] };
    match change {
        Change::SetAffinity { nodes, .. } if nodes.contains(NodeId(0)) => {
            Some(Answer::Refused("node 0 is full".into()))
        }
        Change::SetAffinity { nodes, .. } => Some(done(home(nodes, Origin::Explicit))),
        Change::Release { domain } if domain == "web-frontend" => Some(Answer::Gone),
        Change::Release { domain } if domain == "db" => Some(done(home(&before, Origin::Auto))),
        Change::Release { .. } => None,
    }
}

/// Runs a control loop that answers changes while `ask` runs, and returns the number of changes
/// without an answer.
pub(super) fn with_a_loop(daemon: Daemon, ask: impl FnOnce(&Daemon)) -> usize {
    let Daemon { folder, api, events } = daemon;
    let answering = answer_changes(events);
    let daemon = Daemon { folder, api, events: sync_channel(1).1 };
    ask(&daemon);
    drop(daemon);
    answering.join().unwrap().len()
}

/// Answers changes until the API has ended, and keeps the unanswered ones.
fn answer_changes(events: Receiver<Event>) -> JoinHandle<Vec<Asked>> {
    thread::spawn(move || {
        let mut unanswered = Vec::new();
        while let Ok(event) = events.recv() {
            let Event::Change(asked) = event else { continue };
            match decide(&asked.change) {
                Some(answer) => asked.answer.send(answer).unwrap(),
                None => unanswered.push(asked),
            }
        }
        unanswered
    })
}

/// The cgroup of a domain without a home.
pub(super) const UNPLACED_GROUP: &str = "/system.slice/a-rather-long-name-with-\x1b[2J.service";
/// The same path, percent-encoded for a request.
pub(super) const UNPLACED: &str = "%2Fsystem.slice%2Fa-rather-long-name-with-%1B%5B2J.service";
