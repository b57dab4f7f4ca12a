//! `nearside place`: the home of a domain that does not run yet.

use crate::{
    domains::{left_out, open_host},
    failure::{Failure, Outcome},
    output,
    report::{
        json::Placed, place_cells_json::PlacedCells, place_cells_text, place_libvirt,
        place_numactl, place_qemu, place_text,
    },
    request::{Asked, HomeArgs, SizesArgs, refused, refused_cells},
    source::TopologySource,
};
use nearside_policy::{
    CellsRequest, CostModel, Machine, Observation, Request, guest, place, place_cells,
};
use nearside_topology::NodeSet;
use std::borrow::Cow;

/// Show the home that a domain would get, the alternatives, and the reasons
///
/// Starts nothing and claims nothing: another domain may take the same memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside place --cpus 8 --memory 32G
  nearside place --cpus 4 --memory 8G --near netdev:eth0 --policy strict
  nearside place --cpus 4 --memory 8G --policy strict --format qemu
  nearside place --cell 4:16G --cell 4:16G:near=1
  nearside place --cpus 4 --memory 8G --acpi dump.txt --format json

Exit codes:
  0  a home was found
  1  no home: too little memory, no CPU, or the machine cannot be read
  2  invalid command line, or unknown nodes or devices")]
pub(crate) struct Args {
    #[command(flatten)]
    sizes: SizesArgs,

    #[command(flatten)]
    home: HomeArgs,

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
    match args.sizes.request(&args.home, &observation.topology)? {
        Asked::Domain(request) => {
            let observation = offered(&observation, request.nodes.as_ref(), &mut notes);
            place_domain(args.format, &request, &observation)
        }
        Asked::Cells(request) => {
            let observation = offered(&observation, request.nodes.as_ref(), &mut notes);
            place_vm(args.format, &request, &observation)
        }
    }
}

// The machine as it is offered to an operator who names these nodes. Prints the notes, since one
// may explain a refusal.
fn offered<'a>(
    observation: &'a Observation,
    nodes: Option<&NodeSet>,
    notes: &mut Vec<String>,
) -> Cow<'a, Observation> {
    notes.extend(left_out(&observation.topology, nodes));
    output::note(std::mem::take(notes));
    observation.naming(nodes)
}

fn place_domain(format: Format, request: &Request, observation: &Observation) -> Outcome {
    let topology = &observation.topology;
    let decision = place(request, observation, &CostModel::default()).map_err(refused)?;
    let guest = guest(&decision, topology);
    let (report, limits) = match format {
        Format::Text => (place_text::report(&decision, observation), Vec::new()),
        Format::Json => (output::json(&Placed::new(&topology.source, &decision))?, Vec::new()),
        Format::Qemu => place_qemu::report(&guest, topology),
        Format::Libvirt => place_libvirt::report(&guest),
        Format::Numactl => place_numactl::report(&guest),
    };
    output::note(limits);
    output::print(&report)
}

fn place_vm(format: Format, request: &CellsRequest, observation: &Observation) -> Outcome {
    if !matches!(format, Format::Text | Format::Json) {
        return Err(Failure::usage("--cell: cells are printed as text or JSON (--format)"));
    }
    let decision =
        place_cells(request, observation, &CostModel::default()).map_err(refused_cells)?;
    let report = match format {
        Format::Json => output::json(&PlacedCells::new(&observation.topology.source, &decision))?,
        _ => place_cells_text::report(&decision, observation),
    };
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
