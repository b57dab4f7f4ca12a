//! `nearside man`: manual pages, made from the same text as the help.

use crate::failure::{Failure, Outcome};
use clap::CommandFactory;
use std::path::PathBuf;

/// Write the manual pages, one for each command, into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nearside man /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// The folder, which must exist
    folder: PathBuf,
}

pub(crate) fn run<C: CommandFactory>(args: &Args) -> Outcome {
    clap_mangen::generate_to(C::command(), &args.folder)
        .map_err(|error| Failure::could_not(format_args!("{}: {error}", args.folder.display())))
}
