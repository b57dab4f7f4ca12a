//! What can be changed.

use super::{
    Api, MOST_BODY_BYTES, Peer,
    answer::{self, Failed},
    forbidden, routes,
};
use crate::{
    daemon::{
        access::{Caller, Rights},
        snapshot::{Answer, Asked, Change, Event, Snapshot},
    },
    report::control::ChangedJson,
};
use axum::{
    body::to_bytes,
    extract::Request,
    http::{StatusCode, header::CONTENT_TYPE},
    response::Response,
};
use nearside_policy::Affinity;
use nearside_topology::{NodeId, NodeSet};
use serde::Deserialize;
use serde_json::error::Category;
use std::sync::{Arc, mpsc::TrySendError};
use tokio::{sync::oneshot, time::timeout};

/// What was to be changed, as far as that became known, and the answer.
pub(super) type Answered = (Option<Change>, Result<Response, Failed>);

/// The body of `PUT /domains/{name}/affinity`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    nodes: Vec<NodeId>,
    #[serde(default)]
    affinity: Option<Affinity>,
}

/// Makes other nodes a domain's home.
pub(super) async fn set_affinity(api: &Api, name: &str, request: Request) -> Answered {
    let caller = match caller_who_may_change(&request) {
        Ok(caller) => caller,
        Err(refused) => return (None, Ok(*refused)),
    };
    let wish = match read(api, request).await {
        Ok(wish) => wish,
        Err(failed) => return (None, Err(failed)),
    };
    let change = |snapshot: &Snapshot| {
        let domain = routes::named(snapshot, name)?.0.name.clone();
        let nodes = known_nodes(&wish.nodes, snapshot)?;
        Ok(Change::SetAffinity { domain, nodes, affinity: wish.affinity })
    };
    ask(api, caller, routes::latest(api).and_then(|snapshot| change(&snapshot))).await
}

/// Lets placement choose a domain's home again.
pub(super) async fn release(api: &Api, name: &str, request: Request) -> Answered {
    let caller = match caller_who_may_change(&request) {
        Ok(caller) => caller,
        Err(refused) => return (None, Ok(*refused)),
    };
    let change = |snapshot: &Snapshot| {
        Ok(Change::Release { domain: routes::named(snapshot, name)?.0.name.clone() })
    };
    ask(api, caller, routes::latest(api).and_then(|snapshot| change(&snapshot))).await
}

fn caller_who_may_change(request: &Request) -> Result<Arc<Caller>, Box<Response>> {
    // Whoever it is that is not known may do nothing.
    let Some(peer) = request.extensions().get::<Arc<Peer>>() else {
        return Err(Box::new(
            Failed::new(StatusCode::FORBIDDEN, "nobody knows who asks").into_response(),
        ));
    };
    match peer.rights {
        Rights::Change => Ok(Arc::clone(&peer.caller)),
        Rights::Read | Rights::None => {
            Err(Box::new(forbidden(peer, request.method(), request.uri().path(), "admin")))
        }
    }
}

async fn read(api: &Api, request: Request) -> Result<Wish, Failed> {
    let content_type = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let message = "expected Content-Type: application/json";
        return Err(Failed::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let arriving = timeout(api.limits.body, to_bytes(request.into_body(), MOST_BODY_BYTES));
    let late = |_| Failed::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
    let body = arriving.await.map_err(late)?.map_err(|error| match is_too_large(&error) {
        true => answer::too_large(),
        false => Failed::new(StatusCode::BAD_REQUEST, format!("the body broke off: {error}")),
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        let status = match error.classify() {
            // It is JSON, and not what is expected here.
            Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
            Category::Io | Category::Syntax | Category::Eof => StatusCode::BAD_REQUEST,
        };
        let expected = "expected an object such as {\"nodes\": [0, 1], \"affinity\": \"soft\"}";
        Failed::new(status, format!("the body: {error}; {expected}"))
    })
}

/// Whether a body was longer than was to be read, as axum says it: in the cause of its error.
fn is_too_large(error: &axum::Error) -> bool {
    std::error::Error::source(error)
        .is_some_and(|cause| cause.to_string() == "length limit exceeded")
}

fn known_nodes(nodes: &[NodeId], snapshot: &Snapshot) -> Result<NodeSet, Failed> {
    let unusable = |message| Err(Failed::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    let topology = &snapshot.topology;
    if let Some(node) = nodes.iter().find(|node| topology.node(**node).is_none()) {
        let known: NodeSet = topology.nodes.iter().map(|node| node.id).collect();
        return unusable(format!(
            "nodes: there is no node {node}: this machine has {}",
            known.named()
        ));
    }
    match nodes {
        [] => unusable("nodes: expected at least one; DELETE lets placement choose again".into()),
        nodes => Ok(nodes.iter().copied().collect()),
    }
}

/// Has the loop make a change.
async fn ask(api: &Api, caller: Arc<Caller>, change: Result<Change, Failed>) -> Answered {
    match change {
        Ok(change) => (Some(change.clone()), ask_the_loop(api, caller, change).await),
        Err(failed) => (None, Err(failed)),
    }
}

async fn ask_the_loop(api: &Api, caller: Arc<Caller>, change: Change) -> Result<Response, Failed> {
    let (Change::SetAffinity { domain: name, .. } | Change::Release { domain: name }) =
        change.clone();
    let (answer, answered) = oneshot::channel();
    let ending = || {
        Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending: nothing was changed")
    };
    api.events.try_send(Event::Change(Asked { change, caller, answer })).map_err(|error| {
        match error {
            TrySendError::Full(_) => Failed::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many changes are waiting: try again later",
            ),
            TrySendError::Disconnected(_) => ending(),
        }
    })?;
    let seconds = api.limits.answer.as_secs();
    let late = |_| {
        let message = format!(
            "the control loop has not answered for {seconds} s: the change may still be made, see GET /domains/{name}"
        );
        Failed::new(StatusCode::GATEWAY_TIMEOUT, message)
    };
    match timeout(api.limits.answer, answered).await.map_err(late)?.map_err(|_| ending())? {
        Answer::Done { nodes_before, home, notes } => {
            answer::json(&ChangedJson::new(&name, &nodes_before, &home, &notes))
        }
        Answer::Gone => Err(Failed::new(StatusCode::NOT_FOUND, format!("domain {name} has ended"))),
        Answer::Unusable(why) => Err(Failed::new(StatusCode::UNPROCESSABLE_ENTITY, why)),
        Answer::Refused(why) => Err(Failed::new(StatusCode::CONFLICT, why)),
    }
}
