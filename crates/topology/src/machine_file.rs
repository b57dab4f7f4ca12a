//! Machine files: a NUMA machine as TOML, with what its memory and its links cost. `lab/run --model` boots them under modelled time
//! (`lab/README.md` lists the keys, `lab/machines` has some); here they become a [`Topology`], to see what Nearside would do there.
//!
//! What a [`Topology`] holds of them: nodes and their memory, CPUs and which of them share a last level, distances, and of each two
//! nodes the latency and the bandwidth. The rest (instructions, caches, prefetching) is checked by the rules of `lab/machines.py`, so
//! that a file that is read here is one that boots there, where it is no more than can be emulated. (That reads TOML 1.0; what TOML 1.1
//! adds is read here alone.)

mod routes;

use crate::{
    distance::{Distance, Distances},
    id::{CpuId, NodeId},
    model::{Access, Cpu, Node, Performance, Topology},
};
use routes::{Link, Routes};
use serde::Deserialize;
use std::{
    fs::File,
    io::{self, Read},
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
};
use toml::{Spanned, Value};

/// Far more than any machine needs; keeps a path such as `/dev/zero` from filling memory.
const MAX_BYTES: u64 = 1 << 20;
const MOST_NODES: usize = 64;
const MOST_CPUS: u32 = 4096;
const MOST_LINKS: usize = 1024;
/// Within this many, of a unit that its key names.
const MILLION: f64 = 1e6;
const LEAST_LATENCY_NS: f64 = 0.001;
const LINE_BYTES: u64 = 64;

/// Why there is no machine in a file.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// It cannot be read.
    #[error("cannot read the machine file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is larger than any machine file.
    #[error("{} is larger than {} MiB, expected a machine file", path.display(), MAX_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Something in it is wrong.
    #[error("{file}:{line}: {what}")]
    Invalid {
        /// The file, as it was named.
        file: String,
        /// The line, from 1 on.
        line: usize,
        /// The key, what was read and what was expected.
        what: String,
    },
}

