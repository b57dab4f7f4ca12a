//! The host as homes are evaluated on it: the demand of each part where it will run, and the memory
//! due to it.
//!
//! It is placement's view of the machine with measured demand in place of claimed vCPUs, in
//! thousandths of a CPU. A part counts at its home even if it runs elsewhere at the moment: it
//! returns once there is room.

use super::{
    amounts::{Amounts, BASE_PAGE_BYTES, page_bytes, split, sum},
    learning::Learned,
    smoothing::MAX_MILLI_VCPUS,
    tuning::Tuning,
};
use crate::{
    Affinity, ByNode, Claim, ControlObservation, CostModel, MemoryPolicy, Observation, PageSize,
    PartHistory, PartState, SlowDown, allocatable,
    cost::Ask,
    index::{IndexVec, NodeIndex, PartIndex},
    offered::tiers_to_leave_out,
    view::{PPM, View},
};
use nearside_topology::{NodeId, NodeSet};

/// A part as its homes are evaluated.
#[derive(Debug, Clone)]
pub(super) struct PartModel {
    pub(super) demand_milli: u64,
    pub(super) affinity: Affinity,
    pub(super) policy: MemoryPolicy,
    pub(super) page_size: PageSize,
    /// Nodes of devices it should be near.
    pub(super) near: Vec<NodeIndex>,
    /// The nodes of its home, rising; empty without a home.
    pub(super) home: Vec<NodeIndex>,
    /// Its demand by node of its home; without a home, by node where it ran.
    pub(super) load_milli: Amounts,
    /// Its resident memory, in bytes.
    pub(super) held_bytes: Amounts,
    /// Resident memory that stays where it is, whatever the home, in bytes.
    pub(super) staying_bytes: Amounts,
    /// Memory that is claimed on a node and not there yet, in bytes. Unlike
    /// [`outstanding`](crate::outstanding) this includes memory it holds elsewhere, for that is on
    /// its way.
    pub(super) due_bytes: Amounts,
    /// Memory it needs room for: its claim, or its resident memory if that is more.
    pub(super) needed_bytes: u64,
    /// How much longer it is expected to run, in ns, up to the horizon.
    pub(super) horizon_ns: u64,
}

/// The host with all parts.
#[derive(Debug)]
pub(super) struct HostModel {
    /// Invariant: its `busy` and `demand_kb_s`, and the due and freed bytes of the ledgers, are the
    /// sums over the parts that are counted: all but those that were removed and not added again.
    view: View,
    parts: IndexVec<PartIndex, PartModel>,
    /// The assumptions, for thousandths of a CPU.
    model: CostModel,
    /// How many times as long all work takes where the demand exceeds the CPUs of the host.
    stretch: SlowDown,
    /// The nodes whose memory homes leave out, attempt by attempt.
    left_out: Vec<Vec<NodeIndex>>,
    ledgers: Vec<Ledger>,
    /// The ledgers before any decision of the round.
    ledgers_before: Vec<Ledger>,
}

// Memory in pages of one size, in bytes by node.
#[derive(Debug, Clone)]
struct Ledger {
    page_size: PageSize,
    // Memory that claims may count on.
    allocatable: IndexVec<NodeIndex, u64>,
    // Claimed or reserved, and not there yet.
    due: IndexVec<NodeIndex, u128>,
    // Resident memory of parts that are removed from the model.
    freed: IndexVec<NodeIndex, u128>,
}

/// The memory on a node that can still arrive there, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Room {
    /// Without memory that is due to any part.
    pub(super) available: u64,
    /// Including it.
    pub(super) allocatable: u64,
}

