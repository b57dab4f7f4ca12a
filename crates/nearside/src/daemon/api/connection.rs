//! One connection.

use super::{
    answer::{self, Failed, Message},
    change::Understood,
    limits::{Limits, MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS},
    peer::Peer,
    routes,
    state::Api,
    wire::Wire,
};
use crate::daemon::{
    access::{Caller, Rights},
    audit::Entry,
};
use axum::{
    Router,
    extract::Request,
    http::{HeaderName, HeaderValue, StatusCode, Version, header::CONTENT_LENGTH},
    response::Response,
};
use hyper::service::{Service, service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{convert::Infallible, pin::pin, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};

/// Serves one connection until it ends. Any stream will do: tests and the fuzzer bring their own.
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
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // A client that has ended its side (`nc -N`) still gets its answer.
        .half_close(true);
    let mut wire = Wire::new(stream);
    let ended = {
        let mut connection = pin!(http.serve_connection(TokioIo::new(&mut wire), service));
        match timeout(limits.connection, &mut connection).await {
            Ok(ended) => ended,
            Err(_) => {
                connection.as_mut().graceful_shutdown();
                match timeout(limits.body + limits.answer, connection).await {
                    Ok(ended) => ended,
                    // The other end does not read its answer.
                    Err(_) => return,
                }
            }
        }
    };
    // An error of a connection concerns its other end alone.
    drop(timeout(limits.linger, wire.finish(ended.err())).await);
}

/// Answers a request, and records it if it asks for a change.
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
    // A task of its own: a change is made and recorded even if its client hangs up.
    let changing = tokio::spawn(async move {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let mut response = answer(&peer, &router, request).await;
        let understood = response.extensions_mut().remove::<Understood>();
        let change = understood.as_ref().map(|understood| &understood.change);
        let error = response.extensions().get::<Message>().map(|Message(message)| message.as_str());
        let status = response.status().as_u16();
        api.audit().write(&Entry::new(&peer.caller, &method, &path, change, status, error));
        // Recorded: the change is no longer under way.
        drop(understood);
        hold_back(response.status(), &limits).await;
        response
    });
    Ok(changing.await.unwrap_or_else(|_| answer::ending().into_response()))
}

/// Delays a refusal; other answers are sent at once.
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
    let length = |header: &HeaderValue| header.to_str().ok()?.parse::<u64>().ok();
    let announced = request.headers().get(CONTENT_LENGTH).and_then(length);
    if peer.rights == Rights::None {
        let refused: Failed = peer.forbidden(request.method(), request.uri().path(), "read");
        return refused.into_response();
    }
    if let Some(refused) = refused_head(&request) {
        return refused.into_response();
    }
    if announced.is_some_and(|bytes| bytes > MAX_BODY_BYTES as u64) {
        return answer::too_large().into_response();
    }
    request.extensions_mut().insert(Arc::clone(peer));
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Refuses a head that hyper has read although it is of another version or longer than allowed:
/// hyper finds out only while a head is incomplete.
fn refused_head(request: &Request<hyper::body::Incoming>) -> Option<Failed> {
    if request.version() != Version::HTTP_11 {
        return Some(answer::other_version());
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1".len();
    if line >= MAX_HEAD_BYTES {
        return Some(answer::line_too_long());
    }
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    let headers: usize = request.headers().iter().map(header).sum();
    (line + headers >= MAX_HEAD_BYTES).then(answer::head_too_long)
}
