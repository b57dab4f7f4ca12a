//! The states of the controllers on disk, beside the records. A restarted daemon continues from
//! them.

use nearside_linux::{Error, folder::Folder};
use nearside_policy::{Controller, Homes, MoveReport};
use nearside_topology::type_words::in_plain_words;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

pub(super) const FILE: &str = "history.json";

/// All states of ten thousand domains take less.
const MAX_BYTES: u64 = 32 << 20;

/// States of controllers as they are saved, by name.
pub(super) type States = BTreeMap<String, Box<RawValue>>;

/// The loop and its controllers continue from this.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PersistedState {
    /// The boot in which it was written: cgroups of another boot are gone.
    pub boot_id: String,
    /// The number of the last interval. Counting continues from it, because states refer to
    /// intervals by number.
    pub interval: u64,
    /// The states of the controllers after it.
    #[serde(default)]
    pub states: States,
    /// The state of the homes controller as former versions wrote it.
    #[serde(default, skip_serializing)]
    history: Option<Box<RawValue>>,
    /// Reports of moved pages that no controller has learned from yet.
    #[serde(default)]
    pub moved: Vec<MoveReport>,
}

impl PersistedState {
    /// The state after an interval.
    pub(super) fn new(
        boot_id: &str,
        interval: u64,
        states: States,
        moved: Vec<MoveReport>,
    ) -> Self {
        Self { boot_id: boot_id.into(), interval, states, moved, history: None }
    }

    /// Reads the state of this boot. An unreadable file is ignored, with a notice for the log.
    pub fn read(state: &Folder, boot_id: &str) -> (Self, Option<String>) {
        let fresh = Self { boot_id: boot_id.into(), ..Self::default() };
        let forgotten = |why: String| {
            let path = state.path().join(FILE);
            Some(format!(
                "the states of the controllers cannot be read and are learnt again: {}: {why}",
                path.display()
            ))
        };
        match state.read_within(FILE, MAX_BYTES) {
            Ok(None) => (fresh, None),
            Ok(Some(text)) => match serde_json::from_slice::<Self>(&text) {
                Ok(read) if read.boot_id == boot_id => (read.renamed(), None),
                Ok(_) => (fresh, None),
                Err(error) => (fresh, forgotten(in_plain_words(&error.to_string(), "an object"))),
            },
            Err(error) => (fresh, forgotten(error.to_string())),
        }
    }

    /// The state of a former version under its name of today.
    fn renamed(mut self) -> Self {
        if let Some(history) = self.history.take() {
            self.states.entry(Homes::NAME.into()).or_insert(history);
        }
        self
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// If the file cannot be written; the earlier one stays.
    pub fn write(&self, state: &Folder) -> Result<(), Error> {
        let text = serde_json::to_vec(self).map_err(|error| Error::Refused(error.to_string()))?;
        state.replace(FILE, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::{History, PartHistory, Stayed, StayedWhy};
    use nearside_topology::NodeId;
    use std::fs;

    /// The interval, the states and the number of reports.
    fn read(state: &Folder, boot_id: &str) -> (u64, Vec<(String, String)>, usize) {
        let (read, said) = PersistedState::read(state, boot_id);
        assert_eq!(said, None);
        let states = read.states.into_iter().map(|(name, text)| (name, text.get().to_owned()));
        (read.interval, states.collect(), read.moved.len())
    }

    #[test]
    fn it_is_read_again_in_the_same_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(folder.path()).unwrap().unwrap();
        assert_eq!(read(&state, "b"), (0, vec![], 0));
        let text = RawValue::from_string(r#"{"parts":{}}"#.into()).unwrap();
        let report = MoveReport {
            part: "db".into(),
            from: NodeId(1),
            moved_bytes: 0,
            stayed: Stayed::from([(StayedWhy::Busy, 4096)]),
        };
        let states = [("homes".into(), text)].into();
        let persisted = PersistedState::new("b", 41, states, vec![report]);
        persisted.write(&state).unwrap();
        let states = vec![("homes".to_owned(), r#"{"parts":{}}"#.to_owned())];
        assert_eq!(read(&state, "b"), (41, states, 1));
        assert_eq!(read(&state, "c"), (0, vec![], 0));
    }

    #[test]
    fn the_history_of_a_former_version_is_the_state_of_the_homes_controller() {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(folder.path()).unwrap().unwrap();
        let part = PartHistory { confirmations: 2, ..PartHistory::default() };
        let history = History { parts: [("vm".into(), part)].into(), ..History::default() };
        let history = serde_json::to_string(&history).unwrap();
        let newer = r#"{"parts":{},"nodes":{}}"#;
        // A file of both versions has the newer state under its name.
        for (states, expected) in [
            (String::new(), &*history),
            (r#""states":{},"#.into(), &history),
            (format!(r#""states":{{"homes":{newer}}},"#), newer),
        ] {
            let text =
                format!(r#"{{"boot_id":"b","interval":7,{states}"history":{history},"moved":[]}}"#);
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(read(&state, "b"), (7, vec![("homes".into(), expected.into())], 0));
        }
    }

    #[test]
    fn an_unreadable_file_is_ignored_with_a_notice() {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(folder.path()).unwrap().unwrap();
        for text in [
            "",
            "{",
            "[]",
            r#"{"boot_id": "b"}"#,
            r#"{"boot_id": "b", "interval": -1, "states": {}}"#,
            r#"{"boot_id": "b", "interval": 1, "states": []}"#,
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            let (persisted, said) = PersistedState::read(&state, "b");
            assert_eq!(persisted.interval, 0);
            assert!(said.is_some_and(|said| said.contains("history.json")), "{text}");
        }
    }

    #[test]
    fn a_file_beyond_the_bound_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(folder.path()).unwrap().unwrap();
        let file = fs::File::create(folder.path().join(FILE)).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
        let (persisted, said) = PersistedState::read(&state, "b");
        assert_eq!(persisted.interval, 0);
        assert!(said.as_ref().is_some_and(|said| said.contains("larger than 32 MiB")), "{said:?}");
    }
}
