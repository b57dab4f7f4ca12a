//! The body of `PUT /domains/{name}/affinity`, read in the terms of its JSON schema.

use nearside_policy::{Affinity, CellId};
use nearside_topology::NodeId;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;
use std::{collections::BTreeSet, fmt};

const EXPECTED: &str = "expected an object such as {\"nodes\": [0, 1], \"affinity\": \"soft\"}";

/// A home that an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AffinityRequest {
    pub(super) nodes: Vec<NodeId>,
    /// `None` leaves the affinity as it is.
    pub(super) affinity: Option<Affinity>,
    /// The cell of a virtual machine.
    pub(super) cell: Option<CellId>,
}

/// The keys of the object.
const KEYS: [&str; 3] = ["nodes", "affinity", "cell"];

/// The fault in the body of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The body is not JSON.
    Syntax(String),
    /// The schema does not allow the body.
    Schema(String),
}

impl AffinityRequest {
    /// Reads a body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Fault> {
        let syntax = |error: serde_json::Error| {
            Fault::Syntax(format!("the body is not JSON: {error}; {EXPECTED}"))
        };
        let value: Value = serde_json::from_slice(body).map_err(syntax)?;
        let schema = |message: String| Fault::Schema(format!("the body: {message}; {EXPECTED}"));
        let request = Self::from_value(&value).map_err(schema)?;
        // `Value` keeps the last of two equal keys.
        let DistinctKeys =
            serde_json::from_slice(body).map_err(|error| schema(error.to_string()))?;
        Ok(request)
    }

    fn from_value(value: &Value) -> Result<Self, String> {
        let object = value.as_object().ok_or_else(|| format!("this is {}", kind(value)))?;
        if let Some(key) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!(
                "unknown key {key:?}: there are \"nodes\", \"affinity\" and \"cell\""
            ));
        }
        let nodes = object.get("nodes").ok_or("the key \"nodes\" is missing")?;
        Ok(Self {
            nodes: read_nodes(nodes)?,
            affinity: object.get("affinity").map_or(Ok(None), read_affinity)?,
            cell: object.get("cell").map_or(Ok(None), read_cell)?,
        })
    }
}

fn read_nodes(value: &Value) -> Result<Vec<NodeId>, String> {
    let Value::Array(nodes) = value else {
        return Err(format!("nodes: this is {}, expected an array of integers", kind(value)));
    };
    let node = |(index, value): (usize, &Value)| {
        integer(value).map(NodeId).ok_or_else(|| {
            format!("nodes[{index}]: this is {}, expected the number of a node", kind(value))
        })
    };
    nodes.iter().enumerate().map(node).collect()
}

/// A number without a fraction is an integer in JSON Schema, however it is written.
fn integer(value: &Value) -> Option<u32> {
    if let Some(number) = value.as_u64() {
        return u32::try_from(number).ok();
    }
    let number = value.as_f64()?;
    let is_integer = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    is_integer.then_some(number as u32)
}

fn read_cell(value: &Value) -> Result<Option<CellId>, String> {
    match value {
        Value::Null => Ok(None),
        number => integer(number).map(|cell| Some(CellId(cell))).ok_or_else(|| {
            format!("cell: this is {}, expected the number of a cell or null", kind(number))
        }),
    }
}

fn read_affinity(value: &Value) -> Result<Option<Affinity>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(word) if word == "soft" => Ok(Some(Affinity::Soft)),
        Value::String(word) if word == "hard" => Ok(Some(Affinity::Hard)),
        other => {
            Err(format!("affinity: this is {}, expected \"soft\", \"hard\" or null", kind(other)))
        }
    }
}

/// A value in the words of JSON.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) if value.to_string().len() <= 80 => format!("the string {value}"),
        Value::String(_) => "a long string".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// An object in which no key occurs twice.
struct DistinctKeys;

impl<'de> Deserialize<'de> for DistinctKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = DistinctKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DistinctKeys, A::Error> {
                let mut keys = BTreeSet::new();
                while let Some((key, IgnoredAny)) = map.next_entry::<String, _>()? {
                    if let Some(key) = keys.replace(key) {
                        let message = format!("the key {key:?} occurs twice");
                        return Err(serde::de::Error::custom(message));
                    }
                }
                Ok(DistinctKeys)
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<AffinityRequest, Fault> {
        AffinityRequest::parse(body.as_bytes())
    }

    #[test]
    fn a_number_without_a_fraction_is_an_integer() {
        for (body, nodes) in [
            ("[4503.0]", &[4503][..]),
            ("[0, 1e2, 2.50e1]", &[0, 100, 25]),
            ("[-0.0]", &[0]),
            ("[4294967295]", &[u32::MAX]),
            ("[]", &[]),
        ] {
            let read = parse(&format!("{{\"nodes\": {body}}}")).unwrap();
            let nodes = nodes.iter().copied().map(NodeId).collect();
            assert_eq!(read, AffinityRequest { nodes, affinity: None, cell: None }, "{body}");
        }
        for body in ["[0.5]", "[-1]", "[-1.0]", "[4294967296]", "[1e300]", "[true]", "[null]"] {
            let read = parse(&format!("{{\"nodes\": {body}}}"));
            assert!(matches!(read, Err(Fault::Schema(_))), "{body}: {read:?}");
        }
    }

    #[test]
    fn affinity_may_be_soft_hard_or_null() {
        for (word, affinity) in
            [("\"soft\"", Some(Affinity::Soft)), ("\"hard\"", Some(Affinity::Hard)), ("null", None)]
        {
            let read = parse(&format!("{{\"affinity\": {word}, \"nodes\": [1]}}"));
            assert_eq!(read, Ok(AffinityRequest { nodes: vec![NodeId(1)], affinity, cell: None }));
        }
    }

    #[test]
    fn messages_name_keys_and_json_types() {
        let long = format!("{{\"nodes\": \"{}\"}}", "x".repeat(1000));
        for (body, expected) in [
            ("[[2], \"hard\"]", "the body: this is an array; expected an object"),
            ("\"nodes\"", "this is the string \"nodes\""),
            ("null", "this is null"),
            ("7", "this is the number 7"),
            ("{}", "the key \"nodes\" is missing"),
            ("{\"nodes\": \"0-1\"}", "nodes: this is the string \"0-1\", expected an array"),
            (&long, "nodes: this is a long string"),
            ("{\"nodes\": {}}", "nodes: this is an object"),
            ("{\"nodes\": [0, -1]}", "nodes[1]: this is the number -1, expected the number of"),
            ("{\"nodes\": [[]]}", "nodes[0]: this is an array"),
            ("{\"nodes\": [0], \"affinity\": \"firm\"}", "affinity: this is the string \"firm\""),
            ("{\"nodes\": [0], \"affinity\": true}", "affinity: this is the boolean true"),
            ("{\"nodes\": [0], \"rate\": 1}", "unknown key \"rate\""),
            ("{\"nodes\": [0], \"nodes\": [1]}", "the key \"nodes\" occurs twice"),
        ] {
            match parse(body) {
                Err(Fault::Schema(message)) => {
                    assert!(message.contains(expected), "{body}: {message}");
                    for rust in ["field", "variant", "sequence", "struct", "u32", "map"] {
                        assert!(!message.contains(rust), "{body}: {message}");
                    }
                }
                other => panic!("{body}: {other:?}"),
            }
        }
        for body in ["", "nodes", "{\"nodes\": [1]} x", "{\"nodes\": [1"] {
            let read = parse(body);
            assert!(matches!(read, Err(Fault::Syntax(_))), "{body}: {read:?}");
        }
    }
}
