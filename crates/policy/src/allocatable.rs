//! The memory that a node offers to claims in total (docs/adr/0003-what-counts-as-free.md).

use crate::PageSize;
use nearside_topology::Node;
use serde::Serialize;

/// The memory that a node offers to claims in total, and the figures it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Allocatable {
    /// Used for nothing (`MemFree`), or free pages of the pool.
    pub free_bytes: u64,
    /// Page cache and kernel caches that the kernel gives up under pressure, less the part it keeps
    /// for itself.
    pub reclaimable_bytes: u64,
    /// Memory that the kernel keeps free: the sum of the zones' high watermarks.
    pub reserve_bytes: u64,
    /// The result: free + reclaimable - reserve, never below 0. Claims that are not resident yet
    /// are still in it.
    pub allocatable_bytes: u64,
}

/// The memory that `node` offers to claims in pages of this size.
///
/// For ordinary pages this is the kernel's own estimate of available memory (`si_mem_available` in
/// `mm/show_mem.c`) for one node: half of each cache, or the low watermark if that is less, is
/// taken to be in use. A node of which only firmware's tables are known counts as empty. For huge
/// pages it is what the pool has free.
pub fn allocatable(node: &Node, page_size: PageSize) -> Allocatable {
    match (page_size, &node.state) {
        (PageSize::Huge(page_bytes), _) => {
            let pool = node.huge_pages.iter().find(|pool| pool.page_bytes == page_bytes);
            let free_bytes = pool.map_or(0, |pool| pool.free_pages.saturating_mul(pool.page_bytes));
            Allocatable { free_bytes, allocatable_bytes: free_bytes, ..Allocatable::default() }
        }
        (PageSize::Base, None) => {
            let free_bytes = node.memory_bytes;
            Allocatable { free_bytes, allocatable_bytes: free_bytes, ..Allocatable::default() }
        }
        (PageSize::Base, Some(state)) => {
            let sum = |of: fn(&nearside_topology::Zone) -> u64| {
                node.zones.iter().map(of).fold(0, u64::saturating_add)
            };
            let low_bytes = sum(|zone| zone.low_watermark_bytes);
            let reserve_bytes = sum(|zone| zone.high_watermark_bytes);
            let given_up = |cache: u64| cache - (cache / 2).min(low_bytes);
            let file_bytes = state.active_file_bytes.saturating_add(state.inactive_file_bytes);
            let reclaimable_bytes =
                given_up(file_bytes).saturating_add(given_up(state.slab_reclaimable_bytes));
            let free_bytes = state.free_bytes;
            let allocatable_bytes =
                free_bytes.saturating_add(reclaimable_bytes).saturating_sub(reserve_bytes);
            Allocatable { free_bytes, reclaimable_bytes, reserve_bytes, allocatable_bytes }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{HugePagePool, MemoryState, Zone};

    const MIB: u64 = 1 << 20;

    fn node() -> Node {
        let zone = |low, high| Zone {
            low_watermark_bytes: low * MIB,
            high_watermark_bytes: high * MIB,
            ..Zone::default()
        };
        Node {
            memory_bytes: 1024 * MIB,
            state: Some(MemoryState {
                free_bytes: 500 * MIB,
                active_file_bytes: 60 * MIB,
                inactive_file_bytes: 40 * MIB,
                slab_reclaimable_bytes: 6 * MIB,
            }),
            zones: vec![zone(1, 2), zone(9, 11)],
            huge_pages: vec![HugePagePool {
                page_bytes: 2 * MIB,
                total_pages: 8,
                free_pages: 3,
                surplus_pages: 0,
            }],
            ..Node::default()
        }
    }

    #[test]
    fn caches_count_but_for_what_the_kernel_keeps() {
        // 500 free + (100 - 10) page cache + (6 - 3) slab - 13 high watermarks
        assert_eq!(allocatable(&node(), PageSize::Base).allocatable_bytes, 580 * MIB);
    }

    #[test]
    fn huge_pages_are_counted_in_their_pool_alone() {
        assert_eq!(allocatable(&node(), PageSize::Huge(2 * MIB)).allocatable_bytes, 6 * MIB);
        assert_eq!(allocatable(&node(), PageSize::Huge(1024 * MIB)).allocatable_bytes, 0);
    }

    #[test]
    fn a_machine_known_from_firmware_alone_counts_as_empty() {
        let node = Node { state: None, ..node() };
        assert_eq!(allocatable(&node, PageSize::Base).allocatable_bytes, 1024 * MIB);
    }

    #[test]
    fn a_node_below_its_watermarks_has_nothing_allocatable() {
        let state = Some(MemoryState { free_bytes: 5 * MIB, ..MemoryState::default() });
        assert_eq!(allocatable(&Node { state, ..node() }, PageSize::Base).allocatable_bytes, 0);
    }
}
