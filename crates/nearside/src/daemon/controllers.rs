//! The controllers of the daemon, and their states.

use super::persisted::{FILE, States};
use nearside_policy::{Homes, Keeper, Planner, Tuning};
use nearside_topology::type_words::in_plain_words;

/// The controllers; each decides about its own kind of subject.
#[derive(Debug)]
pub(super) struct Controllers {
    /// The first. Its state is read by samples, snapshots and reports, too.
    pub(super) homes: Keeper<Homes>,
    /// The rest, in the order in which they decide.
    others: Vec<Box<dyn Planner>>,
}

/// The controllers after [`Homes`]. A new one is a file and an entry here.
fn others() -> Vec<Box<dyn Planner>> {
    vec![]
}

impl Controllers {
    /// Controllers that continue from states of an earlier daemon. States that cannot be read are
    /// learnt again, with a notice each.
    pub(super) fn new(tuning: &Tuning, states: &States) -> (Self, Vec<String>) {
        Self::with(others(), tuning, states)
    }

    /// [`Controllers::new`] with these others.
    pub(super) fn with(
        others: Vec<Box<dyn Planner>>,
        tuning: &Tuning,
        states: &States,
    ) -> (Self, Vec<String>) {
        let homes = Keeper::new(Homes { tuning: *tuning });
        let mut controllers = Self { homes, others };
        let notices = load(&mut controllers.list(), states);
        (controllers, notices)
    }

    /// All of them, in the order in which they decide.
    pub(super) fn list(&mut self) -> Vec<&mut dyn Planner> {
        let mut list: Vec<&mut dyn Planner> = vec![&mut self.homes];
        for other in &mut self.others {
            list.push(&mut **other);
        }
        list
    }

    /// Gives the controllers other constants; their states stay.
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
            let why = in_plain_words(&error.to_string(), "an object");
            notices.push(format!(
                "{FILE}: the state of the controller {name:?} cannot be read and is learnt again: \
                 {why}"
            ));
        }
    }
    let is_known = |name: &&String| controllers.iter().any(|it| it.name() == *name);
    let unknown = states.keys().filter(|name| !is_known(name));
    notices.extend(unknown.map(|name| {
        format!("{FILE}: this version has no controller {name:?}; its state is dropped")
    }));
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::{ControlObservation, History, NodeHistory, Observation};
    use nearside_topology::{Node, NodeId, Topology};
    use serde_json::value::RawValue;

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
    fn other_constants_leave_the_state() {
        let nodes = [(NodeId(1), NodeHistory::default())].into();
        let history = History { nodes, ..History::default() };
        let saved = states(&[("homes", &serde_json::to_string(&history).unwrap())]);
        let (mut controllers, _) = Controllers::new(&Tuning::default(), &saved);
        let other = Tuning { min_gain_ppm: 7, ..Tuning::default() };
        controllers.tune(&other);
        assert_eq!(controllers.homes.controller.tuning, other);
        assert_eq!(**controllers.homes.state(), history);
    }

    #[test]
    fn a_state_that_cannot_be_read_and_one_of_nobody_are_dropped_with_a_notice_each() {
        let saved = states(&[("homes", "[]"), ("of-a-later-version", "{}")]);
        let (controllers, said) = Controllers::new(&Tuning::default(), &saved);
        assert_eq!(**controllers.homes.state(), History::default());
        let unreadable = r#"history.json: the state of the controller "homes" cannot be read"#;
        let unknown = r#"history.json: this version has no controller "of-a-later-version""#;
        assert!(said[0].starts_with(unreadable) && said[1].starts_with(unknown), "{said:?}");
        assert_eq!(said.len(), 2);
    }
}
