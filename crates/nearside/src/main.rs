//! `nearside`, the command line of the NUMA manager.
//!
//! Each command is one file in `commands`, with a `Args` struct (its flags and help) and a `run` function. What a
//! command prints is built by a pure function over what the crates below returned, so that it can be tested.
#![forbid(unsafe_code)]

mod commands;
mod failure;
mod report;
mod request;
mod size;
mod source;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The NUMA manager for Linux hosts: gives every domain a home and keeps its memory there.
#[derive(Debug, Parser)]
#[command(name = "nearside", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Place(commands::place::Args),
    Topology(commands::topology::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Place(args) => commands::place::run(&args),
        Command::Topology(args) => commands::topology::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
