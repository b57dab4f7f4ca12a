//! The budget of page moves from one node to another, shared among the parts that want to move
//! pages that way.
//!
//! Each part gets an equal share; what one does not need the others get. A part whose share is less
//! than a page carries it over, up to one page, so pages of any size move at any rate. No interval
//! moves more than its budget, rounded up to a page.

use super::super::{amounts::page_bytes, model::Room};
use crate::PageSize;

/// Pages that a part wants to move from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    /// The part of them for which the target's memory is reserved by its own claim.
    pub(crate) due_bytes: u64,
    /// Budget that was carried over from earlier intervals.
    pub(crate) carried_bytes: u64,
    pub(crate) page_size: PageSize,
}

/// The pages that a part may move in this interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allotment {
    pub(crate) bytes: u64,
    /// Budget that is carried over to the next interval: one page at most.
    pub(crate) carried_bytes: u64,
    /// Whether the target has no room for even one page.
    pub(crate) no_room: bool,
}

/// Memory that arrives on a node in this interval, in pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arriving {
    page_size: PageSize,
    bytes: u64,
    /// The part of them beyond the claims of the parts that they belong to.
    beyond_claims_bytes: u64,
}

/// Memory that arrives on a node in this interval, by page size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Arrivals(Vec<Arriving>);

