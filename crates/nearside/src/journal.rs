//! Messages to the system log, for commands whose standard error another program drops.

use crate::printable::printable;
use std::{os::unix::net::UnixDatagram, path::Path};

/// Facility daemon (3), severity warning (4): RFC 3164, 4.1.1.
const DAEMON_WARNING: u8 = 3 * 8 + 4;

/// The longest message in bytes: RFC 3164, 4.1, limits a packet to 1,024.
const MAX_MESSAGE_BYTES: usize = 900;

/// Sends a warning to the log's socket, which systemd's journal and every syslog daemon have. Does
/// not wait; without a log, or with a full one, the message is lost.
pub(crate) fn warn(root: &Path, program: &str, message: &str) {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    let _ = socket.set_nonblocking(true).and_then(|()| {
        socket.send_to(&packet(program, std::process::id(), message), root.join("dev/log"))
    });
}

/// The time is left out: the log adds that of arrival.
fn packet(program: &str, pid: u32, message: &str) -> Vec<u8> {
    let message = printable(message);
    let mut end = message.len().min(MAX_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("<{DAEMON_WARNING}>{program}[{pid}]: {}", &message[..end]).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_printable_packet() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("dev")).unwrap();
        warn(folder.path(), "numad", "lost");
        let log = UnixDatagram::bind(folder.path().join("dev/log")).unwrap();
        warn(folder.path(), "numad", "two\nlines");
        let mut buffer = [0; 2048];
        let length = log.recv(&mut buffer).unwrap();
        let text = str::from_utf8(&buffer[..length]).unwrap();
        assert_eq!(text, format!("<28>numad[{}]: two\\nlines", std::process::id()));
        let long = packet("numad", 7, &"\u{e4}".repeat(2000));
        assert!(long.len() < 1024 && String::from_utf8(long).is_ok());
    }
}
