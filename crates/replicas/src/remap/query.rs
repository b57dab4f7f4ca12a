//! Segments of a process by `PROCMAP_QUERY` (Linux 6.11, `do_procmap_query` in
//! `fs/proc/task_mmu.c`). It takes a third of the time of the text of `/proc/PID/maps`, whose
//! paths the kernel has to find and this crate to read.

use super::maps::{MapsFile, Protection, Segment, maps};
use crate::{
    sys::{self, SegmentQuery},
    whole,
};
use rustix::io::Errno;
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Seek},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Room for the kernel's words, such as `[vdso]`.
const WORD_BYTES: usize = 128;

/// The segments of the process or thread with this folder below `/proc`, by address. Those of files
/// may lack their names. None if it has no memory (any more).
///
/// # Errors
/// Those of opening and reading `maps` there.
pub(crate) fn segments_at(folder: &Path) -> io::Result<Vec<Segment>> {
    let mut file = File::open(folder.join("maps"))?;
    match queried(&file) {
        Ok(segments) => Ok(segments),
        Err(_) => {
            file.rewind()?;
            Ok(maps(&whole::whole(file)?))
        }
    }
}

fn queried(maps: &File) -> Result<Vec<Segment>, Errno> {
    let mut segments = Vec::new();
    let mut address = 0;
    loop {
        let found = match sys::segment_from(maps, address, &mut []) {
            Ok((found, _)) => found,
            Err(Errno::NOENT) => return Ok(segments),
            Err(error) => return Err(error),
        };
        address = found.end;
        let mut segment = segment(&found);
        if segment.file.is_none() && segment.protection.execute {
            segment.name = word_at(maps, found.start);
        }
        segments.push(segment);
    }
}

fn segment(found: &SegmentQuery) -> Segment {
    let [read, write, execute, shared] = [1, 2, 4, 8].map(|flag| found.protection & flag != 0);
    let file = MapsFile { major: found.major, minor: found.minor, inode: found.inode };
    Segment {
        addresses: found.start..found.end,
        protection: Protection { read, write, execute },
        shared,
        offset_bytes: found.offset_bytes,
        file: file.is_one().then_some(file),
        name: None,
    }
}

/// The kernel's word for the segment at an address. A longer name is none of its words.
fn word_at(maps: &File, address: u64) -> Option<PathBuf> {
    let mut word = [0; WORD_BYTES];
    let (_, bytes) = sys::segment_from(maps, address, &mut word).ok()?;
    let word = word.get(..bytes).filter(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(word).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that changes none of its mappings.
    fn asleep() -> std::process::Child {
        let mut command = std::process::Command::new("cat");
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It answers once it has mapped all that it needs.
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        io::Write::write_all(&mut to, b"x").unwrap();
        io::Read::read_exact(&mut from, &mut [0]).unwrap();
        child.stdin = Some(to);
        child
    }

    #[test]
    fn queries_and_the_text_of_maps_tell_the_same() {
        let mut child = asleep();
        let folder = PathBuf::from(format!("/proc/{}", child.id()));
        let mut told = maps(&whole::read(folder.join("maps")).unwrap());
        // The text has a line for a page of the kernel's (`gate_vma`).
        told.retain(|segment| !segment.is_named("[vsyscall]"));
        assert!(told.iter().any(|it| it.is_named("[vdso]")));
        for segment in &mut told {
            let is_named = segment.file.is_none() && segment.protection.execute;
            segment.name = segment.name.take().filter(|_| is_named);
        }
        match queried(&File::open(folder.join("maps")).unwrap()) {
            Ok(found) => assert_eq!(found, told),
            Err(error) => {
                assert_eq!(error, Errno::NOTTY);
                eprintln!("skipped: this kernel is older than Linux 6.11");
            }
        }
        let mut either = segments_at(&folder).unwrap();
        either.retain(|segment| !segment.is_named("[vsyscall]"));
        assert_eq!(either.len(), told.len());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_without_memory_has_no_segments() {
        let mut child = asleep();
        child.kill().unwrap();
        // It stays a zombie until it is waited for.
        let folder = PathBuf::from(format!("/proc/{}", child.id()));
        let is_zombie = || {
            let text = std::fs::read_to_string(folder.join("stat")).unwrap();
            text.contains(") Z ")
        };
        while !is_zombie() {
            std::thread::yield_now();
        }
        assert!(segments_at(&folder).map_or(true, |segments| segments.is_empty()));
        child.wait().unwrap();
        assert!(segments_at(&folder).is_err());
    }
}
