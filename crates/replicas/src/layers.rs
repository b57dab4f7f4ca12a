//! The layers of an overlay (`Documentation/filesystems/overlayfs.rst`).
//!
//! The kernel breaks the lease on a file of an overlay for those who open it through that mount. It
//! does not for those who write to the file below it, in a layer. So the file of each layer is
//! leased, too.

use crate::{
    file_id::FileId,
    file_system::host_root,
    mountinfo::Mount,
    original::{Original, Version, check},
    overlay::{check_layers, layers},
    walk::{FILE, Links, walk},
};
use nearside_linux::escape;
use nearside_policy::replication::Bar;
use rustix::{
    fs::{CWD, Mode, ResolveFlags, fstat, fstatfs, openat2},
    io::Errno,
    mount::{OpenTreeFlags, open_tree},
};
use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
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
/// # Errors
/// Why it cannot have copies: for one, the file that the overlay shows is in none of the layers as
/// they are named. Something is mounted over that layer, or the overlay follows a renamed folder.
/// Others may write to the file by another name.
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
    check_layers(&mount).map_err(unknown)?;
    let mut has_topmost = false;
    for layer in layers(&mount.options).map_err(unknown)? {
        // Podman names its layers by links.
        let named = |error| unknown(format!("{}: {error}", escape::text(&layer)));
        let path = std::fs::canonicalize(&layer).map_err(named)?.join(&inside);
        let Some(below) = open(&path)? else { continue };
        let seen = fstat(&below).map_err(text)?;
        if FileId::from(&seen) == FileId::from(&stat) {
            if !has_topmost {
                let layer = escape::text(&layer);
                return Err(unknown(format!("the overlay is mounted over {layer}")));
            }
            continue;
        }
        let is_topmost = !std::mem::replace(&mut has_topmost, true);
        collect(&below, &path, depth - 1, found)?;
        let differs = is_topmost && Version::from(&seen) != Version::from(&stat);
        let differs = differs.then_some(path);
        found.push(Below { file: below, id: FileId::from(&seen), differs });
    }
    match has_topmost {
        true => Ok(()),
        false => Err(unknown("none of them has the file under its name".into())),
    }
}

/// The mount in which `path` names `file`.
fn mount_of(path: &Path, file: FileId) -> io::Result<Mount> {
    let root = rustix::fs::open("/", FILE, Mode::empty())?;
    let mountinfo = || std::fs::read("/proc/thread-self/mountinfo");
    let there = walk(root, path, Links::Refused, host_root(), mountinfo)?;
    match FileId::of(&there.file)? == file {
        true => Ok(there.mount),
        false => Err(io::Error::other("its place names another file")),
    }
}

const EXACTLY: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// A regular file by a mount of its own; none if there is none.
fn open(path: &Path) -> Result<Option<File>, Bar> {
    let failed = |error: io::Error| unknown(format!("{}: {error}", escape::text(path)));
    let there = match openat2(CWD, path, FILE, Mode::empty(), EXACTLY) {
        Ok(there) => there,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(failed(error.into())),
    };
    match check(&there, None).map_err(failed)? {
        // The overlay shows an empty one, too.
        Ok(()) | Err(Bar::Empty) => {}
        // A white-out, or a folder that a file above it hides.
        Err(Bar::NotRegular { .. }) => return Ok(None),
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

#[cfg(test)]
mod tests {
    use super::*;

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
