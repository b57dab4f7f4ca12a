//! Answers.

use super::limits::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS};
use axum::{
    body::Body,
    http::{
        HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE},
    },
    response::Response,
};
use serde::Serialize;

/// The message of an error, kept with its response for the audit log.
#[derive(Debug, Clone)]
pub(super) struct Message(pub(super) String);

/// An error: a status, and a message for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    status: StatusCode,
    message: String,
    /// Whether the connection ends with it.
    closes: bool,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    error: &'a str,
}

impl Failed {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), closes: false }
    }

    /// The same, after which the connection takes no further request.
    pub(super) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    pub(super) fn into_response(self) -> Response {
        let (status, body) = (self.status, self.body());
        let mut response = with_type("application/json", body);
        *response.status_mut() = status;
        if self.closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(Message(self.message));
        response
    }

    /// A whole HTTP message for a connection that ends with it.
    pub(super) fn last_words(&self) -> Vec<u8> {
        let body = self.body();
        let (code, reason) =
            (self.status.as_str(), self.status.canonical_reason().unwrap_or_default());
        let retry = match self.status {
            StatusCode::SERVICE_UNAVAILABLE => "Retry-After: 1\r\n",
            _ => "",
        };
        let head = format!(
            "HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\n{retry}\
             Connection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        [head.into_bytes(), body].concat()
    }

    fn body(&self) -> Vec<u8> {
        // Text is always JSON.
        let error = ErrorJson { error: &self.message };
        let mut body = serde_json::to_vec_pretty(&error).unwrap_or_default();
        body.push(b'\n');
        body
    }
}

pub(super) fn too_large() -> Failed {
    let kib = MAX_BODY_BYTES >> 10;
    let message = format!("the body is too large: at most {kib} KiB are read");
    Failed::new(StatusCode::PAYLOAD_TOO_LARGE, message).closing()
}

pub(super) fn line_too_long() -> Failed {
    let kib = MAX_HEAD_BYTES >> 10;
    let message = format!("the request line is too long: at most {kib} KiB are read");
    Failed::new(StatusCode::URI_TOO_LONG, message).closing()
}

pub(super) fn head_too_long() -> Failed {
    let kib = MAX_HEAD_BYTES >> 10;
    let message = format!(
        "the request line and the headers are too long: at most {kib} KiB and {MAX_HEADERS} \
         headers are read"
    );
    Failed::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message).closing()
}

pub(super) fn other_version() -> Failed {
    let message = "this version of HTTP is not served: expected HTTP/1.1, as in \
                   `GET /domains HTTP/1.1`";
    Failed::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, message).closing()
}

pub(super) fn ending() -> Failed {
    Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending: nothing was changed")
}

/// Data, in the form that `--format json` prints.
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
