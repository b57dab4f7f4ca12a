//! Answers.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::Response,
};
use serde::Serialize;

/// The message of an answer that is no success, kept with it for the audit log.
#[derive(Debug, Clone)]
pub(super) struct Told(pub(super) String);

/// An answer that is no success: a status, and what to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    status: StatusCode,
    message: String,
}

#[derive(Serialize)]
struct Error<'a> {
    error: &'a str,
}

impl Failed {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(super) fn into_response(self) -> Response {
        let Self { status, message } = self;
        // Text is always JSON.
        let mut body = serde_json::to_vec_pretty(&Error { error: &message }).unwrap_or_default();
        body.push(b'\n');
        let mut response = with_type("application/json", body);
        *response.status_mut() = status;
        response.extensions_mut().insert(Told(message));
        response
    }
}

pub(super) fn too_large() -> Failed {
    let kib = super::MOST_BODY_BYTES >> 10;
    Failed::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is too large: at most {kib} KiB are read"),
    )
}

/// Data, as `--format json` prints it.
pub(super) fn json(data: &impl Serialize) -> Result<Response, Failed> {
    let mut body = serde_json::to_vec_pretty(data).map_err(|error| {
        Failed::new(StatusCode::INTERNAL_SERVER_ERROR, format!("JSON: {error}"))
    })?;
    body.push(b'\n');
    Ok(with_type("application/json", body))
}

pub(super) fn with_type(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
