//! Segments of a process as `/proc/PID/maps` and `/proc/PID/smaps` show them (`show_map_vma` and
//! `show_smap_vma_flags` in `fs/proc/task_mmu.c`).

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, BufRead},
    ops::Range,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// The unit of mappings on x86-64, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// A file as `/proc/PID/maps` names it. On btrfs and overlayfs the device is another one than
/// `stat(2)` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapsFile {
    /// The major number of the device.
    pub major: u32,
    /// The minor number of the device.
    pub minor: u32,
    /// The inode.
    pub inode: u64,
}

impl MapsFile {
    /// Whether it is a file. Some file systems have an inode 0, none a device 0:0.
    pub(crate) fn is_one(&self) -> bool {
        self.inode != 0 || self.major != 0 || self.minor != 0
    }
}

/// The protection of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protection {
    /// Its bytes may be read.
    pub read: bool,
    /// Its bytes may be written.
    pub write: bool,
    /// Its bytes may be executed.
    pub execute: bool,
}

/// One mapping of a process, with one protection and one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its addresses, from the first to the one behind the last.
    pub addresses: Range<u64>,
    /// Its protection.
    pub protection: Protection,
    /// True if a write would reach the file (`MAP_SHARED`).
    pub shared: bool,
    /// The place in the file of its first byte.
    pub offset_bytes: u64,
    /// Its file; `None` for anonymous memory and the kernel's own.
    pub file: Option<MapsFile>,
    /// Its name: a path, or the kernel's word (`[vdso]`). Ends in ` (deleted)` if the file has lost
    /// its name.
    pub name: Option<PathBuf>,
}

impl Segment {
    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.addresses.end.saturating_sub(self.addresses.start)
    }

    /// True if the kernel gave it this name, `[vdso]` for example.
    pub fn is_named(&self, name: &str) -> bool {
        self.name.as_deref() == Some(Path::new(name))
    }
}

/// Reads `/proc/PID/maps`. Names need not be UTF-8. Lines that the kernel would not write are left
/// out.
pub fn maps(text: &[u8]) -> Vec<Segment> {
    text.split(|&byte| byte == b'\n').filter_map(segment).collect()
}

fn segment(line: &[u8]) -> Option<Segment> {
    let (addresses, rest) = word(line)?;
    let (protection, rest) = word(rest)?;
    let (offset, rest) = word(rest)?;
    let (device, rest) = word(rest)?;
    let (inode, rest) = word(rest)?;
    let addresses = range(addresses)?;
    let (start, end) = (addresses.start, addresses.end);
    let offset_bytes = hexadecimal(offset)?;
    // No file reaches past the largest offset.
    offset_bytes.checked_add(end - start)?;
    let (major, minor) = split(device, b':')?;
    let file = MapsFile {
        major: u32::try_from(hexadecimal(major)?).ok()?,
        minor: u32::try_from(hexadecimal(minor)?).ok()?,
        inode: text(inode)?.parse().ok()?,
    };
    let &[read, write, execute, sharing] = protection else { return None };
    let name = rest.trim_ascii_start();
    Some(Segment {
        addresses,
        protection: Protection {
            read: flag(read, b'r')?,
            write: flag(write, b'w')?,
            execute: flag(execute, b'x')?,
        },
        shared: match sharing {
            b's' => true,
            b'p' => false,
            _ => return None,
        },
        offset_bytes,
        file: file.is_one().then_some(file),
        name: (!name.is_empty()).then(|| PathBuf::from(OsString::from_vec(unescaped(name)))),
    })
}

/// The first word of a line, and the rest behind one space.
fn word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    let (word, rest) = line.split_at_checked(end)?;
    (!word.is_empty()).then(|| (word, rest.get(1..).unwrap_or_default()))
}

fn range(word: &[u8]) -> Option<Range<u64>> {
    let (start, end) = split(word, b'-')?;
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    (start < end && start % PAGE_BYTES == 0 && end % PAGE_BYTES == 0).then_some(start..end)
}

fn split(word: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let middle = word.iter().position(|&byte| byte == at)?;
    Some((word.get(..middle)?, word.get(middle + 1..)?))
}