impl Arrivals {
    fn of(&mut self, page_size: PageSize) -> &mut Arriving {
        let at = self.0.iter().position(|it| it.page_size == page_size).unwrap_or_else(|| {
            self.0.push(Arriving { page_size, bytes: 0, beyond_claims_bytes: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

/// Shares a budget among requests for the same pair of nodes. `room` is the memory that can arrive
/// on the target for pages of a size; `arrivals` is the memory that arrives there by earlier
/// allotments and these. The request that is served first changes with `turn`, for the last one may
/// get nothing.
pub(crate) fn allot(
    budget_bytes: u64,
    turn: u64,
    requests: &[Request],
    room: impl Fn(PageSize) -> Room,
    arrivals: &mut Arrivals,
) -> Vec<Allotment> {
    let shares = fair_shares(budget_bytes, requests);
    let mut left_bytes = budget_bytes;
    let first = turn.checked_rem(requests.len() as u64).unwrap_or(0) as usize;
    let nothing = Allotment { bytes: 0, carried_bytes: 0, no_room: false };
    let mut allotments = vec![nothing; requests.len()];
    for i in (first..requests.len()).chain(0..first) {
        let Request { bytes: wanted, due_bytes, carried_bytes, page_size } = requests[i];
        let (page, room, arriving) =
            (page_bytes(page_size), room(page_size), arrivals.of(page_size));
        let credit_bytes = shares[i].saturating_add(carried_bytes.min(page));
        // Its own reservation, and memory that is due to no other part.
        let available = room.available.saturating_sub(arriving.beyond_claims_bytes);
        let allocatable = room.allocatable.saturating_sub(arriving.bytes);
        let room_bytes = due_bytes.saturating_add(available).min(allocatable);
        // The last page may exceed the budget, but no page begins once it is spent.
        let payable_bytes =
            if left_bytes == 0 { 0 } else { credit_bytes.min(left_bytes.max(page)) };
        let bytes = payable_bytes.min(room_bytes).min(wanted);
        let bytes = if bytes < wanted { bytes / page * page } else { bytes };
        left_bytes = left_bytes.saturating_sub(bytes);
        arriving.bytes = arriving.bytes.saturating_add(bytes);
        let beyond_claims_bytes = bytes.saturating_sub(due_bytes);
        arriving.beyond_claims_bytes =
            arriving.beyond_claims_bytes.saturating_add(beyond_claims_bytes);
        allotments[i] = Allotment {
            bytes,
            carried_bytes: (credit_bytes - bytes).min(page),
            no_room: bytes == 0 && room_bytes < page,
        };
    }
    allotments
}

/// Equal shares of a budget; a part of a share that one request does not need goes to the others.
fn fair_shares(mut left: u64, requests: &[Request]) -> Vec<u64> {
    let mut by_size: Vec<usize> = (0..requests.len()).collect();
    by_size.sort_by_key(|&i| requests[i].bytes);
    let mut shares = vec![0; requests.len()];
    for (done, &i) in by_size.iter().enumerate() {
        let share = requests[i].bytes.min(left / (requests.len() - done) as u64);
        shares[i] = share;
        left -= share;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB_PAGE: PageSize = PageSize::Huge(1 << 30);

    fn request(bytes: u64) -> Request {
        Request { bytes, due_bytes: 0, carried_bytes: 0, page_size: PageSize::Base }
    }

    fn room(available: u64, allocatable: u64) -> Room {
        Room { available, allocatable }
    }

    fn bytes(allotments: &[Allotment]) -> Vec<u64> {
        allotments.iter().map(|it| it.bytes).collect()
    }

    #[test]
    fn a_share_that_one_request_does_not_need_goes_to_the_others() {
        let cases: [(u64, &[u64], &[u64]); 4] = [
            // 10 / 3 is 3; the second needs 2, so (10 - 2) / 2 = 4 remain for each other.
            (10, &[9, 2, 9], &[4, 2, 4]),
            (10, &[9, 9, 9], &[3, 3, 4]),
            (100, &[9, 2], &[9, 2]),
            (0, &[9, 2], &[0, 0]),
        ];
        for (budget, wanted, expected) in cases {
            let requests: Vec<_> = wanted.iter().map(|&bytes| request(bytes)).collect();
            assert_eq!(fair_shares(budget, &requests), expected, "{budget} {wanted:?}");
        }
    }

    #[test]
    fn moves_are_whole_pages_unless_all_of_it_moves() {
        let any_room = |_| room(u64::MAX, u64::MAX);
        let requests = [request(10_000), request(MIB)];
        // Shares of 8,000 each: one page of 4,096 for both, the rest is carried over.
        let allotments = allot(16_000, 0, &requests, any_room, &mut Arrivals::default());
        assert_eq!(bytes(&allotments), [4096, 4096]);
        assert_eq!(allotments[0].carried_bytes, 8000 - 4096);
        // All of it moves: no need for a whole page.
        let all = allot(MIB, 0, &[request(10_000)], any_room, &mut Arrivals::default());
        assert_eq!(bytes(&all), [10_000]);
    }

    #[test]
    fn a_share_below_a_page_is_carried_over_until_it_pays_for_one() {
        // 3 requests share 512 MiB: 170 MiB each, so a page of 1 GiB takes 6 full shares and a
        // rest.
        let budget = 512 * MIB;
        let mut requests = [Request { page_size: GIB_PAGE, ..request(4 << 30) }; 3];
        let (mut moved, mut intervals) = ([0; 3], 0);
        while moved.contains(&0) {
            let any_room = |_| room(u64::MAX, u64::MAX);
            let allotments =
                allot(budget, intervals, &requests, any_room, &mut Arrivals::default());
            for (i, allotment) in allotments.iter().enumerate() {
                requests[i].carried_bytes = allotment.carried_bytes;
                requests[i].bytes -= allotment.bytes;
                moved[i] += allotment.bytes;
                assert!(allotment.carried_bytes <= 1 << 30);
            }
            intervals += 1;
            // Not faster than the budget, up to the page that it has begun to pay for.
            assert!(moved.iter().sum::<u64>() <= budget * intervals + (3 << 30));
            assert!(intervals <= 12, "{moved:?}");
        }
        assert!(intervals >= 7, "{intervals}");
    }

    #[test]
    fn no_more_arrives_than_there_is_room_for() {
        let mut arrivals = Arrivals::default();
        let requests = [request(MIB), request(MIB)];
        let room = |_| room(MIB + 4096, MIB + 4096);
        let first = allot(4 * MIB, 0, &requests, room, &mut arrivals);
        assert_eq!(bytes(&first), [MIB, 4096]);
        // Another pair of nodes with the same target finds no room left.
        let second = allot(4 * MIB, 0, &[request(MIB)], room, &mut arrivals);
        assert_eq!((second[0].bytes, second[0].no_room), (0, true));
        // Huge pages are of another pool.
        let huge = Request { page_size: PageSize::Huge(4096), ..request(4096) };
        assert_eq!(bytes(&allot(4 * MIB, 0, &[huge], room, &mut arrivals)), [4096]);
    }

    #[test]
    fn memory_that_is_due_to_other_parts_is_left_to_them() {
        // 10 pages are free, 6 of them due to other parts or to the second request.
        let room = |_| room(4 * 4096, 10 * 4096);
        let beyond = request(8 * 4096);
        let claimed = Request { due_bytes: 3 * 4096, ..beyond };
        let mut arrivals = Arrivals::default();
        let allotments = allot(MIB, 0, &[beyond, claimed], room, &mut arrivals);
        // The first gets the 4 pages that are available, the second the 3 that are due to it.
        assert_eq!(bytes(&allotments), [4 * 4096, 3 * 4096]);
    }

    #[test]
    fn the_request_that_is_served_first_changes_with_the_turn() {
        // Budget for one page of three: a share of 1,365 each, and all carry a page over.
        let carried = Request { carried_bytes: 4096, ..request(MIB) };
        let served = |turn| {
            bytes(&allot(
                4096,
                turn,
                &[carried; 3],
                |_| room(u64::MAX, u64::MAX),
                &mut Arrivals::default(),
            ))
        };
        assert_eq!(
            [served(0), served(1), served(2)],
            [vec![4096, 0, 0], vec![0, 4096, 0], vec![0, 0, 4096]]
        );
    }

    #[test]
    fn without_budget_nothing_moves_and_nothing_is_lost() {
        let carried = Request { carried_bytes: 100, ..request(MIB) };
        let allotments =
            allot(0, 3, &[carried], |_| room(u64::MAX, u64::MAX), &mut Arrivals::default());
        assert_eq!(allotments, [Allotment { bytes: 0, carried_bytes: 100, no_room: false }]);
        assert_eq!(allot(5, 3, &[], |_| Room::default(), &mut Arrivals::default()), []);
    }
}
