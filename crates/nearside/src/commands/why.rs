//! `nearside why`: the reasons for a domain's home.

use crate::{
    client, domains,
    failure::{Failure, Outcome},
    output::{self, Format},
    report::{
        json,
        why::{self, Controlled, Unplaced},
    },
};
use nearside_linux::store::Record;
use nearside_policy::Decision;

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
    let ask = |name: &str| {
        args.daemon.control(name).unwrap_or_else(|notice| {
            output::note([notice]);
            None
        })
    };
    tell(
        &args.domain,
        |record, decision| {
            let told =
                Controlled { told: json::Why::new(record, decision), control: ask(&record.name) };
            args.format.print(&told, |told| {
                why::text(record, decision) + &why::control_text(&told.control)
            })
        },
        |unplaced| {
            let told = Controlled { told: unplaced, control: ask(&unplaced.name) };
            args.format.print(&told, |told| {
                why::unplaced_text(told.told) + &why::control_text(&told.control)
            })
        },
    )?
}

/// What this prints as text; what it would say of a daemon that does not answer is a part of it.
pub(crate) fn text(domain: &str, daemon: &client::Args) -> Result<String, Failure> {
    let control = |name: &str| match daemon.control(name) {
        Ok(control) => why::control_text(&control),
        Err(notice) => format!("\n{notice}\n"),
    };
    tell(
        domain,
        |record, decision| why::text(record, decision) + &control(&record.name),
        |unplaced| why::unplaced_text(unplaced) + &control(&unplaced.name),
    )
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
        && let Some(decision) = &record.part().decision
    {
        return Ok(placed(record, decision));
    }
    Ok(unplaced(&Unplaced::read(host.tree(), &host.proc(), &group, record.as_ref())))
}
