//! Whole rounds on the host of the unit tests.

use super::{
    amounts::page_bytes,
    confirmation::Trigger,
    fixture::{GIB, SECOND, learned, part, seen},
    rate::budget_bytes,
    round::Round,
    *,
};
use crate::{
    ByNode, Claim, MemoryPolicy, MilliVcpus, MoveReport, PageMove, PageSize, PartId, PartLoad,
    PartState, Payback, Reason, SlowDown, Stayed, StayedWhy,
};
use nearside_topology::{HugePagePool, MemoryState, NodeId};

fn decide(tuning: &Tuning, seen: &ControlObservation, history: &History) -> (ControlPlan, History) {
    Homes { tuning: *tuning }.plan(seen, history)
}

/// The bytes of each page move of a plan.
fn moved_bytes(plan: &ControlPlan) -> Vec<u64> {
    plan.moves.iter().filter_map(|step| Some(step.action.batch?.max_bytes)).collect()
}

#[test]
fn the_status_tells_how_often_a_better_home_was_found() {
    let (tuning, seen) = (Tuning::default(), seen(1, 0, [0, 0]));
    // A gain of 5.3 % under contention takes three confirmations.
    let payback = Payback::new(MilliVcpus(2000), SlowDown(1_200_000), SlowDown(1_140_000), 0, 0);
    let learned = learned(&tuning, &seen);
    let mut round = Round::new(&tuning, &seen, learned);
    let found = [1, 2, 3].map(|_| {
        let is_confirmed = round.confirm(part(0), Trigger::Contention, payback);
        let blocker = round.known(part(0)).status.home_blocker.as_ref().map(ToString::to_string);
        (is_confirmed, blocker.and_then(|text| Some(text.split_once(':')?.0.to_owned())))
    });
    let says = |n: u64| Some(format!("a better home was found {n} of 3 times in a row"));
    // Once it is confirmed the status is replaced by the move.
    assert_eq!(found, [(false, says(1)), (false, says(2)), (true, says(2))]);
}

#[test]
fn a_move_is_one_transaction_with_claim_and_home() {
    let tuning = Tuning::default();
    let mut history = History::default();
    for interval in 0..12 {
        let seen = seen(interval, 2, [4, 0]);
        let (plan, next) = decide(&tuning, &seen, &history);
        history = next;
        let [transaction] = &plan.transactions[..] else { continue };
        let kinds: Vec<_> = transaction.steps.iter().map(|step| step.action.to_string()).collect();
        assert_eq!(kinds, ["claim node 1: 2 vCPUs, 4 GiB", "make node 1 the home"]);
        // It needs the memory that its claim will fill, and the part as observed.
        let needed: ByNode = [(NodeId(1), 4 * GIB)].into();
        assert_eq!(transaction.needs.memory, [(PageSize::Base, needed)]);
        let observed = &transaction.needs.parts[&"db".into()];
        assert_eq!(observed.home, seen.machine.parts[0].home);
        assert_eq!(transaction.check(&seen.machine), Ok(()));
        return;
    }
    panic!("no move");
}

#[test]
fn a_part_whose_home_was_moved_meanwhile_drops_the_transaction() {
    let tuning = Tuning::default();
    let mut unbound = seen(0, 0, [0, 0]);
    unbound.machine.parts[0].home = None;
    unbound.machine.parts[0].claim = None;
    let (plan, _) = decide(&tuning, &unbound, &History::default());
    let [first] = &plan.transactions[..] else { panic!("{plan:?}") };
    assert_eq!(first.check(&unbound.machine), Ok(()));
    assert!(first.check(&seen(0, 0, [0, 0]).machine).is_err(), "it has a home by now");
}

#[test]
fn kernel_memory_off_home_is_no_debt() {
    let tuning = Tuning::default();
    let debt_and_steps = |kernel_bytes| {
        let mut seen = seen(0, 0, [0, 0]);
        seen.machine.parts[0].resident_bytes.insert(NodeId(1), 8192);
        seen.machine.parts[0].kernel_bytes = [(NodeId(1), kernel_bytes)].into();
        let (plan, history) = decide(&tuning, &seen, &History::default());
        (history.parts[&"db".into()].status.debt_bytes, plan.moves.len())
    };
    assert_eq!(debt_and_steps(0), (8192, 1));
    assert_eq!(debt_and_steps(4096), (4096, 1));
    // Less than a page is left.
    assert_eq!(debt_and_steps(4097), (0, 0));
    assert_eq!(debt_and_steps(9000), (0, 0));
}

