//! `nearside set`: another home for a domain that runs.

use crate::{
    domains::{find, named, open_host},
    failure::{Failure, Outcome},
    output::{self, Format},
    progress::Meter,
    report::{
        plan::{self, PlanJson},
        set::{self, Report},
        units::size,
    },
    request::parse_node_set,
    size::parse_size,
};
use nearside_linux::{Host, store::Record, sys};
use nearside_policy::{
    Action, DEFAULT_RATE_BYTES_PER_S, Machine, Observation, Outcome as Applied, Plan, Rehome, RehomeRefusal, StayedWhy,
    home_after, later_policy_nodes, may_go_on, rehome,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Give a running domain another home, and take its memory there
///
/// The home, the claim and the CPUs change at once. With --move-memory its pages follow, in batches, while the old and
/// the new home are allowed. Interrupted (Ctrl-C), it stops after the batch it is at; the same command goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside set db --nodes 1 --move-memory
  nearside set db --nodes 2-3 --move-memory --rate 200M
  nearside set db --nodes all --dry-run

Exit codes:
  0  done
  1  refused or failed
  2  the command line was not understood
  3  partly done: some memory stayed where it was, or you interrupted it")]
pub(crate) struct Args {
    /// The domain, see `nearside list`
    domain: String,

    /// Its new home, such as 0-1 or all,^2
    #[arg(long, value_name = "SET", allow_hyphen_values = true)]
    nodes: String,

    /// Move the memory it has elsewhere to its new home
    #[arg(long)]
    move_memory: bool,

    /// Move at most this much a second: 500M, 2G or unlimited [default: 1G]
    #[arg(long, value_name = "BYTES/S", value_parser = parse_rate, requires = "move_memory", allow_hyphen_values = true)]
    rate: Option<Rate>,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// How to report it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// How fast pages may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    /// No limit where there is none.
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
    let domain = own_domain(&host, &args.domain)?;
    let topology = host.topology().map_err(Failure::could_not)?;
    let rate = args.rate.unwrap_or(Rate { bytes_per_s: Some(DEFAULT_RATE_BYTES_PER_S) });
    let wish = Rehome {
        domain,
        nodes: parse_node_set(&args.nodes, &topology)?,
        move_memory: args.move_memory,
        rate_bytes_per_s: rate.bytes_per_s,
    };
    if args.dry_run {
        let observation = host.observe().map_err(Failure::could_not)?;
        output::note(host.take_notices());
        let plan = rehome(&wish, &observation).map_err(refused)?;
        return args.format.print(&PlanJson::new(&wish.domain, &plan), |_| plan::text(&plan));
    }
    let break_off = break_off_on_signals().map_err(Failure::could_not)?;
    let report = change(&mut host, &wish, &break_off).inspect_err(|_| output::note(host.take_notices()))?;
    args.format.print(&report, set::text)?;
    left_over(&report, args)
}

/// The domain of that name, or at that path. Cgroups that Nearside did not start have owners (systemd, kubelet, libvirt)
/// that write them as they see fit.
fn own_domain(host: &Host, name: &str) -> Result<String, Failure> {
    match find(host, name)? {
        (_, Some(record)) => Ok(record.name),
        (_, None) => Err(Failure::could_not(format_args!(
            "{name} was not started by `nearside run`: whoever manages that cgroup (systemd, kubelet, libvirt) would \
             take the change back; set its nodes there"
        ))),
    }
}

fn refused(refusal: RehomeRefusal) -> Failure {
    match refusal {
        RehomeRefusal::NoNodes(_) | RehomeRefusal::UnknownNodes { .. } => Failure::usage(refusal),
        _ => Failure::could_not(refusal),
    }
}

/// Becomes true when the user wants to stop. A second signal ends the process at once, which loses nothing: the record
/// says where the move was. What whoever started this had it ignore (`nohup`) stays ignored.
fn break_off_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !sys::is_ignored(signal)) {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Carries the wish out, step by step.
fn change(host: &mut Host, wish: &Rehome, break_off: &AtomicBool) -> Result<Report, Failure> {
    host.lock().map_err(Failure::could_not)?;
    let observation = host.observe().map_err(Failure::could_not)?;
    let plan = rehome(wish, &observation).map_err(refused)?;
    let before = named(host, &wish.domain)?;
    host.edit(record_after(wish, &before, &plan, &observation));
    host.save().map_err(Failure::could_not)?;

    let mut report = Report {
        name: wish.domain.clone(),
        nodes_before: before.home.nodes.clone(),
        nodes: wish.nodes.clone(),
        asked_to_move: wish.move_memory,
        confined: true,
        ..Report::default()
    };
    report.notes.extend(plan.limits);
    let (mut meter, mut has_moved) = (Meter::new(), false);
    let mut watch = |so_far| {
        meter.show(so_far);
        if break_off.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    for step in &plan.steps {
        let outcome = host.apply(&step.action, &mut watch);
        let goes_on = may_go_on(&outcome);
        match outcome {
            Applied::Applied { moved_bytes } => report.moved_bytes += moved_bytes,
            Applied::Partly { moved_bytes, stayed, interrupted } => {
                report.moved_bytes += moved_bytes;
                report.stayed_bytes = stayed;
                report.interrupted = interrupted;
            }
            Applied::Refused { why } => {
                meter.end();
                // Where memory has moved already, the new home stands.
                let undone = if has_moved { Ok(()) } else { undo(host, before) };
                let also =
                    undone.err().map_or_else(String::new, |also| format!("; nor could it be taken back: {also}"));
                return Err(Failure::could_not(format_args!("cannot {}: {why}{also}", step.action)));
            }
        }
        has_moved |= matches!(step.action, Action::MovePages { .. });
        if !goes_on {
            report.confined = false;
            break;
        }
    }
    meter.end();
    report.notes.extend(host.take_notices());
    Ok(report)
}

/// The record of the domain at its new home. From here on the home is the new one, even if its memory is not there yet:
/// its claim and its CPUs are.
fn record_after(wish: &Rehome, before: &Record, plan: &Plan, observation: &Observation) -> Record {
    let home = home_after(wish, Some(&before.home));
    let claim = plan.steps.iter().find_map(|step| match &step.action {
        Action::Claim { claim, .. } => Some(claim),
        _ => None,
    });
    // A plan without steps binds nothing, so nothing is to be bound later either.
    let policy_nodes = claim.and_then(|claim| later_policy_nodes(&home, claim, &observation.topology));
    Record { home, policy_nodes, ..before.clone() }
}

/// Puts the record and the nodes that are allowed back. Says why not.
fn undo(host: &mut Host, before: Record) -> Result<(), String> {
    if host.edited().is_none() {
        // The domain has ended, or is another command's to change.
        return Ok(());
    }
    let domain = before.name.clone();
    let mems = before.memory_nodes.clone().map(|nodes| Action::ConfineMemory { domain: domain.clone(), nodes });
    let cpus = before.cpus.clone();
    let cpus = cpus.map(|binding| Action::BindCpus { domain, cpus: binding.cpus, on_behalf: binding.on_behalf });
    host.edit(before);
    host.save().map_err(|error| error.to_string())?;
    for action in mems.iter().chain(&cpus) {
        if let Applied::Refused { why } = host.apply(action, &mut |_| ControlFlow::Continue(())) {
            return Err(why);
        }
    }
    Ok(())
}

/// The failure that tells what is not done, if anything is not.
fn left_over(report: &Report, args: &Args) -> Outcome {
    let stayed_bytes: u64 = report.stayed_bytes.values().sum();
    let again = format!("nearside set {} --nodes {} --move-memory", args.domain, args.nodes);
    if report.interrupted {
        return Err(Failure::partly(format_args!(
            "interrupted: memory may still come from its old nodes, too; go on with: {again}"
        )));
    }
    if stayed_bytes == 0 {
        return Ok(());
    }
    let allowed = if report.confined { "" } else { ", so memory may still come from its old nodes, too" };
    let all_unmapped = report.stayed_bytes.keys().all(|&why| why == StayedWhy::NotMapped);
    let advice = match all_unmapped {
        true => "what no process maps cannot be moved".into(),
        false => format!("try again with: {again}"),
    };
    Err(Failure::partly(format_args!("{} stayed off {}{allowed}; {advice}", size(stayed_bytes), report.nodes.named())))
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
