//! The intent of a virtual machine: its sizes and the shape of its homes, without the numbers of
//! one host. It serves to place the machine elsewhere with the same sense.

use crate::{domain::Domain, memory::MemoryMode, placement::cell_distance, read::MAX_BYTES};
use nearside_topology::{Distance, NodeSet, Topology, type_words::in_plain_words};
use serde::{Deserialize, Serialize};

/// The version of the format that this crate writes and reads.
const VERSION: u32 = 1;

/// The sizes and the shape of a virtual machine (`docs/formats.md` describes the keys).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    version: u32,
    /// The domain's name.
    pub name: Option<String>,
    /// The mode of its memory.
    #[serde(with = "mode")]
    pub mode: MemoryMode,
    /// Its cells; a domain without cells is one.
    pub cells: Vec<IntentCell>,
    /// The guest's distances from each cell (row) to each, if it has any.
    pub distances: Option<Vec<Vec<Distance>>>,
    /// The host's distances between the cells' homes; none if a cell had no home.
    pub home_distances: Option<Vec<Vec<Distance>>>,
}

/// A cell of an [`Intent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntentCell {
    /// The vCPUs that it keeps busy.
    pub vcpus: u32,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The size of its huge pages; none for ordinary pages.
    pub huge_page_bytes: Option<u64>,
    /// The number of nodes that its memory was bound to; none if nothing bound it.
    pub nodes: Option<u32>,
    /// The other cells, by number, with a node in common.
    pub shares_nodes_with: Vec<u32>,
}

/// A text that is no intent.
#[derive(Debug, thiserror::Error)]
pub enum IntentError {
    /// It is too long.
    #[error("the text has {0} bytes, expected at most {MAX_BYTES}")]
    TooLong(usize),
    /// It is no JSON, or other keys or values than an intent's.
    #[error("{}", in_plain_words(&.0.to_string(), "an object"))]
    Json(#[from] serde_json::Error),
    /// Another version wrote it.
    #[error("version: read {0}, expected {VERSION}")]
    Version(u32),
}

impl Intent {
    /// The intent of a domain whose memory is bound to nodes of `host`. `sizes` are the vCPUs, the
    /// bytes and the size of huge pages of each cell.
    pub fn of(
        domain: &Domain,
        mode: MemoryMode,
        sizes: impl IntoIterator<Item = (u32, u64, Option<u64>)>,
        host: &Topology,
    ) -> Self {
        let homes: Vec<Option<&NodeSet>> = match domain.cells.is_empty() {
            true => vec![domain.memory_nodes(None)],
            false => domain.cells.iter().map(|cell| domain.memory_nodes(Some(cell))).collect(),
        };
        let shares = |at: usize| -> Vec<u32> {
            let meets = |other: &NodeSet| {
                let own = homes.get(at).copied().flatten();
                own.is_some_and(|own| !own.intersection(other).is_empty())
            };
            let others = (0..).zip(&homes).filter(|(other, _)| *other as usize != at);
            others.filter(|(_, home)| home.is_some_and(meets)).map(|(other, _)| other).collect()
        };
        let cell = |(at, (vcpus, memory_bytes, huge_page_bytes)): (usize, _)| IntentCell {
            vcpus,
            memory_bytes,
            huge_page_bytes,
            nodes: homes.get(at).copied().flatten().map(|home| home.len() as u32),
            shares_nodes_with: shares(at),
        };
        let known: Option<Vec<&NodeSet>> = homes.iter().copied().collect();
        Self {
            version: VERSION,
            name: domain.name.as_ref().map(|name| name.value.clone()),
            mode,
            cells: sizes.into_iter().enumerate().map(cell).collect(),
            distances: domain.distances(),
            home_distances: known.filter(|it| it.len() > 1).map(|it| between(&it, host)),
        }
    }

    /// Reads an intent.
    ///
    /// # Errors
    /// If the text is longer than a domain may be, is no intent, or one of another version.
    pub fn read(bytes: &[u8]) -> Result<Self, IntentError> {
        if bytes.len() > MAX_BYTES {
            return Err(IntentError::TooLong(bytes.len()));
        }
        let intent: Self = serde_json::from_slice(bytes)?;
        intent.check()?;
        Ok(intent)
    }

