//! Pages that did not move are tried again, each time after twice as long.

use crate::{MoveReport, StayedWhy, Stuck};

// The first wait, and the longest.
const MIN_BACKOFF_INTERVALS: u64 = 2;
const MAX_BACKOFF_INTERVALS: u64 = 256;

/// The pages known to be stuck on a node after a report about it; None where all of them moved. A
/// move that got some of them away starts with the first wait again: more may follow.
pub(super) fn after_report(before: Option<&Stuck>, report: &MoveReport, now: u64) -> Option<Stuck> {
    let stayed = &report.stayed;
    let bytes = stayed.values().copied().fold(0, u64::saturating_add);
    let (&why, _) =
        stayed.iter().max_by_key(|(_, bytes)| **bytes).filter(|(_, bytes)| **bytes > 0)?;
    let before = before.filter(|_| report.moved_bytes == 0);
    let backoff_intervals = before.map_or(MIN_BACKOFF_INTERVALS, |stuck| {
        stuck.backoff_intervals.saturating_mul(2).min(MAX_BACKOFF_INTERVALS)
    });
    let found_no_room =
        [StayedWhy::NoRoom, StayedWhy::NoHugePage].iter().any(|why| stayed.contains_key(why));
    let retry_at = now.saturating_add(backoff_intervals);
    Some(Stuck { why, bytes, found_no_room, retry_at, backoff_intervals })
}

/// The bytes that are not worth an attempt now.
pub(super) fn stuck_bytes(stuck: Option<&Stuck>, now: u64) -> u64 {
    stuck.filter(|stuck| now < stuck.retry_at).map_or(0, |stuck| stuck.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stayed;
    use nearside_topology::NodeId;

    fn report(moved_bytes: u64, stayed: &[(StayedWhy, u64)]) -> MoveReport {
        let stayed: Stayed = stayed.iter().copied().collect();
        MoveReport { part: "db".into(), from: NodeId(1), moved_bytes, stayed }
    }

    #[test]
    fn the_wait_doubles_until_something_moves() {
        let mut stuck = None;
        let waits = [0, 0, 0, 0, 1, 0].map(|moved_bytes| {
            let report = report(moved_bytes, &[(StayedWhy::Busy, 4096)]);
            stuck = after_report(stuck.as_ref(), &report, 100);
            stuck.map(|stuck| stuck.backoff_intervals)
        });
        assert_eq!(waits, [2, 4, 8, 16, 2, 4].map(Some));
    }

    #[test]
    fn the_wait_is_bounded() {
        let nothing = report(0, &[(StayedWhy::Busy, 4096)]);
        let last =
            (0..20).fold(None, |stuck: Option<Stuck>, _| after_report(stuck.as_ref(), &nothing, 7));
        let last = last.map(|stuck| (stuck.backoff_intervals, stuck.retry_at));
        assert_eq!(last, Some((256, 263)));
    }

    #[test]
    fn the_reason_is_that_of_most_bytes() {
        let report = report(0, &[(StayedWhy::Busy, 10), (StayedWhy::Device, 50)]);
        let stuck = after_report(None, &report, 0).unwrap();
        assert_eq!((stuck.why, stuck.bytes, stuck.found_no_room), (StayedWhy::Device, 60, false));
    }

    #[test]
    fn a_lack_of_room_counts_even_if_most_pages_stay_for_another_reason() {
        let report = report(0, &[(StayedWhy::NoRoom, 4096), (StayedWhy::NotMapped, 1 << 20)]);
        assert!(after_report(None, &report, 0).unwrap().found_no_room);
    }

    #[test]
    fn once_all_pages_moved_nothing_is_stuck() {
        let before = after_report(None, &report(0, &[(StayedWhy::Busy, 10)]), 0);
        assert_eq!(after_report(before.as_ref(), &report(7, &[]), 5), None);
        assert_eq!(after_report(before.as_ref(), &report(7, &[(StayedWhy::Busy, 0)]), 5), None);
    }

    #[test]
    fn stuck_bytes_are_left_alone_until_the_next_attempt() {
        let stuck = after_report(None, &report(0, &[(StayedWhy::Busy, 10)]), 5);
        assert_eq!([5, 6, 7].map(|now| stuck_bytes(stuck.as_ref(), now)), [10, 10, 0]);
        assert_eq!(stuck_bytes(None, 5), 0);
    }
}
