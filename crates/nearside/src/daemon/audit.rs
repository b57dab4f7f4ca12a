//! The audit log: requests for changes, refused ones included, one JSON object a line, in a file
//! for root alone.

use super::{access::Caller, snapshot::Change};
use crate::output;
use rustix::{
    fs::{FileType, Mode, OFlags, RawMode, Stat},
    io::Errno,
};
use serde::Serialize;
use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Write permission for the group and for others.
const OTHERS_WRITE: RawMode = 0o022;
/// The bit of a folder whose entries only their owners may replace, as in `/tmp`.
const STICKY: RawMode = 0o1000;

/// The log's file. Lines that cannot be written are counted, and the first is reported. A full disk
/// must neither end the daemon nor prevent a change.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    file: Option<File>,
    /// Whether the last line broke off because the disk was full.
    torn: bool,
    /// Whether the loss of lines was reported. It is reported once until a line is written again.
    reported: bool,
    lost: u64,
}

/// A line.
#[derive(Debug, Serialize)]
pub struct Entry<'a> {
    /// Milliseconds since 1970.
    time_unix_ms: u64,
    uid: u32,
    gid: u32,
    pid: Option<i32>,
    /// The request.
    method: &'a str,
    path: &'a str,
    /// The change; `None` if the request was refused before its change was known.
    change: Option<ChangeJson<'a>>,
    /// The answer.
    status: u16,
    error: Option<&'a str>,
}

/// A change with sets as arrays, as everywhere in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
enum ChangeJson<'a> {
    SetAffinity {
        domain: &'a str,
        cell: Option<nearside_policy::CellId>,
        nodes: Vec<nearside_topology::NodeId>,
        affinity: Option<nearside_policy::Affinity>,
    },
    Release {
        domain: &'a str,
    },
}

impl<'a> Entry<'a> {
    /// A line for an answer to `caller` at this moment.
    pub fn new(
        caller: &Caller,
        method: &'a str,
        path: &'a str,
        change: Option<&'a Change>,
        status: u16,
        error: Option<&'a str>,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let change = change.map(|change| match change {
            Change::SetAffinity { domain, cell, nodes, affinity } => ChangeJson::SetAffinity {
                domain,
                cell: *cell,
                nodes: nodes.iter().collect(),
                affinity: *affinity,
            },
            Change::Release { domain } => ChangeJson::Release { domain },
        });
        Self {
            time_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            uid: caller.uid,
            gid: caller.gid,
            pid: caller.pid,
            method,
            path,
            change,
            status,
            error,
        }
    }
}

impl AuditLog {
    /// The log at `path`. A missing folder is created. If the file cannot be opened, each line
    /// tries again.
    pub fn new(path: &Path) -> Self {
        let mut log = Self { path: path.into(), file: None, torn: false, reported: false, lost: 0 };
        log.reopen(path);
        log
    }

    /// Continues in the file that is now at `path`: logs may have been rotated, or the
    /// configuration changed.
    pub fn reopen(&mut self, path: &Path) {
        self.path = path.into();
        self.torn = false;
        self.file = open(path).map_err(|error| self.report(&error)).ok();
    }

    /// As [`reopen`](Self::reopen), at the log's own path.
    pub fn reopen_here(&mut self) {
        let path = self.path.clone();
        self.reopen(&path);
    }

    /// Adds a line.
    pub fn write(&mut self, entry: &Entry<'_>) {
        if let Err(error) = self.try_write(entry) {
            self.lost = self.lost.saturating_add(1);
            self.report(&error);
        } else {
            self.reported = false;
        }
    }

    /// Number of lines that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn try_write(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let mut line = if self.torn { b"\n".to_vec() } else { Vec::new() };
        serde_json::to_writer(&mut line, entry)?;
        line.push(b'\n');
        let file = match &mut self.file {
            Some(file) => file,
            missing => missing.insert(open(&self.path)?),
        };
        // One call, so that a program that follows the file reads whole lines.
        let written = file.write(&line)?;
        self.torn = written < line.len() && (written > 0 || self.torn);
        if written < line.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn report(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.reported, true) {
            output::note([format!(
                "audit log {}: {error}: changes are made and not recorded",
                self.path.display()
            )]);
        }
    }
}

