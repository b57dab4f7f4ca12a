//! `nearside why`: the reasons for a domain's home.

use crate::{
    domains,
    failure::Outcome,
    output::Format,
    report::{
        json,
        show::Allowed,
        why::{self, Unplaced},
    },
};
use nearside_linux::usage;
use nearside_policy::total;

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
    let host = domains::open_host()?;
    let (group, record) = domains::find(&host, &args.domain)?;
    if let Some(record) = &record
        && let Some(decision) = &record.decision
    {
        return args.format.print(&json::Why::new(record, decision), |_| why::text(record, decision));
    }
    let policies = usage::mapped(&group, &host.proc()).policies;
    let unplaced = Unplaced {
        name: group.path().into(),
        cgroup: group.path().into(),
        home: record.as_ref().map(|record| record.home.clone()),
        found_by: record.and_then(|record| record.found_by),
        allowed: Allowed::read(host.tree(), &group),
        policies: policies.into_iter().map(|(policy, bytes)| (policy, total(&bytes))).collect(),
    };
    args.format.print(&unplaced, why::unplaced_text)
}
