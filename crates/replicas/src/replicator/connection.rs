//! A client's connection: packets in, packets out.

use crate::protocol::{Answer, MAX_REQUEST_BYTES, Request};
use nearside_topology::type_words::in_plain_words;
use rustix::{
    io::{Errno, IoSliceMut},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketFlags,
        accept_with, recvmsg, send, sockopt::socket_peercred,
    },
};
use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// A client.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// The process that connected.
    process: u32,
    pub(super) open: bool,
}

/// A request, and what came with it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) file: Option<OwnedFd>,
    pub(super) process: u32,
}

impl Connection {
    /// A client that waits; none if there is none, or it is not root.
    pub(super) fn accept(listener: BorrowedFd<'_>) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = accept_with(listener, flags).ok()?;
        // The socket's mode says the same. A descriptor may have been passed on.
        let peer = socket_peercred(&socket).ok().filter(|peer| peer.uid.is_root())?;
        let process = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
        Some(Self { socket, process, open: true })
    }

    /// Answers one packet. False once the connection has ended, or the client does not read.
    pub(super) fn serve(&self, mut answer: impl FnMut(Asked) -> Answer) -> bool {
        let (packet, file, flags) = match self.receive() {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        if packet.is_empty() {
            return false;
        }
        let answer = if flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            let why = format!("a request has at most {MAX_REQUEST_BYTES} bytes and one file");
            Answer::Refused { why }
        } else {
            match serde_json::from_slice(&packet) {
                Ok(request) => answer(Asked { request, file, process: self.process }),
                Err(error) => {
                    let error = in_plain_words(&error.to_string(), "an object");
                    Answer::Refused { why: format!("not a request: {error}") }
                }
            }
        };
        let Ok(text) = serde_json::to_vec(&answer) else { return false };
        send(&self.socket, &text, SendFlags::NOSIGNAL).is_ok()
    }

    fn receive(&self) -> rustix::io::Result<(Vec<u8>, Option<OwnedFd>, ReturnFlags)> {
        let mut packet = vec![0; MAX_REQUEST_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        packet.truncate(received.bytes);
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        Ok((packet, files.flatten().next(), received.flags))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{
        net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket},
        process::geteuid,
        thread::set_thread_res_uid,
    };
    use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread};

    fn connect_to(path: &Path) -> OwnedFd {
        let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&client, &SocketAddrUnix::new(path).unwrap()).unwrap();
        client
    }

    #[test]
    fn root_alone_is_served_even_by_a_socket_that_is_open_to_all() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 2).unwrap();
        let open_to_all = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        open_to_all(folder.path(), 0o755);
        open_to_all(&path, 0o777);

        let _client = connect_to(&path);
        let served = Connection::accept(listener.as_fd()).unwrap();
        assert_eq!(served.process, std::process::id());
        thread::scope(|scope| {
            // The kernel has a user for each thread.
            let as_other = scope.spawn(|| {
                let other = rustix::fs::Uid::from_raw(65_534);
                set_thread_res_uid(other, other, other).unwrap();
                connect_to(&path)
            });
            let _client = as_other.join().unwrap();
            assert!(Connection::accept(listener.as_fd()).is_none());
        });
    }
}
