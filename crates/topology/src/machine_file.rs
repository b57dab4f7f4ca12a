//! Machine files: a NUMA machine as TOML, with the costs of its memory and its links.
//!
//! `lab/run --model` boots such machines under modelled time; `lab/README.md` lists the keys, and
//! `lab/machines` has files. This is their only reader: the lab asks
//! `nearside topology --machine FILE --format json`.
//!
//! A [`Topology`] holds the machine as Linux would know it: nodes and their memory, CPUs and their
//! last-level caches, distances, and rounded latencies and bandwidths between nodes. [`Costs`]
//! holds the rest, in the file's own units.

mod costs;
mod routes;

use crate::{
    distance::{Distance, Distances},
    id::{CpuId, NodeId},
    model::{Access, Cpu, Node, Performance, Topology},
    toml_file::{self, Error, Reader, number_in},
};
pub use costs::{Cache, Costs, LastLevel, Link, Point};
use routes::Routes;
use serde::Deserialize;
use std::{ops::Range, path::Path};
use toml::{Spanned, Value};

const MAX_NODES: usize = 64;
const MAX_CPUS: u32 = 4096;
const MAX_LINKS: usize = 1024;
/// Bound of latencies in ns and bandwidths in MB/s.
const MILLION: f64 = 1e6;
const MIN_LATENCY_NS: f64 = 0.001;
const LINE_BYTES: u64 = 64;

/// A machine file: the machine and its costs.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineFile {
    /// The machine as Linux would know it.
    pub topology: Topology,
    /// Costs that a topology does not hold.
    pub costs: Costs,
}

/// A file's keys and values, before they are checked.
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
    remote_cache: Option<WrittenRemoteCache>,
    #[serde(default)]
    node: Vec<Spanned<WrittenNode>>,
    #[serde(default)]
    link: Vec<Spanned<WrittenLink>>,
    #[serde(default)]
    route: Vec<Spanned<WrittenRoute>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [cache]")]
