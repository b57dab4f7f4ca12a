//! The worked example of ADR 6, number by number.

use nearside_credit::{self as credit, Cap, Grant, Group, ONE, Params};

const MS: u64 = 1_000_000;
const FAR: u32 = 30;

fn group(weight: u64, vtime: u64) -> Group {
    Group { vtime, share: credit::share(ONE, weight, 400), runnable: 8, ..Group::default() }
}

/// Grants the group's next task a slice of 3 ms, as the scheduler does.
fn grant(params: &Params, group: &mut Group, now: u64) -> Grant {
    let slice_ns = credit::slice(params, 100);
    assert_eq!(slice_ns, 3 * MS);
    let uses_ns = credit::uses(slice_ns, 0, false);
    credit::reserve(group, credit::tag(params, group, now, false), slice_ns, uses_ns)
}

#[test]
fn slices_are_granted_in_the_ratio_of_weights() {
    let params = Params::new(8);
    let (mut light, mut heavy) = (group(100, 100 * MS), group(300, 100 * MS));
    let places = |group: &mut Group| [0; 4].map(|_| grant(&params, group, 100 * MS).tag / MS);
    assert_eq!(places(&mut light), [100, 112, 124, 136]);
    assert_eq!(places(&mut heavy), [100, 104, 108, 112]);
    assert_eq!(credit::charge(3 * MS, light.share), 12 * MS);
    assert_eq!(credit::charge(3 * MS, heavy.share), 4 * MS);
}

#[test]
fn unused_time_is_given_back() {
    let params = Params::new(8);
    let mut light = group(100, 100 * MS);
    let granted = grant(&params, &mut light, 100 * MS);
    let paid = light.vtime;
    credit::settle(&mut light, &granted, MS);
    assert_eq!(paid - light.vtime, 8 * MS);
}

#[test]
fn a_woken_group_is_owed_five_milliseconds_and_takes_a_cpu() {
    let params = Params::new(8);
    let now = 1_000 * MS;
    let light = Group { runnable: 1, ..group(100, 0) };
    let place = credit::tag(&params, &light, now, true);
    assert_eq!(place, 960 * MS);
    assert!(credit::preempts(&params, place, now));
    assert!(!credit::preempts(&params, now - 8 * MS, now));
}

#[test]
fn a_far_task_is_fetched_once_it_is_behind_by_more_than_the_margin() {
    let params = Params::new(8);
    let granted = grant(&params, &mut group(100, 100 * MS), 100 * MS);
    assert_eq!(granted.slice * u64::from(params.steal_slices), 36 * MS);
    let is_fetched =
        |place_ms: u64| credit::steals(&params, &granted, 1_000 * MS, place_ms * MS, FAR, u64::MAX);
    assert!(is_fetched(879));
    assert!(!is_fetched(880));
}

#[test]
fn a_cap_shortens_the_last_slice_and_overrun_is_paid_back() {
    let params = Params::new(8);
    let mut cap =
        Cap { quota_ns: 50 * MS, period_ns: 100 * MS, budget_ns: 50_000_000, ..Cap::default() };
    for _ in 0..16 {
        assert_eq!(credit::take(&params, &mut cap, 3 * MS), 3 * MS);
    }
    let last_ns = credit::take(&params, &mut cap, 3 * MS);
    assert_eq!(last_ns, 2 * MS);
    credit::settle_cap(&mut cap, last_ns, 4 * MS);
    assert_eq!(credit::take(&params, &mut cap, 3 * MS), 0, "it waits for the next period");
    credit::refill(&params, &mut cap, 100 * MS);
    assert_eq!(cap.budget_ns, 48_000_000);
}
