//! A process from outside: what it maps and has open, and the facts that decide whether it may be
//! changed.

use super::{
    descriptors::{Descriptor, fdinfo},
    error::RemapError,
    maps::{MapsFile, Properties, Segment, maps, properties},
    pagemap::{ENTRY_BYTES, Parts, entries, parts},
    query::segments_at,
    refusal::{Facts, Operation, Refusal, Sharer},
};
use crate::{
    file_id::FileId,
    file_system::host_root,
    sys,
    walk::{Links, walk},
    whole,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufReader, Read},
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::{Path, PathBuf},
};

/// One file as a process sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Views {
    /// Its segments of the file, by address.
    pub segments: Vec<Segment>,
    /// Its descriptors of the file, by number.
    pub descriptors: Vec<Descriptor>,
}

/// A process that cannot be confused with a later one of the same number.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    pidfd: OwnedFd,
}

impl Process {
    /// Holds on to the process that has this number now.
    ///
    /// # Errors
    /// [`Refusal::Gone`] if there is none, [`Refusal::NotAProcess`] if it is a thread's.
    pub fn open(pid: i32) -> Result<Self, RemapError> {
        let refused = |why| RemapError::Refused { pid, why };
        // Zero and negative numbers stand for groups of processes.
        let number = (pid > 0).then(|| Pid::from_raw(pid)).flatten();
        let number = number.ok_or(refused(Refusal::Gone))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|error| match error {
            rustix::io::Errno::SRCH => refused(Refusal::Gone),
            rustix::io::Errno::INVAL | rustix::io::Errno::NOENT => refused(Refusal::NotAProcess),
            source => RemapError::Trace { pid, what: "pidfd_open", source: source.into() },
        })?;
        Ok(Self { pid, pidfd })
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// True until the process ends. What was read of it before is then its own, and not that of a
    /// later process with its number: the kernel frees a number only after that.
    pub fn is_alive(&self) -> bool {
        let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut watched, Some(&now)), Ok(0))
    }

    /// A file as the process sees it.
    ///
    /// # Errors
    /// [`RemapError::Refused`] if it has ended or the caller may not look.
    pub fn views(&self, file: FileId) -> Result<Views, RemapError> {
        let mut files = Files::to_exchange(Operation::Attach);
        let mut segments = self.segments()?;
        segments.retain(|segment| files.of(self, segment) == Some(file));
        let descriptors = self.descriptors(&BTreeSet::from([file]))?;
        let descriptors = descriptors.into_iter().map(|(_, descriptor)| descriptor).collect();
        if !self.is_alive() {
            return Err(self.refused(Refusal::Gone));
        }
        Ok(Views { segments, descriptors })
    }

    /// All its segments, by address.
    pub(crate) fn segments(&self) -> Result<Vec<Segment>, RemapError> {
        self.read("maps").map(|text| maps(&text))
    }

    /// All its segments, by address. Those of files may lack their names, which saves much time.
    pub(crate) fn segments_without_names(&self) -> Result<Vec<Segment>, RemapError> {
        segments_at(&self.path("")).map_err(|error| self.reading("maps", error))
    }

    /// The properties of its segments below an address.
    pub(crate) fn properties(
        &self,
        end: u64,
    ) -> Result<BTreeMap<(u64, u64), Properties>, RemapError> {
        let smaps = BufReader::new(self.open_file("smaps")?);
        properties(smaps, end).map_err(|error| self.reading("smaps", error))
    }

    /// Its descriptors of some files, by number.
    pub(crate) fn descriptors(
        &self,
        files: &BTreeSet<FileId>,
    ) -> Result<Vec<(FileId, Descriptor)>, RemapError> {
        let folder = self.path("fd");
        let mut numbers: Vec<u32> = fs::read_dir(&folder)
            .map_err(|error| self.reading("fd", error))?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        // One may be closed while this reads, which leaves no descriptor to care for.
        let descriptor = |number: u32| {
            let path = folder.join(number.to_string());
            let file = FileId::at(&path).ok().filter(|file| files.contains(file))?;
            let text = self.read(&format!("fdinfo/{number}")).ok()?;
            Some((file, fdinfo(number, &text)?))
        };
        Ok(numbers.into_iter().filter_map(descriptor).collect())
    }

    /// The file that a descriptor of the process refers to.
    pub(crate) fn file_at_descriptor(&self, number: u64) -> io::Result<FileId> {
        FileId::at(&self.path(&format!("fd/{number}")))
    }

    /// The file that a path shows in the mount namespace and root of the process.
    pub(crate) fn file_at(&self, path: &Path) -> io::Result<FileId> {
        // Absolute symbolic links on the way start at that root, too.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(self.path("root"), flags, Mode::empty())?;
        let mountinfo = || whole::read(self.path("mountinfo"));
        FileId::of(walk(root, path, Links::Followed, host_root(), mountinfo)?.file)
    }

    /// The owners of the pages of a segment.
    pub(crate) fn parts(&self, segment: &Segment) -> Result<Parts, RemapError> {
        let file = self.open_file("pagemap")?;
        let pages = segment.bytes() / super::maps::PAGE_BYTES;
        let mut bytes = vec![0; usize::try_from(pages * ENTRY_BYTES).unwrap_or(0)];
        let at = segment.addresses.start / super::maps::PAGE_BYTES * ENTRY_BYTES;
        file.read_exact_at(&mut bytes, at).map_err(|error| self.reading("pagemap", error))?;
        Ok(parts(segment.addresses.start, &entries(&bytes)))
    }

    /// Its threads.
    pub(crate) fn threads(&self) -> Result<Vec<i32>, RemapError> {
        let threads = fs::read_dir(self.path("task"))
            .map_err(|error| self.reading("task", error))?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(threads.collect())
    }

    /// The facts that decide whether it may be changed.
    ///
    /// # Errors
    /// [`RemapError::Refused`] if it has ended or the caller may not look.
    pub fn facts(&self) -> Result<Facts, RemapError> {
        let mut facts = self.facts_of_threads()?;
        self.add_program(&mut facts)?;
        self.find_sharers(&mut facts)?;
        Ok(facts)
    }

    /// Those that its threads tell, and the width of its words.
    pub(crate) fn facts_of_threads(&self) -> Result<Facts, RemapError> {
        let mut facts =
            Facts { is_own: u32::try_from(self.pid) == Ok(std::process::id()), ..Facts::default() };
        let main = Status::read(&self.read("status")?);
        facts.has_memory = main.has_memory;
        facts.locks_memory = main.locks_memory;
        facts.parent = main.parent;
        facts.is_ended = matches!(main.state, b'Z' | b'X');
        if !facts.has_program() {
            return Ok(facts);
        }
        let others = self.threads()?.into_iter().filter(|thread| *thread != self.pid);
        // A thread that has ended meanwhile matters no more.
        let read = |thread| self.read(&format!("task/{thread}/status")).ok();
        let others = others.filter_map(read).map(|text| Status::read(&text));
        for status in std::iter::once(main).chain(others) {
            facts.has_seccomp |= status.has_seccomp;
            facts.waits_uninterruptibly |= status.state == b'D';
            facts.tracer = facts.tracer.or(status.tracer);
        }
        facts.is_64_bit = self.is_64_bit()?;
        Ok(facts)
    }

    /// The others that it tells itself.
    pub(crate) fn add_program(&self, facts: &mut Facts) -> Result<(), RemapError> {
        if !facts.has_program() {
            return Ok(());
        }
        if facts.is_64_bit.is_none() {
            facts.is_64_bit = self.is_64_bit()?;
        }
        let personality = self.read("personality")?;
        let personality = std::str::from_utf8(&personality).unwrap_or_default();
        let bits = u32::from_str_radix(personality.trim(), 16).unwrap_or(0);
        facts.read_implies_exec = bits & libc::READ_IMPLIES_EXEC as u32 != 0;
        if !self.is_alive() {
            return Err(self.refused(Refusal::Gone));
        }
        Ok(())
    }

    /// Whether it is a 64-bit process. Its executable is not read, because the server of that file
    /// system may not answer. `None` if it has ended or is amid `execve`.
    fn is_64_bit(&self) -> Result<Option<bool>, RemapError> {
        let mut begin = [0; 8];
        match self.open_file("auxv")?.read_exact(&mut begin) {
            Ok(()) => Ok(begins_with_64_bits(begin)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(self.reading("auxv", error)),
        }
    }

    /// Whether it is in `vfork`, or was started so and has not executed its program yet.
    pub(crate) fn may_be_in_vfork(&self, facts: &Facts) -> bool {
        // Without an answer a look at all processes tells.
        let shares = |parent| sys::share_memory(self.pid, parent).unwrap_or(true);
        facts.waits_uninterruptibly || facts.parent.is_some_and(shares)
    }

    /// Looks for processes with the same address space among all of them.
    pub(crate) fn find_sharers(&self, facts: &mut Facts) -> Result<(), RemapError> {
        if !facts.has_program() {
            return Ok(());
        }
        match sys::share_memory(self.pid, self.pid) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                facts.sharers_unknown = true;
                return Ok(());
            }
            Err(error) => return Err(self.tracing("compare its memory with others'", error)),
        }
        let processes = fs::read_dir("/proc")
            .map_err(|source| RemapError::Read { path: "/proc".into(), source })?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        for other in processes.filter(|&other| other != self.pid) {
            // One that has ended, or may not be traced, is none of this process's children.
            if sys::share_memory(self.pid, other).unwrap_or(false) {
                let status = fs::read(format!("/proc/{other}/status")).unwrap_or_default();
                let is_child = Status::read(&status).parent == Some(self.pid);
                facts.sharer = Some(Sharer { pid: other, is_child });
                break;
            }
        }
        Ok(())
    }

    /// Opens one of its files below `/proc`.
    pub(crate) fn open_file(&self, name: &str) -> Result<File, RemapError> {
        File::open(self.path(name)).map_err(|error| self.reading(name, error))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, RemapError> {
        whole::read(self.path(name)).map_err(|error| self.reading(name, error))
    }

    /// The path of one of its files below `/proc`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    /// The error of this process for a reason to leave it alone.
    pub(crate) fn refused(&self, why: Refusal) -> RemapError {
        RemapError::Refused { pid: self.pid, why }
    }

    /// The error for a file below `/proc/PID` that cannot be read.
    fn reading(&self, name: &str, source: io::Error) -> RemapError {
        match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => self.refused(Refusal::NotPermitted {
                what: "read its mappings and descriptors",
                needs: "CAP_SYS_PTRACE",
            }),
            Some(libc::ESRCH) => self.refused(Refusal::Gone),
            Some(libc::ENOENT) if !self.has_memory() => self.refused(Refusal::Gone),
            _ => RemapError::Read { path: self.path(name), source },
        }
    }

    /// False once the process has given up its address space on its way to the end.
    pub(crate) fn has_memory(&self) -> bool {
        let status = fs::read(self.path("status")).unwrap_or_default();
        self.is_alive() && Status::read(&status).has_memory
    }

    /// The error for a request of `ptrace(2)` or the like that failed.
    pub(crate) fn tracing(&self, what: &'static str, source: io::Error) -> RemapError {
        // From SIGKILL on, a stopped thread counts as missing (`ptrace_check_attach` in
        // `kernel/ptrace.c`). Its pidfd tells later, and its memory, once given up, has 0 bytes
        // (`mem_rw` in `fs/proc/base.c`).
        let has_no_memory =
            matches!(source.kind(), io::ErrorKind::WriteZero | io::ErrorKind::UnexpectedEof);
        match source.raw_os_error() {
            Some(libc::ESRCH | libc::ECHILD) => self.refused(Refusal::Gone),
            None if has_no_memory => self.refused(Refusal::Gone),
            Some(libc::EPERM | libc::EACCES) => {
                self.refused(Refusal::NotPermitted { what, needs: "CAP_SYS_PTRACE" })
            }
            _ => RemapError::Trace { pid: self.pid, what, source },
        }
    }
}

