//! Nice: the CPU time of a task beside others of its group.

use nearside_credit::{Params, own_charge, own_lag, own_rejoins};

const MS: u64 = 1_000_000;

#[test]
fn time_costs_a_light_task_more() {
    assert_eq!(own_charge(4 * MS, 100), 4 * MS);
    assert_eq!(own_charge(4 * MS, 1), 400 * MS);
    assert_eq!(own_charge(4 * MS, 10_000), 40_000);
    assert_eq!(own_charge(4 * MS, 0), 400 * MS);
}

#[test]
fn equal_tasks_queue_as_if_there_were_no_nice() {
    let params = Params::new(8);
    for own in [0, 4 * MS, params.slice_max_ns] {
        assert_eq!(own_lag(&params, 0, own), 0);
    }
    assert_eq!(own_lag(&params, 100 * MS, 0), 0);
}

#[test]
fn a_task_that_had_more_queues_behind_within_a_bound() {
    let params = Params::new(8);
    assert_eq!(own_lag(&params, 0, params.slice_max_ns + MS), 8 * MS);
    assert_eq!(own_lag(&params, 0, 10_000 * MS), 8 * params.ahead_bound_ns);
    // Across the wrap, too.
    assert_eq!(own_lag(&params, u64::MAX - MS, params.slice_max_ns), 8 * (MS + 1));
}

#[test]
fn a_sleeper_saves_nothing_up() {
    let params = Params::new(8);
    assert_eq!(own_rejoins(&params, 1_000 * MS, 0), 1_000 * MS - params.slice_max_ns);
    assert_eq!(own_rejoins(&params, 1_000 * MS, 999 * MS), 999 * MS);
    assert_eq!(own_rejoins(&params, 1_000 * MS, 2_000 * MS), 2_000 * MS);
}

/// One CPU, one task of weight 100 and others of weight 1, as in the BPF program: the first of the
/// queue runs a slice.
#[test]
fn one_task_of_nice_0_gets_most_beside_sixteen_of_nice_19() {
    let params = Params::new(1);
    let slice_ns = 4 * MS;
    let (mut own_now, mut group_v) = (0, 0);
    let mut tasks: Vec<_> =
        [100].into_iter().chain([1; 16]).map(|weight| (weight, 0_u64, 0_u64, 0_u64)).collect();
    for _ in 0..5_000 {
        let Some(next) = (0..tasks.len()).min_by_key(|&index| tasks[index].2) else { return };
        let (weight, own, place, used_ns) = &mut tasks[next];
        *used_ns += slice_ns;
        *own = own_rejoins(&params, own_now, *own + own_charge(slice_ns, *weight));
        group_v += slice_ns;
        *place = group_v + own_lag(&params, own_now, *own);
        own_now = nearside_credit::now(own_now, *own, true);
    }
    let heavy_ns = tasks[0].3;
    let light_ns: u64 = tasks[1..].iter().map(|task| task.3).sum();
    assert!(heavy_ns > 2 * light_ns, "{heavy_ns} {light_ns}");
    assert!(tasks[1..].iter().all(|task| task.3 > 0), "{tasks:?}");
}
