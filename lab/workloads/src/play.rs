//! Plays a workload: all domains get ready, begin together, and are timed until each is done.

use crate::{
    outcome::Outcome,
    stage::{Contender, Stage, Started},
    workload::{Domain, Which},
};
use clap::Args;
use nearside_workloads::clock;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, thread, time::Duration};

/// The workload, and the contender that places its domains.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    contender: Contender,
}

const NS_PER_MS: u64 = 1_000_000;

/// The kernel's counters of pages that moved.
fn moved_pages() -> Outcome<BTreeMap<String, u64>> {
    let names = ["numa_hint_faults", "numa_pages_migrated", "pgmigrate_success"];
    let stat = fs::read_to_string("/proc/vmstat")?;
    let counted = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.contains(name));
    counted.map(|(name, count)| Ok((name.to_owned(), count.parse()?))).collect()
}

/// Starts those that come later, each at its time, and has them begin at once.
fn start_late(
    stage: &Stage<'_>,
    domains: &[Domain],
    started: &mut BTreeMap<usize, Started>,
    begin_ns: u64,
) -> Outcome<()> {
    let mut late: Vec<_> =
        domains.iter().enumerate().filter(|(_, domain)| domain.delay_ms > 0).collect();
    late.sort_by_key(|(_, domain)| domain.delay_ms);
    for (number, domain) in late {
        let due_ns = begin_ns + domain.delay_ms * NS_PER_MS;
        thread::sleep(Duration::from_nanos(due_ns.saturating_sub(clock::now_ns())));
        let mut one = stage.start(number, domain)?;
        one.go()?;
        started.insert(number, one);
    }
    Ok(())
}

/// The times that so many of all requests do not exceed; none without requests.
fn percentiles_us(mut took_ns: Vec<u64>) -> Option<BTreeMap<&'static str, f64>> {
    took_ns.sort_unstable();
    let last = took_ns.len().checked_sub(1)?;
    // In thousandths, so that the rank is exact.
    let at =
        |part: usize| took_ns[(took_ns.len() * part).div_ceil(1000).saturating_sub(1).min(last)];
    let named = [("p50", 500), ("p99", 990), ("p99.9", 999)];
    Some(named.map(|(name, part)| (name, at(part) as f64 / 1e3)).into())
}

pub(crate) fn play(options: &Options) -> Outcome<Value> {
    let domains = options.which.domains()?;
    let mut stage = Stage::new(&options.contender)?;
    let mut started = BTreeMap::new();
    for (number, domain) in domains.iter().enumerate() {
        stage.make_place(number, domain)?;
        if domain.delay_ms == 0 {
            let mut one = stage.start(number, domain)?;
            if stage.starts_one_by_one() {
                one.wait_until_ready()?;
            }
            started.insert(number, one);
        }
    }
    if !stage.starts_one_by_one() {
        started.values_mut().try_for_each(Started::wait_until_ready)?;
    }
    stage.settle()?;

    let moved_before = moved_pages()?;
    clock::mark::<1>();
    let begin_ns = clock::now_ns();
    started.values_mut().try_for_each(Started::go)?;
    start_late(&stage, &domains, &mut started, begin_ns)?;
    let (mut ends, mut took_ns) = (vec![], vec![]);
    for (number, domain) in domains.iter().enumerate() {
        let one = started.get_mut(&number).ok_or("a domain that was not started")?;
        if domain.delay_ms > 0 {
            one.wait_until_ready()?;
        }
        let (end_ns, requests_ns) = one.wait_until_done()?;
        ends.push(end_ns);
        took_ns.extend(requests_ns);
    }
    clock::mark::<2>();

    let moved: BTreeMap<_, _> = moved_pages()?
        .into_iter()
        .map(|(name, count)| (name.clone(), count - moved_before.get(&name).unwrap_or(&0)))
        .collect();
    let (scheduler, homes, copies) = (Stage::scheduler(), stage.homes()?, stage.copies()?);
    let ms = |ns: u64| ns as f64 / NS_PER_MS as f64;
    let mut results = vec![];
    for ((domain, end_ns), one) in domains.iter().zip(&ends).zip(started.values()) {
        let time_ms = ms(end_ns - begin_ns) - domain.delay_ms as f64;
        results.push(json!({
            "delay_ms": domain.delay_ms,
            "time_ms": time_ms,
            "memory_bytes": one.memory_bytes()?,
        }));
    }
    started.into_values().try_for_each(Started::end)?;
    Ok(json!({
        "workload": options.which.workload,
        "total_ms": ms(ends.iter().max().map_or(0, |end_ns| end_ns - begin_ns)),
        "domains": results,
        "latency_us": percentiles_us(took_ns),
        "moved_pages": moved,
        "scheduler": scheduler,
        "homes": homes,
        "copies": copies,
        "daemon": stage.end()?,
    }))
}

#[cfg(test)]
mod tests {
    use super::percentiles_us;

    #[test]
    fn percentiles_are_times_of_requests() {
        let of = percentiles_us((1..=2_000).rev().map(|us| us * 1_000).collect()).unwrap();
        assert_eq!(of, [("p50", 1_000.0), ("p99", 1_980.0), ("p99.9", 1_998.0)].into());
        let one = percentiles_us(vec![5_000]).unwrap();
        assert_eq!(one, [("p50", 5.0), ("p99", 5.0), ("p99.9", 5.0)].into());
        assert_eq!(percentiles_us(vec![]), None);
    }
}
