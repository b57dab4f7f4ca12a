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
mod journal;
mod lock;
mod output;
mod printable;
mod progress;
mod race;
mod rehome;
mod report;
mod request;
mod room;
mod sample;
mod size;
mod source;
mod top;
mod vm;

use clap::{Parser, Subcommand, error::ErrorKind};
use commands::numad::unsupported;
use failure::{Failure, Outcome};
use std::{ffi::OsString, process::ExitCode};

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
  3  partly done (`set`, `replicate`)
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
    Export(commands::export::Args),
    Numad(commands::numad::Args),
    LibvirtHook(commands::libvirt_hook::Args),
    Simulate(commands::simulate::Args),
    Replicate(commands::replicate::Args),
    Doctor(commands::doctor::Args),
    Replicator(commands::replicator::Args),
    ReplicatorExchange(commands::replicator::ExchangeArgs),
    Daemon(commands::daemon::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
    BindVcpus(commands::run::HelperArgs),
}

/// Parses the command line, runs the command, and reports a failure.
pub fn main() -> ExitCode {
    let words = words(std::env::args_os().collect());
    let outcome = match Cli::try_parse_from(&words) {
        Ok(cli) => run(cli.command),
        Err(error) => not_understood(&error, &words),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure),
    }
}

/// The words of the command line. A program of the name `numad` is `nearside numad`.
fn words(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.first().is_some_and(|program| commands::numad::is_numad(program)) {
        words.splice(..1, ["nearside".into(), commands::numad::NAME.into()]);
    }
    words
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
        Command::Export(args) => commands::export::run(&args),
        Command::Numad(args) => commands::numad::run(&args),
        Command::LibvirtHook(args) => commands::libvirt_hook::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::Replicate(args) => commands::replicate::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Replicator(args) => commands::replicator::run(&args),
        Command::ReplicatorExchange(_) => commands::replicator::exchange(),
        Command::Daemon(args) => commands::daemon::run(&args),
        Command::Completions(args) => commands::completions::run::<Cli>(&args),
        Command::Man(args) => commands::man::run::<Cli>(&args),
        Command::BindVcpus(args) => commands::run::bind_vcpus(&args),
    }
}

/// Prints the requested help, or returns the error in the command line.
fn not_understood(error: &clap::Error, words: &[OsString]) -> Outcome {
    let is_command = |name: &str| words.get(1).is_some_and(|command| command == name);
    if let Some(why) = is_command(commands::numad::NAME).then(|| unsupported(error)).flatten() {
        return Err(Failure::usage(why));
    }
    let (styled, plain) = (error.render().ansi().to_string(), error.render().to_string());
    let failure = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return output::print(&styled),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Failure::usage(format_args!("no command\n\n{plain}"))
        }
        // Nearside's own prefix replaces clap's.
        _ => Failure::usage(plain.strip_prefix("error: ").unwrap_or(&plain)),
    };
    let stands_in = is_command("run") || is_command("exec");
    Err(if stands_in { failure.with_code(commands::run::FAILED) } else { failure })
}
