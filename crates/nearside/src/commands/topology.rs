//! `nearside topology`: the description of a machine.

use crate::{
    domains::{left_out, open_host},
    failure::Outcome,
    output,
    report::{topology_json::Machine, topology_svg, topology_text},
    source::{self, TopologySource},
};

/// Show the machine's nodes, CPUs, memory, distances and devices
///
/// The source is this host, a copy of another host's /sys and /proc, ACPI tables, or a machine
/// file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside topology
  nearside topology --format svg > machine.svg
  nearside topology --acpi /sys/firmware/acpi/tables
  nearside topology --sysfs /tmp/copy-of-another-host --format json
  nearside topology --machine lab/machines/x460.toml
  nearside topology --fake 4                          this host, divided into 4 nodes")]
pub(crate) struct Args {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
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
    /// SVG picture
    Svg,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let source::Machine { topology, costs, notes } = args.source.read()?;
    output::note(notes);
    if args.source.is_this_host()
        && let Ok(host) = open_host()
    {
        output::note(left_out(&topology.clone().offered(host.allowed().as_ref()), None));
    }
    let report = match args.format {
        Format::Text => topology_text::report(&topology),
        Format::Json => output::json(&Machine::with_costs(&topology, costs.as_ref()))?,
        Format::Svg => topology_svg::report(&topology),
    };
    output::print(&report)
}
