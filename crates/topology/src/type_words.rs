//! The words for types in the errors of serde, for people who write files and know no Rust.

use alloc::{borrow::ToOwned, format, string::String};

/// The text of an error of `serde_json` or `toml` in the words of the format. `object` is its word
/// for keys with values, "a table" for example.
///
/// Only serde's own sentences are changed, and in those only its words for types: values and keys
/// stand in quotes, and stay as they were written.
pub fn in_plain_words(message: &str, object: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        return format!("unknown value {rest}");
    }
    if message.starts_with("data did not match any variant of untagged enum") {
        let place = message.find(" at line ").map_or("", |at| &message[at..]);
        return format!("this value has none of the forms that are possible{place}");
    }
    if let Some(expected) = message.strip_prefix("expected ") {
        return format!("expected {}", expectation(expected, object));
    }
    let starts = ["invalid type: ", "invalid value: ", "invalid length "];
    let start = starts.into_iter().find(|start| message.starts_with(start));
    let parts = start.and_then(|start| {
        let (found, expected) = message[start.len()..].rsplit_once(", expected ")?;
        Some((start, found, expected))
    });
    let Some((start, found, expected)) = parts else { return message.to_owned() };
    let found = if start == "invalid length " { found.to_owned() } else { value(found, object) };
    format!("{start}{found}, expected {}", expectation(expected, object))
}

/// serde's words for values that were found, where they are not those of people.
const VALUES: [(&str, &str); 9] = [
    ("unit value", "nothing"),
    ("Option value", "nothing"),
    ("newtype struct", "a value"),
    ("newtype variant", "a value"),
    ("unit variant", "a name"),
    ("tuple variant", "a list"),
    ("struct variant", "OBJECT"),
    ("sequence", "a list"),
    ("enum", "a name"),
];

fn value(found: &str, object: &str) -> String {
    let known = VALUES.iter().find(|(word, _)| *word == found);
    match known {
        Some((_, word)) => word.replace("OBJECT", object),
        None if found == "map" => object.to_owned(),
        None => found.replacen("floating point `", "number `", 1),
    }
}

/// An expectation in serde's words, perhaps with more text after it.
fn expectation(expected: &str, object: &str) -> String {
    let (first, rest) = expected.split_at(word_end(expected, 0));
    let number = |bits: u32| match bits {
        64.. => "a whole number from 0 on".to_owned(),
        bits => format!("a whole number from 0 to {}", u64::MAX >> (64 - bits)),
    };
    let plain = match first {
        "u8" => number(8),
        "u16" => number(16),
        "u32" => number(32),
        "u64" | "u128" | "usize" => number(64),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "unit" if !rest.starts_with(' ') || rest.starts_with(" at line ") => "nothing".into(),
        "option" => "a value".into(),
        "map" => object.into(),
        _ => return of_a_type(expected, object),
    };
    plain + rest
}

/// As [`expectation`], for one of several words: `struct RecordFile with 4 elements`.
fn of_a_type(expected: &str, object: &str) -> String {
    // The words before a type's name, and whether a name follows.
    let types = [
        ("struct variant ", object, true),
        ("tuple variant ", "a list", true),
        ("newtype variant ", "a value", true),
        ("unit variant ", "a name", true),
        ("tuple struct ", "a list", true),
        ("newtype struct ", "a value", true),
        ("unit struct ", "nothing", true),
        ("internally tagged enum ", object, true),
        ("adjacently tagged enum ", object, true),
        ("enum ", "a name", true),
        ("struct ", object, true),
        ("variant identifier", "a name", false),
        ("variant of enum ", "a name", true),
        ("field identifier", "a key", false),
        ("a tuple", "a list", false),
        ("tuple", "a list", false),
        ("a sequence", "a list", false),
        ("sequence", "a list", false),
        ("an array", "a list", false),
        ("a map", object, false),
        ("path string", "a path", false),
    ];
    let Some((words, plain, has_name)) =
        types.into_iter().find(|(words, ..)| expected.starts_with(words))
    else {
        return expected.to_owned();
    };
    let end = if has_name { word_end(expected, words.len()) } else { words.len() };
    let rest = &expected[end..];
    let counts = [" with length ", " with ", " of size ", " of length ", " of "];
    let count = counts.iter().find_map(|before| {
        let digits = rest.strip_prefix(before)?;
        let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        (length > 0).then(|| digits.split_at(length))
    });
    match count {
        Some((count, rest)) => {
            let rest = rest.strip_prefix(" elements").or(rest.strip_prefix(" element"));
            let values = if count == "1" { "value" } else { "values" };
            format!("a list of {count} {values}{}", rest.unwrap_or_default())
        }
        None => format!("{plain}{rest}"),
    }
}

