//! The daemon that runs, as other commands ask it (docs/api.md).

use crate::{
    daemon::{api::BY_NODE, config},
    domains::Found,
    failure::Failure,
    output::{self, Format},
    report::{control::Control, set::Report},
};
use axum::{
    body::{Body, to_bytes},
    http::{
        Request, StatusCode,
        header::{ACCEPT, CONTENT_TYPE, HOST},
    },
};
use hyper_util::rt::TokioIo;
use nearside_topology::{NodeId, NodeSet};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Display,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::UnixStream, time::timeout};

/// What can be asked about all domains.
pub(crate) const DOMAINS: &str = "/domains";
pub(crate) const STAT: &str = "/stat";

/// The daemon answers at once what it saw.
const READ_WITHIN: Duration = Duration::from_secs(3);
/// A little longer than it tries itself.
const CHANGE_WITHIN: Duration = Duration::from_secs(35);

/// Some hundred bytes for each of a thousand domains are nothing; what is larger is no answer.
const MOST_ANSWER_BYTES: usize = 64 << 20;

/// Which daemon to ask, if any.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Do not ask the daemon, though one runs: look, or act, without it
    #[arg(long)]
    no_daemon: bool,

    /// Where the daemon listens
    #[arg(long, value_name = "PATH", default_value = config::DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    /// Nobody listens there, or this user may not ask.
    #[error("nobody to ask")]
    Nobody,
    #[error("the daemon at {}: {why}", socket.display())]
    Broken { socket: PathBuf, why: String },
}

/// An answer.
struct Answer {
    status: StatusCode,
    body: Vec<u8>,
}

impl Args {
    /// All domains, or nodes and domains (`path`), as the daemon saw them in its last interval. None where none runs that
    /// this user may ask, and where it has not yet seen what is recorded: a start or a change of a moment ago.
    pub(crate) fn overview(&self, path: &str, by_node: bool, format: Format, found: &[Found]) -> Option<String> {
        let body = self.read(path, "application/json")?;
        let seen: Overview = parsed(&body)?;
        if !seen.is_of(found) {
            return None;
        }
        match format {
            Format::Json => String::from_utf8(body).ok(),
            Format::Text => {
                let query = if by_node { format!("?{BY_NODE}") } else { String::new() };
                String::from_utf8(self.read(&format!("{path}{query}"), "text/plain")?).ok()
            }
        }
    }

    /// What the daemon makes of a domain; none where none runs that this user may ask, or it knows none of that name.
    pub(crate) fn control(&self, domain: &str) -> Option<Control> {
        parsed(&self.read(&format!("/why/{}", percent_encoded(domain)), "application/json")?)
    }

    /// Has the daemon make other nodes a domain's home. None where there is none to ask.
    pub(crate) fn set_home(&self, domain: &str, nodes: &NodeSet) -> Option<Result<Report, Failure>> {
        let body = json!({ "nodes": nodes.iter().collect::<Vec<_>>() }).to_string();
        let path = format!("/domains/{}/affinity", percent_encoded(domain));
        let request = Request::put(path).header(CONTENT_TYPE, "application/json").body(body.into());
        match self.ask(request, CHANGE_WITHIN) {
            // It has not seen yet what was started a moment ago.
            Ok(Answer { status: StatusCode::NOT_FOUND, .. }) => None,
            Ok(answer) => Some(changed(domain, answer)),
            Err(Unanswered::Nobody) => None,
            // It may have been done: whoever does it again has to know.
            Err(broken) => Some(Err(Failure::could_not(broken))),
        }
    }

    /// The body of a good answer. What is wrong otherwise is said, and nobody is kept from looking themselves.
    fn read(&self, path: &str, accept: &str) -> Option<Vec<u8>> {
        let request = Request::get(path).header(ACCEPT, accept).body(Body::empty());
        match self.ask(request, READ_WITHIN) {
            Ok(Answer { status: StatusCode::OK, body }) => Some(body),
            // It knows no such domain, or nothing at all yet, or this user may not ask.
            Ok(_) | Err(Unanswered::Nobody) => None,
            Err(broken) => {
                output::note([broken]);
                None
            }
        }
    }

    fn ask(&self, request: Result<Request<Body>, axum::http::Error>, within: Duration) -> Result<Answer, Unanswered> {
        if self.no_daemon {
            return Err(Unanswered::Nobody);
        }
        let broken = |why: String| Unanswered::Broken { socket: self.socket.clone(), why };
        let request = request.map_err(|error| broken(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| broken(error.to_string()))?;
        let late = |_| broken(format!("no answer within {} s", within.as_secs()));
        let asked = async { timeout(within, exchange(&self.socket, request)).await };
        runtime.block_on(asked).map_err(late)?.map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied => Unanswered::Nobody,
            _ => broken(error.to_string()),
        })
    }
}

