//! `nearside topology`: what this machine is.

use crate::failure::Outcome;

/// Show the machine's nodes, CPUs, memory and distances.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Outcome {
    Ok(())
}
