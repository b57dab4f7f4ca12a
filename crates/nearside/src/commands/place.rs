//! `nearside place`: the home of a domain that does not run yet.

use crate::{
    domains::{left_out, open_host},
    failure::{Failure, Outcome},
    output,
    report::{json::Placed, place_libvirt, place_numactl, place_qemu, place_text},
    request::{RequestArgs, refused},
    source::TopologySource,
};
use nearside_policy::{CostModel, Machine, Observation, guest, place};

/// Show the home that a domain would get, the alternatives, and the reasons
///
/// Starts nothing and claims nothing: another domain may take the same memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside place --cpus 8 --memory 32G
  nearside place --cpus 4 --memory 8G --near netdev:eth0 --policy strict
  nearside place --cpus 4 --memory 8G --policy strict --format qemu
  nearside place --cpus 4 --memory 8G --acpi dump.txt --format json

Exit codes:
  0  a home was found
  1  no home: too little memory, no CPU, or the machine cannot be read
  2  invalid command line, or unknown nodes or devices")]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text, help_heading = None)]
    format: Format,

    #[command(flatten)]
    source: TopologySource,
}

/// The output formats.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Tables for people
    Text,
    /// JSON for programs (docs/formats.md)
    Json,
    /// Arguments for qemu-system-*
    Qemu,
    /// Elements of a libvirt domain's XML
    Libvirt,
    /// A numactl command line, without the command
    Numactl,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let (observation, mut notes) = observed(&args.source)?;
    let request = args.request.request(&observation.topology)?;
    notes.extend(left_out(&observation.topology, request.nodes.as_ref()));
    // Printed first, since a note may explain a refusal.
    output::note(notes);
    let observation = &*observation.naming(request.nodes.as_ref());
    let topology = &observation.topology;
    let decision = place(&request, observation, &CostModel::default()).map_err(refused)?;
    let guest = guest(&decision, topology);
    let (report, limits) = match args.format {
        Format::Text => (place_text::report(&decision, observation), Vec::new()),
        Format::Json => (output::json(&Placed::new(&topology.source, &decision))?, Vec::new()),
        Format::Qemu => place_qemu::report(&guest, topology),
        Format::Libvirt => place_libvirt::report(&guest),
        Format::Numactl => place_numactl::report(&guest),
    };
    output::note(limits);
    output::print(&report)
}

/// The machine with its domains, and notes about unreadable data. Only this host has domains, and
/// only with cgroups; a copy of its files, or firmware tables, have none.
fn observed(source: &TopologySource) -> Result<(Observation, Vec<String>), Failure> {
    if source.is_this_host()
        && let Ok(mut host) = open_host()
    {
        let observation = host.observe().map_err(Failure::could_not)?;
        return Ok((observation, host.take_notices()));
    }
    let (topology, notes) = source.read_with_notes()?;
    let topology = topology.offered(None);
    Ok((Observation { topology, ..Observation::default() }, notes))
}
