//! Messages: a length, a header, a payload (`src/rpc/virnetprotocol.x`).

use crate::{
    error::{Error, Garbled},
    xdr::{Reader, Writer},
};

/// `REMOTE_PROGRAM` and `REMOTE_PROTOCOL_VERSION`, `src/remote/remote_protocol.x`.
pub(crate) const REMOTE: Program = Program { id: 0x2000_8086, version: 1 };
/// `KEEPALIVE_PROGRAM` and `KEEPALIVE_PROTOCOL_VERSION`, `src/rpc/virkeepaliveprotocol.x`.
pub(crate) const KEEPALIVE: Program = Program { id: 0x6b65_6570, version: 1 };
/// `KEEPALIVE_PROC_PING` and `KEEPALIVE_PROC_PONG`.
pub(crate) const PING: i32 = 1;
pub(crate) const PONG: i32 = 2;

/// The word with the length, which counts itself.
pub(crate) const LENGTH_BYTES: usize = 4;
/// `VIR_NET_MESSAGE_HEADER_MAX`.
pub(crate) const HEADER_BYTES: usize = 24;
/// The lengths that a message may have. `VIR_NET_MESSAGE_MAX` does not count the length word.
pub(crate) const MIN_BYTES: u32 = (LENGTH_BYTES + HEADER_BYTES) as u32;
pub(crate) const MAX_BYTES: u32 = 33_554_432 + LENGTH_BYTES as u32;
/// `VIR_NET_MESSAGE_STRING_MAX`, and `REMOTE_STRING_MAX` in `remote_protocol.x`.
pub(crate) const MAX_STRING: u32 = 4_194_304;

/// A program of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Program {
    id: u32,
    version: u32,
}

/// `virNetMessageType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Reply,
    /// An event, or a keep-alive.
    Message,
    /// Data, or file descriptors, that no call of this crate asks for.
    Other,
}

/// `virNetMessageStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    Error,
    Continue,
}

/// `virNetMessageHeader`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) program: Program,
    pub(crate) procedure: i32,
    pub(crate) kind: Kind,
    pub(crate) serial: u32,
    pub(crate) status: Status,
}

impl Header {
    /// The header of a call.
    pub(crate) fn call(procedure: i32, serial: u32) -> Self {
        Self { program: REMOTE, procedure, kind: Kind::Call, serial, status: Status::Ok }
    }

    /// The header of the answer to a keep-alive.
    pub(crate) fn pong() -> Self {
        Self {
            program: KEEPALIVE,
            procedure: PONG,
            kind: Kind::Message,
            serial: 0,
            status: Status::Ok,
        }
    }

    pub(crate) fn is_ping(&self) -> bool {
        (self.program, self.procedure, self.kind) == (KEEPALIVE, PING, Kind::Message)
    }

    /// Whether this is the reply to `call`.
    pub(crate) fn answers(&self, call: &Self) -> bool {
        (self.program, self.procedure, self.serial) == (call.program, call.procedure, call.serial)
    }

    /// The message with this header and payload.
    pub(crate) fn message(&self, payload: &[u8]) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Call => 0,
            Kind::Reply => 1,
            Kind::Message => 2,
            Kind::Other => 3,
        };
        let mut bytes = Writer::default()
            .u32((LENGTH_BYTES + HEADER_BYTES + payload.len()) as u32)
            .u32(self.program.id)
            .u32(self.program.version)
            .i32(self.procedure)
            .u32(kind)
            .u32(self.serial)
            .u32(match self.status {
                Status::Ok => 0,
                Status::Error => 1,
                Status::Continue => 2,
            })
            .into_bytes();
        bytes.extend(payload);
        bytes
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Garbled> {
        Ok(Self {
            program: Program { id: reader.u32()?, version: reader.u32()? },
            procedure: reader.i32()?,
            kind: match reader.u32()? {
                0 => Kind::Call,
                1 => Kind::Reply,
                2 => Kind::Message,
                3..=6 => Kind::Other,
                value => return Err(Garbled::Unknown { what: "kind of a message", value }),
            },
            serial: reader.u32()?,
            status: match reader.u32()? {
                0 => Status::Ok,
                1 => Status::Error,
                2 => Status::Continue,
                value => return Err(Garbled::Unknown { what: "status of a message", value }),
            },
        })
    }
}

/// The bytes that follow the length word.
pub(crate) fn bytes_after(length: [u8; LENGTH_BYTES]) -> Result<usize, Garbled> {
    match u32::from_be_bytes(length) {
        bytes @ MIN_BYTES..=MAX_BYTES => Ok(bytes as usize - LENGTH_BYTES),
        bytes => Err(Garbled::Length { bytes, least: MIN_BYTES, most: MAX_BYTES }),
    }
}

/// `virNetMessageError`: the number of the reason, and libvirt's words. The fields after those two
/// say nothing more.
pub(crate) fn refusal(payload: &[u8]) -> Result<Error, Garbled> {
    let mut reader = Reader::new(payload);
    let (code, _domain) = (reader.i32()?, reader.i32()?);
    let message = reader.optional_text(MAX_STRING)?;
    Ok(Error::Refused { code, message: message.unwrap_or_else(|| format!("error {code}")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_length_and_six_words_of_header() {
        // REMOTE_PROC_CONNECT_OPEN is 1.
        let bytes = Header::call(1, 5).message(&[9, 9, 9, 9]);
        assert_eq!(
            bytes,
            [
                [0, 0, 0, 32],
                [0x20, 0, 0x80, 0x86],
                [0, 0, 0, 1],
                [0, 0, 0, 1],
                [0, 0, 0, 0],
                [0, 0, 0, 5],
                [0, 0, 0, 0],
                [9, 9, 9, 9],
            ]
            .concat()
        );
        let mut reader = Reader::new(&bytes[4..]);
        assert_eq!(Header::read(&mut reader), Ok(Header::call(1, 5)));
    }

    #[test]
    fn lengths_that_no_message_has_are_refused() {
        for (length, expected) in [
            (0, None),
            (27, None),
            (28, Some(24)),
            (33_554_436, Some(33_554_432)),
            (33_554_437, None),
            (u32::MAX, None),
        ] {
            assert_eq!(bytes_after(u32::to_be_bytes(length)).ok(), expected, "{length}");
        }
    }

    #[test]
    fn refusals_carry_number_and_words() {
        let payload = Writer::default().i32(42).i32(10).some_string("Domain not found").i32(2);
        let refusal = refusal(&payload.into_bytes()).unwrap();
        assert!(refusal.is_no_domain());
        assert_eq!(refusal.to_string(), "libvirt: Domain not found");
        let silent = super::refusal(&Writer::default().i32(1).i32(0).i32(0).into_bytes()).unwrap();
        assert_eq!(silent.to_string(), "libvirt: error 1");
        assert!(super::refusal(&[0, 0]).is_err());
    }
}
