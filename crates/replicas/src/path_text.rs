//! Paths in messages, as text ([`nearside_linux::escape`]). They need not be UTF-8, which JSON is.

use nearside_linux::escape;
use serde::{Deserialize, Deserializer, Serializer};
use std::path::{Path, PathBuf};

pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&escape::text(path))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    String::deserialize(from).map(|text| escape::path(&text))
}

/// The same for a path that may be missing.
pub(crate) mod optional {
    use nearside_linux::escape;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::path::PathBuf;

    pub(crate) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_ref().map(escape::text).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.map(|text| escape::path(&text)))
    }
}
