//! A program that asks the helper.

use crate::{
    error::{Error, IoContext},
    namespace,
    protocol::{Answer, MAX_ANSWER_BYTES, Request, Status},
};
use nearside_topology::NodeId;
use rustix::{
    io::{Errno, IoSlice, IoSliceMut},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
};
use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

/// A connection to the helper.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    patience: Duration,
}

impl Client {
    /// Connects to the helper at `path`. Each answer has to come within `patience`.
    ///
    /// # Errors
    /// [`Error::NoHelper`] if none listens, [`Error::NotPermitted`] if only others may ask it,
    /// [`Error::NoAnswer`] if too many wait for it.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self, Error> {
        let none = |source: io::Error| {
            let socket = path.display().to_string();
            match source.kind() {
                io::ErrorKind::PermissionDenied => Error::NotPermitted {
                    what: format!("ask the replicator at {socket}"),
                    needs: "root",
                },
                _ => Error::NoHelper { socket, source },
            }
        };
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
            .map_err(|error| none(error.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|error| none(error.into()))?;
        // Before it connects: a helper that hangs lets its queue fill.
        for side in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, side, Some(patience))
                .doing(|| "limiting the wait for the replicator".into())?;
        }
        connect(&socket, &address).map_err(|error| match error {
            // Its queue is full.
            Errno::AGAIN => Error::NoAnswer { seconds: patience.as_secs() },
            error => none(error.into()),
        })?;
        Ok(Self { socket, patience })
    }

    /// The process of the helper: another number is another helper.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn helper(&self) -> Result<i32, Error> {
        let peer = socket_peercred(&self.socket).doing(|| "asking for the replicator".into())?;
        Ok(peer.pid.as_raw_pid())
    }

    /// Asks, with a file for those requests that are about one.
    ///
    /// # Errors
    /// If the helper ends meanwhile; [`Error::NoAnswer`] if it does not answer in time.
    pub fn ask(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<Answer, Error> {
        let doing = || "asking the replicator".to_owned();
        let text = serde_json::to_vec(request).map_err(io::Error::from).doing(doing)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let packet = [IoSlice::new(&text)];
        let failed = |error| match error {
            Errno::AGAIN => Error::NoAnswer { seconds: self.patience.as_secs() },
            error => Error::Call { what: doing(), source: error.into() },
        };
        sendmsg(&self.socket, &packet, &mut control, SendFlags::NOSIGNAL).map_err(failed)?;
        let mut answer = vec![0; MAX_ANSWER_BYTES];
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut answer)],
            &mut RecvAncillaryBuffer::default(),
            RecvFlags::empty(),
        )
        .map_err(failed)?;
        if received.bytes == 0 {
            let why = "the replicator has ended without an answer";
            return Err(Error::Refused(why.into()));
        }
        serde_json::from_slice(&answer[..received.bytes])
            .map_err(|error| Error::Refused(format!("the replicator's answer: {error}")))
    }

    /// All files and their copies.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn status(&self) -> Result<Status, Error> {
        let mut all = Status::default();
        loop {
            match self.ask(&Request::Status { from: all.files.len() }, None)? {
                Answer::Status { files, next, kept_bytes } => {
                    all.files.extend(files);
                    all.kept_bytes = kept_bytes;
                    if next.is_none() {
                        return Ok(all);
                    }
                }
                Answer::Refused { why } => return Err(Error::Refused(why)),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Gives this process's mount namespace the copies of a node, see [`private_mounts`]. Returns
    /// their number.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), or if the helper refuses.
    pub fn join(&self, node: NodeId) -> Result<usize, Error> {
        match self.ask(&Request::Join { node }, None)? {
            Answer::Joined { copies } => Ok(copies),
            Answer::Refused { why } => Err(Error::Refused(why)),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Answer) -> Error {
    Error::Refused(format!("the replicator's answer does not fit: {answer:?}"))
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Gives this thread, and what it executes, a mount namespace of its own. Mounts of the host still
/// arrive in it, and none leaves it.
///
/// # Errors
/// Without `CAP_SYS_ADMIN`.
pub fn private_mounts() -> Result<(), Error> {
    namespace::private().doing(|| "make a mount namespace for copies of program text".into())
}
