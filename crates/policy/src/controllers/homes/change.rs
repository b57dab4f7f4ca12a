//! Better homes for parts that have one.

use super::{
    confirmation::{Trigger, needed, pays},
    cooldown::cooldown_after,
    evaluation::{Evaluation, Evaluator},
    learning::is_idle,
    mobility::{Resident, may_move},
    model::{HostModel, PartModel},
    order::for_evaluation,
    review::{Situation, Told, review},
    round::Round,
    tuning::Tuning,
};
use crate::{
    HomeBlocker, LastMove, MilliVcpus, Payback, Reason, Step,
    index::{IndexVec, NodeIndex, PartIndex},
};
use std::cmp::Reverse;

/// Another home for a part, which pays.
#[derive(Debug)]
struct Offer {
    at: PartIndex,
    trigger: Trigger,
    there: Evaluation,
    payback: Payback,
}

impl Round<'_> {
    /// Changes homes where that pays.
    pub(super) fn change_homes(&mut self) {
        let mut offers = Vec::new();
        let mut without_offer = Vec::new();
        for (at, trigger) in self.due() {
            let now = self.now();
            self.known_mut(at).evaluated_at = Some(now);
            match self.offer(at, trigger) {
                Ok(offer) if self.confirm(at, trigger, offer.payback) => offers.push(offer),
                Ok(_) => {}
                Err(blocker) if trigger == Trigger::Contention => {
                    self.known_mut(at).status.home_blocker = Some(blocker);
                    without_offer.push(at);
                }
                Err(_) => self.known_mut(at).confirmations = 0,
            }
        }
        // The best first. Later ones are evaluated again, for each accepted move changes the
        // others.
        offers.sort_by_key(|offer| {
            (Reverse(offer.payback.net_ns(self.part(offer.at).horizon_ns)), offer.at)
        });
        for (number, offer) in offers.into_iter().enumerate() {
            let at = offer.at;
            let still = if number == 0 { Ok(offer) } else { self.offer(at, offer.trigger) };
            match still {
                Ok(offer) if self.is_confirmed(at, offer.trigger, offer.payback) => {
                    let reason = Reason::PaysBack { payback: offer.payback };
                    let steps = self.accept(at, &offer.there, &reason);
                    self.transact(steps);
                }
                Ok(_) => {}
                Err(blocker) => {
                    let known = self.known_mut(at);
                    known.confirmations = 0;
                    known.status.home_blocker = Some(blocker);
                }
            }
        }
        for at in without_offer {
            let may_exchange = !self.is_moving(at) && self.may_move(at).is_ok();
            if !may_exchange || !self.exchange_homes(at) {
                self.known_mut(at).confirmations = 0;
            }
        }
    }

    /// The parts to evaluate: under contention first, the most promising first, then those whose
    /// review is due.
    fn due(&mut self) -> Vec<(PartIndex, Trigger)> {
        let (now, tuning) = (self.now(), self.tuning());
        let mut is_contended = IndexVec::filled(false, self.host().view().nodes.len());
        for at in self.sampled() {
            if self.known(at).contention_intervals >= tuning.threshold_intervals {
                self.part(at).home.iter().for_each(|&i| is_contended[i] = true);
            }
        }
        let mut chosen = Vec::new();
        for at in self.sampled() {
            if self.is_moving(at) || self.state(at).home.is_none() {
                continue;
            }
            let shares_contended_home = self.part(at).home.iter().any(|&i| is_contended[i]);
            let may_move = self.may_move(at);
            let known = self.known_mut(at);
            let situation = Situation {
                is_idle: is_idle(tuning, known),
                is_contended: known.contention_intervals > 0,
                shares_contended_home,
                confirmations: known.confirmations,
                evaluated_at: known.evaluated_at,
            };
            let (trigger, told) = review(tuning, may_move, situation, now);
            if let Told::Now(blocker) = told {
                known.status.home_blocker = blocker;
            }
            chosen.extend(trigger.map(|trigger| (at, trigger)));
        }
        let turns = for_evaluation(chosen, tuning, |at| self.part(at));
        for (at, _) in turns.queued {
            self.known_mut(at).status.home_blocker = Some(HomeBlocker::Queued);
        }
        turns.now
    }

    /// Whether the home of a part may change now.
    pub(super) fn may_move(&self, at: PartIndex) -> Result<(), HomeBlocker> {
        let Some(home) = self.state(at).home.as_ref() else { return Err(HomeBlocker::Queued) };
        let resident = Resident {
            home,
            is_bound: self.bound_to(at).is_some(),
            may_bind: self.may_bind(at),
            moved: self.known(at).moved,
            load_now: MilliVcpus(self.host().load_milli(&self.part(at).home)),
        };
        may_move(self.tuning(), &resident, self.seen().soft_affinity, self.now())
    }

    /// Counts that a better home was found once more. Whether it is confirmed now.
    pub(super) fn confirm(&mut self, at: PartIndex, trigger: Trigger, payback: Payback) -> bool {
        let known = self.known_mut(at);
        known.confirmations = known.confirmations.saturating_add(1);
        self.is_confirmed(at, trigger, payback)
    }

    // Whether a better home was found often enough in a row; the status tells if not.
    fn is_confirmed(&mut self, at: PartIndex, trigger: Trigger, payback: Payback) -> bool {
        let needed = needed(self.tuning(), trigger, payback);
        let known = self.known_mut(at);
        let found = known.confirmations;
        if found < needed {
            known.status.home_blocker = Some(HomeBlocker::Unconfirmed { found, needed, payback });
        }
        found >= needed
    }

    // The best other home, if it pays.
    fn offer(&mut self, at: PartIndex, trigger: Trigger) -> Result<Offer, HomeBlocker> {
        let (tuning, soft_affinity) = (self.tuning(), self.seen().soft_affinity);
        let (part, barred) = (self.part(at).clone(), self.nodes_of_siblings(at));
        let best = best_other_home(self.host_mut(), &part, &barred, tuning, soft_affinity);
        let (there, payback) = best.ok_or(HomeBlocker::NoRoom)?;
        pays(tuning, trigger, payback, part.horizon_ns)?;
        Ok(Offer { at, trigger, there, payback })
    }

    /// The steps that give a part another home; its cooldown begins.
    pub(super) fn accept(
        &mut self,
        at: PartIndex,
        there: &Evaluation,
        reason: &Reason,
    ) -> Vec<Step> {
        let steps = self.rehome(at, there, reason);
        let (now, tuning) = (self.now(), self.tuning());
        let load = MilliVcpus(self.host().load_milli(&there.home));
        let known = self.known_mut(at);
        let cooldown_intervals = cooldown_after(tuning, known.moved, now);
        known.moved = Some(LastMove { at: now, cooldown_intervals, load });
        known.status.home_blocker = None;
        steps
    }
}

