//! Scenarios: domains and their work, as TOML. docs/formats.md lists the keys.

use nearside_policy::is_domain_name;
use nearside_topology::toml_file::{self, Error, Reader};
use serde::Deserialize;
use std::{collections::BTreeSet, ops::RangeInclusive, path::Path};
use toml::{Spanned, Value};

/// A tick with so many threads takes about 100 us.
const MAX_THREADS: u64 = 1024;
/// A round of the control loop costs about ten ticks.
const MIN_INTERVAL_MS: u64 = 10;
/// A sleeping thread is scheduled again after each pause: at most 100 times a tick.
const MIN_PAUSE_US: u64 = 10;
/// In simulated time.
const MAX_MS: u64 = 3_600_000;
const MAX_ROUNDS: u64 = 1_000_000_000;
/// 146 years: sums of times stay far below the range of their type.
const MAX_WORK_NS: u128 = 1 << 62;
/// More than any machine has: sums stay far below the range of their type.
const MAX_MIB: u64 = 1 << 30;

/// Domains and their work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// The file, as named by the user.
    pub source: String,
    /// Its purpose.
    pub description: String,
    /// The interval of the control loop.
    pub interval_ms: u64,
    /// The domains; at equal times they start in this order.
    pub domains: Vec<DomainPlan>,
}

/// A domain of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainPlan {
    /// Its unique name.
    pub name: String,
    /// The start, in simulated time.
    pub start_ms: u64,
    /// Threads at the start.
    pub threads: u64,
    /// Threads that start later.
    pub later_threads: u64,
    /// Rounds of the first thread after which they start.
    pub later_after_rounds: u64,
    /// Rounds of each of them.
    pub later_rounds: u64,
    /// Memory of each thread, which no other thread uses.
    pub thread_memory_bytes: u64,
    /// The work of each thread.
    pub work: Work,
}

/// The work of a thread: rounds of computation and of waits for lines of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Rounds of each thread that exists from the start.
    pub rounds: u64,
    /// Computation of a round.
    pub compute_ns: u64,
    /// Lines of a round that are fetched one after the other.
    pub lines: u64,
    /// Consecutive lines of a round, which the CPU prefetches.
    pub streamed_lines: u64,
    /// The length of a pause.
    pub pause_ns: u64,
    /// Rounds between two pauses.
    pub pause_rounds: u64,
}

impl Work {
    /// A prefetched line takes a quarter of the latency, as on most of the lab's machines
    /// (`cache.prefetch`).
    const STREAM_DEPTH: f64 = 4.0;

    /// Waiting time of a round, in latencies.
    pub(crate) fn latencies(&self) -> f64 {
        self.lines as f64 + self.streamed_lines as f64 / Self::STREAM_DEPTH
    }

    /// Lines that a round fetches.
    pub(crate) fn all_lines(&self) -> f64 {
        (self.lines + self.streamed_lines) as f64
    }

    /// CPU time of a round, for lines of the given latency.
    pub(crate) fn round_ns(&self, line_ns: f64) -> f64 {
        self.compute_ns as f64 + self.latencies() * line_ns
    }

    /// The number of rounds at the next pause or at the end, for a thread that has done `rounds` of
    /// `all`.
    pub(crate) fn next_stop(&self, rounds: f64, all: f64) -> f64 {
        if self.pause_ns == 0 {
            return all;
        }
        let every = self.pause_rounds as f64;
        (((rounds / every).floor() + 1.0) * every).min(all)
    }
}

impl DomainPlan {
    /// Its threads, including those that start later.
    pub fn all_threads(&self) -> u64 {
        self.threads + self.later_threads
    }

    /// Memory of all its threads.
    pub fn memory_bytes(&self) -> u64 {
        self.all_threads() * self.thread_memory_bytes
    }

