//! Lists of nodes and CPUs as people type them: one grammar for those of the kernel, numactl,
//! libvirt and Xen.
//!
//! ```text
//! set    = ["!"] ["+"] [item {("," | blank) item}]
//! item   = ["^"] [("node:" | "nodes:") ["^"]] region      "node:" in CPU lists only
//! region = ("all" | number ["-" number]) [":" number "/" number]
//! number = digits | "N"
//! ```
//!
//! | text | meaning | known from |
//! |---|---|---|
//! | `0-3,8` | these numbers | Linux, `lib/bitmap-str.c`, `bitmap_parselist` |
//! | `0-31:2/8` | of every 8 numbers of the range the first 2 | the same |
//! | `N` | the highest number there is | the same |
//! | `all` | all allowed ones | the same, numactl, Xen |
//! | `1-4,^3` | without 3; items count from left to right | libvirt `<numatune>`, Xen `cpus=` |
//! | `!0-1` | all allowed ones without 0 and 1 | numactl(8) |
//! | `+0-1` | the first and second allowed one | numactl(8) |
//! | `node:1`, `nodes:0-1`, `^node:1`, `node:^1` | the CPUs of these nodes | Xen `cpus=` |
//!
//! A number that does not exist is an error, so that a typing error does not silently mean fewer
//! nodes. Inside a range numbers may be missing, as they are on machines with sparse node numbers.
//! The caller judges whether a number that was written out is also *allowed*. numactl's `same` and
//! Xen's per-vCPU lists need more than one list and are not supported here.

use crate::{
    id::{CpuId, CpuSet, Id, IdSet, NodeId, NodeSet},
    model::Topology,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

/// A list longer than this is refused: 8,192 CPUs, each written out, take 40,000 bytes.
const MAX_LIST_BYTES: usize = 65_536;

/// The nodes that a list can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContext {
    /// The nodes that exist.
    pub existing: NodeSet,
    /// The nodes that the requester may use (`Mems_allowed_list` of a process): `all`, `!` and `+`
    /// start from them.
    pub allowed: NodeSet,
}

impl NodeContext {
    /// A context in which every node of the machine is allowed.
    pub fn of(topology: &Topology) -> Self {
        Self { existing: topology.node_set(), allowed: topology.node_set() }
    }

    /// The same machine for a requester that may use only `allowed`.
    #[must_use]
    pub fn allowing(self, allowed: &NodeSet) -> Self {
        Self { allowed: self.existing.intersection(allowed), ..self }
    }
}

/// The CPUs that a list can name.
#[derive(Debug, Clone)]
pub struct CpuContext<'a> {
    /// The machine; only its online CPUs can be named.
    pub topology: &'a Topology,
    /// The CPUs that the requester may use (`Cpus_allowed_list` of a process): `all`, `!` and `+`
    /// start from them.
    pub allowed: CpuSet,
}

impl<'a> CpuContext<'a> {
    /// A context in which every online CPU of the machine is allowed.
    pub fn of(topology: &'a Topology) -> Self {
        Self { topology, allowed: online(topology) }
    }

    /// The same machine for a requester that may use only `allowed`.
    #[must_use]
    pub fn allowing(self, allowed: &CpuSet) -> Self {
        Self { allowed: online(self.topology).intersection(allowed), ..self }
    }
}

fn online(topology: &Topology) -> CpuSet {
    topology.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect()
}

/// A list that cannot be read: the place, the text there, and the text expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarError {
    /// The list as it was given.
    pub text: String,
    /// The place of the first wrong character: 1 is the first of the list.
    pub column: usize,
    /// The reason.
    pub problem: Problem,
}

