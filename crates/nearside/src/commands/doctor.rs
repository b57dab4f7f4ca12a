//! `nearside doctor`: what this host can and cannot do.

use crate::{
    failure::{Failure, Outcome},
    output::Format,
    report::doctor::{self, Doctor},
};
use nearside_linux::{Paths, facts::Facts};

/// Tell what this host can and cannot do, and what to do about it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside doctor
  sudo nearside doctor --format json

Exit codes:
  0  `nearside run` can work here
  1  it cannot, for this user: see what is missing")]
pub(crate) struct Args {
    /// How to show it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let Paths { root, state } = Paths::default();
    let doctor = Doctor::new(Facts::collect(&root, &state, true));
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
            "`nearside run` cannot work here: see {}",
            stops.join(", ")
        ))),
    }
}
