//! `nearside`, the command line of the NUMA manager.
//!
//! Each command is one file in `commands` with a struct `Args` (its flags and help) and a function
//! `run`. Pure functions in `report` build the printed text from the data that the crates below
//! return, so each report has a unit test. The parts of the daemon are in [`daemon`].
//!
//! This is a library so that the fuzz targets can call its parsers; `main.rs` only calls [`main`].
#![forbid(unsafe_code)]

mod client;
mod commands;
pub mod daemon;
mod domains;
mod failure;
mod interval;
mod lock;
mod output;
mod printable;
mod progress;
mod rehome;
mod report;
mod request;
mod sample;
mod size;
mod source;
mod top;

use clap::{Parser, Subcommand, error::ErrorKind};
use failure::{Failure, Outcome};
use std::process::ExitCode;

/// NUMA manager for Linux: gives every domain a home and keeps its memory there
#[derive(Debug, Parser)]
#[command(name = "nearside", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  nearside doctor                                     check this host
  nearside topology                                   show its nodes and distances
  nearside run --name db --cpus 4 --memory 8G -- CMD  start CMD at a home of its own
  nearside list -n                                    list domains, their homes and local shares
  nearside set db --nodes 1 --move-memory             move db and its memory to node 1

Exit codes:
  0  done
  1  failed
  2  invalid command line
  3  partly done (`set`)
  `run` and `exec` pass on the code of their command; 125 to 127 are their own")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(commands::run::Args),
    Exec(commands::exec::Args),
    Set(commands::set::Args),
    List(commands::list::Args),
    Show(commands::show::Args),
    Why(commands::why::Args),
    Stat(commands::stat::Args),
    Top(commands::top::Args),
    Topology(commands::topology::Args),
    Place(commands::place::Args),
    Lint(commands::lint::Args),
    Simulate(commands::simulate::Args),
    Doctor(commands::doctor::Args),
    Daemon(commands::daemon::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
    BindVcpus(commands::run::HelperArgs),
}

/// Parses the command line, runs the command, and reports a failure.
pub fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(error) => not_understood(&error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure),
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Run(args) => commands::run::run(&args),
        Command::Exec(args) => commands::exec::run(&args),
        Command::Set(args) => commands::set::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Show(args) => commands::show::run(&args),
        Command::Why(args) => commands::why::run(&args),
        Command::Stat(args) => commands::stat::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Topology(args) => commands::topology::run(&args),
        Command::Place(args) => commands::place::run(&args),
        Command::Lint(args) => commands::lint::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Daemon(args) => commands::daemon::run(&args),
        Command::Completions(args) => commands::completions::run::<Cli>(&args),
        Command::Man(args) => commands::man::run::<Cli>(&args),
        Command::BindVcpus(args) => commands::run::bind_vcpus(&args),
    }
}

/// Prints the requested help, or returns the error in the command line.
fn not_understood(error: &clap::Error) -> Outcome {
    let (styled, plain) = (error.render().ansi().to_string(), error.render().to_string());
    let failure = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return output::print(&styled),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Failure::usage(format_args!("no command\n\n{styled}"))
        }
        // Nearside's own prefix replaces clap's.
        _ => Failure::usage(plain.strip_prefix("error: ").unwrap_or(&plain)),
    };
    let stands_in =
        std::env::args_os().nth(1).is_some_and(|command| command == "run" || command == "exec");
    Err(if stands_in { failure.with_code(commands::run::FAILED) } else { failure })
}
