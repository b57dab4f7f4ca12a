//! Moves one batch of pages, and reads the final node of each page.
//!
//! The answer of `move_pages(2)` is incomplete (`do_pages_move` in `mm/migrate.c`). The kernel
//! moves pages in runs. If one page of a run does not move, the kernel gives no status for the run
//! and does not try the pages behind it. Of a large folio only the first named page is moved; the
//! next one is busy, because the folio is already on its way. So the remaining pages are tried
//! again, and their final nodes decide.

use super::target::Targets;
use crate::sys::{NOT_SAID, PageStatus};
use nearside_policy::StayedWhy;
use nearside_topology::NodeId;
use std::{collections::BTreeMap, io};

/// The kernel's page calls for one process.
pub(super) trait Kernel {
    /// The nodes of the pages at these addresses.
    fn nodes(&mut self, addresses: &[usize]) -> io::Result<Vec<PageStatus>>;
    /// Moves pages to `node`; [`NOT_SAID`] for pages without an answer.
    fn move_to(&mut self, addresses: &[usize], node: NodeId) -> io::Result<Vec<PageStatus>>;
}

/// A page off the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    /// Its address in the process.
    pub(super) address: usize,
    /// The node it lies on.
    pub(super) from: NodeId,
}

/// The outcome of a batch, in pages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// On target now.
    pub(super) moved: u64,
    /// Gone.
    pub(super) gone: u64,
    /// Still off the target, by reason.
    pub(super) stayed: BTreeMap<StayedWhy, u64>,
}

/// Pages within one such block get the same target, because they may be one huge page.
const BLOCK_BYTES: usize = 2 << 20;

/// Moves `pages`, all of one size, to the targets. A full target is replaced by the next one.
pub(super) fn settle(
    kernel: &mut impl Kernel,
    targets: &mut Targets<'_>,
    page_bytes: u64,
    mut pages: Vec<Page>,
) -> Settled {
    let mut settled = Settled::default();
    // Each round finds at least one more full target, or is the last.
    while !pages.is_empty() {
        let (groups, homeless) = by_target(targets, page_bytes, &pages);
        *settled.stayed.entry(StayedWhy::NoRoom).or_default() += homeless.len() as u64;
        pages.clear();
        for (target, group) in groups {
            let addresses: Vec<_> = group.iter().map(|page| page.address).collect();
            let said = attempt(kernel, &addresses, target, page_bytes);
            let now = kernel
                .nodes(&addresses)
                .unwrap_or_else(|error| vec![Err(errno(&error)); addresses.len()]);
            for ((page, said), now) in group.into_iter().zip(said).zip(now) {
                match (now, said) {
                    (Ok(node), _) if targets.nodes().contains(node) => settled.moved += 1,
                    (Ok(_), Err(libc::ENOMEM)) => pages.push(page),
                    (Ok(_), said) => *settled.stayed.entry(why(said)).or_default() += 1,
                    (Err(_), _) => settled.gone += 1,
                }
            }
            if !pages.is_empty() {
                targets.is_full(target, page_bytes);
            }
        }
    }
    settled.stayed.retain(|_, pages| *pages > 0);
    settled
}

/// The pages by chosen target, and the pages for which every target is full.
fn by_target(
    targets: &mut Targets<'_>,
    page_bytes: u64,
    pages: &[Page],
) -> (BTreeMap<NodeId, Vec<Page>>, Vec<Page>) {
    let (mut groups, mut homeless) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    let same_block = |a: &Page, b: &Page| a.address / BLOCK_BYTES == b.address / BLOCK_BYTES;
    for block in pages.chunk_by(same_block) {
        let bytes = block.len() as u64 * page_bytes;
        match targets.choose(page_bytes, bytes) {
            Some(target) => groups.entry(target).or_default().extend_from_slice(block),
            None => homeless.extend_from_slice(block),
        }
    }
    (groups, homeless)
}

