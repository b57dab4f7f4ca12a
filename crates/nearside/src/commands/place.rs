//! `nearside place`: where a domain would live, and why.

use crate::{
    domains::{left_out, open_host},
    failure::{Failure, Outcome},
    output,
    report::{guest::Guest, json::Placed, place_libvirt, place_numactl, place_qemu, place_text},
    request::{RequestArgs, refused},
    source::TopologySource,
};
use nearside_policy::{CostModel, Machine, Observation, place};

/// Show where a domain would live, the alternatives, and why
///
/// Nothing is started and nothing is promised to the domain: another one may be given the same memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside place --cpus 8 --memory 32G
  nearside place --cpus 4 --memory 8G --near netdev:eth0 --policy strict
  nearside place --cpus 4 --memory 8G --policy strict --format qemu
  nearside place --cpus 4 --memory 8G --acpi dump.txt --format json

Exit codes:
  0  there is a place
  1  there is none: too little memory or no CPU, or the machine cannot be read
  2  the command line was not understood, or names what is not there")]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text, help_heading = None)]
    format: Format,

    #[command(flatten)]
    source: TopologySource,
}

/// The forms of the report.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Tables to read
    Text,
    /// For programs; docs/formats.md describes it
    Json,
    /// Arguments of qemu-system-*
    Qemu,
    /// Elements of a libvirt domain's XML
    Libvirt,
    /// A numactl command line, to be followed by a command
    Numactl,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let (observation, mut notes) = observed(&args.source)?;
    let request = args.request.request(&observation.topology)?;
    notes.extend(left_out(&observation.topology, request.nodes.as_ref()));
    // First, for it may be why there is no home.
    output::note(notes);
    let observation = &*observation.naming(request.nodes.as_ref());
    let topology = &observation.topology;
    let decision = place(&request, observation, &CostModel::default()).map_err(refused)?;
    let guest = Guest::new(&decision, topology);
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

/// The machine with its domains, and what could not be read of it. Only the host itself has domains; a copy of its
/// files or its firmware's tables know none, and neither does a host without cgroups.
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
