use super::*;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    size: Spanned<Value>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    part: Vec<Part>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    weight: Spanned<Value>,
}

/// The message about a file in which a size from 1 to 9 is expected, and weights to 0.5.
fn said(text: &str) -> String {
    let reader = Reader::new("f.toml", text);
    let read = || {
        let Written { size, name, part } = reader.written()?;
        let size = reader.whole("size", &size, 1..=9, "m")?;
        let weights =
            part.iter().map(|part| reader.number("part.weight", &part.weight, 0.0..=0.5, "kg"));
        weights
            .collect::<Result<Vec<_>, _>>()
            .map(|weights| format!("{name}: {size} m, {weights:?}"))
    };
    read().unwrap_or_else(|error: Error| error.to_string())
}

#[test]
fn numbers_are_those_allowed() {
    assert_eq!(
        said("size = 9\nname = \"a\"\n[[part]]\nweight = 0\n[[part]]\nweight = 0.5\n"),
        "a: 9 m, [0.0, 0.5]"
    );
    let cases = [
        ("size = 0", "f.toml:1: size: a whole number from 1 to 9 m is expected, not 0"),
        ("size = -1", "f.toml:1: size: a whole number from 1 to 9 m is expected, not -1"),
        ("\nsize = 2.0", "f.toml:2: size: a whole number from 1 to 9 m is expected, not 2.0"),
        (
            "size = \"\"\"1\n2\"\"\"",
            "f.toml:1: size: a whole number from 1 to 9 m is expected, not \"\"\" 1 2\"\"\"",
        ),
        (
            "size = 1\n[[part]]\nweight = nan",
            "f.toml:3: part.weight: a number from 0 to 0.5 kg is expected, not nan",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(said(text), expected);
    }
}

#[test]
fn errors_of_toml_name_the_key() {
    let cases = [
        ("size = 1\nname = 3", "f.toml:2: name: invalid type: integer `3`, expected a string"),
        ("size = 1\nsize = 2", "f.toml:2: size: duplicate key"),
        (
            "size = 99999999999999999999",
            "f.toml:1: size: invalid type: integer `99999999999999999999` as i128, \
             expected a number of 64 bits at most",
        ),
        ("size = 1\npart = [{}]", "f.toml:2: part: missing field `weight`"),
        // The message names the key itself, or there is none on that line.
        (
            "size = 1\nnames = 3",
            "f.toml:2: unknown field `names`, expected one of `size`, `name`, `part`",
        ),
        ("size = 1\n[[part]]", "f.toml:2: missing field `weight`"),
        ("name = \"a\"\n", "f.toml:1: missing field `size`"),
        ("", "f.toml:1: missing field `size`"),
    ];
    for (text, expected) in cases {
        assert_eq!(said(text), expected);
    }
}

#[test]
fn errors_about_a_missing_table_name_it() {
    for text in ["[part]", "part.weight = 1", "[ \"part\" ]", "'part' = 3"] {
        let error = said(&format!("size = 1\n{text}\n"));
        assert!(error.starts_with("f.toml:2: invalid type: "), "{error}");
        assert!(error.ends_with(", expected tables [[part]]"), "{error}");
    }
    assert_eq!(
        said("size = 1\npart = 3"),
        "f.toml:2: part: invalid type: integer `3`, expected tables [[part]]"
    );
}

#[test]
fn a_file_is_regular_text_of_at_most_1_mib() {
    let error = |path: &Path| read(path, "box").unwrap_err().to_string();
    assert!(error(Path::new("/no/such.toml")).starts_with("cannot read the box /no/such.toml: "));
    let device = "cannot read the box /dev/zero: it is a device, expected a regular file";
    assert_eq!(error(Path::new("/dev/zero")), device);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"size = 1 # \xff").unwrap();
    assert!(error(file.path()).contains("it is not UTF-8: invalid utf-8"));
    std::fs::write(file.path(), vec![b' '; (1 << 20) + 1]).unwrap();
    assert!(error(file.path()).ends_with("it is larger than 1 MiB"));
    std::fs::write(file.path(), vec![b' '; 1 << 20]).unwrap();
    assert_eq!(read(file.path(), "box").unwrap().len(), 1 << 20);
}