/// Opens the file to add lines. A link is not followed. Anything but a regular file is refused
/// without waiting (a pipe may have no reader), and so is a file that another user prepared, or
/// could replace.
fn open(path: &Path) -> io::Result<File> {
    let above = folder_of(path);
    if !above.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    let folder = open_folder(above)?;
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK;
    let private = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(&folder, name_of(path)?, flags, private)?;
    refuse_others(&rustix::fs::fstat(&file)?)?;
    rustix::fs::fchmod(&file, private)?;
    Ok(fs::File::from(file))
}

/// Refuses a file at `path` to which the daemon would not add lines. A missing file is fine, and so
/// is one that this user cannot look at: the daemon's user may.
///
/// # Errors
/// The reason.
pub(super) fn check(path: &Path) -> Result<(), String> {
    // A descriptor for nothing but the file's state: no permission is needed, no pipe is waited
    // for, and nothing is created.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let checked = || {
        let folder = open_folder(folder_of(path))?;
        let file = rustix::fs::openat(&folder, name_of(path)?, flags, Mode::empty())?;
        refuse_others(&rustix::fs::fstat(&file)?)
    };
    checked().or_else(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::ACCESS) => Ok(()),
        _ => Err(format!("audit.log: {}: {error}", path.display())),
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn name_of(path: &Path) -> io::Result<&OsStr> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "expected the name of a file");
    path.file_name().ok_or_else(no_name)
}

/// Opens the folder of the file. A folder in which another user could replace the file is refused.
/// The folders above it are not looked at.
fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty())?;
    let meta = rustix::fs::fstat(&opened)?;
    let own = rustix::process::geteuid().as_raw();
    let mode = meta.st_mode & 0o7777;
    let why = if meta.st_uid != 0 && meta.st_uid != own {
        format!("belongs to user {}", meta.st_uid)
    } else if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        format!("may be written by others (mode {mode:o})")
    } else {
        return Ok(opened);
    };
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "the folder {} {why}, so another user could replace the file: give the log a folder of \
             its own, such as /var/log/nearside",
            folder.display()
        ),
    ))
}