/// The end of the word at `from`, which may be the path of a type: `Lifetime::Cgroup`.
fn word_end(text: &str, from: usize) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || "_:<>".contains(c);
    text[from..].find(|c| !is_word(c)).map_or(text.len(), |length| from + length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, de::DeserializeOwned};
    use std::collections::BTreeMap;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct All {
        small: Option<u8>,
        number: Option<u32>,
        large: Option<u64>,
        signed: Option<i64>,
        real: Option<f64>,
        flag: Option<bool>,
        text: Option<String>,
        pair: Option<(u32, u32)>,
        array: Option<[u32; 3]>,
        list: Option<Vec<u32>>,
        map: Option<BTreeMap<String, u32>>,
        kind: Option<Kind>,
        inner: Option<Inner>,
        one: Option<One>,
        two: Option<Two>,
        none: Option<Nothing>,
        any: Option<Any>,
        path: Option<std::path::PathBuf>,
        tagged: Option<Tagged>,
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are looked at")]
    enum Kind {
        Plain,
        Of(u32),
        Pair(u32, u32),
        Named { x: u32 },
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Inner {
        a: u32,
        b: u32,
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct One(Inner);
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Two(u32, u32);
    #[derive(Debug, Deserialize)]
    struct Nothing;
    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only errors are looked at")]
    enum Any {
        Number(u32),
        Flag(bool),
    }
    #[derive(Debug, Deserialize)]
    #[serde(tag = "is")]
    #[expect(dead_code, reason = "only errors are looked at")]
    enum Tagged {
        A { x: u32 },
    }

    const KEYS: [&str; 19] = [
        "small", "number", "large", "signed", "real", "flag", "text", "pair", "array", "list",
        "map", "kind", "inner", "one", "two", "none", "any", "path", "tagged",
    ];
    const RUST: [&str; 16] = [
        "struct ",
        "u8",
        "u64",
        "u32",
        "i64",
        "f64",
        "usize",
        "enum ",
        "tuple",
        "variant",
        "newtype",
        "identifier",
        "sequence",
        "map",
        "unit",
        "option",
    ];

    fn json<T: DeserializeOwned>(text: &str) -> Option<String> {
        let error = serde_json::from_str::<T>(text).err()?;
        Some(in_plain_words(&error.to_string(), "an object"))
    }

    fn is_plain(said: &str) -> bool {
        // A key of these tests is named like a type.
        let said = said.replace("`map`", "");
        RUST.iter().all(|word| !said.contains(word))
    }

    #[test]
    fn no_error_of_any_wrong_value_has_words_of_rust() {
        let values = [
            "null",
            "true",
            "-1",
            "1.5",
            "3",
            "5000000000",
            "\"x\"",
            "[]",
            "[1]",
            "[1, \"x\"]",
            "[[]]",
            "[1, 2, 3, 4]",
            "{}",
            "{\"a\": []}",
            "{\"x\": {}}",
            "{\"Of\": {}}",
            "{\"Pair\": [1]}",
            "{\"Pair\": 1}",
            "{\"Named\": 1}",
            "{\"Named\": []}",
            "{\"Plain\": {}}",
            "{\"is\": \"B\"}",
            "{\"is\": 3}",
            "{\"Of\": 1, \"Named\": 2}",
        ];
        let mut errors = 0;
        for key in KEYS {
            for value in values {
                let in_json = json::<All>(&format!("{{\"{key}\": {value}}}"));
                let value = value.replace(": ", "= ").replace("null", "''");
                let in_toml = toml::from_str::<All>(&format!("{key} = {value}")).err();
                let in_toml = in_toml.map(|error| in_plain_words(error.message(), "a table"));
                for said in [in_json, in_toml].into_iter().flatten() {
                    assert!(is_plain(&said), "{key} = {value}: {said}");
                    errors += 1;
                }
            }
        }
        assert!(errors > 400, "{errors}");
        for text in ["3", "null", "[]", "[1]", "\"x\"", "{\"y\": 1}"] {
            for said in [json::<All>(text), json::<Inner>(text), json::<Kind>(text)] {
                assert!(said.as_deref().is_none_or(is_plain), "{text}: {said:?}");
            }
        }
    }

    #[test]
    fn types_have_the_words_of_people_and_values_stay() {
        for (message, plain) in [
            (
                "invalid length 0, expected struct RecordFile with 4 elements at line 1 column 2",
                "invalid length 0, expected a list of 4 values at line 1 column 2",
            ),
            (
                "invalid type: string \"u64, expected struct x\", expected u64 at line 1 column 9",
                "invalid type: string \"u64, expected struct x\", expected a whole number from 0 \
                 on at line 1 column 9",
            ),
            (
                "invalid value: integer `70000`, expected u16",
                "invalid value: integer `70000`, expected a whole number from 0 to 65535",
            ),
            (
                "invalid type: floating point `1.5`, expected i64",
                "invalid type: number `1.5`, expected a whole number",
            ),
            (
                "invalid type: map, expected a string, as in \"2s\"",
                "invalid type: an object, expected a string, as in \"2s\"",
            ),
            (
                "invalid type: integer `1`, expected struct variant Lifetime::Cgroup",
                "invalid type: integer `1`, expected an object",
            ),
            (
                "invalid length 1, expected a tuple of size 2",
                "invalid length 1, expected a list of 2 values",
            ),
            (
                "invalid length 1, expected tuple struct Two with 2 elements",
                "invalid length 1, expected a list of 2 values",
            ),
            (
                "unknown variant `variant`, expected `a` or `b`",
                "unknown value `variant`, expected `a` or `b`",
            ),
            ("missing field `u64`", "missing field `u64`"),
            ("", ""),
        ] {
            assert_eq!(in_plain_words(message, "an object"), plain);
        }
    }
}