/// The reason why a list cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text at this place is not allowed there.
    #[error("read {read}, expected {expected}")]
    Unexpected {
        /// The text that stands there.
        read: String,
        /// The text that could stand there.
        expected: &'static str,
    },
    /// The machine does not have this node or CPU.
    #[error("there is no {what} {number}: this machine has {existing}")]
    Unknown {
        /// "node" or "CPU".
        what: &'static str,
        /// The number that was read.
        number: u32,
        /// The numbers that exist, in words.
        existing: String,
    },
    /// A relative number counts past the last allowed one.
    #[error("there is no +{number}: {there_is}")]
    Beyond {
        /// The number that was read.
        number: u32,
        /// The numbers that can be counted, in words.
        there_is: String,
    },
    /// A range's end lies before its start.
    #[error("the range {first}-{last} runs backwards")]
    Backwards {
        /// Its begin.
        first: u32,
        /// Its end.
        last: u32,
    },
    /// A region's groups take none, or more than a group has.
    #[error("takes {used} of every {size}: expected at least 1, and no more than there are")]
    Groups {
        /// Numbers taken of each group.
        used: u32,
        /// Numbers in a group.
        size: u32,
    },
    /// No node or CPU is left.
    #[error("names no {0} at all")]
    Empty(&'static str),
    /// The list is longer than any sensible one.
    #[error("has {0} bytes, expected at most 65536")]
    TooLong(usize),
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            // The text itself would fill the screen.
            problem @ Problem::TooLong(_) => write!(f, "the list {problem}"),
            problem @ Problem::Empty(_) => write!(f, "\"{}\" {problem}", self.text),
            problem => write!(f, "\"{}\", column {}: {problem}", self.text, self.column),
        }
    }
}

impl core::error::Error for GrammarError {}

/// Reads a list of nodes, which may come out empty (`all,^all`).
///
/// # Errors
/// If the list is malformed or names a node that does not exist.
pub fn parse_nodes(text: &str, context: &NodeContext) -> Result<NodeSet, GrammarError> {
    Parser::new(text, &context.existing, &context.allowed, None)?.set()
}

/// Reads a list of nodes that must name at least one.
///
/// # Errors
/// As [`parse_nodes`], and if no node is left.
pub fn parse_some_nodes(text: &str, context: &NodeContext) -> Result<NodeSet, GrammarError> {
    some(text, parse_nodes(text, context)?)
}

/// Reads a list of CPUs, which may come out empty (`node:2` of a node without CPUs).
///
/// # Errors
/// If the list is malformed, or names a CPU that does not exist or is offline, or a node that does
/// not exist.
pub fn parse_cpus(text: &str, context: &CpuContext<'_>) -> Result<CpuSet, GrammarError> {
    Parser::new(text, &online(context.topology), &context.allowed, Some(context.topology))?.set()
}

/// Reads a list of CPUs that must name at least one.
///
/// # Errors
/// As [`parse_cpus`], and if no CPU is left.
pub fn parse_some_cpus(text: &str, context: &CpuContext<'_>) -> Result<CpuSet, GrammarError> {
    some(text, parse_cpus(text, context)?)
}

fn some<T: Id>(text: &str, set: IdSet<T>) -> Result<IdSet<T>, GrammarError> {
    match set.is_empty() {
        true => Err(GrammarError {
            text: text.to_string(),
            column: 1,
            problem: Problem::Empty(T::WHAT),
        }),
        false => Ok(set),
    }
}

/// `1-4`, `all`, `0-31:2/8`: numbers before the check that they exist.
struct Region {
    /// First and last number; none for `all`.
    range: Option<(Number, Number)>,
    /// `(used, size)` of `:used/size`.
    groups: Option<(u32, u32)>,
}

/// A number, or `N` for the last there is.
#[derive(Clone, Copy)]
struct Number {
    value: Option<u32>,
    // Byte offset of its first character.
    at: usize,
}

struct Parser<'a, T> {
    text: &'a str,
    // Byte offset of the next character.
    at: usize,
    existing: Vec<T>,
    allowed: Vec<T>,
    // For a list of CPUs, the machine whose nodes `node:` names.
    machine: Option<&'a Topology>,
}

impl<'a, T: Id> Parser<'a, T> {
    fn new(
        text: &'a str,
        existing: &IdSet<T>,
        allowed: &IdSet<T>,
        machine: Option<&'a Topology>,
    ) -> Result<Self, GrammarError> {
        if text.len() > MAX_LIST_BYTES {
            let problem = Problem::TooLong(text.len());
            return Err(GrammarError { text: String::new(), column: 1, problem });
        }
        let (existing, allowed) = (existing.iter().collect(), allowed.iter().collect());
        Ok(Self { text, at: 0, existing, allowed, machine })
    }

