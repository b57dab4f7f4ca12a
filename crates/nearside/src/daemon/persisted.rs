//! The control loop's history on disk, beside the records. A restarted daemon continues from it.

use nearside_linux::{Error, folder::Folder};
use nearside_policy::{History, MoveReport};
use nearside_topology::type_words::in_plain_words;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const FILE: &str = "history.json";

/// A history of ten thousand domains takes less.
const MAX_BYTES: u64 = 32 << 20;

/// The history and the interval it is of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PersistedState {
    /// The boot in which it was written: cgroups of another boot are gone.
    pub boot_id: String,
    /// The number of the last interval. Counting continues from it, because the history refers to
    /// intervals by number.
    pub interval: u64,
    /// The history after it, which snapshots share.
    #[serde(with = "shared")]
    pub history: Arc<History>,
    /// Reports of moved pages that no controller has learned from yet.
    #[serde(default)]
    pub moved: Vec<MoveReport>,
}

impl PersistedState {
    /// Reads the state of this boot. An unreadable file is ignored, with a notice for the log.
    pub fn read(state: &Folder, boot_id: &str) -> (Self, Option<String>) {
        let fresh = Self { boot_id: boot_id.into(), ..Self::default() };
        let forgotten = |why: String| {
            let path = state.path().join(FILE);
            Some(format!(
                "the history of loads cannot be read and is learnt again: {}: {why}",
                path.display()
            ))
        };
        match state.read_within(FILE, MAX_BYTES) {
            Ok(None) => (fresh, None),
            Ok(Some(text)) => match serde_json::from_slice::<Self>(&text) {
                Ok(read) if read.boot_id == boot_id => (read, None),
                Ok(_) => (fresh, None),
                Err(error) => (fresh, forgotten(in_plain_words(&error.to_string(), "an object"))),
            },
            Err(error) => (fresh, forgotten(error.to_string())),
        }
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

/// The JSON form of a shared history is that of a history.
mod shared {
    use super::History;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(super) fn serialize<S: Serializer>(
        history: &Arc<History>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        history.as_ref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<History>, D::Error> {
        History::deserialize(deserializer).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::{PartHistory, Stayed, StayedWhy};
    use nearside_topology::NodeId;
    use std::fs;

    #[test]
    fn it_is_read_again_in_the_same_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(folder.path()).unwrap().unwrap();
        assert_eq!(
            PersistedState::read(&state, "b"),
            (PersistedState { boot_id: "b".into(), ..PersistedState::default() }, None)
        );
        let mut persisted =
            PersistedState { boot_id: "b".into(), interval: 41, ..PersistedState::default() };
        Arc::make_mut(&mut persisted.history)
            .parts
            .insert("db".into(), PartHistory { next_sample: 44, ..PartHistory::default() });
        persisted.moved.push(MoveReport {
            part: "db".into(),
            from: NodeId(1),
            moved_bytes: 0,
            stayed: Stayed::from([(StayedWhy::Busy, 4096)]),
        });
        persisted.write(&state).unwrap();
        assert_eq!(PersistedState::read(&state, "b"), (persisted, None));
        let (other_boot, said) = PersistedState::read(&state, "c");
        assert_eq!((other_boot.interval, other_boot.history, said), (0, Arc::default(), None));
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
            r#"{"boot_id": "b", "interval": -1, "history": {}}"#,
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
