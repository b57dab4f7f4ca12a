//! `nearside show`: all facts about one domain.

use crate::{
    client, domains,
    failure::{Failure, Outcome},
    interval,
    output::{self, Format},
    report::{
        self,
        show::{self, Allowed, OnTier, Show},
    },
};
use nearside_linux::{store::Record, usage};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Show all facts about one domain or cgroup
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside show db
  nearside show /system.slice/cron.service --interval 5")]
pub(crate) struct Args {
    /// Name of a domain, or path of a cgroup (/system.slice/cron.service)
    #[arg(value_parser = domains::argument())]
    domain: String,

    /// Time over which CPU use is sampled
    #[arg(long, value_name = "SECONDS", default_value = "0.5")]
    #[arg(value_parser = interval::parse, allow_hyphen_values = true)]
    interval: Duration,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    daemon: client::Args,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let host = domains::open_host()?;
    let found = domains::find(&host, &args.domain)?;
    let topology = host.topology().map_err(Failure::could_not)?;
    let mut sampled =
        domains::sample(&host, std::slice::from_ref(&found), &topology, args.interval);
    args.daemon.tell_status(&mut sampled);
    output::note(domains::hidden(&sampled));
    let (group, record) = found;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let domain = sampled.into_iter().next().unwrap_or_default();
    let allowed = Allowed::read(host.tree(), &group);
    let bound = record.as_ref().and_then(Record::bound_memory_nodes);
    let bound = bound.or_else(|| allowed.confined_to(&topology));
    let kills = domain.usage.oom_kills.unwrap_or_default();
    let show = Show {
        memory_tiers: OnTier::all(&topology.memory_tiers, &domain.own_bytes),
        demotion_enabled: topology.memory_tiers.demotion_enabled,
        domain,
        killed: report::oom::killed(kills, bound.as_ref(), &topology),
        running_s: record.as_ref().and_then(|record| now_s.checked_sub(record.started_unix_s)),
        record,
        allowed,
        mapped: usage::mapped(&group, &host.proc()),
        guest: host.guest(&group, &topology).map(Into::into),
        interval_s: args.interval.as_secs_f64(),
    };
    args.format.print(&show, show::text)
}
