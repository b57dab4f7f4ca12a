//! File systems, by the names that the kernel gives them.
//!
//! Some are served by a program or another machine (FUSE, NFS), which may have stopped. A process
//! that asks for a file there waits until it goes on. Writers wait for the helper's one thread, so
//! it asks such file systems nothing.

use crate::{
    file_id::FileId,
    mountinfo::{Mount, mount_with, mounts},
    whole,
};
use rustix::fs::fstatfs;
use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
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

/// Others, which have no known number, or share one. The last one writes to the files of another
/// file system, whose lease does not hold for it.
const NAMES: [&str; 8] =
    ["ncpfs", "beegfs", "gpfs", "pvfs2", "vmhgfs", "prl_fs", "orangefs", "ecryptfs"];

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
    let is_known = NAMES.contains(&kind) || FOREIGN.iter().any(|(_, foreign)| *foreign == kind);
    is_one_of(&FAMILIES) || is_known
}

/// Whether the kernel makes up the files of this type of file system when they are read.
pub(crate) fn is_generated(kind: &str) -> bool {
    const KINDS: [&str; 14] = [
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "securityfs",
        "configfs",
        "efivarfs",
        "bpf",
        "pstore",
        "binfmt_misc",
        "resctrl",
        "selinuxfs",
    ];
    KINDS.contains(&kind)
}

/// Whether a file system of this type may leave a question unanswered.
pub(crate) fn may_be_silent(kind: &str) -> bool {
    is_foreign(kind) || kind == "autofs"
}

/// The mount of a file as the first of these processes has it; none if none of them has. Asks the
/// file system nothing.
pub(crate) fn mount_of(file: &impl AsFd, processes: &[&str]) -> Option<Mount> {
    let number = file.as_fd().as_raw_fd();
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{number}")).ok()?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    let read = |process: &&str| whole::read(format!("/proc/{process}/mountinfo")).ok();
    // A mount that is attached nowhere is in no list, but another one of its file system may be.
    processes.iter().filter_map(read).find_map(|text| mount_with(&text, id?)).or_else(|| {
        let device = FileId::of(file).ok()?.device;
        let mut all = processes.iter().filter_map(read).flat_map(|text| mounts(&text));
        all.find(|mount| mount.device == device)
    })
}

/// The type that statfs(2) tells. The file system is asked.
pub(crate) fn told_kind(file: &impl AsFd) -> rustix::io::Result<String> {
    let magic = fstatfs(file)?.f_type.cast_unsigned();
    let known = FOREIGN.iter().chain(LOCAL).find(|(known, _)| *known == magic);
    Ok(known.map_or_else(|| format!("type {magic:#x}"), |(_, name)| (*name).into()))
}

/// The device of the host's root. To be asked in a namespace of the host.
pub(crate) fn host_root() -> Option<u64> {
    FileId::at(Path::new("/proc/1/root")).ok().map(|root| root.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};

    #[test]
    fn network_and_fuse_file_systems_are_foreign_in_all_their_versions() {
        let foreign = ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuseblk", "fuse.sshfs"];
        let others = ["virtiofs", "ceph", "lustre", "beegfs", "ecryptfs", "vboxsf"];
        assert!(foreign.into_iter().chain(others).all(is_foreign));
        assert!(!["ext4", "xfs", "btrfs", "tmpfs", "overlay", "erofs"].into_iter().any(is_foreign));
    }

    #[test]
    fn the_type_of_a_file_is_that_of_its_mount() {
        let proc = open("/proc/self/status", OFlags::PATH, Mode::empty()).unwrap();
        let processes = ["thread-self", "1"];
        let mount = mount_of(&proc, &processes).unwrap();
        assert_eq!(mount.kind, "proc");
        let nowhere = rustix::fs::memfd_create("text", rustix::fs::MemfdFlags::empty()).unwrap();
        assert_eq!(mount_of(&nowhere, &processes), None);
    }
}
