//! The choice and the order of domains.

use crate::domains::Domain;
use nearside_linux::usage::Account;
use nearside_policy::total;
use std::cmp::Ordering;

/// The sort order of domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Domains by name, then other cgroups by path
    #[default]
    Name,
    /// Local share, lowest first
    Local,
    /// Debt, highest first
    Debt,
    /// Memory, highest first
    Memory,
    /// CPU time, highest first
    Cpu,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Name, Self::Local, Self::Debt, Self::Memory, Self::Cpu];

    /// The order `steps` later, cyclically.
    pub(super) fn after(self, steps: usize) -> Self {
        Self::ALL[(self as usize + steps) % Self::ALL.len()]
    }

    /// The order before, cyclically.
    pub(super) fn before(self) -> Self {
        self.after(Self::ALL.len() - 1)
    }

    fn largest_first(self, reversed: bool) -> bool {
        matches!(self, Self::Debt | Self::Memory | Self::Cpu) != reversed
    }

    /// The order in words.
    pub(super) fn words(self, reversed: bool) -> &'static str {
        match (self, self.largest_first(reversed)) {
            (Self::Name, false) => "by name",
            (Self::Name, true) => "by name, descending",
            (Self::Local, false) => "lowest local share first",
            (Self::Local, true) => "highest local share first",
            (Self::Debt, false) => "least debt first",
            (Self::Debt, true) => "most debt first",
            (Self::Memory, false) => "least memory first",
            (Self::Memory, true) => "most memory first",
            (Self::Cpu, false) => "least CPU time first",
            (Self::Cpu, true) => "most CPU time first",
        }
    }

    fn figure(self, domain: &Domain) -> Option<f64> {
        match self {
            Self::Name => None,
            Self::Local => domain.local_share,
            Self::Debt => domain.debt_bytes.map(|bytes| bytes as f64),
            Self::Memory => (domain.usage.memory_seen != Account::Hidden)
                .then(|| total(&domain.resident_bytes) as f64),
            Self::Cpu => Some(total(&domain.usage.cpu.time_ns) as f64),
        }
    }

    /// Domains without the figure come last in either direction.
    fn compare(self, reversed: bool, one: &Domain, other: &Domain) -> Ordering {
        let directed =
            |order: Ordering| if self.largest_first(reversed) { order.reverse() } else { order };
        let by_figure = match (self.figure(one), self.figure(other)) {
            (Some(one), Some(other)) => directed(one.total_cmp(&other)),
            (one, other) => other.is_some().cmp(&one.is_some()),
        };
        let names = one.name.cmp(&other.name);
        let by_name = if self == Self::Name { directed(names) } else { names };
        by_figure.then(one.home.is_none().cmp(&other.home.is_none())).then(by_name)
    }
}

/// The lines of domains whose names contain `filter` (ignoring case), in order; with `all` also
/// those of other cgroups.
pub(super) fn rows<'a>(
    domains: &'a [Domain],
    all: bool,
    filter: &str,
    sort: Sort,
    reversed: bool,
) -> Vec<&'a Domain> {
    let wanted = filter.to_lowercase();
    let is_shown = |domain: &&Domain| {
        (all || domain.home.is_some())
            && (wanted.is_empty() || domain.name.to_lowercase().contains(&wanted))
    };
    let mut rows: Vec<_> = domains.iter().filter(is_shown).collect();
    rows.sort_by(|one, other| sort.compare(reversed, one, other));
    rows.into_iter().flat_map(Domain::lines).collect()
}
