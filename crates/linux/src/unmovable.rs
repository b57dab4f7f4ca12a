//! Memory of a virtual machine that no call moves, by the descriptors of its process.

use serde::Serialize;
use std::{collections::BTreeSet, os::unix::fs::MetadataExt, path::Path};

/// Memory of a guest that stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Unmovable {
    /// Whether a VFIO device is attached, which pins all memory of the guest.
    pub vfio: bool,
    /// The size of its guest_memfd files, the memory of a confidential guest.
    pub guest_memfd_bytes: u64,
}

impl Unmovable {
    /// What a process holds; nothing if its descriptors cannot be read.
    pub(crate) fn of(process: &Path) -> Self {
        let mut found = Self::default();
        for descriptor in std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            let path = descriptor.path();
            let Ok(file) = std::fs::read_link(&path) else { continue };
            found.vfio |= file.starts_with("/dev/vfio");
            // `virt/kvm/guest_memfd.c` names its files `[kvm-gmem]`.
            if file.to_string_lossy().contains("[kvm-gmem]") {
                let bytes = std::fs::metadata(&path).map_or(0, |it| it.size());
                found.guest_memfd_bytes = found.guest_memfd_bytes.saturating_add(bytes);
            }
        }
        found
    }

    /// What several processes hold. A process may be named twice.
    pub(crate) fn of_all(processes: &[i32], proc: &Path) -> Self {
        let processes: BTreeSet<_> = processes.iter().collect();
        let each = processes.into_iter().map(|it| Self::of(&proc.join(it.to_string())));
        each.fold(Self::default(), |all, it| Self {
            vfio: all.vfio || it.vfio,
            guest_memfd_bytes: all.guest_memfd_bytes.saturating_add(it.guest_memfd_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn open_vfio_devices_and_guest_memfds_keep_memory_in_its_place() {
        let proc = tempfile::tempdir().unwrap();
        let folder = proc.path().join("7");
        let at = |name: &str| folder.join("fd").join(name);
        fs::create_dir_all(folder.join("fd")).unwrap();
        symlink("/dev/kvm", at("3")).unwrap();
        assert_eq!(Unmovable::of(&folder), Unmovable::default());
        symlink("/dev/vfio/17", at("4")).unwrap();
        assert!(Unmovable::of(&folder).vfio);
        // A link of that name, which leads to a file of three bytes here.
        let file = folder.join("anon_inode:[kvm-gmem]");
        fs::write(&file, "abc").unwrap();
        symlink(&file, at("5")).unwrap();
        symlink("/nowhere/[kvm-gmem]", at("6")).unwrap();
        assert_eq!(Unmovable::of(&folder), Unmovable { vfio: true, guest_memfd_bytes: 3 });
        assert_eq!(Unmovable::of_all(&[7, 7, 8], proc.path()), Unmovable::of(&folder));
    }
}
