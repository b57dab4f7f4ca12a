//! The consequences of a home for a part: its predicted slow-down, the bytes to move, and whether
//! there is room.
//!
//! The slow-down is ADR 2's, but for full homes. ADR 2 lets vCPUs that do not fit a home wait. A
//! scheduler that knows node affinity runs them elsewhere, on the nearest idle CPUs, at the price
//! of the distance to their memory. So of a part on a full home
//! - vCPUs that fit cost what ADR 2 says for that many,
//! - vCPUs that do not fit cost the latency from the nearest idle CPUs,
//! - vCPUs without any idle CPU wait, as ADR 2 says.
//!
//! Memory that cannot move stays where it is, so memory is as far as the home leaves it.
//!
//! Where all parts together demand more than the host has, such a scheduler shares out the CPU time
//! of the whole host: every part waits alike, at every home.

use super::{
    amounts::{Amounts, on, page_bytes, split, sum},
    model::{HostModel, PartModel},
    tuning::Tuning,
};
use crate::{
    Affinity, MilliVcpus, Parts, Payback, SlowDown,
    cost::{Ask, Costing, Prediction, Unfit},
    index::{IndexVec, NodeIndex},
    place::{EXHAUSTIVE_NODES, evaluate_all},
    ranking::Ranking,
    search,
    view::{NodeView, PPM, UNREACHABLE},
};
use std::cmp::Reverse;

/// A home as it was evaluated.
#[derive(Debug, Clone)]
pub(super) struct Evaluation {
    /// Its nodes, rising.
    pub(super) home: Vec<NodeIndex>,
    pub(super) slow_down: SlowDown,
    /// Memory of the part that lies elsewhere and can move, in bytes.
    pub(super) bytes_to_move: u64,
    /// CPU time that moving it takes, in ns.
    pub(super) costs_ns: u64,
    /// Whether all memory it needs is available there.
    pub(super) has_room: bool,
    pub(super) vcpus_per_core_ppm: u64,
    pub(super) free_after_pages: u64,
    /// Its demand by node, in thousandths of a CPU.
    pub(super) load_milli: Amounts,
    pub(super) pages: Amounts,
}

impl Evaluation {
    /// A home at which nothing can run: its nodes have gone.
    pub(super) fn impossible(home: &[NodeIndex]) -> Self {
        Self {
            home: home.to_vec(),
            slow_down: SlowDown(u64::MAX),
            bytes_to_move: 0,
            costs_ns: 0,
            has_room: false,
            vcpus_per_core_ppm: 0,
            free_after_pages: 0,
            load_milli: Amounts::new(),
            pages: Amounts::new(),
        }
    }
}