/// One request on a connection of its own.
async fn exchange(socket: &Path, mut request: Request<Body>) -> io::Result<Answer> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    request.headers_mut().insert(HOST, axum::http::HeaderValue::from_static("localhost"));
    let answered = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), MOST_ANSWER_BYTES).await.map_err(io::Error::other)?;
        Ok(Answer { status, body: body.into() })
    };
    // The connection has to be driven for as long as the answer comes in.
    let driven = async {
        match connection.await {
            Ok(()) => std::future::pending().await,
            Err(error) => Err(io::Error::other(error)),
        }
    };
    futures_lite::future::or(answered, driven).await
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).inspect_err(|error| output::note([format!("the daemon's answer: {error}")])).ok()
}

/// What the answer to a change says.
#[derive(Deserialize)]
struct Changed {
    nodes_before: Vec<NodeId>,
    nodes: Vec<NodeId>,
    notes: Vec<String>,
}

fn changed(domain: &str, answer: Answer) -> Result<Report, Failure> {
    if answer.status != StatusCode::OK {
        return Err(refused(&answer));
    }
    let Changed { nodes_before, nodes, notes } = serde_json::from_slice(&answer.body)
        .map_err(|error| Failure::could_not(format_args!("it was done; the daemon's answer: {error}")))?;
    let (nodes_before, nodes) = (nodes_before.into_iter().collect(), nodes.into_iter().collect());
    Ok(Report { name: domain.into(), nodes_before, nodes, notes, ..Report::default() })
}

fn refused(answer: &Answer) -> Failure {
    let said = serde_json::from_slice::<Value>(&answer.body).ok();
    let said = said.as_ref().and_then(|body| body["error"].as_str()).unwrap_or("no reason was given");
    match answer.status {
        StatusCode::UNPROCESSABLE_ENTITY => Failure::usage(said),
        _ => Failure::could_not(said),
    }
}

/// As much of an answer as tells whose homes it knows.
#[derive(Deserialize)]
struct Overview {
    domains: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    home: Option<ListedHome>,
}

#[derive(Deserialize)]
struct ListedHome {
    nodes: Vec<NodeId>,
}

impl Overview {
    /// Whether it knows the domains that are recorded, those alone, and each at the home it has now.
    fn is_of(&self, found: &[Found]) -> bool {
        let records = found.iter().filter_map(|(_, record)| record.as_ref());
        let recorded: BTreeMap<&str, NodeSet> =
            records.map(|record| (record.name.as_str(), record.home.nodes.clone())).collect();
        let placed = self.domains.iter().filter_map(|listed| {
            let home = listed.home.as_ref()?;
            Some((listed.name.as_str(), home.nodes.iter().copied().collect()))
        });
        !self.domains.is_empty() && recorded == placed.collect()
    }
}

