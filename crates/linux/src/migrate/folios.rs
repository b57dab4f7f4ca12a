//! Moves pages of files by folio.
//!
//! The kernel moves a whole folio for one address in it, and says that the folio is busy for the
//! next one. How large a folio is only `CAP_SYS_ADMIN` may see (`/proc/kpageflags`). But it has a
//! power of two of pages and lies in its file at a multiple of that (`filemap_add_folio` in
//! `mm/filemap.c`). So one page is named in each block of 2 MiB of the file, then in each half of
//! such a block that has pages left, and so on. A folio that moves is thus named once.

use super::batch::{Kernel, attempt};
use nearside_topology::NodeId;
use std::collections::BTreeSet;

/// The largest folio that page caches use on x86-64 (`MAX_PAGECACHE_ORDER` in
/// `include/linux/pagemap.h`). A larger one would be named more than once.
const LARGEST_BYTES: u64 = 2 << 20;

/// A page of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilePage {
    /// Its offset in the file, in bytes.
    pub(crate) offset: u64,
    /// Its address in the process.
    pub(crate) address: usize,
}

/// Moves pages, which lie elsewhere, to `node`. Returns the offsets of those that lie there now.
pub(super) fn to_node(
    kernel: &mut impl Kernel,
    pages: &[FilePage],
    node: NodeId,
    page_bytes: u64,
) -> BTreeSet<u64> {
    let mut rest = pages.to_vec();
    let mut arrived = BTreeSet::new();
    let mut block_bytes = LARGEST_BYTES.max(page_bytes);
    while !rest.is_empty() && block_bytes >= page_bytes {
        let said = attempt(kernel, &first_of_each(&rest, block_bytes), node, page_bytes);
        let addresses: Vec<_> = rest.iter().map(|page| page.address).collect();
        // An error means that the process has gone.
        let Ok(nodes) = kernel.nodes(&addresses) else { break };
        let mut now = nodes.into_iter();
        rest.retain(|page| {
            let is_there = now.next() == Some(Ok(node));
            if is_there {
                arrived.insert(page.offset);
            }
            !is_there
        });
        // The process may not use the node at all.
        if said.iter().all(|answer| *answer == Err(libc::EPERM)) {
            break;
        }
        block_bytes /= 2;
    }
    arrived
}

/// The address of the first page in each block of the file.
fn first_of_each(pages: &[FilePage], block_bytes: u64) -> Vec<usize> {
    let same_block = |a: &FilePage, b: &FilePage| a.offset / block_bytes == b.offset / block_bytes;
    pages.chunk_by(same_block).map(|block| block[0].address).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::fake::{Fake, Fate, PAGE, START, folios},
        *,
    };
    use proptest::prelude::*;

    fn pages_of(kernel: &Fake) -> Vec<FilePage> {
        let page = |address| FilePage { offset: (address - START) as u64, address };
        kernel.pages().into_iter().map(|it| page(it.address)).collect()
    }

    /// Moves all pages to node 1. Returns how often a folio was named at the most.
    fn most_named(kernel: &mut Fake) -> usize {
        let pages = pages_of(kernel);
        let arrived = to_node(kernel, &pages, NodeId(1), PAGE as u64);
        let there = kernel.folios.iter().filter(|folio| folio.node == 1);
        assert_eq!(arrived.len(), there.map(|folio| folio.pages).sum::<usize>());
        kernel.named.values().copied().max().unwrap_or(0)
    }

    #[test]
    fn a_huge_page_is_named_once() {
        let mut kernel = folios(&[(512, Fate::Moves), (512, Fate::Moves)]);
        assert_eq!(most_named(&mut kernel), 1);
        assert_eq!(kernel.calls, 1);
    }

    #[test]
    fn a_pinned_folio_holds_back_no_other() {
        let mut kernel = folios(&[(16, Fate::Moves), (16, Fate::Pinned), (32, Fate::Moves)]);
        most_named(&mut kernel);
        assert_eq!(kernel.folios.iter().map(|it| it.node).collect::<Vec<_>>(), [1, 0, 1]);
    }

    #[test]
    fn a_process_that_has_gone_has_no_pages() {
        let mut kernel = folios(&[(1, Fate::Moves); 3]);
        let pages = pages_of(&kernel);
        kernel.gone = true;
        assert!(to_node(&mut kernel, &pages, NodeId(1), PAGE as u64).is_empty());
    }

    #[test]
    fn a_node_that_the_process_may_not_use_is_tried_once() {
        let mut kernel = folios(&[(1, Fate::Moves); 64]);
        kernel.is_forbidden = true;
        let pages = pages_of(&kernel);
        assert!(to_node(&mut kernel, &pages, NodeId(1), PAGE as u64).is_empty());
        assert_eq!(kernel.calls, 1);
    }

    proptest! {
        /// Folios of all sizes, each at a multiple of its size.
        #[test]
        fn each_folio_is_named_once_and_moves(orders in prop::collection::vec(0_u32..=9, 1..60)) {
            let mut sizes: Vec<_> = orders.into_iter().map(|order| 1 << order).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let layout: Vec<_> = sizes.into_iter().map(|pages| (pages, Fate::Moves)).collect();
            let mut kernel = folios(&layout);
            kernel.free = [(1, usize::MAX)].into();
            prop_assert_eq!(most_named(&mut kernel), 1);
            prop_assert!(kernel.folios.iter().all(|folio| folio.node == 1));
        }
    }
}
