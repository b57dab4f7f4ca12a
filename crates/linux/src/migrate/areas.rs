//! The movable memory of a process: its mappings with pages off the target, and their present
//! pages.

use crate::memory::{Kind, Mapping, numa_maps};
use crate::{Error, error::IoContext};
use nearside_policy::ByNode;
use nearside_topology::{NodeId, NodeSet};
use std::{collections::BTreeMap, fs::File, io, os::unix::fs::FileExt, path::Path};

/// The pages that shall move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All pages off these nodes.
    Off(NodeSet),
    /// The pages on this node.
    Of(NodeId),
}

impl Wanted {
    /// True if pages on `node` shall move.
    pub(super) fn holds(&self, node: NodeId) -> bool {
        match self {
            Self::Off(nodes) => !nodes.contains(node),
            Self::Of(from) => node == *from,
        }
    }

    fn bytes(&self, by_node: &ByNode) -> u64 {
        by_node
            .iter()
            .filter(|(node, _)| self.holds(**node))
            .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// A range of addresses of one process with pages that shall move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Area {
    /// First address.
    pub(super) start: u64,
    /// The address behind the last.
    pub(super) end: u64,
    /// The size of its pages.
    pub(super) page_bytes: u64,
    /// Explicit huge pages.
    pub(super) huge: bool,
    /// Pages that shall move, at the time of reading: after that many the search can stop. Unknown
    /// for a private mapping of a file, of which only the written pages are the process's own.
    pub(super) wanted_pages: Option<u64>,
    /// The shared object: device and inode.
    pub(super) object: Option<String>,
}

/// The areas of a process's own memory that shall move.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Areas {
    /// The ranges.
    pub(super) areas: Vec<Area>,
    /// All its mappings, for the account of the remainder.
    pub(super) mappings: Vec<Mapping>,
}

/// Reads the areas of the process below `process` (`/proc/PID`).
pub(super) fn read(process: &Path, wanted: &Wanted) -> Result<Areas, Error> {
    let text = |name: &str| {
        let file = process.join(name);
        crate::read::text(&file).at(&file)
    };
    Ok(parse(&text("numa_maps")?, &text("maps")?, wanted))
}

/// The areas in two files of a process, which were read one after the other.
pub(super) fn parse(numa_maps_text: &str, maps_text: &str, wanted: &Wanted) -> Areas {
    let mappings = numa_maps(numa_maps_text);
    let ends = ranges(maps_text);
    let areas = mappings.iter().filter_map(|mapping| area(mapping, &ends, wanted)).collect();
    Areas { areas, mappings }
}

/// The fields of a mapping in `/proc/PID/maps`, besides its start.
#[derive(Debug)]
pub(super) struct Range {
    end: u64,
    shared: bool,
    object: String,
}

impl Range {
    /// The device of its file, such as `00:1b`.
    pub(super) fn device(&self) -> &str {
        self.object.split(' ').next().unwrap_or_default()
    }
}

/// Reads `/proc/PID/maps` (proc_pid_maps(5)): ranges by their start.
pub(super) fn ranges(maps: &str) -> BTreeMap<u64, Range> {
    // 7f30c0200000-7f30c0400000 rw-s 00000000 00:01 1027 /dev/zero (deleted)
    let range = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let shared = words.next()?.ends_with('s');
        let (device, inode) = (words.nth(1)?, words.next()?);
        let start = u64::from_str_radix(start, 16).ok()?;
        Some((
            start,
            Range {
                end: u64::from_str_radix(end, 16).ok()?,
                shared,
                object: format!("{device} {inode}"),
            },
        ))
    };
    maps.lines().filter_map(range).collect()
}

/// None if no page of the mapping can or shall move: the mapping has gone, or its pages are shared
/// pages of a file. Those belong to the page cache and so to all users of the file
/// (docs/adr/0005-moving-pages.md).
fn area(mapping: &Mapping, ranges: &BTreeMap<u64, Range>, wanted: &Wanted) -> Option<Area> {
    let start = mapping.start as u64;
    let range = ranges.get(&start)?;
    let wanted_bytes = wanted.bytes(&mapping.bytes);
    let is_file = mapping.kind == Kind::File;
    if wanted_bytes == 0 || (is_file && range.shared) {
        return None;
    }
    // The kernel never writes this; the check keeps addresses within the range of their type.
    if mapping.page_bytes == 0
        || start >= range.end
        || range.end.checked_add(mapping.page_bytes).is_none()
    {
        return None;
    }
    Some(Area {
        start,
        end: range.end,
        page_bytes: mapping.page_bytes,
        huge: mapping.kind == Kind::Huge,
        wanted_pages: (!is_file).then_some(wanted_bytes / mapping.page_bytes),
        object: range.shared.then(|| range.object.clone()),
    })
}

/// `PM_PRESENT` and `PM_FILE` (`Documentation/admin-guide/mm/pagemap.rst`); both are shown without
/// privileges.
const PRESENT: u64 = 1 << 63;
const FILE_OR_SHARED: u64 = 1 << 61;

/// Entries of `/proc/PID/pagemap` read at once: 256 KiB for 128 MiB of addresses.
const ENTRIES: u64 = 1 << 15;

