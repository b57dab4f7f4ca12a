//! The table of all requests.

use super::{
    answer::Failed,
    change,
    peer::Peer,
    read::{self, Asker, Read},
    state::Api,
};
use axum::{
    Router,
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection as Rejection},
    http::StatusCode,
    response::Response,
    routing::{MethodFilter, on},
};
use std::sync::Arc;

/// A method and a path that the daemon answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    call: Call,
    /// Statuses of its answers in addition to `COMMON`.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the description's test"))]
    pub(super) statuses: &'static [u16],
}

/// Statuses that any request may be answered with: malformed, forbidden, body, request line or head
/// too large, unavailable, another version of HTTP.
#[cfg(test)]
pub(super) const COMMON: [u16; 7] = [400, 403, 413, 414, 431, 503, 505];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Put,
    Delete,
}

impl From<Method> for MethodFilter {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Put => Self::PUT,
            Method::Delete => Self::DELETE,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Call {
    /// Answered from the latest snapshot.
    Read(Read),
    /// As `Read`, and reads the domain on the host, which may take long.
    Look(Read),
    /// Answered without a snapshot.
    State(fn(&Api) -> Result<Response, Failed>),
    /// Sent to the control loop.
    SetAffinity,
    Release,
}

const fn route(method: Method, path: &'static str, call: Call, statuses: &'static [u16]) -> Route {
    Route { method, path, call, statuses }
}

pub(super) const ROUTES: [Route; 12] = [
    route(Method::Get, "/domains", Call::Read(read::domains), &[200]),
    route(Method::Get, "/domains/{name}", Call::Read(read::domain), &[200, 404]),
    route(
        Method::Put,
        "/domains/{name}/affinity",
        Call::SetAffinity,
        &[200, 404, 408, 409, 415, 422, 504],
    ),
    route(Method::Delete, "/domains/{name}/affinity", Call::Release, &[200, 404, 409, 504]),
    route(Method::Get, "/why/{domain}", Call::Look(read::why), &[200, 404]),
    route(Method::Get, "/topology", Call::Read(read::topology), &[200]),
    route(Method::Get, "/plan", Call::Read(read::plan), &[200]),
    route(Method::Get, "/stat", Call::Read(read::stat), &[200]),
    route(Method::Get, "/text", Call::Read(read::text), &[200]),
    route(Method::Get, "/metrics", Call::Read(read::metrics), &[200]),
    route(Method::Get, "/health", Call::State(read::health), &[200]),
    route(Method::Get, "/openapi.json", Call::State(read::openapi), &[200]),
];

pub(super) fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for Route { method, path, call, .. } in ROUTES {
        let answer =
            move |State(api): State<Arc<Api>>, name, request| answer(api, call, name, request);
        router = router.route(path, on(method.into(), answer));
    }
    let unknown = async || {
        let message = "there is nothing at this path: GET /openapi.json lists all paths; a \
                       cgroup's path as the name of a domain has to be percent-encoded (%2F for /)";
        Failed::new(StatusCode::NOT_FOUND, message).into_response()
    };
    let other_method = async || {
        let message = "this path does not take this method: GET /openapi.json lists the methods \
                       of all paths";
        Failed::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response()
    };
    router.fallback(unknown).method_not_allowed_fallback(other_method).with_state(api)
}

async fn answer(
    api: Arc<Api>,
    call: Call,
    name: Result<RawPathParams, Rejection>,
    request: Request,
) -> Response {
    let name = match domain_name(name) {
        Ok(name) => name,
        Err(failed) => return failed.into_response(),
    };
    let peer = request.extensions().get::<Arc<Peer>>();
    let asker = match peer.is_some_and(|peer| api.access().is_owner(&peer.caller)) {
        true => Asker::Owner,
        false => Asker::Other,
    };
    let answered = match call {
        Call::Read(read) => read::from_latest(&api, &name, request.headers(), asker, read),
        Call::Look(read) => {
            let headers = request.headers().clone();
            read::from_look(Arc::clone(&api), name, headers, asker, read).await
        }
        Call::State(read) => read(&api),
        Call::SetAffinity => Ok(change::set_affinity(&api, &name, request).await),
        Call::Release => Ok(change::release(&api, &name, request).await),
    };
    answered.unwrap_or_else(Failed::into_response)
}

/// The percent-decoded name in the path; empty if the path has none.
fn domain_name(name: Result<RawPathParams, Rejection>) -> Result<String, Failed> {
    match name {
        Ok(params) => Ok(params.iter().next().map_or(String::new(), |(_, name)| name.to_owned())),
        Err(Rejection::InvalidUtf8InPathParam(_)) => {
            let message = "the domain's name is not UTF-8 once percent signs are resolved: \
                           write it as GET /domains does (\\xff for a byte)";
            Err(Failed::new(StatusCode::BAD_REQUEST, message))
        }
        Err(_) => Ok(String::new()),
    }
}
