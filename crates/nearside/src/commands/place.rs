//! `nearside place`: the home of a domain that does not run yet.

use crate::{
    domains::{left_out, open_host},
    failure::{Failure, Outcome},
    output,
    printable::printable,
    report::{
        json::Placed, place_cells_json::PlacedCells, place_cells_text, place_libvirt,
        place_numactl, place_qemu, place_text,
    },
    request::{Asked, HomeArgs, SizesArgs, refused, refused_cells},
    source::TopologySource,
    vm::{
        complete::{Completed, Refused, Wish, completed},
        file::{self, DomainFile},
        request::mode,
        shape::{self, place_in_shape},
    },
};
use nearside_libvirt::{Intent, render::unified_diff};
use nearside_linux::resolve_disks;
use nearside_policy::{
    CellsDecision, CellsRequest, CostModel, Machine, Observation, Request, guest, place,
    place_cells,
};
use nearside_topology::NodeSet;
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

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
  nearside place --libvirt vm.xml > placed.xml        the domain with its bindings
  virsh dumpxml vm | nearside place --libvirt - --format diff
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

    /// Complete the XML of a libvirt domain (1 MiB at most; - is standard input), in place of
    /// --cpus and --memory. All that it binds already stays, except for what Nearside wrote
    #[arg(long, value_name = "FILE", help_heading = "Libvirt domain")]
    #[arg(conflicts_with_all = ["cpus", "memory", "near", "cells", "page_size"])]
    libvirt: Option<PathBuf>,

    /// Place the virtual machine of an intent (1 MiB at most; - is standard input) that `nearside
    /// export` printed on another machine, in the same shape if it fits
    #[arg(long, value_name = "FILE", help_heading = "Libvirt domain")]
    #[arg(conflicts_with_all = ["cpus", "memory", "near", "cells", "page_size", "policy"])]
    #[arg(conflicts_with = "libvirt")]
    intent: Option<PathBuf>,

    /// Bind vCPUs (hard), or leave that to Nearside's scheduler (soft) [default: soft if it is
    /// attached on this host and the domain is placed here, else hard]
    #[arg(
        long,
        value_enum,
        value_name = "AFFINITY",
        requires = "libvirt",
        hide_possible_values = true
    )]
    #[arg(help_heading = "Libvirt domain")]
    affinity: Option<Pins>,

    /// Leave Nearside's metadata out of the XML: intent and own bindings, which a migration needs
    #[arg(long, requires = "libvirt", help_heading = "Libvirt domain")]
    no_metadata: bool,

    /// Output format [default: text; the completed XML with --libvirt]
    #[arg(long, value_enum, help_heading = None)]
    format: Option<Format>,

    #[command(flatten)]
    source: TopologySource,
}

/// Values of `--affinity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pins {
    Soft,
    Hard,
}