/// The files of segments as `stat(2)` tells them, which `/proc/PID/maps` does not on btrfs and
/// overlayfs.
#[derive(Debug)]
pub(crate) struct Files {
    known: BTreeMap<MapsFile, FileId>,
    asks: bool,
}

impl Files {
    /// To find the files that an exchange begins with. Copies lie on a tmpfs, so the maps suffice.
    pub(crate) fn to_exchange(operation: Operation) -> Self {
        Self { known: BTreeMap::new(), asks: operation == Operation::Attach }
    }

    /// The file of a segment; `None` if it has none.
    pub(crate) fn of(&mut self, process: &Process, segment: &Segment) -> Option<FileId> {
        let file = segment.file?;
        let told =
            FileId { device: rustix::fs::makedev(file.major, file.minor), inode: file.inode };
        if !self.asks {
            return Some(told);
        }
        let known = self.known.entry(file).or_insert_with(|| {
            let (start, end) = (segment.addresses.start, segment.addresses.end);
            let link = process.path(&format!("map_files/{start:x}-{end:x}"));
            // Following these links takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
            FileId::at(&link).unwrap_or(told)
        });
        Some(*known)
    }
}

/// Whether an auxiliary vector has words of 64 bits (`create_elf_tables` in `fs/binfmt_elf.c`). The
/// first of its pairs has a small number other than 0 as its key, and a value other than 0, such as
/// the address of the vDSO. `None` if it is not filled yet.
fn begins_with_64_bits(begin: [u8; 8]) -> Option<bool> {
    match u64::from_ne_bytes(begin) {
        0 => None,
        first => Some(first <= u64::from(u32::MAX)),
    }
}

