//! Shares follow weights: the scenarios of `lab/measure` that are called `weights-*`, in software.

use crate::{
    FOUR_NODES, MS, ONE_NODE,
    cpus::Cpus,
    machine::{Machine, Work},
    spread,
};

/// Ends each slice at a tick of Linux at `HZ=250`.
const TICK_NS: u64 = 4 * MS;

/// CPU time in ms that each group used of eight CPUs in `span_ms`, and its ideal.
fn shares(machine: &mut Machine, weights: [u64; 2], span_ms: u64) -> [(f64, f64); 2] {
    let before_ns = [0, 1].map(|group| machine.used_ns(group));
    machine.run(span_ms * MS);
    [0, 1].map(|group| {
        let got_ns = machine.used_ns(group) - before_ns[group];
        let ideal_ms = (8 * span_ms * weights[group]) as f64 / (weights[0] + weights[1]) as f64;
        (got_ns as f64 / MS as f64, ideal_ms)
    })
}

fn assert_within_2_percent(shares: [(f64, f64); 2], scenario: &str) {
    for (group, (got, ideal)) in shares.into_iter().enumerate() {
        let off = got / ideal - 1.0;
        assert!(off.abs() < 0.02, "{scenario}: group {group} got {got} ms of {ideal}");
    }
}

#[test]
fn shares_follow_weights_for_any_number_of_threads() {
    for (nodes, cpus_a_node) in [(ONE_NODE, 8), (FOUR_NODES, 2)] {
        for weights in [[100, 300], [100, 1000], [100, 100]] {
            for threads in [[16, 16], [8, 24], [24, 8], [8, 64], [64, 9]] {
                let mut machine = Machine::new(nodes, cpus_a_node);
                for (weight, threads) in weights.into_iter().zip(threads) {
                    machine.group(weight, &spread(threads, nodes.len()), Work::Burns);
                }
                let shares = shares(&mut machine, weights, 2000);
                let scenario = format!("{} nodes, {weights:?}, {threads:?}", nodes.len());
                assert_within_2_percent(shares, &scenario);
            }
        }
    }
}

/// Two groups live on different nodes. The waits of one must not include the overflow of the other.
#[test]
fn shares_follow_weights_where_slices_end_at_ticks_and_homes_differ() {
    for weights in [[100, 300], [100, 1000]] {
        for threads in [[8, 8], [2, 8], [24, 8], [8, 24], [2, 16], [8, 16]] {
            let mut machine = Machine::new(FOUR_NODES, 2);
            machine.tick_ns = TICK_NS;
            for ((weight, threads), home) in weights.into_iter().zip(threads).zip([0, 2]) {
                machine.group(weight, &vec![home; threads], Work::Burns);
            }
            machine.run(500 * MS);
            let shares = shares(&mut machine, weights, 2000);
            assert_within_2_percent(shares, &format!("{weights:?}, {threads:?}"));
            let longest_ns = machine.longest_wait_ns();
            assert!(longest_ns <= 250 * MS, "{weights:?}, {threads:?}: waited {longest_ns} ns");
        }
    }
}

/// `weights-1000-2-8` and `weights-1000-8-16` of `lab/measure`, with the threads made one after the
/// other.
///
/// All CPUs look for tasks at the same tick. A CPU of node 0 that runs the light group and is due
/// to fetch a heavy task loses the race for it to a CPU of the heavy group's own node, tick after
/// tick. Without a call back the light group got up to four times its share for as long as that
/// lasted.
#[test]
fn a_cpu_that_comes_too_late_for_a_task_is_called_for_the_next() {
    let weights = [100, 1000];
    for (threads, settle_ms) in [([2, 8], 100), ([8, 16], 500)] {
        for start_us in [100, 300, 1100] {
            let mut machine = Machine::new(FOUR_NODES, 2);
            machine.tick_ns = TICK_NS;
            let groups = weights.map(|weight| machine.group(weight, &[], Work::Burns));
            for ((group, threads), home) in groups.into_iter().zip(threads).zip([0, 2]) {
                for _ in 0..threads {
                    machine.task(group, home, 0b1111, Cpus::ALL, Work::Burns);
                    machine.run(start_us * 1000);
                }
            }
            machine.run(settle_ms * MS);
            let scenario = format!("{threads:?} threads, {start_us} us between two starts");
            let before_ns = machine.used_ns(groups[0]);
            let mut last_ns = before_ns;
            for _ in 0..20 {
                machine.run(100 * MS);
                let used_ns = machine.used_ns(groups[0]) - last_ns;
                last_ns += used_ns;
                // Its share is 73 ms; both CPUs of its home would be 200.
                assert!(used_ns <= 120 * MS, "{scenario}: {used_ns} ns in 100 ms");
            }
            let ideal_ns = 16_000.0 * MS as f64 / 11.0;
            let off = (last_ns - before_ns) as f64 / ideal_ns - 1.0;
            assert!(off.abs() < 0.02, "{scenario}: off by {off}");
        }
    }
}
