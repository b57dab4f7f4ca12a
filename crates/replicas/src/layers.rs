//! The layers of an overlay (`Documentation/filesystems/overlayfs.rst`).
//!
//! The kernel breaks the lease on a file of an overlay for those who open it through that mount. It
//! does not for those who write to the file below it, in a layer. So the file of each layer is
//! leased, too.

use crate::{
    file_id::FileId,
    mountinfo::{self, Mount, unescaped},
    original::{Original, Version, check},
};
use nearside_linux::escape;
use nearside_policy::replication::Bar;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat2},
    io::Errno,
    mount::{OpenTreeFlags, open_tree},
};
use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

/// `OVERLAYFS_SUPER_MAGIC` of `include/uapi/linux/magic.h`.
const OVERLAY: i64 = 0x794c_7630;

/// An overlay may be a layer of one other (`FILESYSTEM_MAX_STACK_DEPTH`).
const MAX_DEPTH: usize = 2;

/// A file in a layer.
struct Below {
    file: File,
    id: FileId,
    /// Its path if it is the topmost one and has another content than the overlay shows.
    differs: Option<PathBuf>,
}

/// The files below the original: those of all layers with a regular file at its place, visible or
/// not. Empty on other file systems. To be called where the host's mounts are seen.
///
/// A layer that the overlay is mounted over has no name any more, and so no writers of its own.
///
/// # Errors
/// Why it cannot have copies.
pub(crate) fn below(original: &Original) -> Result<Vec<File>, Bar> {
    Ok(look(original)?.into_iter().map(|below| below.file).collect())
}

/// Whether the files below the original are those that [`below`] has found, which are leased. A
/// writer may have brought the file to another layer, or have truncated it during the look.
///
/// # Errors
/// Why it cannot have copies: the topmost file is not the one that the overlay shows.
pub(crate) fn are_those_leased(original: &Original) -> Result<bool, Bar> {
    let version = || Version::of(&original.file).map_err(|error| unknown(error.to_string()));
    let before = version()?;
    let found = look(original)?;
    if version()? != before {
        return Ok(false);
    }
    let leased: io::Result<Vec<_>> = original.layers.iter().map(FileId::of).collect();
    if !leased.is_ok_and(|leased| leased.iter().eq(found.iter().map(|below| &below.id))) {
        return Ok(false);
    }
    match found.into_iter().find_map(|below| below.differs) {
        Some(path) => Err(unknown(format!("{} is another file", escape::text(path)))),
        None => Ok(true),
    }
}

fn unknown(why: String) -> Bar {
    Bar::Layers { why }
}

fn look(original: &Original) -> Result<Vec<Below>, Bar> {
    let mut found = Vec::new();
    collect(&original.file, &original.place.on_host(), MAX_DEPTH, &mut found)?;
    Ok(found)
}

fn collect(file: &File, path: &Path, depth: usize, found: &mut Vec<Below>) -> Result<(), Bar> {
    let text = |error: Errno| unknown(io::Error::from(error).to_string());
    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    let kind = fstatfs(file).map_err(text)?.f_type as i64;
    if kind != OVERLAY {
        return Ok(());
    }
    if depth == 0 {
        return Err(unknown("it lies on too many overlays".into()));
    }
    let stat = fstat(file).map_err(text)?;
    let mount = mount_of(path, FileId::from(&stat)).map_err(|error| unknown(error.to_string()))?;
    let inside = path.strip_prefix(&mount.point).unwrap_or(path);
    let inside = mount.root.strip_prefix("/").unwrap_or(&mount.root).join(inside);
    let mut is_first = true;
    for layer in layers(&mount.options).map_err(unknown)? {
        // Podman names its layers by links.
        let named = |error| unknown(format!("{}: {error}", escape::text(&layer)));
        let path = std::fs::canonicalize(&layer).map_err(named)?.join(&inside);
        let Some(below) = open(&path)? else { continue };
        let seen = fstat(&below).map_err(text)?;
        if FileId::from(&seen) == FileId::from(&stat) {
            continue;
        }
        let is_topmost = std::mem::take(&mut is_first);
        collect(&below, &path, depth - 1, found)?;
        let differs = is_topmost && Version::from(&seen) != Version::from(&stat);
        let differs = differs.then_some(path);
        found.push(Below { file: below, id: FileId::from(&seen), differs });
    }
    Ok(())
}

/// The mount in which `path` names `file`.
fn mount_of(path: &Path, file: FileId) -> io::Result<Mount> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let there = openat2(CWD, path, flags, Mode::empty(), EXACTLY)?;
    if FileId::of(&there)? != file {
        return Err(io::Error::other("its place names another file"));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = openat2(CWD, "/proc/thread-self", flags, Mode::empty(), ResolveFlags::empty())?;
    mountinfo::mount_of(own, there)
}