    /// Refuses an intent of another version.
    pub(crate) fn check(&self) -> Result<(), IntentError> {
        match self.version {
            VERSION => Ok(()),
            other => Err(IntentError::Version(other)),
        }
    }
}

/// The host's distances between homes.
fn between(homes: &[&NodeSet], host: &Topology) -> Vec<Vec<Distance>> {
    let distance = |from, to| cell_distance(&host.distances, from, to);
    homes.iter().map(|from| homes.iter().map(|to| distance(from, to)).collect()).collect()
}

/// The distances between homes that a placement chose.
pub fn home_distances(homes: &[NodeSet], host: &Topology) -> Vec<Vec<Distance>> {
    between(&homes.iter().collect::<Vec<_>>(), host)
}

/// A mode as its word in XML.
mod mode {
    use crate::memory::MemoryMode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(mode: &MemoryMode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MemoryMode, D::Error> {
        let word = String::deserialize(from)?;
        let known = MemoryMode::ALL.into_iter().find(|mode| mode.name() == word);
        known.ok_or_else(|| {
            D::Error::custom(format!(
                "mode: read {word:?}, expected strict, preferred, interleave or restrictive"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Distances, NodeId};

    #[test]
    fn shape_is_that_of_the_bindings_and_survives_its_text() {
        let text = "<domain><name>vm</name><vcpu>3</vcpu>
            <numatune><memnode cellid='0' mode='strict' nodeset='0-1'/>
            <memnode cellid='1' mode='strict' nodeset='1'/></numatune>
            <cpu><numa><cell cpus='0-1' memory='8'/><cell cpus='2' memory='4'/></numa></cpu>
            </domain>";
        let host = Topology {
            distances: Distances::new(&[NodeId(0), NodeId(1)], &[10, 21, 21, 10]).unwrap(),
            ..Topology::default()
        };
        let sizes = [(2, 8192, None), (1, 4096, Some(2 << 20))];
        let intent = Intent::of(&Domain::read(text).unwrap(), MemoryMode::Strict, sizes, &host);
        let nodes: Vec<_> = intent.cells.iter().map(|cell| cell.nodes).collect();
        assert_eq!(nodes, [Some(2), Some(1)]);
        assert_eq!(intent.cells[0].shares_nodes_with, [1]);
        assert_eq!(intent.cells[1].shares_nodes_with, [0]);
        // The mean of 10, 21, 21 and 10, and of 21 and 10, rounded up.
        assert_eq!(intent.home_distances, Some(vec![vec![16, 16], vec![16, 10]]));
        assert_eq!(Intent::read(&serde_json::to_vec(&intent).unwrap()).unwrap(), intent);
        let unbound = Domain::read("<domain><vcpu>3</vcpu></domain>").unwrap();
        let intent = Intent::of(&unbound, MemoryMode::Strict, [(3, 8192, None)], &host);
        assert_eq!((intent.cells[0].nodes, intent.home_distances), (None, None));
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        let cells = "\"cells\":[],\"distances\":null,\"home_distances\":null";
        for (text, told) in [
            ("", "EOF while parsing a value at line 1 column 0".to_owned()),
            (
                &format!("{{\"version\":2,\"name\":null,\"mode\":\"strict\",{cells}}}")[..],
                "version: read 2, expected 1".into(),
            ),
            (
                &format!("{{\"version\":1,\"name\":null,\"mode\":\"bind\",{cells}}}"),
                "mode: read \"bind\", expected strict".into(),
            ),
            ("{\"version\":1,\"more\":2}", "unknown field `more`".into()),
        ] {
            let message = Intent::read(text.as_bytes()).unwrap_err().to_string();
            assert!(message.starts_with(&told), "{message}");
        }
        let long = vec![b' '; MAX_BYTES + 1];
        assert!(matches!(Intent::read(&long), Err(IntentError::TooLong(_))));
    }
}
