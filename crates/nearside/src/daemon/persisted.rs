//! The states of the controllers on disk, beside the records. A restarted daemon continues from
//! them.

use nearside_linux::{Error, folder::Folder};
use nearside_policy::{Controller, Homes, MoveReport};
use nearside_topology::type_words::in_plain_words;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

pub(super) const FILE: &str = "history.json";

/// All states of ten thousand domains take less.
const MAX_BYTES: u64 = 32 << 20;

/// States of controllers, or fields of the file, as they are saved: by name.
pub(super) type States = BTreeMap<String, Box<RawValue>>;

/// The loop and its controllers continue from this.
#[derive(Debug, Default, Serialize)]
pub struct PersistedState {
    /// The boot in which it was written: cgroups of another boot are gone.
    pub boot_id: String,
    /// The number of the last interval. Counting continues from it, because states refer to
    /// intervals by number.
    pub interval: u64,
    /// The states of the controllers after it.
    pub states: States,
    /// Reports of moved pages that no controller has learned from yet.
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
        Self { boot_id: boot_id.into(), interval, states, moved }
    }

    /// Reads the state of this boot. A file without a readable boot and interval is ignored. Of its
    /// other fields, one that this version cannot read or does not know is. Each time there is a
    /// notice for the log.
    pub fn read(state: &Folder, boot_id: &str) -> (Self, Vec<String>) {
        let fresh = Self { boot_id: boot_id.into(), ..Self::default() };
        let path = state.path().join(FILE);
        let read = match state.read_within(FILE, MAX_BYTES) {
            Ok(None) => return (fresh, Vec::new()),
            Ok(Some(text)) => Self::parse(&text).map_err(|error| plain(&error)),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok((read, notices)) if read.boot_id == boot_id => (read, notices),
            Ok(_) => (fresh, Vec::new()),
            Err(why) => {
                let notice = format!(
                    "the states of the controllers cannot be read and are learnt again: {}: {why}",
                    path.display()
                );
                (fresh, vec![notice])
            }
        }
    }

    fn parse(text: &[u8]) -> serde_json::Result<(Self, Vec<String>)> {
        let mut fields: States = serde_json::from_slice(text)?;
        let mut notices = Vec::new();
        let boot_id = required(&mut fields, "boot_id")?;
        let interval = required(&mut fields, "interval")?;
        let mut states: States = optional(&mut fields, "states", &mut notices);
        let moved = optional(&mut fields, "moved", &mut notices);
        // Former versions had one state.
        if let Some(history) = fields.remove("history") {
            states.entry(Homes::NAME.into()).or_insert(history);
        }
        notices.extend(fields.keys().map(|name| {
            format!("{FILE}: this version does not know the field {name:?}; it is dropped")
        }));
        Ok((Self { boot_id, interval, states, moved }, notices))
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

fn plain(error: &serde_json::Error) -> String {
    in_plain_words(&error.to_string(), "an object")
}

/// A field without which the file says nothing.
fn required<T: DeserializeOwned>(fields: &mut States, name: &str) -> serde_json::Result<T> {
    let text = fields.remove(name);
    let text = text.ok_or_else(|| serde::de::Error::custom(format!("missing field `{name}`")))?;
    serde_json::from_str(text.get())
}

/// A field that is empty where it is missing, or cannot be read.
fn optional<T: DeserializeOwned + Default>(
    fields: &mut States,
    name: &str,
    notices: &mut Vec<String>,
) -> T {
    let Some(text) = fields.remove(name) else { return T::default() };
    serde_json::from_str(text.get()).unwrap_or_else(|error| {
        let why = plain(&error);
        notices.push(format!("{FILE}: the field {name:?} cannot be read and is dropped: {why}"));
        T::default()
    })
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
        assert_eq!(said, [""; 0]);
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
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            let (persisted, said) = PersistedState::read(&state, "b");
            assert_eq!(persisted.interval, 0);
            assert!(
                matches!(&said[..], [said] if said.contains("history.json")),
                "{text}: {said:?}"
            );
        }
    }

    #[test]
    fn a_field_of_a_later_version_and_one_that_cannot_be_read_cost_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(folder.path()).unwrap().unwrap();
        let states = r#""states":{"homes":{"parts":{}}}"#;
        let later =
            r#""moved":[{"part":"vm","from":1,"moved_bytes":1,"stayed":{"a-later-reason":1}}]"#;
        let homes = "homes".to_owned();
        for (fields, expected, notice) in [
            (
                format!(r#"{states},"later":{{}}"#),
                vec![&homes],
                r#"does not know the field "later""#,
            ),
            (format!("{states},{later}"), vec![&homes], r#"the field "moved" cannot be read"#),
            (r#""states":[]"#.into(), vec![], r#"the field "states" cannot be read"#),
        ] {
            let text = format!(r#"{{"boot_id":"b","interval":7,{fields}}}"#);
            fs::write(folder.path().join(FILE), text).unwrap();
            let (read, said) = PersistedState::read(&state, "b");
            let states: Vec<_> = read.states.keys().collect();
            assert_eq!((read.interval, states), (7, expected));
            assert!(matches!(&said[..], [said] if said.contains(notice)), "{said:?}");
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
        assert!(matches!(&said[..], [said] if said.contains("larger than 32 MiB")), "{said:?}");
    }
}
