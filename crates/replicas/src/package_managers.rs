//! Package managers that start inside domains. They replace files, which the kernel refuses with
//! `EBUSY` while a copy is mounted over one in the same namespace. So the kernel asks before it
//! executes one (fanotify(7), `FAN_OPEN_EXEC_PERM`), and copies leave the namespace first.

use crate::{
    error::{Error, IoContext},
    file_id::FileId,
    namespace::{Namespace, Visitor},
    whole,
};
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyEvent, FanotifyResponse, InitFlags, MarkFlags, MaskFlags,
    Response,
};
use rustix::fs::{FileType, Mode, OFlags, inotify, open};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// Programs that install, upgrade or remove files of others.
const NAMES: &[&str] = &[
    "apk",
    "apt",
    "apt-get",
    "aptitude",
    "conda",
    "dnf",
    "dnf5",
    "dpkg",
    "emerge",
    "gem",
    "ldconfig",
    "mamba",
    "microdnf",
    "nix-env",
    "npm",
    "opkg",
    "pacman",
    "pip",
    "pip3",
    "rpm",
    "tdnf",
    "xbps-install",
    "xbps-remove",
    "yum",
    "zypper",
];

/// The folders where they lie.
const FOLDERS: &[&str] =
    &["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"];

/// The events of a file that may have been replaced: it has lost a name, or got another.
const REPLACEMENTS: inotify::WatchFlags = inotify::WatchFlags::ATTRIB
    .union(inotify::WatchFlags::MOVE_SELF)
    .union(inotify::WatchFlags::DELETE_SELF);

/// A group of marks on package managers.
#[derive(Debug)]
pub(crate) struct PackageManagers {
    group: Fanotify,
    /// Tells of those that are replaced: a mark is one of a file, and goes with it.
    changes: OwnedFd,
    /// The namespaces that have each watched file.
    watched: RefCell<BTreeMap<i32, BTreeSet<FileId>>>,
}

/// A process that waits to execute one. It goes on once this is dropped.
#[derive(Debug)]
pub(crate) struct Started<'a> {
    event: FanotifyEvent,
    group: &'a Fanotify,
}

impl PackageManagers {
    /// A group without marks.
    ///
    /// # Errors
    /// If the kernel has no permission events (`CONFIG_FANOTIFY_ACCESS_PERMISSIONS`), or without
    /// `CAP_SYS_ADMIN`.
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = InitFlags::FAN_CLASS_CONTENT
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_UNLIMITED_MARKS;
        let group = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)
            .map_err(io::Error::from)
            .doing(|| "watching for package managers (fanotify)".into())?;
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .doing(|| "watching package managers (inotify)".into())?;
        Ok(Self { group, changes, watched: RefCell::default() })
    }

    /// Marks those of a namespace, below the folder that will be its root if there is one.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub(crate) fn watch(
        &self,
        visitor: &Visitor,
        namespace: &Namespace,
        future_root: Option<&Path>,
    ) -> Result<(), Error> {
        for program in visitor.find(namespace, future_root, FOLDERS, NAMES)? {
            // One that cannot be marked is one that cannot be read.
            if let Ok(Some(watch)) = self.mark(&program) {
                self.watched.borrow_mut().entry(watch).or_default().insert(namespace.id());
            }
        }
        Ok(())
    }

    /// Marks one, unless it is no regular file. Returns its watch.
    fn mark(&self, program: &OwnedFd) -> io::Result<Option<i32>> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(program)?.st_mode);
        if kind != FileType::RegularFile {
            return Ok(None);
        }
        // Marks take a description that can be read. To open a regular file has no effects.
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let readable = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mask = MaskFlags::FAN_OPEN_EXEC_PERM;
        self.group.mark(MarkFlags::FAN_MARK_ADD, mask, &readable, None::<&Path>)?;
        let path = format!("/proc/self/fd/{}", readable.as_raw_fd());
        Ok(Some(inotify::add_watch(&self.changes, path, REPLACEMENTS)?))
    }

    /// Becomes readable when one of them may have been replaced.
    pub(crate) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// The namespaces where one may have been replaced.
    pub(crate) fn take_changes(&self) -> BTreeSet<FileId> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.changes.as_fd(), &mut buffer);
        let mut watched = self.watched.borrow_mut();
        let mut changed = BTreeSet::new();
        while let Ok(event) = reader.next() {
            if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                changed.extend(watched.values().flatten());
            } else if event.events().contains(inotify::ReadFlags::IGNORED) {
                changed.extend(watched.remove(&event.wd()).into_iter().flatten());
            } else {
                changed.extend(watched.get(&event.wd()).into_iter().flatten());
            }
        }
        changed
    }

    /// The processes that wait.
    pub(crate) fn take(&self) -> Vec<Started<'_>> {
        let events = self.group.read_events().unwrap_or_default();
        events.into_iter().map(|event| Started { event, group: &self.group }).collect()
    }
}

/// Whether a process executes one, or interprets one.
pub(crate) fn is_one(process: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{process}/exe"));
    let arguments = || whole::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    program.is_ok_and(|path| is_name_of_one(&path)) || is_interpreted(&arguments())
}

fn is_name_of_one(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| NAMES.contains(&name))
}

/// Whether these are the arguments of an interpreter for one that is a script. The kernel hands
/// the interpreter its first argument, if it has one, and then the script's path.
fn is_interpreted(arguments: &[u8]) -> bool {
    let mut arguments = arguments.split(|byte| *byte == 0).skip(1);
    let script = arguments.find(|argument| !argument.starts_with(b"-"));
    script.is_some_and(|script| {
        let script = Path::new(OsStr::from_bytes(script));
        let folder = script.parent().and_then(|folder| folder.to_str());
        folder.is_some_and(|folder| FOLDERS.contains(&folder)) && is_name_of_one(script)
    })
}

impl AsFd for PackageManagers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

impl Started<'_> {
    /// The process.
    pub(crate) fn process(&self) -> Option<u32> {
        u32::try_from(self.event.pid()).ok()
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.event.fd() {
            // It fails only if the process has been killed.
            let _ = self.group.write_response(FanotifyResponse::new(file, Response::FAN_ALLOW));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_a_package_manager_is_known_by_the_arguments_of_its_interpreter() {
        for (arguments, is_one) in [
            (&b"/usr/bin/python3\0/usr/bin/dnf\0install\0less\0"[..], true),
            (b"/usr/bin/python3\0-s\0/usr/local/bin/pip\0list\0", true),
            (b"/usr/bin/python3\0/usr/bin/server\0dnf\0", false),
            (b"vim\0dnf\0", false),
            (b"vim\0/home/me/dnf\0", false),
            (b"python3\0", false),
            (b"", false),
        ] {
            let text = String::from_utf8_lossy(arguments);
            assert_eq!(is_interpreted(arguments), is_one, "{text:?}");
        }
    }
}
