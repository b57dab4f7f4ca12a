//! `nearside topology`: what this machine is.

use crate::{
    failure::{Failure, Outcome},
    output,
    report::{topology_json, topology_svg, topology_text},
    source::TopologySource,
};

/// Show the machine's nodes, CPUs, memory and distances.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    #[command(flatten)]
    source: TopologySource,
}

/// The forms of the report.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Tables to read.
    Text,
    /// One JSON object (docs/formats.md).
    Json,
    /// A picture for a ticket.
    Svg,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let (topology, notes) = args.source.read_with_notes()?;
    output::note(notes);
    let report = match args.format {
        Format::Text => topology_text::report(&topology),
        Format::Json => topology_json::report(&topology).map_err(Failure::could_not)?,
        Format::Svg => topology_svg::report(&topology),
    };
    output::print(&report)
}
