//! `nearside why`: the reasons for a domain's home.

use crate::{
    client, domains,
    failure::{Failure, Outcome},
    output::Format,
    report::{
        json,
        show::Allowed,
        why::{self, Controlled, Unplaced},
    },
};
use nearside_linux::{store::Record, usage};
use nearside_policy::{Decision, total};

/// Explain why a domain lives where it does
///
/// Shows the decision as it was recorded when the domain was started, with the homes that were not taken, and what has
/// changed since. Where the daemon runs it also says how the domain stands, and what is done about it or why nothing is.
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

    #[command(flatten)]
    daemon: client::Args,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let ask = |name: &str| args.daemon.control(name);
    tell(
        &args.domain,
        |record, decision| {
            let told = Controlled { told: json::Why::new(record, decision), control: ask(&record.name) };
            args.format.print(&told, |told| why::text(record, decision) + &why::control_text(&told.control))
        },
        |unplaced| {
            let told = Controlled { told: unplaced, control: ask(&unplaced.name) };
            args.format.print(&told, |told| why::unplaced_text(told.told) + &why::control_text(&told.control))
        },
    )?
}

/// What this prints as text, but for what a daemon would say.
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
