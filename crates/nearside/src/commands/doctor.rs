//! `nearside doctor`: checks of this host.

use crate::{
    commands::replicate::wide::Seen,
    domains::open_host,
    failure::{Failure, Outcome},
    output::Format,
    report::doctor::{self, Doctor},
};
use nearside_linux::{Paths, facts::Facts};

/// Check what this host supports, and how to fix the rest
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside doctor
  sudo nearside doctor --format json

Exit codes:
  0  this user can start domains here
  1  this user cannot: see the lines marked missing")]
pub(crate) struct Args {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let Paths { root, state } = Paths::default();
    let topology = open_host().ok().and_then(|host| host.topology().ok());
    let copies = topology.map(|topology| Seen::on_host(&topology)).unwrap_or_default();
    let doctor = Doctor::new(Facts::collect(&root, &state, true), &copies);
    args.format.print(&doctor, doctor::text)?;
    let stops: Vec<&str> = doctor
        .findings
        .iter()
        .filter(|finding| finding.stops_run)
        .map(|finding| finding.topic)
        .collect();
    match stops.is_empty() {
        true => Ok(()),
        false => Err(Failure::could_not(format_args!(
            "this user cannot start domains here: see {}",
            stops.join(", ")
        ))),
    }
}