/// The needed lines of `/proc/PID/status`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    state: u8,
    parent: Option<i32>,
    tracer: Option<i32>,
    has_seccomp: bool,
    has_memory: bool,
    locks_memory: bool,
}

impl Status {
    fn read(text: &[u8]) -> Self {
        let mut status = Self::default();
        for line in text.split(|&byte| byte == b'\n') {
            // The name of a process need not be UTF-8.
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match name {
                "State" => status.state = value.bytes().next().unwrap_or(0),
                "PPid" => status.parent = value.parse().ok(),
                "TracerPid" => status.tracer = value.parse().ok().filter(|&pid| pid != 0),
                "Seccomp" => status.has_seccomp = value != "0",
                "VmSize" => status.has_memory = true,
                "VmLck" => status.locks_memory = value != "0 kB",
                _ => {}
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_gives_state_tracer_and_seccomp() {
        let text = b"Name:\t\xff:x\nState:\tD (disk sleep)\nPPid:\t3\nTracerPid:\t0\n\
            VmSize:\t 100 kB\nVmLck:\t       4 kB\nSeccomp:\t2\n";
        let status = Status {
            state: b'D',
            parent: Some(3),
            tracer: None,
            has_seccomp: true,
            has_memory: true,
            locks_memory: true,
        };
        assert_eq!(Status::read(text), status);
        assert_eq!(Status::read(b"TracerPid:\t44\n").tracer, Some(44));
        assert!(!Status::read(b"VmLck:\t       0 kB\n").locks_memory);
        assert_eq!(Status::read(b"no line\n"), Status::default());
    }

    #[test]
    fn the_first_pair_of_an_auxiliary_vector_tells_the_width_of_words() {
        // Key, then value: AT_SYSINFO_EHDR is 33, AT_HWCAP 16, AT_SYSINFO 32.
        assert_eq!(begins_with_64_bits(33_u64.to_ne_bytes()), Some(true));
        assert_eq!(begins_with_64_bits(16_u64.to_ne_bytes()), Some(true));
        assert_eq!(begins_with_64_bits([0; 8]), None, "amid execve");
        for (key, value) in [(32_u32, 0xf7f0_b5a0_u32), (16, 0x178b_fbff)] {
            let pair = [key.to_ne_bytes(), value.to_ne_bytes()].concat();
            assert_eq!(begins_with_64_bits(pair.try_into().unwrap()), Some(false), "{key}");
        }
    }

    #[test]
    fn a_process_sees_its_own_executable() {
        let own = Process::open(std::process::id() as i32).unwrap();
        let exe = std::env::current_exe().unwrap();
        let id = FileId::at(&exe).unwrap();
        let held = File::open(&exe).unwrap();
        let views = own.views(id).unwrap();
        assert!(views.segments.iter().any(|segment| segment.protection.execute));
        assert!(views.segments.iter().all(|segment| segment.name.as_ref() == Some(&exe)));
        assert_eq!(views.descriptors.len(), 1);
        assert_eq!(FileId::of(&held).unwrap(), id);
        assert_eq!(own.file_at(&exe).unwrap(), id);
        assert!(own.is_alive());
        assert!(own.facts().unwrap().is_own);
    }
}
