//! Real bytes over real sockets. A loop made up for the tests answers changes by what they want.

use super::*;
use crate::daemon::{
    audit::AuditLog,
    snapshot::{Answer, Asked, Seen, Snapshot, examples},
};
use nearside_linux::store::Record;
use nearside_policy::{Affinity, Home, MemoryPolicy, Origin};
use nearside_topology::NodeSet;
use routes::{COMMON, Method as Verb, ROUTES, Route};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::mpsc::{Receiver, sync_channel},
};
use tempfile::TempDir;

impl Groups {
    /// A tree without any.
    pub(crate) fn none() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        Self { tree: Tree::at(folder.path()).unwrap(), proc: folder.path().into() }
    }
}

/// An API with something to tell, and where its changes go.
pub(super) struct Daemon {
    folder: TempDir,
    api: Arc<Api>,
    events: Receiver<Event>,
}

/// Members of this group may read. Whoever runs the tests may do everything.
const READERS: u32 = 4_000_000;

impl Daemon {
    pub(super) fn new(limits: Limits) -> Self {
        Self::with_room_for(4, limits)
    }

    fn with_room_for(changes: usize, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (sender, events) = sync_channel(changes);
        let own_uid = rustix::process::geteuid().as_raw();
        let access = Access { own_uid, read_gid: Some(READERS), admin_gid: None };
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
        api.published.publish(examples::snapshot());
        Self { folder, api, events }
    }

    fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("audit.log")).unwrap();
        // A line that is just being written may be there in part: a file is read page by page.
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Connects somebody; the connection is served by a thread that ends with it.
    fn connect(&self, caller: Caller) -> Client {
        self.connect_saying("", caller)
    }

    /// The same with a request that is there before the connection's time begins.
    fn connect_saying(&self, request: &str, caller: Caller) -> Client {
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
    stream: StdUnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    fn ask(&mut self, request: &str) -> Reply {
        self.send(request);
        self.hear()
    }

    fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).unwrap();
    }

    /// One reply; the connection stays open.
    fn hear(&mut self) -> Reply {
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

    /// What comes until the other end closes the connection.
    fn hear_all(mut self) -> String {
        let mut all = String::new();
        self.stream.read_to_string(&mut all).unwrap();
        self.thread.take().map(JoinHandle::join);
        all
    }
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: Option<String>,
    body: String,
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

fn root() -> Caller {
    Caller { uid: 0, gid: 0, groups: Vec::new(), pid: Some(1) }
}

fn reader() -> Caller {
    Caller { uid: 4_000_001, gid: 5, groups: vec![READERS], pid: Some(2) }
}

fn stranger() -> Caller {
    Caller { uid: 4_000_002, gid: 6, groups: vec![7], pid: None }
}

pub(super) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: nearside\r\n\r\n")
}

