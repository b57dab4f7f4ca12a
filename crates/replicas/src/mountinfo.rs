//! `/proc/PID/mountinfo` (proc_pid_mountinfo(5)), whose paths need not be UTF-8.

use crate::whole;
use rustix::fs::{Mode, OFlags, openat};
use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{fd::AsFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
};

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its number.
    pub id: u64,
    /// The device of its files, as `st_dev`.
    pub device: u64,
    /// Its root within the file system.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// Whether set-user-ID and file capabilities are without effect there.
    pub is_nosuid: bool,
    /// Whether programs cannot be executed from there.
    pub is_noexec: bool,
    /// The peer group whose mounts see what is mounted below it, or no longer
    /// (mount_namespaces(7)); none if it is not shared.
    pub peers: Option<u64>,
    /// The type of its file system.
    pub kind: String,
    /// Its source, for example a disk.
    pub source: Vec<u8>,
    /// The options of its file system, still escaped.
    pub options: Vec<u8>,
}

/// A file of a folder, whole.
pub(crate) fn read_at(folder: impl AsFd, name: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    whole::whole(File::from(openat(folder, name, flags, Mode::empty())?))
}

/// The mounts of a `mountinfo`, in its order: a mount that lies on another comes later. A line that
/// is not understood is left out.
pub fn mounts(mountinfo: &[u8]) -> Vec<Mount> {
    mounts_of(mountinfo, |_| true)
}

/// The mounts of these lines alone.
pub(crate) fn mounts_of(mountinfo: &[u8], is_one: impl Fn(&[u8]) -> bool) -> Vec<Mount> {
    let lines = mountinfo.split(|byte| *byte == b'\n').filter(|line| is_one(line));
    lines.filter_map(mount).collect()
}

/// The mount of this number.
pub(crate) fn mount_with(mountinfo: &[u8], id: u64) -> Option<Mount> {
    let number = format!("{id} ");
    mounts_of(mountinfo, |line| line.starts_with(number.as_bytes())).pop()
}

fn mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let file_system = fields.iter().position(|field| *field == b"-")? + 1;
    let (major, minor) = text(fields.get(2)?)?.split_once(':')?;
    let is_set = |name: &[u8]| {
        fields.get(5).is_some_and(|flags| flags.split(|byte| *byte == b',').any(|it| it == name))
    };
    Some(Mount {
        id: text(fields.first()?)?.parse().ok()?,
        device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        root: unescaped(fields.get(3)?),
        point: unescaped(fields.get(4)?),
        is_nosuid: is_set(b"nosuid"),
        is_noexec: is_set(b"noexec"),
        peers: fields[..file_system]
            .iter()
            .find_map(|field| text(field)?.strip_prefix("shared:")?.parse().ok()),
        kind: text(fields.get(file_system)?)?.to_owned(),
        source: fields.get(file_system + 1)?.to_vec(),
        options: fields.get(file_system + 2)?.to_vec(),
    })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

/// A path in which blanks and backslashes are octal (`mangle_path` in `fs/seq_file.c`).
pub(crate) fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = match rest {
            [b'\\', digits @ ..] => digits
                .get(..3)
                .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()),
            _ => None,
        };
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &rest[4..] } else { tail };
    }
    Path::new(&OsString::from_vec(bytes)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_have_device_point_type_and_source() {
        let mountinfo = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 22 0:42 /a /usr/lib/my\\040lib.so ro,nodev,noexec - tmpfs nearside-text rw,size=1k\n\
            43 22 0:42 /c /short\n\n\
            44 22 0:x /c /number - tmpfs tmpfs rw\n";
        let found = mounts(mountinfo);
        let mount = |id, device, root: &str, point: &str, kind: &str, source: &[u8]| Mount {
            id,
            device,
            root: root.into(),
            point: point.into(),
            is_nosuid: false,
            is_noexec: id == 40,
            peers: (id == 22).then_some(1),
            kind: kind.into(),
            source: source.into(),
            options: if id == 22 { b"rw".into() } else { b"rw,size=1k".into() },
        };
        let expected = [
            mount(22, rustix::fs::makedev(8, 1), "/", "/", "ext4", b"/dev/sda1"),
            mount(
                40,
                rustix::fs::makedev(0, 42),
                "/a",
                "/usr/lib/my lib.so",
                "tmpfs",
                b"nearside-text",
            ),
        ];
        assert_eq!(found, expected);
        let by_number = |id| mount_with(mountinfo, id);
        assert_eq!([by_number(22), by_number(40)].map(Option::unwrap), expected);
        assert_eq!([4, 2, 44].map(by_number), [None, None, None]);
    }

    #[test]
    fn a_backslash_without_three_octal_digits_stays() {
        for (field, path) in [("\\04", "\\04"), ("\\999", "\\999"), ("\\040", " "), ("\\", "\\")] {
            assert_eq!(unescaped(field.as_bytes()), Path::new(path), "{field}");
        }
    }
}
