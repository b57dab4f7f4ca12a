//! What the control loop remembers, kept beside the records so that a daemon that is started again goes on with it.

use nearside_linux::{Error, folder::Folder};
use nearside_policy::History;
use serde::{Deserialize, Serialize};

const FILE: &str = "history.json";

/// The history and the interval it is of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// The boot in which it was written: another's cgroups are gone.
    pub boot_id: String,
    /// The last interval; the next one goes on counting, for the history speaks of intervals by their numbers.
    pub interval: u64,
    /// What `control` remembered after it.
    pub history: History,
}

impl Remembered {
    /// What was written last in this boot. Nothing where nothing was; where it cannot be read it is forgotten, and what has to
    /// be said about that comes with it.
    pub fn read(state: &Folder, boot_id: &str) -> (Self, Option<String>) {
        let fresh = Self { boot_id: boot_id.into(), ..Self::default() };
        let forgotten = |why: String| {
            let path = state.path().join(FILE);
            Some(format!(
                "what was remembered of loads is forgotten and learnt again: {}: {why}",
                path.display()
            ))
        };
        match state.read(FILE) {
            Ok(None) => (fresh, None),
            Ok(Some(text)) => match serde_json::from_slice::<Self>(&text) {
                Ok(read) if read.boot_id == boot_id => (read, None),
                Ok(_) => (fresh, None),
                Err(error) => (fresh, forgotten(error.to_string())),
            },
            Err(error) => (fresh, forgotten(error.to_string())),
        }
    }

    /// Writes it in place of what was there.
    ///
    /// # Errors
    /// Where the file cannot be written; the earlier one stays as it is.
    pub fn write(&self, state: &Folder) -> Result<(), Error> {
        let text = serde_json::to_vec(self).map_err(|error| Error::Refused(error.to_string()))?;
        state.replace(FILE, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::DomainHistory;
    use std::fs;

    #[test]
    fn it_is_read_again_in_the_same_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(folder.path()).unwrap().unwrap();
        assert_eq!(
            Remembered::read(&state, "b"),
            (Remembered { boot_id: "b".into(), ..Remembered::default() }, None)
        );
        let mut remembered =
            Remembered { boot_id: "b".into(), interval: 41, ..Remembered::default() };
        remembered
            .history
            .domains
            .insert("db".into(), DomainHistory { next_look: 44, ..DomainHistory::default() });
        remembered.write(&state).unwrap();
        assert_eq!(Remembered::read(&state, "b"), (remembered, None));
        let (other_boot, said) = Remembered::read(&state, "c");
        assert_eq!((other_boot.interval, other_boot.history, said), (0, History::default(), None));
    }

    #[test]
    fn what_cannot_be_read_is_forgotten_and_said() {
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
            let (remembered, said) = Remembered::read(&state, "b");
            assert_eq!(remembered.interval, 0);
            assert!(said.is_some_and(|said| said.contains("history.json")), "{text}");
        }
    }
}
