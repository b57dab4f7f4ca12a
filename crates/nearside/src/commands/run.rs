//! `nearside run`: starts a domain at a home of its own.

pub(super) mod copies;
mod vm;

pub(crate) use vm::HelperArgs;

use crate::{
    domains::open_host,
    failure::{Failure, Outcome},
    lock::{WaitArgs, waiting, waiting_quietly},
    output,
    printable::printable,
    report::{place_cells_text, plan},
    request::{AffinityArg, RequestArgs, parse_cells},
    room::{self, Shortage},
    size::parse_size,
};
use nearside_linux::{
    Host,
    launch::{self, Command, LaunchError, Subject},
    sys::{self, PolicySupport},
};
use nearside_policy::{
    Action, CellsDecision, CostModel, CpuReason, Limits, MemoryPolicy, Observation, Plan, Start,
    StartCells, is_domain_name, start_whole,
};
use nearside_topology::{NodeSet, Topology};
use nearside_vmm::{Completed, shell_lines};
use std::{cell::RefCell, convert::Infallible, ffi::OsString, path::Path};
use vm::VmStart;

/// Nearside itself failed (as `env` and `timeout` have it).
pub(crate) const FAILED: u8 = 125;
/// CMD was found but could not be executed.
const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
const NOT_FOUND: u8 = 127;

/// Start a command as a domain, at a home of its own
///
/// Claims memory and vCPUs, chooses a home (or takes that of --nodes), binds the domain to it, and
/// executes the command in its own place: signals, terminal and exit code are the command's. The
/// claim lasts until the domain's last process has ended. Needs root, so the command starts as
/// root: put setpriv in front of it to drop privileges.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nearside run [OPTIONS] --memory SIZE [--] CMD...")]
#[command(after_help = "\
Examples:
  nearside run --name db --cpus 4 --memory 8G -- ./server --port 5000
  nearside run --cpus 2 --memory 2G --policy strict --nodes 1 -- ./worker
  nearside run --cpus 8 --memory 16G --near netdev:eth0 --dry-run -- ./server
  nearside run --name web --memory 4G -- setpriv --reuid=web --regid=web \\
    --init-groups ./server
  nearside run --vm --cells 2 -- qemu-system-x86_64 -smp 8 -m 16G -drive file=disk.qcow2
  nearside run --vm --dry-run -- cloud-hypervisor --cpus boot=4 --memory size=8G --kernel vmlinux

Exit codes:
  CMD's own, or
  125  nearside refused or failed, or did not understand the command line
  126  CMD cannot be executed
  127  CMD was not found")]
pub(crate) struct Args {
    /// Its name, which no other running domain may have [default: the command's]
    #[arg(long, help_heading = "Domain")]
    name: Option<String>,

    #[command(flatten)]
    request: RequestArgs,

    /// Whether its vCPUs prefer their home or never leave it
    #[arg(long, value_enum, default_value_t = AffinityArg::Soft)]
    affinity: AffinityArg,

    /// Use at most this many CPUs' time: 1.5 is one and a half CPUs
    #[arg(long, value_name = "N", value_parser = parse_cpu_limit, help_heading = LIMITS)]
    #[arg(allow_hyphen_values = true)]
    cpu_limit: Option<f64>,

    /// Use at most this much memory, which is not less than what is claimed
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = LIMITS)]
    #[arg(allow_hyphen_values = true)]
    memory_limit: Option<u64>,

    /// CMD is QEMU or cloud-hypervisor: take vCPUs, memory and cells from its arguments, place
    /// each cell, and add the arguments that bind it there (policy strict unless --policy is given)
    #[arg(long, help_heading = VM)]
    vm: bool,

    /// Split vCPUs and memory into this many cells, if the arguments of CMD state none
    #[arg(long, value_name = "N", value_parser = parse_cells, help_heading = VM, requires = "vm")]
    #[arg(allow_hyphen_values = true)]
    cells: Option<u32>,

    /// Print the steps (and with --vm the command line), and take none
    #[arg(long, help_heading = None)]
    dry_run: bool,

    #[command(flatten)]
    wait: WaitArgs,

    /// Print nothing but errors
    #[arg(long, short, help_heading = None)]
    quiet: bool,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", help_heading = None)]
    command: Vec<OsString>,
}

