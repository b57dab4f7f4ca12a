//! What a home would mean for a domain: CPU time against bytes to move.
//!
//! The slow-down is ADR 2's, but for what a scheduler makes of full homes. ADR 2 lets what does not fit the CPUs of a home wait. Where a scheduler
//! knows node affinity it runs elsewhere instead, nearest first, at the price of its distance from its memory. So of a
//! domain on a full home
//! - what fits costs what ADR 2 says for that much,
//! - what does not fit costs the latency from the nearest CPUs that idle,
//! - what finds none waits, as ADR 2 says.
//!
//! What cannot move stays where it is, so memory is as far as a home leaves it and not as near as it would be best.
//!
//! Where all together want more than there is, such a scheduler shares out the CPU time of the whole machine: so much everybody
//! waits, at each home.

use super::{
    MilliVcpus, Payback, Tuning,
    scene::{Amounts, Party, Scene, page_bytes, split},
};
use crate::{
    Affinity, Parts, SlowDown,
    cost::{Ask, Costing, Prediction, Unfit},
    place::{EXHAUSTIVE_NODES, look_at_all},
    ranking::Ranking,
    search,
    view::{PPM, UNREACHABLE},
};
use std::cmp::Reverse;

/// A home as it was weighed.
#[derive(Debug, Clone)]
pub(super) struct Weighed {
    pub(super) home: Vec<usize>,
    pub(super) slow_down: SlowDown,
    /// What the domain holds elsewhere and can be moved, in bytes.
    pub(super) bytes_to_move: u64,
    /// What moving that costs, in ns of CPU time.
    pub(super) costs_ns: u64,
    /// Whether all it needs can be promised there.
    pub(super) has_room: bool,
    pub(super) vcpus_per_core_ppm: u64,
    pub(super) free_after_pages: u64,
    /// Its demand by node, in thousandths of a CPU.
    pub(super) load_milli: Amounts,
    pub(super) pages: Amounts,
}

impl Weighed {
    /// A home that is none: its nodes have gone.
    pub(super) fn impossible(home: &[usize]) -> Self {
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

/// Weighs homes for one party on a scene from which it was taken out.
#[derive(Debug)]
pub(super) struct Scales<'a> {
    scene: &'a Scene,
    party: &'a Party,
    tuning: &'a Tuning,
    ask: Ask,
    /// Whether vCPUs whose home is full run elsewhere.
    spills: bool,
}

impl<'a> Scales<'a> {
    pub(super) fn new(
        scene: &'a mut Scene,
        party: &'a Party,
        tuning: &'a Tuning,
        soft_affinity: bool,
    ) -> Self {
        let ask = scene.ask_of(party);
        Self {
            scene,
            party,
            tuning,
            ask,
            spills: soft_affinity && party.affinity == Affinity::Soft,
        }
    }

    /// What a home would mean; none where it has no CPU, or not even room for what the domain holds there.
    pub(super) fn weigh(&self, home: &[usize]) -> Option<Weighed> {
        let mut ask = self.ask.clone();
        let mut costing = Costing::new(&self.scene.view, &ask, &self.scene.model);
        let prediction = match costing.predict(home, SlowDown(u64::MAX)) {
            Ok(prediction) => prediction,
            Err(Unfit::TooSmall(room)) if room.pages > 0 => {
                ask.pages = room.pages;
                return self.weigh_asked(&ask, home, false);
            }
            Err(_) => return None,
        };
        let has_memory = home.iter().any(|&i| self.scene.view.nodes[i].has_memory);
        Some(self.weighed(&costing, prediction, home, has_memory && prediction.spilled_pages == 0))
    }

    fn weigh_asked(&self, ask: &Ask, home: &[usize], has_room: bool) -> Option<Weighed> {
        let mut costing = Costing::new(&self.scene.view, ask, &self.scene.model);
        let prediction = costing.predict(home, SlowDown(u64::MAX)).ok()?;
        Some(self.weighed(&costing, prediction, home, has_room))
    }