    fn set(mut self) -> Result<IdSet<T>, GrammarError> {
        self.skip_separators();
        let inverse = self.take("!");
        let relative = self.take("+");
        let prefixed = inverse || relative;
        let mut set = IdSet::new();
        let mut items = 0;
        loop {
            self.skip_separators();
            if self.rest().is_empty() {
                break;
            }
            self.item(&mut set, items == 0, relative)?;
            items += 1;
            if !self.rest().is_empty() && !self.rest().starts_with(is_separator) {
                return Err(self.unexpected("a comma or the end"));
            }
        }
        if items == 0 && prefixed {
            return Err(self.unexpected("a number or \"all\""));
        }
        match inverse {
            true => Ok(self.allowed.iter().copied().collect::<IdSet<T>>().difference(&set)),
            false => Ok(set),
        }
    }

    fn item(
        &mut self,
        set: &mut IdSet<T>,
        first: bool,
        relative: bool,
    ) -> Result<(), GrammarError> {
        let start = self.at;
        let mut exclude = self.take("^");
        let machine = self.machine;
        let by_node = machine.filter(|_| self.take("nodes:") || self.take("node:"));
        exclude |= by_node.is_some() && self.take("^");
        if first && exclude {
            self.at = start;
            return Err(self.unexpected("something to take away from first, as in all,^3"));
        }
        if by_node.is_some() && relative {
            self.at = start;
            return Err(self.unexpected("a number: after + nothing but positions can be counted"));
        }
        let region = self.region()?;
        let ids: Vec<T> = match by_node {
            Some(machine) => {
                let nodes: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
                let nodes: NodeSet = self.select(&region, &nodes, &nodes)?.into_iter().collect();
                // "node:all" means the same as "all": the allowed CPUs.
                let of_nodes = machine.cpus_of_nodes(&nodes);
                let everywhere = region.range.is_none();
                let pool = if everywhere { &self.allowed } else { &self.existing };
                pool.iter().copied().filter(|id| of_nodes.contains(CpuId(id.number()))).collect()
            }
            None if relative => self.positions(&region)?,
            None => self.select(&region, &self.existing, &self.allowed)?,
        };
        for id in ids {
            match exclude {
                true => set.remove(id),
                false => set.insert(id),
            };
        }
        Ok(())
    }

    fn region(&mut self) -> Result<Region, GrammarError> {
        let range = match self.take("all") {
            true => None,
            false => {
                let first = self.number("a number or \"all\"")?;
                let last = if self.take("-") { self.number("a number")? } else { first };
                Some((first, last))
            }
        };
        let mut groups = None;
        if self.take(":") {
            let start = self.at;
            let used = self.count()?;
            if !self.take("/") {
                return Err(self.unexpected("\"/\" and the size of a group"));
            }
            let size = self.count()?;
            if used == 0 || used > size {
                return Err(self.error_at(start, Problem::Groups { used, size }));
            }
            groups = Some((used, size));
        }
        Ok(Region { range, groups })
    }

    /// The members of `existing` in a region; `all` stands for `allowed`.
    fn select<I: Id>(
        &self,
        region: &Region,
        existing: &[I],
        allowed: &[I],
    ) -> Result<Vec<I>, GrammarError> {
        let Some((first, last)) = region.range else {
            return Ok(allowed
                .iter()
                .copied()
                .filter(|id| in_groups(id.number(), 0, region.groups))
                .collect());
        };
        let check = |number: Number| {
            let value = number.value.or(existing.last().map(|id| id.number())).unwrap_or(0);
            match existing.binary_search_by_key(&value, |id| id.number()) {
                Ok(_) => Ok(value),
                Err(_) => {
                    let existing = existing.iter().copied().collect::<IdSet<I>>().named();
                    Err(self.error_at(
                        number.at,
                        Problem::Unknown { what: I::WHAT, number: value, existing },
                    ))
                }
            }
        };
        let (start, end) = (check(first)?, check(last)?);
        if start > end {
            return Err(self.error_at(first.at, Problem::Backwards { first: start, last: end }));
        }
        let inside = |id: &I| {
            (start..=end).contains(&id.number()) && in_groups(id.number(), start, region.groups)
        };
        Ok(existing.iter().copied().filter(inside).collect())
    }

