//! Homes: the first one, and a better one.

use super::{
    HomeWaits, LastMove, MilliVcpus, Payback,
    round::Round,
    scene::{Amounts, Party, split},
    weigh::{Scales, Weighed},
};
use crate::{
    Action, Affinity, ByNode, Claim, Home, MemoryPolicy, Origin, Reason, SlowDown, Step, view::PPM,
};
use nearside_topology::NodeSet;
use std::cmp::Reverse;

// How many domains are weighed in a round, and how many get their first home: it bounds the time a round takes.
const MOST_WEIGHED: usize = 16;
const MOST_FIRST_HOMES: usize = 64;

// A domain in trouble for which nothing was better is weighed again after so many intervals.
const WEIGH_AGAIN_INTERVALS: u64 = 3;

// A home that is better by so many times the least gain is clearly better. Trouble then need not wait; a domain without trouble needs
// that much in any case.
const CLEAR_GAIN: u64 = 2;

// How often in a row another home has to be better before it is taken: measured demand varies by some percent, and what only
// seems better now does not a few intervals later.
const WINS: u64 = 3;

// By how much a home has to be fuller than a domain was promised when it moved there: by this, or by an eighth.
const FULLER_MILLI: u64 = 500;

// Moves that soon follow each other make the next stay longer, up to so many intervals.
const LONGEST_STAY_INTERVALS: u64 = 480;

