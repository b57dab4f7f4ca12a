//! `nearside set`: another home for a domain that runs.

use super::run::plan_told;
use crate::{
    failure::{Failure, Outcome},
    output::{self, Format},
    progress::Meter,
    report::units::size,
    request::parse_node_set,
    size::parse_size,
};
use nearside_linux::{Host, Paths, store::Record};
use nearside_policy::{
    Action, DEFAULT_RATE_BYTES_PER_S, Machine, Observation, Outcome as Applied, Plan, Rehome, RehomeRefusal, Stayed,
    StayedWhy, home_after, later_policy_nodes, may_go_on, rehome,
};
use nearside_topology::NodeSet;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    fmt::Write,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Give a running domain another home, and take its memory there
///
/// Pages move in batches while both homes are allowed. Interrupted (Ctrl-C), it stops after the batch it is at; the
/// same command again goes on. Exit codes: 0 done, 1 refused, 2 usage, 3 memory stayed behind or interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside set db --nodes 1 --move-memory
  nearside set db --nodes 2-3 --move-memory --rate 200M
  nearside set db --nodes all --dry-run")]
pub(crate) struct Args {
    /// The domain, see `nearside list`
    domain: String,

    /// Its new home, such as 0-1 or all,^2
    #[arg(long, value_name = "SET")]
    nodes: String,

    /// Move the memory it has elsewhere to its new home
    #[arg(long)]
    move_memory: bool,

    /// Move at most this much a second, such as 500M, or "unlimited" [default: 1G]
    #[arg(long, value_name = "BYTES/S", value_parser = parse_rate, requires = "move_memory")]
    rate: Option<Rate>,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// How to report
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
        _ => Some(parse_size(text.strip_suffix("/s").unwrap_or(text))?).filter(|&rate| rate > 0),
    };
    Ok(Rate { bytes_per_s })
}

/// What became of the domain's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
struct Report {
    domain: String,
    nodes: NodeSet,
    moved_bytes: u64,
    stayed_bytes: Stayed,
    interrupted: bool,
    /// Whether memory may come from the new home only, where the policy wants that.
    confined: bool,
    notes: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut host = Host::open(Paths::default()).map_err(Failure::could_not)?;
    refuse_foreign(&host, &args.domain)?;
    let topology = host.topology().map_err(Failure::could_not)?;
    let rate = args.rate.unwrap_or(Rate { bytes_per_s: Some(DEFAULT_RATE_BYTES_PER_S) });
    let wish = Rehome {
        domain: args.domain.clone(),
        nodes: parse_node_set(&args.nodes, &topology)?,
        move_memory: args.move_memory,
        rate_bytes_per_s: rate.bytes_per_s,
    };
    if args.dry_run {
        let observation = host.observe().map_err(Failure::could_not)?;
        output::note(host.take_notices());
        let plan = rehome(&wish, &observation).map_err(refused)?;
        return args.format.print(&plan, plan_told);
    }
    let break_off = break_off_on_signals().map_err(Failure::could_not)?;
    let report = change(&mut host, &wish, &break_off).inspect_err(|_| output::note(host.take_notices()))?;
    args.format.print(&report, told)?;
    left_over(&report, args)
}

/// Cgroups that Nearside did not start have owners (systemd, kubelet, libvirt) that write them as they see fit.
fn refuse_foreign(host: &Host, name: &str) -> Result<(), Failure> {
    if !name.contains('/') || !host.tree().group(name).is_ok_and(|group| group.exists()) {
        return Ok(());
    }
    Err(Failure::could_not(format_args!(
        "{name} was not started by `nearside run`: whoever manages that cgroup (systemd, kubelet, libvirt) would take \
         the change back; set its nodes there"
    )))
}

fn refused(refusal: RehomeRefusal) -> Failure {
    match refusal {
        RehomeRefusal::NoNodes(_) | RehomeRefusal::UnknownNodes { .. } => Failure::usage(refusal),
        _ => Failure::could_not(refusal),
    }
}

/// Becomes true when the user wants to stop. A second signal ends the process at once, which loses nothing: the record
/// says where the move was.
fn break_off_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
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
    let unknown = || refused(RehomeRefusal::UnknownDomain(wish.domain.clone()));
    let before = host.record(&wish.domain).ok_or_else(unknown)?;
    host.edit(record_after(wish, &before, &plan, &observation));
    host.save().map_err(Failure::could_not)?;

    let mut report = Report { domain: wish.domain.clone(), nodes: wish.nodes.clone(), ..Report::default() };
    report.confined = true;
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

fn told(report: &Report) -> String {
    let mut text = format!("{}: home is nodes {}, {} moved\n", report.domain, report.nodes, size(report.moved_bytes));
    for (why, bytes) in &report.stayed_bytes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {} stayed: {}", size(*bytes), why.words());
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
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
    Err(Failure::partly(format_args!("{} stayed off nodes {}{allowed}; {advice}", size(stayed_bytes), report.nodes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;

    const MIB: u64 = 1 << 20;

    #[test]
    fn rates_are_sizes_a_second_and_nothing_means_no_limit() {
        let rate = |text| parse_rate(text).map(|rate| rate.bytes_per_s);
        assert_eq!(rate("200M"), Ok(Some(200 * MIB)));
        assert_eq!(rate("1.5GiB/s"), Ok(Some(1536 * MIB)));
        assert_eq!(rate("0"), Ok(None));
        assert_eq!(rate("unlimited"), Ok(None));
        assert!(rate("fast").is_err());
    }

    #[test]
    fn the_report_names_what_stayed_and_why() {
        let report = Report {
            domain: "db".into(),
            nodes: NodeSet::from([NodeId(1)]),
            moved_bytes: 96 * MIB,
            stayed_bytes: [
                (StayedWhy::NoHugePage, 32 * MIB),
                (StayedWhy::Busy, 4096),
                (StayedWhy::NotMapped, 16 * MIB),
            ]
            .into(),
            notes: vec!["3 MiB of mapped files stay elsewhere".into()],
            ..Report::default()
        };
        insta::assert_snapshot!(told(&report), @r"
        db: home is nodes 1, 96 MiB moved
          4 KiB stayed: busy
          32 MiB stayed: no free huge page on the target
          16 MiB stayed: not mapped by its processes (tmpfs files, detached shared memory)
        note: 3 MiB of mapped files stay elsewhere
        ");
    }
}