struct WrittenCache {
    kib: Spanned<Value>,
    ways: Spanned<Value>,
    prefetch: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [last_level]")]
struct WrittenLastLevel {
    kib: Spanned<Value>,
    ways: Spanned<Value>,
    ns: Spanned<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [remote_cache]")]
struct WrittenRemoteCache {
    kib: Spanned<Value>,
    ways: Spanned<Value>,
    ns: Spanned<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[node]]")]
struct WrittenNode {
    cpus: Spanned<Value>,
    memory_mib: Spanned<Value>,
    bandwidth_mb_per_s: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[link]]")]
struct WrittenLink {
    between: Spanned<Value>,
    latency_ns: Spanned<Value>,
    bandwidth_mb_per_s: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[route]]")]
struct WrittenRoute {
    between: Spanned<Value>,
    via: Spanned<Value>,
}

/// Reads the machine file at `path`.
///
/// # Errors
///
/// The file cannot be read, or is no machine file.
pub fn read(path: &Path) -> Result<MachineFile, Error> {
    parse(&path.display().to_string(), &toml_file::read(path, "machine file")?)
}

/// The machine that `text` describes. `file` is its name, for messages and as the machine's source.
///
/// # Errors
///
/// An [`Error::Invalid`] for the first mistake in the text.
pub fn parse(file: &str, text: &str) -> Result<MachineFile, Error> {
    let reader = Reader::new(file, text);
    let written: Written = reader.written()?;
    let nodes = nodes(reader, &written)?;
    let cache = cache(reader, &written.cache)?;
    let last_level =
        written.last_level.as_ref().map(|written| last_level(reader, written)).transpose()?;
    let remote_cache =
        written.remote_cache.as_ref().map(|written| remote_cache(reader, written)).transpose()?;
    let insn_ps = reader.whole("insn_ps", &written.insn_ps, 1..=1_000_000, "ps")?;
    let mut routes = Routes::new(nodes.len());
    for link in &written.link {
        add_link(reader, link, &mut routes)?;
    }
    let end = written.link.last().map_or(0..0, Spanned::span);
    routes.find().map_err(|what| reader.error(end, &format!("link.between: {what}")))?;
    for route in &written.route {
        add_route(reader, route, &mut routes)?;
    }
    let costs = Costs {
        latency_ns: latencies(reader, &written.latency_ns, nodes.len(), &routes)?,
        description: written.description,
        insn_ps,
        memory_bandwidth_mb_per_s: nodes.iter().map(|node| node.bandwidth_mb_per_s).collect(),
        cache,
        last_level,
        remote_cache,
        links: routes.links().to_vec(),
        routes: routes.all().cloned().collect(),
    };
    let distances = distances(reader, &written.distance, nodes.len())?;
    let source = match costs.description.as_str() {
        "" => file.to_owned(),
        description => format!("{file} ({})", description.replace(char::is_control, " ")),
    };
    let topology = topology(source, &nodes, distances, &costs, &routes);
    Ok(MachineFile { topology, costs })
}

/// A node as the file states it.
struct FileNode {
    cpus: u32,
    memory_bytes: u64,
    /// 0: unlimited.
    bandwidth_mb_per_s: f64,
}

fn topology(
    source: String,
    nodes: &[FileNode],
    distances: Distances,
    costs: &Costs,
    routes: &Routes,
) -> Topology {
    let mut machine = Topology { source, distances, ..Topology::default() };
    let mut first_cpu = 0;
    for (id, node) in (0..).map(NodeId).zip(nodes) {
        machine.nodes.push(Node { id, memory_bytes: node.memory_bytes, ..Node::default() });
        let last_level_cache = costs.last_level.map(|_| CpuId(first_cpu));
        machine.cpus.extend(
            (first_cpu..)
                .take(node.cpus as usize)
                .map(|cpu| Cpu { last_level_cache, ..Cpu::new(CpuId(cpu), id) }),
        );
        first_cpu += node.cpus;
    }
    for (i, row) in costs.latency_ns.iter().enumerate() {
        for (j, &ns) in row.iter().enumerate() {
            let limits = routes
                .bandwidths_mb_per_s(i, j)
                .chain([nodes[j].bandwidth_mb_per_s])
                .filter(|&limit| limit > 0.0);
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

/// A positive value, rounded to the nearest whole number, but never 0. It is at most the sum of the
/// latencies of a thousand links.
fn at_least_one(value: f64) -> u64 {
    (value.round() as u64).max(1)
}

fn bandwidth(
    reader: Reader<'_>,
    table: &str,
    value: Option<&Spanned<Value>>,
) -> Result<f64, Error> {
    let key = format!("{table}.bandwidth_mb_per_s");
    match value {
        Some(value) if number_in(value.get_ref()) != Some(0.0) => {
            reader.number(&key, value, 1.0..=MILLION, "MB/s, or 0 for unlimited,")
        }
        _ => Ok(0.0),
    }
}

fn nodes(reader: Reader<'_>, written: &Written) -> Result<Vec<FileNode>, Error> {
    if !(1..=MAX_NODES).contains(&written.node.len()) {
        let (at, count) = (written.node.last().map_or(0..0, Spanned::span), written.node.len());
        return Err(reader.error(
            at,
            &format!("node: 1 to {MAX_NODES} tables [[node]] are expected, not {count}"),
        ));
    }
    let mut nodes = Vec::new();
    let mut all_cpus = 0;
    for node in written.node.iter().map(Spanned::get_ref) {
        let cpus = reader.whole("node.cpus", &node.cpus, 1..=MAX_CPUS.into(), "CPUs")? as u32;
        let mib = reader.whole("node.memory_mib", &node.memory_mib, 128..=1_000_000_000, "MiB")?;
        all_cpus += cpus;
        if all_cpus > MAX_CPUS {
            let what = format!(
                "node.cpus: at most {MAX_CPUS} CPUs in all are expected, not {all_cpus} or more"
            );
            return Err(reader.error(node.cpus.span(), &what));
        }
        let bandwidth_mb_per_s = bandwidth(reader, "node", node.bandwidth_mb_per_s.as_ref())?;
        nodes.push(FileNode { cpus, memory_bytes: mib << 20, bandwidth_mb_per_s });
    }
    Ok(nodes)
}

/// Bytes and ways of a cache.
fn cache_size(
    reader: Reader<'_>,
    table: &str,
    kib: &Spanned<Value>,
    ways: &Spanned<Value>,
) -> Result<(u64, u64), Error> {
    let bytes = reader.whole(&format!("{table}.kib"), kib, 1..=1 << 20, "KiB")? << 10;
    let ways = reader.whole(&format!("{table}.ways"), ways, 1..=64, "ways")?;
    if !bytes.is_multiple_of(LINE_BYTES * ways) || !(bytes / (LINE_BYTES * ways)).is_power_of_two()
    {
        let expected = format!("a power of two of sets of {ways} lines of {LINE_BYTES} bytes");
        let what = format!("{table}.kib: {expected} is expected, not {} KiB", bytes >> 10);
        return Err(reader.error(kib.span(), &what));
    }
    Ok((bytes, ways))
}

fn cache(reader: Reader<'_>, written: &WrittenCache) -> Result<Cache, Error> {
    let (bytes, ways) = cache_size(reader, "cache", &written.kib, &written.ways)?;
    let prefetch = match &written.prefetch {
        Some(prefetch) => reader.whole("cache.prefetch", prefetch, 1..=64, "times")?,
        None => 1,
    };
    Ok(Cache { bytes, ways, prefetch })
}

fn last_level(reader: Reader<'_>, written: &WrittenLastLevel) -> Result<LastLevel, Error> {
    let (bytes, ways) = cache_size(reader, "last_level", &written.kib, &written.ways)?;
    let latency_ns = reader.number("last_level.ns", &written.ns, 0.0..=MILLION, "ns")?;
    Ok(LastLevel { bytes, ways, latency_ns })
}

fn remote_cache(reader: Reader<'_>, written: &WrittenRemoteCache) -> Result<LastLevel, Error> {
    let (bytes, ways) = cache_size(reader, "remote_cache", &written.kib, &written.ways)?;
    let latency_ns = reader.number("remote_cache.ns", &written.ns, 0.0..=MILLION, "ns")?;
    Ok(LastLevel { bytes, ways, latency_ns })
}

fn add_link(
    reader: Reader<'_>,
    link: &Spanned<WrittenLink>,
    routes: &mut Routes,
) -> Result<(), Error> {
    let written = link.get_ref();
    let at = written.between.span();
    let invalid = |what| reader.error(at.clone(), &format!("link.between: {what}"));
    if routes.links().len() == MAX_LINKS {
        return Err(invalid(format!("at most {MAX_LINKS} links are expected")));
    }
    let latency_ns = reader.number("link.latency_ns", &written.latency_ns, 0.0..=MILLION, "ns")?;
    let bandwidth_mb_per_s = bandwidth(reader, "link", written.bandwidth_mb_per_s.as_ref())?;
    let ends = list(written.between.get_ref())
        .and_then(|ends| routes.points(ends, true))
        .map_err(invalid)?;
    routes.join(&ends, latency_ns, bandwidth_mb_per_s).map_err(invalid)
}

fn add_route(
    reader: Reader<'_>,
    route: &Spanned<WrittenRoute>,
    routes: &mut Routes,
) -> Result<(), Error> {
    let WrittenRoute { between, via } = route.get_ref();
    let invalid = |key: &'static str, at: Range<usize>| {
        move |what| reader.error(at, &format!("route.{key}: {what}"))
    };
    let ends = list(between.get_ref()).and_then(|ends| routes.points(ends, false));
    let ends = ends
        .and_then(|ends| routes.free_pair(&ends))
        .map_err(invalid("between", between.span()))?;
    let points = list(via.get_ref()).and_then(|via| routes.points(via, false));
    points.and_then(|points| routes.lead(ends, &points)).map_err(invalid("via", via.span()))
}

/// Latency of a line from each node's CPUs (row) in each node's memory (column), in ns.
fn latencies(
    reader: Reader<'_>,
    value: &Spanned<Value>,
    nodes: usize,
    routes: &Routes,
) -> Result<Vec<Vec<f64>>, Error> {
    let allowed = MIN_LATENCY_NS..=MILLION;
    let invalid = |what| reader.error(value.span(), &format!("latency_ns: {what}"));
    let expected = format!("a number from {MIN_LATENCY_NS} to {MILLION} ns");
    let latency = |_, value: &Value| number_in(value).filter(|ns| allowed.contains(ns));
    let check = |values: &[Value]| numbers(values, nodes, &expected, latency);
    if routes.links().is_empty() {
        let rows = list(value.get_ref()).and_then(|rows| matrix(rows, nodes));
        let rows = rows.and_then(|rows| rows.into_iter().map(check).collect::<Result<Vec<_>, _>>());
        return rows.map_err(invalid);
    }
    let own_ns = list(value.get_ref()).and_then(check).map_err(invalid)?;
    Ok((0..nodes)
        .map(|i| (0..nodes).map(|j| own_ns[j] + routes.latency_ns(i, j)).collect())
        .collect())
}

fn distances(reader: Reader<'_>, value: &Spanned<Value>, nodes: usize) -> Result<Distances, Error> {
    let invalid = |what| reader.error(value.span(), &format!("distance: {what}"));
    let rows = list(value.get_ref()).and_then(|rows| matrix(rows, nodes)).map_err(invalid)?;
    let mut distances = Vec::new();
    for (i, row) in rows.into_iter().enumerate() {
        let distance = |j, value: &Value| {
            let allowed = if i == j { 10..=10 } else { 11..=254 };
            value
                .as_integer()
                .filter(|number| allowed.contains(number))
                .map(|number| number as Distance)
        };
        distances.extend(
            numbers(row, nodes, "10 to itself, 11 to 254 elsewhere,", distance).map_err(invalid)?,
        );
    }
    let ids: Vec<_> = (0..nodes as u32).map(NodeId).collect();
    Distances::new(&ids, &distances).map_err(|error| invalid(error.to_string()))
}

fn list(value: &Value) -> Result<&[Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("a list is expected, not {value}"))
}

/// The rows of a matrix, one for each node.
fn matrix(rows: &[Value], nodes: usize) -> Result<Vec<&[Value]>, String> {
    let rows = rows.iter().map(list).collect::<Result<Vec<_>, _>>()?;
    match rows.len() == nodes {
        true => Ok(rows),
        false => Err(format!("{nodes} rows are expected, one for each node, not {}", rows.len())),
    }
}

/// One number for each node, as `good` reads it from a value.
fn numbers<T>(
    values: &[Value],
    nodes: usize,
    expected: &str,
    good: impl Fn(usize, &Value) -> Option<T>,
) -> Result<Vec<T>, String> {
    if values.len() != nodes {
        return Err(format!(
            "{nodes} numbers are expected, one for each node, not {}",
            values.len()
        ));
    }
    let number = |(node, value)| {
        good(node, value)
            .ok_or_else(|| format!("for node {node}, {expected} is expected, not {value}"))
    };
    values.iter().enumerate().map(number).collect()
}

#[cfg(test)]
mod tests;
