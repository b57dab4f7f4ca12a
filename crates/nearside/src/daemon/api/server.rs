//! The thread that serves the socket.

use super::{answer::Failed, connection::serve, crowd::Crowd, state::Api};
use crate::{
    daemon::{access::Caller, socket},
    output,
};
use axum::http::StatusCode;
use std::{
    io,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::oneshot,
    time::{sleep, timeout},
};

/// Time at the end for changes under way to be answered and recorded.
const LAST_CHANGES: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted (no more file descriptors).
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// The thread that serves, and its socket.
#[derive(Debug)]
pub struct Server {
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    api: Arc<Api>,
}

impl Server {
    /// Creates the socket, with access for permitted readers only, and serves it.
    ///
    /// # Errors
    /// If the socket could not be created: other users could change its path, another process
    /// serves it, or another file is in its place.
    pub fn start(api: Arc<Api>, path: &Path) -> Result<Self, String> {
        let (listener, socket) = socket::listen(path, &api.access())?;
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&api);
        let serve = move || -> io::Result<JoinHandle<()>> {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
            let listener = {
                let _inside = runtime.enter();
                UnixListener::from_std(listener)?
            };
            thread::Builder::new().name("nearside-api".into()).spawn(move || {
                runtime.block_on(async {
                    let stopped = async { drop(stopped.await) };
                    futures_lite::future::or(accept_all(&shared, listener), stopped).await;
                    // A change that was made is answered and recorded although the end has come.
                    drop(timeout(LAST_CHANGES, shared.changes.ended()).await);
                });
                runtime.shutdown_background();
            })
        };
        match serve() {
            Ok(thread) => {
                *api.socket() = Some(socket);
                Ok(Self { thread, stop, api })
            }
            Err(error) => {
                socket.remove();
                Err(format!("the thread of the API: {error}"))
            }
        }
    }

    /// Answers the changes under way, ends all other requests, and stops the thread.
    pub fn stop(self) {
        // The receiver is gone if the thread is.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            output::note(["the thread of the API had died"]);
        }
        let socket = self.api.socket().take();
        if let Some(socket) = socket {
            socket.remove();
        }
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
                let note = format!("a connection was closed: the kernel names no peer: {error}");
                output::note([note]);
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

/// Answers a connection beyond the limit. The socket's buffer is empty, so the whole answer fits,
/// or the other end is gone.
fn turn_away(stream: &UnixStream) {
    let failed =
        Failed::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections: try again later");
    let _ = stream.try_write(&failed.last_words());
}