#[test]
fn stuck_pages_that_have_gone_keep_only_their_backoff() {
    let tuning = Tuning::default();
    let mut history = History::default();
    let mut waits = Vec::new();
    let report = |moved_bytes, stuck| MoveReport {
        part: "db".into(),
        from: NodeId(1),
        moved_bytes,
        stayed: Stayed::from([(StayedWhy::Busy, stuck), (StayedWhy::Device, 5 * stuck)]),
    };
    for (interval, moved_bytes) in [0, 0, 0, 0, 1, 0].into_iter().enumerate() {
        let mut seen = seen(interval as u64, 0, [0, 0]);
        seen.machine.parts[0].resident_bytes.insert(NodeId(1), 1 << 20);
        seen.moved = vec![report(moved_bytes, 10)];
        history = decide(&tuning, &seen, &history).1;
        let stuck = history.parts[&"db".into()].stuck[&NodeId(1)];
        assert_eq!((stuck.why, stuck.bytes), (StayedWhy::Device, 60));
        waits.push(stuck.retry_at - interval as u64);
    }
    // Something moved: it is worth trying again soon.
    assert_eq!(waits, [2, 4, 8, 16, 2, 4]);
    let mut seen = seen(9, 0, [0, 0]);
    let gone = decide(&tuning, &seen, &history).1.parts[&"db".into()].stuck[&NodeId(1)];
    assert_eq!((gone.bytes, gone.backoff_intervals), (0, 4), "nothing is left there");
    seen.machine.parts[0].resident_bytes.insert(NodeId(1), 1 << 20);
    seen.moved = vec![report(7, 0)];
    assert!(decide(&tuning, &seen, &history).1.parts[&"db".into()].stuck.is_empty());
}

