//! The grammars of options: QEMU's, and cloud-hypervisor's.

use nearside_topology::{Id, IdSet};

/// The keys and values of an option, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Keys(pub(crate) Vec<(String, String)>);

impl Keys {
    /// The value of a key; the last one counts.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let mut pairs = self.0.iter().rev();
        pairs.find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// All values of a key.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on.
    pub(crate) fn is_on(&self, key: &str) -> bool {
        matches!(self.get(key), Some("on" | "yes" | "true" | "y"))
    }

    /// A size in bytes; `unit_bytes` is the unit of a number without a suffix.
    pub(crate) fn size(&self, key: &str, unit_bytes: u64) -> Result<Option<u64>, String> {
        self.get(key).map(|text| size(text, unit_bytes)).transpose()
    }

    /// A whole number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<u32>, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{key}={text} is no number"));
        self.get(key).map(number).transpose()
    }
}

/// QEMU's grammar: `first,key=value,...`. Two commas are a literal one, a first word without `=` is
/// the value of `implied`, and a later one is a switch (QEMU, `util/qemu-option.c`).
pub(crate) fn qemu_keys(text: &str, implied: &str) -> Keys {
    let mut items = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, items.last_mut()) {
            (',', Some(last)) if rest.next_if_eq(&',').is_some() => last.push(','),
            (',', _) => items.push(String::new()),
            (_, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    let pair = |(at, item): (usize, String)| match item.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None if at == 0 => (implied.to_owned(), item),
        None => (item, "on".to_owned()),
    };
    let pairs = items.into_iter().enumerate().filter(|(_, item)| !item.is_empty()).map(pair);
    Keys(pairs.collect())
}

/// cloud-hypervisor's grammar: `key=value,...`, where brackets and quotes keep commas
/// (cloud-hypervisor, `option_parser/src/lib.rs`).
pub(crate) fn cloud_keys(text: &str) -> Keys {
    let (mut items, mut depth, mut is_quoted) = (vec![String::new()], 0_usize, false);
    for c in text.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
        match items.last_mut() {
            Some(last) if c != ',' || depth > 0 || is_quoted => last.push(c),
            _ => items.push(String::new()),
        }
    }
    let pair = |item: String| match item.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None => (item, String::new()),
    };
    Keys(items.into_iter().filter(|item| !item.is_empty()).map(pair).collect())
}

/// The items of cloud-hypervisor's lists, with or without brackets.
pub(crate) fn cloud_list(text: &str) -> impl Iterator<Item = &str> {
    text.trim_start_matches('[').trim_end_matches(']').split(',').filter(|item| !item.is_empty())
}

const SUFFIXES: [(char, u32); 7] =
    [('b', 0), ('k', 10), ('m', 20), ('g', 30), ('t', 40), ('p', 50), ('e', 60)];

/// A size with a suffix of powers of 1024 (QEMU, `util/cutils.c`: `qemu_strtosz`).
pub(crate) fn size(text: &str, unit_bytes: u64) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no size: expected a number such as 4G");
    let last = text.chars().last().map(|c| c.to_ascii_lowercase());
    let is_hex = text.starts_with("0x") || text.starts_with("0X");
    let suffix = SUFFIXES.iter().find(|(c, _)| !is_hex && Some(*c) == last);
    let (digits, unit_bytes) = match suffix {
        Some((_, shift)) => (&text[..text.len() - 1], 1_u64 << shift),
        None => (text, unit_bytes),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let whole = match is_hex {
        true => u64::from_str_radix(&digits[2..], 16).map_err(|_| wrong())?,
        false if is_plain(whole) && is_plain(fraction) && fraction.len() <= 9 => {
            whole.parse().map_err(|_| wrong())?
        }
        false => return Err(wrong()),
    };
    let fraction_bytes = match fraction {
        "" => 0,
        digits => {
            let scale = 10_u128.pow(digits.len() as u32);
            let part: u128 = digits.parse().map_err(|_| wrong())?;
            u64::try_from(part * u128::from(unit_bytes) / scale).map_err(|_| wrong())?
        }
    };
    let bytes = whole.checked_mul(unit_bytes).and_then(|bytes| bytes.checked_add(fraction_bytes));
    bytes.ok_or_else(wrong)
}

/// A list of numbers and ranges, `0-3,8`.
pub(crate) fn set<T: Id>(text: &str) -> Result<IdSet<T>, String> {
    let is_plain = !text.is_empty() && !text.contains(char::is_whitespace);
    let set = text.parse::<IdSet<T>>().ok().filter(|_| is_plain);
    set.ok_or_else(|| format!("\"{text}\" is no list of {}s such as 0-3", T::WHAT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_doubled_are_literal_and_the_first_word_has_an_implied_key() {
        let keys = qemu_keys("ram,,0,id=a,,b=c,share,size=4G", "qom-type");
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let expected = [
            pair("qom-type", "ram,0"),
            pair("id", "a,b=c"),
            pair("share", "on"),
            pair("size", "4G"),
        ];
        assert_eq!(keys.0, expected);
        assert_eq!(qemu_keys("", "x"), Keys::default());
        assert_eq!(qemu_keys("size=4G", "x").get("size"), Some("4G"));
    }

    #[test]
    fn brackets_keep_commas() {
        let keys = cloud_keys("guest_numa_id=0,cpus=[0-1,4],distances=[1@20,2@30]");
        assert_eq!(keys.get("cpus"), Some("[0-1,4]"));
        assert_eq!(cloud_list("[1@20,2@30]").collect::<Vec<_>>(), ["1@20", "2@30"]);
    }

    #[test]
    fn sizes_have_suffixes_and_fractions() {
        for (text, bytes) in [
            ("4G", Ok(4 << 30)),
            ("1.5g", Ok(3 << 29)),
            ("512", Ok(512 << 20)),
            ("0x10", Ok(16 << 20)),
            ("100b", Ok(100)),
        ] {
            assert_eq!(size(text, 1 << 20), bytes, "{text}");
        }
        for text in ["", "G", "-1", "4X", "1.G.", "99999999E", "0x", "0xé", "é", "1.1234567890"] {
            assert!(size(text, 1).is_err(), "{text}");
        }
    }
}
