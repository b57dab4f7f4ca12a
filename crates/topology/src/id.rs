//! Numbers of nodes, CPUs and proximity domains, and sets of them.

use alloc::{string::String, vec::Vec};
use core::{fmt, marker::PhantomData, str::FromStr};

/// The largest number a set may hold. Linux stops at 1,024 nodes (`NODES_SHIFT` 10) and 8,192 CPUs
/// (`NR_CPUS`); the bound keeps a typing error such as `0-4000000000` from asking for gigabytes.
pub const MAX_ID: u32 = 65_535;

/// One more than the largest number a node can have in Linux (`MAX_NUMNODES` with `NODES_SHIFT`
/// 10).
pub const MAX_NODES: u32 = 1024;

/// A small number that names a thing and can stand in an [`IdSet`].
pub trait Id: Copy + Ord + fmt::Display {
    /// The kind of thing that the number names, for messages: "node", "CPU".
    const WHAT: &'static str;
    /// The thing with this number.
    fn new(number: u32) -> Self;
    /// The number.
    fn number(self) -> u32;
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
        pub struct $name(pub u32);

        // A number from a file may be put into a set next.
        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let number = u32::deserialize(deserializer)?;
                match number <= $max {
                    true => Ok(Self(number)),
                    false => Err(serde::de::Error::custom(format_args!(
                        "{} {number} is above {}",
                        $what, $max
                    ))),
                }
            }
        }

        impl Id for $name {
            const WHAT: &'static str = $what;
            fn new(number: u32) -> Self {
                Self(number)
            }
            fn number(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($what, " {}"), self.0)
            }
        }
    };
}

id!(
    /// A NUMA node as the operating system numbers it.
    NodeId,
    "node",
    MAX_ID
);
id!(
    /// A logical CPU as the operating system numbers it.
    CpuId,
    "CPU",
    MAX_ID
);
id!(
    /// A proximity domain as firmware numbers it (ACPI, "System Resource Affinity Table").
    Pxm,
    "PXM",
    u32::MAX
);

/// A set of nodes.
pub type NodeSet = IdSet<NodeId>;
/// A set of logical CPUs.
pub type CpuSet = IdSet<CpuId>;

/// A set of numbered things, kept as a bit map; prints and parses as the kernel's lists do
/// (`0-3,8`).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdSet<T> {
    // Invariant: the last word is not 0, so that equal sets are equal vectors.
    words: Vec<u64>,
    of: PhantomData<T>,
}

impl<T: Id> IdSet<T> {
    /// The empty set.
    pub const fn new() -> Self {
        Self { words: Vec::new(), of: PhantomData }
    }

    /// Adds `id`; true when it was not there before.
    ///
    /// # Panics
    /// If the number is above [`MAX_ID`]; readers check numbers before they insert them.
    pub fn insert(&mut self, id: T) -> bool {
        assert!(id.number() <= MAX_ID, "{} {} is above {MAX_ID}", T::WHAT, id.number());
        let (word, bit) = Self::place(id);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let fresh = self.words[word] & bit == 0;
        self.words[word] |= bit;
        fresh
    }

    /// Adds all from `first` to `last`, word by word: a text of a megabyte can name a hundred
    /// thousand long ranges.
    ///
    /// # Panics
    /// As [`IdSet::insert`].
    pub fn insert_range(&mut self, first: T, last: T) {
        let (first, last) = (first.number(), last.number());
        assert!(last <= MAX_ID, "{} {last} is above {MAX_ID}", T::WHAT);
        if first > last {
            return;
        }
        let (low, high) = ((first / 64) as usize, (last / 64) as usize);
        if self.words.len() <= high {
            self.words.resize(high + 1, 0);
        }
        for (at, word) in self.words.iter_mut().enumerate().take(high + 1).skip(low) {
            let from = if at == low { u64::MAX << (first % 64) } else { u64::MAX };
            let to = if at == high { u64::MAX >> (63 - last % 64) } else { u64::MAX };
            *word |= from & to;
        }
    }

