//! The C functions, made safe: all `unsafe` of the crate.
#![allow(unsafe_code)]

use crate::types::{Cap, Grant, Group, Params, Place, Trial};

// The sizes are compared with C's in a test; here the compiler checks that nothing was padded where
// C does not pad.
const _: () = assert!(size_of::<Params>() == 128);
const _: () = assert!(size_of::<Group>() == 32);
const _: () = assert!(size_of::<Grant>() == 32);
const _: () = assert!(size_of::<Cap>() == 40);
const _: () = assert!(size_of::<Trial>() == 8 + 128 + 32 + 32 + 40 + 40 + 8);

unsafe extern "C" {
    fn nearside_credit_before(a: u64, b: u64) -> i32;
    fn nearside_credit_share(parent: u64, weight: u64, weights: u64) -> u64;
    fn nearside_credit_charge(used_ns: u64, share: u64) -> u64;
    fn nearside_credit_now(now: u64, tag: u64, waited: i32) -> u64;
    fn nearside_credit_slice(params: *const Params, weight: u32) -> u64;
    fn nearside_credit_tag(params: *const Params, group: *const Group, now: u64, woken: i32)
    -> u64;
    fn nearside_credit_uses(slice_ns: u64, runs_ns: u64, woken: i32) -> u64;
    fn nearside_credit_reserve(
        group: *mut Group,
        tag: u64,
        slice_ns: u64,
        uses_ns: u64,
        grant: *mut Grant,
    );
    fn nearside_credit_settle(group: *mut Group, grant: *const Grant, used_ns: u64);
    fn nearside_credit_own_charge(used: u64, weight: u32) -> u64;
    fn nearside_credit_own_now(own_now: u64, own: u64, uses_ns: u64, slice_ns: u64) -> u64;
    fn nearside_credit_own_rejoins(params: *const Params, own_now: u64, own: u64) -> u64;
    fn nearside_credit_own_lag(params: *const Params, own_now: u64, own: u64) -> u64;
    fn nearside_credit_own_lead(
        params: *const Params,
        group: *const Group,
        now: u64,
        tag: u64,
        own_now: u64,
        own: u64,
    ) -> u64;
    fn nearside_credit_resumes(params: *const Params, left_ns: u64, others: i32) -> u64;
    fn nearside_credit_preempts(params: *const Params, woken: u64, running: u64) -> i32;
    fn nearside_credit_preempts_own(
        params: *const Params,
        own: u64,
        running_own: u64,
        woken: u64,
        running: u64,
        ran_ns: u64,
    ) -> i32;
    fn nearside_credit_from_afar(
        params: *const Params,
        grant: *const Grant,
        tag: u64,
        distance: u32,
    ) -> u64;
    fn nearside_credit_steals(
        params: *const Params,
        grant: *const Grant,
        own: u64,
        other: u64,
        distance: u32,
        awake_ns: u64,
    ) -> i32;
    fn nearside_credit_lets_pass(
        params: *const Params,
        grant: *const Grant,
        first: u64,
        tag: u64,
        woken: i32,
        beside: i32,
    ) -> i32;
    fn nearside_credit_is_seat(
        params: *const Params,
        share: u64,
        affine: u64,
        allowed: u64,
        node: u32,
    ) -> i32;
    fn nearside_credit_talks(average: u32, same: i32) -> u32;
    fn nearside_credit_follows(
        params: *const Params,
        follows: i32,
        talks: u32,
        others: u32,
        runs_ns: u64,
        other_runs_ns: u64,
    ) -> i32;
    fn nearside_credit_candidate(start: u32, index: u32, count: u32) -> u32;
    fn nearside_credit_place(affine: u64, allowed: u64, home: u32, node: u32) -> u32;
    fn nearside_credit_stays(
        wait_at_home: u32,
        cpus_at_home: u32,
        wait_here: u32,
        cpus_here: u32,
    ) -> i32;
    fn nearside_credit_returns(params: *const Params, stayed_ns: u64, room: i32) -> i32;
    fn nearside_credit_waits(
        params: *const Params,
        runs_ns: u64,
        waiting: u32,
        cpus: u32,
        waited_ns: u64,
    ) -> i32;
    fn nearside_credit_spreads(params: *const Params, share: u64) -> i32;
    fn nearside_credit_goes_on(params: *const Params, average: u64, went_on: u64) -> u64;
    fn nearside_credit_runs(params: *const Params, average: u64, ran_ns: u64, is_first: i32)
    -> u64;
    fn nearside_credit_sleeps_soon(params: *const Params, average: u64) -> i32;
    fn nearside_credit_takes_over(
        params: *const Params,
        same_group: i32,
        place: u32,
        same_node: i32,
        before: u32,
        waiting: u32,
        looked_ns: u64,
    ) -> i32;
    fn nearside_credit_cap_refill(params: *const Params, cap: *mut Cap, now_ns: u64);
    fn nearside_credit_cap_take(params: *const Params, cap: *mut Cap, wanted_ns: u64) -> u64;
    fn nearside_credit_cap_settle(cap: *mut Cap, taken_ns: u64, used_ns: u64);
    fn nearside_credit_try(trial: *mut Trial);
    #[cfg(test)]
    static nearside_credit_sizes: [u64; 5];
}

