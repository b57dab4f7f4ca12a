//! File systems, by the names that the kernel gives them.
//!
//! Some are served by a program or another machine (FUSE, NFS), which may have stopped. A process
//! that asks for a file there waits until it goes on. Writers wait for the helper's one thread, so
//! it asks such file systems nothing.

use crate::{
    file_id::FileId,
    mountinfo::{Mount, mounts},
    overlay::layers,
};
use nearside_linux::escape;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2},
    io::Errno,
};
use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

/// File systems whose files change without the kernel's knowledge, by the magic numbers of
/// `include/uapi/linux/magic.h` and of their own headers.
const FOREIGN: &[(u64, &str)] = &[
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x517b, "smb"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x7375_7245, "coda"),
    (0x7461_636f, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x0bd0_0bd0, "lustre"),
    (0x786f_4256, "vboxsf"),
    (0x564c, "ncp"),
];

/// Those of local file systems, for messages.
const LOCAL: &[(u64, &str)] = &[
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0x794c_7630, "overlay"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x7371_7368, "squashfs"),
    (0xe0f5_e1e2, "erofs"),
    (0x9660, "iso9660"),
    (0x4d44, "vfat"),
];

/// Whether files of this type of file system change without the kernel's knowledge. Types have
/// versions and relatives (`nfs4`, `smb3`, `fuseblk`, `fuse.sshfs`).
pub(crate) fn is_foreign(kind: &str) -> bool {
    const FAMILIES: [&str; 4] = ["nfs", "smb", "fuse", "virtiofs"];
    let is_one_of = |families: &[&str]| families.iter().any(|family| kind.starts_with(family));
    is_one_of(&FAMILIES) || FOREIGN.iter().any(|(_, foreign)| *foreign == kind)
}

/// The mount of a file in the namespace of this thread, of process 1 or of `client`, which may have
/// sent the file; none if none of them has it mounted. Asks the file system nothing.
///
/// # Errors
/// Those of `statx(2)`.
pub(crate) fn mount_of(file: &impl AsFd, client: Option<u32>) -> io::Result<Option<Mount>> {
    let number = file.as_fd().as_raw_fd();
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{number}"));
    let about = about.unwrap_or_default();
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    let device = FileId::of(file)?.device;
    let mut all = Vec::new();
    let client = client.map(|client| client.to_string());
    for process in ["thread-self", "1"].into_iter().chain(client.as_deref()) {
        let text = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        all.extend(mounts(&text));
    }
    // Files of btrfs have devices of their own, which no mount has. A mount that is attached
    // nowhere is in no list.
    let found = all.iter().position(|mount| Some(mount.id) == id);
    let found = found.or_else(|| all.iter().position(|mount| mount.device == device));
    Ok(found.map(|found| all.swap_remove(found)))
}

/// The type that statfs(2) tells. The file system is asked.
pub(crate) fn told_kind(file: &impl AsFd) -> rustix::io::Result<String> {
    let magic = fstatfs(file)?.f_type.cast_unsigned();
    let known = FOREIGN.iter().chain(LOCAL).find(|(known, _)| *known == magic);
    Ok(known.map_or_else(|| format!("type {magic:#x}"), |(_, name)| (*name).into()))
}

/// Why an overlay is foreign, too: a layer that lies on a foreign file system.
pub(crate) fn foreign_layer(overlay: &Mount) -> Option<String> {
    let mounts = mounts(&fs::read("/proc/1/mountinfo").unwrap_or_default());
    let layers = layers(&overlay.options).ok()?;
    layers.iter().find_map(|layer| {
        let kind = foreign_kind(&mounts, layer, host_root())?;
        Some(format!("{} lies on {kind}", escape::text(layer)))
    })
}

