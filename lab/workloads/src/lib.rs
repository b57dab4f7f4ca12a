//! The modelled clock, for all that measures in guests of `lab/run --model`.

pub mod clock;
