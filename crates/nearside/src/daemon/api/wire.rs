//! The bytes of a connection.
//!
//! For a request that it cannot parse, hyper itself sends an answer with an empty body, and closes
//! the connection although the other end may still be sending. [`Wire`] lies between hyper and the
//! socket. It replaces hyper's own answer by one with a JSON body. Before it closes, it reads the
//! rest of the other end's bytes, within bounds: a client that writes into a closed socket may fail
//! before it has read its answer.

use super::{
    answer::{self, Failed},
    limits::{MAX_BODY_BYTES, MAX_DRAINED_BYTES, MAX_HEAD_BYTES},
};
use axum::http::StatusCode;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// A stream from which hyper reads requests, and to which it writes answers.
#[derive(Debug)]
pub(super) struct Wire<S> {
    stream: S,
    /// The last bytes read: at least the head that hyper may have refused.
    tail: Vec<u8>,
    /// The status of hyper's own answer, which was held back.
    refused: Option<StatusCode>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, tail: Vec::new(), refused: None }
    }

    /// Ends the connection after hyper: answers the request that hyper refused, and drops further
    /// bytes.
    pub(super) async fn finish(mut self, error: Option<hyper::Error>) {
        let is_unparsable = error.as_ref().is_some_and(hyper::Error::is_parse);
        let refused = self.refused.or(is_unparsable.then_some(StatusCode::BAD_REQUEST));
        if let Some(status) = refused {
            let cause = error.map(|error| error.to_string()).unwrap_or_default();
            let failed = refusal(status, &cause, &self.tail);
            if self.stream.write_all(&failed.last_words()).await.is_err() {
                return;
            }
        }
        if self.stream.shutdown().await.is_ok() {
            let mut drained = (&mut self.stream).take(MAX_DRAINED_BYTES as u64);
            let mut buffer = [0; 8192];
            while matches!(drained.read(&mut buffer).await, Ok(1..)) {}
        }
    }
}

/// The answer in place of hyper's own.
fn refusal(status: StatusCode, cause: &str, tail: &[u8]) -> Failed {
    if announces_too_much(tail) {
        return answer::too_large();
    }
    match status {
        _ if is_line_too_long(status, tail) => answer::line_too_long(),
        _ if names_another_version(tail) => answer::other_version(),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG => {
            answer::head_too_long()
        }
        status => {
            let message = format!(
                "this is no request of HTTP/1.1: {cause}; expected a line such as \
                 `GET /domains HTTP/1.1`, then headers"
            );
            Failed::new(status, message)
        }
    }
}

/// Whether the request line alone is longer than a head may be.
fn is_line_too_long(status: StatusCode, tail: &[u8]) -> bool {
    let is_too_long =
        matches!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG);
    is_too_long && request_lines(tail).any(|line| line.len() >= MAX_HEAD_BYTES)
}

/// Whether a request line names another version of HTTP than the one that is served.
fn names_another_version(tail: &[u8]) -> bool {
    let is_another = |line: &[u8]| {
        let words: Vec<_> = line.split(|&byte| byte == b' ').collect();
        let [_, _, version] = words[..] else { return false };
        let Some(numbers) = version.strip_prefix(b"HTTP/") else { return false };
        let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        numbers != b"1.1" && numbers.split(|&byte| byte == b'.').all(is_number)
    };
    request_lines(tail).any(is_another)
}

/// The lines that begin a request, the unfinished last one included: they follow an empty line or
/// nothing. A body may do so, too, but bodies are JSON and do not begin with a capital letter.
fn request_lines(tail: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut follows_empty = true;
    tail.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end).filter(move |line| {
        let is_first = std::mem::replace(&mut follows_empty, line.is_empty());
        is_first && line.first().is_some_and(u8::is_ascii_uppercase)
    })
}

/// Whether the last `Content-Length` is a number above the limit. hyper cannot represent the
/// largest of these numbers and counts them as malformed.
fn announces_too_much(head: &[u8]) -> bool {
    let lines = head.split(|&byte| byte == b'\n').rev();
    let value = lines.into_iter().find_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        line[..colon]
            .eq_ignore_ascii_case(b"content-length")
            .then_some(line[colon + 1..].trim_ascii())
    });
    value.is_some_and(|digits| {
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let text = String::from_utf8_lossy(digits);
        is_number && text.parse().map_or(true, |length: usize| length > MAX_BODY_BYTES)
    })
}

/// The offset and status of hyper's own answer in the bytes that it writes. That answer comes last
/// and has no body; each of the daemon's answers has a `Content-Type`.
fn own_answer(written: &[u8]) -> Option<(usize, StatusCode)> {
    const STATUS_LINE: &[u8] = b"HTTP/1.1 ";
    if !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    let is_start = |window: &[u8]| window.starts_with(b"HTTP/1.") && window.ends_with(b" ");
    let start = written.windows(STATUS_LINE.len()).rposition(is_start)?;
    let head = written[start..].to_ascii_lowercase();
    let status =
        StatusCode::from_bytes(head.get(STATUS_LINE.len()..STATUS_LINE.len() + 3)?).ok()?;
    let has_type = head.windows(15).any(|window| window == b"\r\ncontent-type:");
    (status.is_client_error() && !has_type).then_some((start, status))
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Ok(())) = polled {
            self.tail.extend_from_slice(&buffer.filled()[before..]);
            let surplus = self.tail.len().saturating_sub(2 * MAX_HEAD_BYTES);
            self.tail.drain(..surplus);
        }
        polled
    }
}

// It offers no vectored writes, so hyper hands over all it has to write in one piece.
impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match own_answer(bytes) {
            Some((0, status)) => {
                self.refused = Some(status);
                Poll::Ready(Ok(bytes.len()))
            }
            // The bytes before it are written first; hyper calls again with the rest.
            Some((start, _)) => Pin::new(&mut self.stream).poll_write(cx, &bytes[..start]),
            None => Pin::new(&mut self.stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Leaves the stream open for [`Wire::finish`].
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_hyper_itself_is_held_back() {
        let own = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let of_daemon = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\r\n";
        let body = "{\"error\": \"HTTP/1.1 400 \"}\n";
        assert_eq!(own_answer(own.as_bytes()), Some((0, StatusCode::BAD_REQUEST)));
        let after_another = format!("{of_daemon}{body}{own}");
        let start = of_daemon.len() + body.len();
        assert_eq!(
            own_answer(after_another.as_bytes()),
            Some((start, StatusCode::BAD_REQUEST)),
            "after the rest of another answer"
        );
        for other in [
            of_daemon.to_owned(),
            format!("{of_daemon}{body}"),
            "HTTP/1.1 100 Continue\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".into(),
            own[..own.len() - 1].into(),
            String::new(),
        ] {
            assert_eq!(own_answer(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn a_content_length_above_the_limit_is_recognised_however_large_it_is() {
        for (head, is_too_much) in [
            ("PUT / HTTP/1.1\r\nContent-Length: 65536\r\n\r\n", false),
            ("PUT / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n", true),
            ("PUT / HTTP/1.1\r\ncontent-length:\t18446744073709551616 \r\n\r\n", true),
            ("PUT / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", false),
            ("PUT / HTTP/1.1\r\ncontent-length: \r\n\r\n", false),
            ("PUT / HTTP/1.1\r\nx-content-length: 99999999\r\n\r\n", false),
            ("", false),
        ] {
            assert_eq!(announces_too_much(head.as_bytes()), is_too_much, "{head:?}");
        }
    }
}
