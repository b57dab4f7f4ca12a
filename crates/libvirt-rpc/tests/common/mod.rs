//! A daemon in software: it answers calls as a test tells it.

#![allow(dead_code, reason = "each test takes its part")]

use nearside_libvirt_rpc::{Connection, Transport};
use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

pub(crate) const WITHIN: Duration = Duration::from_secs(5);

/// Words of four bytes, and raw bytes, one after the other.
pub(crate) fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

pub(crate) fn word(value: u32) -> [u8; 4] {
    value.to_be_bytes()
}

/// A message of libvirt's remote program (0x20008086, version 1).
pub(crate) fn message(
    procedure: u32,
    kind: u32,
    serial: u32,
    status: u32,
    payload: &[u8],
) -> Vec<u8> {
    bytes(&[
        &word(28 + payload.len() as u32),
        &[0x20, 0x00, 0x80, 0x86],
        &word(1),
        &word(procedure),
        &word(kind),
        &word(serial),
        &word(status),
        payload,
    ])
}

/// The bytes written to a daemon, and its answers.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) written: Vec<u8>,
    pub(crate) answers: VecDeque<u8>,
}

/// A daemon that has its answers ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ready(pub(crate) Arc<Mutex<Wire>>);

impl Ready {
    /// A connection to a daemon with these answers.
    pub(crate) fn connect(answers: &[Vec<u8>]) -> (Self, Connection) {
        let ready = Self::default();
        ready.0.lock().unwrap().answers.extend(answers.concat());
        let connection = Connection::over(Box::new(ready.clone()), WITHIN);
        (ready, connection)
    }

    /// Takes the bytes that were written so far.
    pub(crate) fn written(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap().written)
    }
}

impl Transport for Ready {
    fn read(&mut self, into: &mut [u8], _: Duration) -> io::Result<usize> {
        // A few bytes at a time, as a busy socket may give them.
        let mut wire = self.0.lock().unwrap();
        let count = into.len().min(3).min(wire.answers.len());
        for (to, from) in into.iter_mut().zip(wire.answers.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        let count = bytes.len().min(5);
        self.0.lock().unwrap().written.extend(&bytes[..count]);
        Ok(count)
    }
}
