//! Chance that is the same in every run.

/// The next of a row of numbers: the generator of MMIX (Knuth).
pub(crate) fn next(chance: u64) -> u64 {
    chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// One of so many, by the upper bits, which are the good ones.
pub(crate) fn one_of(count: u64, chance: u64) -> u64 {
    (chance >> 33) % count
}