/// Opens a path below `root` as openat2(2) does, if that asks nothing of a foreign file system.
/// `mountinfo` tells the mounts of the namespace where this thread or the process lives whose root
/// the path starts at, and `absolute` is the path there.
///
/// # Errors
/// Those of `openat2(2)`; [`is_unasked`] tells the error of a path that was not opened.
pub(crate) fn open_unasked(
    root: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
    absolute: &Path,
    mountinfo: impl FnOnce() -> io::Result<Vec<u8>>,
) -> io::Result<OwnedFd> {
    // What the kernel has in memory needs no question.
    match openat2(&root, path, flags, Mode::empty(), resolve | ResolveFlags::CACHED) {
        Err(Errno::AGAIN) => {}
        done => return done.map_err(io::Error::from),
    }
    let mounts = mounts(&mountinfo()?);
    if let Some(kind) = foreign_kind(&mounts, absolute, host_root()) {
        let why = format!("it lies on {kind}, which may not answer");
        return Err(io::Error::new(io::ErrorKind::HostUnreachable, why));
    }
    openat2(&root, path, flags, Mode::empty(), resolve).map_err(io::Error::from)
}

/// Whether a path was not opened, since a file system would have been asked.
pub(crate) fn is_unasked(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::HostUnreachable && error.raw_os_error().is_none()
}

/// The type of a foreign file system on the way of a path. That of the host's root does not count:
/// all of the host waits for it.
pub(crate) fn foreign_kind<'a>(
    mounts: &'a [Mount],
    path: &Path,
    host_root: Option<u64>,
) -> Option<&'a str> {
    let mut on_the_way = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    on_the_way
        .find(|mount| is_foreign(&mount.kind) && Some(mount.device) != host_root)
        .map(|mount| mount.kind.as_str())
}

/// The device of the host's root.
pub(crate) fn host_root() -> Option<u64> {
    FileId::at(Path::new("/proc/1/root")).ok().map(|root| root.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, open};

    #[test]
    fn network_and_fuse_file_systems_are_foreign_in_all_their_versions() {
        let foreign = ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuseblk", "fuse.sshfs"];
        assert!(foreign.into_iter().chain(["virtiofs", "ceph", "lustre"]).all(is_foreign));
        assert!(!["ext4", "xfs", "btrfs", "tmpfs", "overlay", "erofs"].into_iter().any(is_foreign));
    }

    #[test]
    fn a_foreign_file_system_on_the_way_counts_and_one_beside_it_does_not() {
        let found = mounts(
            b"22 1 0:30 / / rw - nfs4 boot:/ rw\n\
            40 22 0:42 / /srv/share rw - nfs4 host:/ rw\n\
            41 40 0:43 / /srv/share/tmp rw - tmpfs tmpfs rw\n\
            42 22 0:44 / /usr/lib64 rw - fuse.sshfs host: rw\n",
        );
        let root = rustix::fs::makedev(0, 30);
        let kind = |path: &str| foreign_kind(&found, Path::new(path), Some(root));
        assert_eq!(kind("/srv/share/a.so"), Some("nfs4"));
        assert_eq!(kind("/srv/share/tmp/a.so"), Some("nfs4"), "its folders are looked up there");
        assert_eq!(kind("/usr/lib64/a.so"), Some("fuse.sshfs"));
        assert_eq!(kind("/usr/lib/a.so"), None);
        assert_eq!(kind("/srv/shared/a.so"), None);
        let elsewhere = foreign_kind(&found, Path::new("/srv/shared/a.so"), None);
        assert_eq!(elsewhere, Some("nfs4"), "the root of a container, not of the host");
    }

    #[test]
    fn a_path_that_is_not_in_memory_is_opened_unless_a_foreign_file_system_is_on_its_way() {
        let folder = tempfile::tempdir().unwrap();
        let open_at = |name: &str, mountinfo: &str| {
            let path = folder.path().join(name);
            let mountinfo = || Ok(mountinfo.as_bytes().to_vec());
            open_unasked(CWD, &path, OFlags::PATH, ResolveFlags::empty(), &path, mountinfo)
        };
        fs::write(folder.path().join("text"), "text").unwrap();
        open_at("text", "").unwrap();
        let nothing = open_at("nothing", "").unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::NotFound);
        assert!(!is_unasked(&nothing));
    }

    #[test]
    fn the_type_of_a_file_is_that_of_its_mount() {
        let proc = open("/proc/self/status", OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(mount_of(&proc, None).unwrap().map(|mount| mount.kind).as_deref(), Some("proc"));
        let nowhere = rustix::fs::memfd_create("text", rustix::fs::MemfdFlags::empty()).unwrap();
        assert_eq!(mount_of(&nowhere, None).unwrap(), None);
    }
}