/// A name as a part of a path.
fn percent_encoded(name: &str) -> impl Display {
    utf8_percent_encode(name, NON_ALPHANUMERIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        daemon::{
            access::Access,
            api::{Api, Limits, Server},
            audit::AuditLog,
            snapshot::{self, Asked, Event, examples},
        },
        domains::Domain,
        report::{list, stat},
    };
    use nearside_linux::{cgroup::Tree, store::Record};
    use std::{
        fs,
        os::unix::net::UnixListener,
        sync::{Arc, mpsc::sync_channel},
        thread,
    };
    use tempfile::TempDir;

    /// A daemon that serves, and what it knows.
    struct Daemon {
        folder: TempDir,
        server: Option<Server>,
        domains: Vec<Domain>,
        records: Vec<Record>,
    }

    impl Daemon {
        /// Changes are answered by `answer`.
        fn new(answer: impl Fn() -> snapshot::Answer + Send + 'static) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (sender, events) = sync_channel(1);
            let own_uid = rustix::process::geteuid().as_raw();
            let access = Access { own_uid, read_gid: None, admin_gid: None };
            let api = Api::new(access, AuditLog::new(&folder.path().join("audit.log")), sender, Limits::default());
            let snapshot = examples::snapshot();
            let (domains, records) =
                (snapshot.stat.domains.clone(), snapshot.records.iter().flatten().cloned().collect());
            api.published.publish(snapshot);
            let server = Server::start(Arc::clone(&api), &folder.path().join("run/socket")).unwrap();
            thread::spawn(move || {
                while let Ok(Event::Change(Asked { answer: to, .. })) = events.recv() {
                    let _ = to.send(answer());
                }
            });
            Self { folder, server: Some(server), domains, records }
        }

        fn args(&self) -> Args {
            Args { no_daemon: false, socket: self.folder.path().join("run/socket") }
        }

        /// What is recorded on the host.
        fn found(&self, records: &[Record]) -> Vec<Found> {
            fs::write(self.folder.path().join("cgroup.controllers"), "").unwrap();
            let tree = Tree::at(self.folder.path()).unwrap();
            let found = |record: &Record| (tree.group(&record.cgroup).unwrap(), Some(record.clone()));
            records.iter().map(found).collect()
        }
    }

    impl Drop for Daemon {
        fn drop(&mut self) {
            if let Some(server) = self.server.take() {
                server.stop();
            }
        }
    }

    fn silent() -> Daemon {
        Daemon::new(|| panic!("nobody was to change anything"))
    }

    #[test]
    fn what_the_daemon_tells_is_what_the_command_would_print() {
        let daemon = silent();
        let (args, found) = (daemon.args(), daemon.found(&daemon.records));
        let listed = list::List { domains: &daemon.domains };
        let told = |path, by_node, format| args.overview(path, by_node, format, &found);
        assert_eq!(told(DOMAINS, false, Format::Text).unwrap(), list::text(&listed, false));
        assert_eq!(told(DOMAINS, true, Format::Text).unwrap(), list::text(&listed, true));
        assert_eq!(told(DOMAINS, false, Format::Json).unwrap(), output::json(&listed).unwrap());
        let stat = examples::snapshot().stat;
        assert_eq!(told(STAT, false, Format::Text).unwrap(), stat::text(&stat));
        assert_eq!(told(STAT, false, Format::Json).unwrap(), output::json(&stat).unwrap());
    }

    #[test]
    fn what_it_has_not_seen_yet_is_looked_at_without_it() {
        let daemon = silent();
        let told = |records: &[Record]| daemon.args().overview(DOMAINS, false, Format::Json, &daemon.found(records));
        assert!(told(&daemon.records).is_some());
        let mut changed = daemon.records.clone();
        changed[0].home.nodes = NodeSet::from([NodeId(3)]);
        assert_eq!(told(&changed), None, "a domain has got another home");
        changed = daemon.records.clone();
        changed[0].name = "just-started".into();
        assert_eq!(told(&changed), None, "another domain");
        assert_eq!(told(&daemon.records[1..]), None, "one has ended");
    }

    #[test]
    fn where_nobody_listens_nobody_is_asked() {
        let daemon = silent();
        let (found, name) = (daemon.found(&daemon.records), daemon.domains[0].name.clone());
        assert!(daemon.args().control(&name).is_some());
        let elsewhere = Args { no_daemon: false, socket: daemon.folder.path().join("nothing") };
        let unwanted = Args { no_daemon: true, ..daemon.args() };
        for args in [elsewhere, unwanted] {
            assert_eq!(args.overview(DOMAINS, false, Format::Json, &found), None);
            assert_eq!(args.control(&name), None);
            assert!(args.set_home(&name, &NodeSet::from([NodeId(0)])).is_none());
        }
    }

    #[test]
    fn how_a_domain_stands_comes_in_the_daemons_words() {
        let snapshot = examples::snapshot();
        let daemon = silent();
        for (name, known) in &snapshot.history.domains {
            let control = daemon.args().control(name).unwrap();
            assert_eq!(control.standing.unwrap().text, known.standing.to_string(), "{name}");
            let own = |step: &&nearside_policy::Step| step.action.domain() == name;
            let steps = snapshot.plan.steps.iter().filter(own).map(|step| step.action.to_string());
            assert!(control.steps.iter().map(|step| step.text.clone()).eq(steps), "{name}");
        }
        assert_eq!(daemon.args().control("nobody"), None);
    }

    #[test]
    fn a_change_is_reported_and_a_refusal_told() {
        let home = examples::snapshot().records.iter().flatten().next().unwrap().home.clone();
        let before = NodeSet::from([NodeId(1)]);
        let done =
            snapshot::Answer::Done { nodes_before: before.clone(), home: home.clone(), notes: vec!["so it is".into()] };
        let daemon = Daemon::new(move || done.clone());
        let name = &daemon.records[0].name;
        let report = daemon.args().set_home(name, &home.nodes).unwrap().unwrap();
        assert_eq!(
            (report.nodes_before, report.nodes, report.notes),
            (before, home.nodes.clone(), vec!["so it is".into()])
        );
        let unknown = daemon.args().set_home(name, &NodeSet::from([NodeId(77)])).unwrap().unwrap_err();
        assert!(unknown.code() == 2 && unknown.message().contains("no node 77"), "{unknown:?}");
        assert!(daemon.args().set_home("just-started", &home.nodes).is_none(), "it knows no such domain");
        let daemon = Daemon::new(|| snapshot::Answer::Refused("no room".into()));
        let refused = daemon.args().set_home(name, &home.nodes).unwrap().unwrap_err();
        assert_eq!((refused.code(), refused.message()), (1, "no room"));
    }

    #[test]
    fn whoever_answers_with_something_else_keeps_nobody_from_looking() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = thread::spawn(move || {
            for said in ["SSH-2.0-nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[{]}!", ""] {
                let mut stream = listener.accept().unwrap().0;
                io::Write::write_all(&mut stream, said.as_bytes()).unwrap();
            }
        });
        let args = Args { no_daemon: false, socket };
        for _ in 0..3 {
            assert_eq!(args.control("db"), None);
        }
        thread.join().unwrap();
    }
}