const LIMITS: &str = "Limits";
const VM: &str = "Virtual machine";

/// The kernel takes at least a hundredth of its period (`min_bw_quota_period_us` in
/// `kernel/sched/core.c`: 1 ms).
fn parse_cpu_limit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cpus) if (0.01..=65_536.0).contains(&cpus) => Ok(cpus),
        _ => Err("expected a number of CPUs from 0.01 to 65536, such as 1.5".into()),
    }
}

/// Returns only if the command was not started (or with `--dry-run`).
pub(crate) fn run(args: &Args) -> Outcome {
    own_codes(try_run(args))
}

/// Gives each failure of Nearside itself a code that the command does not use.
pub(super) fn own_codes(outcome: Outcome) -> Outcome {
    outcome.map_err(
        |failure| if failure.code() < FAILED { failure.with_code(FAILED) } else { failure },
    )
}

fn try_run(args: &Args) -> Outcome {
    let command =
        Command::find(&args.command, std::env::var_os("PATH").as_deref()).map_err(failure)?;
    let name = args.name.clone().map_or_else(|| default_name(&args.command), Ok)?;
    let mut host = open_host()?;
    let topology = host.topology().map_err(Failure::could_not)?;
    if args.vm {
        return run_vm(args, &mut host, name, command, &topology);
    }
    let mut request = args.request.request(&topology)?;
    request.policy = usable_policy(args.request.home.policy, topology.nodes.len(), |policy| {
        sys::memory_policy_support(policy, &topology.memory_nodes())
    })?;
    let limits = Limits { cpus: args.cpu_limit, memory_bytes: args.memory_limit };
    let start = Start { name, request, affinity: args.affinity.into(), limits };
    let model = CostModel::default();
    if args.dry_run {
        let planned = launch::plan(&mut host, &start, &model);
        output::note(host.take_notices());
        return output::print(&plan::text(&planned.map_err(failure)?));
    }
    let tell = &mut |plan: &Plan, notices: &[String]| {
        tell(args, plan, notices);
        if let Some(decision) = &plan.decision {
            copies::join(&decision.chosen.nodes, args.quiet);
        }
    };
    let at_most = args.wait.at_most();
    host.set_waiting(if args.quiet { waiting_quietly(at_most) } else { waiting(at_most) });
    let mut attempt =
        |host: &mut Host| launch::launch(host, &start, &command, &model, &topology, tell);
    let launched = with_room(&mut host, start.request.nodes.as_ref(), &topology, &mut attempt);
    match launched {
        Ok(never) => match never {},
        Err(error) => {
            // A file that could not be read may be the reason.
            if !args.quiet {
                output::note(host.take_notices());
            }
            Err(failure(error))
        }
    }
}

/// Starts a domain, again each time when copies of program text have gone whose memory it may have
/// lacked. They go node by node, and it may need that of another one.
fn with_room(
    host: &mut Host,
    nodes: Option<&NodeSet>,
    topology: &Topology,
    launch: &mut dyn FnMut(&mut Host) -> Result<Infallible, LaunchError>,
) -> Result<Infallible, LaunchError> {
    let nodes = nodes.cloned().unwrap_or_else(|| topology.memory_nodes());
    let mut launched = launch(host);
    for _ in nodes.iter() {
        let lacks = launched.as_ref().err().and_then(|it| Shortage::of_start(it, &nodes));
        if !lacks.is_some_and(|lacks| lacks.copies_go(host.root(), room::PATIENCE)) {
            break;
        }
        launched = launch(host);
    }
    launched
}

fn tell(args: &Args, plan: &Plan, notices: &[String]) {
    if !args.quiet {
        let all = notices
            .iter()
            .chain(&plan.limits)
            .cloned()
            .chain(fallback_notice(plan, nearside_scheduler::is_in_charge()));
        all.for_each(|notice| output::tell(&format!("nearside: {}", printable(&notice))));
    }
}

