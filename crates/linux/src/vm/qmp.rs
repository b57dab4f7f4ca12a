//! The threads of vCPUs that have no names, from QEMU's monitor.
//!
//! A QMP socket serves one client. So only a socket is asked that its operator made for Nearside:
//! its file name begins with `nearside`.

use nearside_libvirt::VcpuId;
use nearside_vmm::{QmpDialogue, QmpStep, Vm};
use rustix::{
    fd::{AsRawFd, OwnedFd},
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt},
};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The longest time for all answers. QEMU answers within milliseconds unless it hangs.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The beginning of the file name of a socket that may be asked.
const OWN_NAME: &str = "nearside";

/// The thread of each vCPU, as the monitor at `socket` tells them.
///
/// # Errors
/// With the reason, if the monitor does not answer.
pub(super) fn threads_of_vcpus(
    socket: &Path,
    process: i32,
    proc: &Path,
) -> Result<BTreeMap<VcpuId, i32>, String> {
    ask(socket, process, proc).map_err(|why| format!("{}: {why}", socket.display()))
}

/// The socket of a QEMU that may be asked.
pub(super) fn own_socket(vm: &Vm) -> Option<PathBuf> {
    let is_own = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_absolute() && name.is_some_and(|name| name.starts_with(OWN_NAME))
    };
    let paths: Vec<_> = vm.qmp_sockets.iter().map(PathBuf::from).collect();
    paths.iter().find(is_own).cloned()
}

fn ask(socket: &Path, process: i32, proc: &Path) -> Result<BTreeMap<VcpuId, i32>, String> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    let root = proc.join(format!("{process}/root"));
    let stream = connect_below(&root, socket).map_err(|error| error.to_string())?;
    // The path is QEMU's word: another program's socket is not written to.
    let peer = sockopt::socket_peercred(&stream).map_err(|error| error.to_string())?;
    if peer.pid.as_raw_nonzero().get() != process {
        return Err(format!("process {} listens there, not QEMU", peer.pid.as_raw_nonzero()));
    }
    converse(stream, deadline).map_err(|fault| match fault {
        Fault::Io(error) if is_timeout(&error) => {
            format!("QEMU does not answer within {} ms", ANSWER_WITHIN.as_millis())
        }
        Fault::Io(error) => error.to_string(),
        Fault::Refused(why) => why,
    })
}

enum Fault {
    Io(io::Error),
    Refused(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// Connects to a socket as QEMU sees its path. No link leads out of QEMU's root, and a full queue
/// of connections does not block.
fn connect_below(root: &Path, socket: &Path) -> io::Result<UnixStream> {
    let below = |flags| openat2(CWD, root, flags, Mode::empty(), ResolveFlags::empty());
    let root = below(OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = openat2(&root, socket, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&stream, &SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)?;
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn converse(mut stream: UnixStream, deadline: Instant) -> Result<BTreeMap<VcpuId, i32>, Fault> {
    let mut dialogue = QmpDialogue::default();
    let mut buffer = [0; 4096];
    let mut step = QmpStep::Read;
    // Sent piece by piece: a peer that takes one byte at a time gains no time.
    let mut unsent: &[u8] = &[];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        match step {
            QmpStep::Send(text) => {
                unsent = text.as_bytes();
                step = QmpStep::Read;
            }
            QmpStep::Read if !unsent.is_empty() => {
                stream.set_write_timeout(Some(left))?;
                match stream.write(unsent) {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                    Ok(count) => unsent = unsent.get(count..).unwrap_or_default(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
                if unsent.is_empty() {
                    step = dialogue.take(&[]).map_err(Fault::Refused)?;
                }
            }
            QmpStep::Read => {
                stream.set_read_timeout(Some(left))?;
                let count = match stream.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                let bytes = buffer.get(..count).unwrap_or_default();
                if bytes.is_empty() {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                step = dialogue.take(bytes).map_err(Fault::Refused)?;
            }
            QmpStep::Threads(threads) => {
                let of_libvirt =
                    |(vcpu, thread): (nearside_vmm::VcpuId, i32)| (VcpuId(vcpu.0), thread);
                return Ok(threads.into_iter().map(of_libvirt).collect());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixListener, thread};

    const ANSWERS: [&str; 3] = [
        "{\"QMP\": {}}\r\n",
        "{\"return\": {}}\r\n",
        "{\"return\": [{\"cpu-index\": 3, \"thread-id\": 4711}]}\r\n",
    ];

    fn asked_at(socket: &Path) -> Result<BTreeMap<VcpuId, i32>, String> {
        threads_of_vcpus(socket, std::process::id().cast_signed(), Path::new("/proc"))
    }

    /// Asks a monitor of this process that sends these answers, one before each line that it reads.
    fn asked(answers: &'static [&'static str]) -> Result<BTreeMap<VcpuId, i32>, String> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nearside.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let monitor = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 256];
            for answer in answers {
                stream.write_all(answer.as_bytes()).unwrap();
                // The client leaves once it knows enough.
                if stream.read(&mut buffer).is_ok_and(|count| count == 0) {
                    return;
                }
            }
        });
        let asked = asked_at(&socket);
        monitor.join().unwrap();
        asked
    }

    #[test]
    fn a_monitor_tells_its_threads() {
        assert_eq!(asked(&ANSWERS), Ok([(VcpuId(3), 4711)].into()));
        assert!(
            asked(&["{\"error\": {\"desc\": \"no\"}}\r\n"]).unwrap_err().contains("refuses: no")
        );
    }

    #[test]
    fn a_monitor_that_hangs_costs_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nearside.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let why = asked_at(&socket).unwrap_err();
        assert!(why.contains("does not answer within 500 ms"), "{why}");
    }

    #[test]
    fn a_monitor_that_sends_without_end_costs_its_bound() {
        for text in ["{}\n", "\n", "{\"QMP\": {}}\n{\"event\": 1}\n"] {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("nearside.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            let monitor = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                while stream.write_all(text.as_bytes()).is_ok() {}
            });
            assert!(asked_at(&socket).is_err(), "{text}");
            monitor.join().unwrap();
        }
    }

    #[test]
    fn only_a_socket_of_its_own_is_asked() {
        let paths = |paths: &[&str]| {
            let qmp_sockets = paths.iter().map(ToString::to_string).collect();
            own_socket(&Vm { qmp_sockets, ..Vm::default() })
        };
        assert_eq!(paths(&["/run/qmp.sock", "nearside.sock", "/run/nearside/qmp"]), None);
        assert_eq!(paths(&["/run/a", "/run/nearside-1"]), Some("/run/nearside-1".into()));
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nearside.sock");
        let asked = |process| threads_of_vcpus(&socket, process, Path::new("/proc"));
        assert!(asked_at(&socket).unwrap_err().contains("No such file"));
        let _listener = UnixListener::bind(&socket).unwrap();
        // Another process, whose root is this one's.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let why = asked(other.id().cast_signed()).unwrap_err();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(why.contains("listens there, not QEMU"), "{why}");
    }
}