    /// Takes `id` out; true when it was there.
    pub fn remove(&mut self, id: T) -> bool {
        let (word, bit) = Self::place(id);
        let there = self.contains(id);
        if there {
            self.words[word] &= !bit;
            self.trim();
        }
        there
    }

    /// Whether `id` is in the set.
    pub fn contains(&self, id: T) -> bool {
        let (word, bit) = Self::place(id);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The set in words: `node 1`, `CPUs 0-3,8`, `no node`.
    pub fn named(&self) -> String {
        match self.len() {
            0 => alloc::format!("no {}", T::WHAT),
            1 => alloc::format!("{} {self}", T::WHAT),
            _ => alloc::format!("{}s {self}", T::WHAT),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The members in rising order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| T::new(index as u32 * 64 + bit))
        })
    }

    /// The lowest member.
    pub fn first(&self) -> Option<T> {
        self.iter().next()
    }

    /// Members of either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) =
            if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut result = long.clone();
        for (word, more) in result.words.iter_mut().zip(&short.words) {
            *word |= more;
        }
        result
    }

    /// Members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & b)
    }

    /// Members of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & !b)
    }

    /// Whether every member is in `other` too.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    fn combine(&self, other: &Self, operation: fn(u64, u64) -> u64) -> Self {
        let words = self.words.iter().enumerate();
        let words =
            words.map(|(i, &a)| operation(a, other.words.get(i).copied().unwrap_or(0))).collect();
        let mut result = Self { words, of: PhantomData };
        result.trim();
        result
    }

    /// The first bit at or after `from` that is set, or that is not; none up to the last word.
    fn next_bit(&self, from: usize, is_set: bool) -> Option<usize> {
        let (begin, mut mask) = (from / 64, u64::MAX << (from % 64));
        self.words.iter().enumerate().skip(begin).find_map(|(at, &word)| {
            let wanted =
                if is_set { word } else { !word } & core::mem::replace(&mut mask, u64::MAX);
            (wanted != 0).then(|| at * 64 + wanted.trailing_zeros() as usize)
        })
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    fn place(id: T) -> (usize, u64) {
        ((id.number() / 64) as usize, 1 << (id.number() % 64))
    }
}

impl<T: Id> Default for IdSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Id> FromIterator<T> for IdSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(ids: I) -> Self {
        let mut set = Self::new();
        set.extend(ids);
        set
    }
}

impl<T: Id> Extend<T> for IdSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl<T: Id, const N: usize> From<[T; N]> for IdSet<T> {
    fn from(ids: [T; N]) -> Self {
        ids.into_iter().collect()
    }
}

impl<T: Id> fmt::Display for IdSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut from = 0;
        while let Some(first) = self.next_bit(from, true) {
            from = self.next_bit(first, false).unwrap_or(self.words.len() * 64);
            let (comma, last) = (if text.is_empty() { "" } else { "," }, from - 1);
            let written = match last - first {
                0 => fmt::write(&mut text, format_args!("{comma}{first}")),
                _ => fmt::write(&mut text, format_args!("{comma}{first}-{last}")),
            };
            written?;
        }
        f.pad(&text)
    }
}

impl<T: Id> fmt::Debug for IdSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// A text that is no list, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no list of numbers such as 0-3,8: {why}")]
pub struct InvalidList {
    /// The text as it was read.
    pub text: String,
    /// The part that is wrong, and the reason.
    pub why: String,
}

/// The kernel's list format as its own files use it: `0-3,8`, with nothing for the empty set
/// (Linux, `lib/bitmap-str.c`, `bitmap_parselist`). The wider grammars that people type are in
/// `grammar`.
impl<T: Id> FromStr for IdSet<T> {
    type Err = InvalidList;

