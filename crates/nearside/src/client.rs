//! A client of the daemon's API, for other commands (docs/api.md).

use crate::{
    daemon::config,
    domains::{Domain, is_below},
    failure::Failure,
    output,
    printable::printable,
    report::{
        answers::{ControlAnswer, StatusAnswer, StepAnswer},
        cell_stat,
        set::Report,
    },
};
use axum::{
    body::{Body, to_bytes},
    http::{
        Request, StatusCode,
        header::{CONTENT_TYPE, HOST},
    },
};
use hyper_util::rt::TokioIo;
use nearside_policy::{Affinity, CellId, PartId};
use nearside_topology::{NodeId, NodeSet};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Display,
    io::{self, ErrorKind},
    path::PathBuf,
    time::Duration,
};
use tokio::{net::UnixStream, time::timeout};

/// Time for an answer to a read; the daemon answers from a snapshot, at once.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(3);
/// Time for an answer to a change: a little more than the daemon takes at most.
const CHANGE_WITHIN: Duration = Duration::from_secs(35);

/// Length of the largest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The daemon to ask, if any.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Do not ask the daemon, even if one runs: observe, or act, without it
    #[arg(long)]
    no_daemon: bool,

    /// Path of the daemon's socket, if not /run/nearside/api.socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// The reason why the daemon did not answer, for people. Commands that read go on without the
/// answer.
pub(crate) type Notice = String;

/// The reason for a missing answer.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    /// `--no-daemon`, or no daemon at the usual path that this user may ask.
    #[error("no daemon to ask")]
    NoDaemon,
    /// The request was not sent.
    #[error("cannot ask the daemon at {}: {why}", socket.display())]
    Unreached { socket: PathBuf, why: String },
    /// The request was sent, and the daemon may have acted on it.
    #[error("the daemon at {}: {why}", socket.display())]
    Broken { socket: PathBuf, why: String },
}

/// A response of the daemon.
struct Answer {
    status: StatusCode,
    body: Vec<u8>,
}

impl Answer {
    /// The message of an error.
    fn error(&self) -> String {
        let body = serde_json::from_slice::<Value>(&self.body).ok();
        let said = body.as_ref().and_then(|body| body["error"].as_str());
        printable(said.unwrap_or("no reason was given"))
    }
}

impl Args {
    /// Adds the status of domains, and prints a note if the daemon's answer is unusable.
    pub(crate) fn tell_status(&self, domains: &mut [Domain]) {
        output::note(self.add_status(domains, READ_WITHIN).err());
    }

    /// Adds the status of the domains that the daemon knows, if one runs and this user may ask it.
    pub(crate) fn add_status(
        &self,
        domains: &mut [Domain],
        within: Duration,
    ) -> Result<(), Notice> {
        // With `--socket`, a missing daemon is an error even if there is nothing to ask for.
        if domains.is_empty() && self.socket.is_none() {
            return Ok(());
        }
        let plan: Option<Plan> = self.read("/plan", within)?;
        let mut status = plan.map(|plan| plan.status).unwrap_or_default();
        for domain in domains {
            for cell in &mut domain.cells {
                let Some(number) = cell.guest.cell else { continue };
                let part = PartId::cell_of(&domain.name, CellId(number));
                cell.status = status.remove(&part.to_string());
            }
            for (line, cell) in domain.cell_lines.iter_mut().zip(&domain.cells) {
                line.status.clone_from(&cell.status);
            }
            let of_cells = || cell_stat::status(&domain.cells).cloned();
            domain.status = status.remove(&domain.name).or_else(of_cells);
        }
        Ok(())
    }

    /// The number of domains that the daemon watches; 0 without a daemon that this user may ask.
    pub(crate) fn watched(&self, within: Duration) -> usize {
        #[derive(Deserialize)]
        struct Health {
            domains: usize,
        }
        let health: Result<Option<Health>, _> = self.read("/health", within);
        health.ok().flatten().map_or(0, |health| health.domains)
    }

