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

/// The text of `nearside why`; a daemon that does not answer is one of its lines.
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

/// Finds the domain or cgroup. Only a domain that Nearside started has a recorded decision.
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