/// Whether `a` is earlier than `b`, across the wrap.
pub fn before(a: u64, b: u64) -> bool {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_before(a, b) != 0 }
}

/// A group's share, from its parent's: its weight among those of all its active siblings.
pub fn share(parent: u64, weight: u64, weights: u64) -> u64 {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_share(parent, weight, weights) }
}

/// The cost of CPU time, in virtual time, to a group with this share.
pub fn charge(used_ns: u64, share: u64) -> u64 {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_charge(used_ns, share) }
}

/// "Now" in virtual time after a task was started at `tag`.
pub fn now(now: u64, tag: u64, waited: bool) -> u64 {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_now(now, tag, waited.into()) }
}

/// The slice, in ns, of a task of this weight.
pub fn slice(params: &Params, weight: u32) -> u64 {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_slice(params, weight) }
}

/// The place of the group's next task in a queue.
pub fn tag(params: &Params, group: &Group, now: u64, woken: bool) -> u64 {
    // SAFETY: the references are valid for the call, and the layouts are the same.
    unsafe { nearside_credit_tag(params, group, now, woken.into()) }
}

/// The part of a slice, in ns, that a task is expected to use.
pub fn uses(slice_ns: u64, runs_ns: u64, woken: bool) -> u64 {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_uses(slice_ns, runs_ns, woken.into()) }
}

/// Grants a slice, of which the expected use is charged in advance.
pub fn reserve(group: &mut Group, tag: u64, slice_ns: u64, uses_ns: u64) -> Grant {
    let mut grant = Grant::default();
    // SAFETY: the references are valid for the call, and the layouts are the same.
    unsafe { nearside_credit_reserve(group, tag, slice_ns, uses_ns, &raw mut grant) };
    grant
}

/// Replaces the reservation of a grant by the time used.
pub fn settle(group: &mut Group, grant: &Grant, used_ns: u64) {
    // SAFETY: the references are valid for the call, and the layouts are the same.
    unsafe { nearside_credit_settle(group, grant, used_ns) }
}

/// The cost of CPU time to a task among those of its group.
pub fn own_charge(used_ns: u64, weight: u32) -> u64 {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_own_charge(used_ns, weight) }
}

/// The average of what a group's tasks had, after one more grant.
pub fn own_now(own_now: u64, own: u64, uses_ns: u64, slice_ns: u64) -> u64 {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_own_now(own_now, own, uses_ns, slice_ns) }
}

