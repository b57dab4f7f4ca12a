//! `nearside simulate`: predicts the effect of a way to place domains.

use crate::{
    failure::{Failure, Outcome},
    output::{self, Format},
    progress::Simulating,
    report::simulate::{Report, text},
    source::TopologySource,
};
use nearside_simulator::{ASSUMED_LOCAL_NS, Contender, Options, scenario, simulate_watched};
use std::{num::NonZeroU64, path::PathBuf};

/// Simulate a scenario, and compare ways to place its domains
///
/// A scenario lists domains and their work. The simulator plays it in simulated time under each
/// contender: Nearside decides as it would on that machine; the machine and stock Linux are models.
/// Nothing on this host changes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside simulate FILE --machine lab/machines/x460-small.toml
  nearside simulate FILE                              with this host's distances
  nearside simulate FILE --under nearside,stock --seconds 60 --format json

Exit codes:
  0  simulated
  1  failed: the scenario or the machine is unsuitable, or a domain does not fit
  2  invalid command line")]
pub(crate) struct Args {
    /// Scenario file (TOML; docs/formats.md lists the keys)
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,

    /// Contenders to simulate; the others are compared with stock if it is among them
    #[arg(long, value_enum, value_delimiter = ',', default_value = "stock,pins,nearside")]
    under: Vec<Under>,

    /// Limit of simulated time, in seconds
    #[arg(long, value_name = "N", default_value = "600")]
    seconds: NonZeroU64,

    /// Seed of the random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Give Nearside the latencies and bandwidths of the machine file, as an HMAT would; without
    /// this flag it uses distances
    #[arg(long, requires = "machine")]
    hmat: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    source: TopologySource,
}

/// Names of the contenders.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Under {
    /// Linux without NUMA balancing
    Stock,
    /// Each domain bound to one node, nodes in turn
    Pins,
    /// Nearside: placement, scheduler and control loop
    Nearside,
}

impl From<Under> for Contender {
    fn from(under: Under) -> Self {
        match under {
            Under::Stock => Self::Stock,
            Under::Pins => Self::Pins,
            Under::Nearside => Self::Nearside,
        }
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    let scenario = scenario::read(&args.scenario).map_err(Failure::could_not)?;
    let (topology, notes) = args.source.read_with_notes()?;
    output::note(notes);
    let mut contenders: Vec<Contender> = Vec::new();
    for contender in args.under.iter().map(|&under| under.into()) {
        if !contenders.contains(&contender) {
            contenders.push(contender);
        }
    }
    let options = Options {
        contenders,
        max_seconds: args.seconds.get(),
        seed: args.seed,
        hmat: args.hmat || !args.source.is_machine_file(),
    };
    let mut progress = Simulating::new(options.max_seconds);
    let simulation =
        simulate_watched(&topology, &scenario, &options, &mut |so_far| progress.show(so_far));
    progress.end();
    let simulation = simulation.map_err(Failure::could_not)?;
    if !simulation.latencies_are_known {
        let assumed = format_args!("{ASSUMED_LOCAL_NS} ns");
        output::note([format!(
            "unknown latencies: assumes {assumed} for a local line, others by distance"
        )]);
    }
    args.format.print(&Report::new(&topology.source, &scenario, &options, &simulation), text)
}