    /// The members of `allowed` at the positions that a region names.
    fn positions(&self, region: &Region) -> Result<Vec<T>, GrammarError> {
        let last = self.allowed.len().saturating_sub(1);
        let check = |number: Number| {
            let value = number.value.unwrap_or(last as u32);
            match (value as usize) < self.allowed.len() {
                true => Ok(value),
                false => {
                    let problem =
                        Problem::Beyond { number: value, there_is: countable(&self.allowed) };
                    Err(self.error_at(number.at, problem))
                }
            }
        };
        let (start, end) = match region.range {
            None => (0, u32::MAX),
            Some((first, last)) => (check(first)?, check(last)?),
        };
        if let (true, Some((first, _))) = (start > end, region.range) {
            return Err(self.error_at(first.at, Problem::Backwards { first: start, last: end }));
        }
        let counted = (0..).zip(self.allowed.iter().copied());
        let inside = counted
            .filter(|(at, _)| (start..=end).contains(at) && in_groups(*at, start, region.groups));
        Ok(inside.map(|(_, id)| id).collect())
    }

    fn number(&mut self, expected: &'static str) -> Result<Number, GrammarError> {
        let at = self.at;
        let value = if self.take("N") { None } else { Some(self.digits(expected)?) };
        Ok(Number { value, at })
    }

    fn count(&mut self) -> Result<u32, GrammarError> {
        self.digits("a number")
    }

    fn digits(&mut self, expected: &'static str) -> Result<u32, GrammarError> {
        let rest = self.rest();
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        match digits.parse() {
            Ok(value) => {
                self.at += digits.len();
                Ok(value)
            }
            Err(_) if digits.is_empty() => Err(self.unexpected(expected)),
            Err(_) => Err(self.unexpected("a number below 4294967296")),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn take(&mut self, word: &str) -> bool {
        // The kernel takes "ALL" as well; no other word of the grammar differs by case alone.
        let taken = self.rest().get(..word.len()).is_some_and(|start| match word {
            "all" => start.eq_ignore_ascii_case(word),
            _ => start == word,
        });
        if taken {
            self.at += word.len();
        }
        taken
    }

    fn skip_separators(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches(is_separator).len();
    }

    fn unexpected(&self, expected: &'static str) -> GrammarError {
        let end = self.rest().find(is_separator).unwrap_or(self.rest().len());
        let read = match self.rest().chars().next() {
            None => "the end".to_string(),
            Some(first) if is_separator(first) => format!("{first:?}"),
            Some(_) => format!("{:?}", &self.rest()[..end]),
        };
        self.error_at(self.at, Problem::Unexpected { read, expected })
    }

    fn error_at(&self, at: usize, problem: Problem) -> GrammarError {
        let column = self.text[..at].chars().count() + 1;
        GrammarError { text: self.text.to_string(), column, problem }
    }
}

/// The numbers that a relative number can name, in words.
fn countable<T: Id>(allowed: &[T]) -> String {
    let (what, set) = (T::WHAT, allowed.iter().copied().collect::<IdSet<T>>());
    match allowed.len() {
        0 => format!("there are no allowed {what}s"),
        1 => format!("there is only 1 allowed {what}, +0 ({set})"),
        2 => format!("there are only 2 allowed {what}s, +0 and +1 ({set})"),
        count => format!("there are only {count} allowed {what}s, +0 to +{} ({set})", count - 1),
    }
}

fn is_separator(c: char) -> bool {
    c == ',' || c.is_ascii_whitespace()
}

/// Whether a number is among the used ones of its group; groups are counted from the start of the
/// range.
fn in_groups(number: u32, start: u32, groups: Option<(u32, u32)>) -> bool {
    groups.is_none_or(|(used, size)| (number - start) % size < used)
}

#[cfg(test)]
mod tests;
