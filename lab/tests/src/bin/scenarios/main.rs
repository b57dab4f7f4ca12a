//! Plays a scenario of the credit scheduler under modelled time and prints its figures beside their
//! requirements as a line of JSON. For a guest of `lab/run --model`; `lab/measure` runs all of
//! them.
//!
//! All figures come from logs that the threads keep themselves, by the modelled clock: the place
//! and time of each, to some microseconds. The kernel's count of CPU time is not used: under a
//! `sched_ext` scheduler Linux 7.3.4 counts too much.

mod figures;
mod judge;
mod outcome;
mod plays;
mod saturation;
mod stage;
mod worker;

use clap::{Parser, Subcommand};
use outcome::Outcome;
use std::process::ExitCode;

/// Play scenarios of the credit scheduler.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios
    List,
    /// Play a scenario
    Play {
        name: String,
        /// Leave the stock scheduler in charge
        #[arg(long)]
        stock: bool,
    },
    /// Start threads that sleep once (for the scenarios themselves)
    Create(saturation::Create),
    /// Burn CPU time (for the scenarios themselves)
    Worker(worker::Work),
}

fn play(name: &str, stock: bool) -> Outcome<()> {
    let play = plays::PLAYS
        .iter()
        .find(|play| play.name == name)
        .ok_or_else(|| format!("no scenario named {name:?}"))?;
    let mut stage = stage::Stage::new(!stock)?;
    let result = (play.run)(&mut stage)?;
    let line = serde_json::json!({
        "scenario": name,
        "scheduler": if stock { "stock" } else { "nearside" },
        "figures": result.figures,
        "verdicts": result.verdicts,
        "statistics": stage.statistics()?,
    });
    println!("{line}");
    Ok(())
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::List => {
            plays::PLAYS.iter().for_each(|play| println!("{}", play.name));
            Ok(())
        }
        Command::Play { name, stock } => play(&name, stock),
        Command::Create(create) => saturation::create_threads(&create),
        Command::Worker(work) => worker::run(&work),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scenarios: {error}");
            ExitCode::FAILURE
        }
    }
}
