//! The API: HTTP with JSON over a unix socket (docs/api.md, docs/openapi.json), in one thread of its own.
//!
//! Whoever connects is bounded in all they take: how many connections, how long each lasts, how long a head and a body
//! may take to arrive, and how large they are. So somebody who is slow, or means harm, keeps neither the loop nor other
//! users from their work.

mod answer;
mod change;
mod crowd;
mod routes;

#[cfg(test)]
mod described;
#[cfg(test)]
mod tests;

use super::{
    access::{Access, Caller, Rights},
    audit::{AuditLog, Entry},
    snapshot::{Change, Event, Published},
    socket,
};
use crate::{output, report::domain::printable};
use answer::{Failed, Told};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header::CONTENT_LENGTH},
    response::Response,
};
use crowd::Crowd;
use hyper::service::{Service, service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use nearside_linux::cgroup::Tree;
use std::{
    convert::Infallible,
    io,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, mpsc::SyncSender},
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, oneshot},
    time::{sleep, timeout},
};

/// A body is not larger than this; the largest that makes sense names 1,024 nodes.
const MOST_BODY_BYTES: usize = 64 << 10;
/// A head (request line and headers) is not much larger than this, and has no more headers. Paths of cgroups have 4,096
/// bytes at most, three times as many if each is percent-encoded.
const MOST_HEAD_BYTES: usize = 32 << 10;
const MOST_HEADERS: usize = 64;
/// Changes that are under way at once.
const MOST_CHANGES: u32 = 16;
/// At the end, changes under way get so long to be answered and recorded.
const LAST_CHANGES: Duration = Duration::from_secs(2);
/// After a connection could not be accepted (no more file descriptors) the next is tried so much later.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// What somebody who connects may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Connections of one user at once. Root has so many in addition to all others', so that an administrator always
    /// gets in.
    pub connections_of_a_user: usize,
    /// A connection takes no new request after this. One under way goes on, for as long as an answer may take.
    pub connection: Duration,
    /// For a head to arrive, and for the next request.
    pub head: Duration,
    /// For a body to arrive.
    pub body: Duration,
    /// For the loop to make a change.
    pub answer: Duration,
    /// Whoever may not do what they ask for waits so long for that answer, so that nobody fills the logs with it.
    pub refusal: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            connections_of_a_user: 16,
            connection: Duration::from_secs(60),
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            refusal: Duration::from_secs(1),
        }
    }
}

/// Where the API looks at what no snapshot has.
#[derive(Debug)]
pub struct Groups {
    /// The cgroups.
    pub tree: Tree,
    /// What the kernel tells of processes.
    pub proc: PathBuf,
}

/// What the API answers from, and where it sends what is to be changed.
#[derive(Debug)]
pub struct Api {
    /// Where the loop publishes.
    pub published: Published,
    access: RwLock<Access>,
    audit: Mutex<AuditLog>,
    events: SyncSender<Event>,
    limits: Limits,
    groups: Groups,
    /// A permit for each change under way.
    changes: Semaphore,
    /// One permit: a look stops a process that maps memory meanwhile, so nobody may ask for many at once.
    looks: Arc<Semaphore>,
}

impl Api {
    /// An API that knows nothing yet. Changes go into `events`; when that is full they are refused.
    pub fn new(
        access: Access,
        audit: AuditLog,
        events: SyncSender<Event>,
        limits: Limits,
        groups: Groups,
    ) -> Arc<Self> {
        Arc::new(Self {
            published: Published::default(),
            access: RwLock::new(access),
            audit: Mutex::new(audit),
            events,
            limits,
            groups,
            changes: Semaphore::new(MOST_CHANGES as usize),
            looks: Arc::new(Semaphore::new(1)),
        })
    }

    /// Takes over what changed in the configuration; connections that are open stay what they are. `socket` gets the new
    /// groups; the audit log is opened again.
    ///
    /// # Errors
    /// Where the socket cannot be given to the new group.
    pub fn reconfigure(
        &self,
        access: Access,
        socket: &Path,
        audit_log: &Path,
    ) -> Result<(), String> {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
        self.audit().reopen(audit_log);
        socket::give(socket, &access).map_err(|error| format!("{}: {error}", socket.display()))
    }

    /// Goes on in the file that is now where the audit log was.
    pub fn reopen_audit(&self) {
        self.audit().reopen_here();
    }

    fn rights(&self, caller: &Caller) -> Rights {
        self.access.read().unwrap_or_else(PoisonError::into_inner).rights(caller)
    }

    fn audit(&self) -> MutexGuard<'_, AuditLog> {
        self.audit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who is connected, and what they may do.
#[derive(Debug)]
struct Peer {
    caller: Arc<Caller>,
    rights: Rights,
}

/// The thread that serves, and its socket.
#[derive(Debug)]
pub struct Server {
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    socket: PathBuf,
}

impl Server {
    /// Makes the socket, for those who may read and nobody else, and serves it.
    ///
    /// # Errors
    /// Where that cannot be made: its folder is open to others, another process serves it, it is no socket.
    pub fn start(api: Arc<Api>, socket: &Path) -> Result<Self, String> {
        let access = *api.access.read().unwrap_or_else(PoisonError::into_inner);
        let listener = socket::listen(socket, &access)?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || -> io::Result<JoinHandle<()>> {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
            let listener = {
                let _inside = runtime.enter();
                UnixListener::from_std(listener)?
            };
            thread::Builder::new().name("nearside-api".into()).spawn(move || {
                runtime.block_on(async {
                    futures_lite::future::or(accept_all(&api, listener), async {
                        drop(stopped.await)
                    })
                    .await;
                    // A change that was made is told and recorded, though the end has come.
                    drop(timeout(LAST_CHANGES, api.changes.acquire_many(MOST_CHANGES)).await);
                });
                runtime.shutdown_background();
            })
        };
        let thread = serve().map_err(|error| format!("the thread of the API: {error}"))?;
        Ok(Self { thread, stop, socket: socket.into() })
    }

