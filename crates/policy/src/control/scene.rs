//! The machine as the control loop weighs homes: who wants how much where, and what is promised to whom.
//!
//! It is placement's view of the machine with what was measured in place of what was claimed, counted in thousandths of
//! a CPU. Every domain that has a home counts there, wherever it runs at the moment: that is where it will run once there is room.

use super::{ControlObservation, History, Tuning, history::MOST_MILLI_VCPUS};
use crate::{
    Affinity, ByNode, Claim, CostModel, MemoryPolicy, Observation, PageSize, PartState, SlowDown,
    cost::Ask,
    promisable,
    view::{PPM, View},
};
use nearside_topology::{NodeId, NodeSet};

/// An amount for each of some nodes, by index.
pub(super) type Amounts = Vec<(usize, u64)>;

/// A domain as it is weighed.
#[derive(Debug, Clone)]
pub(super) struct Party {
    pub(super) demand_milli: u64,
    pub(super) affinity: Affinity,
    pub(super) policy: MemoryPolicy,
    pub(super) page_size: PageSize,
    pub(super) near: Vec<usize>,
    /// The nodes of its home; none where it has none.
    pub(super) home: Vec<usize>,
    /// Its demand by node of its home; without a home, of where it ran.
    pub(super) load_milli: Amounts,
    /// What it holds, in bytes.
    pub(super) held_bytes: Amounts,
    /// What of that stays where it is, whatever the home, in bytes.
    pub(super) staying_bytes: Amounts,
    /// What is promised to it and not there yet, in bytes. Unlike [`outstanding`](crate::outstanding) this counts what
    /// it holds elsewhere too, for that shall come.
    pub(super) due_bytes: Amounts,
    /// What it needs room for: what it was promised, or what it holds if that is more.
    pub(super) needed_bytes: u64,
    /// How much longer it is expected to run, in ns, as far as that is looked ahead.
    pub(super) horizon_ns: u64,
}

/// The machine and all parties.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) view: View,
    pub(super) parties: Vec<Party>,
    /// The assumptions, for thousandths of a CPU.
    pub(super) model: CostModel,
    /// How much longer everything takes where all together want more than the CPUs there are.
    pub(super) stretch: SlowDown,
    books: Vec<Book>,
}

// Memory in pages of one size, in bytes by node.
#[derive(Debug)]
struct Book {
    page_size: PageSize,
    // What could be promised if nothing were.
    promisable: Vec<u64>,
    // What is promised and not there yet.
    due: Vec<u128>,
    // What those hold that are looked past at the moment.
    freed: Vec<u128>,
}

/// What an ordinary page is taken to be.
const BASE_PAGE_BYTES: u64 = 4096;

/// The size of a page in bytes.
pub(super) fn page_bytes(page_size: PageSize) -> u64 {
    match page_size {
        PageSize::Base => BASE_PAGE_BYTES,
        PageSize::Huge(bytes) => bytes.max(BASE_PAGE_BYTES),
    }
}

impl Scene {
    pub(super) fn new(tuning: &Tuning, seen: &ControlObservation, history: &History) -> Self {
        let topology = &seen.machine.topology;
        let empty = Observation::of(topology.clone());
        let mut view = View::new(&empty, PageSize::Base, BASE_PAGE_BYTES, &tuning.model);
        for node in &mut view.nodes {
            node.cores *= 1000;
            node.threads *= 1000;
            // What nobody can be made to leave cannot be more than there are CPUs.
            node.busy =
                history.nodes.get(&node.id).map_or(0, |known| known.others.0).min(node.threads);
        }
        let mut books: Vec<Book> = Vec::new();
        for domain in &seen.machine.parts {
            let page_size = page_size_of(domain);
            if !books.iter().any(|book| book.page_size == page_size) {
                let of_node = |node| promisable(node, page_size).promisable_bytes;
                let promisable: Vec<u64> = topology.nodes.iter().map(of_node).collect();
                let nothing = vec![0; promisable.len()];
                books.push(Book { page_size, promisable, due: nothing.clone(), freed: nothing });
            }
        }
        let vcpu_bandwidth_mb_s = tuning.model.vcpu_bandwidth_mb_s / 1000.0;
        let model = CostModel { vcpu_bandwidth_mb_s, ..tuning.model };
        let mut scene = Self { view, parties: Vec::new(), model, stretch: SlowDown::NONE, books };
        let parties: Vec<Party> =
            seen.machine.parts.iter().map(|it| scene.party(it, tuning, seen, history)).collect();
        parties.iter().for_each(|party| scene.add(party));
        // Those who were added hold their memory; it was never free.
        scene.books.iter_mut().for_each(|book| book.freed.fill(0));
        scene.parties = parties;
        scene.stretch = scene.stretch();
        scene
    }