impl HostModel {
    pub(super) fn new(tuning: &Tuning, seen: &ControlObservation, learned: &Learned) -> Self {
        let topology = &seen.machine.topology;
        let empty = Observation::of(topology.clone());
        let mut view = View::new(&empty, PageSize::Base, BASE_PAGE_BYTES, &tuning.model);
        for node in view.nodes.iter_mut() {
            node.cores *= 1000;
            node.threads *= 1000;
            // Work outside all domains cannot use more than the CPUs of its node.
            node.busy =
                learned.nodes.get(&node.id).map_or(0, |known| known.others.0).min(node.threads);
        }
        let mut ledgers: Vec<Ledger> = Vec::new();
        for page_size in seen.machine.parts.iter().map(page_size_of) {
            if !ledgers.iter().any(|ledger| ledger.page_size == page_size) {
                let of_node = |node| allocatable(node, page_size).allocatable_bytes;
                let allocatable: IndexVec<_, u64> = topology.nodes.iter().map(of_node).collect();
                let (freed, mut due) = {
                    let nothing = IndexVec::filled(0, allocatable.len());
                    (nothing.clone(), nothing)
                };
                let reserved = seen.machine.reservations.iter();
                let reserved = reserved.filter(|it| it.page_size == page_size);
                for (&node, &bytes) in reserved.flat_map(|it| &it.bytes) {
                    if let Some(i) = view.index_of(node) {
                        due[i] = u128::saturating_add(due[i], bytes.into());
                    }
                }
                ledgers.push(Ledger { page_size, allocatable, due, freed });
            }
        }
        let vcpu_bandwidth_mb_s = tuning.model.vcpu_bandwidth_mb_s / 1000.0;
        let model = CostModel { vcpu_bandwidth_mb_s, ..tuning.model };
        let parts = Vec::new().into();
        let indices = |nodes: NodeSet| nodes.iter().filter_map(|it| view.index_of(it)).collect();
        let left_out = tiers_to_leave_out(topology).into_iter().map(indices).collect();
        let (stretch, ledgers_before) = (SlowDown::NONE, Vec::new());
        let mut host = Self { view, parts, model, stretch, left_out, ledgers, ledgers_before };
        let parts = seen.machine.parts.iter().zip(learned.parts.iter());
        let parts: IndexVec<PartIndex, PartModel> =
            parts.map(|(state, known)| host.part_of(state, known, tuning, seen)).collect();
        parts.iter().for_each(|part| host.add(part));
        // The resident memory of the parts was never free.
        host.ledgers.iter_mut().for_each(|ledger| ledger.freed.fill(0));
        host.ledgers_before.clone_from(&host.ledgers);
        host.parts = parts;
        host.stretch = host.stretch_of_all();
        host
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    pub(super) fn cost_model(&self) -> &CostModel {
        &self.model
    }

    pub(super) fn stretch(&self) -> SlowDown {
        self.stretch
    }

    /// The nodes whose memory homes leave out, attempt by attempt; nothing in the last.
    pub(super) fn left_out(&self) -> &[Vec<NodeIndex>] {
        &self.left_out
    }

    pub(super) fn part(&self, at: PartIndex) -> &PartModel {
        &self.parts[at]
    }

    // A part with hard affinity demands no more of a node than that node's CPUs.
    fn stretch_of_all(&self) -> SlowDown {
        let (mut wanted, mut threads) = (0_u128, 0_u128);
        for (i, node) in self.view.nodes.enumerate() {
            let bound = self.parts.iter().filter(|part| part.affinity == Affinity::Hard);
            let bound = bound.flat_map(|part| &part.load_milli).filter(|(at, _)| *at == i);
            let bound_milli = bound.fold(0_u64, |sum, &(_, milli)| sum.saturating_add(milli));
            wanted += u128::from(node.busy.saturating_sub(bound_milli))
                + u128::from(bound_milli.min(node.threads));
            threads += u128::from(node.threads);
        }
        let stretch_ppm = (wanted * u128::from(PPM)).div_ceil(threads.max(1));
        SlowDown(u64::try_from(stretch_ppm).unwrap_or(u64::MAX)).max(SlowDown::NONE)
    }

    fn part_of(
        &self,
        state: &PartState,
        known: &PartHistory,
        tuning: &Tuning,
        seen: &ControlObservation,
    ) -> PartModel {
        let indices = |nodes: &NodeSet| -> Vec<NodeIndex> {
            nodes.iter().filter_map(|node| self.view.index_of(node)).collect()
        };
        let amount = |node: NodeId, it: u64| Some((self.view.index_of(node)?, it));
        let amounts = |by_node: &ByNode| -> Amounts {
            by_node.iter().filter_map(|(&node, &it)| amount(node, it)).collect()
        };
        let home = state.home.as_ref().map_or_else(Vec::new, |home| indices(&home.nodes));
        // A history that was read from a file may hold any number.
        let demand_milli = known.demand.0.min(MAX_MILLI_VCPUS);
        let near = seen.loads.get(&state.id).map_or_else(Vec::new, |load| {
            load.near.iter().filter_map(|&node| self.view.index_of(node)).collect()
        });
        let no_claim = Claim::default();
        let claim = state.claim.as_ref().unwrap_or(&no_claim);
        let held = |node: NodeId| state.resident_bytes.get(&node).copied().unwrap_or(0);
        let load_milli = match home.is_empty() {
            true => split(demand_milli, &amounts(&known.share_ppm)),
            false => self.load_at(&home, demand_milli, &amounts(&claim.vcpus)),
        };
        let due = claim.bytes.iter();
        let due = due.filter_map(|(&node, &it)| amount(node, it.saturating_sub(held(node))));
        let staying = state.unmapped_bytes.iter();
        let staying = staying.filter_map(|(&node, &it)| amount(node, it.min(held(node))));
        let all_held = state.resident_bytes.values().copied().fold(0, u64::saturating_add);
        PartModel {
            demand_milli,
            affinity: state.home.as_ref().map_or(Affinity::Soft, |home| home.affinity),
            policy: state.home.as_ref().map_or(MemoryPolicy::Local, |home| home.policy),
            page_size: page_size_of(state),
            near,
            home,
            load_milli,
            held_bytes: amounts(&state.resident_bytes),
            staying_bytes: staying.collect(),
            due_bytes: due.collect(),
            needed_bytes: claim.total_bytes().max(all_held),
            horizon_ns: horizon_ns(tuning, known.age_intervals(seen.interval)),
        }
    }

    /// A part's demand by node of its home: as its claim spreads its vCPUs, or by CPUs without a
    /// claim there.
    fn load_at(&self, home: &[NodeIndex], demand_milli: u64, claimed: &Amounts) -> Amounts {
        let claimed: Amounts =
            claimed.iter().copied().filter(|(i, vcpus)| home.contains(i) && *vcpus > 0).collect();
        let weights = if claimed.is_empty() { self.cores_of(home) } else { claimed };
        split(demand_milli, &weights)
    }

    /// The cores of each node with CPUs, in thousandths.
    pub(super) fn cores_of(&self, nodes: &[NodeIndex]) -> Amounts {
        let cores = nodes.iter().map(|&i| (i, self.view.nodes[i].cores));
        cores.filter(|(_, cores)| *cores > 0).collect()
    }

    /// The load on some nodes, once every part runs at home, in thousandths of a CPU.
    pub(super) fn load_milli(&self, nodes: &[NodeIndex]) -> u64 {
        nodes.iter().fold(0, |sum: u64, &i| sum.saturating_add(self.view.nodes[i].busy))
    }

    /// Counts a part in.
    pub(super) fn add(&mut self, part: &PartModel) {
        self.count(part, u64::saturating_add, u128::saturating_add, u128::saturating_sub);
    }

    /// Counts a part out: the host as the part would find it.
    pub(super) fn remove(&mut self, part: &PartModel) {
        self.count(part, u64::saturating_sub, u128::saturating_sub, u128::saturating_add);
    }

    /// Counts a part, which must not be removed, in another state.
    pub(super) fn replace(&mut self, at: PartIndex, part: PartModel) {
        let before = self.parts[at].clone();
        self.remove(&before);
        self.add(&part);
        self.parts[at] = part;
    }

    fn count(
        &mut self,
        part: &PartModel,
        load: fn(u64, u64) -> u64,
        due: fn(u128, u128) -> u128,
        freed: fn(u128, u128) -> u128,
    ) {
        for &(i, milli) in &part.load_milli {
            let busy = &mut self.view.nodes[i].busy;
            *busy = load(*busy, milli);
        }
        let all_held = sum(&part.held_bytes);
        for &(i, bytes) in &part.held_bytes {
            let demand_kb_s = &mut self.view.nodes[i].demand_kb_s;
            *demand_kb_s =
                load(*demand_kb_s, self.model.demand_kb_s(part.demand_milli, bytes, all_held));
        }
        if let Some(ledger) = self.ledgers.iter_mut().find(|it| it.page_size == part.page_size) {
            for &(i, bytes) in &part.due_bytes {
                ledger.due[i] = due(ledger.due[i], bytes.into());
            }
            for &(i, bytes) in &part.held_bytes {
                ledger.freed[i] = freed(ledger.freed[i], bytes.into());
            }
        }
    }

    /// Brings the view's available pages up to date for a part that was removed; its request in the
    /// units of costing.
    pub(super) fn ask_of(&mut self, part: &PartModel) -> Ask {
        let page_bytes = page_bytes(part.page_size);
        let ledger = self.ledgers.iter().find(|ledger| ledger.page_size == part.page_size);
        let mut all_pages = 0_u64;
        for i in self.view.nodes.indices() {
            let pages = ledger.map_or(0, |ledger| ledger.available(i)) / page_bytes;
            self.view.nodes[i].available_pages = pages;
            all_pages = all_pages.saturating_add(pages);
        }
        self.view.available_pages = all_pages;
        Ask {
            vcpus: part.demand_milli.max(1),
            pages: part.needed_bytes.div_ceil(page_bytes).max(1),
            policy: part.policy,
            stays_home: part.policy.confines(),
            page_size: part.page_size,
            near: part.near.clone(),
        }
    }

    /// The room on a node for pages of a size.
    pub(super) fn room(&self, page_size: PageSize, i: NodeIndex) -> Room {
        room(&self.ledgers, page_size, i)
    }

    /// The room on a node for page moves, whether or not the transactions of this round are
    /// applied.
    pub(super) fn room_for_moves(&self, page_size: PageSize, i: NodeIndex) -> Room {
        let before = room(&self.ledgers_before, page_size, i);
        let now = room(&self.ledgers, page_size, i);
        Room { available: before.available.min(now.available), ..now }
    }
}

fn room(ledgers: &[Ledger], page_size: PageSize, i: NodeIndex) -> Room {
    let ledger = ledgers.iter().find(|ledger| ledger.page_size == page_size);
    ledger.map_or(Room::default(), |ledger| Room {
        available: ledger.available(i),
        allocatable: ledger.allocatable[i],
    })
}

impl Ledger {
    fn available(&self, i: NodeIndex) -> u64 {
        let there = u128::from(self.allocatable[i]).saturating_add(self.freed[i]);
        u64::try_from(there.saturating_sub(self.due[i])).unwrap_or(u64::MAX)
    }
}

/// How much longer a part of such an age is expected to run, up to the horizon: as long again as it
/// has run. That is the rule for renting or buying: a buyer who waits until the rent adds up to the
/// price pays at most twice the optimum.
pub(super) fn horizon_ns(tuning: &Tuning, age_intervals: u64) -> u64 {
    tuning.horizon_intervals.min(age_intervals).saturating_mul(tuning.interval_ns)
}

/// The pages of a part's memory.
fn page_size_of(state: &PartState) -> PageSize {
    state.claim.as_ref().map_or(PageSize::Base, |claim| claim.page_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Reservation,
        controllers::homes::fixture::{GIB, SECOND, learned, part, seen},
        index::Index,
    };

    const FIRST: fn(usize) -> NodeIndex = NodeIndex::at;

    fn host(seen: &ControlObservation) -> HostModel {
        let tuning = Tuning::default();
        HostModel::new(&tuning, seen, &learned(&tuning, seen))
    }

    #[test]
    fn a_part_counts_at_its_home_wherever_it_runs() {
        // 2 CPUs at home on node 0, of which it spends one on node 1.
        let host = host(&seen(1, 2, [0, 0]));
        assert_eq!(host.part(part(0)).load_milli, [(FIRST(0), 2000)]);
        assert_eq!([0, 1].map(|i| host.load_milli(&[FIRST(i)])), [2000, 0]);
    }

    #[test]
    fn work_outside_domains_takes_no_more_than_the_cpus_of_its_node() {
        // 9 CPU-seconds in 2 s on a node of two CPUs count as 2 CPUs.
        let host = host(&seen(1, 0, [9, 0]));
        assert_eq!(host.load_milli(&[FIRST(0)]), 2000 + 2000);
    }

    #[test]
    fn without_a_claim_demand_spreads_over_the_cpus_of_the_home() {
        let mut seen = seen(1, 0, [0, 0]);
        seen.machine.parts[0].claim = None;
        let home = seen.machine.parts[0].home.as_mut().unwrap();
        home.nodes = [0, 1].map(NodeId).into_iter().collect();
        let host = host(&seen);
        assert_eq!(host.part(part(0)).load_milli, [(FIRST(0), 1000), (FIRST(1), 1000)]);
    }

    #[test]
    fn memory_that_is_claimed_and_not_there_yet_is_due() {
        let mut seen = seen(1, 0, [0, 0]);
        // 4 GiB are claimed on node 0, of which 1 GiB is there and 2 GiB lie on node 1.
        seen.machine.parts[0].resident_bytes = [(NodeId(0), GIB), (NodeId(1), 2 * GIB)].into();
        let host = host(&seen);
        assert_eq!(host.part(part(0)).due_bytes, [(FIRST(0), 3 * GIB)]);
        let room = host.room(PageSize::Base, FIRST(0));
        assert_eq!(room, Room { available: 13 * GIB, allocatable: 16 * GIB });
    }

    #[test]
    fn memory_that_a_reservation_will_fill_is_due() {
        let mut seen = seen(1, 0, [0, 0]);
        for (page_size, gib) in [(PageSize::Base, 2), (PageSize::Base, 3), (PageSize::Huge(GIB), 7)]
        {
            let bytes = [(NodeId(1), gib * GIB)].into();
            seen.machine.reservations.push(Reservation {
                name: "copy".into(),
                bytes,
                page_size,
                ..Reservation::default()
            });
        }
        // 2 + 3 GiB of 16 in ordinary pages; huge pages are of another pool.
        let room = host(&seen).room(PageSize::Base, FIRST(1));
        assert_eq!(room, Room { available: 11 * GIB, allocatable: 16 * GIB });
    }

    #[test]
    fn a_removed_part_leaves_its_memory_and_its_load() {
        let mut host = host(&seen(1, 0, [0, 0]));
        let db = host.part(part(0)).clone();
        host.remove(&db);
        assert_eq!(host.load_milli(&[FIRST(0)]), 0);
        assert_eq!(host.room(PageSize::Base, FIRST(0)).available, 20 * GIB);
        host.add(&db);
        assert_eq!(host.load_milli(&[FIRST(0)]), 2000);
        assert_eq!(host.room(PageSize::Base, FIRST(0)).available, 16 * GIB);
    }

    #[test]
    fn page_moves_count_on_no_memory_that_a_decision_of_the_round_gives_up() {
        let mut seen = seen(1, 0, [0, 0]);
        seen.machine.parts[0].resident_bytes = [(NodeId(0), GIB)].into();
        let mut host = host(&seen);
        // 3 GiB are due to db on node 0, until it moves away.
        let moved = PartModel { due_bytes: Amounts::new(), ..host.part(part(0)).clone() };
        host.replace(part(0), moved);
        assert_eq!(host.room(PageSize::Base, FIRST(0)).available, 16 * GIB);
        assert_eq!(host.room_for_moves(PageSize::Base, FIRST(0)).available, 13 * GIB);
    }

    #[test]
    fn the_ask_of_a_part_is_its_demand_and_all_memory_it_needs() {
        let mut host = host(&seen(1, 0, [0, 0]));
        let db = host.part(part(0)).clone();
        let ask = host.ask_of(&db);
        assert_eq!((ask.vcpus, ask.pages), (2000, 4 * GIB / 4096));
        assert_eq!(host.view().available_pages, 32 * GIB / 4096);
    }

    #[test]
    fn work_stretches_once_all_parts_together_demand_more_than_the_cpus() {
        // 2 + 2.5 CPUs of 4 are demanded: 4.5 / 4.
        assert_eq!(host(&seen(1, 0, [2, 3])).stretch(), SlowDown(1_125_000));
        assert_eq!(host(&seen(1, 0, [0, 0])).stretch(), SlowDown::NONE);
    }

    #[test]
    fn a_part_with_hard_affinity_demands_nothing_of_other_nodes() {
        // It wants 2 CPUs of node 0, where 2 more are taken; node 1 has 2 idle CPUs that it cannot
        // use, so of 4 CPUs 4 are wanted: 2 of 2 by the bound part, and 2 by others.
        let mut seen = seen(1, 0, [4, 0]);
        seen.machine.parts[0].home.as_mut().unwrap().affinity = Affinity::Hard;
        assert_eq!(host(&seen).stretch(), SlowDown::NONE);
    }

    #[test]
    fn a_part_is_expected_to_run_as_long_again_as_it_has() {
        for horizon_intervals in [0, 1, 150, u64::MAX] {
            let tuning = Tuning { horizon_intervals, ..Tuning::default() };
            for age in [0, 1, 2, 149, 150, 151, 100_000] {
                let expected = age.min(horizon_intervals) * 2 * SECOND;
                assert_eq!(horizon_ns(&tuning, age), expected, "{age} of {horizon_intervals}");
            }
        }
    }
}
