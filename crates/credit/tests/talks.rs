//! Tasks of different domains that wake each other have one home.

use nearside_credit::{Params, follows, talks};
use proptest::prelude::*;

const US: u64 = 1_000;
/// The least share of wake-ups, of 1,024.
const LEAST: u32 = 256;

#[test]
fn the_one_that_runs_for_less_time_follows_the_other_one() {
    let params = Params::new(8);
    let table = [
        // Whether it follows already, the shares of both one's wake-ups that come from the other
        // one's domain, how long both run until they sleep, and whether it follows.
        (false, LEAST, LEAST, 10 * US, 50 * US, true),
        (false, 1000, 1000, 10 * US, params.patience_ns, true),
        // The other one follows.
        (false, 1000, 1000, 50 * US, 10 * US, false),
        // Both alike: neither.
        (false, 1000, 1000, 50 * US, 50 * US, false),
        (false, 1000, 1000, 40 * US, 50 * US, false),
        (false, 1000, 1000, 40 * US - 1, 50 * US, true),
        // It goes on to follow until it runs for longer.
        (true, 1000, 1000, 50 * US - 1, 50 * US, true),
        (true, 1000, 1000, 50 * US, 50 * US, false),
        // One of the two talks with others as well.
        (false, LEAST - 1, 1000, 10 * US, 50 * US, false),
        (false, 1000, LEAST - 1, 10 * US, 50 * US, false),
        (true, LEAST / 2, LEAST / 2, 10 * US, 50 * US, true),
        (true, LEAST / 2 - 1, 1000, 10 * US, 50 * US, false),
        (true, 1000, LEAST / 2 - 1, 10 * US, 50 * US, false),
        // A waker that seldom sleeps is one that an interrupt found.
        (false, 1000, 1000, 10 * US, params.patience_ns + 1, false),
        (true, 1000, 1000, 10 * US, params.slice_ns, false),
        (true, 1000, 1000, 0, 0, false),
    ];
    for (already, mine, theirs, runs_ns, other_runs_ns, expected) in table {
        assert_eq!(
            follows(&params, already, mine, theirs, runs_ns, other_runs_ns),
            expected,
            "{already} {mine} {theirs} {runs_ns} {other_runs_ns}"
        );
    }
}

/// The share after wake-ups that came from the partner in `same` of `of` cases, in turns.
fn after(wake_ups: usize, same: usize, of: usize) -> u32 {
    (0..wake_ups).fold(0, |average, at| talks(average, at % of < same))
}

#[test]
fn a_partner_is_known_after_a_few_wake_ups_and_forgotten_after_some_more() {
    assert_eq!((1..100).find(|&n| after(n, 1, 1) >= LEAST), Some(3));
    assert_eq!((1..100).find(|&n| after(n, 1, 2) >= LEAST), Some(5));
    let known = after(100, 1, 1);
    let forgotten = (1..100).find(|&n| (0..n).fold(known, |all, _| talks(all, false)) < LEAST);
    assert_eq!(forgotten, Some(11));
}

/// Where each fourth wake-up comes from the partner, or each fifth, in turns, it never falls so low
/// that the task would go home and come back.
#[test]
fn a_steady_conversation_is_not_left() {
    for of in [2, 3, 4, 5] {
        let mut average = talks(0, true);
        let mut follows_already = false;
        let mut changes = 0;
        for at in 0..1000 {
            average = talks(average, at % of == 0);
            let now = average >= if follows_already { LEAST / 2 } else { LEAST };
            changes += u32::from(now != follows_already);
            follows_already = now;
        }
        assert!(changes <= 1, "1 of {of}: {changes} changes");
    }
}

/// With eight other domains, none of them is a partner by chance.
#[test]
fn wakers_by_chance_are_no_partners() {
    assert!((8..200).all(|n| after(n, 1, 8) < LEAST));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_share_is_a_share(wakers in prop::collection::vec(any::<bool>(), 0..200)) {
        let mut average = 0;
        for same in wakers {
            let next = talks(average, same);
            prop_assert!(next <= 1024 + 7, "{next}");
            let moves = if same { next >= average.min(1024) } else { next <= average };
            prop_assert!(moves, "{average} {next}");
            average = next;
        }
    }

    /// Two tasks never follow each other, or both would change their homes for ever.
    #[test]
    fn at_most_one_of_two_follows(
        mine in 0..1100_u32,
        theirs in 0..1100_u32,
        runs_ns in 0..2_000 * US,
        other_runs_ns in 0..2_000 * US,
        already in any::<bool>(),
        others_already in any::<bool>(),
    ) {
        let params = Params::new(8);
        prop_assert!(
            !(follows(&params, already, mine, theirs, runs_ns, other_runs_ns)
                && follows(&params, others_already, theirs, mine, other_runs_ns, runs_ns))
        );
    }
}