/// All of a file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    description: String,
    insn_ps: Spanned<Value>,
    distance: Spanned<Value>,
    latency_ns: Spanned<Value>,
    cache: WrittenCache,
    last_level: Option<WrittenLastLevel>,
    #[serde(default)]
    node: Vec<Spanned<WrittenNode>>,
    #[serde(default)]
    link: Vec<Spanned<WrittenLink>>,
    #[serde(default)]
    route: Vec<Spanned<WrittenRoute>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCache {
    kib: Spanned<Value>,
    ways: Spanned<Value>,
    prefetch: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLastLevel {
    kib: Spanned<Value>,
    ways: Spanned<Value>,
    ns: Spanned<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    cpus: Spanned<Value>,
    memory_mib: Spanned<Value>,
    bandwidth_mb_per_s: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLink {
    between: Spanned<Value>,
    latency_ns: Spanned<Value>,
    bandwidth_mb_per_s: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRoute {
    between: Spanned<Value>,
    via: Spanned<Value>,
}

/// Reads the machine file at `path`.
pub fn read(path: &Path) -> Result<Topology, MachineFileError> {
    let failed = |source| MachineFileError::Io { path: path.to_path_buf(), source };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(MachineFileError::TooLarge { path: path.to_path_buf() });
    }
    let text = String::from_utf8(bytes).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    parse(&path.display().to_string(), &text)
}

/// The machine that `text` describes; `file` is its name, for messages and as the machine's source.
pub fn parse(file: &str, text: &str) -> Result<Topology, MachineFileError> {
    let reader = Reader { file, text };
    let written: Written = toml::from_str(text).map_err(|error| reader.refused(&error))?;
    let nodes = reader.nodes(&written)?;
    reader.check_caches(&written)?;
    reader.number("insn_ps", &written.insn_ps, 1.0..=MILLION, Kind::Whole, "ps")?;
    let mut routes = Routes::new(nodes.len());
    for link in &written.link {
        reader.link(link, &mut routes)?;
    }
    let end = written.link.last().map_or(0..0, Spanned::span);
    routes.find().map_err(|what| reader.error(end, format!("link.between: {what}")))?;
    for route in &written.route {
        reader.route(route, &mut routes)?;
    }
    let latency_ns = reader.latencies(&written.latency_ns, nodes.len(), &routes)?;
    let distances = reader.distances(&written.distance, nodes.len())?;
    let source = match written.description.as_str() {
        "" => file.to_owned(),
        description => format!("{file} ({})", description.replace(char::is_control, " ")),
    };
    Ok(topology(source, &nodes, distances, &latency_ns, &routes, written.last_level.is_some()))
}

/// A node as the file has it.
struct NodeOfFile {
    cpus: u32,
    memory_bytes: u64,
    /// 0: unlimited.
    bandwidth_mb_per_s: f64,
}

fn topology(
    source: String,
    nodes: &[NodeOfFile],
    distances: Distances,
    latency_ns: &[Vec<f64>],
    routes: &Routes,
    has_last_level: bool,
) -> Topology {
    let mut machine = Topology { source, distances, ..Topology::default() };
    let mut first_cpu = 0;
    for (id, node) in (0..).map(NodeId).zip(nodes) {
        machine.nodes.push(Node { id, memory_bytes: node.memory_bytes, ..Node::default() });
        let last_level_cache = has_last_level.then_some(CpuId(first_cpu));
        machine.cpus.extend(
            (first_cpu..).take(node.cpus as usize).map(|cpu| Cpu { last_level_cache, ..Cpu::new(CpuId(cpu), id) }),
        );
        first_cpu += node.cpus;
    }
    for (i, row) in latency_ns.iter().enumerate() {
        for (j, &ns) in row.iter().enumerate() {
            let limits =
                routes.bandwidths_mb_per_s(i, j).chain([nodes[j].bandwidth_mb_per_s]).filter(|&limit| limit > 0.0);
            let bandwidth = limits.min_by(f64::total_cmp).map(at_least_one);
            let latency = Some(at_least_one(ns));
            machine.performance.push(Performance {
                access: Access::Access1,
                initiator: NodeId(i as u32),
                target: NodeId(j as u32),
                read_latency_ns: latency,
                write_latency_ns: latency,
                read_bandwidth_mb_s: bandwidth,
                write_bandwidth_mb_s: bandwidth,
            });
        }
    }
    machine
}

/// To the nearest whole number, of what was checked to be positive: at most the latencies of a thousand links.
fn at_least_one(value: f64) -> u64 {
    (value.round() as u64).max(1)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Any,
    Whole,
}

/// The text, to say where in it something is wrong.
struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    fn error(&self, at: Range<usize>, what: String) -> MachineFileError {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        MachineFileError::Invalid { file: self.file.to_owned(), line: before.matches('\n').count() + 1, what }
    }

    /// What TOML itself refused, or what has not the keys that it should have.
    fn refused(&self, error: &toml::de::Error) -> MachineFileError {
        let end = self.text.trim_end().len();
        self.error(error.span().unwrap_or(end..end), error.message().replace('\n', ", "))
    }

    fn number(
        &self,
        key: &str,
        value: &Spanned<Value>,
        allowed: RangeInclusive<f64>,
        kind: Kind,
        unit: &str,
    ) -> Result<f64, MachineFileError> {
        let found = number_in(value.get_ref(), kind).filter(|number| allowed.contains(number));
        found.ok_or_else(|| {
            let whole = if kind == Kind::Whole { "whole " } else { "" };
            let (least, most) = (allowed.start(), allowed.end());
            let what =
                format!("{key}: a {whole}number from {least} to {most} {unit} is expected, not {}", value.get_ref());
            self.error(value.span(), what)
        })
    }

    fn bandwidth(&self, table: &str, value: Option<&Spanned<Value>>) -> Result<f64, MachineFileError> {
        let key = format!("{table}.bandwidth_mb_per_s");
        match value {
            Some(value) if number_in(value.get_ref(), Kind::Any) != Some(0.0) => {
                self.number(&key, value, 1.0..=MILLION, Kind::Any, "MB/s, or 0 for unlimited,")
            }
            _ => Ok(0.0),
        }
    }

    fn nodes(&self, written: &Written) -> Result<Vec<NodeOfFile>, MachineFileError> {
        if !(1..=MOST_NODES).contains(&written.node.len()) {
            let (at, count) = (written.node.last().map_or(0..0, Spanned::span), written.node.len());
            return Err(self.error(at, format!("node: 1 to {MOST_NODES} tables [[node]] are expected, not {count}")));
        }
        let mut nodes = Vec::new();
        let mut all_cpus = 0;
        for node in written.node.iter().map(Spanned::get_ref) {
            let cpus = self.number("node.cpus", &node.cpus, 1.0..=f64::from(MOST_CPUS), Kind::Whole, "CPUs")? as u32;
            let mib = self.number("node.memory_mib", &node.memory_mib, 128.0..=1e9, Kind::Whole, "MiB")? as u64;
            all_cpus += cpus;
            if all_cpus > MOST_CPUS {
                let what = format!("node.cpus: at most {MOST_CPUS} CPUs in all are expected, not {all_cpus} or more");
                return Err(self.error(node.cpus.span(), what));
            }
            let bandwidth_mb_per_s = self.bandwidth("node", node.bandwidth_mb_per_s.as_ref())?;
            nodes.push(NodeOfFile { cpus, memory_bytes: mib << 20, bandwidth_mb_per_s });
        }
        Ok(nodes)
    }

    fn check_cache(&self, table: &str, kib: &Spanned<Value>, ways: &Spanned<Value>) -> Result<(), MachineFileError> {
        let bytes = (self.number(&format!("{table}.kib"), kib, 1.0..=1048576.0, Kind::Whole, "KiB")? as u64) << 10;
        let ways = self.number(&format!("{table}.ways"), ways, 1.0..=64.0, Kind::Whole, "ways")? as u64;
        if !bytes.is_multiple_of(LINE_BYTES * ways) || !(bytes / (LINE_BYTES * ways)).is_power_of_two() {
            let sets = "a power of two of sets, each of so many ways of lines of 64 bytes";
            return Err(self.error(kib.span(), format!("{table}.kib: {sets}, is expected, not {} KiB", bytes >> 10)));
        }
        Ok(())
    }

    fn check_caches(&self, written: &Written) -> Result<(), MachineFileError> {
        let cache = &written.cache;
        self.check_cache("cache", &cache.kib, &cache.ways)?;
        if let Some(prefetch) = &cache.prefetch {
            self.number("cache.prefetch", prefetch, 1.0..=64.0, Kind::Whole, "times")?;
        }
        let Some(last_level) = &written.last_level else { return Ok(()) };
        self.check_cache("last_level", &last_level.kib, &last_level.ways)?;
        self.number("last_level.ns", &last_level.ns, 0.0..=MILLION, Kind::Any, "ns").map(drop)
    }

    fn link(&self, link: &Spanned<WrittenLink>, routes: &mut Routes) -> Result<(), MachineFileError> {
        let written = link.get_ref();
        let at = written.between.span();
        let invalid = |what| self.error(at.clone(), format!("link.between: {what}"));
        if routes.links() == MOST_LINKS {
            return Err(invalid(format!("at most {MOST_LINKS} links are expected")));
        }
        let latency_ns = self.number("link.latency_ns", &written.latency_ns, 0.0..=MILLION, Kind::Any, "ns")?;
        let bandwidth_mb_per_s = self.bandwidth("link", written.bandwidth_mb_per_s.as_ref())?;
        let ends = list(written.between.get_ref()).and_then(|ends| routes.points(ends, true)).map_err(invalid)?;
        routes.join(&ends, Link { latency_ns, bandwidth_mb_per_s }).map_err(invalid)
    }

    fn route(&self, route: &Spanned<WrittenRoute>, routes: &mut Routes) -> Result<(), MachineFileError> {
        let WrittenRoute { between, via } = route.get_ref();
        let invalid = |key: &'static str, at: Range<usize>| move |what| self.error(at, format!("route.{key}: {what}"));
        let ends = list(between.get_ref()).and_then(|ends| routes.points(ends, false));
        let ends = ends.and_then(|ends| routes.free_pair(&ends)).map_err(invalid("between", between.span()))?;
        let points = list(via.get_ref()).and_then(|via| routes.points(via, false));
        points.and_then(|points| routes.lead(ends, &points)).map_err(invalid("via", via.span()))
    }

    /// Of a line from each node (row) to each (column).
    fn latencies(
        &self,
        value: &Spanned<Value>,
        nodes: usize,
        routes: &Routes,
    ) -> Result<Vec<Vec<f64>>, MachineFileError> {
        let allowed = LEAST_LATENCY_NS..=MILLION;
        let invalid = |what| self.error(value.span(), format!("latency_ns: {what}"));
        let expected = format!("a number from {LEAST_LATENCY_NS} to {MILLION} ns");
        let check =
            |values: &[Value]| numbers(values, nodes, Kind::Any, &expected, |_, number| allowed.contains(&number));
        if routes.links() == 0 {
            let rows = list(value.get_ref()).and_then(|rows| matrix(rows, nodes));
            let rows = rows.and_then(|rows| rows.into_iter().map(check).collect::<Result<Vec<_>, _>>());
            return rows.map_err(invalid);
        }
        let own_ns = list(value.get_ref()).and_then(check).map_err(invalid)?;
        Ok((0..nodes).map(|i| (0..nodes).map(|j| own_ns[j] + routes.latency_ns(i, j)).collect()).collect())
    }

    fn distances(&self, value: &Spanned<Value>, nodes: usize) -> Result<Distances, MachineFileError> {
        let invalid = |what| self.error(value.span(), format!("distance: {what}"));
        let rows = list(value.get_ref()).and_then(|rows| matrix(rows, nodes)).map_err(&invalid)?;
        let mut distances = Vec::new();
        for (i, row) in rows.into_iter().enumerate() {
            let is_good = |j, number: f64| {
                if i == j { number == 10.0 } else { 10.0 < number && number < 255.0 }
            };
            let row =
                numbers(row, nodes, Kind::Whole, "10 to itself, 11 to 254 elsewhere,", is_good).map_err(&invalid)?;
            distances.extend(row.into_iter().map(|number| number as Distance));
        }
        let ids: Vec<_> = (0..nodes as u32).map(NodeId).collect();
        Distances::new(&ids, &distances).map_err(|error| invalid(error.to_string()))
    }
}

fn number_in(value: &Value, kind: Kind) -> Option<f64> {
    match *value {
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) if kind == Kind::Any => Some(number),
        _ => None,
    }
}

fn list(value: &Value) -> Result<&[Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("a list is expected, not {value}"))
}

/// One row for each node.
fn matrix(rows: &[Value], nodes: usize) -> Result<Vec<&[Value]>, String> {
    let rows = rows.iter().map(list).collect::<Result<Vec<_>, _>>()?;
    match rows.len() == nodes {
        true => Ok(rows),
        false => Err(format!("{nodes} rows are expected, one for each node, not {}", rows.len())),
    }
}

/// One number for each node.
fn numbers(
    values: &[Value],
    nodes: usize,
    kind: Kind,
    expected: &str,
    is_good: impl Fn(usize, f64) -> bool,
) -> Result<Vec<f64>, String> {
    if values.len() != nodes {
        return Err(format!("{nodes} numbers are expected, one for each node, not {}", values.len()));
    }
    let number = |(node, value)| {
        let found = number_in(value, kind).filter(|&number| is_good(node, number));
        found.ok_or_else(|| format!("for node {node}, {expected} is expected, not {value}"))
    };
    values.iter().enumerate().map(number).collect()
}

#[cfg(test)]
mod tests;
