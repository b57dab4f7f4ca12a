//! Exchanges: two parts take each other's homes where neither finds room alone.

use super::{
    confirmation::Trigger,
    evaluation::{Evaluation, Evaluator},
    model::{HostModel, PartModel},
    round::Round,
    tuning::Tuning,
};
use crate::{
    Payback, Reason,
    index::{NodeIndex, PartIndex},
};
use std::cmp::Reverse;

// With how many partners an exchange is evaluated.
const MAX_PARTNERS: usize = 64;

// One side needs free memory for this fraction of both parts, since pages cross in batches.
const ROOM_FRACTION: u64 = 32;

// An exchange must save this many times its cost: while the memory of two parts crosses, both run
// far from theirs, which no cost of moving counts.
const SAVINGS_PER_COST: u64 = 2;

/// Two parts in each other's homes, which pays.
#[derive(Debug)]
struct Exchange {
    other: PartIndex,
    mine: Evaluation,
    theirs: Evaluation,
    payback: Payback,
    /// The shorter horizon of both.
    horizon_ns: u64,
}

impl Round<'_> {
    /// Looks for an exchange for a part that finds no room alone, and makes it once it is
    /// confirmed. Whether there is one.
    pub(super) fn exchange_homes(&mut self, at: PartIndex) -> bool {
        let may_take_part = |other: PartIndex| {
            self.is_sampled(other) && !self.is_moving(other) && self.may_move(other).is_ok()
        };
        let mine = self.part(at);
        let partners = partners(mine, self.parts().map(|it| (it, self.part(it))), |other| {
            may_take_part(other)
                && keeps_cells_apart(&self.nodes_of_siblings(at), self.part(other))
                && keeps_cells_apart(&self.nodes_of_siblings(other), mine)
        });
        let exchanges = partners.into_iter().filter_map(|other| self.exchange(at, other));
        let best = exchanges.max_by_key(|it| (it.payback.net_ns(it.horizon_ns), Reverse(it.other)));
        let Some(Exchange { other, mine, theirs, payback, .. }) = best else { return false };
        if !self.confirm(at, Trigger::Contention, payback) {
            return true;
        }
        let reason = |with| Reason::Exchange { with, payback };
        let (to_other, to_mine) =
            (reason(self.state(other).id.clone()), reason(self.state(at).id.clone()));
        let mut steps = self.accept(at, &mine, &to_other);
        steps.extend(self.accept(other, &theirs, &to_mine));
        self.transact(steps);
        true
    }

    fn exchange(&mut self, at: PartIndex, other: PartIndex) -> Option<Exchange> {
        let (mine, theirs) = (self.part(at).clone(), self.part(other).clone());
        let (tuning, soft_affinity) = (self.tuning(), self.seen().soft_affinity);
        let (to_theirs, to_mine, payback) =
            evaluate_exchange(self.host_mut(), &mine, &theirs, tuning, soft_affinity)?;
        let horizon_ns = mine.horizon_ns.min(theirs.horizon_ns);
        pays(tuning, payback, horizon_ns).then_some(Exchange {
            other,
            mine: to_theirs,
            theirs: to_mine,
            payback,
            horizon_ns,
        })
    }
}

/// The parts with which an exchange is evaluated: those with the least memory first.
fn partners<'a>(
    mine: &PartModel,
    others: impl Iterator<Item = (PartIndex, &'a PartModel)>,
    may_exchange: impl Fn(PartIndex) -> bool,
) -> Vec<PartIndex> {
    let mut partners: Vec<_> = others
        .filter(|&(other, theirs)| is_partner(mine, theirs) && may_exchange(other))
        .map(|(other, theirs)| (theirs.needed_bytes, other))
        .collect();
    partners.sort_unstable();
    partners.truncate(MAX_PARTNERS);
    partners.into_iter().map(|(_, other)| other).collect()
}

/// Whether a part whose siblings are at home on these nodes may take another's home: a cell may not
/// join a sibling, nor take a sibling's home, for the guest knows how far its cells are from each
/// other.
fn keeps_cells_apart(nodes_of_siblings: &[NodeIndex], other: &PartModel) -> bool {
    other.home.iter().all(|node| !nodes_of_siblings.contains(node))
}

/// Whether an exchange gains enough, and saves enough more than it costs within the horizon.
fn pays(tuning: &Tuning, payback: Payback, horizon_ns: u64) -> bool {
    payback.is_gain_of(tuning.min_gain_ppm) && payback.pays_within(horizon_ns / SAVINGS_PER_COST)
}