/// The total cost of a task that slept: it saves nothing up against the others of its group.
pub fn own_rejoins(params: &Params, own_now: u64, own: u64) -> u64 {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_own_rejoins(params, own_now, own) }
}

/// The distance by which a task queues behind its group's place.
pub fn own_lag(params: &Params, own_now: u64, own: u64) -> u64 {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_own_lag(params, own_now, own) }
}

/// The distance by which a woken task queues before its group's next place.
pub fn own_lead(params: &Params, group: &Group, now: u64, tag: u64, own_now: u64, own: u64) -> u64 {
    // SAFETY: the references are valid for the call, and the layouts are the same.
    unsafe { nearside_credit_own_lead(params, group, now, tag, own_now, own) }
}

/// The time, in ns, for which a task goes on after its CPU's own kernel thread interrupted it; 0:
/// it queues anew.
pub fn resumes(params: &Params, left_ns: u64, others: bool) -> u64 {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_resumes(params, left_ns, others.into()) }
}

/// Whether a woken task takes the CPU of a running one.
pub fn preempts(params: &Params, woken: u64, running: u64) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_preempts(params, woken, running) != 0 }
}

/// Whether a woken task that goes before the others of its group takes the CPU of one of them.
pub fn preempts_own(
    params: &Params,
    own: u64,
    running_own: u64,
    woken: u64,
    running: u64,
    ran_ns: u64,
) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_preempts_own(params, own, running_own, woken, running, ran_ns) != 0 }
}

/// The place of a task of another queue, with its grant, among a CPU's own.
pub fn from_afar(params: &Params, grant: &Grant, tag: u64, distance: u32) -> u64 {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_from_afar(params, grant, tag, distance) }
}

/// Whether a busy CPU prefers the first task of another queue to its own next task.
pub fn steals(
    params: &Params,
    grant: &Grant,
    own: u64,
    other: u64,
    distance: u32,
    awake_ns: u64,
) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_steals(params, grant, own, other, distance, awake_ns) != 0 }
}

/// Whether another task of the queue, with its grant, passes the first one because it ran on the
/// free CPU last, or because the first one's group runs elsewhere.
pub fn lets_pass(
    params: &Params,
    grant: &Grant,
    first: u64,
    tag: u64,
    woken: bool,
    beside: bool,
) -> bool {
    // SAFETY: the references are valid for the call, and the layouts are the same.
    unsafe {
        nearside_credit_lets_pass(params, grant, first, tag, woken.into(), beside.into()) != 0
    }
}

/// Whether a node of several at home is the one where all tasks of a group wait and run first.
pub fn is_seat(params: &Params, share: u64, affine: u64, allowed: u64, node: u32) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_is_seat(params, share, affine, allowed, node) != 0 }
}

/// The share of a task's wake-ups that came from one domain, of 1,024, after one more.
pub fn talks(average: u32, same: bool) -> u32 {
    // SAFETY: takes and returns numbers, and touches no memory.
    unsafe { nearside_credit_talks(average, same.into()) }
}

/// Whether a task has the home of a task of another domain, which it talks with, for its own.
pub fn follows(
    params: &Params,
    follows: bool,
    talks: u32,
    others: u32,
    runs_ns: u64,
    other_runs_ns: u64,
) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe {
        nearside_credit_follows(params, follows.into(), talks, others, runs_ns, other_runs_ns) != 0
    }
}

/// The position, among `count` CPUs of a queue, of the CPU to compare next for a woken task; none
/// if enough were compared.
pub fn candidate(start: u32, index: u32, count: u32) -> Option<u32> {
    // SAFETY: takes and returns numbers, and touches no memory.
    Some(unsafe { nearside_credit_candidate(start, index, count) }).filter(|&at| at < count)
}

/// The rank of a node for a task.
pub fn place(affine: u64, allowed: u64, home: u32, node: u32) -> Place {
    // SAFETY: takes and returns numbers, and touches no memory.
    match unsafe { nearside_credit_place(affine, allowed, home, node) } {
        0 => Place::Home,
        1 => Place::Affine,
        2 => Place::Other,
        _ => Place::Never,
    }
}

