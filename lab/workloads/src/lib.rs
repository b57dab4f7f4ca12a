//! The modelled clock, for all that measures in guests of `lab/run --model`, and a lock to measure.

pub mod clock;
pub mod pthread;