fn text(word: &[u8]) -> Option<&str> {
    // `parse` would take a sign.
    let is_plain = word.iter().all(u8::is_ascii_alphanumeric);
    std::str::from_utf8(word).ok().filter(|_| is_plain)
}

fn hexadecimal(word: &[u8]) -> Option<u64> {
    u64::from_str_radix(text(word)?, 16).ok()
}

fn flag(byte: u8, set: u8) -> Option<bool> {
    match byte {
        b'-' => Some(false),
        _ if byte == set => Some(true),
        _ => None,
    }
}

/// The kernel writes a line end within a name as `\012` and nothing else so (`seq_path`).
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, behind)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(behind) => {
                plain.push(b'\n');
                rest = behind;
            }
            None => {
                plain.push(first);
                rest = behind;
            }
        }
    }
    plain
}

/// Properties of a segment that a new mapping has to keep, or that forbid one: the kernel's
/// `VmFlags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Properties {
    /// Locked into memory (`mlock`).
    pub locked: bool,
    /// Locked as its pages come in (`MLOCK_ONFAULT`).
    pub locked_on_fault: bool,
    /// Takes no swap reservation (`MAP_NORESERVE`).
    pub no_reserve: bool,
    /// The advice given with `madvise`.
    pub advice: Advice,
    /// The reason why the segment must not be changed, in a few words.
    pub unchangeable: Option<&'static str>,
}

/// Advice that `madvise` keeps with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Advice {
    /// `MADV_HUGEPAGE`
    pub huge_pages: bool,
    /// `MADV_NOHUGEPAGE`
    pub no_huge_pages: bool,
    /// `MADV_DONTFORK`
    pub no_fork: bool,
    /// `MADV_DONTDUMP`
    pub no_dump: bool,
    /// `MADV_RANDOM`
    pub random: bool,
    /// `MADV_SEQUENTIAL`
    pub sequential: bool,
    /// `MADV_MERGEABLE`
    pub mergeable: bool,
}

/// Reads the properties of the segments below `end` from `/proc/PID/smaps`, by their addresses (the
/// first, and the one behind the last). Little is read beyond: the kernel looks at each page of a
/// segment before it writes of it.
///
/// # Errors
/// Those of reading.
pub fn properties(
    mut smaps: impl BufRead,
    end: u64,
) -> io::Result<BTreeMap<(u64, u64), Properties>> {
    let mut all = BTreeMap::new();
    let mut current = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        if smaps.read_until(b'\n', &mut line)? == 0 {
            return Ok(all);
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        if let Some(segment) = segment(line) {
            if segment.addresses.start >= end {
                return Ok(all);
            }
            let key = (segment.addresses.start, segment.addresses.end);
            all.insert(key, Properties::default());
            current = Some(key);
            continue;
        }
        let Some(properties) = current.and_then(|key| all.get_mut(&key)) else { continue };
        if let Some(words) = line.strip_prefix(b"VmFlags:") {
            words.split(|&byte| byte == b' ').for_each(|flag| add(properties, flag));
        } else if let Some(key) = line.strip_prefix(b"ProtectionKey:")
            && key.trim_ascii() != b"0"
        {
            properties.unchangeable = Some("it has a protection key");
        }
    }
}

fn add(properties: &mut Properties, flag: &[u8]) {
    let advice = &mut properties.advice;
    match flag {
        b"lo" => properties.locked = true,
        b"lf" => properties.locked_on_fault = true,
        b"nr" => properties.no_reserve = true,
        b"hg" => advice.huge_pages = true,
        b"nh" => advice.no_huge_pages = true,
        b"dc" => advice.no_fork = true,
        b"dd" => advice.no_dump = true,
        b"rr" => advice.random = true,
        b"sr" => advice.sequential = true,
        b"mg" => advice.mergeable = true,
        b"sl" => properties.unchangeable = Some("it is sealed (mseal)"),
        b"um" | b"uw" | b"ui" => properties.unchangeable = Some("userfaultfd watches it"),
        b"ht" => properties.unchangeable = Some("it consists of explicit huge pages"),
        b"pf" | b"io" | b"de" => properties.unchangeable = Some("it is a device's memory"),
        _ => {}
    }
}

#[cfg(test)]
#[path = "maps_tests.rs"]
mod tests;
