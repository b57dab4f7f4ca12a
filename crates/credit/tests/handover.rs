//! A waker that sleeps soon hands its CPU over to the task that it wakes.

use nearside_credit::{Params, Place, goes_on, sleeps_soon, takes_over};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

#[test]
fn a_woken_task_takes_over_only_what_nobody_loses() {
    let params = Params::new(8);
    let lately = params.balance_ns - 1;
    let table = [
        // Whether both are of one group, the CPU's node, whether the task ran on that node last,
        // tasks that run there before it, those in the queue, the time since the CPU looked into
        // the queues, and whether the woken task waits for it.
        (true, Place::Home, true, 0, 0, 0, true),
        (true, Place::Home, false, 0, 0, lately, true),
        (true, Place::Affine, true, 0, 0, lately, true),
        // The group of the waker has earned the CPU, another one has not.
        (false, Place::Home, true, 0, 0, 0, false),
        // Locality goes before the price of a wake-up.
        (true, Place::Affine, false, 0, 0, 0, false),
        (true, Place::Other, true, 0, 0, 0, false),
        (true, Place::Never, true, 0, 0, 0, false),
        // Another task is about to run there.
        (true, Place::Home, true, 1, 0, 0, false),
        (true, Place::Home, true, u32::MAX, 0, 0, false),
        // The CPU has to look into the queues first.
        (true, Place::Home, true, 0, 0, params.balance_ns, false),
        (true, Place::Home, true, 0, 0, u64::MAX, false),
        // .. and does so sooner where tasks wait.
        (true, Place::Home, true, 0, 9, params.queue_waits_ns - 1, true),
        (true, Place::Home, true, 0, 1, params.queue_waits_ns, false),
        (true, Place::Home, true, 0, u32::MAX, lately, false),
    ];
    for (same_group, place, same_node, before, waiting, looked_ns, expected) in table {
        assert_eq!(
            takes_over(&params, same_group, place, same_node, before, waiting, looked_ns),
            expected,
            "{same_group} {place:?} {same_node} {before} {waiting} {looked_ns}"
        );
    }
}

/// The number of wake-ups after which a task is known to sleep soon.
fn until_known(params: &Params, mut average_ns: u64, went_on_ns: u64) -> usize {
    let mut wake_ups = 0;
    while !sleeps_soon(params, average_ns) && wake_ups < 1000 {
        average_ns = goes_on(params, average_ns, went_on_ns);
        wake_ups += 1;
    }
    wake_ups
}

#[test]
fn a_new_task_has_to_sleep_soon_for_a_while() {
    let params = Params::new(8);
    assert_eq!(until_known(&params, params.slice_ns, 2 * US), 45);
    assert_eq!(until_known(&params, params.slice_ns, params.handover_ns + US), 1000);
}

#[test]
fn one_long_run_ends_the_trust_in_a_task() {
    let params = Params::new(8);
    assert!(!sleeps_soon(&params, goes_on(&params, 2 * US, MS)));
    // The longest run is forgiven like one of a slice.
    let after = goes_on(&params, 2 * US, u64::MAX);
    assert_eq!(after, goes_on(&params, 2 * US, params.slice_ns));
    assert_eq!(until_known(&params, after, 2 * US), 29);
    // So is a short interruption, at once.
    assert!(sleeps_soon(&params, goes_on(&params, 2 * US, 50 * US)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// But for the rounding of its eighths.
    #[test]
    fn an_average_lies_between_what_it_averages(
        average_ns in 0..=3 * MS,
        went_on_ns in any::<u64>(),
    ) {
        let params = Params::new(8);
        let next_ns = goes_on(&params, average_ns, went_on_ns);
        let sample_ns = went_on_ns.min(params.slice_ns);
        prop_assert!(next_ns <= average_ns.max(sample_ns) + 1, "{next_ns}");
        prop_assert!(next_ns + 1 >= average_ns.min(sample_ns), "{next_ns}");
    }

    /// A task that always goes on for longer than the price of a wake-up is never trusted.
    #[test]
    fn who_never_sleeps_soon_is_never_known_to(
        runs in prop::collection::vec(11 * US..10 * MS, 1..200),
    ) {
        let params = Params::new(8);
        let mut average_ns = params.slice_ns;
        for went_on_ns in runs {
            average_ns = goes_on(&params, average_ns, went_on_ns);
            prop_assert!(!sleeps_soon(&params, average_ns), "{average_ns}");
        }
    }

    /// A task waits for the waker's CPU only where all guards allow it.
    #[test]
    fn each_guard_holds_alone(
        same_group in any::<bool>(),
        place in prop::sample::select(
            vec![Place::Home, Place::Affine, Place::Other, Place::Never],
        ),
        same_node in any::<bool>(),
        before in 0..3_u32,
        waiting in 0..3_u32,
        looked_ns in 0..3 * MS,
    ) {
        let params = Params::new(8);
        if takes_over(&params, same_group, place, same_node, before, waiting, looked_ns) {
            prop_assert!(same_group && before == 0 && looked_ns < params.balance_ns);
            prop_assert!(waiting == 0 || looked_ns < params.queue_waits_ns);
            prop_assert!(place == Place::Home || (place == Place::Affine && same_node));
        }
    }
}