    fn weighed(
        &self,
        costing: &Costing<'_>,
        prediction: Prediction,
        home: &[usize],
        has_room: bool,
    ) -> Weighed {
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
        Weighed {
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

    // Where its pages are in the end: as ADR 2 lays them out, but for what cannot move there.
    fn lying(&self, home: &[usize], pages: &Amounts) -> Amounts {
        let page_bytes = page_bytes(self.party.page_size);
        let off = self.party.staying_bytes.iter().filter(|(i, _)| !home.contains(i));
        let mut lying: Amounts =
            off.map(|&(i, bytes)| (i, bytes / page_bytes)).filter(|(_, n)| *n > 0).collect();
        let sum = |pages: &Amounts| pages.iter().fold(0, |sum: u64, &(_, n)| sum.saturating_add(n));
        let arriving = sum(pages).saturating_sub(sum(&lying));
        lying.extend(split(arriving, pages));
        lying
    }

    // Memory is no nearer than where it lies, seen from all CPUs of the home alike: a scheduler prefers all of them, whereas ADR 2
    // places whole vCPUs where there is most room and could see a home of two nodes in what is one with a foothold on another.
    fn as_it_lies(&self, prediction: Prediction, home: &[usize], pages: &Amounts) -> Prediction {
        let (mut sum, mut all) = (0_u128, 0_u128);
        for &i in home {
            let cores = u128::from(self.scene.view.nodes[i].cores);
            sum += cores * self.memory_ppm(i, pages).map_or(u128::from(PPM), u128::from);
            all += cores;
        }
        let memory_ppm = sum.div_ceil(all.max(1)) as u64;
        let parts =
            Parts { memory: prediction.parts.memory.max(SlowDown(memory_ppm)), ..prediction.parts };
        Prediction { slow_down: parts.product(), parts, ..prediction }
    }

    // What lies off a home and can move, in bytes, and what it costs to bring it to the nearest of its nodes.
    fn moving(&self, home: &[usize]) -> (u64, u64) {
        let staying = |from| {
            self.party.staying_bytes.iter().find(|(i, _)| *i == from).map_or(0, |&(_, bytes)| bytes)
        };
        let off = self.party.held_bytes.iter().filter(|(i, _)| !home.contains(i));
        off.fold((0, 0), |(sum, costs): (u64, u64), &(from, held_bytes)| {
            let bytes = held_bytes.saturating_sub(staying(from));
            let latencies = self.scene.view.latencies_ppm(from);
            let nearest_ppm = home.iter().map(|&to| latencies[to]).min().unwrap_or(UNREACHABLE);
            let costs = costs.saturating_add(self.tuning.move_cost_ns(bytes, nearest_ppm));
            (sum.saturating_add(bytes), costs)
        })
    }

    // The slow-down where what does not fit the home may run elsewhere.
    fn spilling(
        &self,
        all: Prediction,
        home: &[usize],
        load_milli: &Amounts,
        pages: &Amounts,
    ) -> SlowDown {
        let stretch = self.scene.stretch;
        let waiting = |parts: Parts| Parts { cpu: parts.cpu.max(stretch), ..parts }.product();
        let at_home = waiting(all.parts);
        let nodes = &self.scene.view.nodes;
        let mut spare: Vec<u64> =
            nodes.iter().map(|node| node.threads.saturating_sub(node.busy)).collect();
        let mut over: Amounts = Vec::new();
        for &(i, milli) in load_milli {
            let fits = milli.min(spare[i]);
            spare[i] -= fits;
            over.push((i, milli - fits));
        }
        let over_milli: u64 = over.iter().map(|&(_, milli)| milli).sum();
        if over_milli == 0 {
            return at_home;
        }
        let fits_milli = self.ask.vcpus - over_milli;
        let fitting = match fits_milli {
            0 => SlowDown::NONE,
            vcpus => {
                let ask = Ask { vcpus, ..self.ask.clone() };
                let mut costing = Costing::new(&self.scene.view, &ask, &self.scene.model);
                costing
                    .predict(home, SlowDown(u64::MAX))
                    .map_or(at_home, |fitting| waiting(self.as_it_lies(fitting, home, pages).parts))
            }
        };
        // Parts of the domain with the slow-down of each.
        let mut sum = u128::from(fits_milli) * u128::from(fitting.0);
        for (from, mut left) in over {
            for &to in self.scene.view.nearest(from) {
                let Some(memory_ppm) = self.memory_ppm(to as usize, pages) else { continue };
                let taken = left.min(spare[to as usize]);
                spare[to as usize] -= taken;
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

    // What running on a node costs for the distance of all pages; none where one cannot be reached.
    fn memory_ppm(&self, from: usize, pages: &Amounts) -> Option<u64> {
        let latencies = self.scene.view.latencies_ppm(from);
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

    /// The homes worth weighing: every single node, and the best sets as placement ranks them where no node alone means
    /// no slow-down, nor gives the domain all of the CPU time that is its part.
    pub(super) fn homes(&self) -> Vec<Weighed> {
        let mut homes: Vec<Weighed> =
            (0..self.scene.view.nodes.len()).filter_map(|i| self.weigh(&[i])).collect();
        homes.retain(|home| home.has_room);
        if homes
            .iter()
            .any(|home| home.slow_down <= SlowDown::NONE || self.is_wide_enough(home.home[0]))
        {
            return homes;
        }
        let mut costing = Costing::new(&self.scene.view, &self.ask, &self.scene.model);
        let mut ranking = Ranking::default();
        if self.scene.view.nodes.len() <= EXHAUSTIVE_NODES {
            look_at_all(&mut costing, &mut ranking);
        } else {
            search::search(&mut costing, &mut ranking);
        }
        let sets = ranking.best().filter(|set| set.len() > 1).filter_map(|set| self.weigh(set));
        homes.extend(sets.filter(|home| home.has_room));
        homes
    }

    // Whether a node can give the domain what everybody gets on a crowded machine, where more nodes mean no more.
    fn is_wide_enough(&self, node: usize) -> bool {
        let part_milli =
            u128::from(self.ask.vcpus) * u128::from(PPM) / u128::from(self.scene.stretch.0);
        let threads_milli = u128::from(self.scene.view.nodes[node].threads);
        self.spills && self.scene.stretch > SlowDown::NONE && part_milli <= threads_milli
    }

    /// The home that takes least CPU time over the horizon, moving included, for the work that is done at `here`.
    pub(super) fn best(&self, homes: Vec<Weighed>, here: SlowDown) -> Option<Weighed> {
        let rank = |home: &Weighed| {
            (self.total_ns(home, here), home.vcpus_per_core_ppm, Reverse(home.free_after_pages))
        };
        homes.into_iter().min_by_key(|home| (rank(home), home.home.len(), home.home.clone()))
    }

    fn total_ns(&self, home: &Weighed, here: SlowDown) -> u128 {
        let running =
            u128::from(self.party.demand_milli) * u128::from(self.party.horizon_ns) / 1000;
        let running =
            running.saturating_mul(u128::from(home.slow_down.0)) / u128::from(here.0.max(1));
        running.saturating_add(home.costs_ns.into())
    }

    /// What going from one home to another costs and saves.
    pub(super) fn payback(&self, here: &Weighed, there: &Weighed) -> Payback {
        let bytes_to_move = there.bytes_to_move.saturating_sub(here.bytes_to_move);
        let costs_ns = there.costs_ns.saturating_sub(here.costs_ns);
        let demand = MilliVcpus(self.party.demand_milli);
        Payback::new(demand, here.slow_down, there.slow_down, bytes_to_move, costs_ns)
    }
}

impl Payback {
    fn new(
        demand: MilliVcpus,
        here: SlowDown,
        there: SlowDown,
        bytes_to_move: u64,
        costs_ns: u64,
    ) -> Self {
        // The same work takes there / here of the time.
        let saved = u128::from(demand.0) * 1_000_000 * u128::from(here.0.saturating_sub(there.0));
        let saves_ns_per_s = saved.checked_div(here.0.into()).unwrap_or(0) as u64;
        Self { demand, here, there, saves_ns_per_s, bytes_to_move, costs_ns }
    }

    /// Both of two moves.
    pub(super) fn and(self, other: Self) -> Self {
        let demand = MilliVcpus(self.demand.0 + other.demand.0);
        let mean = |a: SlowDown, b: SlowDown| {
            let sum = u128::from(a.0) * u128::from(self.demand.0)
                + u128::from(b.0) * u128::from(other.demand.0);
            SlowDown(u64::try_from(sum.div_ceil(demand.0.max(1).into())).unwrap_or(u64::MAX))
        };
        let bytes_to_move = self.bytes_to_move.saturating_add(other.bytes_to_move);
        let costs_ns = self.costs_ns.saturating_add(other.costs_ns);
        Self::new(
            demand,
            mean(self.here, other.here),
            mean(self.there, other.there),
            bytes_to_move,
            costs_ns,
        )
    }

    /// Whether the other home is faster by so much.
    pub(super) fn is_gain_of(&self, least_ppm: u64) -> bool {
        let least = u128::from(self.there.0) * (u128::from(PPM) + u128::from(least_ppm));
        u128::from(self.here.0) * u128::from(PPM) >= least && self.here > self.there
    }

    /// Whether it saves what it costs within the horizon.
    pub(super) fn pays_within(&self, horizon_ns: u64) -> bool {
        let saved = u128::from(self.saves_ns_per_s) * u128::from(horizon_ns) / 1_000_000_000;
        saved > 0 && saved >= u128::from(self.costs_ns)
    }

    /// What is left over at the end of the horizon, in ns of CPU time.
    pub(super) fn net_ns(&self, horizon_ns: u64) -> u128 {
        let saved = u128::from(self.saves_ns_per_s) * u128::from(horizon_ns) / 1_000_000_000;
        saved.saturating_sub(self.costs_ns.into())
    }
}
