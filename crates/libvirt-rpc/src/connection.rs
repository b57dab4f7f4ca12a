//! A connection: one call at a time, each with its bound in time.

use crate::{
    error::{Error, Garbled},
    message::{self, HEADER_BYTES, Header, Kind, LENGTH_BYTES, REMOTE, Status},
    transport::Transport,
    xdr::Reader,
};
use std::{
    io::{self, ErrorKind},
    time::{Duration, Instant},
};

/// Bytes that are read at a time. A message grows as its bytes arrive, whatever its length says.
const CHUNK_BYTES: usize = 64 << 10;

/// A connection to a libvirt daemon.
///
/// [`Connection::open`] makes one. After a time-out or an answer that cannot be read, all further
/// calls fail: the next bytes might answer the call that was given up.
#[derive(Debug)]
pub struct Connection {
    transport: Box<dyn Transport>,
    within: Duration,
    /// The end of the last call, if there is one bound for several.
    until: Option<Instant>,
    serial: u32,
    is_closed: bool,
}

/// A procedure of the remote protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Procedure {
    /// Its number in `remote_procedure`, `src/remote/remote_protocol.x`.
    pub(crate) number: i32,
    /// Its name in messages.
    pub(crate) name: &'static str,
}

impl Connection {
    /// A connection over a transport on which nothing was sent yet. Each call may take `within`.
    pub fn over(transport: Box<dyn Transport>, within: Duration) -> Self {
        Self { transport, within, until: None, serial: 0, is_closed: false }
    }

    /// Bounds all further calls together: none takes longer than until then.
    pub fn end_by(&mut self, until: Instant) {
        self.until = Some(until);
    }

    /// Calls a procedure, and returns the payload of its answer.
    pub(crate) fn call(
        &mut self,
        procedure: Procedure,
        arguments: &[u8],
    ) -> Result<Vec<u8>, Error> {
        if self.is_closed {
            return Err(Error::Closed);
        }
        let own = Instant::now() + self.within;
        let deadline = self.until.map_or(own, |until| own.min(until));
        self.serial = self.serial.wrapping_add(1);
        let call = Header::call(procedure.number, self.serial);
        let name = procedure.name;
        let answer = self
            .send(&call.message(arguments), deadline)
            .and_then(|()| self.answer_to(&call, deadline));
        let (status, payload) = answer.map_err(|fault| {
            self.is_closed = true;
            match fault {
                Fault::Io(source)
                    if matches!(source.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) =>
                {
                    Error::TimedOut { call: name, within: self.within }
                }
                Fault::Io(source) => Error::Broken { call: name, source },
                Fault::Garbled(why) => Error::Garbled { call: name, why },
            }
        })?;
        match status {
            Status::Ok => Ok(payload),
            _ => Err(self.refusal(name, &payload)),
        }
    }

    /// Calls a procedure that answers nothing but that it is done.
    pub(crate) fn command(&mut self, procedure: Procedure, arguments: &[u8]) -> Result<(), Error> {
        self.ask(procedure, arguments, |_| Ok(()))
    }

    /// Calls a procedure, and reads its whole answer.
    pub(crate) fn ask<T>(
        &mut self,
        procedure: Procedure,
        arguments: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Garbled>,
    ) -> Result<T, Error> {
        let payload = self.call(procedure, arguments)?;
        let mut reader = Reader::new(&payload);
        let answer = read(&mut reader).and_then(|answer| reader.end().map(|()| answer));
        // The stream is in step: messages have their own lengths.
        answer.map_err(|why| Error::Garbled { call: procedure.name, why })
    }

    fn refusal(&self, call: &'static str, payload: &[u8]) -> Error {
        message::refusal(payload).unwrap_or_else(|why| Error::Garbled { call, why })
    }

    /// The answer to a call. Events are skipped, and keep-alives are answered.
    fn answer_to(&mut self, call: &Header, deadline: Instant) -> Result<(Status, Vec<u8>), Fault> {
        loop {
            let (header, payload) = self.receive(deadline)?;
            match header.kind {
                Kind::Message if header.is_ping() => {
                    self.send(&Header::pong().message(&[]), deadline)?;
                }
                Kind::Message if header.program == REMOTE => {}
                Kind::Reply if !header.answers(call) => return Err(Garbled::OtherCall.into()),
                Kind::Reply if header.status != Status::Continue => {
                    return Ok((header.status, payload));
                }
                _ => return Err(Garbled::OtherCall.into()),
            }
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<(Header, Vec<u8>), Fault> {
        let mut length = [0; LENGTH_BYTES];
        self.read_exact(&mut length, deadline)?;
        let bytes = message::bytes_after(length)?;
        let mut header = [0; HEADER_BYTES];
        self.read_exact(&mut header, deadline)?;
        let header = Header::read(&mut Reader::new(&header))?;
        let mut left = bytes - HEADER_BYTES;
        let mut payload = Vec::new();
        while left > 0 {
            let (start, chunk) = (payload.len(), left.min(CHUNK_BYTES));
            payload.resize(start + chunk, 0);
            self.read_exact(payload.get_mut(start..).unwrap_or_default(), deadline)?;
            left -= chunk;
        }
        Ok((header, payload))
    }

    fn read_exact(&mut self, mut into: &mut [u8], deadline: Instant) -> Result<(), Fault> {
        while !into.is_empty() {
            let read = retried(|| self.transport.read(into, time_left(deadline)?))?;
            if read == 0 {
                return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
            }
            into = into.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let written = retried(|| self.transport.write(bytes, time_left(deadline)?))?;
            if written == 0 {
                return Err(io::Error::from(ErrorKind::WriteZero).into());
            }
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }
}

/// The reason why a call has no answer.
enum Fault {
    Io(io::Error),
    Garbled(Garbled),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Garbled> for Fault {
    fn from(why: Garbled) -> Self {
        Self::Garbled(why)
    }
}

/// The time that is left, or a time-out. A daemon that sends on and on has no more time than a
/// silent one.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    match deadline.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(ErrorKind::TimedOut.into()),
    }
}

fn retried(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