/// Tries to move the pages to `target` and returns the kernel's answer for each page: `ENOMEM` for
/// all if the target had no room.
pub(super) fn attempt(
    kernel: &mut impl Kernel,
    addresses: &[usize],
    target: NodeId,
    page_bytes: u64,
) -> Vec<PageStatus> {
    let mut said: Vec<PageStatus> = Vec::with_capacity(addresses.len());
    let mut stuck_in_a_row = 0;
    while said.len() < addresses.len() {
        let rest = &addresses[said.len()..];
        let answers = match kernel.move_to(rest, target) {
            Ok(answers) => answers,
            Err(error) => {
                // As a status, EACCES is about one page. As the call's error, it means that the
                // node is not allowed.
                let all = if errno(&error) == libc::EACCES { libc::EPERM } else { errno(&error) };
                said.resize(addresses.len(), Err(all));
                break;
            }
        };
        let is_silent = |answer: &PageStatus| *answer == Err(NOT_SAID);
        let Some(first) = answers.iter().position(is_silent) else {
            said.extend(answers);
            break;
        };
        let run = answers[first..].iter().take_while(|answer| is_silent(answer)).count();
        let behind = first + run;
        said.extend(answers.iter().take(behind + 1));
        // A run of one page with a busy page behind it marks a large folio that did not move.
        // Trying each of its pages would be slow and in vain. Its size is unknown, but it is
        // aligned to its size. So the next attempt starts at an address aligned to twice as much
        // each time.
        let is_large = run == 1 && answers.get(behind) == Some(&Err(libc::EBUSY));
        stuck_in_a_row = match is_large {
            true if first > 0 => 1,
            true => stuck_in_a_row + 1,
            false => 0,
        };
        if is_large {
            let stride = (page_bytes as usize) << stuck_in_a_row.min(BLOCK_BYTES.ilog2());
            let next = (rest[first] + 1).next_multiple_of(stride);
            let within =
                addresses[said.len()..].iter().take_while(|&&address| address < next).count();
            said.resize(said.len() + within, Err(libc::EBUSY));
        }
    }
    said
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn why(said: PageStatus) -> StayedWhy {
    match said {
        Err(libc::EBUSY | NOT_SAID) => StayedWhy::Busy,
        Err(libc::EACCES) => StayedWhy::MappedElsewhere,
        Err(libc::ENOMEM) => StayedWhy::NoRoom,
        _ => StayedWhy::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::fake::{Fake, Fate, PAGE, folios},
        *,
    };
    use nearside_topology::{Distances, MemoryState, Node, NodeSet, Topology};

    fn topology() -> Topology {
        let ids = [NodeId(0), NodeId(1), NodeId(2)];
        let state = Some(MemoryState { free_bytes: 1 << 30, ..MemoryState::default() });
        let node = |id| Node { id, state, ..Node::default() };
        let distances = Distances::new(&ids, &[10, 15, 30, 15, 10, 30, 30, 30, 10]).unwrap();
        Topology { nodes: ids.map(node).to_vec(), distances, ..Topology::default() }
    }

    fn settle_on(kernel: &mut Fake, nodes: &[u32]) -> Settled {
        let topology = topology();
        let nodes: NodeSet = nodes.iter().map(|&node| NodeId(node)).collect();
        let pages = kernel.pages();
        settle(kernel, &mut Targets::new(&topology, &nodes), PAGE as u64, pages)
    }

    fn stayed(whys: &[(StayedWhy, u64)]) -> BTreeMap<StayedWhy, u64> {
        whys.iter().copied().collect()
    }

    #[test]
    fn pages_and_folios_move_although_tails_are_reported_busy() {
        let mut kernel =
            folios(&[(512, Fate::Moves), (1, Fate::Moves), (16, Fate::Moves), (495, Fate::Moves)]);
        assert_eq!(settle_on(&mut kernel, &[1]), Settled { moved: 1024, ..Settled::default() });
        assert_eq!(kernel.calls, 1);
    }

    #[test]
    fn a_busy_page_does_not_stop_others_from_moving() {
        let mut kernel = folios(&[
            (1, Fate::Moves),
            (1, Fate::Pinned),
            (1, Fate::Moves),
            (1, Fate::MappedElsewhere),
            (1, Fate::Moves),
            (1, Fate::Unmapped),
            (1, Fate::Moves),
        ]);
        let expected = Settled {
            moved: 4,
            gone: 1,
            stayed: stayed(&[(StayedWhy::Busy, 1), (StayedWhy::MappedElsewhere, 1)]),
        };
        assert_eq!(settle_on(&mut kernel, &[1]), expected);
    }

    #[test]
    fn a_pinned_huge_page_costs_few_calls_and_those_behind_it_move() {
        let mut kernel = folios(&[
            (512, Fate::Pinned),
            (512, Fate::Moves),
            (512, Fate::Pinned),
            (3, Fate::Moves),
        ]);
        let expected = Settled {
            moved: 515,
            stayed: stayed(&[(StayedWhy::Busy, 1024)]),
            ..Settled::default()
        };
        assert_eq!(settle_on(&mut kernel, &[1]), expected);
        assert!(kernel.calls < 25, "{} calls", kernel.calls);
    }

    #[test]
    fn smaller_folios_behind_a_pinned_one_are_reached() {
        let mut kernel =
            folios(&[(16, Fate::Pinned), (16, Fate::Moves), (16, Fate::Pinned), (16, Fate::Moves)]);
        let expected =
            Settled { moved: 32, stayed: stayed(&[(StayedWhy::Busy, 32)]), ..Settled::default() };
        assert_eq!(settle_on(&mut kernel, &[1]), expected);
    }

    #[test]
    fn a_full_target_sends_the_rest_to_the_next_and_then_there_is_no_room() {
        let mut kernel = folios(&[(1, Fate::Moves); 30]);
        kernel.free = [(1, 10), (2, 15)].into();
        let expected =
            Settled { moved: 25, stayed: stayed(&[(StayedWhy::NoRoom, 5)]), ..Settled::default() };
        assert_eq!(settle_on(&mut kernel, &[1, 2]), expected);
        let on = |node| kernel.folios.iter().filter(|folio| folio.node == node).count();
        assert_eq!((on(1), on(2)), (10, 15));
    }

    #[test]
    fn pages_of_a_process_that_ended_are_gone() {
        let mut kernel = folios(&[(1, Fate::Pinned); 7]);
        let pages = kernel.pages();
        kernel.gone = true;
        let topology = topology();
        let settled = settle(
            &mut kernel,
            &mut Targets::new(&topology, &NodeSet::from([NodeId(1)])),
            PAGE as u64,
            pages,
        );
        assert_eq!(settled, Settled { gone: 7, ..Settled::default() });
    }
}
