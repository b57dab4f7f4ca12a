//! Bounds of connections, heads and bodies.

use super::harness::{Client, Daemon, get, put, root, with_a_loop};
use crate::daemon::{
    access::Access,
    api::{
        Limits, Server,
        limits::{MAX_BODY_BYTES, MAX_HEADERS},
    },
};
use std::{os::unix::net::UnixStream as StdUnixStream, sync::Arc, time::Duration};

const AFFINITY: &str = "PUT /domains/db/affinity HTTP/1.1\r\nContent-Type: application/json\r\n";

#[test]
fn a_body_of_64_kib_is_read_and_a_larger_one_is_not() {
    let daemon = Daemon::new(Limits::default());
    let chunk = "x".repeat(0x4000);
    let chunked = format!("{AFFINITY}Transfer-Encoding: chunked\r\n\r\n")
        + &format!("4000\r\n{chunk}\r\n").repeat(4);
    assert_eq!(daemon.ask(&(chunked + "1\r\nx\r\n")).status, 413);

    let largest = format!("{{\"nodes\": [1]{}}}", " ".repeat(MAX_BODY_BYTES - 14));
    assert_eq!(largest.len(), MAX_BODY_BYTES);
    with_a_loop(daemon, |daemon| {
        assert_eq!(daemon.ask(&put("/domains/db/affinity", &largest)).status, 200)
    });
}

/// The client writes its whole body before it reads, as most do.
#[test]
fn a_client_with_a_large_body_gets_its_answer() {
    let daemon = Daemon::new(Limits { linger: Duration::MAX, ..Limits::default() });
    for length in [MAX_BODY_BYTES + 1, 200_000, 1_000_000, 2 << 20] {
        for request in [
            put("/domains/db/affinity", &"x".repeat(length)),
            format!(
                "{AFFINITY}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{}\r\n0\r\n\r\n",
                "x".repeat(length)
            ),
            put("/health", &"x".repeat(length)).replacen("PUT", "GET", 1),
        ] {
            let mut client = daemon.connect(root());
            client.send(&request);
            let reply = client.receive();
            assert_eq!(reply.status, 413, "{length}: {reply:?}");
            assert!(reply.error().contains("at most 64 KiB"), "{reply:?}");
        }
    }
}

#[test]
fn a_body_too_long_for_any_number_is_too_large() {
    let daemon = Daemon::new(Limits::default());
    for length in ["65537", "18446744073709551615", "18446744073709551616", &"9".repeat(100)] {
        let mut client = daemon.connect(root());
        let reply = client.ask(&format!("{AFFINITY}Content-Length: {length}\r\n\r\n"));
        assert_eq!(reply.status, 413, "{length}: {reply:?}");
        assert!(reply.error().contains("at most 64 KiB"), "{reply:?}");
        assert_eq!(client.receive_all(), "", "{length}");
    }
}