/// Starts a virtual machine by its completed command line.
fn run_vm(
    args: &Args,
    host: &mut Host,
    name: String,
    command: Command,
    topology: &Topology,
) -> Outcome {
    let vm = VmStart::read(&args.command, args.cells, &args.request, topology)?;
    let policy = usable_policy(Some(vm.request.policy), topology.nodes.len(), |policy| {
        sys::memory_policy_support(policy, &topology.memory_nodes())
    })?;
    let limits = Limits { cpus: args.cpu_limit, memory_bytes: args.memory_limit };
    let affinity = args.affinity.into();
    let (request, bounds) = (vm.request.clone(), vm.bounds());
    let start = StartCells { name, request, bounds, affinity, limits };
    let subject = Subject { name: &start.name, policy };
    let mut decided: Option<(CellsDecision, Completed, Observation)> = None;
    let helper = RefCell::new(Vec::new());
    let decide = &mut |seen: &Observation| {
        let mut whole = start_whole(&start, seen, &CostModel::default())?;
        let completed = vm.complete(&whole.cells, &seen.topology);
        let completed = completed.map_err(LaunchError::Incomplete)?;
        whole.plan.limits.extend(completed.notes.iter().cloned());
        let words = completed.words.iter().skip(1).map(OsString::from).collect();
        helper.replace(vm.affinity(&whole.cells, &seen.topology));
        decided = Some((whole.cells, completed, seen.clone()));
        Ok((whole.plan, command.clone().with_arguments(words)))
    };
    if args.dry_run {
        let planned = launch::plan_decided(host, subject, decide);
        output::note(host.take_notices());
        let mut text = plan::text(&planned.map_err(failure)?.0);
        if let Some((cells, completed, seen)) = &decided {
            text += &format!("\n{}\n", place_cells_text::report(cells, seen));
            text += &shell_lines(&completed.words);
        }
        return output::print(&text);
    }
    let at_most = args.wait.at_most();
    host.set_waiting(if args.quiet { waiting_quietly(at_most) } else { waiting(at_most) });
    // The helper starts once the lock is free and the domain's cgroup is entered.
    let tell = &mut |plan: &Plan, notices: &[String]| {
        tell(args, plan, notices);
        if let Err(why) = vm::start_helper(&helper.borrow(), vm.vcpus()) {
            let why = printable(why.message()).to_string();
            output::tell(&format!("nearside: vCPUs are not bound to their cells: {why}"));
        }
    };
    let mut attempt =
        |host: &mut Host| launch::launch_decided(host, subject, topology, decide, tell);
    match with_room(host, start.request.nodes.as_ref(), topology, &mut attempt) {
        Ok(never) => match never {},
        Err(error) => {
            if !args.quiet {
                output::note(host.take_notices());
            }
            Err(failure(error))
        }
    }
}

/// Binds the vCPU threads of a virtual machine that `run` has started, from within its cgroup.
pub(crate) fn bind_vcpus(args: &HelperArgs) -> Outcome {
    match args.is_to_detach() {
        true => vm::detach(args),
        false => vm::run_helper(&open_host()?, args),
    }
}

pub(super) fn failure(error: LaunchError) -> Failure {
    let code = match error {
        LaunchError::NotFound(_) | LaunchError::NoInterpreter(_) => NOT_FOUND,
        LaunchError::NotExecutable { .. } => NOT_EXECUTABLE,
        LaunchError::Refused(_)
        | LaunchError::Incomplete(_)
        | LaunchError::Change(_)
        | LaunchError::Host(_) => FAILED,
    };
    Failure::could_not(error).with_code(code)
}

fn default_name(command: &[OsString]) -> Result<String, Failure> {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    let name = program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match is_domain_name(&name) {
        true => Ok(name),
        false => Err(Failure::usage(format_args!(
            "{name:?} cannot name a domain: choose a name with --name"
        ))),
    }
}

