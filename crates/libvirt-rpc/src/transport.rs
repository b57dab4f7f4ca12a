//! The way of bytes to the daemon and back.

use rustix::{
    fd::OwnedFd,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt},
};
use std::{
    fmt::Debug,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// A stream of bytes in both directions, with a bound in time for each step.
pub trait Transport: Debug + Send {
    /// Reads some bytes, at most as many as fit. None at the end of the stream.
    ///
    /// # Errors
    /// A time-out ([`io::ErrorKind::TimedOut`] or [`io::ErrorKind::WouldBlock`]) if none came
    /// `within` that time.
    fn read(&mut self, into: &mut [u8], within: Duration) -> io::Result<usize>;

    /// Writes some of the bytes.
    ///
    /// # Errors
    /// A time-out if none could be written `within` that time.
    fn write(&mut self, bytes: &[u8], within: Duration) -> io::Result<usize>;
}

impl Transport for UnixStream {
    fn read(&mut self, into: &mut [u8], within: Duration) -> io::Result<usize> {
        self.set_read_timeout(Some(within))?;
        Read::read(self, into)
    }

    fn write(&mut self, bytes: &[u8], within: Duration) -> io::Result<usize> {
        self.set_write_timeout(Some(within))?;
        Write::write(self, bytes)
    }
}

/// Connects to a socket. A daemon that accepts no connection lets its queue fill, and `connect`
/// then waits as long as a write may take (`unix_stream_connect`, `net/unix/af_unix.c`).
pub(crate) fn connect_to(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let socket: OwnedFd =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(within))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