    /// Status and steps of a domain; `None` without a daemon that this user may ask, or if the
    /// daemon does not know the domain.
    pub(crate) fn control(&self, domain: &str) -> Result<Option<ControlAnswer>, Notice> {
        // Not /why, for which the daemon may read again what this command has just read.
        let plan: Option<Plan> = self.read("/plan", READ_WITHIN)?;
        Ok(plan.and_then(|plan| plan.about(domain)))
    }

    /// Has the daemon give a domain another home. `None` without a daemon to ask, or if the daemon
    /// did nothing because it is not ready or does not know the domain yet.
    pub(crate) fn set_home(
        &self,
        part: &PartId,
        nodes: &NodeSet,
        affinity: Option<Affinity>,
    ) -> Option<Result<Report, Failure>> {
        let (domain, nodes) = (part.domain(), nodes.iter().collect::<Vec<_>>());
        let mut body = json!({ "nodes": nodes, "affinity": affinity });
        // An older daemon does not know the key.
        if let Some(cell) = part.cell() {
            body["cell"] = json!(cell);
        }
        let body = body.to_string();
        let path = format!("/domains/{}/affinity", percent_encoded(domain));
        self.change(
            domain,
            Request::put(path).header(CONTENT_TYPE, "application/json").body(body.into()),
        )
    }

    /// Has the daemon give a domain's home back to placement. `None` as for
    /// [`set_home`](Self::set_home).
    pub(crate) fn give_back(&self, domain: &str) -> Option<Result<Report, Failure>> {
        let path = format!("/domains/{}/affinity", percent_encoded(domain));
        self.change(domain, Request::delete(path).body(Body::empty()))
    }

    fn change(
        &self,
        domain: &str,
        request: Result<Request<Body>, axum::http::Error>,
    ) -> Option<Result<Report, Failure>> {
        match self.ask(request, CHANGE_WITHIN) {
            Ok(Answer {
                status: StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE, ..
            })
            | Err(Unanswered::NoDaemon) => None,
            Ok(answer) => Some(changed(domain, answer)),
            Err(unreached @ Unanswered::Unreached { .. }) => Some(Err(Failure::could_not(
                format_args!("{unreached}; --no-daemon does without it"),
            ))),
            Err(broken @ Unanswered::Broken { .. }) => Some(Err(Failure::could_not(format_args!(
                "{broken}; the change may have been made all the same: see `nearside show {domain}`"
            )))),
        }
    }

    /// The content of a successful answer.
    fn read<T: DeserializeOwned>(&self, path: &str, within: Duration) -> Result<Option<T>, Notice> {
        match self.ask(Request::get(path).body(Body::empty()), within) {
            Ok(Answer { status: StatusCode::OK, body }) => match serde_json::from_slice(&body) {
                Ok(said) => Ok(Some(said)),
                Err(error) => Err(format!("the daemon's answer: {error}")),
            },
            Ok(answer @ Answer { status: StatusCode::SERVICE_UNAVAILABLE, .. }) => {
                Err(format!("the daemon: {}", answer.error()))
            }
            // An unknown domain, or a user who may not ask.
            Ok(_) | Err(Unanswered::NoDaemon) => Ok(None),
            Err(unanswered) => Err(unanswered.to_string()),
        }
    }

