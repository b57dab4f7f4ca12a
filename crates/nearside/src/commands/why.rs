//! `nearside why`: the reasons for a domain's home.

use crate::{
    domains,
    failure::{Failure, Outcome},
    output::Format,
    report::{
        json,
        show::Allowed,
        why::{self, Unplaced},
    },
};
use nearside_linux::{store::Record, usage};
use nearside_policy::{Decision, total};

/// Explain why a domain lives where it does
///
/// Shows the decision as it was recorded when the domain was started, with the homes that were not taken, and what has
/// changed since.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside why db
  nearside why db --format json")]
pub(crate) struct Args {
    /// Its name, or the path of a cgroup (/system.slice/cron.service)
    domain: String,

    /// How to show it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Outcome {
    tell(
        &args.domain,
        |record, decision| args.format.print(&json::Why::new(record, decision), |_| why::text(record, decision)),
        |unplaced| args.format.print(unplaced, why::unplaced_text),
    )?
}

/// What this prints as text.
pub(crate) fn text(domain: &str) -> Result<String, Failure> {
    tell(domain, why::text, why::unplaced_text)
}

/// Finds the domain or cgroup, and lets tell of it who can: there is a decision only where Nearside started it.
fn tell<T>(
    domain: &str,
    placed: impl FnOnce(&Record, &Decision) -> T,
    unplaced: impl FnOnce(&Unplaced) -> T,
) -> Result<T, Failure> {
    let host = domains::open_host()?;
    let (group, record) = domains::find(&host, domain)?;
    if let Some(record) = &record
        && let Some(decision) = &record.decision
    {
        return Ok(placed(record, decision));
    }
    let policies = usage::mapped(&group, &host.proc()).policies;
    Ok(unplaced(&Unplaced {
        name: group.path().into(),
        cgroup: group.path().into(),
        home: record.as_ref().map(|record| record.home.clone()),
        found_by: record.and_then(|record| record.found_by),
        allowed: Allowed::read(host.tree(), &group),
        policies: policies.into_iter().map(|(policy, bytes)| (policy, total(&bytes))).collect(),
    }))
}
