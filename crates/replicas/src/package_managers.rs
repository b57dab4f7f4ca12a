//! Package managers that start inside domains. They replace files, which the kernel refuses with
//! `EBUSY` while a copy is mounted over one in the same namespace. So the kernel asks before it
//! executes one (fanotify(7), `FAN_OPEN_EXEC_PERM`), and copies leave the namespace first.

use crate::{
    error::{Error, IoContext},
    namespace::{Namespace, Visitor},
};
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyEvent, FanotifyResponse, InitFlags, MarkFlags, MaskFlags,
    Response,
};
use rustix::fs::{FileType, Mode, OFlags, open};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
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

/// A group of marks on package managers.
#[derive(Debug)]
pub(crate) struct PackageManagers {
    group: Fanotify,
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
        Ok(Self { group })
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
            let _ = self.mark(&program);
        }
        Ok(())
    }

    fn mark(&self, program: &OwnedFd) -> io::Result<()> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(program)?.st_mode);
        if kind != FileType::RegularFile {
            return Ok(());
        }
        // Marks take a description that can be read. To open a regular file has no effects.
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let readable = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mask = MaskFlags::FAN_OPEN_EXEC_PERM;
        self.group.mark(MarkFlags::FAN_MARK_ADD, mask, readable, None::<&Path>)?;
        Ok(())
    }

    /// The processes that wait.
    pub(crate) fn take(&self) -> Vec<Started<'_>> {
        let events = self.group.read_events().unwrap_or_default();
        events.into_iter().map(|event| Started { event, group: &self.group }).collect()
    }
}

/// Whether a process executes one.
pub(crate) fn is_one(process: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{process}/exe"));
    program.is_ok_and(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| NAMES.contains(&name))
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