    // Who may not leave a node wants no more of the others than it can have on that one.
    fn stretch(&self) -> SlowDown {
        let (mut wanted, mut threads) = (0_u128, 0_u128);
        for (i, node) in self.view.nodes.iter().enumerate() {
            let bound = self.parties.iter().filter(|party| party.affinity == Affinity::Hard);
            let bound = bound.flat_map(|party| &party.load_milli).filter(|(at, _)| *at == i);
            let bound_milli = bound.fold(0_u64, |sum, &(_, milli)| sum.saturating_add(milli));
            wanted += u128::from(node.busy.saturating_sub(bound_milli))
                + u128::from(bound_milli.min(node.threads));
            threads += u128::from(node.threads);
        }
        let stretch_ppm = (wanted * u128::from(PPM)).div_ceil(threads.max(1));
        SlowDown(u64::try_from(stretch_ppm).unwrap_or(u64::MAX)).max(SlowDown::NONE)
    }

    fn party(
        &self,
        state: &PartState,
        tuning: &Tuning,
        seen: &ControlObservation,
        history: &History,
    ) -> Party {
        let indices = |nodes: &NodeSet| {
            nodes.iter().filter_map(|node| self.view.index_of(node)).collect::<Vec<_>>()
        };
        let amounts = |by_node: &ByNode| -> Amounts {
            by_node
                .iter()
                .filter_map(|(&node, &amount)| Some((self.view.index_of(node)?, amount)))
                .collect()
        };
        let home = state.home.as_ref().map_or_else(Vec::new, |home| indices(&home.nodes));
        let known = history.domains.get(&state.id);
        // What was read from a file may be anything.
        let demand_milli = known.map_or(0, |known| known.demand.0.min(MOST_MILLI_VCPUS));
        let ran = known.map_or_else(Amounts::new, |known| amounts(&known.share_ppm));
        let near = seen.loads.get(&state.id).map_or_else(Vec::new, |load| {
            load.near.iter().filter_map(|&node| self.view.index_of(node)).collect()
        });
        let no_claim = Claim::default();
        let claim = state.claim.as_ref().unwrap_or(&no_claim);
        let held = |node: &NodeId| state.resident_bytes.get(node).copied().unwrap_or(0);
        let load_milli = match home.is_empty() {
            true => split(demand_milli, &ran),
            false => self.at_home(&home, demand_milli, &amounts(&claim.vcpus)),
        };
        let due = claim
            .bytes
            .iter()
            .map(|(node, &bytes)| (*node, bytes.saturating_sub(held(node))))
            .collect();
        let staying = state
            .unmapped_bytes
            .iter()
            .map(|(node, &bytes)| (*node, bytes.min(held(node))))
            .collect();
        let age_intervals = known.map_or(0, |known| known.age_intervals(seen.interval));
        let all_held = state.resident_bytes.values().copied().fold(0, u64::saturating_add);
        Party {
            demand_milli,
            affinity: state.home.as_ref().map_or(Affinity::Soft, |home| home.affinity),
            policy: state.home.as_ref().map_or(MemoryPolicy::Local, |home| home.policy),
            page_size: page_size_of(state),
            near,
            home,
            load_milli,
            held_bytes: amounts(&state.resident_bytes),
            staying_bytes: amounts(&staying),
            due_bytes: amounts(&due),
            needed_bytes: claim.total_bytes().max(all_held),
            horizon_ns: tuning.horizon_at_age_ns(age_intervals),
        }
    }

    // Where a domain's demand counts: as its vCPUs were promised, or by CPUs where none were.
    fn at_home(&self, home: &[usize], demand_milli: u64, claimed: &Amounts) -> Amounts {
        let claimed: Amounts =
            claimed.iter().copied().filter(|(i, vcpus)| home.contains(i) && *vcpus > 0).collect();
        let by_cores = || {
            home.iter()
                .map(|&i| (i, self.view.nodes[i].cores))
                .filter(|(_, cores)| *cores > 0)
                .collect()
        };
        let weights: Amounts = if claimed.is_empty() { by_cores() } else { claimed };
        split(demand_milli, &weights)
    }

