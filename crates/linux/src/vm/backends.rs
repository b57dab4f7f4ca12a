//! Where the memory of each cell is mapped in QEMU: a pure function of the guest's shape and
//! `/proc/PID/maps`.

use super::shape::{CellShape, Shape};
use nearside_libvirt::CellId;
use std::{collections::BTreeMap, ops::Range};

/// A mapping that may be the memory of a cell.
struct Candidate {
    start: usize,
    end: usize,
    /// Its file's path; none for anonymous memory, and for files that bear the same name for all
    /// backends (`memory-backend-memfd`).
    path: Option<String>,
}

/// The addresses of each cell's memory, as far as they can be told. Guests without cells have one
/// without a number.
///
/// A file has the path that the command line states, or bears the backend's name (`ram-node0`, also
/// in the names that QEMU makes up in hugetlbfs). Other memory is known by its size. Of several
/// backends of one size the first to be created lies highest, because the kernel maps downwards;
/// the order is trusted only if there are as many mappings of that size as such backends.
pub(crate) fn backends(shape: &Shape, maps: &str) -> BTreeMap<Option<CellId>, Range<usize>> {
    let candidates: Vec<_> = maps.lines().filter_map(candidate).collect();
    let (mut found, mut by_size) = (BTreeMap::new(), BTreeMap::<u64, Vec<&CellShape>>::new());
    for cell in &shape.0 {
        match candidates.iter().find(|it| it.is_named_for(cell)) {
            Some(candidate) => drop(found.insert(cell.cell, candidate.range())),
            None => by_size.entry(cell.bytes).or_default().push(cell),
        }
    }
    for (bytes, mut cells) in by_size {
        let unnamed = candidates.iter().filter(|it| it.path.is_none() && it.bytes() == bytes);
        // The kernel lists mappings by rising address.
        let ranges: Vec<_> = unnamed.map(Candidate::range).rev().collect();
        if ranges.len() == cells.len() {
            cells.sort_by_key(|cell| cell.place);
            found.extend(cells.iter().map(|cell| cell.cell).zip(ranges));
        }
    }
    found
}

impl Candidate {
    fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    fn bytes(&self) -> u64 {
        (self.end - self.start) as u64
    }

    fn is_named_for(&self, cell: &CellShape) -> bool {
        let Some(path) = &self.path else { return false };
        let name = path.rsplit('/').next().unwrap_or_default();
        let is_its = cell.file.as_ref() == Some(path) || bears(name, &cell.backend);
        // Huge pages round the size up.
        is_its && self.bytes() >= cell.bytes
    }
}

/// `7f91e1e00000-7f91e3e00000 rw-p 00000000 00:00 0   /path` (`show_map_vma` in
/// `fs/proc/task_mmu.c`).
fn candidate(line: &str) -> Option<Candidate> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok().filter(|end| start <= *end)?;
    // Guest memory can be written, and is not code that QEMU has translated.
    if !fields.next()?.starts_with("rw-") {
        return None;
    }
    let path = fields.nth(3).unwrap_or_default();
    // The heap and the stacks.
    if path.starts_with('[') {
        return None;
    }
    // Without a file, shared memory is one of `/dev/zero` (`shmem_zero_setup`, `mm/shmem.c`).
    let unnamed = ["/memfd:", "/anon_hugepage", "/dev/zero"];
    let is_unnamed = path.is_empty() || unnamed.iter().any(|it| path.starts_with(it));
    Some(Candidate { start, end, path: (!is_unnamed).then(|| path.to_owned()) })
}

