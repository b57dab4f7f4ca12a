//! Who places domains.

use std::fmt;

/// A way of placing domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Linux without NUMA balancing: threads go to any idle CPU, memory lies where it was touched first.
    Stock,
    /// Each domain bound to one node: nodes in turn.
    Pins,
    /// Placement, scheduler and control loop of Nearside.
    Nearside,
}

impl Contender {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Stock, Self::Pins, Self::Nearside];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Pins => "pins",
            Self::Nearside => "nearside",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
