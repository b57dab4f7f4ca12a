//! Fixed work in several domains at once, timed by the modelled clock, under a contender that
//! places the domains. `lab/compare` runs it in guests of `lab/run --model`.

mod chance;
mod domain;
mod outcome;
mod play;
mod server;
mod stage;
mod text;
mod threads;
mod warehouse;
mod workload;

use clap::{Parser, Subcommand};
use outcome::Outcome;
use std::process::ExitCode;

/// Fixed work in several domains.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Name the workloads
    List,
    /// Print the domains of a workload as JSON
    Describe(workload::Which),
    /// Run a workload and print its result as a line of JSON
    Play(play::Options),
    /// Do the work of one domain (for the workloads themselves)
    Domain(domain::Options),
}

fn run() -> Outcome<()> {
    match Args::parse().command {
        Command::List => workload::ALL
            .iter()
            .for_each(|workload| println!("{:12} {}", workload.name, workload.description)),
        Command::Describe(which) => println!("{}", serde_json::to_string(&which.domains()?)?),
        Command::Play(options) => println!("{}", play::play(&options)?),
        Command::Domain(options) => domain::run(&options)?,
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workloads: {error}");
            ExitCode::FAILURE
        }
    }
}
