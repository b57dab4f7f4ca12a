//! `nearside why`: the reasons for a domain's home.

use crate::{
    client,
    commands::replicate::wide::{self, Wide},
    domains,
    failure::{Failure, Outcome},
    output::{self, Format},
    report::{
        json,
        why::{self, Controlled, Unplaced},
    },
};
use nearside_linux::store::Record;
use nearside_policy::Decision;
use nearside_replicas::original::Place;
use std::collections::{BTreeMap, BTreeSet};

/// Explain why a domain has its home
///
/// Shows the decision that was recorded when the domain started, the homes it rejected, and the
/// changes since. If the daemon runs, it also shows the domain's status, the steps of the last
/// interval, and the reasons to wait.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside why db
  nearside why db --format json")]
pub(crate) struct Args {
    /// Name of a domain, or path of a cgroup (/system.slice/cron.service)
    #[arg(value_parser = domains::argument())]
    domain: String,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    daemon: client::Args,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let ask = |name: &str| {
        args.daemon.control(name).unwrap_or_else(|notice| {
            output::note([notice]);
            None
        })
    };
    tell(
        &args.domain,
        true,
        |record, decision, shared| {
            let told =
                Controlled { told: json::Why::new(record, decision), control: ask(&record.name) };
            args.format.print(&told, |told| {
                why::text(record, decision, shared) + &why::control_text(&told.control)
            })
        },
        |unplaced, shared| {
            let told = Controlled { told: unplaced, control: ask(&unplaced.name) };
            args.format.print(&told, |told| {
                why::unplaced_text(told.told, shared) + &why::control_text(&told.control)
            })
        },
    )?
}

/// The text of `nearside why` without the domain's wide processes; a daemon that does not answer is
/// one of its lines.
pub(crate) fn text(domain: &str, daemon: &client::Args) -> Result<String, Failure> {
    let control = |name: &str| match daemon.control(name) {
        Ok(control) => why::control_text(&control),
        Err(notice) => format!("\n{notice}\n"),
    };
    tell(
        domain,
        false,
        |record, decision, shared| why::text(record, decision, shared) + &control(&record.name),
        |unplaced, shared| why::unplaced_text(unplaced, shared) + &control(&unplaced.name),
    )
}

/// Finds the domain or cgroup. Only a domain that Nearside started has a recorded decision. The
/// last argument of both tells of its wide processes, for which the replicator looks at all of the
/// host's.
fn tell<T>(
    domain: &str,
    with_processes: bool,
    placed: impl FnOnce(&Record, &Decision, &BTreeMap<Place, Wide>) -> T,
    unplaced: impl FnOnce(&Unplaced, &BTreeMap<Place, Wide>) -> T,
) -> Result<T, Failure> {
    let host = domains::open_host()?;
    let (group, record) = domains::find(&host, domain)?;
    let processes: BTreeSet<i32> = group.all_processes().into_iter().collect();
    let is_its = |process| i32::try_from(process).is_ok_and(|it| processes.contains(&it));
    let topology = with_processes.then(|| host.topology().ok()).flatten();
    let shared = topology.map(|topology| wide::on_host(&topology, is_its)).unwrap_or_default();
    if let Some(record) = &record
        && let Some(decision) = &record.part().decision
    {
        return Ok(placed(record, decision, &shared));
    }
    Ok(unplaced(&Unplaced::read(host.tree(), &host.proc(), &group, record.as_ref()), &shared))
}