    fn ask(
        &self,
        request: Result<Request<Body>, axum::http::Error>,
        within: Duration,
    ) -> Result<Answer, Unanswered> {
        if self.no_daemon {
            return Err(Unanswered::NoDaemon);
        }
        let socket = self.socket.clone().unwrap_or_else(|| config::DEFAULT_SOCKET.into());
        let unreached = |why: String| Unanswered::Unreached { socket: socket.clone(), why };
        let broken = |why: String| Unanswered::Broken { socket: socket.clone(), why };
        let request = request.map_err(|error| unreached(error.to_string()))?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| unreached(error.to_string()))?;
        runtime.block_on(async {
            let stream =
                UnixStream::connect(&socket).await.map_err(|error| match error.kind() {
                    ErrorKind::NotFound
                    | ErrorKind::ConnectionRefused
                    | ErrorKind::PermissionDenied
                        if self.socket.is_none() =>
                    {
                        Unanswered::NoDaemon
                    }
                    _ => unreached(error.to_string()),
                })?;
            let late = |_| broken(format!("no answer within {} s", within.as_secs()));
            let answer = timeout(within, exchange(stream, request)).await.map_err(late)?;
            answer.map_err(|error| broken(error.to_string()))
        })
    }
}

/// One request on a connection of its own.
async fn exchange(stream: UnixStream, mut request: Request<Body>) -> io::Result<Answer> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    request.headers_mut().insert(HOST, axum::http::HeaderValue::from_static("localhost"));
    let answered = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), MAX_ANSWER_BYTES)
            .await
            .map_err(io::Error::other)?;
        Ok(Answer { status, body: body.into() })
    };
    // The connection makes progress only while it is polled.
    let driven = async {
        match connection.await {
            Ok(()) => std::future::pending().await,
            Err(error) => Err(io::Error::other(error)),
        }
    };
    futures_lite::future::or(answered, driven).await
}

/// The answer to a change.
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
    let Changed { nodes_before, nodes, notes } =
        serde_json::from_slice(&answer.body).map_err(|error| {
            Failure::could_not(format_args!(
                "the change was made, but the daemon's answer is unusable: {error}"
            ))
        })?;
    let (nodes_before, nodes) = (nodes_before.into_iter().collect(), nodes.into_iter().collect());
    Ok(Report {
        name: domain.into(),
        nodes_before,
        nodes,
        notes,
        by_daemon: true,
        ..Report::default()
    })
}

fn refused(answer: &Answer) -> Failure {
    match answer.status {
        StatusCode::UNPROCESSABLE_ENTITY => Failure::usage(answer.error()),
        _ => Failure::could_not(answer.error()),
    }
}

/// The parts of a plan that concern domains.
#[derive(Deserialize)]
struct Plan {
    steps: Vec<PlanStep>,
    status: BTreeMap<String, StatusAnswer>,
}

#[derive(Deserialize)]
struct PlanStep {
    domain: String,
    #[serde(flatten)]
    told: StepAnswer,
}

impl Plan {
    /// Status and steps of a domain. For the path of a cgroup, they are those of the found domain
    /// that contains it.
    fn about(self, domain: &str) -> Option<ControlAnswer> {
        let parts = self.status.into_iter().map(|(part, status)| (PartId::from(part), status));
        let known: Vec<_> = parts.filter(|(part, _)| is_below(domain, part.domain())).collect();
        let name = known.iter().map(|(part, _)| part.domain()).max_by_key(|name| name.len())?;
        let name = name.to_owned();
        let parts = known.into_iter().filter(|(part, _)| part.domain() == name);
        let (mut status, mut status_of_cells) = (None, BTreeMap::new());
        for (part, known) in parts {
            match part.cell() {
                None => status = Some(known),
                Some(CellId(cell)) => drop(status_of_cells.insert(cell, known)),
            }
        }
        let steps =
            self.steps.into_iter().filter(|step| PartId::from(&*step.domain).domain() == name);
        let steps = steps.map(|step| step.told).collect();
        Some(ControlAnswer { status, status_of_cells, steps })
    }
}

