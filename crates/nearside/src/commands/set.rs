//! `nearside set`: another home for a domain that runs.

use crate::{
    client,
    domains::{argument, find, open_host},
    failure::{Failure, Outcome},
    lock::{WaitArgs, waiting},
    output::{self, Format},
    progress::Meter,
    rehome::{self, carry_out, give_back},
    report::{
        plan::{self, PlanJson},
        set::{self, Report},
        units::size,
    },
    request::{AffinityArg, parse_node_set},
    size::parse_size,
};
use nearside_linux::{Host, sys};
use nearside_policy::{
    Affinity, CellId, DEFAULT_RATE_BYTES_PER_S, PartId, Rehome, RehomeRefusal, StayedWhy,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Give a running domain another home, and move its memory there
///
/// The home, the claim and the CPUs change at once, or not at all. With --move-memory the pages
/// follow in batches, while the old and the new home are allowed. Ctrl-C stops the move after the
/// present batch; the same command resumes it.
///
/// If the daemon runs, it makes the change for root and for members of its admin group, and moves
/// the memory itself; with --move-memory, root makes the change here and now. Only the daemon
/// gives a home to cgroups that it found. It waits at most 5 s for the lock, whatever --wait says.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("home").required(true).args(["nodes", "auto"]))]
#[command(after_help = "\
Examples:
  nearside set db --nodes 1 --move-memory
  nearside set db --nodes 2-3 --move-memory --rate 200M
  nearside set db --nodes all --dry-run
  nearside set /machine.slice/vm.scope --nodes 0
  nearside set /machine.slice/vm.scope --cell 1 --nodes 3
  nearside set db --nodes 1 --affinity hard
  nearside set db --auto

Exit codes:
  0  done
  1  refused or failed
  2  the command line was not understood
  3  partly done: some memory did not move, or you interrupted it")]
pub(crate) struct Args {
    /// The domain, see `nearside list`
    #[arg(value_parser = argument())]
    domain: String,

    /// One cell of a virtual machine, whose cells have a home each
    #[arg(long, value_name = "N", requires = "nodes")]
    cell: Option<u32>,

    /// Its new home, such as 0-1 or all,^2
    #[arg(long, value_name = "SET", allow_hyphen_values = true)]
    nodes: Option<String>,

    /// Let placement choose its home from now on
    #[arg(long, conflicts_with_all = ["nodes", "affinity", "move_memory", "dry_run"])]
    auto: bool,

    /// Whether its vCPUs prefer the new home or never leave it [default: as before]
    #[arg(long, value_enum, requires = "nodes")]
    affinity: Option<AffinityArg>,

    /// Move the memory it has elsewhere to its new home
    #[arg(long)]
    move_memory: bool,

    /// With --move-memory: move at most this much a second: 500M, 2G or unlimited [default: 1G]
    #[arg(long, value_name = "BYTES/S", value_parser = parse_rate, requires = "move_memory")]
    #[arg(allow_hyphen_values = true)]
    rate: Option<Rate>,

    /// Print the steps, and take none
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    wait: WaitArgs,

    /// The format of the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    daemon: client::Args,
}

/// The highest rate of page moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    /// None without a limit.
    bytes_per_s: Option<u64>,
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    let bytes_per_s = match text {
        "unlimited" => None,
        _ => match parse_size(text.strip_suffix("/s").unwrap_or(text)) {
            Ok(rate) if rate > 0 => Some(rate),
            _ => return Err("expected bytes a second, as in 500M or 1.5G, or unlimited".into()),
        },
    };
    Ok(Rate { bytes_per_s })
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut host = open_host()?;
    host.set_waiting(waiting(args.wait.at_most()));
    let (group, record) = find(&host, &args.domain)?;
    let is_found = record.as_ref().is_none_or(|record| record.found_by.is_some());
    let domain = record.map_or_else(|| group.path().to_owned(), |record| record.name);
    let Some(nodes) = &args.nodes else {
        return give_home_back(&mut host, &domain, is_found, args);
    };
    let affinity = args.affinity.map(Affinity::from);
    let topology = host.topology().map_err(Failure::could_not)?;
    let rate = args.rate.unwrap_or(Rate { bytes_per_s: Some(DEFAULT_RATE_BYTES_PER_S) });
    let part = match args.cell {
        None => PartId::of(domain),
        Some(_) if !is_found => {
            return Err(Failure::usage(format_args!(
                "{domain} is one part: --cell is for virtual machines of libvirt"
            )));
        }
        Some(cell) => PartId::cell_of(domain, CellId(cell)),
    };
    let wish = Rehome {
        part,
        affinity,
        nodes: parse_node_set(nodes, &topology)?,
        move_memory: args.move_memory,
        rate_bytes_per_s: rate.bytes_per_s,
    };
    if is_found && (args.dry_run || args.rate.is_some()) {
        return Err(Failure::could_not(format_args!(
            "{} was not started by `nearside run`: the daemon gives it a home and moves its \
             memory, at the rate of its \
             configuration; --dry-run and --rate are for domains of `nearside run`",
            wish.part.domain()
        )));
    }
    if args.dry_run {
        let planned = rehome::plan(&mut host, &wish);
        output::note(host.take_notices());
        let mut plan = planned?;
        if !wish.move_memory && !plan::is_empty(&plan) {
            plan.limits.push(STAYS.into());
        }
        return args.format.print(&PlanJson::new(wish.part.domain(), &plan), |_| plan::text(&plan));
    }
    if (is_found || is_for_daemon(args))
        && let Some(changed) = args.daemon.set_home(&wish.part, &wish.nodes, affinity)
    {
        let mut report = changed?;
        report.notes.extend(affinity.map(told));
        if report.nodes_before != report.nodes {
            report.notes.push(
                "the daemon takes its memory along, as far as it can (`nearside why` tells)".into(),
            );
        }
        return args.format.print(&report, set::text);
    }
    if is_found {
        return Err(not_the_daemons(wish.part.domain()));
    }
    let break_off = break_off_on_signals().map_err(Failure::could_not)?;
    let mut meter = Meter::new();
    let watch = &mut |so_far| {
        meter.show(so_far);
        if break_off.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let changed = carry_out(&mut host, &wish, watch);
    meter.end();
    let mut report = changed.inspect_err(|_| output::note(host.take_notices()))?;
    report.notes.extend(affinity.map(told));
    if !wish.move_memory && report.nodes_before != report.nodes {
        report.notes.push(STAYS.into());
    }
    args.format.print(&report, set::text)?;
    left_over(&report, &args.domain, nodes)
}

/// The effect of an affinity.
fn told(affinity: Affinity) -> String {
    match affinity {
        Affinity::Soft => "its vCPUs prefer the home".into(),
        Affinity::Hard => "its vCPUs never leave the home".into(),
    }
}

/// `--auto`.
fn give_home_back(host: &mut Host, domain: &str, is_found: bool, args: &Args) -> Outcome {
    if let Some(changed) = args.daemon.give_back(domain) {
        return args.format.print(&changed?, set::text);
    }
    let Some(home) = give_back(host, domain)? else {
        let unknown = || Failure::could_not(RehomeRefusal::UnknownDomain(domain.to_owned()));
        return Err(if is_found { not_the_daemons(domain) } else { unknown() });
    };
    let notes = vec!["no other home is chosen before a daemon runs".into()];
    let (nodes_before, nodes) = (home.nodes.clone(), home.nodes);
    args.format.print(
        &Report { name: domain.into(), nodes_before, nodes, notes, ..Report::default() },
        set::text,
    )
}

const STAYS: &str =
    "memory stays where it is until a daemon takes it along: --move-memory takes it now";

/// Whether the daemon is to make the change. The daemon moves the memory later, at its own rate,
/// and reports remainders only then. With --move-memory, root therefore makes the change without
/// the daemon.
fn is_for_daemon(args: &Args) -> bool {
    !args.move_memory || args.rate.is_none() && !rustix::process::geteuid().is_root()
}

/// The owners of found cgroups (systemd, kubelet, libvirt) may rewrite them at any time. Only a
/// process that stays, the daemon, can keep them at home.
fn not_the_daemons(domain: &str) -> Failure {
    Failure::could_not(format_args!(
        "{domain} was not started by `nearside run`, and no daemon that could give it a home \
         knows it: start a daemon, and name the cgroup in a pattern of its configuration (`found`)"
    ))
}

/// Becomes true on the first signal to stop. A second signal ends the process at once, which loses
/// nothing, because the record has the destination of the move. A signal that was ignored at the
/// start (`nohup`) stays ignored.
fn break_off_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !sys::is_ignored(signal)) {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// The failure that names the remainder, if there is one.
fn left_over(report: &Report, domain: &str, nodes: &str) -> Outcome {
    let stayed_bytes: u64 = report.stayed_bytes.values().sum();
    let again = format!("nearside set {domain} --nodes {nodes} --move-memory");
    if report.interrupted {
        return Err(Failure::partly(format_args!(
            "interrupted: memory may still come from its old nodes, too; go on with: {again}"
        )));
    }
    if stayed_bytes == 0 {
        return Ok(());
    }
    let allowed =
        if report.confined { "" } else { ", so memory may still come from its old nodes, too" };
    let all_unmapped = report.stayed_bytes.keys().all(|&why| why == StayedWhy::NotMapped);
    let advice = match all_unmapped {
        true => "memory that no process maps cannot be moved".into(),
        false => format!("try again with: {again}"),
    };
    Err(Failure::partly(format_args!(
        "{} stayed off {}{allowed}; {advice}",
        size(stayed_bytes),
        report.nodes.named()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn rates_are_sizes_a_second() {
        let rate = |text| parse_rate(text).map(|rate| rate.bytes_per_s);
        assert_eq!(rate("200M"), Ok(Some(200 * MIB)));
        assert_eq!(rate("1.5GiB/s"), Ok(Some(1536 * MIB)));
        assert_eq!(rate("unlimited"), Ok(None));
        for text in ["fast", "0", "-1", ""] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
