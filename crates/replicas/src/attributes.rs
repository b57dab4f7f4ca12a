//! Attributes that a copy takes over from its original.

use crate::file_id::Identity;
use nearside_policy::replication::Bar;
use rustix::{
    fs::{
        Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, fchmod, fchown, fgetxattr, flistxattr,
        fremovexattr, fsetxattr, fstat, futimens, getxattr,
    },
    io::Errno,
};
use std::{
    ffi::{CStr, CString, OsString},
    fs::File,
    io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// The longest value of an extended attribute (`XATTR_SIZE_MAX`), and the longest list of names
/// (`XATTR_LIST_MAX` of `include/uapi/linux/limits.h`).
const MAX_BYTES: usize = 65_536;

/// Room for the longest path (`PATH_MAX`), and for an identity in front of it.
const MAX_NOTE_BYTES: usize = 4096 + 256;

/// The attribute of a copy that names its original. Mounts do not tell it of a copy that processes
/// map after its mount has gone. Only processes with `CAP_SYS_ADMIN` see and change it (xattr(7)).
const ORIGINAL: &CStr = c"trusted.nearside.original";

/// Why attributes could not be copied.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No copy can have them.
    Barred(Bar),
    /// A call failed.
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

/// Gives `copy` the owner, mode, capabilities, further extended attributes and times of `original`.
///
/// The owner comes first, since a change of it takes set-user-ID and capabilities away (chown(2)).
/// Without a change of it, a copy in use keeps both throughout.
pub(crate) fn copy(original: &File, copy: &File) -> Result<(), Failure> {
    let stat = fstat(original)?;
    let now = fstat(copy)?;
    let is_owner = (now.st_uid, now.st_gid) == (stat.st_uid, stat.st_gid);
    if !is_owner {
        fchown(copy, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    }
    if !is_owner || now.st_mode != stat.st_mode {
        fchmod(copy, Mode::from_raw_mode(stat.st_mode))?;
    }
    let names = attribute_names(original)?;
    let is_own = |name: &&CString| name.as_c_str() != ORIGINAL && !names.contains(name);
    for name in attribute_names(copy)?.iter().filter(is_own) {
        fremovexattr(copy, name.as_c_str())?;
    }
    let mut value = vec![0; MAX_BYTES];
    for name in &names {
        let name = name.as_c_str();
        let length = match fgetxattr(original, name, value.as_mut_slice()) {
            Ok(length) => length,
            // It has gone since.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error.into()),
        };
        fsetxattr(copy, name, &value[..length], XattrFlags::empty()).map_err(|error| {
            let name = name.to_string_lossy().into_owned();
            Failure::Barred(Bar::Attribute { name, error: io::Error::from(error).to_string() })
        })?;
    }
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    futimens(copy, &times)?;
    Ok(())
}

/// Notes which file a copy is of, and the path under which namespaces see it. Where a tmpfs has no
/// extended attributes (`CONFIG_TMPFS_XATTR`) nothing is noted.
///
/// # Errors
/// For want of memory.
pub(crate) fn note_original(copy: &File, original: Identity, path: &Path) -> io::Result<()> {
    let mut value = serde_json::to_vec(&original).map_err(io::Error::other)?;
    value.push(b'\n');
    value.extend(path.as_os_str().as_bytes());
    match fsetxattr(copy, ORIGINAL, &value, XattrFlags::empty()) {
        Ok(()) | Err(Errno::NOTSUP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The noted file and path, if the file at `place` is a copy. A link of `/proc` leads to a file
/// without opening it.
pub(crate) fn noted_original(place: &Path) -> Option<(Identity, PathBuf)> {
    let mut value = vec![0; MAX_NOTE_BYTES];
    let length = getxattr(place, ORIGINAL, value.as_mut_slice()).ok()?;
    value.truncate(length);
    let end = value.iter().position(|byte| *byte == b'\n')?;
    let path = OsString::from_vec(value.split_off(end + 1));
    Some((serde_json::from_slice(&value).ok()?, path.into()))
}

/// The names of a file's extended attributes.
fn attribute_names(file: &File) -> io::Result<Vec<CString>> {
    let mut names = vec![0; MAX_BYTES];
    let length = match flistxattr(file, names.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}