impl Round<'_> {
    /// Gives each domain that has none a home: where somebody else keeps it, or the best. The largest choose first, and as
    /// if those that choose later were not there yet.
    pub(super) fn first_homes(&mut self) {
        let mut homeless = Vec::new();
        for at in self.domains() {
            if !self.looked_at[at] || self.state(at).home.is_some() {
                continue;
            }
            if let Some(nodes) = self.bound_to(at) {
                self.adopt_bound(at, nodes);
                continue;
            }
            match self.may_bind(at) {
                Err(waits) if !self.seen.soft_affinity => {
                    self.known[at].standing.home_waits = Some(waits)
                }
                _ => homeless.push(at),
            }
        }
        homeless.sort_by_key(|&at| {
            (Reverse(self.party(at).demand_milli), Reverse(self.party(at).needed_bytes), at)
        });
        for &at in homeless.iter().skip(MOST_FIRST_HOMES) {
            self.known[at].standing.home_waits = Some(HomeWaits::InTurn);
        }
        homeless.truncate(MOST_FIRST_HOMES);
        homeless.iter().for_each(|&at| self.run_at(at, Vec::new(), Amounts::new()));
        for at in homeless {
            let waits = self.first_home(at);
            self.known[at].standing.home_waits = waits;
        }
    }

    // Counts a domain elsewhere.
    fn run_at(&mut self, at: usize, home: Vec<usize>, load_milli: Amounts) {
        let mut party = self.party(at).clone();
        self.scene.take_out(&party);
        (party.home, party.load_milli) = (home, load_milli);
        self.scene.add(&party);
        self.scene.parties[at] = party;
    }

    // Whom somebody else keeps on some nodes has its home there.
    fn adopt_bound(&mut self, at: usize, nodes: NodeSet) {
        let held = self.state(at).resident_bytes.iter().filter(|(node, _)| nodes.contains(**node));
        let bytes: ByNode = held.map(|(&node, &bytes)| (node, bytes)).collect();
        let home: Vec<usize> =
            nodes.iter().filter_map(|node| self.scene.view.index_of(node)).collect();
        let cores: Amounts = home.iter().map(|&i| (i, self.scene.view.nodes[i].cores)).collect();
        let demand_milli = self.party(at).demand_milli;
        self.run_at(at, home, split(demand_milli, &cores));
        let vcpus = split(demand_milli.div_ceil(1000).max(1), &cores)
            .into_iter()
            .filter(|(_, vcpus)| *vcpus > 0);
        let vcpus = vcpus.map(|(i, vcpus)| (self.id(i), vcpus)).collect();
        let claim = Claim { bytes, vcpus, page_size: self.party(at).page_size };
        let reason = Reason::BoundByOther { nodes: nodes.clone() };
        let home = Home {
            nodes,
            origin: Origin::Adopted,
            affinity: Affinity::Hard,
            policy: MemoryPolicy::Local,
        };
        self.bind(at, home, claim, &reason);
        self.is_moving[at] = true;
    }

    /// Homes of domains that were found follow whoever keeps these on some nodes.
    ///
    /// What threads may do is seen of those that run, so one that hardly does tells nothing, and what is seen once may be a
    /// helper's.
    pub(super) fn follow_owners(&mut self) {
        for at in self.domains() {
            if !self.looked_at[at] || self.is_moving[at] {
                continue;
            }
            if self.is_kept_at_home(at) {
                self.known[at].kept_elsewhere = 0;
                continue;
            }
            if self.known[at].is_idle(self.tuning) {
                continue;
            }
            let known = &mut self.known[at];
            known.kept_elsewhere = known.kept_elsewhere.saturating_add(1);
            if known.kept_elsewhere < self.tuning.patience_intervals {
                continue;
            }
            known.kept_elsewhere = 0;
            match self.bound_to(at) {
                Some(nodes) => self.adopt_bound(at, nodes),
                None => self.let_go(at),
            }
        }
    }

    /// Whether a domain is where those keep it who do, and has no such home where nobody does. What an operator chose for it
    /// here counts more.
    pub(super) fn is_kept_at_home(&self, at: usize) -> bool {
        let state = self.state(at);
        let Some(home) = state.home.as_ref().filter(|_| state.was_found()) else { return true };
        let bound = self.bound_to(at);
        match home.origin {
            Origin::Explicit => true,
            Origin::Adopted => bound.as_ref() == Some(&home.nodes),
            Origin::Auto => bound.is_none(),
        }
    }

    // Nobody keeps it there any more: its home is placement's to change.
    fn let_go(&mut self, at: usize) {
        let Some(before) = self.state(at).home.clone() else { return };
        let home = Home { origin: Origin::Auto, affinity: Affinity::Soft, ..before };
        self.known[at].home = Some(home.clone());
        self.is_moving[at] = true;
        let action = Action::SetHome { part: self.state(at).id.clone(), home };
        self.transact(vec![Step { action, reason: Reason::LetGo }]);
    }

    fn first_home(&mut self, at: usize) -> Option<HomeWaits> {
        // Nobody knows how long it had lived before it was found.
        let party = Party { horizon_ns: self.tuning.horizon_ns(), ..self.party(at).clone() };
        self.scene.take_out(&party);
        let scales = Scales::new(&mut self.scene, &party, self.tuning, self.seen.soft_affinity);
        let best = scales.best(scales.homes(), SlowDown::NONE);
        self.scene.add(&party);
        let Some(best) = best else { return Some(HomeWaits::NoRoom) };
        let demand = MilliVcpus(party.demand_milli);
        let (slow_down, bytes_to_move) = (best.slow_down, best.bytes_to_move);
        self.settle(at, &best, &Reason::FirstHome { demand, slow_down, bytes_to_move });
        None
    }

    /// Changes homes where that pays.
    pub(super) fn change_homes(&mut self) {
        let mut offers = Vec::new();
        let mut in_vain = Vec::new();
        for (at, occasion) in self.due() {
            let now = self.now();
            self.known[at].weighed_at = Some(now);
            match self.offer(at, occasion) {
                Ok(offer) if self.stands(at, occasion, offer.payback) => offers.push(offer),
                Ok(_) => {}
                Err(waits) if occasion == Occasion::Trouble => {
                    self.known[at].standing.home_waits = Some(waits);
                    in_vain.push(at);
                }
                Err(_) => self.known[at].wins = 0,
            }
        }
        // The best first; what others were offered is weighed again, for it may be gone or needless by then.
        offers.sort_by_key(|offer| {
            (Reverse(offer.payback.net_ns(self.party(offer.at).horizon_ns)), offer.at)
        });
        for (number, offer) in offers.into_iter().enumerate() {
            let at = offer.at;
            let still = if number == 0 { Ok(offer) } else { self.offer(at, offer.occasion) };
            match still {
                Ok(offer) if self.is_sure(at, offer.occasion, offer.payback) => {
                    self.accept(at, &offer.there, &Reason::PaysBack { payback: offer.payback });
                }
                Ok(_) => {}
                Err(waits) => {
                    self.known[at].wins = 0;
                    self.known[at].standing.home_waits = Some(waits);
                }
            }
        }
        for at in in_vain {
            let may_swap = !self.is_moving[at] && self.may_move(at).is_ok();
            if !may_swap || !self.change_places(at) {
                self.known[at].wins = 0;
            }
        }
    }

    /// Which domains are weighed: those in trouble and those that share a home with them, the most promising first, then
    /// those whose turn it is.
    fn due(&mut self) -> Vec<(usize, Occasion)> {
        let (now, tuning) = (self.now(), self.tuning);
        let mut full = vec![false; self.scene.view.nodes.len()];
        for at in self.domains() {
            if self.looked_at[at] && self.known[at].trouble_intervals >= tuning.patience_intervals {
                self.party(at).home.iter().for_each(|&i| full[i] = true);
            }
        }
        let mut chosen = Vec::new();
        for at in self.domains() {
            if !self.looked_at[at] || self.is_moving[at] || self.state(at).home.is_none() {
                continue;
            }
            let troubled = self.known[at].trouble_intervals > 0;
            let shares = self.party(at).home.iter().any(|&i| full[i]);
            let may_move = self.may_move(at);
            let known = &mut self.known[at];
            let rests = |intervals| {
                known.weighed_at.is_some_and(|then| now < then.saturating_add(intervals))
            };
            let weighed_lately = rests(WEIGH_AGAIN_INTERVALS);
            let weighed_not_long_ago = rests(tuning.weigh_intervals);
            match may_move {
                Err(waits) => {
                    let is_unbound =
                        matches!(waits, HomeWaits::OwnerKeeps { .. } | HomeWaits::HasCpuset);
                    known.standing.home_waits = Some(waits).filter(|_| troubled || is_unbound);
                }
                Ok(()) if known.is_idle(tuning) => known.standing.home_waits = None,
                Ok(()) if shares && !weighed_lately => chosen.push((at, Occasion::Trouble)),
                Ok(()) if shares => {}
                // What was found then still stands.
                Ok(()) if weighed_not_long_ago && known.wins > 0 => {}
                Ok(()) => {
                    known.standing.home_waits = troubled.then_some(HomeWaits::MayPass);
                    if !weighed_not_long_ago {
                        chosen.push((at, Occasion::Turn));
                    }
                }
            }
        }
        let promise = |at: usize| {
            let party = self.party(at);
            let running = u128::from(party.demand_milli) * u128::from(party.horizon_ns) / 1000;
            running.saturating_sub(tuning.move_cost_ns(party.needed_bytes, PPM as u32).into())
        };
        chosen.sort_by_key(|&(at, occasion)| (occasion, Reverse(promise(at)), at));
        for &(at, _) in chosen.iter().skip(MOST_WEIGHED) {
            self.known[at].standing.home_waits = Some(HomeWaits::InTurn);
        }
        chosen.truncate(MOST_WEIGHED);
        chosen
    }

    /// Whether placement may change a home at all, and yet.
    pub(super) fn may_move(&self, at: usize) -> Result<(), HomeWaits> {
        let Some(home) = self.state(at).home.as_ref() else { return Err(HomeWaits::InTurn) };
        if home.origin == Origin::Explicit {
            return Err(HomeWaits::Explicit);
        }
        if home.origin == Origin::Adopted || self.bound_to(at).is_some() {
            return Err(HomeWaits::Kept);
        }
        let binds =
            home.policy.confines() || home.affinity == Affinity::Hard || !self.seen.soft_affinity;
        if binds {
            self.may_bind(at)?;
        }
        let Some(moved) = self.known[at].moved else { return Ok(()) };
        let load_now = self.load_at(&self.party(at).home);
        let passed = self.now().saturating_sub(moved.at);
        let fuller = load_now.0 >= moved.load.0.saturating_add(FULLER_MILLI.max(moved.load.0 / 8));
        match passed < moved.stay_intervals || passed < self.tuning.steady_intervals && !fuller {
            true => Err(HomeWaits::MovedLately { at: moved.at, load_then: moved.load, load_now }),
            false => Ok(()),
        }
    }

    /// Whether its CPUs may be bound.
    fn may_bind(&self, at: usize) -> Result<(), HomeWaits> {
        let owner = self.owner(at);
        match self.seen.loads.get(&self.state(at).id) {
            _ if !owner.lets_bind() => Err(HomeWaits::OwnerKeeps { owner }),
            Some(load) if load.has_cpuset => Err(HomeWaits::HasCpuset),
            _ => Ok(()),
        }
    }

    // What is to run on some nodes, once everybody is at home.
    fn load_at(&self, home: &[usize]) -> MilliVcpus {
        MilliVcpus(
            home.iter().fold(0, |sum: u64, &i| sum.saturating_add(self.scene.view.nodes[i].busy)),
        )
    }

    /// A better home was found once more. Whether it is better for sure.
    pub(super) fn stands(&mut self, at: usize, occasion: Occasion, payback: Payback) -> bool {
        let known = &mut self.known[at];
        known.wins = known.wins.saturating_add(1);
        self.is_sure(at, occasion, payback)
    }

    /// Whether a home is better for sure: found so several times in a row, or in trouble clearly so. Else that is what its move
    /// waits for.
    fn is_sure(&mut self, at: usize, occasion: Occasion, payback: Payback) -> bool {
        let is_clear = payback.is_gain_of(self.tuning.minimum_gain_ppm.saturating_mul(CLEAR_GAIN));
        let needed = if occasion == Occasion::Trouble && is_clear { 1 } else { WINS };
        let known = &mut self.known[at];
        let is_sure = known.wins >= needed;
        if !is_sure {
            known.standing.home_waits =
                Some(HomeWaits::MayVary { found: known.wins, needed, payback });
        }
        is_sure
    }

    /// The best other home, if it pays.
    fn offer(&mut self, at: usize, occasion: Occasion) -> Result<Offer, HomeWaits> {
        let party = self.party(at).clone();
        self.scene.take_out(&party);
        let scales = Scales::new(&mut self.scene, &party, self.tuning, self.seen.soft_affinity);
        let here = scales.weigh(&party.home).unwrap_or_else(|| Weighed::impossible(&party.home));
        let mut others = scales.homes();
        others.retain(|there| there.home != party.home);
        let best = scales.best(others, here.slow_down);
        let offer = best.map(|there| (scales.payback(&here, &there), there));
        self.scene.add(&party);
        let Some((payback, there)) = offer else { return Err(HomeWaits::NoRoom) };
        let least_gain_ppm = match occasion {
            Occasion::Trouble => self.tuning.minimum_gain_ppm,
            Occasion::Turn => self.tuning.minimum_gain_ppm.saturating_mul(CLEAR_GAIN),
        };
        if !payback.is_gain_of(least_gain_ppm) {
            return Err(HomeWaits::NoneBetter { here: payback.here, best: payback.there });
        }
        match payback.pays_within(party.horizon_ns) {
            true => Ok(Offer { at, occasion, there, payback }),
            false => {
                Err(HomeWaits::DoesNotPay { payback, within_ms: party.horizon_ns / 1_000_000 })
            }
        }
    }

    /// Gives a domain another home and remembers that.
    pub(super) fn accept(&mut self, at: usize, there: &Weighed, reason: &Reason) {
        self.settle(at, there, reason);
        let (now, tuning) = (self.now(), self.tuning);
        let load = self.load_at(&there.home);
        let known = &mut self.known[at];
        let soon_after = known.moved.filter(|moved| {
            let long_after = moved.stay_intervals.saturating_add(tuning.steady_intervals);
            now.saturating_sub(moved.at) < long_after
        });
        let stay_intervals = soon_after.map_or(tuning.minimum_stay_intervals, |moved| {
            let longest = LONGEST_STAY_INTERVALS.max(tuning.minimum_stay_intervals);
            moved.stay_intervals.saturating_mul(2).min(longest)
        });
        known.moved = Some(LastMove { at: now, stay_intervals, load });
        known.standing.home_waits = None;
    }
}

/// Why a domain is weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Occasion {
    /// It is in trouble, or shares a home with one that is.
    Trouble,
    /// It is its turn.
    Turn,
}

/// Another home for a domain, which pays.
#[derive(Debug)]
struct Offer {
    at: usize,
    occasion: Occasion,
    there: Weighed,
    payback: Payback,
}