    /// The sum of its threads' times, if no line takes longer than 1 us.
    fn max_ns(&self) -> u128 {
        let Work { rounds, compute_ns, lines, streamed_lines, pause_ns, pause_rounds } = self.work;
        let [threads, later_threads, later_rounds] =
            [self.threads, self.later_threads, self.later_rounds].map(u128::from);
        let rounds = threads * u128::from(rounds) + later_threads * later_rounds;
        let round_ns = compute_ns + 1000 * (lines + streamed_lines);
        rounds * u128::from(round_ns) + rounds.div_ceil(pause_rounds.into()) * u128::from(pause_ns)
    }
}

/// The content of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    description: String,
    interval_ms: Option<Spanned<Value>>,
    #[serde(default)]
    domain: Vec<Spanned<WrittenDomain>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[domain]]")]
struct WrittenDomain {
    name: Spanned<String>,
    count: Option<Spanned<Value>>,
    start_ms: Option<Spanned<Value>>,
    threads: Spanned<Value>,
    later_threads: Option<Spanned<Value>>,
    later_after_rounds: Option<Spanned<Value>>,
    later_rounds: Option<Spanned<Value>>,
    thread_memory_mib: Spanned<Value>,
    rounds: Spanned<Value>,
    compute_us: Spanned<Value>,
    lines: Spanned<Value>,
    streamed_lines: Option<Spanned<Value>>,
    pause_us: Option<Spanned<Value>>,
    pause_rounds: Option<Spanned<Value>>,
}

/// Reads the scenario at `path`.
///
/// # Errors
///
/// The file cannot be read, or is no scenario.
pub fn read(path: &Path) -> Result<Scenario, Error> {
    parse(&path.display().to_string(), &toml_file::read(path, "scenario")?)
}

/// The scenario that `text` describes; `file` is its name, for messages.
///
/// # Errors
///
/// An [`Error::Invalid`] for the first invalid value.
pub fn parse(file: &str, text: &str) -> Result<Scenario, Error> {
    let reader = Reader::new(file, text);
    let written: Written = reader.written()?;
    let interval_ms = whole_or(
        reader,
        2000,
        "interval_ms",
        written.interval_ms.as_ref(),
        MIN_INTERVAL_MS..=60_000,
        "ms",
    )?;
    if written.domain.is_empty() {
        return Err(reader.error(0..0, "domain: at least one table [[domain]] is expected"));
    }
    let (mut domains, mut names, mut threads, mut work_ns) = (Vec::new(), BTreeSet::new(), 0, 0);
    for domain in &written.domain {
        let plan = plan_of(reader, domain.get_ref())?;
        let count = whole_or(
            reader,
            1,
            "domain.count",
            domain.get_ref().count.as_ref(),
            1..=MAX_THREADS,
            "domains",
        )?;
        threads += count * plan.all_threads();
        if threads > MAX_THREADS {
            let what = format!(
                "domain: at most {MAX_THREADS} threads in all are expected, not {threads} or more"
            );
            return Err(reader.error(domain.span(), &what));
        }
        work_ns += u128::from(count) * plan.max_ns();
        if work_ns > MAX_WORK_NS {
            let years = MAX_WORK_NS / (365 * 86_400 * 1_000_000_000);
            let what = format!(
                "domain.rounds: at most {years} years in all, of all threads' computing, lines \
                 of 1 us \
                 and pauses, are expected, not {} rounds more",
                plan.work.rounds
            );
            return Err(reader.error(domain.get_ref().rounds.span(), &what));
        }
        for number in 0..count {
            let name =
                if count == 1 { plan.name.clone() } else { format!("{}-{number}", plan.name) };
            if !is_domain_name(&name) {
                let what = "domain.name: 1 to 64 letters, digits, '.', '_' and '-' are expected \
                (a number \
                            may follow)";
                return Err(
                    reader.error(domain.get_ref().name.span(), &format!("{what}, not {name:?}"))
                );
            }
            if !names.insert(name.clone()) {
                let what = format!(
                    "domain.name: a name that no other domain has is expected, not {name} again"
                );
                return Err(reader.error(domain.get_ref().name.span(), &what));
            }
            domains.push(DomainPlan { name, ..plan.clone() });
        }
    }
    let description = written.description.replace(char::is_control, " ");
    Ok(Scenario { source: file.to_owned(), description, interval_ms, domains })
}