/// The requested policy, if the kernel knows it; by default the softest that keeps memory at home.
fn usable_policy(
    asked: Option<MemoryPolicy>,
    nodes: usize,
    support: impl Fn(MemoryPolicy) -> PolicySupport,
) -> Result<MemoryPolicy, Failure> {
    let default = MemoryPolicy::PreferredMany;
    // A kernel without NUMA has no policies and needs none: there is one node.
    if nodes <= 1 {
        return Ok(asked.unwrap_or(default));
    }
    let policy = match asked {
        // The cgroup enforces it, not the task's policy.
        Some(MemoryPolicy::Restrictive) => return Ok(MemoryPolicy::Restrictive),
        Some(policy) => policy,
        None if support(default) == PolicySupport::Unknown => MemoryPolicy::Preferred,
        None => default,
    };
    match support(policy) {
        PolicySupport::Known => Ok(policy),
        PolicySupport::Forbidden => Err(Failure::could_not(launch::policy_forbidden(policy))),
        PolicySupport::Unknown => {
            let since = match policy {
                MemoryPolicy::WeightedInterleave => " (it came with Linux 6.9)",
                MemoryPolicy::PreferredMany => " (it came with Linux 5.15)",
                _ => "",
            };
            Err(Failure::could_not(format_args!(
                "this kernel does not know the memory policy {policy}{since}"
            )))
        }
    }
}

/// The remark on the stand-in for soft affinity, which binds a domain that asked for no binding.
///
/// While Nearside's scheduler is attached, the binding lasts only until the daemon's next interval,
/// and no remark is made.
fn fallback_notice(plan: &Plan, scheduler_is_in_charge: bool) -> Option<String> {
    plan.transaction.steps.iter().find_map(|step| match &step.action {
        Action::BindCpus { cpus, on_behalf: CpuReason::Fallback, .. }
            if !scheduler_is_in_charge =>
        {
            Some(format!(
                "no scheduler with node affinity is attached: runs on {} only, until one is",
                cpus.named()
            ))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryPolicy::{Local, Preferred, PreferredMany, Restrictive, Strict, WeightedInterleave};
    use PolicySupport::{Forbidden, Known, Unknown};

    #[test]
    fn the_default_policy_is_the_softest_that_the_kernel_knows() {
        type Kernel = fn(MemoryPolicy) -> PolicySupport;
        let all: Kernel = |_| Known;
        let old: Kernel = |policy| {
            if matches!(policy, PreferredMany | WeightedInterleave) { Unknown } else { Known }
        };
        let filtered: Kernel = |_| Forbidden;
        let none: Kernel = |_| Unknown;
        let cases: [(_, _, Kernel, Result<MemoryPolicy, &str>); 13] = [
            (None, 4, all, Ok(PreferredMany)),
            (None, 4, old, Ok(Preferred)),
            (None, 4, filtered, Err("seccomp")),
            (None, 4, none, Err("kernel does not know the memory policy preferred")),
            (None, 1, none, Ok(PreferredMany)),
            (Some(Strict), 1, filtered, Ok(Strict)),
            (Some(Strict), 4, all, Ok(Strict)),
            (Some(Strict), 4, filtered, Err("CAP_SYS_NICE")),
            (Some(Local), 4, filtered, Err("set memory policy local")),
            (Some(WeightedInterleave), 4, old, Err("Linux 6.9")),
            (Some(PreferredMany), 4, old, Err("Linux 5.15")),
            (Some(Restrictive), 4, filtered, Ok(Restrictive)),
            (Some(Restrictive), 4, none, Ok(Restrictive)),
        ];
        for (asked, nodes, kernel, expected) in cases {
            match (usable_policy(asked, nodes, kernel), expected) {
                (Ok(policy), Ok(expected)) => assert_eq!(policy, expected),
                (Err(failure), Err(said)) => {
                    assert!(failure.message().contains(said), "{}", failure.message())
                }
                (got, expected) => {
                    panic!("{asked:?} on {nodes} nodes: {got:?}, expected {expected:?}")
                }
            }
        }
    }
}
