//! Ways to place domains.

use std::fmt;

/// A way to place domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Linux without NUMA balancing: threads run on any idle CPU, memory stays on the node of its
    /// first touch.
    Stock,
    /// Each domain bound to one node, nodes in turn.
    Pins,
    /// Placement, scheduler and control loop of Nearside.
    Nearside,
}

impl Contender {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Stock, Self::Pins, Self::Nearside];

    /// Its name.
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
