//! What the fuzz targets do with an input: one function a target, named as the target and its folder in `corpus/`.
//!
//! `tests/corpus.rs` of the crates `topology` and `linux` include the files of their targets and replay the corpus
//! through them, so those stand without any crate that only a fuzzer needs.

pub mod linux;
pub mod sysfs;
pub mod topology;