/// Calls `each` with batches of addresses in `area` whose pages may have to move, until it returns
/// false.
///
/// The kernel's page map lists present pages at low cost (8 bytes a page, holes included), so a
/// large mapping that is hardly touched costs little. Explicit huge pages are few, so all of them
/// are named.
pub(super) fn each_batch(
    area: &Area,
    pagemap: &File,
    base_page_bytes: u64,
    each: &mut dyn FnMut(&[usize]) -> io::Result<std::ops::ControlFlow<()>>,
) -> io::Result<()> {
    let mut bytes = vec![0; if area.huge { 0 } else { ENTRIES as usize * 8 }];
    let mut start = area.start;
    while start < area.end {
        let pages = ((area.end - start).div_ceil(area.page_bytes)).min(ENTRIES);
        let address = |page: u64| (start + page * area.page_bytes) as usize;
        let addresses: Vec<usize> = if area.huge {
            (0..pages).map(address).collect()
        } else {
            let read =
                pagemap.read_at(&mut bytes[..pages as usize * 8], start / base_page_bytes * 8)?;
            if read == 0 {
                break;
            }
            let entries = bytes[..read]
                .chunks_exact(8)
                .map(|entry| entry.try_into().map_or(0, u64::from_ne_bytes));
            let wanted =
                if area.wanted_pages.is_some() { PRESENT } else { PRESENT | FILE_OR_SHARED };
            let present = entries.zip(0..).filter(|(entry, _)| entry & wanted == PRESENT);
            present.map(|(_, page)| address(page)).collect()
        };
        if !addresses.is_empty() && each(&addresses)?.is_break() {
            break;
        }
        start += pages * area.page_bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;
    use std::{io::Write, ops::ControlFlow};

    const NUMA_MAPS: &str = "\
1000 bind:1 anon=3 dirty=3 N1=3 kernelpagesize_kB=4
5000 default anon=2 N0=2 kernelpagesize_kB=4
8000 default file=/usr/lib/libc.so.6 anon=1 mapped=4 N1=5 kernelpagesize_kB=4
10000 default file=/srv/data mapped=4 N1=4 kernelpagesize_kB=4
20000 default file=/dev/zero\\040(deleted) N1=2 kernelpagesize_kB=4
200000 default file=/anon_hugepage\\040(deleted) huge N0=1 N1=1 kernelpagesize_kB=2048
900000 default anon=1 N1=1 kernelpagesize_kB=4
";
    const MAPS: &str = "\
1000-5000 rw-p 00000000 00:00 0
5000-7000 rw-p 00000000 00:00 0 [heap]
8000-10000 rw-p 00000000 fe:00 77 /usr/lib/libc.so.6
10000-14000 rw-s 00000000 fe:00 78 /srv/data
20000-22000 rw-s 00000000 00:01 1027 /dev/zero (deleted)
200000-600000 rw-p 00000000 00:10 99 /anon_hugepage (deleted)
";

    #[test]
    fn own_memory_off_the_target_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("numa_maps"), NUMA_MAPS).unwrap();
        std::fs::write(folder.path().join("maps"), MAPS).unwrap();
        let all = read(folder.path(), &Wanted::Off(NodeSet::from([NodeId(0)]))).unwrap();
        let area = |start, end, page_bytes, wanted_pages, object: Option<&str>| Area {
            start,
            end,
            page_bytes,
            huge: page_bytes > 4096,
            wanted_pages,
            object: object.map(str::to_owned),
        };
        let expected = [
            area(0x1000, 0x5000, 4096, Some(3), None),
            area(0x8000, 0x10000, 4096, None, None),
            area(0x20000, 0x22000, 4096, Some(2), Some("00:01 1027")),
            area(0x20_0000, 0x60_0000, 2 << 20, Some(1), None),
        ];
        assert_eq!(all.areas, expected, "0x900000 was unmapped between the two files");
        assert_eq!(all.mappings.len(), 7);
        let of_node_0 = read(folder.path(), &Wanted::Of(NodeId(0))).unwrap().areas;
        let expected = [
            area(0x5000, 0x7000, 4096, Some(2), None),
            area(0x20_0000, 0x60_0000, 2 << 20, Some(1), None),
        ];
        assert_eq!(of_node_0, expected);
        assert_eq!(read(folder.path(), &Wanted::Of(NodeId(7))).unwrap().areas, []);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(read(Path::new("/none"), &Wanted::Off(NodeSet::new())).is_err());
    }

    fn addresses(area: &Area, entries: &[u64]) -> Vec<usize> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0; (area.start / 4096 * 8) as usize]).unwrap();
        for entry in entries {
            file.write_all(&entry.to_ne_bytes()).unwrap();
        }
        let mut all = Vec::new();
        each_batch(area, &file, 4096, &mut |batch| {
            all.extend_from_slice(batch);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        all
    }

    #[test]
    fn pages_that_are_not_there_and_pages_of_files_are_passed_over() {
        let own = Area {
            start: 0x2000,
            end: 0x6000,
            page_bytes: 4096,
            huge: false,
            wanted_pages: Some(4),
            object: None,
        };
        let entries = [PRESENT, 0, PRESENT | FILE_OR_SHARED, PRESENT];
        assert_eq!(addresses(&own, &entries), [0x2000, 0x4000, 0x5000]);
        let of_a_file = Area { wanted_pages: None, ..own.clone() };
        assert_eq!(addresses(&of_a_file, &entries), [0x2000, 0x5000]);
        let huge =
            Area { start: 0x20_0000, end: 0x60_0000, page_bytes: 2 << 20, huge: true, ..own };
        assert_eq!(addresses(&huge, &[]), [0x20_0000, 0x40_0000]);
    }
}