#[test]
fn all_movable_debt_comes_home_in_the_end_and_not_faster_than_the_rate() {
    const GIB_PAGES: PageSize = PageSize::Huge(GIB);
    type Debts<'a> = &'a [(PageSize, u64)];
    let cases: [(u64, u64, Debts<'_>); 7] = [
        // Three domains with pages of 1 GiB share 2 GiB an interval: none has a page's worth at
        // once.
        (GIB, 2 * SECOND, &[(GIB_PAGES, 4 * GIB), (GIB_PAGES, 4 * GIB), (GIB_PAGES, 4 * GIB)]),
        (GIB, 100_000_000, &[(GIB_PAGES, 2 * GIB), (PageSize::Base, GIB), (GIB_PAGES, 3 * GIB)]),
        (3 * GIB / 7, 2 * SECOND, &[(GIB_PAGES, GIB), (PageSize::Huge(2 << 20), 7 << 21)]),
        // Half a page an interval, and less than one byte.
        (1 << 10, 2 * SECOND, &[(PageSize::Base, 40_960), (PageSize::Base, 8192)]),
        (1, 10_000_000, &[(PageSize::Base, 4096)]),
        (2, SECOND, &[(PageSize::Base, 4096), (PageSize::Base, 4096), (PageSize::Base, 4096)]),
        (GIB, 2 * SECOND, &[(PageSize::Base, GIB + 4097)]),
    ];
    for (rate_bytes_per_s, interval_ns, debts) in cases {
        let tuning = Tuning { rate_bytes_per_s, interval_ns, ..Tuning::default() };
        let mut seen = seen(0, 0, [0, 0]);
        let pools = [GIB, 2 << 20].map(|page_bytes| HugePagePool {
            page_bytes,
            total_pages: 64,
            free_pages: 64,
            surplus_pages: 0,
        });
        seen.machine.topology.nodes.iter_mut().for_each(|node| node.huge_pages = pools.to_vec());
        let (db, load) = (seen.machine.parts.remove(0), seen.loads.remove(&"db".into()).unwrap());
        for (i, &(page_size, bytes)) in debts.iter().enumerate() {
            let (id, resident_bytes) = (PartId::of(i.to_string()), [(NodeId(1), bytes)].into());
            let claim =
                Some(Claim { page_size, bytes: [(NodeId(0), bytes)].into(), ..Claim::default() });
            seen.machine.parts.push(PartState {
                id: id.clone(),
                claim,
                resident_bytes,
                ..db.clone()
            });
            // Nothing runs: debt of idle parts comes home, too.
            seen.loads.insert(id, PartLoad { cpu_ns: ByNode::new(), ..load.clone() });
        }
        let all: u64 = debts.iter().map(|&(_, bytes)| bytes).sum();
        let largest = debts.iter().map(|&(page_size, _)| page_bytes(page_size)).max().unwrap();
        let budget = budget_bytes(&tuning, 1_000_000);
        let (mut history, mut moved, mut intervals) = (History::default(), 0, 0);
        let (all_loads, max_intervals) =
            (seen.loads.clone(), 8 + 3 * (all + largest * debts.len() as u64) / budget);
        while moved < all {
            seen.interval = intervals;
            seen.loads = all_loads.clone();
            seen.loads.retain(|id, _| history.next_sample(id) <= intervals);
            let (plan, next) = decide(&tuning, &seen, &history);
            history = next;
            assert_eq!(plan.transactions, []);
            for PageMove { part, batch, .. } in plan.moves.iter().map(|step| &step.action) {
                let bytes = batch.unwrap().max_bytes;
                let state = seen.machine.parts.iter_mut().find(|state| state.id == *part).unwrap();
                *state.resident_bytes.get_mut(&NodeId(1)).unwrap() -= bytes;
                *state.resident_bytes.entry(NodeId(0)).or_default() += bytes;
                moved += bytes;
            }
            intervals += 1;
            let earned = budget * intervals + largest * debts.len() as u64;
            assert!(
                moved <= earned,
                "{moved} bytes in {intervals} intervals at {rate_bytes_per_s} bytes/s"
            );
            assert!(
                intervals <= max_intervals,
                "{moved} of {all} bytes in {intervals} intervals: {seen:?}"
            );
        }
        assert!(
            history
                .parts
                .values()
                .all(|known| known.carried_bytes.values().all(|&carried| carried <= largest))
        );
    }
}

#[test]
fn less_than_a_page_stays() {
    let moved = |bytes: u64| {
        let mut seen = seen(1, 0, [0, 0]);
        seen.machine.parts[0].resident_bytes.insert(NodeId(1), bytes);
        let (plan, _) = decide(&Tuning::default(), &seen, &History::default());
        moved_bytes(&plan)
    };
    assert_eq!(moved(4095), [0; 0]);
    assert_eq!(moved(4096), [4096]);
    assert_eq!(moved(5000), [5000]);
}

#[test]
fn reasons_and_statuses_carry_figures() {
    let tuning = Tuning::default();
    let mut history = History::default();
    let mut said = Vec::new();
    for interval in 0..12 {
        let (plan, next) = decide(&tuning, &seen(interval, 2, [4, 0]), &history);
        history = next;
        said.push(history.parts[&"db".into()].status.to_string());
        let steps = plan.transactions.iter().flat_map(|it| &it.steps);
        said.extend(steps.map(|step| format!("{}: {}", step.action, step.reason)));
        if !plan.transactions.is_empty() {
            break;
        }
    }
    assert_eq!(
        said[0],
        "contended at home for 1 interval (50 % of CPU time elsewhere); below the contention \
         threshold"
    );
    let reason = "2.00 vCPUs, predicted slow-down 1.000 instead of 1.400: saves 571 ms of CPU time \
                  a second; 4 GiB to move cost 8192 ms, paid back in 15 s";
    assert_eq!(
        said[said.len() - 2..],
        [
            format!("claim node 1: 2 vCPUs, 4 GiB: {reason}"),
            format!("make node 1 the home: {reason}")
        ]
    );
}

#[test]
fn the_memory_of_a_part_with_a_mover_is_left_to_it() {
    let tuning = Tuning::default();
    // Debt on node 1, and the bytes that move; with none, the part is confined to its home.
    for (debt, mover, moved, confines) in [
        (1 << 20, None, vec![1 << 20], false),
        (1 << 20, Some(731), vec![], false),
        (0, None, vec![], true),
        (0, Some(731), vec![], false),
    ] {
        let mut seen = seen(1, 0, [0, 0]);
        let state = MemoryState { free_bytes: 8 * GIB, ..MemoryState::default() };
        seen.machine.topology.nodes.iter_mut().for_each(|node| node.state = Some(state));
        let part = &mut seen.machine.parts[0];
        part.resident_bytes.insert(NodeId(1), debt);
        part.home.as_mut().unwrap().policy = MemoryPolicy::Strict;
        part.memory_nodes = Some([NodeId(0), NodeId(1)].into());
        part.mover = mover;
        let (plan, history) = decide(&tuning, &seen, &History::default());
        let steps: Vec<_> = plan.transactions.iter().flat_map(|it| &it.steps).collect();
        let is_confined = steps.iter().any(|step| step.reason == Reason::Arrived);
        assert_eq!((moved_bytes(&plan), is_confined), (moved, confines), "{debt} {mover:?}");
        let said = history.parts[&"db".into()].status.to_string();
        let says = said.contains("off home: `nearside set` moves it (process 731)");
        assert_eq!(says, debt > 0 && mover.is_some(), "{said}");
    }
}
