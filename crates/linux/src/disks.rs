//! The block devices behind the names by which a virtual machine's XML calls its disks.

use nearside_libvirt::{IothreadId, Iothreads};
use std::{fs, path::Path};

/// The most devices below a device: a volume of many disks has no single node anyway.
const MAX_DEVICES: usize = 64;

/// Puts the host's own names in place of links (`/dev/disk/by-id/...`, `/dev/vg/volume`), and the
/// disks of a volume (`/sys/block/dm-0/slaves`) in place of the volume. Names that lead nowhere
/// stay.
pub fn resolve_disks(iothreads: &mut Iothreads, root: &Path) {
    let disks = std::mem::take(&mut iothreads.disks);
    let resolved = |(thread, name): (IothreadId, String)| {
        devices(&name, root).into_iter().map(move |device| (thread, device))
    };
    iothreads.disks = disks.into_iter().flat_map(resolved).collect();
}

fn devices(name: &str, root: &Path) -> Vec<String> {
    let file = root.join("dev").join(name);
    let target = fs::canonicalize(file).ok();
    let device = target.and_then(|it| Some(it.file_name()?.to_str()?.to_owned()));
    let mut found = vec![device.unwrap_or_else(|| name.to_owned())];
    let mut at = 0;
    while let Some(device) = found.get(at).filter(|_| found.len() < MAX_DEVICES) {
        let slaves = fs::read_dir(root.join("sys/block").join(device).join("slaves"));
        let names = slaves.into_iter().flatten().flatten();
        let below: Vec<_> = names.filter_map(|it| it.file_name().into_string().ok()).collect();
        match below.is_empty() {
            true => at += 1,
            false => drop(found.splice(at..=at, below)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_and_volumes_lead_to_disks() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in [
            "dev/disk/by-id",
            "dev/vg",
            "sys/block/dm-0/slaves/dm-1",
            "sys/block/dm-1/slaves/nvme0n1",
            "sys/block/dm-1/slaves/sdb2",
            "sys/block/sda/slaves",
        ] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        for device in ["dev/sda", "dev/dm-0"] {
            fs::write(root.join(device), "").unwrap();
        }
        symlink("../../sda", root.join("dev/disk/by-id/wwn-1")).unwrap();
        symlink("../dm-0", root.join("dev/vg/volume")).unwrap();
        let names = ["disk/by-id/wwn-1", "vg/volume", "sda", "gone", "../../etc"];
        let disks = (1..).map(IothreadId).zip(names.map(str::to_owned)).collect();
        let mut iothreads = Iothreads { disks, ..Iothreads::default() };
        resolve_disks(&mut iothreads, root);
        let found = iothreads.disks.iter().map(|(thread, disk)| (thread.0, disk.as_str()));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [(1, "sda"), (2, "nvme0n1"), (2, "sdb2"), (3, "sda"), (4, "gone"), (5, "../../etc")]
        );
    }
}
