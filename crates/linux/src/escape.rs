//! Names of cgroups and files as text. The kernel takes any bytes; records, JSON, metrics and
//! terminals need UTF-8.
//!
//! A byte that is not part of UTF-8 becomes `\xff`, with two lower-case digits. A name may have
//! such an escape in it already (systemd's have). Two names never share a text: where a name could
//! be mistaken for the text of another, its own `\` becomes `\x5c`. All other names stay as they
//! are, `machine-qemu\x2d1.scope` among them.

use std::{
    ffi::OsString,
    fmt::Write,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// The text of a path, or of a name.
pub fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref().as_os_str().as_bytes();
    match str::from_utf8(path) {
        Ok(text) if !text.contains('\\') => text.to_owned(),
        _ => path.split(|&byte| byte == b'/').map(text_of_name).collect::<Vec<_>>().join("/"),
    }
}

/// The path, or the name, with that text.
pub fn path(text: &str) -> PathBuf {
    let names: Vec<_> = text.split('/').map(name).collect();
    OsString::from_vec(names.join(&b'/')).into()
}

fn text_of_name(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if name(text) == bytes => text.to_owned(),
        _ => escaped(bytes),
    }
}

fn name(text: &str) -> Vec<u8> {
    let bytes = unescaped(text);
    // Escapes of valid UTF-8 are not this module's own.
    if escaped(&bytes) == text { bytes } else { text.as_bytes().to_vec() }
}

fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some((before, after)) = rest.split_once('\\') {
            text += before;
            text += if escape(after).is_some() { r"\x5c" } else { r"\" };
            rest = after;
        }
        text += rest;
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, r"\x{byte:02x}");
        }
    }
    text
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend(before.as_bytes());
        (rest, _) = match escape(after) {
            Some((byte, after)) => (after, bytes.push(byte)),
            None => (after, bytes.push(b'\\')),
        };
    }
    bytes.extend(rest.as_bytes());
    bytes
}

/// The byte that an escape stands for, and the text behind it. `after` follows a `\`.
fn escape(after: &str) -> Option<(u8, &str)> {
    let (digits, rest) = after.strip_prefix('x')?.split_at_checked(2)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let byte = u8::from_str_radix(digits, 16).ok().filter(|_| digits.bytes().all(is_digit))?;
    (!byte.is_ascii() || byte == b'\\').then_some((byte, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, ffi::OsStr};

    #[test]
    fn bytes_that_are_no_text_are_escaped() {
        for (bytes, expected) in [
            (&b"/a/\xff"[..], r"/a/\xff"),
            (b"\xc3\xa9\xc3", r"é\xc3"),
            (b"\xed\xa0\x80", r"\xed\xa0\x80"),
            // The name that looks like the first one, and the one that looks like this one.
            (br"/a/\xff", r"/a/\x5cxff"),
            (br"/a/\x5cxff", r"/a/\x5cx5cxff"),
            // Each component alone.
            (b"/caf\\xc3\\xa9.slice/\xff\\x2d", r"/caf\xc3\xa9.slice/\xff\x2d"),
        ] {
            assert_eq!(text(OsStr::from_bytes(bytes)), expected);
            assert_eq!(path(expected).as_os_str().as_bytes(), bytes);
        }
    }

    #[test]
    fn text_stays() {
        for plain in [
            "",
            "/",
            "/a b/\"c\"\t'\n",
            r"/machine.slice/machine-qemu\x2d1\x2dvm.scope",
            r"/system.slice/caf\xc3\xa9.service",
            r"\x5c/\\/\xFF/\xf/\x",
            "/\u{202e}日本語",
        ] {
            assert_eq!(text(plain), plain);
            assert_eq!(path(plain), Path::new(plain));
        }
    }

    #[test]
    fn no_two_names_share_a_text() {
        // All names of up to six of these, which include every beginning of an escape.
        let letters = [&b"\\"[..], b"x", b"5c", b"f", b"\xff", b"\xc3", b"\xa9"];
        let (mut names, mut last) = (vec![Vec::new()], 0..1);
        for _ in 0..6 {
            let longer: Vec<_> = names[last.clone()]
                .iter()
                .flat_map(|name| letters.iter().map(move |letter| [&name[..], letter].concat()))
                .collect();
            last = names.len()..names.len() + longer.len();
            names.extend(longer);
        }
        let names: BTreeSet<_> = names.into_iter().collect();
        let texts: BTreeSet<_> = names.iter().map(|name| text(OsStr::from_bytes(name))).collect();
        assert_eq!(texts.len(), names.len());
        for name in &names {
            assert_eq!(path(&text(OsStr::from_bytes(name))).as_os_str().as_bytes(), name);
        }
    }
}
