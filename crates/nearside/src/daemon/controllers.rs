//! The controllers of the daemon, and their states.

use nearside_policy::{Homes, Keeper, Planner, Tuning};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// States as they are saved, by the names of their controllers.
pub(super) type States = BTreeMap<String, Box<RawValue>>;

/// They decide, each about its own kind of subject.
#[derive(Debug)]
pub(super) struct Controllers {
    /// Its state is read by samples, snapshots and reports, too.
    pub(super) homes: Keeper<Homes>,
}

impl Controllers {
    /// Controllers that continue from states of an earlier daemon. States that cannot be read are
    /// learnt again, with a notice each.
    pub(super) fn new(tuning: &Tuning, states: &States) -> (Self, Vec<String>) {
        let mut controllers = Self { homes: Keeper::new(Homes { tuning: *tuning }) };
        let notices = load(&mut controllers.list(), states);
        (controllers, notices)
    }

    /// All of them, in the order in which they decide.
    pub(super) fn list(&mut self) -> [&mut dyn Planner; 1] {
        [&mut self.homes]
    }

    /// Has them go on under other constants.
    pub(super) fn tune(&mut self, tuning: &Tuning) {
        self.homes.controller = Homes { tuning: *tuning };
    }

    /// Their states.
    ///
    /// # Errors
    /// If one has no form in JSON.
    pub(super) fn save(&mut self) -> serde_json::Result<States> {
        self.list().into_iter().map(|it| Ok((it.name().to_owned(), it.save()?))).collect()
    }
}

/// Gives each controller its state.
fn load(controllers: &mut [&mut dyn Planner], states: &States) -> Vec<String> {
    let mut notices = Vec::new();
    for controller in controllers.iter_mut() {
        let name = controller.name();
        let loaded = states.get(name).map(|saved| controller.load(saved));
        if let Some(Err(error)) = loaded {
            notices.push(format!(
                "the state of the controller {name} cannot be read and is learnt again: {error}"
            ));
        }
    }
    let is_known = |name: &&String| controllers.iter().any(|it| it.name() == *name);
    let unknown = states.keys().filter(|name| !is_known(name));
    notices.extend(unknown.map(|name| {
        format!("there is no controller {name} in this version; its state is dropped")
    }));
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::{ControlObservation, History, Observation};
    use nearside_topology::{Node, NodeId, Topology};

    fn states(of: &[(&str, &str)]) -> States {
        let state = |&(name, text): &(&str, &str)| {
            (name.to_owned(), RawValue::from_string(text.to_owned()).unwrap())
        };
        of.iter().map(state).collect()
    }

    #[test]
    fn controllers_continue_from_what_they_have_saved() {
        let tuning = Tuning::default();
        let (mut first, said) = Controllers::new(&tuning, &States::new());
        assert_eq!(said, [""; 0]);
        let node = Node { id: NodeId(3), ..Node::default() };
        let machine = Observation::of(Topology { nodes: vec![node], ..Topology::default() });
        let seen = ControlObservation { machine, ..ControlObservation::default() };
        first.homes.plan(&seen);
        let saved = first.save().unwrap();
        assert_eq!(saved.keys().collect::<Vec<_>>(), ["homes"]);
        let (second, said) = Controllers::new(&tuning, &saved);
        assert_eq!((second.homes.state(), said), (first.homes.state(), vec![]));
        assert!(!second.homes.state().nodes.is_empty(), "there is something to continue from");
    }

    #[test]
    fn a_state_that_cannot_be_read_and_one_of_nobody_are_dropped_with_a_notice_each() {
        let saved = states(&[("homes", "[]"), ("of-a-later-version", "{}")]);
        let (controllers, said) = Controllers::new(&Tuning::default(), &saved);
        assert_eq!(**controllers.homes.state(), History::default());
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("homes cannot be read") && said[1].contains("later-version"));
    }
}
