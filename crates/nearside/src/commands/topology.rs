//! `nearside topology`: what this machine is.

use crate::{
    domains::{left_out, open_host},
    failure::Outcome,
    output,
    report::{topology_json::Machine, topology_svg, topology_text},
    source::{self, TopologySource},
};

/// Show the machine's nodes, CPUs, memory, distances and devices
///
/// Reads this host, a copy of another one's /sys and /proc, firmware's ACPI tables, or a machine file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside topology
  nearside topology --format svg > machine.svg
  nearside topology --acpi /sys/firmware/acpi/tables
  nearside topology --sysfs /tmp/copy-of-another-host --format json
  nearside topology --machine lab/machines/x460.toml
  nearside topology --fake 4                          this host cut into 4 nodes")]
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
    /// Tables to read
    Text,
    /// For programs; docs/formats.md describes it
    Json,
    /// A picture for a ticket
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