/// Refuses a file that another user could have written to, or could write to later.
fn refuse_others(meta: &Stat) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let mode = meta.st_mode & 0o7777;
    let why = if FileType::from_raw_mode(meta.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file"));
    } else if meta.st_uid != 0 && meta.st_uid != own {
        format!("it belongs to user {}", meta.st_uid)
    } else if mode & OTHERS_WRITE != 0 {
        format!("other users may write to it (mode {mode:o})")
    } else if meta.st_nlink != 1 {
        format!("it has {} names, and another user may have given it one", meta.st_nlink)
    } else {
        return Ok(());
    };
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{why}: lines in it cannot be trusted. Find out which user made it, then remove it: it \
             will be made anew"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{NodeId, NodeSet};
    use std::os::unix::fs::PermissionsExt;

    fn caller() -> Caller {
        Caller { uid: 1000, gid: 100, groups: Vec::new(), pid: Some(7) }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_line_has_caller_time_change_and_outcome() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nearside/audit.log");
        let mut log = AuditLog::new(&path);
        let nodes = NodeSet::from([NodeId(0), NodeId(2)]);
        let change = Change::SetAffinity { domain: "db".into(), cell: None, nodes, affinity: None };
        log.write(&Entry::new(&caller(), "PUT", "/domains/db/affinity", Some(&change), 200, None));
        log.write(&Entry::new(
            &caller(),
            "DELETE",
            "/domains/a%0Ab/affinity",
            None,
            403,
            Some("may not\nchange"),
        ));

        let lines = lines(&path);
        assert_eq!(
            lines[0]["change"],
            serde_json::json!({
                "do": "set-affinity", "domain": "db", "cell": null, "nodes": [0, 2],
                "affinity": null,
            })
        );
        assert_eq!(
            (&lines[0]["uid"], &lines[0]["pid"], &lines[0]["status"]),
            (&1000.into(), &7.into(), &200.into())
        );
        assert!(lines[0]["time_unix_ms"].as_u64() > Some(1_500_000_000_000));
        assert_eq!(
            (&lines[1]["change"], &lines[1]["error"]),
            (&serde_json::Value::Null, &"may not\nchange".into())
        );
        assert_eq!(lines.len(), 2);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_existing_file_is_continued_and_made_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        fs::write(&path, "{}\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let mut log = AuditLog::new(&path);
        log.write(&Entry::new(&caller(), "PUT", "/", None, 404, None));
        assert_eq!(lines(&path).len(), 2);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        // logrotate moves the file away and has the daemon reload.
        fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        log.reopen(&path);
        log.write(&Entry::new(&caller(), "PUT", "/", None, 404, None));
        assert_eq!(lines(&path).len(), 1);
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let mut log = AuditLog::new(Path::new("/dev/full"));
        assert!(log.file.is_none());
        // In place of a file: each write ends with ENOSPC.
        log.file = Some(File::options().append(true).open("/dev/full").unwrap());
        for _ in 0..3 {
            log.write(&Entry::new(&caller(), "PUT", "/", None, 200, None));
        }
        assert_eq!((log.lost(), log.reported), (3, true));
    }

    #[test]
    fn a_file_that_another_user_prepared_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["group", "others", "twice", "theirs", "own"] {
            fs::write(path(name), "").unwrap();
        }
        let set_mode =
            |name, mode| fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        set_mode("group", 0o660);
        set_mode("others", 0o602);
        fs::hard_link(path("twice"), path("second name")).unwrap();
        let mut cases = vec![("group", "mode 660"), ("others", "mode 602"), ("twice", "2 names")];
        // Only root can give a file away.
        if std::os::unix::fs::chown(path("theirs"), Some(12_345), None).is_ok() {
            cases.push(("theirs", "belongs to user 12345"));
        }
        for (name, why) in cases {
            let before = fs::metadata(path(name)).unwrap().permissions();
            for error in
                [open(&path(name)).unwrap_err().to_string(), check(&path(name)).unwrap_err()]
            {
                assert!(error.contains(why), "{name}: {error}");
            }
            assert_eq!(fs::metadata(path(name)).unwrap().permissions(), before, "{name}");
        }
        check(&path("own")).unwrap();
        check(&path("none")).unwrap();
        let mut log = AuditLog::new(&path("group"));
        log.write(&Entry::new(&caller(), "PUT", "/", None, 200, None));
        assert_eq!((log.lost(), fs::read(path("group")).unwrap().len()), (1, 0));
    }

    #[test]
    fn a_folder_in_which_another_user_could_replace_the_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for (name, mode, is_safe) in
            [("own", 0o755, true), ("sticky", 0o1777, true), ("group", 0o775, false)]
        {
            let folder = root.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let path = folder.join("audit.log");
            assert_eq!(check(&path).is_ok(), is_safe, "{name}");
            assert_eq!(open(&path).is_ok(), is_safe, "{name}");
            if !is_safe {
                let error = check(&path).unwrap_err();
                assert!(error.contains("may be written by others (mode 775)"), "{error}");
                assert!(!path.exists(), "{name}");
            }
        }
    }

    #[test]
    fn links_and_pipes_are_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("audit.log"));
        fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut log = AuditLog::new(&link);
        log.write(&Entry::new(&caller(), "PUT", "/", None, 200, None));
        assert_eq!((log.lost(), fs::read(&target).unwrap().len()), (1, 0));

        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(open(&pipe).is_err());
    }
}
