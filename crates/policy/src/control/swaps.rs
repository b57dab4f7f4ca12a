//! Swaps: two domains that change places where neither fits alone.

use super::{
    Payback,
    homes::Occasion,
    round::Round,
    weigh::{Scales, Weighed},
};
use crate::Reason;
use std::cmp::Reverse;

// With how many others a domain is tried to change places.
const MOST_PARTNERS: usize = 64;

// To change places there must be room for this part of the memory of both, so that it can go round by round.
const ROOM_TO_SWAP: u64 = 32;

// A swap has to save this many times what it costs: while the memory of two domains crosses both run far from theirs, which no cost
// of moving counts.
const SAVES_TIMES_COST: u64 = 2;

impl Round<'_> {
    /// Looks for another domain with which a domain that fits nowhere alone can change places, which they do once it is sure that
    /// this pays. Whether there is one.
    pub(super) fn change_places(&mut self, at: usize) -> bool {
        let mine = self.party(at).clone();
        let mut partners = Vec::new();
        for other in self.domains() {
            let theirs = self.party(other);
            let smaller =
                theirs.demand_milli < mine.demand_milli || theirs.needed_bytes < mine.needed_bytes;
            let elsewhere =
                !theirs.home.is_empty() && theirs.home.iter().all(|i| !mine.home.contains(i));
            let needed_bytes = theirs.needed_bytes;
            if smaller
                && elsewhere
                && self.looked_at[other]
                && !self.is_moving[other]
                && self.may_move(other).is_ok()
            {
                partners.push((needed_bytes, other));
            }
        }
        partners.sort_unstable();
        let swaps =
            partners.into_iter().take(MOST_PARTNERS).filter_map(|(_, other)| self.swap(at, other));
        let best =
            swaps.max_by_key(|swap| (swap.payback.net_ns(swap.horizon_ns), Reverse(swap.other)));
        let Some(swap) = best else { return false };
        if !self.stands(at, Occasion::Trouble, swap.payback) {
            return true;
        }
        let name = |at: usize| self.state(at).id.clone();
        let reason = |with| Reason::Exchange { with, payback: swap.payback };
        let (mine, theirs) = (reason(name(swap.other)), reason(name(at)));
        self.accept(at, &swap.mine, &mine);
        self.accept(swap.other, &swap.theirs, &theirs);
        self.join_last_two();
        true
    }

    fn swap(&mut self, at: usize, other: usize) -> Option<Swap> {
        let (mine, theirs) = (self.party(at).clone(), self.party(other).clone());
        if mine.page_size != theirs.page_size || !self.has_room_to_swap(at, other) {
            return None;
        }
        let (tuning, soft) = (self.tuning, self.seen.soft_affinity);
        let scene = &mut self.scene;
        // As it is: each without itself, but with the other.
        scene.take_out(&mine);
        let my_here = Scales::new(scene, &mine, tuning, soft).weigh(&mine.home);
        scene.take_out(&theirs);
        // As it would be: the other is gone from where each goes to.
        let scales = Scales::new(scene, &mine, tuning, soft);
        let my_there = scales.weigh(&theirs.home).filter(|there| there.has_room);
        let mine_pays =
            my_here.zip(my_there.as_ref()).map(|(here, there)| scales.payback(&here, there));
        let scales = Scales::new(scene, &theirs, tuning, soft);
        let their_there = scales.weigh(&mine.home).filter(|there| there.has_room);
        scene.add(&mine);
        let scales = Scales::new(scene, &theirs, tuning, soft);
        let their_here = scales.weigh(&theirs.home);
        let theirs_pays =
            their_here.zip(their_there.as_ref()).map(|(here, there)| scales.payback(&here, there));
        scene.add(&theirs);
        let payback = mine_pays?.and(theirs_pays?);
        let horizon_ns = mine.horizon_ns.min(theirs.horizon_ns);
        let pays = payback.is_gain_of(tuning.minimum_gain_ppm)
            && payback.pays_within(horizon_ns / SAVES_TIMES_COST);
        Some(Swap { other, mine: my_there?, theirs: their_there?, payback, horizon_ns })
            .filter(|_| pays)
    }

    // Pages go round by round, so a little free memory on one side is enough.
    fn has_room_to_swap(&self, at: usize, other: usize) -> bool {
        let (mine, theirs) = (self.party(at), self.party(other));
        let both_bytes = mine.needed_bytes.saturating_add(theirs.needed_bytes);
        let free = |i: &usize| self.scene.room_bytes(mine.page_size, *i).1;
        mine.home
            .iter()
            .chain(&theirs.home)
            .map(free)
            .any(|bytes| bytes >= both_bytes / ROOM_TO_SWAP)
    }
}

/// Two domains in each other's homes, which pays.
#[derive(Debug)]
struct Swap {
    other: usize,
    mine: Weighed,
    theirs: Weighed,
    payback: Payback,
    /// As long as both are expected to run.
    horizon_ns: u64,
}
