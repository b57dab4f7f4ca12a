//! `nearside simulate`: what a way of placing domains would bring.

use crate::{
    failure::{Failure, Outcome},
    output::{self, Format},
    progress::Simulating,
    report::simulate::{Report, text},
    source::TopologySource,
};
use nearside_simulator::{ASSUMED_LOCAL_NS, Contender, Options, scenario, simulate_watched};
use std::{num::NonZeroU64, path::PathBuf};

/// Play a scenario on a machine in software and compare who places its domains
///
/// A scenario says which domains there are and what they do. It is played in time of the model under each contender:
/// Nearside decides as it would on that machine, and the machine, stock Linux included, is a model. Nothing on this host
/// is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside simulate FILE --machine lab/machines/x460-small.toml
  nearside simulate FILE                              on this host's distances
  nearside simulate FILE --under nearside,stock --seconds 60 --format json

Exit codes:
  0  it was played
  1  it could not be: the scenario, the machine, or a domain that does not fit
  2  the command line was not understood")]
pub(crate) struct Args {
    /// The scenario: domains and what they do, as TOML; docs/formats.md lists the keys
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,

    /// Under whom to play it; others are compared with stock where that is among them
    #[arg(long, value_enum, value_delimiter = ',', default_value = "stock,pins,nearside")]
    under: Vec<Under>,

    /// How long to play at most, in seconds of the model
    #[arg(long, value_name = "N", default_value = "600")]
    seconds: NonZeroU64,

    /// Another course of what is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Let Nearside know the machine file's latencies and bandwidths, as firmware with an HMAT would tell; else it goes by
    /// distances, as in the lab
    #[arg(long, requires = "machine")]
    hmat: bool,

    /// How to show it
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    source: TopologySource,
}

/// The contenders.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Under {
    /// Linux without NUMA balancing
    Stock,
    /// Each domain bound to a node, nodes in turn
    Pins,
    /// Placement, scheduler and control loop of Nearside
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
        most_seconds: args.seconds.get(),
        seed: args.seed,
        hmat: args.hmat || !args.source.is_machine_file(),
    };
    let mut progress = Simulating::new(options.most_seconds);
    let simulation =
        simulate_watched(&topology, &scenario, &options, &mut |so_far| progress.show(so_far));
    progress.end();
    let simulation = simulation.map_err(Failure::could_not)?;
    if !simulation.latencies_are_known {
        let assumed = format_args!("{ASSUMED_LOCAL_NS} ns");
        output::note([format!(
            "nothing tells latencies: {assumed} a local line are assumed, others as distances say"
        )]);
    }
    args.format.print(&Report::new(&topology.source, &scenario, &options, &simulation), text)
}