    /// Counts a domain in.
    pub(super) fn add(&mut self, party: &Party) {
        self.count(party, u64::saturating_add, u128::saturating_add, u128::saturating_sub);
    }

    /// Looks past a domain: the machine as it would find it.
    pub(super) fn take_out(&mut self, party: &Party) {
        self.count(party, u64::saturating_sub, u128::saturating_sub, u128::saturating_add);
    }

    fn count(
        &mut self,
        party: &Party,
        load: fn(u64, u64) -> u64,
        due: fn(u128, u128) -> u128,
        freed: fn(u128, u128) -> u128,
    ) {
        for &(i, milli) in &party.load_milli {
            let busy = &mut self.view.nodes[i].busy;
            *busy = load(*busy, milli);
        }
        let all_held =
            party.held_bytes.iter().fold(0, |sum: u64, &(_, bytes)| sum.saturating_add(bytes));
        for &(i, bytes) in &party.held_bytes {
            let demand_kb_s = &mut self.view.nodes[i].demand_kb_s;
            *demand_kb_s =
                load(*demand_kb_s, self.model.demand_kb_s(party.demand_milli, bytes, all_held));
        }
        if let Some(book) = self.books.iter_mut().find(|book| book.page_size == party.page_size) {
            for &(i, bytes) in &party.due_bytes {
                book.due[i] = due(book.due[i], bytes.into());
            }
            for &(i, bytes) in &party.held_bytes {
                book.freed[i] = freed(book.freed[i], bytes.into());
            }
        }
    }

    /// Brings the view's free pages up to date for a party that was taken out, and says what it asks for.
    pub(super) fn ask_of(&mut self, party: &Party) -> Ask {
        let page_bytes = page_bytes(party.page_size);
        let book = self.books.iter().find(|book| book.page_size == party.page_size);
        for (i, node) in self.view.nodes.iter_mut().enumerate() {
            let room = book.map_or(0, |book| book.room(i));
            node.unclaimed_pages = room / page_bytes;
        }
        self.view.unclaimed_pages = self
            .view
            .nodes
            .iter()
            .fold(0, |sum: u64, node| sum.saturating_add(node.unclaimed_pages));
        Ask {
            vcpus: party.demand_milli.max(1),
            pages: party.needed_bytes.div_ceil(page_bytes).max(1),
            policy: party.policy,
            page_size: party.page_size,
            near: party.near.clone(),
        }
    }

    /// Bytes that can come to a node without taking what is promised to others, and with.
    pub(super) fn room_bytes(&self, page_size: PageSize, i: usize) -> (u64, u64) {
        let book = self.books.iter().find(|book| book.page_size == page_size);
        book.map_or((0, 0), |book| (book.room(i), book.promisable[i]))
    }
}

impl Book {
    fn room(&self, i: usize) -> u64 {
        let there = u128::from(self.promisable[i]).saturating_add(self.freed[i]);
        u64::try_from(there.saturating_sub(self.due[i])).unwrap_or(u64::MAX)
    }
}

/// The pages a domain's memory is counted in.
fn page_size_of(state: &PartState) -> PageSize {
    state.claim.as_ref().map_or(PageSize::Base, |claim| claim.page_size)
}

/// Splits a whole in proportion to weights, exactly: what rounding leaves goes where the running sum steps.
pub(super) fn split(whole: u64, weights: &[(usize, u64)]) -> Amounts {
    let all: u128 = weights.iter().map(|&(_, weight)| u128::from(weight)).sum();
    // So that the products below have room, however large the weights.
    let shift = (u128::BITS - all.leading_zeros()).saturating_sub(u64::BITS);
    let (mut sum, mut given) = (0_u128, 0);
    let part = |&(i, weight): &(usize, u64)| {
        sum += u128::from(weight);
        let upto =
            (u128::from(whole) * (sum >> shift)).checked_div(all >> shift).unwrap_or(0) as u64;
        let part = upto - given;
        given = upto;
        (i, part)
    };
    weights.iter().map(part).collect()
}
