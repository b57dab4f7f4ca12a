//! Attaches the credit scheduler and obeys commands, one a line, until its input ends:
//!
//! - `domain CGROUP NODES HOME`: the cgroup (a path) prefers these nodes
//! - `forget CGROUP`
//! - `thread NUMBER NODES HOME`: the thread prefers these nodes to those of its domain
//! - `thread NUMBER`: .. and no longer
//! - `statistics`: one line of JSON
//! - `exited`: how the scheduler ended, or `no`
//! - `detach`: gives the host back, and ends
//!
//! It answers every line with one line; the first one it prints is `attached`, or `error: ...`
//! before it exits with 1.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use clap::Parser;
use nearside_scheduler::{Affinity, Options, Scheduler, Thread};
use nearside_topology::NodeId;
use std::{fs, io, os::unix::fs::MetadataExt, process::ExitCode, time::Duration};

/// Attach the scheduler.
#[derive(Debug, Parser)]
struct Args {
    /// Stop dispatching after so long.
    #[arg(long)]
    stall_after_ms: Option<u64>,
    #[arg(long)]
    watchdog_ms: Option<u64>,
}

fn affinity(nodes: &str, home: &str) -> Result<Affinity, String> {
    let nodes = nodes.parse().map_err(|error| format!("{nodes}: {error}"))?;
    let home = NodeId(home.parse().map_err(|error| format!("{home}: {error}"))?);
    Ok(Affinity { nodes, home })
}

fn thread(number: &str) -> Result<Thread, String> {
    let open = || Thread::open(number.parse().ok()?).ok();
    open().ok_or_else(|| format!("no thread {number}"))
}

fn answer(scheduler: &mut Scheduler, line: &str) -> Result<String, String> {
    let cgroup = |path: &str| {
        fs::metadata(path).map(|data| data.ino()).map_err(|error| format!("{path}: {error}"))
    };
    let done = |result: Result<(), nearside_scheduler::Error>| {
        result.map(|()| "ok".to_owned()).map_err(|e| e.to_string())
    };
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["domain", path, nodes, home] => {
            let affinity = affinity(nodes, home)?;
            done(scheduler.set_domain(cgroup(path)?, &affinity))
        }
        ["thread", number, nodes, home] => {
            let affinity = affinity(nodes, home)?;
            done(scheduler.set_thread(&thread(number)?, &affinity))
        }
        ["thread", number] => done(scheduler.unset_thread(&thread(number)?)),
        ["forget", path] => done(scheduler.remove_domain(cgroup(path)?)),
        ["statistics"] => {
            let statistics = scheduler.statistics().map_err(|error| error.to_string())?;
            let counters: serde_json::Map<_, _> = statistics
                .counters
                .named()
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect();
            let domains: serde_json::Map<_, _> = statistics
                .domains
                .iter()
                .map(|(cgroup, usage)| {
                    let by_node = usage
                        .by_node
                        .iter()
                        .map(|(node, time)| (node.to_string(), (time.as_micros() as u64).into()));
                    (cgroup.to_string(), by_node.collect::<serde_json::Map<_, _>>().into())
                })
                .collect();
            Ok(serde_json::json!({ "counters": counters, "domains": domains }).to_string())
        }
        ["exited"] => Ok(scheduler.exited().map_or("no".to_owned(), |exit| format!("{exit:?}"))),
        _ => Err(format!("what is {line:?}?")),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = Options {
        stall_after: args.stall_after_ms.map(Duration::from_millis),
        watchdog: args.watchdog_ms.map(Duration::from_millis),
        ..Options::default()
    };
    let mut scheduler = match Scheduler::attach(&options) {
        Ok(scheduler) => scheduler,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("attached");
    for line in io::stdin().lines().map_while(Result::ok) {
        if line == "detach" {
            match scheduler.detach() {
                Ok(exit) => println!("{exit:?}"),
                Err(error) => println!("error: {error}"),
            }
            return ExitCode::SUCCESS;
        }
        println!(
            "{}",
            answer(&mut scheduler, &line).unwrap_or_else(|error| format!("error: {error}"))
        );
    }
    ExitCode::SUCCESS
}