    fn from_str(text: &str) -> Result<Self, InvalidList> {
        use alloc::{format, string::ToString};
        let fail = |why: String| InvalidList { text: text.to_string(), why };
        let number = |part: &str| match part.parse::<u32>() {
            Ok(n) if n <= MAX_ID => Ok(n),
            Ok(n) => Err(fail(format!("{n} is above {MAX_ID}"))),
            Err(_) => Err(fail(format!("\"{part}\" is no number"))),
        };
        let mut set = Self::new();
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(set);
        }
        for part in trimmed.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(fail(format!("the range {part} runs backwards")));
            }
            set.extend((first..=last).map(T::new));
        }
        Ok(set)
    }
}

#[cfg(feature = "serde")]
impl<T: Id> serde::Serialize for IdSet<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de, T: Id> serde::Deserialize<'de> for IdSet<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_range_is_each_of_its_numbers() {
        let ends = [0, 1, 62, 63, 64, 65, 127, 128, 200];
        for (first, last) in ends.iter().flat_map(|a| ends.iter().map(move |b| (*a, *b))) {
            let mut expected = CpuSet::from([CpuId(64)]);
            let mut set = expected.clone();
            set.insert_range(CpuId(first), CpuId(last));
            for cpu in first..=last {
                expected.insert(CpuId(cpu));
            }
            assert_eq!(set, expected, "{first}-{last}");
        }
    }

    #[test]
    fn lists_print_and_parse_as_the_kernel_writes_them() {
        for text in
            ["", "0", "0-3", "0-3,8", "1,3,5-7,64-130", "63", "63-64", "0-63,65-127", "65535"]
        {
            assert_eq!(text.parse::<NodeSet>().unwrap().to_string(), text);
        }
        for text in ["3-1", "a", "0,,1", "65536", "1-", "-1", "0-4000000000", "1 2"] {
            assert!(text.parse::<NodeSet>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_is_a_node_and_several_are_nodes() {
        let named = |text: &str| text.parse::<NodeSet>().unwrap().named();
        assert_eq!(
            ["", "7", "0-1", "1,3"].map(named),
            ["no node", "node 7", "nodes 0-1", "nodes 1,3"]
        );
        assert_eq!(CpuSet::from([CpuId(2), CpuId(3)]).named(), "CPUs 2-3");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn numbers_that_no_set_could_hold_are_not_read() {
        let read = |text| serde_json::from_str::<NodeId>(text).map_err(|error| error.to_string());
        assert_eq!(read("65535"), Ok(NodeId(65_535)));
        assert_eq!(read("65536").unwrap_err(), "node 65536 is above 65535");
        assert_eq!(serde_json::from_str::<crate::Pxm>("4294967295").unwrap(), crate::Pxm(u32::MAX));
        let set: CpuSet = serde_json::from_str("\"0-3,8\"").unwrap();
        assert_eq!(serde_json::to_string(&set).unwrap(), "\"0-3,8\"");
        assert!(serde_json::from_str::<CpuSet>("\"0-65536\"").is_err());
    }

    proptest! {
        #[test]
        fn sets_agree_with_the_standard_library(a: Vec<u8>, b: Vec<u8>) {
            let set = |v: &[u8]| v.iter().map(|&n| CpuId(n.into())).collect::<CpuSet>();
            let model = |v: &[u8]| v.iter().map(|&n| CpuId(n.into())).collect::<BTreeSet<_>>();
            let (x, y, p, q) = (set(&a), set(&b), model(&a), model(&b));
            prop_assert!(x.union(&y).iter().eq(p.union(&q).copied()));
            prop_assert!(x.intersection(&y).iter().eq(p.intersection(&q).copied()));
            prop_assert!(x.difference(&y).iter().eq(p.difference(&q).copied()));
            prop_assert_eq!(x.is_subset(&y), p.is_subset(&q));
            prop_assert_eq!(x.len(), p.len());
            prop_assert_eq!(x == y, p == q);
            prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x.clone());
            let mut shrunk = x.clone();
            for id in y.iter() { prop_assert_eq!(shrunk.remove(id), x.contains(id)); }
            prop_assert_eq!(shrunk, x.difference(&y));
        }
    }
}
