//! A daemon in the guest, and requests to it.

use crate::command::{Signal, await_that, nearside, send, words};
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::FileExt, net::UnixStream},
    path::Path,
    process::{Child, Stdio},
};

pub const CONFIG: &str = "/tmp/daemon.toml";
pub const SOCKET: &str = "/run/nearside/api.socket";
pub const AUDIT: &str = "/tmp/audit.log";

/// A daemon that has ended its first interval. Dropping this ends it.
#[derive(Debug)]
pub struct Daemon {
    pub child: Child,
    log: fs::File,
}

impl Daemon {
    /// Starts one with intervals of 100 ms and these lines of configuration.
    pub fn start(config: &str) -> Self {
        Self::start_with("", config)
    }

    /// As [`start`](Self::start), with more flags.
    pub fn start_with(flags: &str, config: &str) -> Self {
        let mut daemon = Self::begin_with(flags, config);
        await_that("the daemon answers", || {
            assert_eq!(daemon.child.try_wait().unwrap(), None, "{}", daemon.said());
            matches!(ask("GET", "/domains", None), Some((200, _)))
        });
        daemon
    }

    /// As [`start_with`](Self::start_with), without waiting for its first answer.
    pub fn begin_with(flags: &str, config: &str) -> Self {
        Self::begin_every("100ms", flags, config)
    }

    /// As [`begin_with`](Self::begin_with), with other intervals.
    pub fn begin_every(interval: &str, flags: &str, config: &str) -> Self {
        fs::write(
            CONFIG,
            format!("interval = \"{interval}\"\n{config}\n[audit]\nlog = \"{AUDIT}\"\n"),
        )
        .unwrap();
        let log = tempfile();
        let mut command = nearside();
        let command = command
            .args(["daemon", "--config", CONFIG])
            .args(words(flags))
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap());
        Self { child: command.spawn().unwrap(), log }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    /// Its output so far.
    pub fn said(&mut self) -> String {
        let mut text = vec![0; self.log.metadata().unwrap().len() as usize];
        self.log.read_exact_at(&mut text, 0).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Ends it in good order.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.said());
        assert!(!Path::new(SOCKET).exists());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file without a name.
fn tempfile() -> fs::File {
    let path = format!("/tmp/log-{:?}", std::thread::current().id());
    let file = fs::OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file
}

/// Asks the API: status and body. None without a listener. An answer that it is not ready (503) is
/// not final: when the host stands still, the loop seems to have died.
pub fn ask(method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
    let mut answer = None;
    await_that("the daemon is ready", || {
        answer = ask_once(method, path, body);
        !matches!(answer, Some((503, _)))
    });
    answer
}

/// As [`ask`], but any answer is final.
pub fn ask_once(method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}",
        body.len()
    );
    let mut stream = UnixStream::connect(SOCKET).ok()?;
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, serde_json::from_str(body).unwrap_or_else(|_| body.into())))
}

/// The answer of the API.
pub fn get(path: &str) -> Value {
    let (code, body) = ask("GET", path, None).expect("an answer");
    assert_eq!(code, 200, "{path}: {body}");
    body
}
