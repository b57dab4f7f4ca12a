//! Requests that change something.

use super::{
    affinity::{AffinityRequest, Fault},
    answer::{self, Failed},
    changes::Permit,
    latest::{latest, named},
    limits::MAX_BODY_BYTES,
    peer::Peer,
    state::Api,
};
use crate::{
    daemon::{
        access::{Caller, Rights},
        snapshot::{Answer, Asked, Change, Event, Snapshot},
    },
    report::control::ChangedJson,
};
use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::Response,
};
use nearside_topology::{NodeId, NodeSet};
use std::sync::{Arc, mpsc::TrySendError};
use tokio::{sync::oneshot, time::timeout};

/// A change that was understood, for the audit log. While a clone of it is kept, the change is
/// under way.
#[derive(Debug, Clone)]
pub(super) struct Understood {
    pub(super) change: Change,
    _permit: Option<Permit>,
}

/// Makes other nodes a domain's home.
pub(super) async fn set_affinity(api: &Api, name: &str, request: Request) -> Response {
    let caller = match permitted(&request) {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let (head, body) = request.into_parts();
    // Before a permit is taken: a slow body delays no other change.
    let wanted = match read(api, &head.headers, body).await {
        Ok(wanted) => wanted,
        Err(failed) => return failed.into_response(),
    };
    let change = |snapshot: &Snapshot| {
        let domain = named(snapshot, name)?.0.name.clone();
        let nodes = known_nodes(&wanted.nodes, snapshot)?;
        let AffinityRequest { affinity, cell, .. } = wanted;
        Ok(Change::SetAffinity { domain, cell, nodes, affinity })
    };
    make(api, caller, latest(api).and_then(|snapshot| change(&snapshot))).await
}

/// Gives a domain's home back to placement.
pub(super) async fn release(api: &Api, name: &str, request: Request) -> Response {
    let caller = match permitted(&request) {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let change =
        |snapshot: &Snapshot| Ok(Change::Release { domain: named(snapshot, name)?.0.name.clone() });
    make(api, caller, latest(api).and_then(|snapshot| change(&snapshot))).await
}

/// The peer's process, if it may make changes.
fn permitted(request: &Request) -> Result<Arc<Caller>, Failed> {
    // An unknown peer may do nothing.
    let Some(peer) = request.extensions().get::<Arc<Peer>>() else {
        return Err(Failed::new(StatusCode::FORBIDDEN, "the kernel does not name the peer"));
    };
    match peer.rights {
        Rights::Change => Ok(Arc::clone(&peer.caller)),
        Rights::Read | Rights::None => {
            Err(peer.forbidden(request.method(), request.uri().path(), "admin"))
        }
    }
}

async fn read(api: &Api, headers: &HeaderMap, body: Body) -> Result<AffinityRequest, Failed> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let message = "expected Content-Type: application/json";
        return Err(Failed::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let late = |_| {
        let message = "the body did not arrive in time";
        Failed::new(StatusCode::REQUEST_TIMEOUT, message).closing()
    };
    let broken = |error: axum::Error| match is_too_large(&error) {
        true => answer::too_large(),
        false => {
            let message = format!("the body broke off: {error}");
            Failed::new(StatusCode::BAD_REQUEST, message).closing()
        }
    };
    let arriving = timeout(api.limits.body, to_bytes(body, MAX_BODY_BYTES));
    let body = arriving.await.map_err(late)?.map_err(broken)?;
    AffinityRequest::parse(&body).map_err(|fault| match fault {
        Fault::Syntax(message) => Failed::new(StatusCode::BAD_REQUEST, message),
        Fault::Schema(message) => Failed::new(StatusCode::UNPROCESSABLE_ENTITY, message),
    })
}

/// Whether a body was longer than its limit. axum says so in the cause of its error alone.
fn is_too_large(error: &axum::Error) -> bool {
    std::error::Error::source(error)
        .is_some_and(|cause| cause.to_string() == "length limit exceeded")
}

fn known_nodes(nodes: &[NodeId], snapshot: &Snapshot) -> Result<NodeSet, Failed> {
    let unusable = |message| Err(Failed::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    let topology = &snapshot.topology;
    if let Some(node) = nodes.iter().find(|node| topology.node(**node).is_none()) {
        let known: NodeSet = topology.nodes.iter().map(|node| node.id).collect();
        let known = known.named();
        return unusable(format!("nodes: there is no node {node}: this machine has {known}"));
    }
    match nodes {
        [] => unusable("nodes: expected at least one; DELETE lets placement choose again".into()),
        nodes => Ok(nodes.iter().copied().collect()),
    }
}

/// Has the control loop make a change.
async fn make(api: &Api, caller: Arc<Caller>, change: Result<Change, Failed>) -> Response {
    let change = match change {
        Ok(change) => change,
        Err(failed) => return failed.into_response(),
    };
    let permit = api.changes.begin(&caller);
    let answer = match &permit {
        Some(_) => ask_the_loop(api, caller, change.clone()).await,
        None => Err(too_many()),
    };
    let mut response = answer.unwrap_or_else(Failed::into_response);
    response.extensions_mut().insert(Understood { change, _permit: permit });
    response
}

fn too_many() -> Failed {
    let message = "too many changes are under way: try again later";
    Failed::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

async fn ask_the_loop(api: &Api, caller: Arc<Caller>, change: Change) -> Result<Response, Failed> {
    let name = change.domain().to_owned();
    let (answer, answered) = oneshot::channel();
    let asked = Asked { change, caller, answer };
    api.events.try_send(Event::Change(asked)).map_err(|error| match error {
        TrySendError::Full(_) => too_many(),
        TrySendError::Disconnected(_) => answer::ending(),
    })?;
    let seconds = api.limits.answer.as_secs();
    let late = |_| {
        let message = format!(
            "the control loop has not answered for {seconds} s: the change may still be made, see \
             GET /domains/{name}"
        );
        Failed::new(StatusCode::GATEWAY_TIMEOUT, message)
    };
    let answer = timeout(api.limits.answer, answered).await.map_err(late)?;
    match answer.map_err(|_| answer::ending())? {
        Answer::Done { nodes_before, home, notes } => {
            answer::json(&ChangedJson::new(&name, &nodes_before, &home, &notes))
        }
        Answer::Gone => Err(Failed::new(StatusCode::NOT_FOUND, format!("domain {name} has ended"))),
        Answer::Unusable(why) => Err(Failed::new(StatusCode::UNPROCESSABLE_ENTITY, why)),
        Answer::Refused(why) => Err(Failed::new(StatusCode::CONFLICT, why)),
    }
}
