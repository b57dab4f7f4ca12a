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

    /// Takes back the decisions of transactions of the last plan that were dropped. `seen` is what
    /// that plan was made from.
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
    /// The state before the last plan.
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
#[derive(Debug, Clone, PartialEq)]
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

    /// Plans one transaction an interval, for a part named after itself and the number of those
    /// that it has planned so far.
    #[derive(Debug)]
    struct Counting(&'static str);

    impl Controller for Counting {
        type State = Vec<String>;

        const NAME: &'static str = "counting";

        fn learn(&self, _: &ControlObservation, planned: &Vec<String>) -> Vec<String> {
            planned.clone()
        }

        fn plan(&self, _: &ControlObservation, state: &Vec<String>) -> (ControlPlan, Vec<String>) {
            let name = format!("{}{}", self.0, state.len());
            let action =
                Action::ConfineMemory { part: name.as_str().into(), nodes: NodeSet::new() };
            let steps = vec![Step { action, reason: Reason::Arrived }];
            let transactions = vec![Transaction::new(steps, &Observation::default())];
            let plan = ControlPlan { transactions, ..ControlPlan::default() };
            (plan, [state.clone(), vec![name]].concat())
        }

        fn take_back(&self, state: &mut Vec<String>, _: &Vec<String>, dropped: &Transaction) {
            let parts: Vec<_> = dropped.parts().iter().map(ToString::to_string).collect();
            state.retain(|name| !parts.contains(name));
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
    fn each_controller_has_its_own_state_and_takes_back_its_own_transactions() {
        let seen = ControlObservation { interval: 7, ..ControlObservation::default() };
        let (mut a, mut half) = (Keeper::new(Counting("a")), Keeper::new(Halving));
        let mut b = Keeper::new(Counting("b"));
        let mut interval = |dropped: &[usize]| {
            let mut list: [&mut dyn Planner; 3] = [&mut a, &mut half, &mut b];
            let plans = plan_all(&mut list, &seen);
            assert_eq!((plans.all.interval, plans.all.transactions.len()), (7, 3));
            take_back_all(&mut list, &seen, &plans, dropped);
        };
        interval(&[]);
        interval(&[2]);
        interval(&[0, 1]);
        assert_eq!(**a.state(), ["a0", "a1"], "the third was dropped");
        assert_eq!(**b.state(), ["b0", "b1"], "the second was, and has come again");
        let nothing = plan_all(&mut [], &seen);
        assert_eq!((nothing.all.transactions, nothing.counts), (vec![], vec![]));
    }

    #[test]
    fn a_state_is_saved_and_read_again_and_another_one_is_refused() {
        let seen = ControlObservation::default();
        let mut a = Keeper::new(Counting("a"));
        a.plan(&seen);
        let saved = a.save().unwrap();
        assert_eq!((a.name(), saved.get()), ("counting", r#"["a0"]"#));
        let mut again = Keeper::new(Counting("a"));
        again.load(&saved).unwrap();
        assert_eq!(again.state(), a.state());
        let other = RawValue::from_string("{}".into()).unwrap();
        assert!(again.load(&other).is_err());
        assert_eq!(again.state(), a.state());
    }
}
