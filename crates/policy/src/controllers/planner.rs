//! The controllers of a daemon, each with its state, and their plans as one.

use super::{
    controller::{ControlPlan, Controller},
    observation::ControlObservation,
};
use crate::Transaction;
use serde_json::value::{RawValue, to_raw_value};
use std::{borrow::Cow, fmt, mem, sync::Arc};

/// A controller in a list with others, whatever its state.
pub trait Planner: fmt::Debug {
    /// The name under which its state is saved.
    fn name(&self) -> &'static str;

    /// The plan for the interval that begins. Its state is that for the next one from then on.
    fn plan(&mut self, seen: &ControlObservation) -> ControlPlan;

    /// Takes back the decisions of transactions of the last plan that were dropped. `seen` is the
    /// observation of that interval, before any controller planned.
    fn take_back(&mut self, seen: &ControlObservation, dropped: &[&Transaction]);

    /// Its state as JSON.
    ///
    /// # Errors
    /// If the state has no form in JSON.
    fn save(&self) -> serde_json::Result<Box<RawValue>>;

    /// Continues from a state that was saved.
    ///
    /// # Errors
    /// If it is none of this controller's; the present one stays.
    fn load(&mut self, saved: &RawValue) -> serde_json::Result<()>;
}

/// A controller and its state.
#[derive(Debug)]
pub struct Keeper<C: Controller> {
    /// The controller.
    pub controller: C,
    /// Its state, which snapshots share.
    state: Arc<C::State>,
    /// The state before the last plan: a dropped decision is taken back to what would have been
    /// learned from it alone.
    before: Arc<C::State>,
}

impl<C: Controller> Keeper<C> {
    /// A controller that remembers nothing.
    pub fn new(controller: C) -> Self {
        Self { controller, state: Arc::default(), before: Arc::default() }
    }

    /// Its state.
    pub fn state(&self) -> &Arc<C::State> {
        &self.state
    }
}

impl<C: Controller> Planner for Keeper<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn plan(&mut self, seen: &ControlObservation) -> ControlPlan {
        let (plan, next) = self.controller.plan(seen, &self.state);
        self.before = mem::replace(&mut self.state, Arc::new(next));
        plan
    }

    fn take_back(&mut self, seen: &ControlObservation, dropped: &[&Transaction]) {
        let learned = self.controller.learn(seen, &self.before);
        let state = Arc::make_mut(&mut self.state);
        for transaction in dropped {
            self.controller.take_back(state, &learned, transaction);
        }
    }

    fn save(&self) -> serde_json::Result<Box<RawValue>> {
        to_raw_value(&*self.state)
    }

    fn load(&mut self, saved: &RawValue) -> serde_json::Result<()> {
        self.state = Arc::new(serde_json::from_str(saved.get())?);
        Ok(())
    }
}

/// The plans of several controllers as one.
#[derive(Debug)]
pub struct Plans {
    /// Their transactions and moves, in the order of the controllers.
    pub all: ControlPlan,
    /// The number of transactions of each.
    counts: Vec<usize>,
}

/// The plans of all controllers in their order. Each sees the claims and homes that those before it
/// have planned: no two of them count on the same free memory.
pub fn plan_all(planners: &mut [&mut dyn Planner], seen: &ControlObservation) -> Plans {
    let mut all = ControlPlan { interval: seen.interval, ..ControlPlan::default() };
    let mut counts = Vec::new();
    let mut seen = Cow::Borrowed(seen);
    let last = planners.len();
    for (number, planner) in (1..).zip(planners) {
        let plan = planner.plan(&seen);
        // An observation has an entry for each part, so it is copied only where another controller
        // sees the change.
        if number < last && !plan.transactions.is_empty() {
            let machine = &mut seen.to_mut().machine;
            for step in plan.steps() {
                machine.change(&step.action);
            }
        }
        counts.push(plan.transactions.len());
        all.transactions.extend(plan.transactions);
        all.moves.extend(plan.moves);
    }
    Plans { all, counts }
}