fn whole_or(
    reader: Reader<'_>,
    default: u64,
    key: &str,
    value: Option<&Spanned<Value>>,
    allowed: RangeInclusive<u64>,
    unit: &str,
) -> Result<u64, Error> {
    value.map_or(Ok(default), |value| reader.whole(key, value, allowed, unit))
}

fn plan_of(reader: Reader<'_>, written: &WrittenDomain) -> Result<DomainPlan, Error> {
    let work = work(reader, written)?;
    let threads = reader.whole("domain.threads", &written.threads, 1..=MAX_THREADS, "threads")?;
    let later = written.later_threads.as_ref();
    let after = written.later_after_rounds.as_ref();
    if let (Some(alone), None) | (None, Some(alone)) = (later, after) {
        let what =
            "domain: later_threads and later_after_rounds are expected together, not one alone";
        return Err(reader.error(alone.span(), what));
    }
    let later_rounds = written.later_rounds.as_ref();
    if let (None, Some(alone)) = (later, later_rounds) {
        let what = "domain: later_rounds is expected only beside later_threads";
        return Err(reader.error(alone.span(), what));
    }
    let mib =
        reader.whole("domain.thread_memory_mib", &written.thread_memory_mib, 1..=MAX_MIB, "MiB")?;
    Ok(DomainPlan {
        name: written.name.get_ref().clone(),
        start_ms: whole_or(
            reader,
            0,
            "domain.start_ms",
            written.start_ms.as_ref(),
            0..=MAX_MS,
            "ms",
        )?,
        threads,
        later_threads: whole_or(
            reader,
            0,
            "domain.later_threads",
            later,
            1..=MAX_THREADS,
            "threads",
        )?,
        later_rounds: whole_or(
            reader,
            work.rounds,
            "domain.later_rounds",
            later_rounds,
            1..=MAX_ROUNDS,
            "rounds",
        )?,
        later_after_rounds: whole_or(
            reader,
            0,
            "domain.later_after_rounds",
            after,
            1..=work.rounds,
            "rounds",
        )?,
        thread_memory_bytes: mib << 20,
        work,
    })
}

fn work(reader: Reader<'_>, written: &WrittenDomain) -> Result<Work, Error> {
    const MILLION: u64 = 1_000_000;
    let pause = (written.pause_us.as_ref(), written.pause_rounds.as_ref());
    if let (Some(alone), None) | (None, Some(alone)) = pause {
        let what = "domain: pause_us and pause_rounds are expected together, not one alone";
        return Err(reader.error(alone.span(), what));
    }
    let streamed = written.streamed_lines.as_ref();
    let work = Work {
        rounds: reader.whole("domain.rounds", &written.rounds, 1..=MAX_ROUNDS, "rounds")?,
        compute_ns: 1000
            * reader.whole("domain.compute_us", &written.compute_us, 0..=60 * MILLION, "us")?,
        lines: reader.whole("domain.lines", &written.lines, 0..=1000 * MILLION, "lines")?,
        streamed_lines: whole_or(
            reader,
            0,
            "domain.streamed_lines",
            streamed,
            0..=1000 * MILLION,
            "lines",
        )?,
        pause_ns: 1000
            * whole_or(reader, 0, "domain.pause_us", pause.0, MIN_PAUSE_US..=60 * MILLION, "us")?,
        pause_rounds: whole_or(
            reader,
            1,
            "domain.pause_rounds",
            pause.1,
            1..=MAX_ROUNDS,
            "rounds",
        )?,
    };
    if work.compute_ns == 0 && work.all_lines() == 0.0 {
        let what = "domain: a round that takes time is expected, not compute_us, lines and \
                    streamed_lines of 0";
        return Err(reader.error(written.compute_us.span(), what));
    }
    Ok(work)
}

#[cfg(test)]
mod tests;