/// The best other home of a part, off the barred nodes, and what it saves and costs; None where it
/// finds no room. The model is as before afterwards.
fn best_other_home(
    host: &mut HostModel,
    part: &PartModel,
    barred: &[NodeIndex],
    tuning: &Tuning,
    soft_affinity: bool,
) -> Option<(Evaluation, Payback)> {
    host.remove(part);
    let evaluator = Evaluator::new(host, part, tuning, soft_affinity);
    let here = evaluator.evaluate(&part.home).unwrap_or_else(|| Evaluation::impossible(&part.home));
    let mut others = evaluator.candidates(barred);
    others.retain(|there| there.home != part.home);
    let best = evaluator.best(others, here.slow_down);
    let best = best.map(|there| (evaluator.payback(&here, &there), there));
    host.add(part);
    best.map(|(payback, there)| (there, payback))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ControlObservation, PageSize, SlowDown,
        controllers::homes::fixture::{GIB, learned, part, seen},
        index::Index,
    };
    use nearside_topology::{MemoryState, NodeId, NodeSet};

    /// db and others want two CPUs each, of the two on node 0; node 1 is idle.
    fn crowded() -> ControlObservation {
        seen(101, 2, [4, 0])
    }

    fn second_node() -> NodeIndex {
        NodeIndex::at(1)
    }

    /// A round in which db was first seen in an interval.
    fn round<'a>(tuning: &'a Tuning, seen: &'a ControlObservation, since: u64) -> Round<'a> {
        let mut learned = learned(tuning, seen);
        learned.parts[part(0)].since = Some(since);
        Round::new(tuning, seen, learned)
    }

    fn offer(seen: &ControlObservation, since: u64) -> Result<Offer, HomeBlocker> {
        round(&Tuning::default(), seen, since).offer(part(0), Trigger::Contention)
    }

    #[test]
    fn another_home_is_offered_if_it_has_room_is_better_and_pays() {
        let better = offer(&crowded(), 1).unwrap();
        assert_eq!(better.there.home, [second_node()]);
        // At home a part of its memory is remote; see the cases of `evaluation`.
        let slow_downs = (better.payback.here(), better.payback.there());
        assert_eq!(slow_downs, (SlowDown(1_400_000), SlowDown(1_000_000)));
        // 4 GiB cost 8.2 s. At 0.57 s a second that takes 15 s, and db is expected to run for 14.
        let young = offer(&crowded(), 94).unwrap_err();
        assert!(matches!(young, HomeBlocker::DoesNotPay { within_ms: 14_000, .. }), "{young}");
        assert!(offer(&crowded(), 93).is_ok(), "and now for 16");
        let quiet = offer(&seen(101, 0, [0, 0]), 1).unwrap_err();
        assert!(matches!(quiet, HomeBlocker::NoneBetter { .. }), "{quiet}");
        // db has 4 GiB. With 3 on node 1 it stays on both; with none that is no better.
        for (free_gib, home) in [(0, None), (3, Some("0-1")), (4, Some("1"))] {
            let mut crowded = crowded();
            let state = MemoryState { free_bytes: free_gib * GIB, ..MemoryState::default() };
            crowded.machine.topology.nodes[1].state = Some(state);
            let offered = offer(&crowded, 1).ok().map(|it| {
                it.there.home.iter().map(|i| NodeId(i.position() as u32)).collect::<NodeSet>()
            });
            let expected = home.map(|nodes| nodes.parse().unwrap());
            assert_eq!(offered, expected, "{free_gib} GiB are free on node 1");
        }
    }

    #[test]
    fn an_offer_changes_nothing_and_an_accepted_one_moves_the_load_and_begins_a_cooldown() {
        let (tuning, seen) = (Tuning::default(), crowded());
        let mut round = round(&tuning, &seen, 1);
        let loads = |round: &Round<'_>| {
            [NodeIndex::at(0), second_node()].map(|i| round.host().load_milli(&[i]))
        };
        assert_eq!(loads(&round), [4000, 0]);
        let offer = round.offer(part(0), Trigger::Contention).unwrap();
        assert_eq!(loads(&round), [4000, 0]);
        assert_eq!(round.may_move(part(0)), Ok(()));
        let reason = Reason::PaysBack { payback: offer.payback };
        let steps = round.accept(part(0), &offer.there, &reason);
        let said: Vec<_> = steps.iter().map(|step| step.action.to_string()).collect();
        assert_eq!(said, ["claim node 1: 2 vCPUs, 4 GiB", "make node 1 the home"]);
        assert_eq!(loads(&round), [2000, 2000]);
        let moved = round.known(part(0)).moved.unwrap();
        let expected = (101, tuning.cooldown_intervals, MilliVcpus(2000));
        assert_eq!((moved.at, moved.cooldown_intervals, moved.load), expected);
        assert_eq!(round.known(part(0)).contention_intervals, 0);
    }

    #[test]
    fn parts_of_a_contended_home_are_due_first_and_those_that_may_not_move_never() {
        let tuning = Tuning::default();
        let mut seen = crowded();
        // Four domains on node 0: one is contended for long, one is as long as it shares its home,
        // one has just moved, one is idle.
        let (db, load) = (seen.machine.parts[0].clone(), seen.loads[&"db".into()].clone());
        for name in ["beside", "moved", "idle"] {
            seen.machine.parts.push(crate::PartState { id: name.into(), ..db.clone() });
            seen.loads.insert(name.into(), load.clone());
        }
        let mut learned = learned(&tuning, &seen);
        learned.parts[part(0)].contention_intervals = tuning.threshold_intervals;
        learned.parts[part(1)].contention_intervals = 0;
        let load = MilliVcpus(4000);
        learned.parts[part(2)].moved = Some(LastMove { at: 100, cooldown_intervals: 5, load });
        learned.parts[part(3)].demand = MilliVcpus(0);
        let mut round = Round::new(&tuning, &seen, learned);
        let contention = Trigger::Contention;
        assert_eq!(round.due(), [(part(0), contention), (part(1), contention)]);
        let blocker = |at| round.known(part(at)).status.home_blocker.clone();
        assert!(matches!(blocker(2), Some(HomeBlocker::Cooldown { .. })), "{:?}", blocker(2));
        assert_eq!(blocker(3), None);
    }

    #[test]
    fn the_best_other_home_is_off_the_barred_nodes() {
        let (tuning, seen) = (Tuning::default(), crowded());
        let mut host = HostModel::new(&tuning, &seen, &learned(&tuning, &seen));
        let db = host.part(part(0)).clone();
        let rooms = |host: &HostModel| {
            [NodeIndex::at(0), second_node()]
                .map(|i| (host.load_milli(&[i]), host.room(PageSize::Base, i)))
        };
        let before = rooms(&host);
        for (barred, expected) in [
            (vec![], Some((vec![second_node()], SlowDown(1_000_000)))),
            // Only its own home is left.
            (vec![second_node()], None),
        ] {
            let best = best_other_home(&mut host, &db, &barred, &tuning, true);
            let best = best.map(|(there, payback)| (there.home, payback.there()));
            assert_eq!(best, expected);
            assert_eq!(rooms(&host), before, "the model is as before");
        }
    }
}
