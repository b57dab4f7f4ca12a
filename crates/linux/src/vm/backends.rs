//! Where the memory of each cell is mapped in QEMU: a pure function of the domain and
//! `/proc/PID/maps`.

use nearside_libvirt::{CellId, Domain};
use std::{collections::BTreeMap, ops::Range};

/// The memory of a cell, or of a guest without cells.
struct Block {
    cell: Option<CellId>,
    /// The name of its backend (`qemuBuildMemCellBackendStr`, `src/qemu/qemu_command.c`).
    backend: String,
    bytes: u64,
}

/// A mapping that may be a block.
struct Candidate {
    start: usize,
    end: usize,
    /// The last part of its file's path; none for anonymous memory, and for files that bear the
    /// same name for all backends (`memory-backend-memfd`).
    name: Option<String>,
}

/// The addresses of each cell's memory, as far as they can be told. Guests without cells have one
/// without a number.
///
/// A file bears the backend's name (`ram-node0`, also in the names that QEMU makes up in
/// hugetlbfs). Other blocks are known by their size. Of several of one size the first cell lies
/// highest, because libvirt lists the backends by cell and the kernel maps downwards; the order is
/// trusted only if there are as many mappings of that size as such blocks.
pub(crate) fn backends(domain: &Domain, maps: &str) -> BTreeMap<Option<CellId>, Range<usize>> {
    let candidates: Vec<_> = maps.lines().filter_map(candidate).collect();
    let (mut found, mut by_size) = (BTreeMap::new(), BTreeMap::<u64, Vec<Block>>::new());
    for block in blocks(domain) {
        let is_its = |name: &String| bears(name, &block.backend);
        let named = candidates.iter().find(|it| it.name.as_ref().is_some_and(is_its));
        match named {
            Some(candidate) => drop(found.insert(block.cell, candidate.range())),
            None => by_size.entry(block.bytes).or_default().push(block),
        }
    }
    for (bytes, blocks) in by_size {
        let unnamed = candidates.iter().filter(|it| it.name.is_none() && it.bytes() == bytes);
        // The kernel lists mappings by rising address.
        let ranges: Vec<_> = unnamed.map(Candidate::range).rev().collect();
        if ranges.len() == blocks.len() {
            found.extend(blocks.iter().map(|block| block.cell).zip(ranges));
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
}

fn blocks(domain: &Domain) -> Vec<Block> {
    if domain.cells.is_empty() {
        let whole = Block { cell: None, backend: "pc.ram".into(), bytes: domain.memory_bytes() };
        return vec![whole];
    }
    let cells = domain.cells.iter().map(|cell| Block {
        cell: Some(cell.id),
        backend: format!("ram-node{}", cell.id),
        bytes: cell.memory_bytes.value,
    });
    cells.collect()
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
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_unnamed =
        path.is_empty() || path.starts_with("/memfd:") || path.starts_with("/anon_hugepage");
    Some(Candidate { start, end, name: (!is_unnamed).then(|| name.to_owned()) })
}

/// Whether a file's name has the name of a backend, and not that of `ram-node12` for `ram-node1`.
fn bears(name: &str, backend: &str) -> bool {
    name.match_indices(backend).any(|(at, _)| {
        let after = name.get(at + backend.len()..).unwrap_or_default();
        !after.starts_with(|c: char| c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mappings of QEMU 7.2 under libvirt 9.0 around the memory of two cells of 32 MiB: private
    /// memory, memfd, files. The expected addresses are those of QEMU's own `gpa2hva`.
    const ANONYMOUS: &str = include_str!("captured/anonymous.maps");
    const MEMFD: &str = include_str!("captured/memfd.maps");
    const FILE: &str = include_str!("captured/file.maps");

    fn domain(cells: &[u32]) -> Domain {
        let cell = |(id, mib): (usize, &u32)| {
            format!("<cell id='{id}' cpus='{id}' memory='{mib}' unit='MiB'/>")
        };
        let cells: String = cells.iter().enumerate().map(cell).collect();
        let numa = if cells.is_empty() { cells } else { format!("<numa>{cells}</numa>") };
        let xml = format!(
            "<domain><memory unit='MiB'>32</memory><vcpu>4</vcpu><cpu>{numa}</cpu></domain>"
        );
        Domain::read(&xml).unwrap()
    }

    fn found(maps: &str, cells: &[u32]) -> Vec<(Option<u32>, usize)> {
        let found = backends(&domain(cells), maps);
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
}