/// Whether a task that runs away from home waits where it is: unless fewer tasks wait at home for
/// each CPU.
pub fn stays(wait_at_home: u32, cpus_at_home: u32, wait_here: u32, cpus_here: u32) -> bool {
    // SAFETY: takes no pointers.
    unsafe { nearside_credit_stays(wait_at_home, cpus_at_home, wait_here, cpus_here) != 0 }
}

/// Whether a task that runs away from home goes back now.
pub fn returns(params: &Params, stayed_ns: u64, room: bool) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_returns(params, stayed_ns, room.into()) != 0 }
}

/// Whether a task waits at home although a CPU of another node is idle, or although it could
/// interrupt the task that runs.
pub fn waits(params: &Params, runs_ns: u64, waiting: u32, cpus: u32, waited_ns: u64) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_waits(params, runs_ns, waiting, cpus, waited_ns) != 0 }
}

/// Whether a group that has one CPU takes a second one from a running task when it wakes another of
/// its tasks.
pub fn spreads(params: &Params, share: u64) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_spreads(params, share) != 0 }
}

/// The average time for which a task goes on until it sleeps.
pub fn goes_on(params: &Params, average_ns: u64, went_on_ns: u64) -> u64 {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_goes_on(params, average_ns, went_on_ns) }
}

/// The average time that a task runs until it sleeps, after it ran for `ran_ns`.
pub fn runs(params: &Params, average_ns: u64, ran_ns: u64, is_first: bool) -> u64 {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_runs(params, average_ns, ran_ns, is_first.into()) }
}

/// Whether a task that goes on for so long on average sleeps soon.
pub fn sleeps_soon(params: &Params, average_ns: u64) -> bool {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_sleeps_soon(params, average_ns) != 0 }
}

/// Whether a woken task waits for the CPU of its waker, which sleeps soon.
pub fn takes_over(
    params: &Params,
    same_group: bool,
    place: Place,
    same_node: bool,
    before: u32,
    waiting: u32,
    looked_ns: u64,
) -> bool {
    let (same_group, place, same_node) = (same_group.into(), place as u32, same_node.into());
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    let answer = unsafe {
        nearside_credit_takes_over(params, same_group, place, same_node, before, waiting, looked_ns)
    };
    answer != 0
}

/// Starts the periods that have come due.
pub fn refill(params: &Params, cap: &mut Cap, now_ns: u64) {
    // SAFETY: the references are valid for the call, and the layouts are the same.
    unsafe { nearside_credit_cap_refill(params, cap, now_ns) }
}

/// Takes up to `wanted_ns` from the budget; 0: the task has to wait.
pub fn take(params: &Params, cap: &mut Cap, wanted_ns: u64) -> u64 {
    // SAFETY: the references are valid for the call, and the layouts are the same.
    unsafe { nearside_credit_cap_take(params, cap, wanted_ns) }
}

/// Replaces the time taken from the budget by the time used.
pub fn settle_cap(cap: &mut Cap, taken_ns: u64, used_ns: u64) {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_cap_settle(cap, taken_ns, used_ns) }
}

/// Asks the decision of a [`Trial`] and stores the answer in it.
pub fn try_out(trial: &mut Trial) {
    // SAFETY: the reference is valid for the call, and the layouts are the same.
    unsafe { nearside_credit_try(trial) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_and_c_mean_the_same_structs() {
        // SAFETY: a constant of the C side.
        let sizes = unsafe { nearside_credit_sizes };
        let here = [
            size_of::<Params>(),
            size_of::<Group>(),
            size_of::<Grant>(),
            size_of::<Cap>(),
            size_of::<Trial>(),
        ];
        assert_eq!(sizes, here.map(|size| size as u64));
    }
}