/// Whether an exchange with a part may help: it has a home elsewhere, and is smaller in CPU demand
/// or memory.
fn is_partner(mine: &PartModel, theirs: &PartModel) -> bool {
    let is_smaller =
        theirs.demand_milli < mine.demand_milli || theirs.needed_bytes < mine.needed_bytes;
    let is_elsewhere =
        !theirs.home.is_empty() && theirs.home.iter().all(|i| !mine.home.contains(i));
    is_smaller && is_elsewhere
}

/// Whether pages of both can cross in batches: one side of the exchange has free memory for a 32nd
/// of them.
fn has_room_to_cross(host: &HostModel, mine: &PartModel, theirs: &PartModel) -> bool {
    let both_bytes = mine.needed_bytes.saturating_add(theirs.needed_bytes);
    let nodes = mine.home.iter().chain(&theirs.home);
    let free = |&i| host.room(mine.page_size, i).allocatable;
    nodes.map(free).any(|bytes| bytes >= both_bytes / ROOM_FRACTION)
}

/// Both parts in each other's homes; None if one of them has no room there, or their pages cannot
/// cross.
fn evaluate_exchange(
    host: &mut HostModel,
    mine: &PartModel,
    theirs: &PartModel,
    tuning: &Tuning,
    soft_affinity: bool,
) -> Option<(Evaluation, Evaluation, Payback)> {
    if mine.page_size != theirs.page_size || !has_room_to_cross(host, mine, theirs) {
        return None;
    }
    // As it is: each without itself, but with the other. As it would be: without both, for the
    // other leaves.
    host.remove(mine);
    let mine_here = Evaluator::new(host, mine, tuning, soft_affinity).evaluate(&mine.home);
    host.remove(theirs);
    let evaluator = Evaluator::new(host, mine, tuning, soft_affinity);
    let mine_there = evaluator.evaluate(&theirs.home).filter(|there| there.has_room);
    let mine_pays =
        mine_here.zip(mine_there.as_ref()).map(|(here, there)| evaluator.payback(&here, there));
    let evaluator = Evaluator::new(host, theirs, tuning, soft_affinity);
    let theirs_there = evaluator.evaluate(&mine.home).filter(|there| there.has_room);
    host.add(mine);
    let evaluator = Evaluator::new(host, theirs, tuning, soft_affinity);
    let theirs_here = evaluator.evaluate(&theirs.home);
    let theirs_pays =
        theirs_here.zip(theirs_there.as_ref()).map(|(here, there)| evaluator.payback(&here, there));
    host.add(theirs);
    Some((mine_there?, theirs_there?, mine_pays?.and(theirs_pays?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ControlObservation,
        controllers::homes::fixture::{GIB, SECOND, learned, part, seen},
        index::Index,
    };
    use nearside_topology::{NodeId, NodeSet};

    /// Two nodes of two CPUs: `db` of 2 CPUs at home on node 0 beside 2 CPUs of other work, and
    /// `web`, which demands this much CPU time of 2 s, with so much memory on node 1.
    fn host(web_ns: u64, web_gib: u64) -> (HostModel, PartModel, PartModel) {
        let mut seen: ControlObservation = seen(1, 0, [4, 0]);
        let mut web = seen.machine.parts[0].clone();
        let mut load = seen.loads[&web.id].clone();
        web.id = "web".into();
        web.home.as_mut().unwrap().nodes = NodeSet::from([NodeId(1)]);
        let bytes: crate::ByNode = [(NodeId(1), web_gib * GIB)].into();
        web.resident_bytes.clone_from(&bytes);
        let claim = web.claim.as_mut().unwrap();
        (claim.bytes, claim.vcpus) = (bytes, [(NodeId(1), 1)].into());
        load.cpu_ns = [(NodeId(1), web_ns)].into();
        seen.loads.insert(web.id.clone(), load);
        seen.machine.parts.push(web);
        let tuning = Tuning::default();
        let learned = learned(&tuning, &seen);
        let host = HostModel::new(&tuning, &seen, &learned);
        let (db, web) = (host.part(part(0)).clone(), host.part(part(1)).clone());
        (host, db, web)
    }

    #[test]
    fn a_partner_is_smaller_and_lives_elsewhere() {
        let (_, db, web) = host(SECOND, 1);
        assert!(is_partner(&db, &web) && !is_partner(&web, &db), "web is smaller");
        let larger = PartModel { demand_milli: 2000, needed_bytes: 4 * GIB, ..web.clone() };
        assert!(!is_partner(&db, &larger), "equal in both");
        let neighbour = PartModel { home: vec![NodeIndex::at(0), NodeIndex::at(1)], ..web.clone() };
        assert!(!is_partner(&db, &neighbour), "one node in common");
        assert!(!is_partner(&db, &PartModel { home: Vec::new(), ..web }), "no home to give");
    }

    #[test]
    fn pages_cross_once_one_side_has_room_for_a_32nd_of_both() {
        let (host, db, web) = host(SECOND, 1);
        let with = |bytes| PartModel { needed_bytes: bytes, ..web.clone() };
        // 16 GiB are allocatable on each node: enough for 32 x 16 GiB in all, 4 of which are db's.
        assert!(has_room_to_cross(&host, &db, &with(508 * GIB)));
        assert!(!has_room_to_cross(&host, &db, &with(508 * GIB + 32)));
    }

    #[test]
    fn an_exchange_pays_for_both_together() {
        // db shares its CPUs with as much other work; web uses half a CPU and fits beside that work
        // better.
        let (mut host, db, web) = host(SECOND, 1);
        let (load, room) = (host.load_milli(&db.home), host.room(db.page_size, db.home[0]));
        let tuning = Tuning::default();
        let (mine, theirs, payback) =
            evaluate_exchange(&mut host, &db, &web, &tuning, true).unwrap();
        assert_eq!((&mine.home, &theirs.home), (&web.home, &db.home));
        // Node 1 is its own then; 4.5 CPUs of 4 are demanded, so all work waits 4.5 / 4.
        assert_eq!(mine.slow_down, crate::SlowDown(1_125_000));
        assert!(payback.here() > payback.there(), "{payback}");
        // 4 GiB and 1 GiB cross at twice the local latency: 5,120 x 2 ms.
        assert!(payback.to_string().contains("5 GiB to move cost 10240 ms"), "{payback}");
        let now = (host.load_milli(&db.home), host.room(db.page_size, db.home[0]));
        assert_eq!(now, (load, room), "the model is as before");
    }

    #[test]
    fn an_exchange_needs_room_for_each_at_the_others_home() {
        let (mut host, db, web) = host(SECOND, 30);
        assert!(evaluate_exchange(&mut host, &db, &web, &Tuning::default(), true).is_none());
    }

    #[test]
    fn parts_in_pages_of_different_sizes_do_not_exchange() {
        let (mut host, db, web) = host(SECOND, 1);
        let huge = PartModel { page_size: crate::PageSize::Huge(GIB), ..web };
        assert!(evaluate_exchange(&mut host, &db, &huge, &Tuning::default(), true).is_none());
    }

    #[test]
    fn the_smallest_partners_come_first_and_no_more_than_64() {
        let (_, db, web) = host(SECOND, 1);
        let with = |bytes| PartModel { needed_bytes: bytes, ..web.clone() };
        let others: Vec<_> = (0..70).rev().map(with).collect();
        let all = || others.iter().enumerate().map(|(i, other)| (part(i), other));
        let chosen = partners(&db, all(), |_| true);
        let expected: Vec<_> = (6..70).rev().map(part).collect();
        assert_eq!(chosen, expected, "the last has no memory, and the seventh 63 bytes");
        let only = partners(&db, all(), |other| other == part(3));
        assert_eq!(only, [part(3)]);
        assert_eq!(partners(&db, [(part(0), &db)].into_iter(), |_| true), []);
    }

    #[test]
    fn a_cell_does_not_join_a_sibling() {
        let (_, _, web) = host(SECOND, 1);
        let [first, second] = [0, 1].map(NodeIndex::at);
        assert!(keeps_cells_apart(&[], &web) && keeps_cells_apart(&[first], &web));
        assert!(!keeps_cells_apart(&[first, second], &web), "web is at home on node 1");
    }

    #[test]
    fn an_exchange_saves_twice_its_cost_within_the_horizon() {
        let tuning = Tuning::default();
        // 2 CPUs at 1.0 instead of 1.2 save a third of a CPU: twice 1 s of cost comes back in 6 s.
        let slow_downs = (crate::SlowDown(1_200_000), crate::SlowDown(1_000_000));
        let of = |(here, there)| Payback::new(crate::MilliVcpus(2000), here, there, 1, SECOND);
        assert!(pays(&tuning, of(slow_downs), 6 * SECOND + 2_000_000));
        assert!(!pays(&tuning, of(slow_downs), 6 * SECOND - 2_000_000));
        let little = (crate::SlowDown(1_040_000), crate::SlowDown(1_000_000));
        assert!(!pays(&tuning, of(little), u64::MAX), "4 % are less than the minimum");
    }
}