#[test]
fn a_head_too_long_is_answered_with_414_or_431_and_a_message() {
    let daemon = Daemon::new(Limits::default());
    let line = |bytes: usize| get(&format!("/domains/{}", "a".repeat(bytes)));
    let many = format!("GET /health HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
    let headers = |bytes: usize| format!("GET / HTTP/1.1\r\nlong: {}\r\n\r\n", "x".repeat(bytes));
    let (long, both) = (414, 431);
    let mut cases = vec![(both, many)];
    // Whether hyper itself refuses a head depends on the pieces in which it arrives.
    for kib in [32, 33, 40, 47, 48, 63, 64, 65, 100] {
        cases.extend([(long, line(kib << 10)), (both, headers(kib << 10))]);
    }
    for (status, request) in cases {
        for in_pieces in [false, true] {
            let mut client = daemon.connect(root());
            // An earlier request on the same connection changes nothing.
            assert_eq!(client.ask(&get("/health")).status, 200);
            let (first, rest) = request.split_at(if in_pieces { 100 } else { 0 });
            client.send(first);
            std::thread::sleep(Duration::from_millis(5));
            client.send(rest);
            let reply = client.receive();
            assert_eq!(reply.status, status, "{} bytes: {reply:?}", request.len());
            assert_eq!(reply.content_type.as_deref(), Some("application/json"));
            assert!(reply.error().contains("at most 32 KiB"), "{reply:?}");
            assert_eq!(client.receive_all(), "");
        }
    }
    assert_eq!(daemon.ask(&line(31 << 10)).status, 404);
}

#[test]
fn another_version_of_http_is_answered_with_505() {
    let daemon = Daemon::new(Limits::default());
    for bytes in [
        "GET /health HTTP/1.0\r\n\r\n",
        "PUT /domains/db/affinity HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/2\r\n\r\n",
        "GET / HTTP/0.9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut client = daemon.connect(root());
        let reply = client.ask(bytes);
        assert_eq!(reply.status, 505, "{bytes:?}: {reply:?}");
        assert_eq!(reply.content_type.as_deref(), Some("application/json"));
        assert!(reply.error().contains("expected HTTP/1.1"), "{bytes:?}: {reply:?}");
        assert_eq!(client.receive_all(), "", "{bytes:?}");
    }
}

#[test]
fn bytes_that_are_no_http_are_answered_with_400_and_a_message() {
    let daemon = Daemon::new(Limits::default());
    for bytes in [
        "hello\r\n\r\n",
        "\0\0\0\0",
        "GET / HTTX/1.1\r\n\r\n",
        "GET /\u{1} HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ] {
        let mut client = daemon.connect(root());
        let reply = client.ask(bytes);
        assert_eq!(reply.status, 400, "{bytes:?}: {reply:?}");
        assert_eq!(reply.content_type.as_deref(), Some("application/json"));
        assert!(reply.error().contains("no request of HTTP/1.1: "), "{bytes:?}: {reply:?}");
        assert_eq!(client.receive_all(), "", "{bytes:?}");
    }
}

#[test]
fn requests_before_one_that_is_no_http_are_answered() {
    let daemon = Daemon::new(Limits::default());
    let mut client = daemon.connect(root());
    client.send(&(get("/openapi.json") + &get("/health") + "hello\r\n\r\n"));
    assert_eq!(
        [client.receive(), client.receive(), client.receive()].map(|reply| reply.status),
        [200, 200, 400]
    );
    assert_eq!(client.receive_all(), "");
}

#[test]
fn a_slow_head_and_an_old_connection_are_ended() {
    let limits = Limits { head: Duration::from_millis(50), ..Limits::default() };
    let daemon = Daemon::new(limits);
    let mut slow = daemon.connect(root());
    slow.send("GET /health HTTP/1.1\r\nHost:");
    assert_eq!(slow.receive_all(), "");

    let daemon = Daemon::new(Limits { connection: Duration::from_millis(50), ..Limits::default() });
    let mut old = daemon.connect_saying(&get("/health"), root());
    assert_eq!(old.receive().status, 200);
    assert_eq!(old.receive_all(), "");
}

#[test]
fn the_server_bounds_connections_and_removes_its_socket_at_the_end() {
    let limits = Limits { connections_of_a_user: 2, connections: 2, ..Limits::default() };
    let daemon = Daemon::new(limits);
    let access = Access { read_gid: None, admin_gid: None, ..daemon.api.access() };
    *daemon.api.access.write().unwrap() = access;
    let path = daemon.folder.path().join("api.socket");
    let server = Server::start(Arc::clone(&daemon.api), &path).unwrap();
    let connect = || Client { stream: StdUnixStream::connect(&path).unwrap(), thread: None };
    let (mut first, mut second) = (connect(), connect());
    assert_eq!((first.ask(&get("/health")).status, second.ask(&get("/health")).status), (200, 200));
    let mut third = connect();
    let reply = third.receive();
    assert!(reply.status == 503 && reply.error().contains("too many connections"), "{reply:?}");
    assert_eq!(third.receive_all(), "");

    let error = Server::start(Arc::clone(&daemon.api), &path).unwrap_err();
    assert!(error.contains("another process serves this socket"), "{error}");

    daemon.api.reconfigure(access, &daemon.folder.path().join("audit.log")).unwrap();
    server.stop();
    assert_eq!(first.receive_all(), "");
    assert!(!path.exists());
}
