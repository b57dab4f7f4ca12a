//! Pages of a process as `/proc/PID/pagemap` shows them
//! (`Documentation/admin-guide/mm/pagemap.rst`).

use super::maps::PAGE_BYTES;
use std::ops::Range;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: u64 = 8;

const FILE_OR_SHARED: u64 = 1 << 61;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// True for a page that belongs to the process alone: written since it was mapped from a file, in
/// memory or swapped out. A page that is being migrated counts as swapped, but keeps its bit 61.
fn is_private(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) != 0 && entry & FILE_OR_SHARED == 0
}

/// The parts of a segment by the owner of their pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parts {
    /// Addresses of private pages.
    pub private: Vec<Range<u64>>,
    /// Addresses of pages that come from the file, or will on their first use.
    pub of_file: Vec<Range<u64>>,
}

impl Parts {
    /// Bytes of private pages.
    pub fn private_bytes(&self) -> u64 {
        self.private.iter().map(|range| range.end - range.start).sum()
    }
}

/// Divides the addresses from `start` on by the entries of their pages, one entry a page. Stops at
/// the end of the address space.
pub fn parts(start: u64, entries: &[u64]) -> Parts {
    let mut parts = Parts::default();
    let mut at = start;
    for run in entries.chunk_by(|one, next| is_private(*one) == is_private(*next)) {
        let length = (run.len() as u64).checked_mul(PAGE_BYTES);
        let Some(end) = length.and_then(|length| at.checked_add(length)) else { break };
        let private = run.first().copied().is_some_and(is_private);
        let list = if private { &mut parts.private } else { &mut parts.of_file };
        list.push(at..end);
        at = end;
    }
    parts
}

/// The entries in the bytes of the file; a torn last entry is left out.
pub(crate) fn entries(bytes: &[u8]) -> Vec<u64> {
    let (entries, _) = bytes.as_chunks::<{ ENTRY_BYTES as usize }>();
    entries.iter().copied().map(u64::from_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: u64 = PRESENT | 7;
    const FILE: u64 = PRESENT | FILE_OR_SHARED | 7;

    #[test]
    fn written_and_swapped_pages_are_private_and_absent_ones_are_not() {
        let table = [
            (0, false),
            (FILE, false),
            (PRIVATE, true),
            (SWAPPED, true),
            (SWAPPED | FILE_OR_SHARED, false),
            (1 << 55, false),
        ];
        for (entry, private) in table {
            assert_eq!(is_private(entry), private, "{entry:x}");
        }
    }

    #[test]
    fn runs_of_pages_become_ranges() {
        let parts = parts(0x1000, &[FILE, 0, PRIVATE, SWAPPED, FILE]);
        assert_eq!(parts.private, vec![0x3000..0x5000]);
        assert_eq!(parts.of_file, [0x1000..0x3000, 0x5000..0x6000]);
        assert_eq!(parts.private_bytes(), 0x2000);
        assert_eq!(super::parts(0x1000, &[]), Parts::default());
        assert_eq!(super::parts(u64::MAX - 0x1fff, &[FILE, FILE, FILE]), Parts::default());
    }

    #[test]
    fn a_torn_entry_is_left_out() {
        assert_eq!(entries(&[1, 0, 0, 0, 0, 0, 0, 0, 9]), [1]);
    }
}
