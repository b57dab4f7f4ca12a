//! `nearside`, the command line of the NUMA manager.
//!
//! Each command is one file in `commands`, with a `Args` struct (its flags and help) and a `run` function. What a
//! command prints is built by a pure function over what the crates below returned, so that it can be tested.
#![forbid(unsafe_code)]

mod commands;
mod domains;
mod failure;
mod interval;
mod output;
mod progress;
mod report;
mod request;
mod size;
mod source;

use clap::{Parser, Subcommand, error::ErrorKind};
use std::process::ExitCode;

/// The NUMA manager for Linux hosts: gives every domain a home and keeps its memory there.
#[derive(Debug, Parser)]
#[command(name = "nearside", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  nearside doctor                                     what this host can do
  nearside topology                                   its nodes, CPUs, memory and distances
  nearside run --name db --cpus 4 --memory 8G -- CMD  start CMD at a home of its own
  nearside list -n                                    who lives where, and how local
  nearside set db --nodes 1 --move-memory             another home, memory included")]
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
    Topology(commands::topology::Args),
    Place(commands::place::Args),
    Doctor(commands::doctor::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error),
    };
    let outcome = match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Exec(args) => commands::exec::run(&args),
        Command::Set(args) => commands::set::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Show(args) => commands::show::run(&args),
        Command::Why(args) => commands::why::run(&args),
        Command::Stat(args) => commands::stat::run(&args),
        Command::Topology(args) => commands::topology::run(&args),
        Command::Place(args) => commands::place::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Completions(args) => commands::completions::run::<Cli>(&args),
        Command::Man(args) => commands::man::run::<Cli>(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Prints clap's message; its exit code, except where that could be taken for the code of a command that was run.
fn not_understood(error: &clap::Error) -> ExitCode {
    // Nobody is left to tell if even this cannot be written.
    let _ = error.print();
    let stands_in = std::env::args_os().nth(1).is_some_and(|command| command == "run" || command == "exec");
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if stands_in => ExitCode::from(commands::run::FAILED),
        _ => ExitCode::from(2),
    }
}