    /// Answers changes that are under way, breaks off all else and ends.
    pub fn stop(self) {
        // It is gone already where the thread is.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            output::note(["the thread of the API had died"]);
        }
        socket::remove(&self.socket);
    }
}

async fn accept_all(api: &Arc<Api>, listener: UnixListener) {
    let crowd = Crowd::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                output::note([format!("accepting a connection: {error}")]);
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let caller = match Caller::of(&stream) {
            Ok(caller) => caller,
            Err(error) => {
                output::note([format!(
                    "not answered, for the kernel does not say who it is: {error}"
                )]);
                continue;
            }
        };
        match crowd.enter(caller.uid, &api.limits) {
            None => turn_away(&stream),
            Some(seat) => {
                let api = Arc::clone(api);
                tokio::spawn(async move {
                    serve(api, caller, stream).await;
                    drop(seat);
                });
            }
        }
    }
}

/// Says that there are too many. The socket's buffer is empty, so all of it fits or the other end is gone.
fn turn_away(stream: &UnixStream) {
    let body = "{\"error\": \"too many connections: try again later\"}\n";
    let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close";
    let _ = stream
        .try_write(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
}

/// Serves one connection until it ends: what it is does not matter, so tests and the fuzzer bring their own.
pub async fn serve(
    api: Arc<Api>,
    caller: Caller,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let limits = api.limits;
    let rights = api.rights(&caller);
    let peer = Arc::new(Peer { caller: Arc::new(caller), rights });
    let router = TowerToHyperService::new(routes::router(Arc::clone(&api)));
    let service = service_fn(move |request| {
        respond(Arc::clone(&api), Arc::clone(&peer), router.clone(), request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MOST_HEAD_BYTES)
        .max_headers(MOST_HEADERS)
        // Whoever has sent all they want to say (`nc -N`) may still hear the answer.
        .half_close(true);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    // What goes wrong on a connection is its other end's business.
    if timeout(limits.connection, &mut connection).await.is_err() {
        connection.as_mut().graceful_shutdown();
        drop(timeout(limits.body + limits.answer, connection).await);
    }
}

/// Answers a request, and records it where it wants something changed.
async fn respond(
    api: Arc<Api>,
    peer: Arc<Peer>,
    router: TowerToHyperService<Router>,
    request: Request<hyper::body::Incoming>,
) -> Result<Response, Infallible> {
    let limits = api.limits;
    if request.method().is_safe() {
        let response = answer(&peer, &router, request).await;
        hold_back(response.status(), &limits).await;
        return Ok(response);
    }
    // Not on the connection's own account: a change is made and recorded though whoever wanted it has hung up.
    let changing = tokio::spawn(async move {
        // It is never closed.
        let permit = api.changes.acquire().await;
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let response = answer(&peer, &router, request).await;
        let change = response.extensions().get::<Change>();
        let error = response.extensions().get::<Told>().map(|Told(message)| message.as_str());
        let entry =
            Entry::new(&peer.caller, &method, &path, change, response.status().as_u16(), error);
        api.audit().write(&entry);
        drop(permit);
        hold_back(response.status(), &limits).await;
        response
    });
    Ok(changing.await.unwrap_or_else(|_| {
        Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending").into_response()
    }))
}

/// Keeps an answer that refuses for a while, and no other.
async fn hold_back(status: StatusCode, limits: &Limits) {
    if status == StatusCode::FORBIDDEN {
        sleep(limits.refusal).await;
    }
}

async fn answer(
    peer: &Arc<Peer>,
    router: &TowerToHyperService<Router>,
    mut request: Request<hyper::body::Incoming>,
) -> Response {
    let told = |header: &HeaderValue| header.to_str().ok()?.parse::<u64>().ok();
    let announced = request.headers().get(CONTENT_LENGTH).and_then(told);
    if peer.rights == Rights::None {
        return forbidden(peer, request.method(), request.uri().path(), "read");
    }
    if announced.is_some_and(|bytes| bytes > MOST_BODY_BYTES as u64) {
        return answer::too_large().into_response();
    }
    request.extensions_mut().insert(Arc::clone(peer));
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Refuses, and says so in the journal. `group` is the configuration's word for those who may.
fn forbidden(peer: &Peer, method: &Method, path: &str, group: &str) -> Response<Body> {
    let caller = &peer.caller;
    output::note([format!("refused: {caller}: {method} {}", printable(path))]);
    let message = format!(
        "{caller} may not do this: only root, and members of api.{group}_group in the configuration"
    );
    Failed::new(StatusCode::FORBIDDEN, message).into_response()
}
