//! Sets of CPUs.

use std::ops::{BitAnd, Not};

const WORDS: usize = 8;

/// A set of CPUs with numbers below [`Cpus::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpus([u64; WORDS]);

impl Cpus {
    pub(crate) const MAX: usize = 64 * WORDS;
    pub(crate) const NONE: Self = Self([0; WORDS]);
    pub(crate) const ALL: Self = Self([u64::MAX; WORDS]);

    /// The CPUs below `count`.
    pub(crate) fn first(count: usize) -> Self {
        (0..count).collect()
    }

    pub(crate) fn contains(self, cpu: usize) -> bool {
        self.0[cpu / 64] & 1 << (cpu % 64) != 0
    }

    pub(crate) fn insert(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    pub(crate) fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The lowest number in the set.
    pub(crate) fn lowest(self) -> Option<usize> {
        (0..Self::MAX).find(|&cpu| self.contains(cpu))
    }
}

/// CPUs 0 to 63 by their bits.
impl From<u64> for Cpus {
    fn from(bits: u64) -> Self {
        Self(std::array::from_fn(|word| if word == 0 { bits } else { 0 }))
    }
}

impl FromIterator<usize> for Cpus {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        cpus.into_iter().fold(Self::NONE, |mut set, cpu| {
            set.insert(cpu);
            set
        })
    }
}

impl BitAnd for Cpus {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }
}

impl Not for Cpus {
    type Output = Self;

    fn not(self) -> Self {
        Self(self.0.map(|word| !word))
    }
}