const EXACTLY: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// A regular file by a mount of its own; none if there is none.
fn open(path: &Path) -> Result<Option<File>, Bar> {
    let failed = |error: io::Error| unknown(format!("{}: {error}", escape::text(path)));
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let there = match openat2(CWD, path, flags, Mode::empty(), EXACTLY) {
        Ok(there) => there,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(failed(error.into())),
    };
    match check(&there).map_err(|error| failed(error.into()))? {
        Ok(()) => {}
        // A white-out, or a folder that a file above it hides.
        Err(Bar::NotRegular { .. } | Bar::Empty) => return Ok(None),
        Err(bar) => return Err(bar),
    }
    let detached: OwnedFd = open_tree(
        &there,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH,
    )
    .unwrap_or(there);
    let number = detached.as_raw_fd();
    File::open(format!("/proc/thread-self/fd/{number}")).map(Some).map_err(failed)
}

/// The folders of an overlay's options, the topmost first.
fn layers(options: &[u8]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for option in options.split(|byte| *byte == b',') {
        let Some(at) = option.iter().position(|byte| *byte == b'=') else { continue };
        let value = unescaped(&option[at + 1..]);
        match &option[..at] {
            b"upperdir" => _ = found.splice(..0, split(&value, None)),
            b"lowerdir" => found.extend(split(&value, Some(b':'))),
            b"lowerdir+" | b"datadir+" => found.push(value),
            _ => {}
        }
    }
    match found.iter().find(|layer| !layer.is_absolute()) {
        Some(layer) => Err(format!("the layer {} has a relative path", escape::text(layer))),
        None if found.is_empty() => Err("its mount names none".into()),
        None => Ok(found),
    }
}

/// Paths with a separator between them, in which a backslash takes the meaning from what follows.
/// Two separators come before layers of data.
fn split(value: &Path, separator: Option<u8>) -> Vec<PathBuf> {
    let mut paths = vec![Vec::new()];
    let mut bytes = value.as_os_str().as_bytes().iter();
    while let Some(byte) = bytes.next() {
        match (byte, paths.last_mut()) {
            (b'\\', Some(path)) => path.push(*bytes.next().unwrap_or(byte)),
            (byte, _) if Some(*byte) == separator => paths.push(Vec::new()),
            (_, Some(path)) => path.push(*byte),
            (_, None) => {}
        }
    }
    paths.retain(|path| !path.is_empty());
    paths.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layers_are_read_from_the_options_of_the_mount() {
        let table: [(&str, &[&str]); 6] = [
            ("rw,lowerdir=/a:/b,upperdir=/u,workdir=/w,uuid=on", &["/u", "/a", "/b"]),
            ("ro,lowerdir+=/a:x,lowerdir+=/b,datadir+=/d", &["/a:x", "/b", "/d"]),
            ("ro,lowerdir=/a::/d", &["/a", "/d"]),
            // A colon is escaped for overlayfs, whose backslash and commas are for mountinfo.
            (r"ro,lowerdir=/a\134:x:/b\054y\040z", &["/a:x", "/b,y z"]),
            (r"rw,upperdir=/u\134\134:v,lowerdir=/a", &[r"/u\:v", "/a"]),
            (r"rw,lowerdir=/a\134", &[r"/a\"]),
        ];
        for (options, expected) in table {
            let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(layers(options.as_bytes()), Ok(expected), "{options}");
        }
        for options in ["rw", "rw,lowerdir=", "rw,lowerdir=l/A:l/B,upperdir=1/diff", "upperdir="] {
            assert!(layers(options.as_bytes()).is_err(), "{options}");
        }
    }

    proptest! {
        #[test]
        fn escaped_paths_are_read_as_they_were(names: Vec<Vec<u8>>, rest: Vec<u8>) {
            let names: Vec<_> = names.into_iter().filter(|name| !name.contains(&0)).collect();
            let path = |name: &[u8]| PathBuf::from(OsString::from_vec([b"/", name].concat()));
            let mut options = b"rw,lowerdir=".to_vec();
            for name in &names {
                options.extend(b"/");
                for byte in name {
                    if b":\\".contains(byte) {
                        options.extend(b"\\134");
                    }
                    options.extend(format!("\\{byte:03o}").bytes());
                }
                options.extend(b":");
            }
            let expected: Vec<_> = names.iter().map(|name| path(name)).collect();
            prop_assert_eq!(layers(&options).unwrap_or_default(), expected);
            // The rest of any mount's options is no reason to panic.
            let _ = layers(&[options, b",upperdir=".into(), rest].concat());
        }
    }

    #[test]
    fn a_file_elsewhere_has_no_layers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "x").unwrap();
        let mut found = Vec::new();
        let file = File::open(&path).unwrap();
        if fstatfs(&file).unwrap().f_type != OVERLAY {
            collect(&file, &path, MAX_DEPTH, &mut found).unwrap();
        }
        assert!(found.is_empty());
    }
}
