//! A task waits for a moment at home rather than run on another node, or interrupt another task.

use nearside_credit::{Params, waits};
use proptest::prelude::*;

const US: u64 = 1_000;

#[test]
fn a_task_waits_where_the_wait_is_short() {
    let params = Params::new(8);
    let patience_ns = params.patience_ns;
    let table = [
        // How long tasks run there, those before it, CPUs, how long it has waited, and whether it
        // waits on.
        (50 * US, 0, 2, 0, true),
        (50 * US, 30, 2, 0, true),
        (50 * US, 40, 2, 0, false),
        (patience_ns, 0, 1, 0, true),
        (patience_ns, 1, 2, 0, true),
        // A task that runs for a slice is not waited for.
        (params.slice_ns, 0, 2, 0, false),
        // The second turn comes too late.
        (patience_ns, 1, 1, 0, false),
        // It has waited long enough, whatever was expected.
        (50 * US, 0, 2, patience_ns, false),
        (0, 0, 2, u64::MAX, false),
        // CPUs of the queue that went offline.
        (50 * US, 0, 0, 0, true),
        (u64::MAX, u32::MAX, 0, 0, false),
    ];
    for (runs_ns, waiting, cpus, waited_ns, expected) in table {
        assert_eq!(
            waits(&params, runs_ns, waiting, cpus, waited_ns),
            expected,
            "{runs_ns} {waiting} {cpus} {waited_ns}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No task waits where it is to take longer than the price of another node.
    #[test]
    fn the_expected_wait_is_bounded(
        runs_ns in 0..2_000 * US,
        waiting in 0..200_u32,
        cpus in 1..64_u32,
        waited_ns in 0..2_000 * US,
    ) {
        let params = Params::new(64);
        if waits(&params, runs_ns, waiting, cpus, waited_ns) {
            prop_assert!(waited_ns < params.patience_ns);
            prop_assert!(runs_ns * u64::from(waiting / cpus + 1) <= params.patience_ns);
            // With less before it, it waits as well.
            prop_assert!(waits(&params, runs_ns / 2, waiting / 2, cpus, waited_ns / 2));
        }
    }
}