/// Evaluates homes for one part on a host from which it was removed.
#[derive(Debug)]
pub(super) struct Evaluator<'a> {
    host: &'a HostModel,
    part: &'a PartModel,
    tuning: &'a Tuning,
    ask: Ask,
    /// Whether vCPUs whose home is full run elsewhere.
    spills: bool,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(
        host: &'a mut HostModel,
        part: &'a PartModel,
        tuning: &'a Tuning,
        soft_affinity: bool,
    ) -> Self {
        let ask = host.ask_of(part);
        Self { host, part, tuning, ask, spills: soft_affinity && part.affinity == Affinity::Soft }
    }

    /// The consequences of a home; None where it has no CPU, or no room at all.
    pub(super) fn evaluate(&self, home: &[NodeIndex]) -> Option<Evaluation> {
        self.evaluate_with(&mut self.costing(), home)
    }

    fn costing(&self) -> Costing<'_> {
        Costing::new(self.host.view(), &self.ask, self.host.cost_model())
    }

    // As `evaluate`, with the buffers of an earlier evaluation.
    fn evaluate_with(&self, costing: &mut Costing<'_>, home: &[NodeIndex]) -> Option<Evaluation> {
        let prediction = match costing.predict(home, SlowDown(u64::MAX)) {
            Ok(prediction) => prediction,
            Err(Unfit::TooSmall(room)) if room.pages > 0 => {
                let ask = Ask { pages: room.pages, ..self.ask.clone() };
                let mut costing = Costing::new(self.host.view(), &ask, self.host.cost_model());
                let prediction = costing.predict(home, SlowDown(u64::MAX)).ok()?;
                return Some(self.evaluation(&costing, prediction, home, false));
            }
            Err(_) => return None,
        };
        let has_memory = home.iter().any(|&i| self.host.view().nodes[i].has_memory);
        let has_room =
            has_memory && prediction.spilled_pages == 0 && self.may_keep_its_memory(home);
        Some(self.evaluation(costing, prediction, home, has_room))
    }

    fn evaluation(
        &self,
        costing: &Costing<'_>,
        prediction: Prediction,
        home: &[NodeIndex],
        has_room: bool,
    ) -> Evaluation {
        let load_milli: Amounts = costing.layout().vcpus().collect();
        let mut pages: Amounts = costing.layout().pages().collect();
        pages.sort_unstable();
        let lying = self.lying(home, &pages);
        let prediction = self.as_it_lies(prediction, home, &lying);
        let slow_down = match self.spills {
            true => self.spilling(prediction, home, &load_milli, &lying),
            false => prediction.slow_down,
        };
        let (bytes_to_move, costs_ns) = self.moving(home);
        let Prediction { vcpus_per_core_ppm, free_after_pages, .. } = prediction;
        let home = home.to_vec();
        Evaluation {
            home,
            slow_down,
            bytes_to_move,
            costs_ns,
            has_room,
            vcpus_per_core_ppm,
            free_after_pages,
            load_milli,
            pages,
        }
    }

    // Memory that the part holds on a node of a new home stays there. Another claim may count on
    // it to leave: then it must be available.
    fn may_keep_its_memory(&self, home: &[NodeIndex]) -> bool {
        let page_bytes = page_bytes(self.part.page_size);
        home.iter().filter(|i| !self.part.home.contains(i)).all(|&i| {
            let available_pages = self.host.view().nodes[i].available_pages;
            on(&self.part.held_bytes, i) / page_bytes <= available_pages
        })
    }

    // Where its pages are in the end: as ADR 2 lays them out, but for those that cannot move.
    fn lying(&self, home: &[NodeIndex], pages: &Amounts) -> Amounts {
        let page_bytes = page_bytes(self.part.page_size);
        let off = self.part.staying_bytes.iter().filter(|(i, _)| !home.contains(i));
        let mut lying: Amounts =
            off.map(|&(i, bytes)| (i, bytes / page_bytes)).filter(|(_, n)| *n > 0).collect();
        let arriving = sum(pages).saturating_sub(sum(&lying));
        lying.extend(split(arriving, pages));
        lying
    }

    // Memory is no nearer than where it lies, seen from all CPUs of the home alike: a scheduler
    // prefers all of them, whereas ADR 2 places whole vCPUs where there is most room, and would
    // take one node and a sliver of another for a home of two.
    fn as_it_lies(
        &self,
        prediction: Prediction,
        home: &[NodeIndex],
        pages: &Amounts,
    ) -> Prediction {
        let (mut sum, mut all) = (0_u128, 0_u128);
        for &i in home {
            let cores = u128::from(self.host.view().nodes[i].cores);
            sum += cores * self.memory_ppm(i, pages).map_or(u128::from(PPM), u128::from);
            all += cores;
        }
        let memory_ppm = sum.div_ceil(all.max(1)) as u64;
        let parts =
            Parts { memory: prediction.parts.memory.max(SlowDown(memory_ppm)), ..prediction.parts };
        Prediction { slow_down: parts.product(), parts, ..prediction }
    }

    // The bytes off a home that can move, and the CPU time to bring each to the nearest of its
    // nodes.
    fn moving(&self, home: &[NodeIndex]) -> (u64, u64) {
        let off = self.part.held_bytes.iter().filter(|(i, _)| !home.contains(i));
        off.fold((0, 0), |(sum, costs): (u64, u64), &(from, held_bytes)| {
            let bytes = held_bytes.saturating_sub(on(&self.part.staying_bytes, from));
            let latencies = self.host.view().latencies_ppm(from);
            let nearest_ppm = home.iter().map(|&to| latencies[to]).min().unwrap_or(UNREACHABLE);
            let costs = costs.saturating_add(move_cost_ns(self.tuning, bytes, nearest_ppm));
            (sum.saturating_add(bytes), costs)
        })
    }

    // The slow-down where vCPUs that do not fit the home run elsewhere.
    fn spilling(
        &self,
        all: Prediction,
        home: &[NodeIndex],
        load_milli: &Amounts,
        pages: &Amounts,
    ) -> SlowDown {
        let stretch = self.host.stretch();
        let waiting = |parts: Parts| Parts { cpu: parts.cpu.max(stretch), ..parts }.product();
        let at_home = waiting(all.parts);
        let nodes = &self.host.view().nodes;
        let spare_of = |node: &NodeView| node.threads.saturating_sub(node.busy);
        let over =
            load_milli.iter().map(|&(i, milli)| (i, milli.saturating_sub(spare_of(&nodes[i]))));
        let over: Amounts = over.collect();
        let over_milli: u64 = over.iter().map(|&(_, milli)| milli).sum();
        if over_milli == 0 {
            return at_home;
        }
        let fits_milli = self.ask.vcpus - over_milli;
        let fitting = match fits_milli {
            0 => SlowDown::NONE,
            vcpus => {
                let ask = Ask { vcpus, ..self.ask.clone() };
                let mut costing = Costing::new(self.host.view(), &ask, self.host.cost_model());
                costing
                    .predict(home, SlowDown(u64::MAX))
                    .map_or(at_home, |fitting| waiting(self.as_it_lies(fitting, home, pages).parts))
            }
        };
        let mut spare: IndexVec<NodeIndex, u64> = nodes.iter().map(spare_of).collect();
        for &(i, milli) in load_milli {
            spare[i] = spare[i].saturating_sub(milli);
        }
        // The mean over all vCPUs, each with its own slow-down.
        let mut sum = u128::from(fits_milli) * u128::from(fitting.0);
        for (from, mut left) in over {
            for &to in self.host.view().nearest(from) {
                let Some(memory_ppm) = self.memory_ppm(to, pages) else { continue };
                let taken = left.min(spare[to]);
                spare[to] -= taken;
                left -= taken;
                let away = Parts { cpu: stretch, memory: SlowDown(memory_ppm), ..all.parts };
                sum += u128::from(taken) * u128::from(away.product().0);
                if left == 0 {
                    break;
                }
            }
            sum += u128::from(left) * u128::from(at_home.0);
        }
        SlowDown(u64::try_from(sum.div_ceil(u128::from(self.ask.vcpus))).unwrap_or(u64::MAX))
            .min(at_home)
    }

    // The slow-down of running on a node by the distance of all pages; None where one cannot be
    // reached.
    fn memory_ppm(&self, from: NodeIndex, pages: &Amounts) -> Option<u64> {
        let latencies = self.host.view().latencies_ppm(from);
        let (mut waits, mut all) = (0_u128, 0_u128);
        for &(to, pages) in pages.iter().filter(|(_, pages)| *pages > 0) {
            if latencies[to] == UNREACHABLE {
                return None;
            }
            waits += u128::from(pages) * u128::from(latencies[to]);
            all += u128::from(pages);
        }
        let latency_ppm = waits.div_ceil(all.max(1)) as u64;
        let share_ppm =
            (self.tuning.model.memory_share.clamp(0.0, 1.0) * PPM as f64).round() as u64;
        Some(PPM - share_ppm + (share_ppm * latency_ppm).div_ceil(PPM))
    }

    /// The homes with room that are worth evaluating: every single node, and the best sets as
    /// placement ranks them where no node alone means no slow-down, nor gives the part its share of
    /// a crowded host. None has a node of `barred`, and none has memory of a lower tier if others
    /// have room.
    pub(super) fn candidates(&self, barred: &[NodeIndex]) -> Vec<Evaluation> {
        let attempts = self.host.left_out().iter().map(|left_out| [barred, left_out].concat());
        let found = attempts.map(|barred| self.candidates_without(&barred));
        found.into_iter().find(|homes| !homes.is_empty()).unwrap_or_default()
    }

    fn candidates_without(&self, barred: &[NodeIndex]) -> Vec<Evaluation> {
        let nodes = self.host.view().nodes.indices().filter(|i| !barred.contains(i));
        let mut costing = self.costing();
        let mut homes: Vec<Evaluation> =
            nodes.filter_map(|i| self.evaluate_with(&mut costing, &[i])).collect();
        homes.retain(|home| home.has_room);
        if homes
            .iter()
            .any(|home| home.slow_down <= SlowDown::NONE || self.is_wide_enough(home.home[0]))
        {
            return homes;
        }
        let mut ranking = Ranking::without(barred);
        if self.host.view().nodes.len() <= EXHAUSTIVE_NODES {
            evaluate_all(&mut costing, &mut ranking);
        } else {
            search::search(&mut costing, &mut ranking);
        }
        let sets = ranking.best().filter(|set| set.len() > 1);
        let sets = sets.filter_map(|set| self.evaluate_with(&mut costing, set));
        homes.extend(sets.filter(|home| home.has_room));
        homes
    }

    // Whether a node can give the part its share of a crowded host, where more nodes give no more
    // CPU time.
    fn is_wide_enough(&self, node: NodeIndex) -> bool {
        let part_milli =
            u128::from(self.ask.vcpus) * u128::from(PPM) / u128::from(self.host.stretch().0);
        let threads_milli = u128::from(self.host.view().nodes[node].threads);
        self.spills && self.host.stretch() > SlowDown::NONE && part_milli <= threads_milli
    }

    /// The home that takes the least CPU time over the horizon, moving included, for the work that
    /// is done at `here`.
    pub(super) fn best(&self, homes: Vec<Evaluation>, here: SlowDown) -> Option<Evaluation> {
        let rank = |home: &Evaluation| {
            (self.total_ns(home, here), home.vcpus_per_core_ppm, Reverse(home.free_after_pages))
        };
        homes.into_iter().min_by_key(|home| (rank(home), home.home.len(), home.home.clone()))
    }

    fn total_ns(&self, home: &Evaluation, here: SlowDown) -> u128 {
        let running = u128::from(self.part.demand_milli) * u128::from(self.part.horizon_ns) / 1000;
        let running =
            running.saturating_mul(u128::from(home.slow_down.0)) / u128::from(here.0.max(1));
        running.saturating_add(home.costs_ns.into())
    }

    /// Cost and savings of a change from one home to another.
    pub(super) fn payback(&self, here: &Evaluation, there: &Evaluation) -> Payback {
        let bytes_to_move = there.bytes_to_move.saturating_sub(here.bytes_to_move);
        let costs_ns = there.costs_ns.saturating_sub(here.costs_ns);
        let demand = MilliVcpus(self.part.demand_milli);
        Payback::new(demand, here.slow_down, there.slow_down, bytes_to_move, costs_ns)
    }
}