/// Whether a file is that of a backend: by the backend's name, or by the name that QEMU makes up in
/// a folder, `qemu_back_mem._objects_ram-node0.Ab1` (`file_ram_open`, `system/physmem.c`).
fn bears(name: &str, backend: &str) -> bool {
    let made_up = || {
        let name = name.strip_prefix("qemu_back_mem.")?;
        let name = name.strip_prefix("_objects_").unwrap_or(name);
        name.strip_prefix(backend)?.strip_prefix('.')
    };
    name == backend || made_up().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_libvirt::Domain;
    use nearside_vmm::CommandLine;

    /// Mappings of QEMU 7.2 under libvirt 9.0 around the memory of two cells of 32 MiB: private
    /// memory, memfd, files. The expected addresses are those of QEMU's own `gpa2hva`.
    const ANONYMOUS: &str = include_str!("captured/anonymous.maps");
    const MEMFD: &str = include_str!("captured/memfd.maps");
    const FILE: &str = include_str!("captured/file.maps");

    fn shape(cells: &[u32]) -> Shape {
        let cell = |(id, mib): (usize, &u32)| {
            format!("<cell id='{id}' cpus='{id}' memory='{mib}' unit='MiB'/>")
        };
        let cells: String = cells.iter().enumerate().map(cell).collect();
        let numa = if cells.is_empty() { cells } else { format!("<numa>{cells}</numa>") };
        let xml = format!(
            "<domain><memory unit='MiB'>32</memory><vcpu>4</vcpu><cpu>{numa}</cpu></domain>"
        );
        Shape::from(&Domain::read(&xml).unwrap())
    }

    fn found(maps: &str, cells: &[u32]) -> Vec<(Option<u32>, usize)> {
        found_of(&shape(cells), maps)
    }

    fn found_of(shape: &Shape, maps: &str) -> Vec<(Option<u32>, usize)> {
        let found = backends(shape, maps);
        found.into_iter().map(|(cell, at)| (cell.map(|cell| cell.0), at.start)).collect()
    }

    #[test]
    fn captured_backends_of_equal_size_are_told_apart() {
        let cells = [32, 32];
        assert_eq!(
            found(ANONYMOUS, &cells),
            [(Some(0), 0x7f91_e860_0000), (Some(1), 0x7f91_e1e0_0000)]
        );
        assert_eq!(
            found(MEMFD, &cells),
            [(Some(0), 0x7f6a_a0df_f000), (Some(1), 0x7f6a_9edf_e000)]
        );
        assert_eq!(found(FILE, &cells), [(Some(0), 0x7fc6_59ff_f000), (Some(1), 0x7fc6_57ff_e000)]);
    }

    #[test]
    fn mappings_that_cannot_be_told_apart_are_unknown() {
        assert_eq!(found(ANONYMOUS, &[32, 64]), [], "two of 32 MiB, none of 64");
        assert_eq!(found(ANONYMOUS, &[]), [], "two of the size of the whole guest");
        assert_eq!(found(ANONYMOUS, &[32, 32, 32]), []);
        // The stacks of threads have 8 MiB.
        assert_eq!(found(ANONYMOUS, &[8]), []);
        assert_eq!(found("", &[32]), []);
        for line in ["x", "1-0 rw-p", "10-zz rw-p 0 0 0", "7f-", "0-ffffffffffffffffff rw-p"] {
            assert_eq!(found(line, &[32]), [], "{line}");
        }
    }

    #[test]
    fn names_tell_backends_whatever_their_size() {
        // As QEMU names files in hugetlbfs (`file_ram_open`, `system/physmem.c`).
        let huge = |cell: u32, start: u32| {
            format!(
                "{start:x}000000-{:x}000000 rw-s 00000000 00:10 7 /dev/hugepages/libvirt/qemu/1-vm/\
                 qemu_back_mem._objects_ram-node{cell}.Ab1 (deleted)\n",
                start + 4
            )
        };
        let maps: String = [huge(10, 0x40), huge(1, 0x80), huge(0, 0x90)].concat();
        assert_eq!(found(&maps, &[32, 32]), [(Some(0), 0x9000_0000), (Some(1), 0x8000_0000)]);
        let whole = "40000000-42000000 rw-s 0 00:10 7 /var/lib/libvirt/qemu/ram/5-vm/pc.ram\n";
        assert_eq!(found(whole, &[]), [(None, 0x4000_0000)]);
        assert_eq!(found("40000000-42000000 rw-p 0 00:00 0\n", &[]), [(None, 0x4000_0000)]);
        assert_eq!(found("40000000-42000000 r--p 0 00:00 0\n", &[]), []);
    }

    #[test]
    fn backends_of_a_command_line_are_told_by_path_and_order_of_creation() {
        let of_line = |objects: &str| {
            let line = format!(
                "qemu-system-x86_64 -smp 2 -m 64M {objects} -numa node,cpus=0,memdev=a \
                 -numa node,cpus=1,memdev=b"
            );
            let words: Vec<_> = line.split_whitespace().collect();
            Shape::from(CommandLine::read(&words).unwrap().vm())
        };
        let [a, b] = ["a", "b"].map(|id| format!("-object memory-backend-ram,size=32M,id={id}"));
        // The backend of cell 1 is created first, and lies highest.
        assert_eq!(
            found_of(&of_line(&format!("{b} {a}")), ANONYMOUS),
            [(Some(0), 0x7f91_e1e0_0000), (Some(1), 0x7f91_e860_0000)]
        );
        let file = |id: &str| {
            format!("-object memory-backend-file,size=32M,id={id},mem-path=/dev/shm/{id}.mem")
        };
        let maps = "40000000-42000000 rw-s 0 00:10 7 /dev/shm/a.mem\n\
                    50000000-52000000 rw-s 0 00:10 8 /dev/shm/b.mem\n";
        let of_files = of_line(&[file("b"), " ".into(), file("a")].concat());
        assert_eq!(found_of(&of_files, maps), [(Some(0), 0x4000_0000), (Some(1), 0x5000_0000)]);
        // The heap, a library's data and other files whose names have the backends' letters.
        let others = "10000000-20000000 rw-p 0 00:00 0 [heap]\n\
                      20000000-20001000 rw-p 0 fe:00 5 /usr/lib/libab.so\n\
                      30000000-30001000 rw-s 0 fe:00 5 /a\n";
        let maps = format!("{others}{maps}");
        assert_eq!(found_of(&of_files, &maps), [(Some(0), 0x4000_0000), (Some(1), 0x5000_0000)]);
        assert_eq!(found_of(&of_line(&format!("{a} {b}")), others), []);
        let shared = "40000000-42000000 rw-s 0 00:01 7 /dev/zero (deleted)\n\
                      50000000-52000000 rw-s 0 00:01 8 /dev/zero (deleted)\n";
        assert_eq!(
            found_of(&of_line(&format!("{a} {b}")), shared),
            [(Some(0), 0x5000_0000), (Some(1), 0x4000_0000)]
        );
    }
}
