//! Executable mappings of files, and the file systems that have them.

use crate::escape;
use nearside_policy::text::FileId;
use std::{collections::BTreeMap, ffi::OsStr, ops::Range, os::unix::ffi::OsStrExt};

/// The source of the file systems that hold copies of text. A copy is not moved: its node is the
/// reason that it exists.
pub const COPIES_SOURCE: &str = "nearside-text";

/// An executable mapping of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Its addresses.
    pub(super) addresses: Range<u64>,
    /// The offset of its first byte in the file.
    pub(super) offset: u64,
    pub(super) id: FileId,
    /// As text: see [`escape`].
    pub(super) path: String,
}

impl Segment {
    /// Its offsets in the file.
    pub(super) fn extent(&self) -> Range<u64> {
        let bytes = self.addresses.end - self.addresses.start;
        self.offset..self.offset.saturating_add(bytes)
    }
}

/// The executable mappings of files in the content of `/proc/PID/maps`.
pub(super) fn executable(maps: &[u8]) -> Vec<Segment> {
    maps.split(|&byte| byte == b'\n').filter_map(segment).collect()
}

/// `7f30c0200000-7f30c0400000 r-xp 00028000 08:02 1027    /usr/lib/libc.so.6`
fn segment(line: &[u8]) -> Option<Segment> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut next = || str::from_utf8(words.next()?).ok();
    let (start, end) = next()?.split_once('-')?;
    let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
    let addresses = hexadecimal(start)?..hexadecimal(end)?;
    let is_executable = next()?.as_bytes().get(2) == Some(&b'x');
    let offset = hexadecimal(next()?)?;
    let (major, minor) = next()?.split_once(':')?;
    let number = |word: &str| u32::from_str_radix(word, 16).ok();
    let inode = next()?.parse().ok()?;
    let id = FileId { major: number(major)?, minor: number(minor)?, inode };
    let path = path_of(words.next().unwrap_or_default());
    let is_file = inode != 0 && path.starts_with(b"/");
    (is_executable && is_file && addresses.start < addresses.end).then(|| Segment {
        addresses,
        offset,
        id,
        path: escape::text(OsStr::from_bytes(&path)),
    })
}

/// The path at the end of a line, behind blanks. The kernel writes line feeds as `\012`, and this
/// alone (`show_map_vma` in `fs/proc/task_mmu.c`).
fn path_of(rest: &[u8]) -> Vec<u8> {
    const LINE_FEED: &[u8] = b"\\012";
    let mut rest = rest.trim_ascii_start();
    let mut path = Vec::with_capacity(rest.len());
    while let Some(at) = rest.windows(LINE_FEED.len()).position(|window| window == LINE_FEED) {
        path.extend(rest.get(..at).unwrap_or_default());
        path.push(b'\n');
        rest = rest.get(at + LINE_FEED.len()..).unwrap_or_default();
    }
    path.extend(rest);
    path
}

/// Whether pages of a file system may move, by its device.
#[derive(Debug, Default)]
pub(super) struct FileSystems(BTreeMap<(u32, u32), bool>);

impl FileSystems {
    /// True if the mounts of a process have to tell what a device without a block device is.
    pub(super) fn is_unknown(&self, file: FileId) -> bool {
        file.major == 0 && !self.0.contains_key(&(0, file.minor))
    }

    /// Adds the file systems of `/proc/PID/mountinfo`.
    pub(super) fn learn(&mut self, mountinfo: &str) {
        self.0.extend(mountinfo.lines().filter_map(system));
    }

    /// False for copies of text, huge pages, and file systems that are mounted nowhere: the
    /// kernel's own for shared memory, and copies that are going.
    pub(super) fn may_move(&self, file: FileId) -> bool {
        file.major != 0 || self.0.get(&(0, file.minor)) == Some(&true)
    }
}

/// `36 35 0:41 / /mnt rw,noatime master:1 - tmpfs nearside-text rw`
fn system(line: &str) -> Option<((u32, u32), bool)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    let mut words = file_system.split(' ');
    let (kind, source) = (words.next()?, words.next()?);
    let may_move = kind != "hugetlbfs" && !(kind == "tmpfs" && source == COPIES_SOURCE);
    Some(((major.parse().ok()?, minor.parse().ok()?), may_move))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0e3200000-55d0e3228000 r--p 00000000 08:02 1027                       /usr/bin/db
55d0e3228000-55d0e3400000 r-xp 00028000 08:02 1027                       /usr/bin/db
7f0000000000-7f0000010000 r-xs 00001000 00:2b 18446744073709551615       /srv/a b (deleted)
7f0000020000-7f0000030000 rwxp 00000000 00:00 0 
7f0000040000-7f0000050000 r-xp 00000000 00:01 5                          /memfd:jit (deleted)
7ffd1b3f2000-7ffd1b3f4000 r-xp 00000000 00:00 0                          [vdso]
7f0000060000-7f0000050000 r-xp 00000000 08:02 5                          /backwards
nonsense
";

    #[test]
    fn executable_mappings_of_files_are_found() {
        let found = executable(MAPS.as_bytes());
        let id = |major, minor, inode| FileId { major, minor, inode };
        let segment = |addresses, offset, id, path: &str| Segment {
            addresses,
            offset,
            id,
            path: path.to_owned(),
        };
        assert_eq!(
            found,
            [
                segment(0x55d0_e322_8000..0x55d0_e340_0000, 0x28000, id(8, 2, 1027), "/usr/bin/db"),
                segment(
                    0x7f00_0000_0000..0x7f00_0001_0000,
                    0x1000,
                    id(0, 0x2b, u64::MAX),
                    "/srv/a b (deleted)"
                ),
                segment(0x7f00_0004_0000..0x7f00_0005_0000, 0, id(0, 1, 5), "/memfd:jit (deleted)"),
            ]
        );
        assert_eq!(found[0].extent(), 0x28000..0x20_0000);
    }

    #[test]
    fn files_may_have_any_name() {
        for (path, expected) in [
            (&b"/srv/\xff"[..], r"/srv/\xff"),
            (br"/srv/\xff", r"/srv/\x5cxff"),
            (br"/srv/a\012b", "/srv/a\nb"),
            (b"/srv/ \"a\r", "/srv/ \"a\r"),
        ] {
            let line = [b"1000-2000 r-xp 00000000 08:02 7    ", path, b"\n"].concat();
            let found = executable(&[&line, MAPS.as_bytes()].concat());
            assert_eq!(found.first().map(|it| it.path.as_str()), Some(expected));
            assert_eq!(found.len(), 4, "the other mappings are found, too");
        }
    }

    #[test]
    fn copies_and_file_systems_without_a_mount_stay() {
        let mut systems = FileSystems::default();
        let file = |major, minor| FileId { major, minor, inode: 1 };
        assert!(systems.is_unknown(file(0, 43)) && !systems.is_unknown(file(8, 2)));
        systems.learn(
            "36 35 0:43 / / rw,noatime master:1 - overlay overlay rw\n\
             37 36 0:44 /x /usr/bin/db ro - tmpfs nearside-text rw\n\
             38 36 0:45 / /tmp rw - tmpfs tmpfs rw\n\
             39 36 0:46 / /dev/hugepages rw - hugetlbfs hugetlbfs rw\n\
             nonsense",
        );
        let moves = [file(8, 2), file(0, 43), file(0, 44), file(0, 45), file(0, 46), file(0, 1)];
        let moves = moves.map(|file| systems.may_move(file));
        assert_eq!(moves, [true, true, false, true, false, false]);
        assert!(!systems.is_unknown(file(0, 44)) && systems.is_unknown(file(0, 1)));
    }
}