/// CPU time that moving so many bytes over such a latency takes, in ns.
pub(super) fn move_cost_ns(tuning: &Tuning, bytes: u64, latency_ppm: u32) -> u64 {
    let local = u128::from(bytes) * u128::from(tuning.move_cost_ns_per_mib) / (1 << 20);
    u64::try_from(local.saturating_mul(latency_ppm.into()) / u128::from(PPM)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ControlObservation, MemoryPolicy, NodeLoad, Reservation,
        controllers::homes::fixture::{GIB, learned, part, seen},
        index::Index,
    };
    use nearside_topology::{Distances, MemoryTier, Node, NodeId};

    fn nodes(of: &[usize]) -> Vec<NodeIndex> {
        of.iter().map(|&node| NodeIndex::at(node)).collect()
    }

    /// An answer of the evaluator of the part of `seen`.
    fn evaluated<T>(seen: &ControlObservation, ask: impl FnOnce(&Evaluator<'_>) -> T) -> T {
        let tuning = Tuning::default();
        let learned = learned(&tuning, seen);
        let mut host = HostModel::new(&tuning, seen, &learned);
        let db = host.part(part(0)).clone();
        host.remove(&db);
        ask(&Evaluator::new(&mut host, &db, &tuning, seen.soft_affinity))
    }

    /// The consequences of a home for the part of `seen`.
    fn evaluate(seen: &ControlObservation, home: &[usize]) -> Evaluation {
        evaluated(seen, |evaluator| evaluator.evaluate(&nodes(home))).unwrap()
    }

    #[test]
    fn vcpus_that_do_not_fit_run_elsewhere_under_a_scheduler_that_lets_them() {
        let soft = |others| seen(1, 0, others);
        let hard = |others| ControlObservation { soft_affinity: false, ..soft(others) };
        let cases = [
            // Alone.
            (soft([0, 0]), vec![0], 1_000_000),
            // Others fill home, node 1 is idle: all of it runs there, with its memory at distance
            // 20: 0.6 + 0.4 x 2.
            (soft([4, 0]), vec![0], 1_400_000),
            // Others use one CPU: half of it fits, half runs elsewhere.
            (soft([2, 0]), vec![0], 1_200_000),
            // ... and half of that finds no CPU there, either: it waits as ADR 2 says. Two vCPUs on
            // one idle and one shared CPU: half is taken from others; three wait for two, 1 x (1 +
            // 0.5 x (1 + 0.05 x 0.5)) = 1.5125. And as 4.5 CPUs of 4 are wanted, all work waits
            // 1.125.
            (soft([2, 3]), vec![0], (2 * 1_125_000 + 1_575_000 + 1_512_500) / 4),
            // No home makes more CPUs. 1.5 fit on both, at 1.125 x 1.2 for memory that is half
            // remote, half a CPU is taken from others: 1.2 x (1 + 0.25 x (1 + 0.05 x 0.125)).
            (soft([2, 3]), vec![0, 1], (3 * 1_350_000 + 1_501_876) / 4),
            // Without a scheduler all of it waits: 1 + 1 x (1 + 0.05 x (4 / 2 - 1)).
            (hard([4, 0]), vec![0], 2_050_000),
            (hard([2, 0]), vec![0], 1_512_500),
            // Both nodes: half of all accesses are remote.
            (soft([0, 0]), vec![0, 1], 1_200_000),
        ];
        for (seen, home, expected) in cases {
            let found = evaluate(&seen, &home).slow_down.0;
            assert_eq!(found, expected, "{:?} {}", seen.nodes, seen.soft_affinity);
        }
    }

    /// The slow-down on node 1 and the bytes to move there, with so much on node 0 that no process
    /// maps.
    fn leaving_behind(unmapped_bytes: u64) -> (u64, u64) {
        let mut seen = seen(1, 0, [0, 0]);
        seen.machine.parts[0].unmapped_bytes = [(NodeId(0), unmapped_bytes)].into();
        let [here, there, both] = [&[0][..], &[1], &[0, 1]].map(|home| evaluate(&seen, home));
        assert_eq!((here.slow_down, here.bytes_to_move), (SlowDown::NONE, 0), "it is at home");
        // Half of all accesses are remote wherever its memory lies on one of two nodes.
        assert_eq!(both.slow_down, SlowDown(1_200_000));
        (there.slow_down.0, there.bytes_to_move)
    }

    #[test]
    fn memory_that_no_process_maps_is_left_behind_and_remote() {
        let cases = [
            (0, 1_000_000, 4 * GIB),
            // A quarter of its memory at distance 20: 0.6 + 0.4 x 1.25.
            (GIB, 1_100_000, 3 * GIB),
            (2 * GIB, 1_200_000, 2 * GIB),
            (4 * GIB, 1_400_000, 0),
            // No more stays than there is.
            (9 * GIB, 1_400_000, 0),
            // Less than a page is none.
            (4095, 1_000_000, 4 * GIB - 4095),
        ];
        for (unmapped_bytes, slow_down, bytes_to_move) in cases {
            let expected = (slow_down, bytes_to_move);
            assert_eq!(leaving_behind(unmapped_bytes), expected, "{unmapped_bytes}");
        }
    }

    #[test]
    fn the_more_memory_stays_behind_the_less_a_move_gains() {
        let mut before = leaving_behind(0);
        for step in 1..=64 {
            let now = leaving_behind(step * (GIB / 16));
            assert!(now.0 >= before.0 && now.1 <= before.1, "{step}: {before:?} {now:?}");
            before = now;
        }
    }

    #[test]
    fn moving_costs_cpu_time_by_bytes_and_latency() {
        let tuning = Tuning::default();
        // 4 GiB are 4,096 MiB at 1 ms each, twice as much at twice the latency.
        assert_eq!(move_cost_ns(&tuning, 4 * GIB, 1_000_000), 4_096_000_000);
        assert_eq!(move_cost_ns(&tuning, 4 * GIB, 2_000_000), 8_192_000_000);
        assert_eq!(move_cost_ns(&tuning, 0, UNREACHABLE), 0);
    }

    #[test]
    fn a_home_without_enough_memory_has_no_room() {
        let mut seen = seen(1, 0, [0, 0]);
        seen.machine.topology.nodes[1].memory_bytes = 3 * GIB;
        assert!(!evaluate(&seen, &[1]).has_room, "4 GiB in 3");
        assert!(evaluate(&seen, &[0]).has_room && evaluate(&seen, &[0, 1]).has_room);
    }

    #[test]
    fn memory_that_another_claim_counts_on_to_leave_cannot_stay() {
        // db holds 3 GiB on node 1, where 15 GiB of 16 are claimed by others: no room to keep it.
        let mut seen = seen(1, 0, [0, 0]);
        seen.machine.parts[0].resident_bytes.insert(NodeId(1), 3 * GIB);
        let reserved = |gib| {
            let mut seen = seen.clone();
            let bytes = [(NodeId(1), gib * GIB)].into();
            let reservation = Reservation { bytes, ..Reservation::default() };
            seen.machine.reservations.push(reservation);
            evaluate(&seen, &[0, 1]).has_room
        };
        assert!(reserved(16) && !reserved(17));
    }

    #[test]
    fn memory_of_a_lower_tier_is_no_candidate_while_others_have_room() {
        // db claims 24 GiB; nodes 0 and 1 have 16 each beside what it holds, and node 2 is memory
        // beside node 0.
        let mut seen = seen(1, 0, [0, 0]);
        let claim = seen.machine.parts[0].claim.as_mut().unwrap();
        claim.bytes.insert(NodeId(0), 24 * GIB);
        seen.machine.parts[0].home.as_mut().unwrap().policy = MemoryPolicy::Strict;
        let ids = [NodeId(0), NodeId(1), NodeId(2)];
        let topology = &mut seen.machine.topology;
        topology.nodes.push(Node { id: ids[2], memory_bytes: 64 * GIB, ..Node::default() });
        topology.distances = Distances::new(&ids, &[10, 30, 14, 30, 10, 30, 14, 30, 10]).unwrap();
        seen.nodes.insert(ids[2], NodeLoad::default());
        let homes = |seen: &ControlObservation| -> Vec<Vec<NodeIndex>> {
            let candidates = evaluated(seen, |evaluator| evaluator.candidates(&[]));
            candidates.into_iter().map(|home| home.home).collect()
        };
        let has_slow =
            |homes: &[Vec<NodeIndex>]| homes.iter().any(|home| home.contains(&nodes(&[2])[0]));
        assert!(has_slow(&homes(&seen)), "{:?}", homes(&seen));
        let tier = |number, nodes: &str| MemoryTier { number, nodes: nodes.parse().unwrap() };
        seen.machine.topology.memory_tiers.tiers = vec![tier(4, "0-1"), tier(22, "2")];
        assert_eq!(homes(&seen), [nodes(&[0, 1])]);
        seen.machine.topology.nodes[1].memory_bytes = 2 * GIB;
        assert!(has_slow(&homes(&seen)), "it fits nowhere else: {:?}", homes(&seen));
    }

    #[test]
    fn of_equal_homes_the_one_without_a_move_is_best() {
        let (tuning, seen) = (Tuning::default(), seen(1, 0, [0, 0]));
        let learned = learned(&tuning, &seen);
        let mut host = HostModel::new(&tuning, &seen, &learned);
        let db = PartModel { horizon_ns: 10_000_000_000, ..host.part(part(0)).clone() };
        host.remove(&db);
        let evaluator = Evaluator::new(&mut host, &db, &tuning, true);
        let candidates = evaluator.candidates(&[]);
        assert_eq!(candidates.len(), 2, "each node alone means no slow-down");
        assert!(candidates.iter().all(|home| home.slow_down == SlowDown::NONE));
        let best = evaluator.best(candidates, SlowDown::NONE).unwrap();
        assert_eq!((best.home, best.bytes_to_move), (nodes(&[0]), 0));
    }
}