/// Tells each controller which of its transactions were dropped. `dropped` are their positions in
/// [`Plans::all`], rising, and `seen` is what [`plan_all`] got.
pub fn take_back_all(
    planners: &mut [&mut dyn Planner],
    seen: &ControlObservation,
    plans: &Plans,
    dropped: &[usize],
) {
    let mut begin = 0;
    for (planner, count) in planners.iter_mut().zip(&plans.counts) {
        let own = begin..begin + count;
        begin = own.end;
        let its = dropped.iter().filter(|at| own.contains(at));
        let its: Vec<_> = its.filter_map(|at| plans.all.transactions.get(*at)).collect();
        if !its.is_empty() {
            planner.take_back(seen, &its);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, ByNode, Observation, PageSize, Reason, Reservation, Step, Until};
    use nearside_topology::{Node, NodeId, NodeSet, Topology};
    use std::collections::BTreeMap;

    /// Confines so many parts in each interval. They are named after it, and numbered by how often
    /// a number was taken.
    #[derive(Debug)]
    struct Counting(&'static str, usize);

    /// The parts by number: the interval that was learned last, and how often each was confined.
    type Counts = BTreeMap<usize, (u64, u64)>;

    impl Controller for Counting {
        type State = Counts;

        const NAME: &'static str = "counting";

        fn learn(&self, seen: &ControlObservation, counts: &Counts) -> Counts {
            let count = |at: &usize| counts.get(at).map_or(0, |(_, count)| *count);
            (0..self.1).map(|at| (at, (seen.interval, count(&at)))).collect()
        }

        fn plan(&self, seen: &ControlObservation, counts: &Counts) -> (ControlPlan, Counts) {
            let mut next = self.learn(seen, counts);
            next.values_mut().for_each(|(_, count)| *count += 1);
            let transaction = |at: &usize| {
                let part = format!("{}{at}", self.0).as_str().into();
                let action = Action::ConfineMemory { part, nodes: NodeSet::new() };
                let step = Step { action, reason: Reason::Arrived };
                Transaction::new(vec![step], &Observation::default())
            };
            let transactions = next.keys().map(transaction).collect();
            (ControlPlan { transactions, ..ControlPlan::default() }, next)
        }

        fn take_back(&self, counts: &mut Counts, learned: &Counts, dropped: &Transaction) {
            for part in dropped.parts() {
                let at = part.domain().trim_start_matches(self.0).parse().unwrap();
                counts.insert(at, learned[&at]);
            }
        }
    }

    /// Reserves half of the memory that is free on node 0.
    #[derive(Debug)]
    struct Halving;

    impl Controller for Halving {
        type State = ();

        const NAME: &'static str = "halving";

        fn learn(&self, _: &ControlObservation, (): &()) {}

        fn plan(&self, seen: &ControlObservation, (): &()) -> (ControlPlan, ()) {
            let half_bytes = seen.machine.available(PageSize::Base).on(NodeId(0)) / 2;
            let bytes = ByNode::from([(NodeId(0), half_bytes)]);
            let reservation = Reservation { bytes, ..Reservation::default() };
            let action = Action::Reserve { reservation, until: Until::ProcessEnds };
            let steps = vec![Step { action, reason: Reason::Arrived }];
            let transactions = vec![Transaction::new(steps, &seen.machine)];
            (ControlPlan { transactions, ..ControlPlan::default() }, ())
        }

        fn take_back(&self, (): &mut (), (): &(), _: &Transaction) {}
    }

    #[test]
    fn controllers_see_what_those_before_them_have_planned() {
        let node = Node { id: NodeId(0), memory_bytes: 800 << 20, ..Node::default() };
        let machine = Observation::of(Topology { nodes: vec![node], ..Topology::default() });
        let free_bytes = machine.available(PageSize::Base).on(NodeId(0));
        let seen = ControlObservation { machine, ..ControlObservation::default() };
        let mut three = [(); 3].map(|()| Keeper::new(Halving));
        let mut list = three.each_mut().map(|it| it as &mut dyn Planner);
        let plans = plan_all(&mut list, &seen);
        let reserved = plans.all.steps().map(|step| match &step.action {
            Action::Reserve { reservation, .. } => reservation.bytes[&NodeId(0)],
            _ => 0,
        });
        assert!(free_bytes > 0);
        assert_eq!(reserved.collect::<Vec<_>>(), [2, 4, 8].map(|part| free_bytes / part));
    }

    #[test]
    fn each_controller_takes_back_its_own_transactions_to_what_was_learned() {
        let (mut two, mut half) = (Keeper::new(Counting("two", 2)), Keeper::new(Halving));
        let (mut none, mut one) = (Keeper::new(Counting("none", 0)), Keeper::new(Counting("x", 1)));
        let mut interval = |interval, dropped: &[usize]| {
            let seen = ControlObservation { interval, ..ControlObservation::default() };
            let mut list: [&mut dyn Planner; 4] = [&mut two, &mut half, &mut none, &mut one];
            let plans = plan_all(&mut list, &seen);
            assert_eq!((plans.all.interval, plans.all.transactions.len()), (interval, 4));
            take_back_all(&mut list, &seen, &plans, dropped);
            [&two, &none, &one].map(|it| it.state().values().copied().collect::<Vec<_>>())
        };
        assert_eq!(interval(5, &[]), [vec![(5, 1), (5, 1)], vec![], vec![(5, 1)]]);
        assert_eq!(interval(6, &[1, 2]), [vec![(6, 2), (6, 1)], vec![], vec![(6, 2)]]);
        assert_eq!(interval(7, &[0, 1, 3]), [vec![(7, 2), (7, 1)], vec![], vec![(7, 2)]]);
        let nothing = plan_all(&mut [], &ControlObservation::default());
        assert_eq!((nothing.all.transactions, nothing.counts), (vec![], vec![]));
    }

    #[test]
    fn a_state_is_saved_and_read_again_and_another_one_is_refused() {
        let seen = ControlObservation { interval: 3, ..ControlObservation::default() };
        let mut keeper = Keeper::new(Counting("a", 1));
        keeper.plan(&seen);
        let saved = keeper.save().unwrap();
        assert_eq!((keeper.name(), saved.get()), ("counting", r#"{"0":[3,1]}"#));
        let mut again = Keeper::new(Counting("a", 1));
        again.load(&saved).unwrap();
        assert_eq!(again.state(), keeper.state());
        let other = RawValue::from_string("[7]".into()).unwrap();
        assert!(again.load(&other).is_err());
        assert_eq!(again.state(), keeper.state());
    }
}