pub(super) fn put(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "PUT {path} HTTP/1.1\r\nHost: nearside\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

pub(super) fn delete(path: &str) -> String {
    format!("DELETE {path} HTTP/1.1\r\nHost: nearside\r\n\r\n")
}

fn home(nodes: &NodeSet, origin: Origin) -> Home {
    Home { nodes: nodes.clone(), origin, affinity: Affinity::Soft, policy: MemoryPolicy::Strict }
}

/// The loop: node 0 is full, web-frontend ends before it is released, and for a domain without a home it takes for ever.
fn decide(change: &Change) -> Option<Answer> {
    let before = NodeSet::from([nearside_topology::NodeId(1)]);
    let done =
        |home| Answer::Done { nodes_before: before.clone(), home, notes: vec!["noted".into()] };
    match change {
        Change::SetAffinity { nodes, .. } if nodes.contains(nearside_topology::NodeId(0)) => {
            Some(Answer::Refused("node 0 is full".into()))
        }
        Change::SetAffinity { nodes, .. } => Some(done(home(nodes, Origin::Explicit))),
        Change::Release { domain } if domain == "web-frontend" => Some(Answer::Gone),
        Change::Release { domain } if domain == "db" => Some(done(home(&before, Origin::Auto))),
        Change::Release { .. } => None,
    }
}

/// Has a loop answer changes while `ask` asks; how many were never answered.
pub(super) fn with_a_loop(daemon: Daemon, ask: impl FnOnce(&Daemon)) -> usize {
    let Daemon { folder, api, events } = daemon;
    let answering = answer_changes(events);
    let daemon = Daemon { folder, api, events: sync_channel(1).1 };
    ask(&daemon);
    drop(daemon);
    answering.join().unwrap().len()
}

/// Answers changes until the API is gone; it keeps those that are never answered.
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

/// The path of the domain that nobody placed, as it stands in a request.
const UNPLACED_GROUP: &str = "/system.slice/a-rather-long-name-with-\x1b[2J.service";
pub(super) const UNPLACED: &str = "%2Fsystem.slice%2Fa-rather-long-name-with-%1B%5B2J.service";

fn of(route: &Route) -> (&'static str, &'static str) {
    let verb = match route.method {
        Verb::Get => "GET",
        Verb::Put => "PUT",
        Verb::Delete => "DELETE",
    };
    (verb, route.path)
}

/// Every status that the description names, for every path; and none else.
#[test]
fn whatever_is_described_happens() {
    let short = Limits {
        body: Duration::from_millis(50),
        answer: Duration::from_millis(50),
        ..Limits::default()
    };
    let hasty = Daemon::new(short);
    let daemon = Daemon::new(Limits { refusal: Duration::ZERO, ..Limits::default() });
    let mut seen = BTreeSet::new();
    let mut check = |route: (&str, &str), status: u16, reply: &Reply| {
        assert_eq!(reply.status, status, "{route:?}: {reply:?}");
        if status != 200 {
            assert!(!reply.error().is_empty());
            assert_eq!(reply.content_type.as_deref(), Some("application/json"));
        }
        seen.insert((route.0.to_owned(), route.1.to_owned(), status));
    };

    // What may be answered to anything.
    let too_large = |method: &str, path: &str| {
        format!("{method} {path} HTTP/1.1\r\nContent-Length: 65537\r\n\r\n")
    };
    let unready = Daemon::new(Limits::default());
    let no_log = AuditLog::new(Path::new("/dev/null"));
    let unready_api = Api::new(Access::default(), no_log, sync_channel(1).0, short, Groups::none());
    let unready = Daemon { api: unready_api, ..unready };
    for route in &ROUTES {
        let (method, path) = of(route);
        let path = path.replace("{name}", "db").replace("{domain}", "db");
        let request = match route.method {
            Verb::Put => put(&path, r#"{"nodes": [1]}"#),
            Verb::Get | Verb::Delete => format!("{method} {path} HTTP/1.1\r\n\r\n"),
        };
        check(of(route), 403, &daemon.connect(stranger()).ask(&request));
        check(of(route), 413, &daemon.ask(&too_large(method, &path)));
        if route.path != "/openapi.json" {
            check(of(route), 503, &unready.ask(&request));
        }
        if route.method == Verb::Get {
            check(of(route), 200, &daemon.connect(reader()).ask(&request));
        }
        for name in ["no-such-domain", "%FF"].iter().filter(|_| route.path.contains('{')) {
            let path = route.path.replace("{name}", name).replace("{domain}", name);
            let request = match route.method {
                Verb::Put => put(&path, r#"{"nodes": [1]}"#),
                Verb::Get | Verb::Delete => format!("{method} {path} HTTP/1.1\r\n\r\n"),
            };
            check(of(route), if *name == "%FF" { 400 } else { 404 }, &daemon.ask(&request));
        }
    }

    // What changes something.
    let affinity = "/domains/{name}/affinity";
    let (set, released) = (("PUT", affinity), ("DELETE", affinity));
    let db = "/domains/db/affinity";
    let unanswered = with_a_loop(daemon, |daemon| {
        check(set, 200, &daemon.ask(&put(db, r#"{"nodes": [1], "affinity": "hard"}"#)));
        check(set, 400, &daemon.ask(&put(db, r#"{"nodes": [1"#)));
        check(set, 409, &daemon.ask(&put(db, r#"{"nodes": [0, 1]}"#)));
        check(set, 415, &daemon.ask(&put(db, "{}").replace("application/json", "text/plain")));
        check(set, 422, &daemon.ask(&put(db, r#"{"nodes": [7]}"#)));
        check(released, 200, &daemon.ask(&delete(db)));
        check(released, 404, &daemon.ask(&delete("/domains/web-frontend/affinity")));
    });
    assert_eq!(unanswered, 0);
    // The loop refuses this, too, where the owner would undo it.
    let Daemon { folder, api, events } = Daemon::new(Limits::default());
    let refuse = thread::spawn(move || {
        let Ok(Event::Change(asked)) = events.recv() else { panic!("no change came") };
        asked.answer.send(Answer::Refused("libvirt would undo it".into())).unwrap();
    });
    check(released, 409, &Daemon { folder, api, events: sync_channel(1).1 }.ask(&delete(db)));
    refuse.join().unwrap();

    // What takes too long.
    check(set, 408, &hasty.ask(&put(db, "{}").replace("Content-Length: 2", "Content-Length: 3")));
    check(set, 504, &hasty.ask(&put(db, r#"{"nodes": [1]}"#)));
    check(released, 504, &hasty.ask(&delete(&format!("/domains/{UNPLACED}/affinity"))));

    let described: BTreeSet<_> = ROUTES
        .iter()
        .flat_map(|route| {
            let (method, path) = of(route);
            let common =
                COMMON.iter().filter(move |&&status| !(path == "/openapi.json" && status == 503));
            route
                .statuses
                .iter()
                .chain(common)
                .map(move |&status| (method.to_owned(), path.to_owned(), status))
        })
        .collect();
    assert_eq!(seen, described);
}

#[test]
fn what_is_not_there_is_404_and_what_is_not_done_there_405() {
    let daemon = Daemon::new(Limits::default());
    for path in [
        "/",
        "/domain",
        "/domains/",
        "/domains//nearside/db",
        "/domains/db/",
        "/why",
        "/../etc/passwd",
    ] {
        assert!(daemon.ask(&get(path)).error().contains("GET /openapi.json"), "{path}");
        assert_eq!(daemon.ask(&get(path)).status, 404, "{path}");
    }
    for request in [delete("/domains/db"), put("/topology", "{}"), get("/domains/db/affinity")] {
        let reply = daemon.ask(&request);
        assert_eq!(
            (reply.status, reply.content_type.as_deref()),
            (405, Some("application/json")),
            "{request}"
        );
    }
}

#[test]
fn json_has_the_shape_that_commands_print() {
    let daemon = Daemon::new(Limits::default());
    let list = daemon.ask(&get("/domains")).json();
    assert_eq!(list["domains"][0]["home"]["nodes"], json!([1]));
    assert_eq!(list["domains"].as_array().map(Vec::len), Some(3));
    let printed =
        crate::report::list::List { domains: &crate::report::domain::examples::domains() };
    assert_eq!(list, serde_json::to_value(printed).unwrap());

    let topology = crate::report::stat::tests::topology();
    let printed =
        serde_json::to_value(crate::report::topology_json::Machine::new(&topology)).unwrap();
    assert_eq!(daemon.ask(&get("/topology")).json(), printed);

    let why = daemon.ask(&get("/why/db")).json();
    let record = crate::report::domain::examples::record();
    let printed = serde_json::to_value(crate::report::json::Why::new(
        &record,
        record.decision.as_ref().unwrap(),
    ))
    .unwrap();
    for (key, value) in printed.as_object().unwrap() {
        assert_eq!(&why[key], value, "{key}");
    }
    assert_eq!(
        daemon.ask(&get("/stat")).json()["nodes"][1]["counters_in_interval"]["hit_pages"],
        600
    );
}

#[test]
fn a_cgroup_is_named_by_its_path() {
    let daemon = Daemon::new(Limits::default());
    let unplaced = daemon.ask(&get(&format!("/domains/{UNPLACED}"))).json();
    assert_eq!(unplaced["cgroup"], UNPLACED_GROUP);
    assert_eq!((&unplaced["home"], &unplaced["record"]), (&Value::Null, &Value::Null));
    assert_eq!(daemon.ask(&get("/why/%2Fnearside%2Fdb%2Fworkers")).json()["name"], "db");
}

#[test]
fn why_tells_of_a_group_that_was_found_what_the_command_would() {
    let daemon = Daemon::new(Limits::default());
    let why = || daemon.ask(&get(&format!("/why/{UNPLACED}"))).json();
    let allowed = json!({
        "cpus": null, "cpus_effective": "0-3", "mems": "", "mems_effective": "0-1", "cpu_max": "50000 100000",
        "memory_max": null,
    });
    let mut expected = json!({
        "name": UNPLACED_GROUP, "cgroup": UNPLACED_GROUP, "home": null, "found_by": null, "allowed": allowed,
        "policies": {"bind:1": 3 * 4096}, "standing": null, "steps": [],
    });
    assert_eq!(why(), expected);
    // With a home it is told by which pattern it was found.
    let mut seen = examples::seen();
    let record = seen.domains[0].record.clone().unwrap();
    let found = Record {
        name: UNPLACED_GROUP.into(),
        cgroup: UNPLACED_GROUP.into(),
        found_by: Some("system.slice/*".into()),
        decision: None,
        ..record
    };
    expected["home"] = daemon.ask(&get("/domains/db")).json()["home"].clone();
    expected["found_by"] = "system.slice/*".into();
    seen.domains[2].record = Some(found);
    daemon.api.published.publish(Snapshot::new(seen));
    assert_eq!(why(), expected);
    // What has ended since uses nothing; its limits are those of nobody.
    fs::remove_dir_all(daemon.folder.path().join(&UNPLACED_GROUP[1..])).unwrap();
    assert_eq!((&why()["policies"], &why()["allowed"]["cpu_max"]), (&json!({}), &Value::Null));
}

#[test]
fn the_loop_says_how_a_domain_stands_and_what_it_does_about_it() {
    let daemon = Daemon::new(Limits::default());
    let plan = daemon.ask(&get("/plan")).json();
    let step = &plan["steps"][0];
    assert_eq!((&step["domain"], &step["do"]), (&"web-frontend".into(), &"move-pages".into()));
    assert_eq!(step["batch"]["from_node"], 0);
    let standing = &plan["standing"]["web-frontend"];
    assert_eq!(
        (&standing["place"], &standing["off_home_ppm"]),
        (&"pushed-off".into(), &400_000.into())
    );
    assert_eq!(standing["home_waits"]["because"], "none-better");
    let why = daemon.ask(&get("/why/web-frontend")).json();
    assert_eq!((&why["standing"], why["steps"].as_array().map(Vec::len)), (standing, Some(1)));
    assert_eq!(daemon.ask(&get("/why/db")).json()["steps"], serde_json::json!([]));
}

#[test]
fn bodies_are_bounded_however_they_come() {
    let daemon = Daemon::new(Limits::default());
    let head = "PUT /domains/db/affinity HTTP/1.1\r\nContent-Type: application/json\r\n";
    let chunk = "x".repeat(0x4000);
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n")
        + &format!("4000\r\n{chunk}\r\n").repeat(4);
    assert_eq!(daemon.ask(&(chunked + "1\r\nx\r\n")).status, 413);

    let largest = format!("{{\"nodes\": [1]{}}}", " ".repeat(MOST_BODY_BYTES - 14));
    assert_eq!(largest.len(), MOST_BODY_BYTES);
    with_a_loop(daemon, |daemon| {
        assert_eq!(daemon.ask(&put("/domains/db/affinity", &largest)).status, 200)
    });
}

#[test]
fn heads_are_bounded() {
    let daemon = Daemon::new(Limits::default());
    let long = get(&format!("/domains/{}", "a".repeat(2 * MOST_HEAD_BYTES)));
    let many = format!("GET /health HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MOST_HEADERS + 1));
    for request in [long, many] {
        let mut client = daemon.connect(root());
        // It may hang up before it has read all.
        let _ = client.stream.write_all(request.as_bytes());
        let mut status = [0; 12];
        client.stream.read_exact(&mut status).unwrap();
        assert!(
            [*b"HTTP/1.1 431", *b"HTTP/1.1 414"].contains(&status),
            "{}",
            String::from_utf8_lossy(&status)
        );
    }
}

#[test]
fn what_is_no_http_is_400_and_ends_the_connection() {
    let daemon = Daemon::new(Limits::default());
    for bytes in
        ["hello\r\n\r\n", "\0\0\0\0", "GET / HTTP/9.9\r\n\r\n", "GET /\u{1} HTTP/1.1\r\n\r\n"]
    {
        let mut client = daemon.connect(root());
        client.send(bytes);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let all = client.hear_all();
        assert!(all.is_empty() || all.starts_with("HTTP/1.1 400 "), "{bytes:?}: {all:?}");
    }
}

#[test]
fn wishes_that_make_no_sense_are_refused_and_the_loop_never_hears_of_them() {
    let daemon = Daemon::new(Limits::default());
    let cases = [
        ("", 400, "EOF"),
        ("nodes", 400, "line 1 column 2"),
        ("{\"nodes\": [1]} x", 400, "trailing characters"),
        ("[]", 422, "expected"),
        ("{}", 422, "missing field `nodes`"),
        ("{\"nodes\": \"0-1\"}", 422, "expected a sequence"),
        ("{\"nodes\": [-1]}", 422, "invalid value"),
        ("{\"nodes\": []}", 422, "expected at least one"),
        ("{\"nodes\": [0, 5]}", 422, "there is no node 5: this machine has nodes 0-1"),
        ("{\"nodes\": [65535]}", 422, "there is no node 65535"),
        (
            "{\"nodes\": [0], \"affinity\": \"firm\"}",
            422,
            "unknown variant `firm`, expected `soft` or `hard`",
        ),
        ("{\"nodes\": [0], \"rate\": 1}", 422, "unknown field `rate`"),
    ];
    for (body, status, expected) in cases {
        let reply = daemon.ask(&put("/domains/db/affinity", body));
        assert_eq!(reply.status, status, "{body}: {reply:?}");
        assert!(reply.error().contains(expected), "{body}: {reply:?}");
    }
    assert!(daemon.events.try_recv().is_err());
}

#[test]
fn readers_read_and_strangers_do_nothing_and_both_are_recorded_when_they_try_to_change() {
    let daemon = Daemon::new(Limits { refusal: Duration::ZERO, ..Limits::default() });
    let wish = put("/domains/db/affinity", "{\"nodes\": [1]}");
    let mut reading = daemon.connect(reader());
    assert_eq!(reading.ask(&get("/domains")).status, 200);
    let refused = reading.ask(&wish);
    assert!(refused.status == 403 && refused.error().contains("user 4000001"), "{refused:?}");
    // What was refused does not end the connection.
    assert_eq!(reading.ask(&get("/health")).status, 200);
    let mut strange = daemon.connect(stranger());
    for request in
        [get("/domains"), get("/nothing"), get("/openapi.json"), delete("/domains/db/affinity")]
    {
        assert_eq!(strange.ask(&request).status, 403);
    }
    assert!(daemon.events.try_recv().is_err());
    let audit = daemon.audit();
    let told = |line: &Value| {
        (line["uid"].as_u64(), line["method"].as_str().map(str::to_owned), line["status"].as_u64())
    };
    assert_eq!(
        audit.iter().map(told).collect::<Vec<_>>(),
        [
            (Some(4_000_001), Some("PUT".into()), Some(403)),
            (Some(4_000_002), Some("DELETE".into()), Some(403)),
        ]
    );
}

#[test]
fn a_refusal_is_recorded_and_held_back_and_keeps_nobody_else_waiting() {
    let daemon = Daemon::new(Limits { refusal: Duration::MAX, ..Limits::default() });
    // As many as changes may be under way at once.
    let mut refused: Vec<Client> = (0..MOST_CHANGES).map(|_| daemon.connect(reader())).collect();
    refused
        .iter_mut()
        .for_each(|client| client.send(&put("/domains/db/affinity", "{\"nodes\": [1]}")));
    while daemon.audit().len() < refused.len() {
        thread::yield_now();
    }
    assert_eq!(daemon.ask(&put("/domains/db/affinity", "{\"nodes\": [77]}")).status, 422);
    for client in &mut refused {
        client.stream.set_nonblocking(true).unwrap();
        assert_eq!(client.stream.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn each_change_is_recorded_with_what_became_of_it() {
    with_a_loop(Daemon::new(Limits::default()), |daemon| {
        let done =
            daemon.ask(&put("/domains/%2Fnearside%2Fdb/affinity", "{\"nodes\": [1, 1]}")).json();
        let expected = serde_json::json!(
            {"name": "db", "nodes_before": [1], "nodes": [1], "origin": "explicit", "notes": ["noted"]}
        );
        assert_eq!(done, expected);
        daemon.ask(&put("/domains/db/affinity", "{\"nodes\": [0]}"));
        daemon.ask(&put("/domains/db/affinity", "oops"));
        daemon.ask(&delete("/domains/db/affinity"));
        let audit = daemon.audit();
        let told = |line: &Value| {
            (line["status"].as_u64().unwrap(), line["change"]["do"].as_str().map(str::to_owned))
        };
        let set = || Some("set-affinity".to_owned());
        assert_eq!(
            audit.iter().map(told).collect::<Vec<_>>(),
            [(200, set()), (409, set()), (400, None), (200, Some("release".into()))]
        );
        assert_eq!(audit[0]["change"]["domain"], "db");
        assert_eq!(audit[1]["error"], "node 0 is full");
    });
}

#[test]
fn when_changes_pile_up_or_the_loop_is_gone_that_is_said() {
    let daemon = Daemon::with_room_for(0, Limits::default());
    let wish = put("/domains/db/affinity", "{\"nodes\": [1]}");
    assert!(daemon.ask(&wish).error().contains("too many changes"));
    let Daemon { folder, api, events } = daemon;
    drop(events);
    let daemon = Daemon { folder, api, events: sync_channel(1).1 };
    let reply = daemon.ask(&wish);
    assert!(reply.status == 503 && reply.error().contains("nothing was changed"), "{reply:?}");
}

#[test]
fn a_change_is_recorded_though_whoever_wanted_it_hung_up() {
    let daemon = Daemon::new(Limits::default());
    let (near, far) = StdUnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    (&near).write_all(delete("/domains/db/affinity").as_bytes()).unwrap();
    let api = Arc::clone(&daemon.api);
    let stream = runtime.block_on(async { UnixStream::from_std(far).unwrap() });
    let serving = runtime.spawn(serve(api, root(), stream));
    let asked = runtime.block_on(async {
        loop {
            tokio::task::yield_now().await;
            if let Ok(Event::Change(asked)) = daemon.events.try_recv() {
                return asked;
            }
        }
    });
    drop(near);
    serving.abort();
    asked.answer.send(Answer::Gone).unwrap();
    runtime.block_on(async { drop(daemon.api.changes.acquire_many(MOST_CHANGES).await) });
    assert_eq!(daemon.audit()[0]["status"], 404);
}

#[test]
fn a_snapshot_that_is_replaced_while_it_is_read_is_read_to_its_end() {
    let daemon = Daemon::new(Limits::default());
    let api = Arc::clone(&daemon.api);
    let (stop, stopped) = sync_channel::<()>(0);
    let publishing = thread::spawn(move || {
        let mut interval = 17_u64;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            interval += 1;
            let mut seen = examples::seen();
            seen.plan.interval = interval;
            seen.history.domains.remove(&if interval.is_multiple_of(2) {
                "db".into()
            } else {
                "web-frontend".into()
            });
            api.published.publish(Snapshot::new(seen));
        }
    });
    let mut client = daemon.connect(root());
    let mut last = 0;
    for _ in 0..100 {
        let plan = client.ask(&get("/plan")).json();
        let interval = plan["interval"].as_u64().unwrap();
        assert!(interval >= last);
        last = interval;
        if interval > 17 {
            let left = if interval.is_multiple_of(2) { "web-frontend" } else { "db" };
            assert_eq!(plan["standing"].as_object().unwrap().keys().collect::<Vec<_>>(), [left]);
        }
    }
    drop(stop);
    publishing.join().unwrap();
}

#[test]
fn a_slow_head_and_an_old_connection_are_ended() {
    let limits = Limits { head: Duration::from_millis(50), ..Limits::default() };
    let daemon = Daemon::new(limits);
    let mut slow = daemon.connect(root());
    slow.send("GET /health HTTP/1.1\r\nHost:");
    assert!(!slow.hear_all().starts_with("HTTP/1.1 200"));

    let daemon = Daemon::new(Limits { connection: Duration::from_millis(50), ..Limits::default() });
    let mut old = daemon.connect_saying(&get("/health"), root());
    assert_eq!(old.hear().status, 200);
    assert_eq!(old.hear_all(), "");
}

#[test]
fn the_server_serves_its_socket_to_so_many_and_takes_it_away_at_the_end() {
    let limits = Limits { connections_of_a_user: 2, connections: 2, ..Limits::default() };
    let daemon = Daemon::new(limits);
    let access = Access { read_gid: None, ..daemon.api.access.read().unwrap().to_owned() };
    *daemon.api.access.write().unwrap() = access;
    let path = daemon.folder.path().join("api.socket");
    let server = Server::start(Arc::clone(&daemon.api), &path).unwrap();
    let connect = || Client { stream: StdUnixStream::connect(&path).unwrap(), thread: None };
    let (mut first, mut second) = (connect(), connect());
    assert_eq!((first.ask(&get("/health")).status, second.ask(&get("/health")).status), (200, 200));
    let mut third = connect();
    let reply = third.hear();
    assert!(reply.status == 503 && reply.error().contains("too many connections"), "{reply:?}");
    assert_eq!(third.hear_all(), "");

    let error = Server::start(Arc::clone(&daemon.api), &path).unwrap_err();
    assert!(error.contains("another process serves this socket"), "{error}");

    daemon.api.reconfigure(access, &path, &daemon.folder.path().join("audit.log")).unwrap();
    server.stop();
    assert_eq!(first.hear_all(), "");
    assert!(!path.exists());
}

#[test]
fn health_fails_when_the_loop_is_stuck_or_has_not_begun() {
    let daemon = Daemon::new(Limits::default());
    let health = daemon.ask(&get("/health")).json();
    assert_eq!((&health["interval"], &health["domains"]), (&17.into(), &3.into()));
    // It runs, and sees nothing any more.
    daemon.api.published.fails(3, "proc/zoneinfo: gone");
    let blind = daemon.ask(&get("/health"));
    assert!(
        blind.status == 503
            && blind.error().contains("the last 3 looks at the host failed: proc/zoneinfo"),
        "{blind:?}"
    );
    assert_eq!(daemon.ask(&get("/domains")).status, 200, "what was seen before stands for a while");
    daemon.api.published.publish(Snapshot::new(Seen::default()));
    assert_eq!(daemon.ask(&get("/health")).status, 200);
    // A loop of long intervals has not seen one yet when it has published first.
    let long = Seen { interval: Duration::from_secs(20), ..Seen::default() };
    for (seen, age_s, status) in
        [(Seen::default(), 60, 503), (long.clone(), 60, 200), (long, 300, 503)]
    {
        let at = std::time::Instant::now().checked_sub(Duration::from_secs(age_s)).unwrap();
        daemon.api.published.publish_as_of(Snapshot::new(seen), at);
        let health = daemon.ask(&get("/health"));
        assert_eq!(health.status, status, "{age_s} s: {health:?}");
        assert!(
            status == 200
                || health.error().contains(&format!("not ended an interval for {age_s} s")),
            "{health:?}"
        );
    }
}
