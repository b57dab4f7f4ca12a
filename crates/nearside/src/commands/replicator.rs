//! `nearside replicator`: the helper that keeps copies of program text.

use crate::{
    domains::open_host,
    failure::{Failure, Outcome},
    output,
    size::parse_size,
};
use nearside_linux::Paths;
use nearside_replicas::{Options, Replicator, exchanger};
use rustix::process::geteuid;
use std::{fs, path::PathBuf};

/// Keep copies of program text on the nodes that execute it
///
/// This is the helper of `nearside replicate`, with the privileges that the daemon does not have:
/// CAP_SYS_ADMIN for mounts, CAP_LEASE for leases on files. systemd starts it as
/// nearside-replicator.service. When it ends, all copies go, and programs use the original files
/// again. One whose file was replaced meanwhile runs from the former text to its end. After a
/// crash, programs keep the copies they have, also of files that are written from then on, until
/// it runs again: the service starts it after two seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo nearside replicator
  sudo nearside replicator --budget 256M

Exit codes:
  0  stopped by a signal
  1  could not start: not root, or a privilege is missing
  2  invalid command line")]
pub(crate) struct Args {
    /// The most memory for copies on each node [default: a twentieth of the node's memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_budget)]
    budget: Option<u64>,

    /// Its folder, with the socket of `nearside replicate`. A host has one replicator
    #[arg(long, value_name = "PATH", default_value = "/run/nearside-replicas")]
    folder: PathBuf,
}

/// Exchange what other processes map (for `nearside replicator`)
#[derive(Debug, clap::Args)]
#[command(name = exchanger::COMMAND, hide = true)]
pub(crate) struct ExchangeArgs {}

pub(crate) fn exchange() -> Outcome {
    exchanger::serve().map_err(Failure::could_not)
}

/// A tmpfs of no bytes would have no limit.
fn parse_budget(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => {
            Err("expected at least one byte: without copies there is no need of a replicator"
                .into())
        }
        bytes => Ok(bytes),
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    if !geteuid().is_root() {
        let why = "the replicator changes mount namespaces: it needs root";
        return Err(Failure::could_not(why));
    }
    stay_when_memory_is_short();
    let topology = open_host()?.topology().map_err(Failure::could_not)?;
    let options = Options {
        folder: args.folder.clone(),
        topology,
        budget_bytes: args.budget,
        host: Some(Paths::default()),
    };
    let replicator = Replicator::open(options).map_err(Failure::could_not)?;
    let socket = args.folder.join("socket");
    let ready = || {
        output::note([format!("the replicator answers at {}", socket.display())]);
        // Without systemd nobody waits for it.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    };
    replicator.run(ready).map_err(Failure::could_not)
}

/// Has the kernel kill almost any other process first. Copies of a replicator that has been killed
/// have no lease. Its unit sets the same (`OOMScoreAdjust=`).
fn stay_when_memory_is_short() {
    const SCORE: i32 = -900;
    let path = "/proc/self/oom_score_adj";
    let now = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now > SCORE)
        && let Err(error) = fs::write(path, SCORE.to_string())
    {
        output::note([format!("the kernel may kill it when memory is short: {path}: {error}")]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_size_of_one_byte_at_least() {
        assert_eq!(parse_budget("256M"), Ok(256 << 20));
        assert!(parse_budget("0").unwrap_err().starts_with("expected at least one byte"));
        assert!(parse_budget("banana").is_err());
    }
}