/// A name as one segment of a path.
fn percent_encoded(name: &str) -> impl Display {
    utf8_percent_encode(name, NON_ALPHANUMERIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{
        access::Access,
        api::{Api, Groups, Limits, Server},
        audit::AuditLog,
        snapshot::{self, Asked, Event, Seen, examples},
    };
    use std::{
        os::unix::net::UnixListener,
        sync::{Arc, mpsc::sync_channel},
        thread,
        time::Instant,
    };
    use tempfile::TempDir;

    /// A serving daemon.
    struct Daemon {
        folder: TempDir,
        api: Arc<Api>,
        server: Option<Server>,
    }

    impl Daemon {
        /// Its changes get the answer of `answer`.
        fn new(answer: impl Fn() -> snapshot::Answer + Send + 'static) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (sender, events) = sync_channel(1);
            let own_uid = rustix::process::geteuid().as_raw();
            let access = Access { own_uid, read_gid: None, admin_gid: None };
            let audit = AuditLog::new(&folder.path().join("audit.log"));
            let api = Api::new(access, audit, sender, Limits::default(), Groups::none());
            api.published.publish(examples::seen());
            let server =
                Server::start(Arc::clone(&api), &folder.path().join("run/socket")).unwrap();
            thread::spawn(move || {
                while let Ok(Event::Change(Asked { answer: to, .. })) = events.recv() {
                    let _ = to.send(answer());
                }
            });
            Self { folder, api, server: Some(server) }
        }

        fn args(&self) -> Args {
            Args { no_daemon: false, socket: Some(self.folder.path().join("run/socket")) }
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
        Daemon::new(|| panic!("no change was expected"))
    }

    fn home(node: u32) -> NodeSet {
        NodeSet::from([NodeId(node)])
    }

    #[test]
    fn a_domains_status_is_the_daemons_text() {
        let (daemon, snapshot) = (silent(), examples::snapshot());
        let mut domains = snapshot.stat.domains.clone();
        domains.push(Domain { name: "just-started".into(), ..Domain::default() });
        daemon.args().tell_status(&mut domains);
        for domain in &domains {
            let known = snapshot
                .history
                .parts
                .get(&domain.name.as_str().into())
                .map(|known| known.status.to_string());
            assert_eq!(
                domain.status.as_ref().map(|status| status.text.clone()),
                known,
                "{}",
                domain.name
            );
            let Some(known) = known else { continue };
            let control = daemon.args().control(&domain.name).unwrap().unwrap();
            assert_eq!(control.status.unwrap().text, known);
            let moves = snapshot.plan.moves.iter();
            let own = moves.filter(|step| step.action.part.domain() == domain.name);
            let steps = own.map(|step| step.action.to_string());
            assert!(
                control.steps.iter().map(|step| step.text.clone()).eq(steps),
                "{}",
                domain.name
            );
        }
        assert!(domains.iter().any(|domain| domain.status.is_some()));
        assert_eq!(daemon.args().control("nobody"), Ok(None));
    }

    #[test]
    fn a_cgroup_inside_a_found_one_belongs_to_it() {
        let status = |name: &str| (name.to_owned(), json!({"place": name, "text": ""}));
        let step = |name: &str| json!({"domain": name, "text": name, "because": "", "nodes": [1]});
        let names = ["db", "/m/vm", "/m/vm/inner"];
        let plan = json!({
            "steps": names.map(step),
            "status": names.map(status).into_iter().collect::<serde_json::Map<_, _>>(),
        });
        for (domain, expected) in [
            ("db", Some("db")),
            ("/m/vm", Some("/m/vm")),
            ("/m/vm/vcpu0", Some("/m/vm")),
            ("/m/vm/inner/x", Some("/m/vm/inner")),
            ("/m", None),
            ("/m/vm1", None),
            ("d", None),
        ] {
            let control = serde_json::from_value::<Plan>(plan.clone()).unwrap().about(domain);
            let told = control.map(|control| serde_json::to_value(control).unwrap());
            let steps = expected.map(|name| json!([{"text": name, "because": "", "nodes": [1]}]));
            assert_eq!(told.as_ref().map(|told| &told["steps"]), steps.as_ref(), "{domain}");
            assert_eq!(
                told.as_ref().map(|told| &told["status"]["place"]),
                expected.map(Value::from).as_ref()
            );
        }
    }

    #[test]
    fn a_missing_daemon_is_an_error_only_if_its_socket_was_named() {
        let daemon = silent();
        let name = examples::snapshot().stat.domains[0].name.clone();
        assert!(daemon.args().control(&name).unwrap().is_some());
        let unwanted = Args { no_daemon: true, ..daemon.args() };
        assert_eq!(unwanted.control(&name), Ok(None));
        assert!(unwanted.set_home(&PartId::of(&*name), &home(0), None).is_none());
        let elsewhere =
            Args { no_daemon: false, socket: Some(daemon.folder.path().join("nothing")) };
        assert!(elsewhere.control(&name).unwrap_err().starts_with("cannot ask the daemon at "));
        let told = elsewhere.add_status(&mut [], READ_WITHIN).unwrap_err();
        assert!(told.starts_with("cannot ask the daemon at "), "also where no domain runs: {told}");
        let missed = elsewhere.set_home(&PartId::of(&*name), &home(0), None).unwrap().unwrap_err();
        assert!(missed.code() == 1 && missed.message().contains("--no-daemon"), "{missed:?}");
    }

    #[test]
    fn a_stuck_control_loop_is_not_used() {
        let daemon = silent();
        let name = examples::snapshot().stat.domains[0].name.clone();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        daemon
            .api
            .published
            .publish_as_of(Seen { length: Duration::from_secs(2), ..examples::seen() }, long_ago);
        assert!(daemon.args().control(&name).unwrap_err().contains("has not ended an interval"));
        assert!(
            daemon.args().set_home(&PartId::of(&*name), &home(1), None).is_none(),
            "the command acts without the daemon"
        );
    }

    #[test]
    fn a_change_and_a_refusal_are_reported() {
        let snapshot = examples::snapshot();
        let record = snapshot.records.iter().flatten().next().unwrap();
        let (name, new) = (record.name.clone(), record.part().home.clone());
        let done = snapshot::Answer::Done {
            nodes_before: home(1),
            home: new.clone(),
            notes: vec!["so it is".into()],
        };
        let daemon = Daemon::new(move || done.clone());
        let report =
            daemon.args().set_home(&PartId::of(&*name), &new.nodes, None).unwrap().unwrap();
        assert_eq!((report.nodes_before, report.nodes), (home(1), new.nodes.clone()));
        assert!(report.by_daemon && report.notes == ["so it is"]);
        let unknown =
            daemon.args().set_home(&PartId::of(&*name), &home(77), None).unwrap().unwrap_err();
        assert!(unknown.code() == 2 && unknown.message().contains("no node 77"), "{unknown:?}");
        assert!(
            daemon.args().set_home(&PartId::of("just-started"), &new.nodes, None).is_none(),
            "the daemon does not know the domain"
        );
        let daemon = Daemon::new(|| snapshot::Answer::Refused("no room".into()));
        let refused =
            daemon.args().set_home(&PartId::of(&*name), &new.nodes, None).unwrap().unwrap_err();
        assert_eq!((refused.code(), refused.message()), (1, "no room"));
    }

    #[test]
    fn an_unusable_answer_stops_no_read_and_may_follow_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = thread::spawn(move || {
            let answers = [
                "SSH-2.0-nonsense\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[{]}!",
                "",
                "",
            ];
            for said in answers {
                let mut stream = listener.accept().unwrap().0;
                io::Write::write_all(&mut stream, said.as_bytes()).unwrap();
            }
        });
        let args = Args { no_daemon: false, socket: Some(socket) };
        for _ in 0..3 {
            assert!(args.control("db").unwrap_err().starts_with("the daemon"));
        }
        let broken = args.set_home(&PartId::of("db"), &home(1), None).unwrap().unwrap_err();
        assert!(broken.message().contains("may have been made"), "{broken:?}");
        thread.join().unwrap();
    }
}