/// The output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Tables for people
    Text,
    /// JSON for programs (docs/formats.md)
    Json,
    /// Arguments for qemu-system-*
    Qemu,
    /// Elements of a libvirt domain's XML; with --libvirt, all of it
    Libvirt,
    /// With --libvirt, the change of the XML as a unified diff
    Diff,
    /// A numactl command line, without the command
    Numactl,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if let Some(file) = &args.libvirt {
        return place_libvirt_domain(args, file);
    }
    let format = args.format.unwrap_or(Format::Text);
    if let Some(file) = &args.intent {
        return place_intent(args, file, format);
    }
    if format == Format::Diff {
        return Err(Failure::usage("--format diff: only a domain's XML (--libvirt) has a diff"));
    }
    if args.affinity.is_some() {
        return Err(Failure::usage("--affinity: only a domain's XML (--libvirt) binds vCPUs"));
    }
    let (observation, mut notes) = observed(&args.source)?;
    match args.sizes.request(&args.home, &observation.topology)? {
        Asked::Domain(request) => {
            let observation = offered(&observation, request.nodes.as_ref(), &mut notes);
            place_domain(format, &request, &observation)
        }
        Asked::Cells(request) => {
            let observation = offered(&observation, request.nodes.as_ref(), &mut notes);
            place_vm(format, &request, &observation)
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
        Format::Libvirt | Format::Diff => place_libvirt::report(&guest),
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
    print_cells(format, &decision, observation)
}

fn place_libvirt_domain(args: &Args, file: &Path) -> Outcome {
    let format = args.format.unwrap_or(Format::Libvirt);
    if matches!(format, Format::Qemu | Format::Numactl) {
        return Err(Failure::usage(
            "--libvirt: a domain is printed as XML, diff, text or JSON (--format)",
        ));
    }
    let mode = args.home.policy.map(|policy| {
        mode(policy).ok_or_else(|| {
            Failure::usage(format_args!(
                "--policy {policy}: neither libvirt nor QEMU knows it; they know strict, \
                 preferred, interleave and restrictive"
            ))
        })
    });
    let mode = mode.transpose()?;
    let mut file = DomainFile::read(file)?;
    if args.source.is_this_host() {
        resolve_disks(&mut file.domain.iothreads, Path::new("/"));
    }
    let (observation, mut notes) = observed(&args.source)?;
    let nodes = args.home.nodes(&observation.topology)?;
    let observation = offered(&observation, nodes.as_ref(), &mut notes);
    let is_soft = match args.affinity {
        Some(affinity) => affinity == Pins::Soft,
        None => args.source.is_this_host() && nearside_scheduler::is_in_charge(),
    };
    let wish = Wish { mode, nodes, pins_vcpus: !is_soft, metadata: !args.no_metadata };
    let Completed { xml, decision, contradictions, notes } =
        completed(&file.domain, &wish, &observation, &CostModel::default())
            .map_err(|refused| not_completed(&file, refused))?;
    output::note(notes.iter().map(|note| format!("{}: {note}", file.name)));
    output::note(file.lines(&contradictions));
    // The text and the JSON form have this line, too.
    if matches!(format, Format::Libvirt | Format::Diff) && !decision.shared.is_empty() {
        output::note([format!("{}: cells share {}", file.name, decision.shared.named())]);
    }
    match format {
        Format::Json | Format::Text => print_cells(format, &decision, &observation),
        Format::Diff => output::print_verbatim(&unified_diff(
            file.name.trim_start_matches('/'),
            file.domain.text(),
            &xml,
        )),
        Format::Libvirt | Format::Qemu | Format::Numactl => output::print_verbatim(&xml),
    }
}

fn place_intent(args: &Args, file: &Path, format: Format) -> Outcome {
    if args.affinity.is_some() || !matches!(format, Format::Text | Format::Json) {
        return Err(Failure::usage(
            "--intent: homes are printed as text or JSON (--format), without --affinity",
        ));
    }
    let name = printable(&file.display().to_string());
    let bytes = file::read(file)
        .map_err(|error| Failure::could_not(format_args!("cannot read {name}: {error}")))?;
    let intent = Intent::read(&bytes)
        .map_err(|error| Failure::could_not(format_args!("{name}: {error}")))?;
    let (observation, mut notes) = observed(&args.source)?;
    let nodes = args.home.nodes(&observation.topology)?;
    let observation = offered(&observation, nodes.as_ref(), &mut notes);
    let request = shape::request(&intent, nodes);
    let model = CostModel::default();
    let decision =
        place_in_shape(&intent, &request, &[], &observation, &model).map_err(|refusal| {
            Failure::could_not(format_args!("{name}: {}", refused_cells(refusal).message()))
        })?;
    let worse = shape::worse(&intent, &decision, &observation.topology);
    output::note(worse.iter().map(|line| format!("worse than before: {line}")));
    print_cells(format, &decision, &observation)
}

fn print_cells(format: Format, decision: &CellsDecision, observation: &Observation) -> Outcome {
    output::print(&match format {
        Format::Json => output::json(&PlacedCells::new(&observation.topology.source, decision))?,
        _ => place_cells_text::report(decision, observation),
    })
}

/// The failure for a domain that cannot be completed: the file's fault has its line and column.
fn not_completed(file: &DomainFile, refused: Refused) -> Failure {
    match refused {
        Refused::Errors(errors) => Failure::could_not(file.lines(&errors).join("\n")),
        Refused::Cells(refusal) => {
            Failure::could_not(format_args!("{}: {}", file.name, refused_cells(refusal).message()))
        }
    }
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
